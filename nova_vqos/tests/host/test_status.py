# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""nova-vqos-status on a host that is set up, and on one that is not."""

import datetime
import json
import os
import signal
import sys
import time

import pytest

from nova_vqos.quantum import classes
from nova_vqos.quantum import proof
from nova_vqos.tests.host import test_rpc
from nova_vqos_lab import process

# What is of the machine that carries the lab, and of no deployment.
MACHINE = {'Frequency', 'Halt polling', 'Interrupt time'}
# The lab's agents are started by hand.
NO_SYSTEMD = "Agent's unit"
NOVA_CONF = '/etc/nova-vqos/nova.conf'
SUCCESS, WARNING, FAILURE = 0, 1, 2
LIMIT_S = 60


@pytest.fixture
def agent(lab, bus, client, agent_of):
    """The agent of the host fast, as its operator set it up."""
    store_proof(lab.fast)
    write_nova_conf(lab.fast, bus)
    agent = agent_of(lab.fast)
    os.chmod(lab.fast.path('etc/nova-vqos/nova-vqos.conf'), 0o640)
    test_rpc.wait_reachable(client, lab.fast)
    process.wait_until(lambda: 'io' in agent.state().get('classes', ()),
                       LIMIT_S, 'the classes that the host offers')
    yield agent
    os.unlink(lab.fast.path(NOVA_CONF.lstrip('/')))


def store_proof(host):
    """Let all classes be as if the kernel had been seen to enforce them."""
    proof.store(proof.Proof(
        kernel=os.uname().release, boot_id=proof.boot_id(), tick_us=1000,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(),
        outcomes={name: proof.Outcome(slice_us, float(slice_us), True)
                  for name, slice_us in classes.DEFAULT_SLICES_US.items()}),
        host.path('run/nova-vqos/quantum.json'))


def write_nova_conf(host, bus, more=''):
    with open(host.path(NOVA_CONF.lstrip('/')), 'w',
              encoding='utf-8') as stream:
        stream.write(f'[DEFAULT]\nhost = {host.name}\ntransport_url = {bus}\n'
                     'compute_driver = vqos.VqosLibvirtDriver\n'
                     f'[libvirt]\nvirt_type = qemu\n{more}')


def run_check(host):
    """:returns: the exit status, and code and details by check"""
    done = host.run(
        [sys.executable, '-m', 'nova_vqos.cmd.status', '--role', 'compute',
         '--nova-config', NOVA_CONF, 'upgrade', 'check', '--json'],
        check=False, limit_s=LIMIT_S)
    found = {one['check']: (one['result'], one['details'])
             for one in json.loads(done.stdout)['checks']}
    print(json.dumps(found, indent=1))
    assert 'Traceback' not in done.stderr
    return done.returncode, found


def test_a_host_that_is_set_up(lab, agent):
    status, found = run_check(lab.fast)
    assert {name: details for name, (code, details) in found.items()
            if code != SUCCESS and name not in MACHINE | {NO_SYSTEMD}} == {}
    assert found[NO_SYSTEMD][0] == WARNING
    assert status == WARNING
    assert found['Filter'][1] == (
        'Does not apply: this machine is no controller.')


def test_an_agent_that_hangs(lab, agent):
    """The program does not."""
    agent.process.signal(signal.SIGSTOP)
    try:
        # Three signs of life are missing.
        time.sleep(2)
        began_s = time.monotonic()
        status, found = run_check(lab.fast)
        assert time.monotonic() - began_s < LIMIT_S
    finally:
        agent.process.signal(signal.SIGCONT)
    assert status == WARNING
    assert found['Agent'][0] == found["Agent's answer"][0] == WARNING
    assert 'no answer within 3 s' in found["Agent's answer"][1]


def test_one_that_is_set_up_otherwise(lab, bus, agent):
    """A dead bus, another period, and somebody else's files."""
    write_nova_conf(lab.fast, bus, '[vqos]\nperiod_us = 20000\n')
    config = lab.fast.path('etc/nova-vqos/nova-vqos.conf')
    with open(config, encoding='utf-8') as stream:
        text = stream.read()
    with open(config, 'w', encoding='utf-8') as stream:
        stream.write(text.replace(':5672', ':5673'))
    os.chmod(config, 0o644)
    hook = lab.fast.path('etc/libvirt/hooks/qemu.d/90-nova-vqos')
    os.rename(hook, f'{hook}.away')
    try:
        status, found = run_check(lab.fast)
    finally:
        os.rename(f'{hook}.away', hook)
    assert status == FAILURE
    assert {name for name, (code, _details) in found.items()
            if code == FAILURE} == {'Same options', 'Hook', 'Permissions'}
    assert found["Agent's answer"][0] == WARNING
    assert found['Message bus'][0] == WARNING
    for _code, details in found.values():
        assert 'vqos:vqos@' not in details
