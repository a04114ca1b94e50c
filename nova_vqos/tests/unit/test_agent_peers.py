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


"""Pushes over RPC, and agents that hear of them from one another."""

import threading
import time

import oslo_messaging
import pytest

from nova_vqos import pushed
from nova_vqos.agent import manager
from nova_vqos.agent import peers
from nova_vqos.agent import pushed_store
from nova_vqos.agent import pushing
from nova_vqos.agent import rpcapi
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import manage_world
from nova_vqos.tests.unit import test_pushed

LIMIT_S = 20
FLAVORS = {'f1': {**test_pushed.FIELDS, 'dd_billing': 'account'}}


class Agent:
    """An agent to which is pushed.

    :ivar peers: through which it asks others
    """

    def __init__(self, agents, directory, host):
        self.host = host
        self.store = pushed_store.PushedStore(str(directory / f'{host}.json'))
        self.store.load()
        directory = directory / f'world-{host}'
        directory.mkdir(exist_ok=True)
        self.world = agent_world.World(directory, store=self.store)
        self.pushing = pushing.Pushing(self.store, self.world.loop)
        self.peers = peers.Peers(self.pushing, host, 1.0)
        agents.add(host, manager.AgentManager(
            self.world.loop, host, pushing=self.pushing), self.world)

    def boot(self, api):
        """Have a server run, and wait until the agent knows it."""
        self.world.host.boot(specs=fakes.make_specs())
        self.world.loop.refresh()
        end_s = time.monotonic() + LIMIT_S
        while api.get_host(self.host, LIMIT_S)['servers'] != [fakes.UUID]:
            assert time.monotonic() < end_s

    def ask(self, api):
        """Ask another agent: the bus may give a question to this one."""
        end_s = time.monotonic() + LIMIT_S
        while not self.peers.ask(api):
            assert time.monotonic() < end_s

    @property
    def generation(self):
        return pushed.generation_of(self.store.overrides)


@pytest.fixture
def agents(tmp_path):
    with manage_world.Agents(tmp_path) as world:
        yield world


@pytest.fixture
def api(agents):
    return rpcapi.AgentAPI(agents.transport())


@pytest.fixture
def add(agents, tmp_path):
    return lambda host: Agent(agents, tmp_path, host)


def now_us():
    return pushed_store.now_us()


def test_a_push_is_applied_and_answered(add, api):
    agent = add('a')
    agent.boot(api)
    generation = now_us()
    answer = api.push_policies('a', generation, FLAVORS, LIMIT_S)
    assert answer == {
        'host': 'a', 'generation': generation, 'state': 'applied',
        'stored': True, 'problem': '', 'servers': 1, 'following': 1,
        'other_units': 0, 'refused': 0, 'unmatched': 0, 'not_following': []}
    told = api.get_server('a', fakes.UUID, LIMIT_S)
    assert told['policy']['dd_billing'] == 'account'
    assert told['policy_source']['dd_billing'] == 'pushed'
    held = api.get_pushed('a', LIMIT_S)
    assert held['flavors']['f1'] == {'generation': generation,
                                     **FLAVORS['f1']}
    assert held['generation'] == generation


@pytest.mark.parametrize('arguments', [
    {}, {'generation': 1}, {'generation': None, 'flavors': {}},
    {'generation': 0, 'flavors': {}}, {'generation': 1.5, 'flavors': {}},
    {'generation': 1, 'flavors': None}, {'generation': 1, 'flavors': [1]},
    {'generation': 1, 'flavors': {'f1': {}}},
    {'generation': 1, 'flavors': {'f1': {**test_pushed.FIELDS, 'cap': 'x'}}},
    {'generation': 2**53 - 1, 'flavors': FLAVORS},
    {'generation': 1, 'flavors': {}, 'more': 1},
])
def test_garbage_is_refused_and_changes_nothing(add, agents, arguments):
    agent = add('a')
    client = oslo_messaging.get_rpc_client(
        agents.transport(), oslo_messaging.Target(
            exchange=rpcapi.EXCHANGE, topic=rpcapi.TOPIC, server='a',
            version=rpcapi.VERSION), timeout=LIMIT_S)
    with pytest.raises(rpcapi.InvalidArgument):
        client.call({}, 'push_policies', **arguments)
    assert agent.store.overrides == {}
    with pytest.raises(rpcapi.InvalidArgument):
        client.call({}, 'compare_pushed', digest=['x'])


def test_two_pushes_at_once_end_alike_everywhere(add, api):
    made = [add(host) for host in 'abc']
    base = now_us()

    def push(number, hosts):
        for host in hosts:
            api.push_policies(host, base + number, {
                'f1': {**FLAVORS['f1'], 'units': number}}, LIMIT_S)
    threads = [threading.Thread(target=push, args=arguments) for arguments in (
        (1, 'abc'), (2, 'cba'), (3, 'bac'))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {agent.store.overrides['f1'].units for agent in made} == {3}
    assert len({agent.pushing.digest() for agent in made}) == 1


def test_one_that_was_down_hears_of_it_from_another(add, api, tmp_path):
    others = [add('a'), add('b')]
    generation = now_us()
    for agent in others:
        api.push_policies(agent.host, generation, FLAVORS, LIMIT_S)
    late = add('c')
    late.boot(api)
    late.ask(api)
    assert late.store.overrides['f1'].dd_billing == 'account'
    assert late.peers.heard == 1
    told = api.get_server('c', fakes.UUID, LIMIT_S)
    assert told['policy_source']['dd_billing'] == 'pushed'
    # And it keeps it.
    again = pushed_store.PushedStore(str(tmp_path / 'c.json'))
    again.load()
    assert again.overrides == late.store.overrides
    # What is the same is not sent again.
    late.ask(api)
    assert late.peers.heard == 1


def test_pushes_of_which_each_heard_another_come_together(add, api):
    one, two = add('a'), add('b')
    api.push_policies('a', now_us(), FLAVORS, LIMIT_S)
    api.push_policies('b', now_us() + 1, {'f2': FLAVORS['f1']}, LIMIT_S)
    one.ask(api)
    two.ask(api)
    assert one.store.overrides == two.store.overrides
    assert set(one.store.overrides) == {'f1', 'f2'}


def test_it_asks_by_itself(add, api):
    add('a')
    api.push_policies('a', now_us(), FLAVORS, LIMIT_S)
    late = add('b')
    late.peers._interval_s = 0.01
    late.peers.use_bus(api)
    end_s = time.monotonic() + LIMIT_S
    while not late.generation:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    late.peers.stop()
    assert not late.peers._thread.is_alive()


def test_nobody_else_is_there(add, api):
    alone = add('a')
    assert not alone.peers.ask(api)


class Bus:
    """Answers as another agent would."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = 0

    def compare_pushed(self, digest, timeout):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize('answer', [
    oslo_messaging.MessagingTimeout('no answer'),
    oslo_messaging.MessageDeliveryFailure('dead'),
    oslo_messaging.RemoteError('UnsupportedVersion', ''),
    {}, None, {'host': 'x'},
])
def test_whatever_goes_wrong_is_no_harm(add, answer):
    agent = add('a')
    bus = Bus(answer)
    assert not agent.peers.ask(bus)
    assert bus.asked == 1
    assert agent.store.overrides == {}


def test_one_whose_questions_all_come_back_gives_up(add):
    agent = add('a')
    bus = Bus({'host': 'a', 'flavors': None})
    assert not agent.peers.ask(bus)
    assert bus.asked == 4


@pytest.mark.parametrize('flavors', [
    {'f1': {**test_pushed.FIELDS, 'generation': 2**53 - 1}},
    {'f1': {}}, 'flavors'])
def test_garbage_of_others_is_told_of_once(add, caplog, flavors):
    agent = add('a')
    bus = Bus({'host': 'b', 'flavors': flavors})
    agent.peers.ask(bus)
    agent.peers.ask(bus)
    assert agent.store.overrides == {}
    assert caplog.text.count('What host b holds of flavors is not taken') == 1


@pytest.mark.parametrize('host, waited_s', [
    # A thousand that start together ask within ten seconds, and drift.
    ('b', [10.0, 450.0]),
    # Where nobody else is there yet, it is not for long.
    ('a', [10.0, 45.0]),
])
def test_agents_ask_neither_at_once_nor_in_step(host, waited_s):
    waits_s = []

    class Pushing:
        def digest(self):
            return ''

    class Stopping(threading.Event):
        def wait(self, timeout=None):
            waits_s.append(timeout)
            return len(waits_s) > 1
    asking = peers.Peers(Pushing(), 'a', 300.0,
                         uniform=lambda least, most: most)
    asking._stopping = Stopping()
    asking._work(Bus({'host': host, 'flavors': None}))
    assert waits_s == waited_s


def test_an_agent_that_takes_no_pushes_says_so(agents, api):
    agents.add('a')
    with pytest.raises(rpcapi.AgentError, match='takes no pushes'):
        api.get_pushed('a', LIMIT_S)
