# SPDX-License-Identifier: Apache-2.0
"""The part of a profile that says which slices are best."""

import json
import math

import hypothesis
from hypothesis import strategies
import pytest

from nova_vqos import files
from nova_vqos.calibration.quantum import pick
from nova_vqos.calibration.report import table
from nova_vqos.cmd.calibrate import profiles
from nova_vqos.profile import document as documents
from nova_vqos.profile import quantum as quantum_profile
from nova_vqos.tests.fixtures import make_profiles

FINGERPRINT = {'kernel': '6.18'}
FLAT = {None: 100.0, 1000: 100.0, 30_000: 100.0, 90_000: 100.0}


@pytest.fixture
def quantum():
    return make_profiles.make_quantum()


@pytest.fixture
def held(quantum):
    return make_profiles.make_profile(
        'compute1', make_profiles.make_class({0, 1}, 1.0),
        fingerprint=FINGERPRINT, quantum=quantum_profile.document(quantum))


def test_it_is_read_as_it_was_written(held, quantum):
    loaded = documents.loads(documents.dumps(held))
    assert loaded.quantum_profile == quantum
    assert loaded.id == held.id


def test_a_profile_without_it_is_as_it_always_was(held):
    before = held._replace(quantum=None)
    assert 'quantum' not in json.loads(documents.dumps(before))
    assert documents.loads(documents.dumps(before)).quantum_profile is None


def test_what_it_recommends(quantum):
    # That of io among equals is not the one it gets.
    assert quantum.slices_us == {'cache': 90_000}
    assert table.quantum_option(quantum) == 'quantum_slices = cache:90000'


@pytest.mark.parametrize(('path', 'value', 'said'), [
    (('created_at',), '', 'created_at'),
    (('curves',), [], 'a list of 1 to 5 mappings'),
    (('curves',), [{}] * 6, 'a list of 1 to 5 mappings'),
    (('curves', 1, 'kind'), 'io', 'the same kind twice'),
    (('curves', 0, 'kind'), 'batch', 'one of io, spin, cache'),
    (('curves', 0, 'verdict'), 'best', 'one of better, as the default'),
    (('curves', 0, 'best_us'), 99, 'from 100 to 100000'),
    (('curves', 0, 'best_us'), 1000.5, 'a whole number'),
    (('curves', 0, 'best_us'), True, 'best_us'),
    (('curves', 0, 'best_us'), 2000, 'the slice of one of its points'),
    (('curves', 2, 'best_us'), 1000, 'any slice suits class neutral'),
    (('curves', 0, 'margin'), float('nan'), 'margin'),
    (('curves', 0, 'margin'), -0.1, 'margin'),
    (('curves', 0, 'points'), [], 'points'),
    (('curves', 0, 'points', 0, 'slice_us'), 30_000, 'each of another slice'),
    (('curves', 0, 'points', 0, 'slice_us'), 60_000, "the kernel's default"),
    (('curves', 0, 'points', 1, 'slice_us'), 2000, 'the same slices'),
    (('curves', 0, 'points', 1, 'slice_us'), 100_001, 'from 100 to 100000'),
    (('curves', 0, 'points', 0, 'runnable'), 0, 'from 1 to 64'),
    (('curves', 0, 'points', 0, 'runnable'), 2.5, 'a whole number'),
    (('curves', 0, 'points', 0, 'values_ns'), [], 'positive numbers'),
    (('curves', 0, 'points', 0, 'values_ns'), [0], 'positive numbers'),
    (('curves', 0, 'points', 0, 'values_ns'), [1e13], 'up to 1e'),
    (('curves', 0, 'points', 0, 'medians_ns'), ['1'], 'positive numbers'),
    (('curves', 0, 'points', 0, 'medians_ns'), [1e13], 'medians_ns'),
    (('curves', 0, 'points', 0, 'mean_run_us'), -1, 'mean_run_us'),
    (('curves', 0, 'points', 0, 'disturbed'), None, 'disturbed'),
    (('unmeasured',), {'io': 'x' * 300}, '1 to 256 characters'),
])
def test_nonsense_is_refused_when_it_is_asked_for(held, path, value, said):
    damaged = make_profiles.damaged(held.quantum, path, value)
    # All else in it can be used.
    loaded = documents.loads(documents.dumps(held._replace(quantum=damaged)))
    assert loaded.coefficient(0) == 1.0
    with pytest.raises(files.FileInvalid, match=said):
        assert loaded.quantum_profile


@pytest.mark.parametrize('value', [1, [], 'io'])
def test_something_else_is_no_profile(held, value):
    document = json.loads(documents.dumps(held)) | {'quantum': value}
    with pytest.raises(files.FileInvalid, match='quantum is'):
        documents.loads(json.dumps(document))


@pytest.mark.parametrize(('kind', 'costs_ns', 'best_us', 'verdict'), [
    # As in the research.
    ('io', FLAT | {1000: 20, 30_000: 300, 90_000: 900}, 1000, 'better'),
    ('cache', FLAT | {90_000: 60}, 90_000, 'better'),
    ('neutral', FLAT, None, 'no difference'),
    # A tick as long as the kernel's own slice.
    ('io', FLAT | {30_000: 300, 90_000: 900}, 1000, 'as the default'),
    # The research's slice is within noise of the best one.
    ('cache', FLAT | {30_000: 59, 90_000: 60}, 90_000, 'better'),
    # It is not: of those that are, the shortest.
    ('cache', FLAT | {1000: 41, 30_000: 40, 90_000: 60}, 1000, 'better'),
    ('spin', FLAT | {1000: 150, 30_000: 200, 90_000: 300}, None,
     'default is best'),
    # There is nothing to be set for its class.
    ('polluter', FLAT | {90_000: 60}, None, 'better')])
def test_the_choice(kind, costs_ns, best_us, verdict):
    curve = make_profiles.make_curve(kind, costs_ns)
    assert (curve.best_us, curve.verdict) == (best_us, verdict)
    assert curve.margin == pick.TOLERANCE


def test_what_scatters_has_to_differ_by_more():
    costs_ns = FLAT | {90_000: 80.0}
    quiet = make_profiles.make_curve('cache', costs_ns)
    assert quiet.verdict == quantum_profile.BETTER
    noisy = make_profiles.make_curve('cache', costs_ns, spread=0.3)
    assert noisy.verdict == quantum_profile.NO_DIFFERENCE
    # Twice the standard error of a median of three.
    assert noisy.margin == pytest.approx(2 * 0.3 * 1.2533 / 3 ** 0.5, abs=1e-3)


def test_what_is_called_better_is_better_than_the_default():
    """Not only close to what is: 1 and 30 ms are close to both."""
    curve = make_profiles.make_curve('spin', {
        None: 100.0, 1000: 86.0, 30_000: 85.0, 60_000: 70.0, 90_000: 67.0},
        spread=0.2)
    assert 0.28 < curve.margin < 0.3
    assert (curve.best_us, curve.verdict) == (60_000, 'better')


@pytest.mark.parametrize(('cost_ns', 'margin'), [
    (150.0, 0.5), (50.0, 1.0), (101.0, pick.TOLERANCE)])
def test_what_equal_turns_differ_by_is_noise(cost_ns, margin):
    """A slice of 1 ms on a tick of 4 ms is the default by another name."""
    curve = pick.curve('spin', [
        make_profiles.make_point(
            slice_us, cost, runnable=runnable,
            mean_run_us=float(max(4000, slice_us or 3700)))
        for runnable in (2, 4) for slice_us, cost in (
            (None, 100.0), (1000, cost_ns), (90_000, 80.0))])
    assert curve.margin == pytest.approx(margin)
    # Where the default is as good as any, so is that slice.
    assert (curve.best_us, curve.verdict) == {
        150.0: (None, 'no difference'), 50.0: (None, 'no difference'),
        101.0: (90_000, 'better')}[cost_ns]
    unknown = pick.curve('spin', [
        make_profiles.make_point(slice_us, cost, runnable=runnable,
                                 mean_run_us=None)
        for runnable in (2, 4) for slice_us, cost in (
            (None, 100.0), (1000, cost_ns))])
    assert unknown.margin == pick.TOLERANCE


def test_long_slices_that_others_cut_are_not_the_default():
    curve = make_profiles.make_curve('cache', FLAT | {90_000: 50.0},
                                     mean_run_us=3900.0)
    assert (curve.best_us, curve.margin) == (90_000, pick.TOLERANCE)
    assert not pick.has_effect(curve.points)


def test_more_rounds_narrow_the_interval():
    def margin(rounds):
        return make_profiles.make_curve(
            'cache', FLAT, values_ns=(80.0, 100.0, 120.0) * rounds).margin

    assert margin(12) == pytest.approx(margin(3) / 2, rel=0.1)


def test_one_round_has_no_scatter():
    curve = make_profiles.make_curve('cache', FLAT, values_ns=(100.0,))
    assert curve.margin == pick.TOLERANCE
    assert table.QUANTUM_COLUMNS[4] == 'deviation'
    shown = make_profiles.make_quantum(curves=(curve,))
    assert next(table.quantum_rows(shown))[4] == ''


@pytest.mark.parametrize(('value_ns', 'result'), [
    (100.0, '10 M/s'), (13_000.0, '76.9 k/s'), (1e8, '10 /s')])
def test_results(value_ns, result):
    shown = make_profiles.make_quantum(curves=(
        make_profiles.make_curve('spin', {None: value_ns}),))
    column = table.QUANTUM_COLUMNS.index('result')
    assert next(table.quantum_rows(shown))[column] == result


def test_both_numbers_of_vcpus_count_alike():
    points = [make_profiles.make_point(slice_us, cost_ns, runnable=runnable)
              for slice_us, costs_ns in ((None, (100.0, 9000.0)),
                                         (90_000, (50.0, 18_000.0)))
              for runnable, cost_ns in zip((2, 4), costs_ns, strict=True)]
    assert quantum_profile.relative_costs(points) == {
        None: pytest.approx(1), 90_000: pytest.approx(1)}


COSTS = strategies.dictionaries(
    strategies.sampled_from([1000, 10_000, 30_000, 60_000, 90_000]),
    strategies.floats(1, 1e9), min_size=1)


@hypothesis.given(
    kind=strategies.sampled_from(sorted(quantum_profile.CLASSES)),
    default_ns=strategies.floats(1, 1e9), costs_ns=COSTS,
    spread=strategies.floats(0, 0.9))
def test_choices_are_within_noise_of_best(kind, default_ns, costs_ns, spread):
    curve = make_profiles.make_curve(kind, {None: default_ns} | costs_ns,
                                     spread=spread)
    if curve.best_us is not None:
        costs = quantum_profile.relative_costs(curve.points)
        assert costs[curve.best_us] <= min(costs.values()) * (
            1 + curve.margin + 1e-4)
        if curve.verdict == quantum_profile.BETTER:
            assert costs[curve.best_us] * (1 + curve.margin) <= 1.0001
    # And what was written can be read, whatever it is.
    quantum = make_profiles.make_quantum(curves=(curve,))
    assert quantum_profile.from_document(json.loads(json.dumps(
        quantum_profile.document(quantum)))) == quantum


def test_the_table(quantum):
    rows = [dict(zip(table.QUANTUM_COLUMNS, row, strict=True))
            for row in table.quantum_rows(quantum)]
    assert len(rows) == 3 * 2 * 4
    assert rows[1] == {
        'kind': 'io', 'runnable': 2, 'slice_ms': '1', 'cost': 0.25,
        'deviation': '1.0%', 'mean_run_ms': 1.0, 'result': '1.00 ms',
        'median': '2.00 ms', 'rounds': 3, 'best': 'best'}
    assert rows[8] | {'kind': 'cache', 'slice_ms': 'default', 'cost': 1.0,
                      'result': '10 M/s', 'median': '',
                      'best': ''} == rows[8]
    assert [row['slice_ms'] for row in rows[:4]] == ['default', '1', '30',
                                                     '90']


class Log(list):
    def info(self, text, *arguments):
        self.append(text % arguments)


@pytest.mark.parametrize(('curves', 'said'), [
    ({'cache': FLAT | {90_000: 40.0}},
     ['cache: better, 90 ms costs 0.40 of the default',
      'quantum_slices = cache:90000']),
    ({'io': FLAT | {90_000: 900.0}},
     ['io: as the default, 1 ms costs 1.00 of the default',
      'Nothing to set']),
    ({'spin': FLAT}, ['spin: no difference (', 'Nothing to set']),
    ({'neutral': FLAT | {90_000: 60.0}},
     ['neutral: better, 90 ms costs 0.60 of the default; its class has no '
      'slice', 'Nothing to set']),
    ({'spin': {None: 10.0, 1000: 20.0}},
     ['spin: default is best', 'Nothing to set'])])
def test_what_is_said(curves, said):
    log = Log()
    shown = make_profiles.make_quantum(curves=tuple(
        make_profiles.make_curve(kind, costs_ns)
        for kind, costs_ns in curves.items()))
    columns, rows = profiles.describe_quantum(log, shown)
    assert all(len(row) == len(columns) for row in rows)
    for text in (*said, 'Not measured: spin: both sides of a lock'):
        assert any(text in line for line in log)


def test_means_are_geometric():
    curve = make_profiles.make_curve('cache', {None: 4.0, 90_000: 1.0})
    cost = quantum_profile.relative_costs(curve.points)[90_000]
    assert math.isclose(cost, 0.25)
