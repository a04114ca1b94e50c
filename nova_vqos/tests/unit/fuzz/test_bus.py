# SPDX-License-Identifier: Apache-2.0
"""What comes from other hosts: messages of agents, and stats of computes."""

import datetime
import functools

import oslo_messaging

from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import primitives
from nova_vqos import speeds
from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import server_report
from nova_vqos.agent.overrides import receiver
from nova_vqos.agent.overrides import store
from nova_vqos.billing import account
from nova_vqos.scheduler import fitness
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import metrics
from nova_vqos.tests.unit.fuzz import damage

NONCE = '0123456789abcdef' * 2
STATEMENT = account.Statement(
    fakes.UUID, 5, account.nothing(), 1, 2).to_dict()
FLAVORS = {'f1': {'name': 'n', 'vcpus': 2, 'units': 60, 'quantum_class': 'io',
                  'dd_billing': 'charge', 'guarantee': 'off'}}
PUSH = {'generation': 5, 'full': True, 'flavors': FLAVORS,
        'signature': f'{"A" * 86}=='}
KINDS = {'integer': 1.0, 'hash': 2.0}
SPEEDS = {'at_s': 1000.0, 'reference': 'gold', 'first': KINDS,
          'history': {'observations': [
              {'kinds': KINDS, 'log_speed': 21.5, 'variance': 1e-4}]}}


def test_stats_refuse_their_own_host_alone(fuzz):
    judges = [fitness.Judge(wanted, agent_max_age_s=300) for wanted in (
        policy.ServerPolicy(2, 60),
        policy.ServerPolicy(2, 60, 'floor', 'cache', 'charge', 'required'),
        policy.ServerPolicy(4, 300, work='hash'))]
    now = datetime.datetime.now(datetime.UTC).isoformat()

    def judge(stats):
        if not isinstance(stats, dict):
            return
        try:
            found = host_stats.decode(host_stats.texts_of(stats))
        except host_stats.StatInvalid as error:
            assert error.key in host_stats.KEYS
            return
        for one in judges:
            assert all(isinstance(reason, str)
                       for reason in one.refusals(found))
            one.speed_cu(found)
            one.cost_cu(found)
        assert all(map(str.isprintable, host_stats.traits(found, hook=True)))

    fuzz(damage.documents({
        'vqos_profile': 'valid', 'vqos_profile_id': 'abc',
        'vqos_slowest_cu': '100', 'vqos_fastest_cu': '200.5',
        'vqos_least_cu': '0.5', 'vqos_classes': '100:400:0.64 200:400:1.6',
        'vqos_room_cu': '400', 'vqos_agent_seen_at': now,
        'vqos_quantum_classes': 'default,cache',
        'vqos_quantum_pools': 'cache:2:3 polluters:5',
        'vqos_dd_billing': 'off,charge', 'vqos_guarantee_cu': '300',
        'vqos_largest_vcpu_cu': '100', 'vqos_pieces': '100:3 40:12',
        'vqos_stranded_cu': '12', 'vqos_sells_units': 'True',
        'vqos_work': '100=integer:82,hash:71 200=integer:190',
        'vqos_servers': '3'}), judge)


def test_answers_of_agents(fuzz):
    kinds = (host_report.LoopReport, server_report.Server)

    def parse(given):
        for kind in kinds:
            try:
                found = primitives.parse(kind, given)
            except primitives.MessageInvalid:
                continue
            again = primitives.parse(kind, primitives.to_primitives(found))
            # Of numbers that are none no two are equal.
            assert repr(again) == repr(found)

    fuzz(damage.documents(metrics.make_host(), metrics.make_server()), parse)


def test_accounts_and_pushes(fuzz):
    def parse(given):
        try:
            found = account.Statement.from_dict(given)
        except account.StatementInvalid:
            pass
        else:
            assert account.Statement.from_dict(found.to_dict()) == found
        for generation in None, 5:
            try:
                pushed = policy_override.from_dict(given, generation)
            except policy_override.PushInvalid:
                continue
            assert policy_override.from_dict(
                policy_override.to_dict(pushed)) == pushed
        try:
            push = policy_push.from_dict(given)
        except policy_override.PushInvalid:
            pass
        else:
            assert policy_push.from_dict(push.to_dict()) == push
        try:
            speeds.parse(given)
        except primitives.MessageInvalid:
            pass

    fuzz(damage.documents(
        STATEMENT, FLAVORS, SPEEDS, PUSH,
        {'f1': {**FLAVORS['f1'], 'generation': 5}}), parse)


def test_all_methods_of_the_agent(fuzz, tmp_path):
    """Each answers, or raises an AgentError. No cap of a server changes."""
    calls = {
        'get_host': {}, 'list_servers': {},
        'get_server': {'server_uuid': fakes.UUID},
        'get_profile': {'document': True},
        'apply_policy': {'server_uuid': fakes.UUID, 'policy':
                         policy.ServerPolicy(2, 60).to_dict()},
        'check_server': {'server_uuid': fakes.UUID},
        'claim_ledger': {'server_uuid': fakes.UUID, 'host': 'other',
                         'claimed_at': 1e9, 'nonce': NONCE,
                         'most_debt_cu_us': 10**9},
        'hand_over': {'statement': STATEMENT, 'nonce': NONCE,
                      'is_copy': True},
        'claim_speeds': {'server_uuid': fakes.UUID, 'host': 'other',
                         'nonce': NONCE},
        'hand_over_speeds': {'server_uuid': fakes.UUID, 'nonce': NONCE,
                             'speeds': SPEEDS},
        'push_flavors': {'push': PUSH},
        'push_policies': {'generation': 5, 'flavors': FLAVORS},
        'get_pushed': {}, 'get_pushed_digest': {},
        'compare_pushed': {'digest': NONCE * 2},
        'compare_pushes': {'digest': NONCE * 2},
    }
    held = store.OverrideStore(str(tmp_path / 'pushed.json'))
    world = billing.World(tmp_path, store=held)
    world.run()
    world.busy(3)
    caps = world.limits()
    endpoint = manager.AgentManager(
        world.loop, 'host', world.biller.transfer, receiver.Receiver(
            held, world.loop.follow_pushed, world.loop.pushed_report, 'host'),
        str(tmp_path / 'none'))

    def ask(name, arguments):
        try:
            getattr(endpoint, name)({}, **arguments)
        except oslo_messaging.ExpectedException as error:
            _, reason, _ = error.exc_info
            assert isinstance(reason, rpcapi.AgentError), reason
        except Exception as error:
            return error
        return None

    def call(given):
        for name, arguments in given.items() if isinstance(
                given, dict) else ():
            if (name in calls and isinstance(arguments, dict)
                    and not {'self', '_context'} & arguments.keys()):
                problem = world.ask(functools.partial(
                    ask, name, arguments))
                assert problem is None, problem
        world.tick()
        assert world.report()['entitled_cu'] == 60
        assert world.limits() == caps

    fuzz(damage.documents(*({name: arguments}
                            for name, arguments in calls.items())), call)
    assert world.host_report()['errors'] == 0
