# SPDX-License-Identifier: Apache-2.0
"""A real Ceilometer makes samples of what the agent notifies of.

The notifications are those of the agent's own biller. Ceilometer needs an
environment of its own: the Python of CEILOMETER_PYTHON.
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from nova_vqos.agent import outbox
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement

METERS = 'etc/ceilometer/nova-vqos-ceilometer.yaml'

pytestmark = [pytest.mark.timeout(300), pytest.mark.nightly]


@pytest.fixture(scope='module')
def usages(tmp_path_factory):
    """Two intervals of a server, one in which it did no I/O."""
    host = billing_host.Host(tmp_path_factory.mktemp('host'))
    host.begin(billing='charge', limit_share=1.0)
    host.use(times=30, vcpu_ns=10**8, emulator_ns=10**7, iothread_ns=10**6)
    host.use(times=30, vcpu_ns=10**8)
    return host.sent.usages


@pytest.fixture(scope='module')
def samples(usages, tmp_path_factory):
    """What Ceilometer made of these, and of another notification."""
    python = os.environ.get('CEILOMETER_PYTHON')
    if not python:
        requirement.need('Ceilometer is missing: install it into an '
                         'environment of its own, and name its Python in '
                         'CEILOMETER_PYTHON')
    meters = tmp_path_factory.mktemp('meters.d')
    shutil.copy(project.sample(METERS), meters)
    lines = [json.dumps({
        'event_type': event_type, 'payload': payload, 'priority': 'INFO',
        'publisher_id': 'vqos-agent.here', 'ctxt': {},
        'metadata': {'message_id': str(number), 'timestamp': payload['to']},
    }) for number, (event_type, payload) in enumerate([
        *((outbox.USAGE, usage) for usage in usages),
        (outbox.OVERDRAWN, usages[0])])]
    done = subprocess.run(
        [python, '-W', 'ignore',
         pathlib.Path(__file__).with_name('ceilometer_samples.py'), meters],
        input='\n'.join(lines), capture_output=True, text=True, timeout=120,
        check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()
            if line.startswith('{')]


def test_each_interval_is_a_sample_of_each_meter(usages, samples):
    assert len(usages) == 2
    for usage, io_cu_s in zip(usages, (33, 0), strict=True):
        found = {one['name']: one for one in samples
                 if one['timestamp'][:19] == usage['to'][:19]}
        assert set(found) == {'vqos.vcpu', 'vqos.io'}
        assert found['vqos.vcpu']['volume'] == usage['used_cu_s']['vcpu']
        assert found['vqos.io']['volume'] == pytest.approx(io_cu_s)
        assert found['vqos.io']['volume'] == pytest.approx(sum(
            cu_s for name, cu_s in usage['used_cu_s'].items()
            if name != 'vcpu'))
        for one in found.values():
            assert one['type'] == 'delta'
            assert one['unit'] == 'CU_s'
            assert one['resource_id'] == usage['server_uuid']
            assert one['project_id'] == usage['project_id']
            assert one['resource_metadata'] == {
                'host': 'here', 'billing': 'charge',
                'length_s': usage['length_s']}


def test_nothing_else_is_a_sample(usages, samples):
    assert len(samples) == 2 * len(usages)
