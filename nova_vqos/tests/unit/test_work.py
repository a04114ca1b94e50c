# SPDX-License-Identifier: Apache-2.0
"""Kinds of work: which mixes there are, and what they cost on a host."""

from fractions import Fraction
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import core_types
from nova_vqos import cputune
from nova_vqos import policy
from nova_vqos import units
from nova_vqos import work
from nova_vqos.calibration.cpu import combine
from nova_vqos.tests.fixtures import make_profiles

KINDS = ('integer', 'hash', 'memory-chase')
COEFFICIENTS = st.floats(0.05, 20.0)
MEASURED = st.fixed_dictionaries(dict.fromkeys(KINDS, COEFFICIENTS))
MIXES = st.dictionaries(
    st.sampled_from(KINDS), st.decimals(1, 1000, places=2), min_size=1).map(
        lambda weights: ','.join(f'{kind}:{weight}'
                                 for kind, weight in weights.items()))


def make_profile(**classes):
    """:param classes: such as p0_1={'integer': 1.0} of pCPUs 0 and 1"""
    reference = make_profiles.make_kinds(next(iter(classes.values())))[1]
    return make_profiles.make_profile(
        'here', *(make_profiles.make_class(
            map(int, pcpus.removeprefix('p').split('_')), kinds)
            for pcpus, kinds in classes.items()),
        fingerprint={'tick_us': '4000'}, reference=reference)


@pytest.mark.parametrize(('text', 'weights'), [
    ('integer', {'integer': 1.0}),
    ('integer:2', {'integer': 2.0}),
    ('memory-chase:0.5,integer:1000', {'memory-chase': 0.5,
                                       'integer': 1000.0}),
    (','.join(f'k{number}:1' for number in range(8)),
     {f'k{number}': 1.0 for number in range(8)})])
def test_mixes(text, weights):
    assert dict(work.parse(text).weights) == weights


@pytest.mark.parametrize('text', [
    '', ' ', 'Integer', 'integer ', '-x', 'x' * 33, 'integer,hash',
    'integer:', 'integer:0', 'integer:0.0', 'integer:1000.1', 'integer:-1',
    'integer:1e2', 'integer:inf', 'integer:nan', 'integer:1_0', 'integer:٦',
    'integer:.5', 'integer:1.', 'integer:1.1234567', 'integer:1,integer:2',
    'integer:1,', ',integer:1', 'integer:1;hash:1', 'integer:1, hash:1',
    'integer:1\n', ','.join(f'k{number}:1' for number in range(9)),
    ','.join(f'{number:032}:1' for number in range(8)) + 'x' * 200,
    'auto:1', 'integer:1,auto:1', 'AUTO'])
def test_what_is_no_mix(text):
    with pytest.raises(ValueError, match='kind'):
        work.parse(text)


@given(MEASURED, st.sampled_from(KINDS))
def test_one_kind_alone_is_its_score(measured, kind):
    """Exactly, so that a pCPU of 60 CU serves a vCPU of 60 CU."""
    assert work.parse(kind).coefficient(measured) == measured[kind]


@given(MEASURED, MIXES, COEFFICIENTS)
def test_a_mix_is_a_mean_that_no_reference_changes(measured, mix, factor):
    found = work.parse(mix).coefficient(measured)
    weights = dict(work.parse(mix).weights)
    assert min(measured[kind] for kind in weights) * (1 - 1e-9) <= found
    assert found <= max(measured[kind] for kind in weights) * (1 + 1e-9)
    other = {kind: coefficient * factor
             for kind, coefficient in measured.items()}
    assert work.parse(mix).coefficient(other) == pytest.approx(
        found * factor)


@given(MEASURED)
def test_equal_weights_of_all_kinds_are_the_combined_coefficient(measured):
    mix = work.parse(','.join(f'{kind}:1' for kind in KINDS))
    found, reference = make_profiles.make_kinds(measured)
    assert mix.coefficient(measured) == found.coefficient
    assert combine.measurement(found.scores, reference) == found


def test_a_kind_that_was_not_measured():
    with pytest.raises(work.KindMissing) as caught:
        work.parse('gpu').coefficient(dict.fromkeys(KINDS, 1.0))
    assert caught.value.kind == 'gpu'
    assert all(kind in str(caught.value) for kind in KINDS)


def tune(flavor_units, vcpus, work_text, profile, *, cap='hard'):
    return cputune.compute(
        policy.ServerPolicy(vcpus, flavor_units, cap=cap, work=work_text),
        profile, profile.pcpus, cgroup_version=2)


@given(MEASURED, MIXES, st.integers(1, 4), st.integers(1, 2000))
def test_a_cap_is_the_units_in_that_work(measured, mix, vcpus, cu):
    profile = make_profile(p0=measured)
    coefficient = work.parse(mix).coefficient(measured)
    try:
        found = tune(max(cu, vcpus), vcpus, mix, profile).cap
    except units.HostTooSlow:
        assert units.share(max(cu, vcpus), vcpus, coefficient) > 1
    except units.ShareTooSmall:
        assert units.share(max(cu, vcpus), vcpus,
                           coefficient) < Fraction(8, 1000)
    else:
        assert float(found.share) * coefficient * 100 == pytest.approx(
            max(cu, vcpus) / vcpus, rel=1e-3)


def test_the_slowest_class_for_that_work_counts():
    """Not the one that is the slowest in the mean of all kinds."""
    profile = make_profile(p0_1={'integer': 1.0, 'hash': 4.0},
                           p2_3={'integer': 2.0, 'hash': 0.5})
    assert profile.slowest(profile.pcpus) == pytest.approx(1.0)
    assert tune(40, 1, 'hash', profile).cap == (40_000, 50_000)
    assert tune(40, 1, 'integer', profile).cap == (20_000, 50_000)


def test_a_weight_follows_the_time():
    """A floor has no cap: without it a slow kind would get too little."""
    profile = make_profile(p0={'integer': 2.0, 'hash': 0.5})
    assert [tune(40, 1, text, profile, cap='floor')
            for text in ('', 'integer', 'hash')] == [
        (None, 40, None), (None, 20, None), (None, 80, None)]


@given(st.integers(1, 5000), COEFFICIENTS, COEFFICIENTS)
def test_a_cost_is_no_less_than_the_time_and_the_claim(cu, mean, mine):
    cost_cu = units.cost_cu(cu, mean, mine)
    exact = cu * units.pcpu_cu(mean) / units.pcpu_cu(mine)
    assert cost_cu >= cu
    assert exact <= cost_cu <= max(cu, exact + Fraction(1, 1000))


@given(st.lists(MEASURED, min_size=1, max_size=3), st.lists(
    st.tuples(st.integers(1, 400), st.integers(1, 4), st.just('') | MIXES),
    max_size=12), st.integers(0, 300))
def test_caps_of_admitted_servers_fit_their_pcpus(
        classes, servers, reserved_cu):
    """Whatever servers come, in whatever order, with whatever work."""
    profile = make_profile(**{
        f'p{2 * number}_{2 * number + 1}': measured
        for number, measured in enumerate(classes)})
    all_types = core_types.of_host(profile, profile.pcpus)
    admitted = []
    times = {one.pcpus: Fraction(0) for one in all_types}
    for cu, vcpus, text in servers:
        server_policy = policy.ServerPolicy(vcpus, max(cu, vcpus), work=text)
        left = core_types.with_servers(all_types, admitted,
                                       reserved_cu=reserved_cu)
        try:
            chosen = core_types.choose(server_policy, left, tick_us=4000)
        except core_types.NoCoreTypeFits:
            continue
        admitted.append(core_types.Server(
            server_policy.units, chosen.pcpus, vcpus, server_policy.mix))
        # What its cap allows, but for the rounding to microseconds.
        times[chosen.pcpus] += vcpus * units.share(
            server_policy.units, vcpus,
            profile.slowest(chosen.pcpus, server_policy.mix))
    capacity_cu = sum(one.room_cu for one in all_types)
    sold = 1 - min(Fraction(reserved_cu), capacity_cu) / capacity_cu
    for pcpus, time in times.items():
        assert time <= len(pcpus) * sold


def test_work_that_was_not_measured_counts_as_whole_pcpus():
    """Its cap is unknown, and no more than that."""
    profile = make_profile(p0_1={'integer': 1.5})
    server = core_types.Server(60, None, 2, work.parse('gpu'))
    assert core_types.costs_cu(
        server, core_types.of_host(profile, profile.pcpus)) == [300]
    assert math.isclose(profile.slowest(profile.pcpus), 1.5)
