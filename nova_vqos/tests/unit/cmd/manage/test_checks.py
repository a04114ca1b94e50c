# SPDX-License-Identifier: Apache-2.0
"""What checks make of what is known of hosts; see test_checks for the rest."""

import datetime
import types

import pytest

from nova_vqos import cputune
from nova_vqos import policy as policies
from nova_vqos.agent import fanout
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.manage import checks
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import demand as demands

CLASS = policies.RESOURCE_CLASS
POLICY = policies.ServerPolicy(1, units=60)
DEMAND = demands.Demand({CLASS: 60})
TERMS = {'tick_us': 4000, **cputune.DEFAULT_PERIODS._asdict()}


def ago(seconds):
    now = datetime.datetime.now(datetime.UTC)
    return (now - datetime.timedelta(seconds=seconds)).isoformat()


def make_stats(**changes):
    return {'vqos_profile': 'valid', 'vqos_slowest_cu': '80',
            'vqos_least_cu': '0.64', 'vqos_agent_seen_at': ago(10),
            'vqos_quantum_classes': 'default', 'vqos_dd_billing': 'off',
            'vqos_sells_units': 'True', **changes}


def make_inventory(total, **changes):
    return {'total': total, 'reserved': 0, 'allocation_ratio': 1.0,
            'min_unit': 1, 'max_unit': 2**31 - 1, 'step_size': 1, **changes}


def make_provider(used=0, traits=(), **inventories):
    return demands.Provider(
        {CLASS: make_inventory(320), **inventories}, {CLASS: used},
        frozenset(traits))


def make_facts(*, offered=True, provider=None, obstacles=(), **fields):
    host = host_report.Host(**{
        'host': 'host', 'version': '1', 'connected': True,
        'cgroup_version': 2, 'alarms': (), 'domains': 0, 'servers': (),
        'wrong': (), 'last_tick_ms': 0.0, 'dd_billing': (),
        'quantum_classes': (), 'ticks': 1, 'writes': 0, 'restored': 0,
        'errors': 0, 'stats': make_stats(), 'stats_at': ago(20), **fields})
    return checks.Facts(
        cloud.Compute('host', 'uuid', False, tuple(obstacles)), offered,
        provider or make_provider(), fanout.Answer('host', 'cell', host, ''))


def verdict(facts, policy=POLICY, demand=DEMAND, *, max_age_s=300,
            without='refuse'):
    return checks.Check(
        policy, demand, agent_max_age_s=max_age_s,
        servers_without_units=without).verdict(facts)


def test_a_host_that_fits():
    found = verdict(make_facts(provider=make_provider(used=20)))
    assert found == ('host', 'yes', 300, 60, 80, ())


@pytest.mark.parametrize(('fields', 'reason'), [
    ({'stats': None, 'stats_problem': 'no file'}, 'no file'),
    ({'stats': {}}, 'the agent is too old'),
    ({'stats_at': ago(400)}, 'the last stats of its compute node are of'),
    ({'stats_at': 'yesterday'}, 'yesterday'),
    ({'stats_at': '2026-11-22T12:00:00'}, '2026-11-22'),
    ({'problem': 'the governor changed'}, 'the governor changed')])
def test_unknown_facts_give_no_answer(fields, reason):
    found = verdict(make_facts(**fields))
    assert found.fits == 'unknown'
    (text,) = found.reasons
    assert reason in text
    # What is known against it is enough.
    found = verdict(make_facts(**fields, obstacles=['it is down']))
    assert found.fits == 'no'
    assert found.reasons[0] == 'it is down'


def test_stats_may_be_as_old_as_an_agents_sign_of_life():
    fields = {'stats': make_stats(vqos_agent_seen_at=ago(410)),
            'stats_at': ago(400)}
    assert verdict(make_facts(**fields), max_age_s=900).fits == 'yes'
    assert verdict(make_facts(**fields), max_age_s=0).fits == 'unknown'


def test_each_obstacle_appears_once():
    found = verdict(make_facts(
        offered=False, provider=make_provider(used=300),
        obstacles=['its compute service is down'],
        stats=make_stats(vqos_slowest_cu='50')))
    assert found.reasons == (
        'its compute service is down',
        'its slowest pCPU has 50 CU, less than what each vCPU needs',
        'it has 20 CU left, 60 are asked for')
    stock = demands.Provider({}, {}, frozenset())
    assert verdict(make_facts(
        offered=False, provider=stock,
        stats={'vqos_sells_units': 'False'})).reasons[0] == (
            'it has no CPU units')


def test_invalid_stats_refuse_what_the_filter_refuses():
    facts = make_facts(stats=make_stats(vqos_slowest_cu='9e999999'))
    found = verdict(facts)
    assert (found.fits, found.speed_cu) == ('no', None)
    (reason,) = found.reasons
    assert "vqos_slowest_cu is '9e999999'" in reason
    assert verdict(facts, None, demands.Demand({'VCPU': 1}),
                   without='allow').fits == 'yes'


def test_closed_units_follow_from_the_profile():
    closed = demands.Provider({CLASS: make_inventory(320, reserved=320)},
                              {}, frozenset())
    found = verdict(make_facts(
        offered=False, provider=closed,
        stats=make_stats(vqos_profile='it is stale')))
    assert found.reasons == ('it accepts no new servers with units: it is '
                             'stale',)


def test_placement_may_have_reasons_of_its_own():
    (reason,) = verdict(make_facts(offered=False)).reasons
    assert reason.startswith('Placement does not offer it')
    facts = make_facts(offered=False)._replace(provider=None)
    assert verdict(facts).reasons == ('Placement does not know it',)


@pytest.mark.parametrize(('stats', 'provider', 'without', 'fits'), [
    (make_stats(), make_provider(), 'refuse', 'no'),
    (make_stats(), make_provider(), 'allow', 'yes'),
    (make_stats(vqos_sells_units='False'), None, 'refuse', 'yes'),
    (None, make_provider(), 'refuse', 'no'),
    (None, demands.Provider({}, {}, frozenset()), 'refuse', 'yes')])
def test_servers_without_units(stats, provider, without, fits):
    facts = make_facts(stats=stats, provider=provider)
    found = verdict(facts, None, demands.Demand({'VCPU': 1}), without=without)
    assert found.fits == fits
    assert all('servers_without_units' in text for text in found.reasons)


def make_flavor(**changes):
    return types.SimpleNamespace(**{
        'vcpus': 2, 'ram': 512, 'disk': 10, 'ephemeral': 5, 'swap': 1500,
        'extra_specs': {}, **changes})


@pytest.mark.parametrize(('changes', 'expected'), [
    ({}, 'resources=DISK_GB:17,MEMORY_MB:512,VCPU:2'),
    ({'disk': 0, 'ephemeral': None, 'swap': None, 'extra_specs': None},
     'resources=MEMORY_MB:512,VCPU:2'),
    ({'extra_specs': {'hw:cpu_policy': 'dedicated', 'hw:numa_nodes': '1'}},
     'resources=DISK_GB:17,MEMORY_MB:512,PCPU:2'),
    ({'extra_specs': {'resources:VCPU': '0', f'resources:{CLASS}': '60',
                      'resources:DISK_GB': '1', 'resources:BAD': ' 6_0'}},
     f'resources={CLASS}:60,DISK_GB:1,MEMORY_MB:512'),
    ({'extra_specs': {'trait:A': 'required', 'trait:B': 'forbidden',
                      'trait:C': 'perhaps'}},
     'resources=DISK_GB:17,MEMORY_MB:512,VCPU:2&required=A,!B'),
    ({'extra_specs': {'resources1:VGPU': '1', 'trait1:A': 'required',
                      'group_policy': 'isolate'}},
     'resources=DISK_GB:17,MEMORY_MB:512,VCPU:2&resources1=VGPU:1'
     '&required1=A&group_policy=isolate')])
def test_what_a_flavor_asks_of_placement(changes, expected):
    query = demands.of_flavor(make_flavor(**changes)).query
    assert demands.urllib.parse.unquote_plus(query) == expected


def test_what_a_server_holds_goes_before_its_flavor():
    flavor = make_flavor(extra_specs={'trait:A': 'required'})
    demand = demands.of_flavor(flavor, {'VCPU': 2, CLASS: 60})
    assert demand.resources == {'VCPU': 2, CLASS: 60}
    assert demand.required == {'A'}


def test_what_a_provider_lacks():
    provider = make_provider(
        used=300, traits=('B',), VCPU=make_inventory(4, max_unit=2),
        MEMORY_MB=make_inventory(1024, reserved=1000))
    assert provider.lacks(demands.Demand(
        {CLASS: 60, 'VCPU': 3, 'MEMORY_MB': 64, 'VGPU': 1},
        frozenset('A'), frozenset('B'))) == [
            'it has 20 CU left, 60 are asked for',
            'one server may have 1 to 2 VCPU of it, in steps of 1: 3 are '
            'asked for',
            'it has 24 MEMORY_MB left, 64 are asked for',
            'it has no VGPU of its own',
            'it has no trait A, which the flavor requires',
            'it has the trait B, which the flavor forbids']


def land(policy=POLICY, terms=TERMS, *, has_hook=True, now_cu=200, **fields):
    return checks.land(policy, verdict(make_facts(**fields), policy), terms,
                        has_hook=has_hook, now_cu=now_cu)


def test_the_cap_there():
    assert land() == ((37500, 50000), 60, True, ())
    assert 'hook is not installed' in land(has_hook=False).notes[0]
    # Exact, also where the pCPU has no more.
    stats = make_stats(vqos_slowest_cu='33.4')
    assert land(policies.ServerPolicy(5, units=167), stats=stats)[:3] == (
        (50000, 50000), 33.4, True)


def test_the_cap_of_a_kind_of_work():
    policy = POLICY._replace(work='hash')
    stats = make_stats(vqos_work='80=hash:64,integer:99.5')
    found = verdict(make_facts(stats=stats), policy)
    assert (found.takes_cu, found.speed_cu) == (75, 64)
    assert land(policy, stats=stats)[:3] == ((46875, 50000), 60, True)
    other = verdict(make_facts(stats=stats), POLICY._replace(work='gpu'))
    assert other[:5] == ('host', 'no', 320, None, None)
    full = make_stats(vqos_work='80=hash:64', vqos_room_cu='74')
    (reason,) = verdict(make_facts(stats=full), policy).reasons
    assert '75 CU' in reason


def test_where_it_does_not_fit_there_is_no_cap():
    assert land(stats=make_stats(vqos_slowest_cu='50')) == checks.Landing()


def test_without_terms_the_cap_is_not_known():
    for terms in ({}, {'tick_us': 4000}):
        assert land(terms=terms) == checks.Landing()
    assert land(stats=None).cap is None


def test_a_floor_has_no_cap():
    found = land(POLICY._replace(cap='floor'))
    assert found[:3] == (None, None, True)
    assert 'not capped' in found.notes[0]


def test_a_server_without_a_promise():
    facts = make_facts()
    for policy in (None, policies.ServerPolicy(1)):
        found = checks.land(policy, verdict(facts, policy, without='allow'),
                             TERMS, has_hook=True, now_cu=200)
        assert found.as_fast is None
        assert found.notes == ('its flavor promises no speed: a pCPU there '
                               'is 0.40 times as fast',)
