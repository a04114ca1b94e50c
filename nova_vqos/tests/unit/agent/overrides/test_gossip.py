# SPDX-License-Identifier: Apache-2.0
"""Pushes over RPC, and agents that hear of them from one another."""

import functools
import itertools
import threading

import oslo_messaging
import pytest

from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import primitives
from nova_vqos import push_signature
from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.overrides import gossip
from nova_vqos.agent.overrides import receiver
from nova_vqos.agent.overrides import store
from nova_vqos.tests.fixtures import agent as agent_world
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits
from nova_vqos.tests.unit import test_policy_override
from nova_vqos.tests.unit import test_push_signature

FLAVORS = {'f1': {**test_policy_override.FIELDS, 'dd_billing': 'account'}}


class Agent:
    """An agent to which is pushed.

    :ivar gossip: compares overrides with other agents
    """

    def __init__(self, agents, directory, host, keys=()):
        self.host = host
        self.store = store.OverrideStore(
            str(directory / f'{host}.json'), push_signature.Verifier(keys))
        self.store.load()
        directory = directory / f'world-{host}'
        directory.mkdir(exist_ok=True)
        self.world = agent_world.World(directory, store=self.store)
        self.pushing = receiver.Receiver(
            self.store, self.world.loop.follow_pushed,
            self.world.loop.pushed_report, host)
        self.gossip = gossip.Gossip(self.pushing, host, 1.0)
        agents.add(host, manager.AgentManager(
            self.world.loop, host, push_receiver=self.pushing), self.world)

    def boot(self, api):
        """Have a server run, and wait until the agent knows it."""
        self.world.host.boot(specs=fakes.make_specs())
        self.world.loop.refresh()
        waits.wait_until(lambda: api.call(
            self.host, rpcapi.GET_HOST, timeout=waits.LIMIT_S
            ).servers == (fakes.UUID,))

    def ask(self, api):
        """Ask another agent: the bus may give a question to this one."""
        waits.wait_until(lambda: self.gossip.compare(api))

    @property
    def generation(self):
        return policy_override.generation_of(self.store.overrides)


@pytest.fixture
def api(agents):
    return rpcapi.AgentAPI(agents.transport())


@pytest.fixture
def add(agents, tmp_path):
    return functools.partial(Agent, agents, tmp_path)


def push(api, host, generation, flavors):
    return api.call(host, rpcapi.PUSH_POLICIES, timeout=waits.LIMIT_S,
                    generation=generation, flavors=flavors)


def push_full(api, host, generation, flavors, signature=''):
    return api.call(host, rpcapi.PUSH_FLAVORS, timeout=waits.LIMIT_S,
                    push=as_push(generation, flavors, full=True,
                                 signature=signature))


def show(api, host):
    return api.call(host, rpcapi.GET_SERVER, timeout=waits.LIMIT_S,
                    server_uuid=fakes.UUID)


def now_us():
    return store.now_us()


def test_a_push_is_applied_and_answered(add, api):
    agent = add('a')
    agent.boot(api)
    generation = now_us()
    answer = push(api, 'a', generation, FLAVORS)
    assert primitives.to_primitives(answer) == {
        'host': 'a', 'generation': generation, 'state': 'applied',
        'stored': True, 'problem': '', 'servers': 1, 'following': 1,
        'other_units': 0, 'refused': 0, 'unmatched': 0, 'not_following': [],
        'keep_reservation': 0}
    server = show(api, 'a')
    assert server.policy.dd_billing == 'account'
    assert server.policy_source['dd_billing'] == 'pushed'
    held = api.call('a', rpcapi.GET_PUSHED, timeout=waits.LIMIT_S)
    assert held.flavors == {'f1': policy_override.Override(
        generation, **FLAVORS['f1'])}
    assert held.generation == generation


@pytest.mark.parametrize('arguments', [
    {}, {'generation': 1}, {'generation': None, 'flavors': {}},
    {'generation': 0, 'flavors': {}}, {'generation': 1.5, 'flavors': {}},
    {'generation': 1, 'flavors': None}, {'generation': 1, 'flavors': [1]},
    {'generation': 1, 'flavors': {'f1': {}}},
    {'generation': 1,
     'flavors': {'f1': {**test_policy_override.FIELDS, 'cap': 'x'}}},
    {'generation': 2**53 - 1, 'flavors': FLAVORS},
    {'generation': 1, 'flavors': {}, 'more': 1},
])
def test_garbage_is_refused_and_changes_nothing(add, agents, arguments):
    agent = add('a')
    client = oslo_messaging.get_rpc_client(
        agents.transport(), oslo_messaging.Target(
            exchange=rpcapi.EXCHANGE, topic=rpcapi.TOPIC, server='a',
            version=rpcapi.VERSION), timeout=waits.LIMIT_S)
    with pytest.raises(rpcapi.InvalidArgument):
        client.call({}, 'push_policies', **arguments)
    assert agent.store.overrides == {}
    with pytest.raises(rpcapi.InvalidArgument):
        client.call({}, 'compare_pushed', digest=['x'])


def test_two_pushes_at_once_end_alike_everywhere(add, api):
    made = [add(host) for host in 'abc']
    base = now_us()

    def push_to(number, hosts):
        for host in hosts:
            push(api, host, base + number, {
                'f1': {**FLAVORS['f1'], 'units': number}})
    threads = [threading.Thread(target=push_to, args=arguments)
               for arguments in ((1, 'abc'), (2, 'cba'), (3, 'bac'))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {agent.store.overrides['f1'].units for agent in made} == {3}
    assert len({agent.pushing.digest() for agent in made}) == 1


def test_one_that_was_down_hears_of_it_from_another(add, api, tmp_path,
                                                    caplog):
    caplog.set_level('INFO', 'nova_vqos.agent.overrides')
    others = [add('a'), add('b')]
    generation = now_us()
    for agent in others:
        push(api, agent.host, generation, FLAVORS)
    late = add('c')
    late.boot(api)
    late.ask(api)
    assert late.store.overrides['f1'].dd_billing == 'account'
    assert caplog.text.count('Caught up') == 1
    assert show(api, 'c').policy_source['dd_billing'] == 'pushed'
    # And it keeps it.
    again = store.OverrideStore(str(tmp_path / 'c.json'))
    again.load()
    assert again.overrides == late.store.overrides
    # What is the same is not sent again.
    late.ask(api)
    assert caplog.text.count('Caught up') == 1


def test_pushes_of_which_each_heard_another_come_together(add, api):
    one, two = add('a'), add('b')
    push(api, 'a', now_us(), FLAVORS)
    push(api, 'b', now_us() + 1, {'f2': FLAVORS['f1']})
    one.ask(api)
    two.ask(api)
    assert one.store.overrides == two.store.overrides
    assert set(one.store.overrides) == {'f1', 'f2'}


def test_it_asks_by_itself(add, api):
    add('a')
    push(api, 'a', now_us(), FLAVORS)
    late = add('b')
    late.gossip._interval_s = 0.01
    late.gossip.use_bus(api)
    waits.wait_until(lambda: late.generation)
    late.gossip.stop()
    assert not late.gossip._thread.is_alive()


def test_a_full_push_is_a_set(add, api):
    one, late = add('a'), add('b')
    push(api, 'a', now_us(), {**FLAVORS, 'f2': FLAVORS['f1']})
    push(api, 'b', now_us(), {'f3': FLAVORS['f1']})
    full = now_us()
    assert push_full(api, 'a', full, FLAVORS).state == 'applied'
    assert set(one.store.overrides) == {'f1'}
    held = api.call('a', rpcapi.GET_PUSHED, timeout=waits.LIMIT_S)
    assert (held.generation, held.full_generation) == (full, full)
    # Who was away learns of it, and brings nothing back.
    one.ask(api)
    assert set(one.store.overrides) == {'f1'}
    late.ask(api)
    assert late.store.pushes == one.store.pushes
    assert push(api, 'b', full - 1, {'f3': FLAVORS['f1']}).state == 'older'
    assert set(late.store.overrides) == {'f1'}


def test_no_call_pushes_others_out(add, api):
    agent = add('a')
    push(api, 'a', now_us(), FLAVORS)
    with pytest.raises(rpcapi.TooManyFlavors):
        push(api, 'a', now_us(), {
            str(number): FLAVORS['f1'] for number in range(1500)})
    assert set(agent.store.overrides) == {'f1'}
    (alarm,) = [alarm for alarm in api.call(
        'a', rpcapi.GET_HOST, timeout=waits.LIMIT_S).alarms
        if alarm == agent.store.refused]
    assert alarm


class Before16:
    """An agent before 1.6, with real overrides."""

    target = oslo_messaging.Target(version='1.5')

    def __init__(self, receiver):
        self._receiver = receiver

    def compare_pushed(self, _context, digest):
        return primitives.to_primitives(
            self._receiver.compare_overrides(digest))


@pytest.mark.causes_faults
def test_agents_before_full_pushes(add, agents, api, tmp_path):
    """In an upgrade both kinds get from the other what they know."""
    new = add('a')
    old = receiver.Receiver(
        store.OverrideStore(str(tmp_path / 'old.json')), lambda: None, None,
        'old')
    old._store.merge([policy_push.of_overrides(
        policy_override.from_dict(FLAVORS, now_us()))[0]])
    agents.add('old', Before16(old))
    new.ask(api)
    assert new.store.overrides == old._store.overrides
    push_full(api, 'a', now_us(), {'f2': FLAVORS['f1']})
    new.ask(api)
    assert set(new.store.overrides) == {'f2'}
    held = api.call('a', rpcapi.COMPARE_PUSHED, timeout=waits.LIMIT_S,
                    digest='')
    assert set(held.flavors) == {'f2'}


def test_signed_pushes_alone(add, api, tmp_path, caplog):
    """Where a key is configured, from operators and from other agents."""
    key, public = test_push_signature.write_key(tmp_path / 'key')
    strict, lax, other = add('a', [public]), add('b'), add('c', [public])
    generation = now_us()
    with pytest.raises(rpcapi.SignatureInvalid, match='push_public_keys'):
        push_full(api, 'a', generation, FLAVORS)
    with pytest.raises(rpcapi.SignatureInvalid):
        push(api, 'a', generation, FLAVORS)
    push(api, 'b', generation, FLAVORS)
    strict.gossip.compare(Bus(lax.pushing.compare('')))
    assert strict.store.pushes == ()
    assert 'is not signed' in caplog.text
    signed = push_signature.signed(policy_push.Push(
        generation - 1, True, policy_override.from_dict(
            {'f2': FLAVORS['f1']}, generation - 1)), key)
    for changed in ({'generation': generation}, {'full': False},
                    {'flavors': FLAVORS},
                    {'signature': 'A' * 86 + '=='}):
        with pytest.raises(rpcapi.SignatureInvalid):
            api.call('a', rpcapi.PUSH_FLAVORS, timeout=waits.LIMIT_S,
                     push={**signed.to_dict(), **changed})
    api.call('a', rpcapi.PUSH_FLAVORS, timeout=waits.LIMIT_S,
             push=signed.to_dict())
    assert strict.store.pushes == (signed,)
    # It goes on with its signature, by whomever.
    lax.gossip.compare(Bus(strict.pushing.compare('')))
    other.gossip.compare(Bus(lax.pushing.compare('')))
    assert other.store.pushes == (signed,)
    held = api.call('a', rpcapi.GET_PUSHED, timeout=waits.LIMIT_S)
    assert held.requires_signature
    assert not api.call('b', rpcapi.GET_PUSHED,
                        timeout=waits.LIMIT_S).requires_signature
    # And none of agents that keep no signatures.
    bus = Bus(pushes.OverridesDifference('old', {
        'f1': {**FLAVORS['f1'], 'generation': generation}}), old=True)
    assert not other.gossip.compare(bus)
    assert bus.asked == 1
    assert other.store.pushes == (signed,)


def test_a_key_that_cannot_be_used_is_an_alarm(add, api, tmp_path):
    agent = add('a', [str(tmp_path / 'none')])
    with pytest.raises(rpcapi.SignatureInvalid):
        push(api, 'a', now_us(), FLAVORS)
    assert agent.store.verifier.problem in api.call(
        'a', rpcapi.GET_HOST, timeout=waits.LIMIT_S).alarms


def test_no_other_agent_is_there(add, api):
    alone = add('a')
    assert not alone.gossip.compare(api)


class Turns:
    """A bus that asks an agent before 1.6 and another one in turns."""

    def __init__(self, old, other, *, begins_with_old):
        self._old = old
        self._agents = itertools.cycle(
            (old, other) if begins_with_old else (other, old))

    def call(self, _host, method, *, timeout, digest):
        agent = next(self._agents)
        if method is rpcapi.COMPARE_PUSHED:
            return agent.compare_overrides(digest)
        if agent is self._old:
            raise oslo_messaging.RemoteError('UnsupportedVersion', '')
        return agent.compare(digest)


@pytest.mark.parametrize('begins_with_old', [False, True])
def test_an_old_agent_and_this_one_in_turns(add, begins_with_old):
    """A cell of two: each second request comes back to its sender."""
    new, old = add('a'), add('b')
    assert new.gossip.compare(Turns(old.pushing, new.pushing,
                                    begins_with_old=begins_with_old))


class Bus:
    """Answers as another agent would."""

    def __init__(self, answer, old=False):
        self.answer = answer
        self.asked = 0
        self.old = old

    def call(self, _host, method, *, timeout, digest):
        self.asked += 1
        if self.old and method is rpcapi.COMPARE_PUSHES:
            raise oslo_messaging.RemoteError('UnsupportedVersion', '')
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize('answer', [
    oslo_messaging.MessagingTimeout('no answer'),
    oslo_messaging.MessageDeliveryFailure('dead'),
    oslo_messaging.RemoteError('AgentError', ''),
    primitives.MessageInvalid('no answer'),
])
def test_whatever_goes_wrong_is_no_harm(add, answer):
    agent = add('a')
    bus = Bus(answer)
    assert not agent.gossip.compare(bus)
    assert bus.asked == 1
    assert agent.store.overrides == {}


def test_one_whose_questions_all_come_back_gives_up(add):
    agent = add('a')
    bus = Bus(pushes.PushesDifference('a', None))
    assert not agent.gossip.compare(bus)
    assert bus.asked == 4


def as_push(generation, flavors, full=False, signature=''):
    return {'generation': generation, 'full': full, 'flavors': flavors,
            'signature': signature}


@pytest.mark.parametrize('answer', [
    pushes.OverridesDifference('b', flavors) for flavors in (
        {'f1': {**test_policy_override.FIELDS, 'generation': 2**53 - 1}},
        {'f1': {}}, 'flavors')] + [
    pushes.PushesDifference('b', held) for held in (
        [as_push(2**53 - 1, FLAVORS)], [as_push(1, {'f1': {}})],
        [as_push(1, {}, full=True)], [as_push(1, FLAVORS, full=1)],
        [as_push(1, FLAVORS, signature='x')], [{}], 'pushes', {},
        [as_push(1, FLAVORS)] * 1501)])
def test_garbage_of_others_is_logged_once(add, caplog, answer):
    agent = add('a')
    bus = Bus(answer)
    agent.gossip.compare(bus)
    agent.gossip.compare(bus)
    assert agent.store.overrides == {}
    assert caplog.text.count('Pushes of host b are refused') == 1


def test_one_flavor_too_far_ahead_does_not_hide_the_others(add, caplog):
    """As of an agent whose clock is some seconds ahead of this one's."""
    agent = add('a')
    ahead_us = now_us() + policy_override.MOST_AHEAD_US + 10**8
    bus = Bus(pushes.PushesDifference('b', [
        as_push(now_us(), FLAVORS),
        as_push(ahead_us, {'f2': FLAVORS['f1']}, full=True)]))
    agent.gossip.compare(bus)
    agent.gossip.compare(bus)
    assert set(agent.store.overrides) == {'f1'}
    assert caplog.text.count('Pushes of host b are refused') == 1


@pytest.mark.parametrize('host, waited_s', [
    # A thousand that start together ask within ten seconds, and drift.
    ('b', [10.0, 450.0, 450.0, 450.0, 450.0, 450.0]),
    # With no other agent yet, it does not wait for long; nor does it ask again
    # and again where there is none.
    ('a', [10.0, 45.0, 90.0, 180.0, 360.0, 450.0]),
])
def test_agents_ask_neither_at_once_nor_in_step(host, waited_s):
    waits_s = []

    class Receiver:
        def digest(self):
            return ''

    class Stopping(threading.Event):
        def wait(self, timeout=None):
            waits_s.append(timeout)
            return len(waits_s) > 5
    asking = gossip.Gossip(Receiver(), 'a', 300.0,
                          uniform=lambda least, most: most)
    asking._stopping = Stopping()
    asking._work(Bus(pushes.PushesDifference(host, None)))
    assert waits_s == waited_s


def test_an_agent_that_refuses_pushes_reports_it(agents, api):
    agents.add('a')
    with pytest.raises(rpcapi.AgentError, match='takes no pushes'):
        api.call('a', rpcapi.GET_PUSHED, timeout=waits.LIMIT_S)
