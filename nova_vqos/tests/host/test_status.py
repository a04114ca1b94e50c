# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-status on a host that is set up, and on one that is not."""

import json
import os
import signal
import sys
import time

import pytest

from nova_vqos.tests.fixtures import rabbitmq
from nova_vqos.tests.host import agents
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
    agents.store_proof(lab.fast, agents.SLICES_US, tick_us=1000)
    write_nova_conf(lab.fast, bus)
    agent = agent_of(lab.fast)
    os.chmod(lab.fast.path('etc/nova-vqos/nova-vqos.conf'), 0o640)
    client.wait_reachable(lab.fast)
    process.wait_until(lambda: 'io' in agent.state().get('classes', ()),
                       LIMIT_S, 'the classes that the host offers')
    yield agent
    os.unlink(lab.fast.path(NOVA_CONF.lstrip('/')))


def write_nova_conf(host, bus, more=''):
    with open(host.path(NOVA_CONF.lstrip('/')), 'w',
              encoding='utf-8') as stream:
        stream.write(f'[DEFAULT]\nhost = {host.name}\ntransport_url = {bus}\n'
                     'compute_driver = vqos.VqosLibvirtDriver\n'
                     f'[libvirt]\nvirt_type = qemu\n{more}')


def run_check(host):
    """:returns: the exit status, and code and details by check"""
    done = host.run(
        [sys.executable, '-m', 'nova_vqos.cmd.status.app', '--role', 'compute',
         '--nova-config', NOVA_CONF, 'upgrade', 'check', '--json'],
        check=False, limit_s=LIMIT_S)
    found = {one['check']: (one['result'], one['details'])
             for one in json.loads(done.stdout)['checks']}
    print(json.dumps(found, indent=1))
    assert 'Traceback' not in done.stderr
    return done.returncode, found


def test_a_host_that_is_set_up(lab, agent):
    status, found = None, {}

    def is_all_right():
        nonlocal status, found
        status, found = run_check(lab.fast)
        return {name for name, (code, _details) in found.items()
                if code != SUCCESS} <= MACHINE | {NO_SYSTEMD}
    # A machine that stands still for a second has a heartbeat that is too old.
    process.wait_until(is_all_right, 2 * LIMIT_S, 'a host without problems')
    assert found[NO_SYSTEMD][0] == WARNING
    assert status == WARNING
    assert found['Filter'][1] == (
        'Does not apply: this machine is no controller.')


@pytest.mark.measured
def test_an_agent_that_hangs(lab, agent):
    """The program does not."""
    agent.process.signal(signal.SIGSTOP)
    try:
        # Three heartbeats are missing.
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
    """A dead bus, another period, and files with wrong permissions."""
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
        assert rabbitmq.PASSWORD not in details
