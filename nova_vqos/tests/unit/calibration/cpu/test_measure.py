# SPDX-License-Identifier: Apache-2.0
"""From scores to a profile."""

import contextlib
import dataclasses
import json
import pathlib

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import estimate
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import runner
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import measure
from nova_vqos.calibration.cpu import reference
from nova_vqos.calibration.run import Effort
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import calibration_host
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.unit.calibration.guest import test_guest


class BrokenRunner(runner.Runner):
    def close(self):
        pass

    def work(self, pcpu, report, stop):
        raise CalibrationError('no such luck')


def test_reference_is_100_cu_when_busy(calibrate):
    made = calibrate({0, 1}, reference_name='gold').measured
    assert made.is_reference
    assert made.reference.name == 'gold'
    (known,) = made.reference.benchmarks
    assert known.score == 100
    assert made.coefficient(0) == made.coefficient(1) == 1.0
    (cpu_class,) = made.cpu_classes
    assert cpu_class.alone.coefficient == pytest.approx(1.1)
    assert cpu_class.alone.scores[0].samples[:8] == (110.0,) * 8
    assert len(cpu_class.busy.scores[0].samples) >= 16


def test_profile_survives_being_written(calibrate, tmp_path):
    made = calibrate({0, 1, 9}, busy=(99.7, 100.0, 100.1)).measured
    path = str(tmp_path / 'profile.yaml')
    document.store(made, path)
    assert document.load(path) == made
    assert document.load(path).id == made.id


def test_classes_are_measured_alone_one_by_one(calibrate):
    made = calibrate({0, 1, 9}).measured
    assert [c.pcpus for c in made.cpu_classes] == [{0, 1}, {9}]
    assert made.coefficient(9) == pytest.approx(0.5)
    assert made.slowest(made.pcpus) == pytest.approx(0.5)


def test_a_single_pcpu_is_busy_when_it_is_alone(calibrate):
    made = calibrate({0}, alone=(110.0, 109.5, 110.5)).measured
    (cpu_class,) = made.cpu_classes
    assert cpu_class.alone == cpu_class.busy
    assert cpu_class.busy.coefficient == 1.0


def change_benchmark(yardstick, **changes):
    (known,) = yardstick.reference.benchmarks
    return dataclasses.replace(
        yardstick, reference=yardstick.reference._replace(
            benchmarks=(known._replace(**changes),)))


@pytest.fixture
def yardstick(calibrate, tmp_path):
    made = calibrate({0, 1}, reference_name='gold').measured
    path = str(tmp_path / 'reference.yaml')
    document.store(made, path)
    return reference.load(path)


def test_against_a_reference(calibrate, yardstick, tmp_path):
    made = calibrate({0, 1}, alone=(66.0,), busy=(60.0,), against=yardstick)
    assert made.measured.reference == yardstick.reference
    assert made.measured.coefficient(0) == pytest.approx(0.6)
    assert made.warnings == ()
    # A third host may be measured against what the second one hands on.
    path = str(tmp_path / 'second.yaml')
    document.store(made.measured, path)
    assert reference.load(path) == yardstick


def test_rounds_are_the_references_work(calibrate, yardstick):
    """Each host's rounds are as much work as the reference's were."""
    (known,) = yardstick.reference.benchmarks
    assert known.round_events == 120
    other = change_benchmark(yardstick, round_events=77)
    opened = []
    calibrate({0, 1}, against=other, opened=opened)
    assert [one.round_events for one in opened] == [77]


def test_uncertainty_of_the_reference_adds_to_ours(calibrate, yardstick):
    certain = calibrate({0, 1}, against=yardstick).measured
    vague = change_benchmark(yardstick, half_width=0.03)
    result = calibrate({0, 1}, against=vague, widest_interval=0.07)
    assert certain.cpu_classes[0].busy.interval_width == pytest.approx(0)
    assert result.measured.cpu_classes[0].busy.interval_width == \
        pytest.approx(0.06)
    assert result.warnings == (
        'the interval of pCPU 0-1 is 6.0% wide, more than 2.0%. Most of it is '
        'the uncertainty of the reference, gold: measure that one better',)


WILD = (80.0, 100.0, 120.0, 90.0)


def test_wild_scores_are_reported_as_they_are(calibrate):
    """Where that is asked for."""
    result = calibrate({0, 1}, busy=WILD, widest_interval=10)
    (cpu_class,) = result.measured.cpu_classes
    assert len(cpu_class.busy.scores[0].samples) >= 24
    assert cpu_class.busy.interval_width > 0.05
    (warning,) = [one for one in result.warnings if 'wide' in one]
    assert 'wide, more than 2.0%. Most of it is by integer: its 2' in warning
    assert 'rounds scatter by 1' in warning
    assert 'quieter host, or with more --rounds and --max-seconds' in warning


def test_wild_scores_are_refused(calibrate):
    with pytest.raises(
            measure.WideIntervalError,
            match='interval of pCPU 0-1 is .* wide, more than 5.0%. .*'
            'or accept a wider interval by --widest-interval') as caught:
        calibrate({0, 1}, busy=WILD)
    # With its rounds, to look at.
    (cpu_class,) = caught.value.profile.cpu_classes
    assert 120.0 in cpu_class.busy.scores[0].samples


def test_the_kind_of_work_that_makes_it_wide_is_named(calibrate):
    """By its weight; what is only reported makes nothing wide."""
    result = calibrate(
        {0}, weights={'integer': 5.0, 'float': 1.0, 'memory': 0.0},
        alone=(99.0, 101.0, 97.0, 103.0), widest_interval=10,
        effort=Effort(12, max_interval=0.001))
    assert 'Most of it is by integer: ' in result.warnings[-1]


def drifting(rounds):
    """Scores that fall by a fifth."""
    return tuple(100 - 20 * place / rounds for place in range(rounds))


def test_drift_is_seen_and_said(calibrate):
    with pytest.raises(measure.WideIntervalError,
                       match='by integer: its speed drifts, 40 rounds count '
                       r'as [23]\.'):
        calibrate({0}, alone=drifting(40), effort=Effort(40))


def test_pcpus_that_drift_together(calibrate):
    """Two of them are no more certain than one."""
    with pytest.raises(measure.WideIntervalError, match='its speed drifts'):
        calibrate({0, 1}, busy=drifting(40), effort=Effort(40))


def test_an_interval_that_is_narrow_by_chance_is_no_end(calibrate):
    """Of eight rounds it is; of the first six it was not."""
    scores = (100.0, 102.0, 98.0, 102.0, 98.0, 100.0, 100.0, 100.0)
    assert estimate.estimate(scores).width < 0.035
    assert estimate.estimate(scores[:6]).width > 0.035
    made = calibrate({0}, alone=scores,
                     effort=Effort(40, max_interval=0.035)).measured
    (score,) = made.cpu_classes[0].busy.scores
    assert 8 < len(score.samples) < 40


def test_what_was_measured_elsewhere(calibrate, yardstick):
    other = dataclasses.replace(yardstick, measured_in='guest')
    with pytest.raises(CalibrationError,
                       match='measure this host likewise: --in-guest'):
        calibrate({0, 1}, against=other)


def test_another_build_of_the_benchmark(calibrate, yardstick):
    other = change_benchmark(yardstick, program_sha256='0' * 64)
    warnings = calibrate({0, 1}, against=other).warnings
    assert any('another build' in warning for warning in warnings)


@pytest.fixture
def alike(monkeypatch):
    """9 looks as 0 and 1 do, and is half as fast."""
    monkeypatch.setattr(host_cpus, 'classes',
                        lambda pcpus, sysroot: (frozenset(pcpus),))


def test_equal_pcpus_with_unequal_scores(calibrate, alike):
    opened = []
    result = calibrate({0, 1, 9}, busy=(99.7, 100.0, 100.1),
                       weights={'integer': 1.0, 'float': 2.0, 'memory': 0.0},
                       opened=opened)
    made = result.measured
    assert [c.pcpus for c in made.cpu_classes] == [{0, 1}, {9}]
    assert made.coefficient(0) == pytest.approx(1.0)
    assert made.coefficient(9) == pytest.approx(0.5, rel=0.01)
    # What was not measured alone before is, then.
    assert [one.alone.coefficient for one in made.cpu_classes] == \
        pytest.approx([1.1, 0.55], rel=0.01)
    assert [one.measured for one in opened] == (
        [[{0}, {0, 1, 9}]] * 3 + [[{9}]] * 3)
    assert [warning for warning in result.warnings if 'look equal' in warning
            ] == ['pCPUs 0-1,9 look equal and are not, by more than 10% '
                  'beyond what chance leaves open: they are 2 classes, 0-1 '
                  'and 9']
    assert made.provenance['classes_by_topology'] == '1'
    assert document.loads(document.dumps(made)) == made


# One round of five at another speed.
TWO_SPEEDS = (99.7, 100.0, 100.1, 99.9, 140.0)


def test_two_speeds_are_refused(calibrate):
    with pytest.raises(
            measure.TwoModesError, match='integer, busy on pCPU 0-1: '
            r'(1[5-9]|2\d)% of the rounds ran 1.40 times faster') as caught:
        calibrate({0, 1}, busy=TWO_SPEEDS)
    # With its rounds, to look at.
    (cpu_class,) = caught.value.profile.cpu_classes
    assert 140.0 in cpu_class.busy.scores[0].samples


def test_two_speeds_of_a_moment_are_measured_again(calibrate):
    """Other work took turns with the first measurement, and then ended."""
    opened = []
    result = calibrate({0, 1}, busy_at_first=TWO_SPEEDS, opened=opened)
    assert [one.measured for one in opened] == [[{0}, {0, 1}, {0, 1}]]
    (cpu_class,) = result.measured.cpu_classes
    assert 140.0 not in cpu_class.busy.scores[0].samples
    (warning,) = result.warnings
    assert 'measured again' in warning
    assert 'integer, busy on pCPU 0-1: ' in warning


def test_two_speeds_are_measured_again_once(calibrate):
    """In each of two benchmarks they are no moment's."""
    with pytest.raises(measure.TwoModesError, match='float, busy on pCPU 0-1'):
        calibrate({0, 1}, busy_at_first=TWO_SPEEDS,
                  weights={'integer': 1.0, 'float': 1.0})


def test_more_rounds_tell_two_speeds_from_a_disturbance(calibrate):
    """In the least number of rounds there was one that was far off."""
    quiet = (99.9, 100.0, 100.1)
    once = calibrate({0}, alone=(*quiet, 140.0, *quiet * 9), effort=Effort(40))
    (score,) = once.measured.cpu_classes[0].busy.scores
    assert score.outliers == 1
    assert 14 < len(score.samples) < 24
    with pytest.raises(measure.TwoModesError):
        calibrate({0}, alone=(*quiet, 140.0, *quiet), effort=Effort(40))


def test_two_speeds_of_what_is_only_reported(calibrate):
    result = calibrate({0, 1}, weights={'integer': 1.0, 'memory': 0.0},
                       busy_by_name={'memory': (100.0, 140.0, 140.0)})
    assert result.measured.coefficient(0) == 1
    (warning,) = [one for one in result.warnings if 'two speeds' in one]
    assert warning.startswith(
        'rounds had two speeds: memory, busy on pCPU 0-1: '
        '25% of the rounds ran 1.40 times slower')


def test_two_speeds_that_hardly_move_the_mean(calibrate):
    """A seventh of the rounds, 6 % slower."""
    result = calibrate({0, 1}, busy=(*(99.7, 100.0, 100.1) * 2, 94.0),
                       effort=Effort(40))
    assert result.measured.coefficient(0) == pytest.approx(1, abs=0.01)
    assert any('two speeds' in warning for warning in result.warnings)


def test_two_speeds_of_two_pcpus(calibrate, alike):
    """They are no modes of one measurement, and tolerated or two classes."""
    result = calibrate({0, 1, 9}, class_tolerance=1.5)
    assert not any('two speeds' in warning for warning in result.warnings)


def test_rounds_of_a_class_that_was_divided(calibrate, alike):
    """In guests, of as many events as those before."""
    opened = []

    class Opened(list):
        def append(self, one):
            super().append(one)
            opened.append(one.round_events)
            one.round_events = 555

    calibrate({0, 1, 9}, opened=Opened())
    assert opened == [120, 555]


def test_unequal_scores_that_are_tolerated(calibrate, alike):
    result = calibrate({0, 1, 9}, class_tolerance=1.5)
    assert len(result.measured.cpu_classes) == 1
    assert any('their scores by integer differ by 100%' in warning
               for warning in result.warnings)


def test_unlike_pcpus_with_equal_scores(calibrate, monkeypatch, caplog):
    caplog.set_level('INFO')
    monkeypatch.setattr(host_cpus, 'classes', lambda pcpus, sysroot:
                        (frozenset({0}), frozenset({1}), frozenset({9})))
    made = calibrate({0, 1, 9}).measured
    assert [c.pcpus for c in made.cpu_classes] == [{0}, {1}, {9}]
    assert [line for line in caplog.messages if 'do not look' in line] == [
        'pCPUs 0 and 1 do not look equal, but are equally fast as far as was '
        'measured: they stay two classes']


@settings(deadline=None, max_examples=25)
@given(start_s=st.floats(0.0001, 0.5), event_s=st.floats(0.0001, 2))
def test_native_scores_are_of_events_alone(start_s, event_s):
    """A program that takes so long to start, and so long for each event."""
    class Timed(runner.NativeRunner):
        def _run(self, events):
            return start_s + events * event_s

    timed = Timed(calibration_host.FakeBenchmark('program'))
    with contextlib.closing(timed):
        (scores,) = timed.measure(
            {0}, lambda samples: len(samples[0]) > 3, lambda samples: ''
        ).values()
    assert scores == pytest.approx([1 / event_s] * 4)


def test_the_rounds_of_an_interrupted_reference(calibrate, tmp_path):
    """Alone was measured in rounds of so many events: so is busy."""
    path = str(tmp_path / 'profile.yaml.partial')
    calibrate({0, 1}, record_path=path)
    kept = json.loads(pathlib.Path(path).read_text())
    kept['taken']['integer/alone/0']['round_events'] = 555
    del kept['taken']['integer/busy/0-1']
    pathlib.Path(path).write_text(json.dumps(kept))
    made = calibrate({0, 1}, record_path=path).measured
    assert made.reference.benchmarks[0].round_events == 555


@pytest.mark.parametrize(('max_rounds', 'weight', 'most'), [
    (4, 0.0, 4), (40, 0.0, 8)])
def test_no_more_rounds_than_that(calibrate, max_rounds, weight, most):
    """As many as were asked for; of what is only reported, few; and never
    more of a class than a profile holds.
    """
    effort = Effort(max_rounds, 600, 1e-9)
    # Of one pCPU: where there are two, one may be ahead of the other.
    made = calibrate({0}, weights={'integer': 1 - weight, 'float': weight}
                     if weight == 0 else {'integer': 1.0},
                     alone=(99.0, 100.0, 101.0), effort=effort)
    samples = made.measured.cpu_classes[0].busy.scores[-1].samples
    assert len(samples) == most
    assert document.loads(document.dumps(made.measured)) == made.measured


def test_the_kernel_of_guests(calibrate, tmp_path):
    """It is reported; and the run of another one is not resumed."""
    path = str(tmp_path / 'profile.yaml.partial')
    kernel = test_guest.write_kernel(tmp_path / 'vmlinuz', b'6.1.0-40\0')
    opened = []

    def run():
        opened.clear()
        return calibrate({0, 1}, guest_kernel=kernel, record_path=path,
                         opened=opened).measured

    made = run()
    assert made.provenance['guest_kernel'] == '6.1.0-40'
    assert 'guest_kernel' not in made.fingerprint
    assert len(opened) == 1
    run()
    assert opened == []
    # Of the same name, built anew.
    test_guest.write_kernel(tmp_path / 'vmlinuz', b'6.1.0-40\0#2')
    run()
    assert len(opened) == 1


def test_broken_worker(tmp_path):
    broken = BrokenRunner(
        calibration_host.FakeBenchmark(tmp_path / 'benchmark'))
    with pytest.raises(CalibrationError, match='no such luck'):
        broken.measure({0, 1}, lambda samples: False, lambda samples: '')


def test_time_limit_ends_what_would_not_end(calibrate):
    effort = Effort(max_rounds=1000, max_s=0)
    made = calibrate({0, 1}, busy=(50.0, 80.0, 110.0, 150.0),
                     effort=effort, widest_interval=10).measured
    assert len(made.cpu_classes[0].busy.scores[0].samples) < 100


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=20),
       st.floats(1.0, 1e6), st.floats(0, 0.5))
def test_scores_are_always_valid(ratios, score, half_width):
    known = make_profiles.make_benchmark(score=score)
    samples = [ratio * score for ratio in ratios]
    found = measure.coefficient(estimate.estimate(samples), known, half_width)
    assert 0 < found.interval_low <= found.coefficient <= found.interval_high
