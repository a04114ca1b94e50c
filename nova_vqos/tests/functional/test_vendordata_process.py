# SPDX-License-Identifier: Apache-2.0
"""The program nova-vqos-vendordata, as a process of its own."""

import os
import signal
import subprocess
import sys

import pytest
import requests

from nova_vqos.tests.fixtures import ports
from nova_vqos.tests.fixtures import vendordata
from nova_vqos.tests.fixtures import waits

LIMIT_S = 30


@pytest.fixture
def port():
    with ports.kept() as kept:
        yield kept


@pytest.fixture
def start(tmp_path, port):
    started = []

    def begin(text):
        path = tmp_path / 'nova-vqos.conf'
        path.write_text(text)
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', 'nova_vqos.cmd.vendordata',
             '--config-file', str(path)], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        started.append(process)
        return process
    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def test_it_serves_until_it_is_ended(start, port):
    """Neither bus, Nova nor Keystone need be there when it starts."""
    process = start('[DEFAULT]\ntransport_url = rabbit://u:p@127.0.0.1:1/\n'
                    f'[vqos_vendordata]\nlisten_port = {port}\n'
                    + vendordata.CREDENTIALS)
    waits.wait_until(lambda: ports.listens(port)
                      or process.poll() is not None)
    url = f'http://127.0.0.1:{port}/'
    assert requests.get(url, timeout=LIMIT_S).status_code == 405
    assert requests.post(url, data='{}', timeout=LIMIT_S).status_code == 401
    # Keystone cannot be asked: that is no fault of the caller's.
    answer = requests.post(url, data='{}', timeout=LIMIT_S,
                           headers={'X-Auth-Token': 'a-token'})
    assert answer.status_code == 503
    assert 'Traceback' not in answer.text
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize('text, said', [
    ('[DEFAULT]\n', 'transport_url'),
    ('[DEFAULT]\ntransport_url = fake://\n', 'auth_type'),
    ('[DEFAULT]\ntransport_url = fake://\n'
     '[keystone_authtoken]\nauth_type = nothing\n', 'nothing'),
    ('[DEFAULT]\ntransport_url = fake://\n'
     '[keystone_authtoken]\nauth_type = password\n', 'auth_url'),
    ('[DEFAULT]\ntransport_url = fake://\n'
     '[vqos_vendordata]\nlisten_address = here\n' + vendordata.CREDENTIALS,
     'listen_address')])
def test_a_configuration_that_it_cannot_use(start, text, said):
    process = start(text)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said in out
    assert 'Traceback' not in out
    assert 'secret' not in out
