# SPDX-License-Identifier: Apache-2.0
"""Which of the pCPUs that look equal are equally fast."""

import itertools
import random

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import estimate
from nova_vqos.calibration.cpu import classes

WEIGHTS = (1.0, 3.0, 0.5)

factors = st.lists(st.floats(0.3, 3), min_size=1, max_size=8)
scatters = st.floats(0.0001, 0.05)
tolerances = st.sampled_from((0.001, 0.03, 0.1, 0.5))


def scores(chance, factor, *, scatter=0.001, rounds=8, weights=WEIGHTS,
           by=None):
    """Samples of a pCPU that is so many times as fast as some other.

    :param chance: a random.Random
    :param by: further factors, of each benchmark
    """
    return [(weight, [1000 * (number + 1) * factor * own
                      * chance.gauss(1, scatter) for _ in range(rounds)])
            for number, (weight, own) in enumerate(zip(
                weights, by or [1] * len(weights), strict=True))]


def speed(*arguments, **options):
    return classes.speed(scores(*arguments, **options))


def differ(factor, *, tolerance=0.1, **options):
    chance = random.Random(1)
    one, other = speed(chance, 1.0), speed(chance, factor, **options)
    found = one.differs(other, tolerance=tolerance)
    assert other.differs(one, tolerance=tolerance) is found
    return found


@pytest.mark.parametrize(('factor', 'expected'), [
    (1.0, False), (1.09, False), (1.11, True), (1 / 1.09, False),
    (1 / 1.11, True), (2.0, True), (0.01, True)])
def test_beyond_the_tolerance(factor, expected):
    assert differ(factor) is expected


def test_beyond_chance():
    """The same difference, of scores that scatter more, and of more scores."""
    for scatter, rounds, expected in ((0.01, 8, True), (0.2, 8, False),
                                      (0.2, 2000, True)):
        around = [1 - scatter, 1 + scatter] * (rounds // 2)
        one, other = (classes.speed([(1.0, [factor * one for one in around])])
                      for factor in (1.0, 1.2))
        assert one.differs(other, tolerance=0.1) is expected


def test_one_benchmark_against_the_others_is_no_difference():
    """One that was disturbed from its first round to its last."""
    assert not differ(1.0, by=(0.5, 1.01, 1.01))
    assert differ(1.0, by=(0.5, 0.99, 0.99))


def test_equal_scores_leave_nothing_open():
    one, other = (classes.speed([(1.0, [score] * 8)]) for score in (5, 6))
    assert one.differs(other, tolerance=0.19)
    assert not one.differs(other, tolerance=0.21)
    assert not one.differs(one, tolerance=0.001)


def test_weights_count():
    """41 % more in one benchmark is 30 % or 9 % in all."""
    chance = random.Random(2)
    for weights, expected in (((3.0, 1.0), True), ((1.0, 3.0), False)):
        one = speed(chance, 1.0, weights=weights)
        other = speed(chance, 1.0, weights=weights, by=(2 ** 0.5, 1.001))
        assert one.differs(other, tolerance=0.2) is expected


def test_too_few_samples():
    assert classes.speed([(1.0, [1.0] * 3)]) is None
    assert classes.split([frozenset({0, 1})], {
        0: classes.speed([(1.0, [1.0] * 4)])}, tolerance=0.1) == (
            frozenset({0, 1}),)


def split(found, faster, tolerance=0.1, seed=1, **options):
    """:param faster: factor by pCPU"""
    chance = random.Random(seed)
    return classes.split(list(map(frozenset, found)), {
        pcpu: speed(chance, factor, **options)
        for pcpu, factor in faster.items()}, tolerance=tolerance)


@pytest.mark.parametrize(('found', 'faster', 'expected'), [
    ([{0, 1, 2, 3}], {0: 1, 1: 1.5, 2: 1, 3: 1.5}, ({0, 2}, {1, 3})),
    # Never made one, however equal.
    ([{0, 1}, {2, 3}], dict.fromkeys(range(4), 1), ({0, 1}, {2, 3})),
    ([{0, 1}, {2, 3}], {0: 1, 1: 1, 2: 2, 3: 1}, ({0, 1}, {2}, {3})),
    # As fast as both others, which differ: with the slower one.
    ([{0, 1, 2}], {0: 1.15, 1: 1.07, 2: 1}, ({0}, {1, 2})),
    ([{5}], {5: 1}, ({5},)),
])
def test_split(found, faster, expected):
    assert split(found, faster) == expected


@settings(deadline=None)
@given(factors, scatters, tolerances, st.integers())
def test_classes_are_disjoint_and_of_equals(faster, scatter, tolerance, seed):
    chance = random.Random(seed)
    speeds = {pcpu: speed(chance, factor, scatter=scatter)
              for pcpu, factor in enumerate(faster)}
    everything = frozenset(speeds)
    made = classes.split([everything], speeds, tolerance=tolerance)
    assert sorted(itertools.chain(*made)) == sorted(everything)
    assert list(made) == sorted(made, key=min)
    comparisons = len(faster) * (len(faster) - 1) // 2
    for members in made:
        for one, other in itertools.combinations(members, 2):
            assert not speeds[one].differs(
                speeds[other], tolerance=tolerance, comparisons=comparisons)


@settings(deadline=None)
@given(factors, scatters, tolerances, st.integers(), st.floats(0.001, 1000))
def test_scores_may_have_any_unit(faster, scatter, tolerance, seed, factor):
    chance = random.Random(seed)
    taken = [scores(chance, one, scatter=scatter) for one in faster]
    pcpus = frozenset(range(len(taken)))

    def made(factor):
        return classes.split([pcpus], {
            pcpu: classes.speed([(weight, [one * factor for one in samples])
                                 for weight, samples in by])
            for pcpu, by in enumerate(taken)}, tolerance=tolerance)

    assert made(factor) == made(1.0)


@settings(deadline=None)
@given(st.floats(1.2, 5), st.integers(1, 6), st.integers(1, 6), st.integers())
def test_two_kinds_are_found(factor, slow, fast, seed):
    faster = dict.fromkeys(range(slow), 1.0) | dict.fromkeys(
        range(slow, slow + fast), factor)
    assert split([set(faster)], faster, seed=seed) == (
        set(range(slow)), set(range(slow, slow + fast)))


def test_equal_ones_stay_together():
    """In 95 % of all calibrations at least, whatever is tolerated."""
    together = sum(len(split([set(range(12))], dict.fromkeys(range(12), 1.0),
                             tolerance=1e-12, seed=seed, scatter=0.02,
                             weights=(1.0,))) == 1
                   for seed in range(300))
    # Within the scatter of 300 samples.
    assert 0.92 < together / 300 < 1


# From printed tables: 95 % for one interval, for 10 and for 50 of them.
@pytest.mark.parametrize(('degrees', 'comparisons', 't'), [
    (14, 1, 2.145), (14, 10, 3.326), (14, 50, 4.140), (30, 50, 3.646),
    (7.5, 1, 2.333)])
def test_students_t_of_many(degrees, comparisons, t):
    assert estimate.student_t(degrees, comparisons) == pytest.approx(
        t, rel=0.002)
