# SPDX-License-Identifier: Apache-2.0
"""A cloud that is upgraded host by host, and back, while its servers run.

The old agent is that of an earlier commit, with the packages that the new one
runs with.
"""

import json
import os
import sys

import pytest

from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import cap_watch
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_billing
from nova_vqos.tests.host import test_manage
from nova_vqos_lab import earlier
from nova_vqos_lab import process

OLD = os.environ.get('NOVA_VQOS_UPGRADE_FROM', earlier.REVISION)

no_ledger = test_billing.no_ledger
config, manage = test_manage.config, test_manage.manage


@pytest.fixture(scope='module')
def old_tree(tmp_path_factory):
    """The code of the old version, with its entry points."""
    tree = tmp_path_factory.mktemp('old')
    try:
        earlier.extract(OLD, str(tree))
    except earlier.NoRevision as error:
        requirement.need(str(error))
    return tree


@pytest.fixture
def old_agent_of(lab, bus, old_tree, profiles):
    """Starts the old agent of a host; it is stopped after the test, too."""
    started = []

    def start(host):
        agent = agents.Agent(host, bus, environment={
            'PYTHONPATH': str(old_tree)})
        started.append(agent)
        agent.wait_ready()
        return agent
    yield start
    for agent in started:
        agent.print_log()
        if agent.process.alive():
            agent.stop()


def used_cu_s(guest):
    return guest.cpu_time_ns() / 1e9 * 100


@pytest.mark.parametrize('to', ['new', 'old'])
def test_a_cap_stays_and_an_account_goes_on(
        lab, old_agent_of, agent_of, server_on, client, to):
    """:param to: the version of the agent that comes second"""
    first_of, second_of = ((old_agent_of, agent_of) if to == 'new'
                           else (agent_of, old_agent_of))
    first = first_of(lab.fast)
    guest = server_on(lab.fast, vqos_dd_billing='account')
    process.wait_until(
        lambda: os.path.exists(test_billing.ledger_path(lab.fast)),
        guests.LIMIT_S,
        'the ledger')
    guest.wait_cap(guests.CAP)
    process.wait_until(lambda: used_cu_s(guest) > 200, guests.LIMIT_S,
                       'some use')
    with cap_watch.CapWatch(guest) as watch:
        first.stop()
        agent = second_of(lab.fast)
        client.wait_right(guest)
        test_billing.wait_billed(client, lab.fast, guest, billing='account')
    assert watch.wrong_ms(guests.CAP) == 0
    assert agent.state()['alarms'] == []
    test_billing.wait_all_billed(lab.fast, guest)
    assert client.get_server(lab.fast, guest)['tamperings'] == []


@pytest.mark.parametrize('first', ['fast', 'slow'])
def test_a_server_moves_between_an_old_and_a_new_host(
        lab, old_agent_of, agent_of, server_on, client, first):
    """:param first: the host that is upgraded first"""
    old, new = (lab.slow, lab.fast) if first == 'fast' else (
        lab.fast, lab.slow)
    old_agent, _agent = old_agent_of(old), agent_of(new)
    guest = server_on(lab.fast, vqos_dd_billing='account')
    process.wait_until(lambda: used_cu_s(guest) > 100, guests.LIMIT_S,
                       'some use')
    guest.migrate(lab.slow)
    guest.host = lab.slow
    guest.wait_cap(guests.CAP_ON_SLOW)
    if first == 'fast':
        # What the new agent billed is with the old one: which is upgraded.
        old_agent.stop()
        agent_of(old)
    bill = test_billing.wait_billed(client, lab.slow, guest, inherited=True)
    assert bill['used_cu_s']['vcpu'] > 100 - test_billing.INTERVAL_CU_S
    assert client.get_server(lab.slow, guest)['right']


def test_all_hosts_answer_both_programs(lab, old_agent_of, agent_of, server_on,
                                        manage, config, old_tree):
    old_agent_of(lab.slow)
    agent_of(lab.fast)
    guest = server_on(lab.slow, vqos_dd_billing='account')
    test_manage.wait_alive(manage)
    hosts = test_manage.rows(manage('host', 'list', '-f', 'json',
                                    *test_manage.ON))
    assert [one['host'] for one in hosts] == ['fast', 'slow']
    server = test_manage.rows(manage('server', 'list', '-f', 'json',
                                     *test_manage.ON))
    assert [one['server_uuid'] for one in server] == [guest.uuid]
    path = config()
    argv = [sys.executable, '-m', 'nova_vqos.cmd.manage.app', '--config-file',
            path, 'host', 'list', '-f', 'json', *test_manage.ON]
    done = lab.fast.run(argv, env={'PYTHONPATH': str(old_tree)}, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 2
