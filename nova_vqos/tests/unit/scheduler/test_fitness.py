# SPDX-License-Identifier: Apache-2.0
"""The one judgement of filter and checks, and that the driver's is no other.

What the filter makes of it: test_filter.
"""

import collections
import datetime
from decimal import Decimal
from fractions import Fraction
import random

import pytest

from nova_vqos import agent_state
from nova_vqos import core_types
from nova_vqos import cputune
from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos import room
from nova_vqos import work
from nova_vqos.scheduler import fitness
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.virt import admission
from nova_vqos.virt import host_state

MAX_AGE_S = 300


def judge_of(policy, **kwargs):
    return fitness.Judge(policy, agent_max_age_s=MAX_AGE_S, **kwargs)


def ago(seconds):
    return (datetime.datetime.now(datetime.UTC)
            - datetime.timedelta(seconds=seconds))


def make_stats(**changes):
    return host_stats.HostStats(**{
        'profile': host_stats.VALID, 'slowest_cu': Decimal(60),
        'least_cu': Decimal('0.48'), 'agent_seen_at': ago(10),
        'quantum_classes': ('default',), 'dd_billing': ('off',), **changes})


def make_types(*core_types):
    return tuple(host_stats.CoreTypeRoom(Decimal(speed_cu), room_cu,
                                         Decimal(least_cu))
                 for speed_cu, room_cu, least_cu in core_types)


def test_all_reasons_are_given_and_the_first_one_is_the_filters():
    judge = judge_of(policies.ServerPolicy(
        1, units=61, quantum_class='io', dd_billing='charge'))
    stats = make_stats(agent_seen_at=ago(400))
    reasons = judge.refusals(stats)
    for part, reason in zip(('60 CU', '300 s', 'vqos:quantum_class',
                             'vqos:dd_billing'), reasons, strict=True):
        assert part in reason
    assert judge.refusal(stats) == reasons[0]


def test_nothing_is_against_a_host_that_fits():
    judge = judge_of(policies.ServerPolicy(1, units=60))
    assert judge.refusals(make_stats()) == []
    assert judge.refusal(make_stats()) == ''


@pytest.mark.parametrize(('guarantee', 'free_cu', 'refusals'), [
    ('required', None, 1), ('required', 34, 1), ('required', 35, 0),
    ('preferred', None, 0), ('off', 0, 0)])
def test_a_guarantee(guarantee, free_cu, refusals):
    judge = judge_of(policies.ServerPolicy(1, units=30, guarantee=guarantee))
    assert len(judge.refusals(make_stats(guarantee_cu=free_cu))) == refusals


@pytest.mark.parametrize(('largest_cu', 'units', 'vcpus', 'refusals'), [
    (None, 60, 1, 0), ('40', 40, 1, 0), ('40', 41, 1, 1), ('40', 80, 2, 0),
    ('40', 81, 2, 1), ('0', 1, 1, 1), ('33.333334', 100, 3, 0),
    # Whether all ten have a place is the driver's business.
    ('40', 400, 10, 0), ('40', None, 1, 0)])
@pytest.mark.parametrize('in_one_type', [True, False])
def test_the_largest_vcpu_that_packs(largest_cu, units, vcpus, refusals,
                                     in_one_type):
    judge = judge_of(policies.ServerPolicy(vcpus, units=units),
                     in_one_type=in_one_type)
    assert len(judge.refusals(make_stats(
        largest_vcpu_cu=largest_cu and Decimal(largest_cu)))) == refusals


def test_a_server_without_units_needs_no_speed_and_no_agent():
    judge = judge_of(policies.ServerPolicy(1, quantum_class='io'))
    (reason,) = judge.refusals(host_stats.HostStats())
    assert 'vqos:quantum_class' in reason
    assert judge.refusals(host_stats.HostStats(
        quantum_classes=('default', 'io'))) == []


@pytest.mark.parametrize(('policy', 'nothing'), [
    (None, True), (policies.ServerPolicy(2), True),
    (policies.ServerPolicy(2, quantum_class='io'), False),
    (policies.ServerPolicy(2, units=2), False)])
def test_what_asks_for_nothing(policy, nothing):
    assert fitness.asks_for_nothing(policy) is nothing


UNLIKE = make_types((80, 100, '0.1'), (200, 400, 1))


@pytest.mark.parametrize(('units', 'vcpus', 'fits'), [
    # As fast as its pCPUs, and one CU more; all its room, and one CU more.
    (80, 1, True), (81, 1, False), (100, 2, True), (101, 2, False),
    # As slow as a cap can make it, and one CU less.
    (50, 5, True), (49, 5, False)])
def test_bounds_of_a_core_type(units, vcpus, fits):
    (core_type,) = core_types = make_types((80, 100, 10))
    policy = policies.ServerPolicy(vcpus, units=units)
    assert fitness.fitting(policy, core_types) == (core_type if fits else None)
    assert bool(judge_of(policy).refusals(
        make_stats(core_types=core_types))) is not fits
    left, = fitness.with_server(policy, core_types)
    assert left == core_type._replace(room_cu=100 - units * fits)


@pytest.mark.parametrize(('units', 'reasons'), [(3, 1), (4, 0)])
def test_the_slowest_that_a_host_can_make_a_vcpu(units, reasons):
    judge = judge_of(policies.ServerPolicy(2, units=units))
    assert len(judge.refusals(make_stats(least_cu=Decimal(2)))) == reasons


@pytest.mark.parametrize(('policy', 'asked'), [
    (policies.ServerPolicy(2), ''),
    (policies.ServerPolicy(2, quantum_class='io'), 'vqos:quantum_class io'),
    (policies.ServerPolicy(2, dd_billing='account'),
     'vqos:dd_billing account'),
    (policies.ServerPolicy(2, guarantee='preferred'),
     'vqos:guarantee preferred'),
    (policies.ServerPolicy(1, units=60, work='hash:1'),
     '60 CU on 1 vCPUs, 60 CU each, vqos:work hash:1')])
def test_defaults_ask_for_nothing(policy, asked):
    assert judge_of(policy).asked == asked


@pytest.mark.parametrize(
    ('core_types', 'units', 'cap', 'in_one_type', 'speed_cu'), [
        ((), 50, 'hard', True, 60), (UNLIKE, 50, 'hard', True, 80),
        (UNLIKE, 81, 'hard', True, 200), (UNLIKE, None, 'hard', True, 60),
        (UNLIKE, 81, 'floor', True, 200),
        # With a NUMA topology.
        (UNLIKE, 50, 'hard', False, 80), (UNLIKE, 50, 'floor', False, 60),
        (make_types((80, 10, '0.1'), (200, 10, 1)), 50, 'hard', True, None)])
def test_the_speed_that_counts(core_types, units, cap, in_one_type, speed_cu):
    judge = judge_of(policies.ServerPolicy(1, units=units, cap=cap),
                     in_one_type=in_one_type)
    assert judge.speed_cu(make_stats(core_types=core_types)) == speed_cu
    assert judge.speed_cu(host_stats.HostStats()) is None


def make_report(draw, most_servers=3, *, exact=False, kinds=()):
    """A host of one or two core types, and what servers left of them.

    :param kinds: of work, that it was measured with; none: with one
    """
    def speed():
        return round(draw.uniform(0.3, 3.0), 14)

    classes = [make_profiles.make_class(
        range(number * 4, number * 4 + 4),
        {kind: speed() for kind in kinds} if kinds else speed())
        for number in range(draw.choice((1, 2)))]
    profile = make_profiles.make_profile(
        'host', *classes, fingerprint={'tick_us': draw.choice(
            ('1000', '4000', '10000'))},
        reference=make_profiles.make_kinds(dict.fromkeys(kinds, 1.0))[1]
        if kinds else make_profiles.make_reference())
    report = host_state.HostReport(
        pcpus=profile.pcpus, profile=profile,
        problem=draw.choice(('', '', '', 'the profile is stale')),
        present=True, agent=agent_state.AgentState(
            seen_at=ago(1),
            quantum_classes=draw.choice((('default',), ('default', 'io'))),
            dd_billing=draw.choice((
                ('off',), ('off', 'account'), ('off', 'account', 'charge'))),
            guarantee_pcpus=draw.choice((None, 0.0, 0.5, 8.0)),
            keeps_ceilings=draw.choice((False, True, True))))
    servers = [core_types.Server(draw.randrange(1, 300), None,
                                 draw.randrange(1, 5), work.parse(
                                     draw.choice(kinds)) if kinds else None)
               for _ in range(draw.randrange(most_servers))]
    return report, core_types.with_servers(report.all_core_types, servers,
                                           exact=exact)


def make_policy(draw, report):
    """One whose speed is near what the host has, if not just that."""
    vcpus = draw.randrange(1, 5)
    speed_cu = draw.choice(report.profile.cpu_classes).busy.coefficient * 100
    cu = max(vcpus, int(speed_cu * vcpus * draw.choice((0.005, 0.5, 1, 1.2)))
             + draw.randrange(2))
    return policies.ServerPolicy(
        vcpus, units=cu, quantum_class=draw.choice(('default', 'io')),
        dd_billing=draw.choice(('off', 'account')),
        guarantee=draw.choice(('off', 'off', 'preferred', 'required')),
        project_ceiling_cu=draw.choice((None, None, 10_000)))


class Tracker:
    """What servers leave of a host, which the driver reads from domains."""

    def __init__(self, left):
        self._left = left

    def choose(self, candidate, report, sale):
        if len(self._left) < 2 and not self._left[0].packed:
            policy, (only,) = candidate.policy, self._left
            cost_cu = only.cost_cu(policy.units, policy.vcpus, policy.mix)
            # Of others Placement counts the units.
            if policy.work and cost_cu > only.room_cu:
                raise room.HostFull(cost_cu, room.Room(
                    0, Fraction(0), room.Sale(0, 0, 1.0)))
            return None
        return core_types.choose(candidate.policy, self._left,
                                 tick_us=report.profile.tick_us).pcpus

    def forget_choice(self, uuid):
        pass


def driver_accepts(policy, report, left):
    """What the compute driver says, by the report itself."""
    try:
        admission.admit(
            admission.Candidate('uuid', policy, report.pcpus, False), report,
            Tracker(left), sale=None, periods=cputune.DEFAULT_PERIODS)
    except admission.CannotServe:
        return False
    return True


def test_the_driver_judges_alike():
    draw = random.Random(7)
    answers = []
    for _ in range(2000):
        report, rooms = make_report(draw)
        policy = make_policy(draw, report)
        stats = host_stats.decode(
            host_stats.encode(report.stats(rooms)).values())
        reason = judge_of(policy).refusal(stats)
        accepts = driver_accepts(policy, report, rooms)
        assert accepts == (not reason), (policy, stats, reason)
        answers.append(accepts)
    assert 200 < sum(answers) < 1800


WORK = ('integer', 'hash', 'hash:1,integer:2.5', 'integer:1,gpu:1')


@pytest.mark.parametrize('exact', [False, True])
def test_the_driver_judges_kinds_of_work_alike(exact):
    """But for a part of a CU, of which the driver alone knows."""
    draw = random.Random(11)
    answers = collections.Counter()
    for _ in range(2000):
        report, left = make_report(draw, 8, exact=exact,
                                   kinds=('integer', 'hash'))
        policy = make_policy(draw, report)._replace(work=draw.choice(WORK))
        stats = host_stats.decode(
            host_stats.encode(report.stats(left)).values())
        judge = judge_of(policy)
        reason = judge.refusal(stats)
        accepts = driver_accepts(policy, report, left)
        assert not (accepts and reason), (policy, stats, reason)
        answers[accepts, not reason] += 1
        if 'gpu' in policy.work:
            assert reason
        elif accepts and not report.unlike_core_types:
            tune = cputune.compute(policy, report.profile, report.pcpus,
                                   cgroup_version=1)
            assert float(tune.cap.share) * float(
                judge.speed_cu(stats)) * policy.vcpus == pytest.approx(
                    policy.units, rel=1e-3)
    assert answers[True, True] > 100
    assert answers[False, False] > 100
    if not exact:
        assert answers[False, True] < 5


def make_work(speed_cu, **kinds):
    return host_stats.WorkSpeeds(Decimal(speed_cu), kinds)


@pytest.mark.parametrize(('cu', 'text', 'room_cu', 'parts'), [
    (30, 'hash', 60, ()), (31, 'hash', 62, ('30 CU of hash',)),
    (120, 'integer', 120, ()), (121, 'integer', 200, ('120 CU of integer',)),
    (30, 'hash', 59, ('30 CU of hash take 60 CU', 'leave 59')),
    # Placement counts its units.
    (60, '', 59, ()), (30, 'hash', None, ()),
    (30, 'gpu', 60, ("'gpu'", 'hash, integer'))])
def test_a_kind_of_work(cu, text, room_cu, parts):
    judge = judge_of(policies.ServerPolicy(1, units=cu, work=text))
    stats = make_stats(room_cu=room_cu, work=(
        make_work(60, hash=0.3, integer=1.2),))
    reasons = judge.refusals(stats)
    assert len(reasons) == bool(parts)
    assert all(part in reasons[0] for part in parts)
    assert (judge.speed_cu(stats), judge.cost_cu(stats)) == {
        'hash': (30, 2 * cu), 'integer': (120, cu), '': (60, cu),
        'gpu': (None, None)}[text]


def test_a_host_whose_agent_keeps_no_ceilings():
    judge = judge_of(policies.ServerPolicy(1, units=60,
                                           project_ceiling_cu=100))
    assert 'vqos:project_ceiling_cu 100' in judge.asked
    assert judge.refusal(make_stats()) == (
        'its agent does not keep vqos:project_ceiling_cu')
    assert judge.refusal(make_stats(keeps_ceilings=True)) == ''


def test_a_host_that_does_not_say_its_kinds_of_work():
    judge = judge_of(policies.ServerPolicy(1, units=1, work='integer'))
    assert "'integer'" in judge.refusal(make_stats(room_cu=100))


def test_servers_of_one_request_share_the_room_of_a_core_type():
    work_speeds = make_work(80, hash=0.4), make_work(200, hash=1.0)
    policy = policies.ServerPolicy(1, units=30, work='hash')
    stats = make_stats(work=work_speeds, core_types=make_types(
        (80, 130, '0.1'), (200, 110, 1)))
    for rooms_cu in (70, 110), (10, 110), (10, 50), (10, 50):
        stats = fitness.stats_with_server(policy, stats, in_one_type=True)
        assert tuple(one.room_cu for one in stats.core_types) == rooms_cu


def test_traits_exclude_no_host_that_fits():
    """What Placement leaves out by its traits would be refused anyway."""
    draw = random.Random(9)
    answers = collections.Counter()
    for _ in range(3000):
        report, rooms = make_report(draw, kinds=('integer', 'hash'))
        policy = make_policy(draw, report)._replace(
            work=draw.choice(('', '', '', *WORK)),
            quantum_class=draw.choice(('default', 'auto', 'io')),
            dd_billing=draw.choice(('off', 'account', 'charge')))
        if draw.random() < 0.2:
            policy = policies.ServerPolicy(
                policy.vcpus, quantum_class=policy.quantum_class)
        sold_units = draw.random() < 0.5
        stats = report.stats(rooms)._replace(
            sells_units=report.may_have_sold(sold_units))
        accepted = not judge_of(policy).refusal(stats) and (
            policy.units is not None or not stats.sells_units)
        traits = host_stats.traits(stats, hook=False)
        offered = fitness.required_traits(policy) <= traits and not (
            fitness.forbidden_traits(policy, servers_without_units='refuse')
            & traits)
        assert offered or not accepted, (policy, stats, traits)
        answers[offered, accepted] += 1
    assert min(answers[True, True], answers[False, False],
               answers[True, False]) > 100, answers


@pytest.mark.parametrize(('policy', 'required', 'forbidden'), [
    (None, set(), {'SELLS_UNITS'}),
    (policies.ServerPolicy(1), set(), {'SELLS_UNITS'}),
    (policies.ServerPolicy(1, quantum_class='cache'), {'QUANTUM_CACHE'},
     {'SELLS_UNITS'}),
    (policies.ServerPolicy(2, units=120), {'', 'SPEED_60'}, set()),
    (policies.ServerPolicy(2, units=119), {'', 'SPEED_50'}, set()),
    # It may be faster at that than its trait says.
    (policies.ServerPolicy(2, units=119, work='hash'), {''}, set()),
    (policies.ServerPolicy(1, units=9, quantum_class='auto',
                           dd_billing='account', guarantee='preferred'),
     {''}, set()),
    (policies.ServerPolicy(1, units=5000, quantum_class='io',
                           dd_billing='charge', guarantee='required'),
     {'', 'SPEED_1000', 'QUANTUM_IO', 'DD_BILLING', 'GUARANTEE'}, set()),
])
def test_the_traits_that_placement_is_asked_for(policy, required, forbidden):
    def whole(names):
        return {f'CUSTOM_VQOS_{name}'.rstrip('_') for name in names}
    assert fitness.required_traits(policy) == whole(required)
    assert fitness.forbidden_traits(
        policy, servers_without_units='refuse') == whole(forbidden)
    assert not fitness.forbidden_traits(
        policy, servers_without_units='allow')
    assert whole(required | forbidden) <= host_stats.ASKED_TRAITS


def test_where_vcpus_have_to_pack_the_driver_refuses_more():
    """But nothing that the filter refuses would be accepted."""
    draw = random.Random(8)
    answers = collections.Counter()
    for _ in range(2000):
        report, left = make_report(draw, 12, exact=True)
        policy = make_policy(draw, report)
        stats = host_stats.decode(
            host_stats.encode(report.stats(left)).values())
        reason = judge_of(policy).refusal(stats)
        accepts = driver_accepts(policy, report, left)
        assert not (accepts and reason), (policy, stats, reason)
        answers[accepts, not reason] += 1
    assert answers[True, True] > 100
    assert answers[False, False] > answers[False, True] > 10
