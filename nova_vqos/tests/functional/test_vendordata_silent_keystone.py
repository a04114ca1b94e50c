# SPDX-License-Identifier: Apache-2.0
"""A Keystone that accepts, and never answers, costs little."""

from concurrent import futures
import socket
import threading
import time

from oslo_config import cfg
import pytest
import requests

from nova_vqos.conf import vendordata
from nova_vqos.tests import functional
from nova_vqos.tests.fixtures import ports
from nova_vqos.tests.fixtures import vendordata as fixture
from nova_vqos.tests.fixtures import waits
from nova_vqos.vendordata import keystone
from nova_vqos.vendordata import service

pytestmark = functional.needs_threads

CALLERS = 32
LIMIT_S = 20
# Of the service, and of Nova, which waits two seconds longer by default.
DEADLINE_S = 4
NOVA_S = 6


@pytest.fixture
def url(tmp_path):
    with socket.create_server(('127.0.0.1', 0), backlog=1000) as silent, \
            ports.kept() as port:
        path = tmp_path / 'nova-vqos.conf'
        path.write_text(
            f'[vqos_vendordata]\nlisten_port = {port}\n'
            f'deadline_s = {DEADLINE_S}\n' + fixture.CREDENTIALS.replace(
                '127.0.0.1:1/', f'127.0.0.1:{silent.getsockname()[1]}/'))
        conf = cfg.ConfigOpts()
        vendordata.register_opts(conf)
        conf([], default_config_files=[str(path)], default_config_dirs=[])
        made = service.make(conf, {})
        made.start()
        waits.wait_until(lambda: ports.listens(port))
        yield f'http://127.0.0.1:{port}/'
        made.stop()


def ask(url, number):
    """:returns: the status"""
    return requests.post(
        url, json={}, timeout=NOVA_S,
        headers={'X-Auth-Token': f'token-{number}'}).status_code


def test_threads_and_times_are_bounded(url, caplog, monkeypatch):
    # Later than all waves, however slow the machine is.
    monkeypatch.setattr(keystone, 'RETRY_S', 600.0)
    before = threading.active_count()
    with futures.ThreadPoolExecutor(CALLERS) as callers:
        for wave in range(3):
            asked = [callers.submit(ask, url, (wave, number))
                     for number in range(CALLERS)]
            # Within Nova's time.
            assert {one.result(LIMIT_S) for one in asked} == {503}
            # Callers, requests, and calls to Keystone.
            assert threading.active_count() - before <= 3 * CALLERS
            begun_s = time.monotonic()
            assert ask(url, 'again') == 503
            # As it is known to hang.
            assert time.monotonic() - begun_s < DEADLINE_S
    lines = [one for one in caplog.records
             if one.name.startswith('nova_vqos') and one.levelname != 'INFO']
    assert len(lines) == 1
    assert 'Keystone' in lines[0].getMessage()
    assert 'Traceback' not in caplog.text
