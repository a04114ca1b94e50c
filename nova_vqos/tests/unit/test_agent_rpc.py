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

"""The agent's RPC: real calls over oslo.messaging's in-memory transport."""

import re
import threading
import time

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import conffixture
import pytest

from nova_vqos import compute_state
from nova_vqos import policy
from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi
from nova_vqos.agent import service
from nova_vqos.billing import account as accounts
from nova_vqos.conf import agent as agent_options
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import fake_hypervisor as fakes

LIMIT_S = 20


def wait_until(condition):
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, 'not within the limit'
        time.sleep(0.005)


@pytest.fixture
def agent(tmp_path):
    """An agent's loop and RPC server, and the host that it looks after."""
    conf = cfg.ConfigOpts()
    agent_options.register_opts(conf)
    agent_options.register_host_opts(conf)
    conf([], default_config_files=[])
    conf.set_override('host', 'host')
    bus = conffixture.ConfFixture(conf, transport_url='fake://')
    bus.setUp()
    transport = oslo_messaging.get_rpc_transport(
        conf, allowed_remote_exmods=[rpcapi.__name__])
    world = agent_world.World(tmp_path)
    world.start()
    world.compute_state_path = str(tmp_path / 'vqos.json')
    world.manager = manager.AgentManager(
        world.loop, 'host', compute_state_path=world.compute_state_path)
    rpc = service.RpcServer(conf, world.manager)
    rpc.start()
    stopping = threading.Event()

    def work():
        while not stopping.is_set():
            world.settle()
            time.sleep(0.002)
    thread = threading.Thread(target=work)
    thread.start()
    world.api = rpcapi.AgentAPI(transport)
    world.transport = transport
    try:
        yield world
    finally:
        rpc.stop()
        stopping.set()
        thread.join()
        bus.cleanUp()


class TestRpc:
    def test_what_the_scheduler_was_told_is_told(self, agent):
        answer = agent.api.get_host('host', timeout=LIMIT_S)
        assert answer['stats'] is None
        assert 'vqos.json' in answer['stats_problem']
        compute_state.Keeper(agent.compute_state_path).keep(
            {'vqos_profile': 'valid'}, {'tick_us': 4000})
        answer = agent.api.get_host('host', timeout=LIMIT_S)
        assert answer['stats'] == {'vqos_profile': 'valid'}
        assert answer['terms'] == {'tick_us': 4000}

    def test_the_host_is_told_of(self, agent):
        answer = agent.api.get_host('host', timeout=LIMIT_S)
        assert answer['host'] == 'host'
        assert answer['connected'] is True
        assert answer['profile_id'] == fakes.make_profile().id
        assert answer['servers'] == []

    def test_all_servers_are_told_of(self, agent):
        agent.host.boot(specs=fakes.make_specs())
        agent.host.boot(fakes.OTHER_UUID, run_id=2)
        agent.api.wake('host', fakes.UUID, None)
        wait_until(lambda: agent.limits() == {agent_world.RIGHT})
        answer = agent.api.list_servers('host', timeout=LIMIT_S)
        assert answer['host'] == 'host'
        assert answer['at'].endswith('+00:00')
        first, second = answer['servers']
        assert (first['server_uuid'], first['entitled_cu'],
                first['right']) == (fakes.UUID, 60, True)
        assert (second['server_uuid'], second['entitled_cu'],
                second['right']) == (fakes.OTHER_UUID, None, None)

    def test_one_server_of_many_that_is_broken_does_not_cost_the_answer(
            self, agent):
        uuids = [fakes.UUID[:-3] + f'{number:03}' for number in range(200)]
        for number, uuid in enumerate(uuids):
            agent.host.boot(uuid, specs=fakes.make_specs(), run_id=number + 1)
        agent.api.wake('host', uuids[0], None)
        wait_until(lambda: len(agent.api.list_servers(
            'host', timeout=LIMIT_S)['servers']) == len(uuids))
        agent.loop._known[uuids[17]].history = None
        servers = agent.api.list_servers('host', timeout=LIMIT_S)['servers']
        assert [server['server_uuid'] for server in servers] == uuids
        assert servers[17]['vcpu_s'] is servers[17]['rates'] is None
        assert servers[17]['origin'] == servers[18]['origin'] == 'found'

    def test_all_that_is_told_is_documented(self, agent):
        agent.host.boot(specs=fakes.make_specs())
        agent.api.wake('host', fakes.UUID, None)
        wait_until(lambda: agent.limits() == {agent_world.RIGHT})
        methods = manager.AgentManager
        told = {
            methods.get_host: agent.api.get_host('host', timeout=LIMIT_S),
            methods.list_servers: agent.api.list_servers(
                'host', timeout=LIMIT_S)['servers'][0],
            methods.get_server: agent.api.get_server(
                'host', fakes.UUID, timeout=LIMIT_S)}
        known = set(re.findall(r'\w+', methods.list_servers.__doc__))
        for method, answer in told.items():
            words = set(re.findall(r'\w+', method.__doc__))
            if method is methods.get_server:
                words |= known
            assert answer.keys() - words == set(), method.__name__

    def test_a_wake_up_has_the_domain_read_at_once(self, agent):
        agent.host.boot(specs=fakes.make_specs())
        # No event, and the clock of the loop stands still: no tick.
        assert agent.api.wake('host', fakes.UUID, policy.ServerPolicy(
            vcpus=2, units=60).to_dict())
        wait_until(lambda: agent.limits() == {agent_world.RIGHT})
        answer = agent.api.get_server('host', fakes.UUID, timeout=LIMIT_S)
        assert answer['right'] is True
        assert answer['policy']['units'] == 60
        assert answer['wanted']['quota_us'] == 15_000

    def test_the_policy_of_a_message_is_never_used(self, agent):
        agent.host.boot(specs=fakes.make_specs())
        assert agent.api.wake('host', fakes.UUID, policy.ServerPolicy(
            vcpus=2, units=200).to_dict())
        wait_until(lambda: agent.limits() == {agent_world.RIGHT})

    def test_a_server_is_forgotten(self, agent):
        agent.host.boot(specs=fakes.make_specs())
        agent.api.wake('host', fakes.UUID, None)
        wait_until(lambda: agent.host.written)
        assert agent.api.forget('host', fakes.UUID,
                                timeout=LIMIT_S) == {'forgotten': True}
        with pytest.raises(rpcapi.UnknownServer, match=fakes.UUID):
            agent.api.get_server('host', fakes.UUID, timeout=LIMIT_S)

    def test_limits_are_lifted_before_a_migration(self, agent):
        assert agent.api.lift_limits('host', fakes.UUID, timeout=LIMIT_S)

    def test_nobody_who_is_asked_to_lift_them_is_harmless(self, agent):
        assert not agent.api.lift_limits('elsewhere', fakes.UUID, timeout=0.2)

    def test_accounts_are_asked_for_and_handed_over(self, agent):
        taken = []

        class HandOver:
            def take_claim(self, *arguments):
                taken.append(arguments)

            def take_statement(self, statement):
                taken.append(statement)

        agent.manager._hand_over = HandOver()
        agent.api.claim_ledger(fakes.UUID, 'there', 1.5)
        wait_until(lambda: taken)
        assert taken.pop() == (fakes.UUID, 'there', 1.5)
        statement = accounts.Statement(fakes.UUID, 1, accounts.nothing(), 2, 3)
        agent.api.hand_over('host', statement.to_dict())
        wait_until(lambda: taken)
        assert taken.pop() == statement

    @pytest.mark.parametrize('method, arguments', [
        ('get_server', {'server_uuid': 'x'}),
        ('get_server', {'server_uuid': None}),
        ('get_server', {'server_uuid': '../' * 12}),
        ('get_server', {'server_uuid': 'x' * 10_000}),
        ('get_server', {'server_uuid': ['a', {}]}),
        ('get_server', {}),
        ('get_server', {'server_uuid': fakes.UUID, 'more': 1}),
        ('get_host', {'server_uuid': fakes.UUID}),
        ('list_servers', {'server_uuid': fakes.UUID}),
        ('get_profile', {}),
        ('get_profile', {'document': 1}),
        ('forget', {'server_uuid': 17}),
        ('apply_policy', {'server_uuid': fakes.UUID}),
        ('apply_policy', {'server_uuid': 'x', 'policy': None}),
        ('apply_policy', {'server_uuid': fakes.UUID, 'policy': 'units'}),
        ('apply_policy', {'server_uuid': fakes.UUID, 'policy': [1]}),
        ('apply_policy', {'server_uuid': fakes.UUID,
                          'policy': {'vcpus': 2, 'units': 2**40}}),
        ('apply_policy', {'server_uuid': fakes.UUID,
                          'policy': {'vcpus': -1, 'units': 60}}),
        ('apply_policy', {'server_uuid': fakes.UUID,
                          'policy': {'vcpus': 'x', 'units': {}}}),
        ('apply_policy', {'server_uuid': fakes.UUID,
                          'policy': {'vcpus': 1, 'units': 6, 'x': 1}}),
        ('lift_limits', {'server_uuid': 'x'}),
        ('lift_limits', {}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': 'there'}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': '../x',
                          'claimed_at': 1.0}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': 'there',
                          'claimed_at': 'now'}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': 'there',
                          'claimed_at': float('nan')}),
        ('claim_ledger', {'server_uuid': 5, 'host': 'there',
                          'claimed_at': 1.0}),
        ('hand_over', {'statement': None}),
        ('hand_over', {'statement': {'server_uuid': fakes.UUID}}),
        ('hand_over', {}),
    ])
    def test_garbage_is_answered_with_a_typed_error(self, agent, method,
                                                    arguments):
        client = oslo_messaging.get_rpc_client(
            agent.transport, oslo_messaging.Target(
                exchange=rpcapi.EXCHANGE, topic=rpcapi.TOPIC, server='host',
                version=rpcapi.VERSION), timeout=LIMIT_S)
        with pytest.raises(rpcapi.InvalidArgument):
            client.call({}, method, **arguments)
        # And it goes on answering.
        assert agent.api.get_host('host', timeout=LIMIT_S)['errors'] == 0

    def test_a_dead_bus_delays_nobody(self, agent):
        class DeadTransport:
            conf = agent.transport.conf

            def _require_driver_features(self, **_features):
                pass

            def _send(self, *_args, retry=None, **_kwargs):
                # None would try again for ever.
                assert retry == 0
                raise oslo_messaging.MessageDeliveryFailure('dead')

        assert rpcapi.AgentAPI(DeadTransport()).wake(
            'host', fakes.UUID, None) is False


def test_a_loop_that_is_held_up_is_a_typed_error():
    class HeldUp:
        def host_report(self):
            raise TimeoutError

    with pytest.raises(oslo_messaging.ExpectedException) as caught:
        manager.AgentManager(HeldUp(), 'host').get_host({})
    assert caught.value.exc_info[0] is rpcapi.AgentError
