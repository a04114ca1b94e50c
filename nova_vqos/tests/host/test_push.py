# SPDX-License-Identifier: Apache-2.0
"""Pushes over a real bus, to real agents, for real guests."""

from concurrent import futures
import os
import signal
import uuid

import oslo_messaging
import pytest

from nova_vqos.agent.overrides import store
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_slices
from nova_vqos_lab import process

LIMIT_S = guests.LIMIT_S
SLICE_US = 90_000

needs_slices = test_slices.needs_slices


@pytest.fixture
def start(lab, bus, profiles):
    """Starts the agent of a host; all are stopped after the test."""
    started = []

    def start(host):
        agents.store_proof(host)
        agent = agents.Agent(host, bus, quantum_interval_s=1,
                             billing_interval_s=0.5, pushed_interval_s=1)
        started.append(agent)
        agent.wait_ready()
        return agent
    yield start
    for agent in started:
        if agent.process.alive():
            agent.stop()
        agent.print_log()
    for host in lab.hosts:
        path = host.path('var/lib/nova-vqos/pushed.json')
        if os.path.exists(path):
            os.unlink(path)


@pytest.fixture
def flavor_id():
    """No other test's flavor."""
    return str(uuid.uuid4())


def push(client, host, flavor_id, generation=None, quantum_class='default',
         dd_billing='off', guarantee='off', units=40, vcpus=1):
    """:returns: what the agent of a host answers, once it does"""
    generation = generation or store.now_us()
    answers = []

    def answered():
        try:
            answers.append(client.call(
                host, 'push_policies', generation=generation,
                flavors={flavor_id: {
                    'name': 'test', 'vcpus': vcpus, 'units': units,
                    'quantum_class': quantum_class,
                    'dd_billing': dd_billing, 'guarantee': guarantee}}))
        except oslo_messaging.MessagingTimeout:
            return False
        return True
    process.wait_until(answered, LIMIT_S, 'an answer')
    return answers[0]


def told(client, host, guest):
    """:returns: what an agent knows of a guest, {} while it knows nothing"""
    try:
        return client.get_server(host, guest)
    except (oslo_messaging.RemoteError, oslo_messaging.MessagingTimeout):
        return {}


def is_limited(guest, host=None):
    """Whether there is a limit on all of its threads together."""
    return 0 < guest.domain(host).schedulerParameters()['global_quota'] < (
        1 << 40)


def slice_us(guest):
    return sched_attr.slice_us(guest.thread(0))


def wait_slice(guest, wanted_us):
    process.wait_until(lambda: slice_us(guest) == wanted_us, LIMIT_S,
                       f'a slice of {wanted_us} us')


@needs_slices
def test_class_and_billing_follow_it(lab, start, guest_on, client, flavor_id):
    agent = start(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40), flavor_id=flavor_id)
    guest.wait_cap((20_000, 50_000))
    own_us = slice_us(guest)
    assert own_us != SLICE_US
    assert not is_limited(guest)

    answer = push(client, lab.fast, flavor_id, quantum_class='cache',
                  dd_billing='charge')
    assert (answer['state'], answer['stored']) == ('applied', True)
    assert (answer['servers'], answer['following']) == (1, 1)
    wait_slice(guest, SLICE_US)
    process.wait_until(lambda: is_limited(guest), LIMIT_S, 'a limit')
    process.wait_until(lambda: told(client, lab.fast, guest).get('bill'),
                       LIMIT_S, 'a bill')

    # An agent that is killed begins where it was.
    agent.process.signal(signal.SIGKILL)
    assert agent.process.wait(10)
    start(lab.fast)
    process.wait_until(lambda: told(client, lab.fast, guest).get('right'),
                       LIMIT_S, 'the new agent to know the server')
    report = told(client, lab.fast, guest)
    assert report['policy_source']['dd_billing'] == 'pushed'
    assert report['booted'] == {'quantum_class': 'default',
                                'dd_billing': 'off', 'guarantee': 'off'}
    assert report['dd_billing'] == 'charge'
    assert slice_us(guest) == SLICE_US
    assert is_limited(guest)

    push(client, lab.fast, flavor_id)
    wait_slice(guest, own_us)
    process.wait_until(lambda: not is_limited(guest), LIMIT_S,
                       'the end of the limit')
    guest.wait_cap((20_000, 50_000))
    assert told(client, lab.fast, guest)['bill'] is None


def test_a_namesake_is_another_flavor(lab, start, guest_on, client, flavor_id):
    start(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40), flavor_id=flavor_id)
    others = [guest_on(lab.fast, specs=guests.server(20), flavor_id=other)
              for other in (None, str(uuid.uuid4()))]
    process.wait_until(
        lambda: all(told(client, lab.fast, one).get('right')
                    for one in (guest, *others)),
        LIMIT_S, 'all to be known')
    answer = push(client, lab.fast, flavor_id, dd_billing='charge')
    process.wait_until(lambda: is_limited(guest), LIMIT_S, 'a limit')
    assert {one['server_uuid'] for one in answer['not_following']} == {
        one.uuid for one in others}
    assert not any(map(is_limited, others))


def test_a_host_back_up_hears_of_it(lab, start, guest_on, client, flavor_id):
    start(lab.fast)
    guest = guest_on(lab.slow, specs=guests.server(40), flavor_id=flavor_id)
    push(client, lab.fast, flavor_id, dd_billing='charge')
    assert not is_limited(guest)
    start(lab.slow)
    process.wait_until(lambda: is_limited(guest), LIMIT_S, 'a limit')
    report = told(client, lab.slow, guest)
    assert report['policy_source']['dd_billing'] == 'pushed'
    held = [client.call(host, 'get_pushed') for host in lab.hosts]
    assert held[0]['flavors'] == held[1]['flavors']


def test_its_new_host_makes_it_follow(lab, start, guest_on, client, flavor_id):
    for host in lab.hosts:
        start(host)
        push(client, host, flavor_id, generation=1_000_000,
             dd_billing='charge')
    guest = guest_on(lab.fast, specs=guests.server(40), flavor_id=flavor_id)
    process.wait_until(lambda: is_limited(guest), LIMIT_S, 'a limit')
    client.lift_limits(guest)
    guest.migrate(lab.slow)
    process.wait_until(lambda: is_limited(guest, lab.slow), LIMIT_S,
                       'a limit on the new host')


def test_two_pushes_at_once_end_alike(lab, bus, start, flavor_id):
    for host in lab.hosts:
        start(host)
    generation = store.now_us()
    network = lab.network.controller
    with (agents.Client(bus, network) as one,
          agents.Client(bus, network) as two,
          futures.ThreadPoolExecutor(2) as executor):
        def push_all(client, hosts, number):
            return [push(client, host, flavor_id, generation, units=number)
                    for host in hosts]
        # Even where both have the very same generation.
        made = [executor.submit(push_all, one, lab.hosts, 1),
                executor.submit(push_all, two, lab.hosts[::-1], 2)]
        for done in made:
            done.result(2 * LIMIT_S)
        first, second = (one.call(host, 'get_pushed')['flavors'][flavor_id]
                         for host in lab.hosts)
        assert first == second
        assert first['units'] in (1, 2)
