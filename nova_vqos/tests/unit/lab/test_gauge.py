# SPDX-License-Identifier: Apache-2.0
"""CPU time of a vCPU against its cap, and what the story makes of it."""

import json
import types

import numpy as np
import pytest

from nova_vqos_lab import gauge
from nova_vqos_lab import meter
from nova_vqos_lab import process
from nova_vqos_lab import results

MS = 10**6
CAP = (30_000, 100_000)


def used(*, share=0.3, setup_ms=0, first_ms=0, length_s=21):
    """A vCPU that is set up, waits half a second, and then uses its quota.

    :param setup_ms: CPU time before it runs, at once
    :param first_ms: what it has more of in the first period
    """
    at_ms = np.arange(0, length_s * 1000, 2)
    ran_ms = at_ms - 500
    cpu_ms = (ran_ms // 100 * share * 100
              + np.minimum(ran_ms % 100, share * 100))
    cpu_ms += np.minimum(ran_ms, first_ms)
    cpu_ms[ran_ms < 0] = 0
    cpu_ms[at_ms >= 100] += setup_ms
    return meter.Series(at_ms * MS + 10**15, (cpu_ms * MS).astype(np.int64),
                        np.zeros(len(at_ms), dtype=np.int64))


def test_a_cap_that_holds():
    found = gauge.cpu_time(used(setup_ms=3), 'fast', 'boot', CAP)
    assert (found.host, found.moment, found.share) == ('fast', 'boot', 0.3)
    assert found.first_second == pytest.approx(0, abs=0.01)
    assert len(found.windows) == 2
    assert found.windows == pytest.approx((0, 0), abs=0.001)


def test_a_full_bucket_at_first():
    found = gauge.cpu_time(used(first_ms=30), 'fast', 'boot', CAP)
    assert found.first_second == pytest.approx(0.1, abs=0.02)
    assert found.windows == pytest.approx((0.01, 0), abs=0.002)


def test_a_wrong_cap():
    found = gauge.cpu_time(used(share=0.6), 'slow', 'migrated', CAP)
    assert found.windows == pytest.approx((1.0, 1.0), abs=0.01)


def test_too_short():
    with pytest.raises(ValueError, match='1 windows'):
        gauge.cpu_time(used(length_s=15), 'fast', 'boot', CAP)


def test_one_that_never_ran():
    with pytest.raises(process.LabError, match='not seen to run'):
        gauge.cpu_time(used(share=0.0), 'fast', 'boot', CAP)


@pytest.mark.parametrize(('guest', 'passed'), [
    ({}, True), ({'first_ms': 30}, True), ({'share': 0.25}, None),
    ({'share': 0.2}, False), ({'share': 0.6}, False)])
def test_a_coarse_look(monkeypatch, guest, passed):
    """What the machine withholds decides nothing; a wrong cap is seen."""
    monkeypatch.setattr(gauge.time, 'sleep', lambda _: None)
    found = results.Results()
    gauge.Gauge(None, {}, {}, found).check_coarsely(
        types.SimpleNamespace(series=lambda: used(**guest)), 'fast', CAP)
    (check,) = found.checks
    assert (check.name, check.passed) == ('coarse-cpu-time-on-fast', passed)


@pytest.fixture
def found():
    made = results.Results()
    made.measurements.append(results.Measurement(
        'units', 'fast', 'boot', 'sysbench', 60.0, 61.0, 55.0, 0.9, 0.02))
    made.measurements.append(results.Measurement(
        'units', 'fast', 'noise', 'CPU time', 60.0, 60.0, 60.0, 1.0))
    made.cpu_times.append(results.CpuTime('fast', 'boot', 0.27, 0.1,
                                          (0.01, 0.0)))
    return made


@pytest.mark.parametrize(('verdicts', 'passed'), [
    ((), False), ((True,), True), ((True, None), True),
    ((True, None, False), False)])
def test_what_is_undecided_did_not_fail(found, verdicts, passed):
    for number, one in enumerate(verdicts):
        found.check(str(number), one, '')
    assert found.passed is passed


def test_tables_and_json(found, tmp_path):
    for name, one in ('a', True), ('b', None), ('c', False):
        found.check(name, one, 'seen')
    shown = found.table()
    assert '+1.7% \N{PLUS-MINUS SIGN} 2.0%' in shown
    assert shown.endswith('3 checks: 1 yes, 1 NO, 1 undecided')
    path = tmp_path / 'found.json'
    found.write(str(path))
    written = json.loads(path.read_text())
    assert [one['passed'] for one in written['checks']] == [True, None, False]
    assert written['cpu_times'][0]['windows'] == [0.01, 0.0]
    assert written['measurements'][1]['uncertainty'] is None
