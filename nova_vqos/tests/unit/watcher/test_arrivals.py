# SPDX-License-Identifier: Apache-2.0
"""A server may cost, and need, what it does on the worst core type."""

from decimal import Decimal
from fractions import Fraction
import math

import hypothesis
from hypothesis import strategies as some
import pytest

from nova_vqos import core_types
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.watcher import arrivals

# Types of 100 and 200 CU, of which the slow one is the worse at int.
SPEEDS = (1.0, 0.8), (2.0, 2.4)


def server(cu=120, vcpus=2, **specs):
    return policy.parse({policy.UNITS_KEY: str(cu), **{
        f'vqos:{name}': value for name, value in specs.items()}}, vcpus)


def stats_of(speeds, room_cu=400, **fields):
    """:param speeds: coefficient, and that of int, of each core type"""
    types = [(host_stats.speed_cu(mean), kind) for mean, kind in speeds]
    return host_stats.HostStats(
        profile=host_stats.VALID, slowest_cu=types[0][0],
        fastest_cu=types[-1][0], least_cu=Decimal(1), room_cu=room_cu,
        core_types=tuple(host_stats.CoreTypeRoom(
            speed_cu, room_cu, Decimal(1)) for speed_cu, _kind in types),
        work=tuple(host_stats.WorkSpeeds(speed_cu, {'int': kind})
                   for speed_cu, kind in types), **fields)


@pytest.mark.parametrize('in_one_type', [True, False])
def test_room_is_left_by_the_greatest_cost(in_one_type):
    after = arrivals.stats_after(server(work='int'), stats_of(SPEEDS),
                                 in_one_type=in_one_type)
    assert after.room_cu == 400 - 150


def test_a_server_on_all_core_types_leaves_none_of_them_its_room():
    after = arrivals.stats_after(server(), stats_of(SPEEDS),
                                 in_one_type=False)
    assert [one.room_cu for one in after.core_types] == [280, 280]


def test_a_server_on_all_core_types_needs_room_for_its_greatest_cost():
    """The filter passes it with 100 CU, its least cost."""
    one = server(work='int')
    assert arrivals.doubts(one, stats_of(SPEEDS, 149), in_one_type=False)
    assert not arrivals.doubts(one, stats_of(SPEEDS, 150), in_one_type=False)


def test_places_on_two_core_types_are_none_of_one():
    """Each type has one place, and both vCPUs need one of the same."""
    packed = {'largest_vcpu_cu': Decimal(80),
              'pieces': (host_stats.Piece(81, 1), host_stats.Piece(80, 1))}
    one = server()
    assert arrivals.doubts(one, stats_of(SPEEDS, **packed), in_one_type=True)
    alike = stats_of(SPEEDS, **packed)._replace(core_types=())
    assert not arrivals.doubts(one, alike, in_one_type=True)


def test_a_vcpu_has_to_pack_at_its_greatest_cost():
    """75 CU on a slow pCPU: 50 on a fast one, which may have no room."""
    one = server(60, 1, work='int')
    for largest_cu, fits in ((74, False), (75, True)):
        assert bool(arrivals.doubts(one, stats_of(
            SPEEDS, largest_vcpu_cu=Decimal(largest_cu)),
            in_one_type=True)) is not fits


coefficients = some.floats(0.3, 5).map(lambda one: round(one, 3))


@hypothesis.given(some.integers(1, 300), some.integers(1, 4), some.lists(
    some.tuples(coefficients, coefficients), min_size=1, max_size=4,
    unique_by=lambda one: one[0]), some.booleans())
def test_no_core_type_takes_more(cu, vcpus, speeds, in_one_type):
    """Of the driver's own judgement, whichever type it chooses."""
    hypothesis.assume(cu >= vcpus)
    one = server(cu, vcpus, work='int')
    after = arrivals.stats_after(one, stats_of(sorted(speeds), 10_000),
                                 in_one_type=in_one_type)
    for mean, kind in speeds:
        driver = core_types.CoreType(frozenset({0}), mean, Fraction(10_000),
                                     kinds={'int': kind})
        left_cu = driver.room_cu - driver.cost_cu(cu, vcpus, one.mix)
        assert after.room_cu <= math.floor(left_cu)
