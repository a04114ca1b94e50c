# SPDX-License-Identifier: Apache-2.0
"""What packs is shown by an assignment, and compared with brute force."""

import collections
from fractions import Fraction
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import packing

PCPU_CU = Fraction(100)
# As of flavors: whole units, shared by some vCPUs.
SIZES_CU = st.builds(Fraction, st.integers(1, 400), st.integers(1, 4)).filter(
    lambda cu: cu <= PCPU_CU)


def make_pcpus(number, *vcpus_cu, size_cu=PCPU_CU):
    return packing.Pcpus(number, size_cu, collections.Counter(
        map(Fraction, vcpus_cu)))


HOSTS = st.builds(
    lambda number, vcpus_cu, size_cu: make_pcpus(
        number, *vcpus_cu, size_cu=size_cu),
    st.integers(1, 4), st.lists(SIZES_CU, max_size=8),
    st.sampled_from([PCPU_CU, Fraction('66.8')]))


def assignment_of(pcpus):
    return packing.pack(pcpus.vcpus, pcpus.number, pcpus.size_cu)


def can_pack(vcpus_cu, left_cu):
    """By trying all there is."""
    if not vcpus_cu:
        return True
    first, *others = vcpus_cu
    return any(can_pack(others, (
        *left_cu[:pcpu], left_cu[pcpu] - first, *left_cu[pcpu + 1:]))
        for pcpu, room_cu in enumerate(left_cu)
        if room_cu >= first and room_cu not in left_cu[:pcpu])


def can_pack_at_all(pcpus):
    return can_pack(list(collections.Counter(pcpus.vcpus).elements()),
                    (pcpus.size_cu,) * pcpus.number)


@pytest.mark.parametrize(('vcpus_cu', 'packs'), [
    ((), True), ((100, 100), True), ((50,) * 4, True), ((60, 60), True),
    ((60,) * 3, False), ((40,) * 5, False), ((45,) * 4, True),
    ((Fraction(100, 3),) * 6, True), ((Fraction(100, 3),) * 7, False),
    ((101,), False), ((60, 60, 40, 40), True), ((60, 60, 41), False)])
def test_two_pcpus(vcpus_cu, packs):
    assert make_pcpus(2, *vcpus_cu).packs() is packs


@given(HOSTS)
def test_what_packs_has_an_assignment(pcpus):
    assignment = assignment_of(pcpus)
    assert pcpus.packs() is (assignment is not None)
    if assignment is None:
        return
    assert len(assignment) == pcpus.number
    assert all(sum(cu * count for cu, count in mine.items()) <= pcpus.size_cu
               for mine in assignment)
    assert sum(map(collections.Counter, assignment),
               collections.Counter()) == pcpus.vcpus


@given(HOSTS)
def test_nothing_impossible_packs(pcpus):
    if pcpus.packs():
        assert can_pack_at_all(pcpus)


@given(HOSTS)
def test_what_is_refused_is_impossible_on_little_less(pcpus):
    """First fit decreasing needs at most 11/9 of the best, and 6/9 (Dosa)."""
    if not pcpus.packs():
        needed = math.ceil((pcpus.number + 1 - Fraction(6, 9))
                           * Fraction(9, 11))
        assert not can_pack_at_all(pcpus._replace(number=needed - 1))


@given(HOSTS)
def test_without_its_smallest_vcpus_it_still_packs(pcpus):
    if pcpus.vcpus and pcpus.packs():
        smallest = min(pcpus.vcpus)
        assert pcpus._replace(vcpus={
            cu: count for cu, count in pcpus.vcpus.items()
            if cu != smallest}).packs()


@given(HOSTS)
def test_one_more_pcpu_takes_a_vcpu_as_large(pcpus):
    if pcpus.packs():
        more = pcpus._replace(number=pcpus.number + 1)
        assert more.largest_cu() == pcpus.size_cu


def test_an_anomaly_of_first_fit_decreasing():
    """Graham's example: a vCPU less, and it is not seen to pack any more."""
    vcpus = collections.Counter([
        442, *(252,) * 7, *(127,) * 5, *(106,) * 4, 85, 84, 46, 37, 37,
        *(12,) * 3, *(10,) * 6, 9, 9])
    assert packing.pack(vcpus, 7, 524) is not None
    assert packing.pack(vcpus - collections.Counter([46]), 7, 524) is None


@given(HOSTS, SIZES_CU, st.integers(1, 4))
def test_what_is_taken_packs_with_it(pcpus, vcpu_cu, count):
    more = pcpus._replace(vcpus=collections.Counter(
        pcpus.vcpus) + collections.Counter({vcpu_cu: count}))
    assert pcpus.takes(vcpu_cu, count) is more.packs()


@given(HOSTS)
def test_the_largest_is_taken_and_no_larger_one(pcpus):
    largest_cu = pcpus.largest_cu()
    assert not largest_cu or pcpus.takes(largest_cu)
    assert not pcpus.takes(largest_cu + Fraction(1, 10**9))


@pytest.mark.parametrize(('vcpus_cu', 'largest_cu'), [
    ((), 100), ((60, 60), 40), ((60,), 100), ((40, 40), 100),
    ((100, Fraction(100, 3)), Fraction(200, 3)), ((50, 50, 50, 50), 0),
    # The others move for it.
    ((70, 50, 30, 30), 20), ((50, 40, 30, 30), 50), ((60,) * 3, 0)])
def test_the_largest_of_two_pcpus(vcpus_cu, largest_cu):
    assert make_pcpus(2, *vcpus_cu).largest_cu() == largest_cu


@given(HOSTS)
def test_the_pieces_are_all_that_is_left(pcpus):
    pieces = pcpus.pieces()
    assert sum(pieces.values()) == pcpus.number
    assert all(0 <= cu <= pcpus.size_cu for cu in pieces)
    left_cu = sum(cu * number for cu, number in pieces.items())
    used_cu = sum(cu * count for cu, count in pcpus.vcpus.items())
    assert left_cu == (pcpus.number * pcpus.size_cu - used_cu
                       if pcpus.packs() else 0)


@pytest.mark.parametrize(('vcpus_cu', 'pieces'), [
    ((), {100: 2}), ((60, 60), {40: 2}), ((60,), {40: 1, 100: 1}),
    ((60, 40), {0: 1, 100: 1}), ((60,) * 3, {0: 2}),
    ((Fraction(100, 3),) * 4, {0: 1, Fraction(200, 3): 1})])
def test_the_pieces_of_two_pcpus(vcpus_cu, pieces):
    assert make_pcpus(2, *vcpus_cu).pieces() == pieces


def test_the_largest_of_a_pcpu_of_no_whole_units():
    pcpus = make_pcpus(1, 10, size_cu=Fraction('33.4'))
    assert pcpus.largest_cu() == Fraction('23.4')
