# SPDX-License-Identifier: Apache-2.0
"""The agent's RPC: real calls over oslo.messaging's in-memory transport."""

import dataclasses
import functools
import pathlib
import threading

import oslo_messaging
import pytest

from nova_vqos import compute_state
from nova_vqos import learning
from nova_vqos import policy
from nova_vqos import primitives
from nova_vqos import speeds as records
from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi
from nova_vqos.agent.billing import transfer
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import moves
from nova_vqos.billing import account
from nova_vqos.tests.fixtures import agent as agent_world
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import manage
from nova_vqos.tests.fixtures import metrics
from nova_vqos.tests.fixtures import waits

NONCE = '0123456789abcdef' * 2
KINDS = {'integer': 1.0, 'hash': 2.0}
_SEEN = {'kinds': KINDS, 'log_speed': 21.5, 'variance': 1e-4}
_SPEEDS = {'at_s': 1000.0, 'reference': 'gold', 'first': KINDS,
           'history': {'observations': [_SEEN]}}


@pytest.fixture
def agent(tmp_path):
    """An agent's loop and RPC server, and the host that it looks after."""
    with manage.Agents(tmp_path) as agents:
        path = str(tmp_path / 'vqos.json')
        world = agents.add('host', compute_state_path=path)
        world.compute_state_path = path
        world.transport = agents.transport()
        world.api = rpcapi.AgentAPI(world.transport)
        world.call = functools.partial(world.api.call, 'host',
                                       timeout=waits.LIMIT_S)
        yield world


class TestRpc:
    def test_the_answer_has_the_stats_of_the_scheduler(self, agent):
        answer = agent.call(rpcapi.GET_HOST)
        assert answer.stats is None
        assert 'vqos.json' in answer.stats_problem
        compute_state.Writer(agent.compute_state_path).write(
            {'vqos_profile': 'valid'}, {'tick_us': 4000})
        answer = agent.call(rpcapi.GET_HOST)
        assert answer.stats == {'vqos_profile': 'valid'}
        assert answer.terms == {'tick_us': 4000}

    def test_calls_leave_few_threads(self, agent):
        """Each of them wakes up once a second from then on."""
        agent.call(rpcapi.GET_HOST)
        before = threading.active_count()
        for _ in range(20):
            agent.call(rpcapi.GET_HOST)
        assert threading.active_count() < before + 10

    def test_the_host_is_reported(self, agent):
        answer = agent.call(rpcapi.GET_HOST)
        assert answer.host == 'host'
        assert answer.connected is True
        assert answer.profile_id == fakes.make_profile().id
        assert answer.servers == ()

    def test_all_servers_are_reported(self, agent):
        agent.host.boot(specs=fakes.make_specs())
        agent.host.boot(fakes.OTHER_UUID, run_id=2)
        agent.api.wake('host', fakes.UUID, None)
        waits.wait_until(lambda: agent.limits() == {agent_world.RIGHT})
        answer = agent.call(rpcapi.LIST_SERVERS)
        assert answer.host == 'host'
        assert answer.at.endswith('+00:00')
        first, second = answer.servers
        assert (first.server_uuid, first.entitled_cu,
                first.right) == (fakes.UUID, 60, True)
        assert (second.server_uuid, second.entitled_cu,
                second.right) == (fakes.OTHER_UUID, None, None)

    @pytest.mark.causes_faults
    def test_one_broken_server_does_not_cost_the_answer(self, agent):
        uuids = [fakes.UUID[:-3] + f'{number:03}' for number in range(200)]
        for number, uuid in enumerate(uuids):
            agent.host.boot(uuid, specs=fakes.make_specs(), run_id=number + 1)
        agent.api.wake('host', uuids[0], None)

        def read():
            """A reading that comes later would meet what is broken."""
            return [server.server_uuid for server in agent.call(
                rpcapi.LIST_SERVERS).servers if server.vcpu_s is not None]
        waits.wait_until(lambda: read() == uuids)
        agent.loop._sampler._states[
            agent.loop._servers[uuids[17]]].history = None
        servers = agent.call(rpcapi.LIST_SERVERS).servers
        assert [server.server_uuid for server in servers] == uuids
        assert servers[17].vcpu_s is servers[17].rates is None
        assert servers[18].vcpu_s is not None
        assert servers[17].origin == servers[18].origin == 'found'

    def test_a_wake_up_has_the_domain_read_at_once(self, agent):
        agent.host.boot(specs=fakes.make_specs())
        # No event, and the clock of the loop stands still: no tick.
        assert agent.api.wake('host', fakes.UUID, policy.ServerPolicy(
            vcpus=2, units=60))
        waits.wait_until(lambda: agent.limits() == {agent_world.RIGHT})
        answer = agent.call(rpcapi.GET_SERVER, server_uuid=fakes.UUID)
        assert answer.right is True
        assert answer.policy.units == 60
        assert answer.wanted.quota_us == 15_000

    def test_the_policy_of_a_message_is_never_used(self, agent):
        agent.host.boot(specs=fakes.make_specs())
        assert agent.api.wake('host', fakes.UUID, policy.ServerPolicy(
            vcpus=2, units=200))
        waits.wait_until(lambda: agent.limits() == {agent_world.RIGHT})

    def test_a_server_that_is_gone(self, agent):
        with pytest.raises(rpcapi.UnknownServer, match=fakes.UUID):
            agent.call(rpcapi.GET_SERVER, server_uuid=fakes.UUID)

    def test_limits_are_lifted_before_a_migration(self, agent):
        assert agent.api.lift_limits('host', fakes.UUID,
                                     timeout=waits.LIMIT_S)

    def test_a_limit_returns_unless_a_migration_begins_soon(
            self, agent, monkeypatch):
        asked, answers = [], [
            moves.Lifted(lifted=False, is_pending=True),
            moves.Lifted(lifted=True, is_pending=True)]

        def lift(*arguments):
            asked.append(arguments)
            return answers[len(asked) - 1]
        monkeypatch.setattr(agent.loop, 'lift', lift)
        assert agent.api.lift_limits('host', fakes.UUID,
                                     timeout=waits.LIMIT_S)
        assert [arguments[:2] for arguments in asked] == [
            (fakes.UUID, 10.0)] * 2

    @pytest.mark.parametrize(('is_pending', 'most'), [(False, 1), (True, 3)])
    def test_what_is_not_lifted_is_not_waited_for_long(
            self, agent, monkeypatch, is_pending, most):
        asked = []

        def lift(*arguments):
            asked.append(arguments)
            return moves.Lifted(lifted=False, is_pending=is_pending)
        monkeypatch.setattr(agent.loop, 'lift', lift)
        assert not agent.api.lift_limits('host', fakes.UUID, timeout=0.5)
        assert 1 <= len(asked) <= most

    def test_lifting_limits_of_no_server_is_harmless(self, agent):
        assert not agent.api.lift_limits('elsewhere', fakes.UUID, timeout=0.2)

    def test_alarms_of_the_compute_service_are_of_the_host(self, agent):
        before = agent.call(rpcapi.GET_HOST).alarms
        compute_state.Writer(agent.compute_state_path).write(
            {}, {}, alarms=['server x came from another host'])
        assert agent.call(rpcapi.GET_HOST).alarms == (
            *before, 'server x came from another host')

    def test_the_compute_service_decides_on_cold_moves(self, agent):
        compute_state.Writer(agent.compute_state_path).write(
            {}, {}, moves={fakes.UUID: '', fakes.OTHER_UUID: 'it is full'})
        assert agent.api.check_server('host', fakes.UUID) == ''
        assert agent.api.check_server('host', fakes.OTHER_UUID) == 'it is full'

    def test_one_that_it_does_not_expect(self, agent):
        compute_state.Writer(agent.compute_state_path).write(
            {}, {}, moves={fakes.OTHER_UUID: 'it is full'})
        with pytest.raises(rpcapi.AgentError, match=fakes.UUID):
            agent.call(rpcapi.CHECK_SERVER, server_uuid=fakes.UUID)
        assert agent.api.check_server('host', fakes.UUID) == ''

    @pytest.mark.parametrize('content', [
        None, 'x', '{"version": 1, "at": "x", "stats": {}, "terms": {}}',
        '{"version": 1, "at": "2026-01-01T00:00:00+00:00", "stats": {}, '
        '"terms": {}}'])
    def test_what_it_does_not_know_stops_no_move(self, agent, content):
        path = pathlib.Path(agent.compute_state_path)
        if content is not None:
            path.write_text(content)
        with pytest.raises(rpcapi.AgentError):
            agent.call(rpcapi.CHECK_SERVER, server_uuid=fakes.UUID)
        assert agent.api.check_server('host', fakes.UUID) == ''

    @pytest.mark.causes_faults
    def test_an_older_agent_stops_no_move(self, agent, monkeypatch):
        monkeypatch.setattr(rpcapi, 'CHECK_TIMEOUT_S', waits.LIMIT_S)
        monkeypatch.setattr(rpcapi, 'CHECK_SERVER', dataclasses.replace(
            rpcapi.CHECK_SERVER, since='1.99'))
        with pytest.raises(oslo_messaging.UnsupportedVersion):
            agent.call(rpcapi.CHECK_SERVER, server_uuid=fakes.UUID)
        assert agent.api.check_server('host', fakes.UUID) == ''

    def test_others_write_no_lines_into_the_log_of_nova(
            self, agent, monkeypatch, caplog):
        compute_state.Writer(agent.compute_state_path).write(
            {}, {}, moves={fakes.UUID: 'full\nERROR x'})
        assert agent.api.check_server('host', fakes.UUID) == 'full\\nERROR x'

        def fail(*_arguments):
            raise rpcapi.AgentError('failed\nERROR x')
        monkeypatch.setattr(agent.loop, 'lift', fail)
        monkeypatch.setattr(manager.AgentManager, '_recent_report', fail)
        caplog.clear()
        assert not agent.api.lift_limits('host', fakes.UUID,
                                         timeout=waits.LIMIT_S)
        assert agent.api.check_server('host', fakes.UUID) == ''
        assert [message.partition('failed')[2] for message in caplog.messages
                ] == ['\\nERROR x'] * 2

    def test_no_agent_stops_no_move(self, agent, monkeypatch):
        monkeypatch.setattr(rpcapi, 'CHECK_TIMEOUT_S', 0.1)
        asked, call = [], agent.api.call

        def record(*arguments, timeout, **options):
            asked.append(timeout)
            return call(*arguments, timeout=timeout, **options)
        monkeypatch.setattr(agent.api, 'call', record)
        assert agent.api.check_server('gone', fakes.UUID) == ''
        assert asked == [0.1]

    @pytest.fixture
    def taken(self, agent):
        """What the agent's transfer of accounts receives."""
        taken = []

        class Transfer:
            def receive_claim(self, *arguments):
                taken.append(arguments)

            def receive_statement(self, *arguments, is_copy):
                taken.append((*arguments, is_copy))

        agent.manager._transfer = Transfer()
        return taken

    def test_accounts_are_asked_for_and_handed_over(self, agent, taken):
        for source in '', 'elsewhere', 'host':
            agent.api.claim_ledger(fakes.UUID, 'there', 1.5, NONCE, 7, source)
        waits.wait_until(lambda: len(taken) == 2)
        assert taken == [
            (transfer.Claim(fakes.UUID, 'there', NONCE, 7), 1.5)] * 2
        taken.clear()
        agent.api.claim_ledger(fakes.UUID, 'there', 1.5, NONCE, 7, '', 11)
        waits.wait_until(lambda: taken)
        assert taken.pop() == (
            transfer.Claim(fakes.UUID, 'there', NONCE, 7, 11), 1.5)
        statement = account.Statement(fakes.UUID, 1, account.nothing(), 2, 3)
        for is_copy in False, True:
            agent.api.hand_over('host', statement, NONCE, is_copy=is_copy)
            waits.wait_until(lambda: taken)
            assert taken.pop() == (statement, NONCE, is_copy)

    def test_an_older_agent_is_answered_and_not_heard(self, agent, taken):
        """One before 1.6 has no nonce."""
        client = oslo_messaging.get_rpc_client(
            agent.transport, oslo_messaging.Target(
                exchange=rpcapi.EXCHANGE, topic=rpcapi.TOPIC, server='host',
                version='1.1'), timeout=waits.LIMIT_S)
        client.call({}, 'claim_ledger', server_uuid=fakes.UUID, host='there',
                    claimed_at=1.5)
        assert taken.pop() == (transfer.Claim(fakes.UUID, 'there'), 1.5)
        statement = account.Statement(fakes.UUID, 1, account.nothing(), 2, 3)
        with pytest.raises(rpcapi.InvalidArgument):
            client.call({}, 'hand_over', statement=statement.to_dict())

    def test_an_older_agent_is_sent_what_it_knows(self, agent):
        received = []

        class Older:
            target = oslo_messaging.Target(version='1.1')

            def hand_over(self, _context, statement):
                received.append(statement)

        server = oslo_messaging.get_rpc_server(
            agent.transport, oslo_messaging.Target(
                exchange=rpcapi.EXCHANGE, topic=rpcapi.TOPIC, server='there'),
            [Older()], executor='threading')
        server.start()
        statement = account.Statement(fakes.UUID, 1, account.nothing(), 2, 3)
        agent.api.hand_over('there', statement, '', is_copy=False)
        waits.wait_until(lambda: received)
        server.stop()
        server.wait()
        assert received == [statement.to_dict()]

    def test_speeds_are_asked_for_and_handed_over(self, agent, monkeypatch):
        taken = []
        for name in 'answer_speeds', 'receive_speeds':
            monkeypatch.setattr(agent.loop, name, lambda *arguments:
                                taken.append(arguments))
        agent.api.claim_speeds(fakes.UUID, 'host', NONCE)
        agent.api.claim_speeds(fakes.UUID, 'there', NONCE)
        waits.wait_until(lambda: taken)
        # A fanout comes back to the agent that asked: it does not answer.
        assert taken == [(fakes.UUID, 'there', NONCE)]
        speeds = records.Speeds(1000.0, 'gold', KINDS, learning.History((
            learning.Observation(KINDS, 21.5, 1e-4),)))
        agent.api.hand_over_speeds('host', fakes.UUID, NONCE, speeds)
        waits.wait_until(lambda: len(taken) > 1)
        assert taken[1] == (fakes.UUID, NONCE, speeds)

    @pytest.mark.parametrize('method, arguments', [
        ('claim_speeds', {'server_uuid': 'x', 'host': 'a', 'nonce': NONCE}),
        ('claim_speeds', {'server_uuid': fakes.UUID, 'host': '../x',
                          'nonce': NONCE}),
        ('claim_speeds', {'server_uuid': fakes.UUID, 'host': 'a',
                          'nonce': ''}),
        ('claim_speeds', {'server_uuid': fakes.UUID, 'host': 'a'}),
        ('hand_over_speeds', {'server_uuid': fakes.UUID, 'nonce': None,
                              'speeds': _SPEEDS}),
        ('hand_over_speeds', {'server_uuid': fakes.UUID, 'nonce': NONCE,
                              'speeds': []}),
        *(('hand_over_speeds', {
            'server_uuid': fakes.UUID, 'nonce': NONCE,
            'speeds': {**_SPEEDS, **wrong}}) for wrong in (
                {'at_s': 'now'}, {'first': {}}, {'first': {'integer': -1.0}},
                {'first': {'Integer; x': 1.0}}, {'reference': 'x' * 10_000},
                {'history': {'observations': [{}]}},
                {'history': {'observations': [_SEEN] * 17}},
                {'history': {'observations': [{**_SEEN, 'kinds': dict.fromkeys(
                    map('k{}'.format, range(65)), 1.0)}]}},
                *({'history': {'observations': [{**_SEEN, name: value}]}}
                  for name, value in (('log_speed', 99.0),
                                      ('log_speed', float('nan')),
                                      ('variance', 0.0),
                                      ('variance', float('inf')),
                                      ('kinds', {'integer': 1e9}))))),
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
        ('check_server', {}),
        ('check_server', {'server_uuid': 'x'}),
        ('check_server', {'server_uuid': fakes.UUID, 'host': 'there'}),
        # Of agents of version 1.3.
        ('check_server', {'policy': {'vcpus': 1, 'units': 60},
                          'is_pinned': False}),
        ('lift_limits', {'server_uuid': 'x'}),
        ('lift_limits', {}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': 'there'}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': '../x',
                          'claimed_at': 1.0}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': 'there',
                          'claimed_at': 'now'}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': 'there',
                          'claimed_at': float('nan')}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': 'there',
                          'claimed_at': 10**400}),
        ('claim_ledger', {'server_uuid': fakes.UUID, 'host': 'there',
                          'claimed_at': -1}),
        ('claim_ledger', {'server_uuid': 5, 'host': 'there',
                          'claimed_at': 1.0}),
        *(('claim_ledger', {
            'server_uuid': fakes.UUID, 'host': 'there', 'claimed_at': 1.0,
            **wrong}) for wrong in (
                {'nonce': ''}, {'nonce': 5}, {'more': 1},
                {'most_debt_cu_us': -1}, {'most_debt_cu_us': None},
                {'most_debt_cu_us': 2**63}, {'most_debt_cu_us': 1.5},
                {'most_saved_cu_us': -1}, {'most_saved_cu_us': None})),
        *(('hand_over', {
            'statement': account.Account(fakes.UUID).statement().to_dict(),
            'nonce': NONCE, 'is_copy': False, **wrong}) for wrong in (
                {'statement': None},
                {'statement': {'server_uuid': fakes.UUID}},
                {'nonce': None}, {'nonce': NONCE.upper()}, {'is_copy': 0})),
        ('hand_over', {}),
    ])
    def test_garbage_gets_a_typed_error(self, agent, method, arguments):
        client = oslo_messaging.get_rpc_client(
            agent.transport, oslo_messaging.Target(
                exchange=rpcapi.EXCHANGE, topic=rpcapi.TOPIC, server='host',
                version=rpcapi.VERSION), timeout=waits.LIMIT_S)
        with pytest.raises(rpcapi.InvalidArgument):
            client.call({}, method, **arguments)
        # And it goes on answering.
        assert agent.call(rpcapi.GET_HOST).errors == 0

    def test_a_dead_bus_delays_no_caller(self, agent):
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


def test_commands_get_no_figures_of_each_pcpu():
    """They ask all hosts at once: metrics alone have these."""
    report = primitives.parse(host_report.LoopReport, metrics.make_host())
    assert report.capacity.packets.softirqs

    class Loop:
        def host_report(self):
            return report

    answer = manager.AgentManager(Loop(), 'host').get_host({})
    packets = answer['capacity']['packets']
    assert packets.pop('softirqs') == []
    assert packets == {
        'softirq_share': 0.25, 'dropped_packets': 9, 'squeezed_polls': 11,
        'saturated_pcpus': [3]}
