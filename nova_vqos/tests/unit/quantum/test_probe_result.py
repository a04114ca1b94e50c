# SPDX-License-Identifier: Apache-2.0
"""A host offers the classes that its kernel was measured to enforce."""

import dataclasses
import json
import os

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result

Outcome = probe_result.Outcome
SLICES_US = classes.DEFAULT_SLICES_US
#: That the probe chose.
IO_US = 900
TICK_US = 4000
BOOT_ID = '127993a0-3a3d-4f86-a2a7-66d7e1b30a8c'
FREE = ('default', 'neutral', 'spin')


WORKS_US = (*probe_result.SHORT_WORKS_US, *probe_result.LONG_WORKS_US)


def by_work(*waits_us):
    """Waits with each work, the last of those that are given with the rest."""
    return dict(zip(WORKS_US, (*waits_us, *[waits_us[-1]] * len(WORKS_US)),
                    strict=False))


def make_result(*, default_us=3950.0, tick_us=TICK_US, io_wait_us=None,
                **runs_us):
    """A result from how long threads ran at a time, by class.

    :param io_wait_us: how long a thread waited with the slice of io
    """
    return probe_result.ProbeResult(
        kernel='6.18.1', boot_id=BOOT_ID, tick_us=tick_us,
        measured_at='2026-11-22T09:00:00+00:00',
        outcomes={
            'default': Outcome(None, default_us, True),
            **{name: probe_result.judge(SLICES_US[name], run_us, run_us,
                                        default_us, tick_us)
               for name, run_us in runs_us.items()},
            **({} if io_wait_us is None else {
                'io': probe_result.judge_waits(
                    IO_US, dict.fromkeys(WORKS_US, 1500.0),
                    dict.fromkeys(WORKS_US, io_wait_us))[1]})})


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / 'proc/sys/kernel/random'
    directory.mkdir(parents=True)
    (directory / 'boot_id').write_text(f'{BOOT_ID}\n')
    return str(tmp_path)


@pytest.fixture
def path(tmp_path):
    probe_result._warn_once.cache_clear()
    return str(tmp_path / 'run/quantum.json')


class TestVhost:
    """Whether a limit holds workers of vhost."""

    HELD = probe_result.Vhost(0.2, limited=True)
    UNHELD = probe_result.Vhost(0.99, limited=False, reason='it ran on')
    UNKNOWN = probe_result.Vhost(None, limited=None, reason='no vhost')

    @pytest.mark.parametrize('found, limits', [
        (None, True), (HELD, True), (UNKNOWN, True), (UNHELD, False)])
    def test_it_is_kept_for_the_agent(self, path, root, found, limits):
        result = dataclasses.replace(make_result(cache=85_000), vhost=found)
        probe_result.store(result, path)
        loaded = probe_result.load(path, root)
        assert loaded == result
        assert probe_result.limits_vhost(loaded) is limits

    def test_without_a_result_a_limit_is_one(self):
        assert probe_result.limits_vhost(None) is True

    @pytest.mark.parametrize('new, old, expected', [
        (UNHELD, HELD, UNHELD), (HELD, UNHELD, HELD), (UNKNOWN, HELD, HELD),
        (UNKNOWN, UNHELD, UNHELD), (UNKNOWN, None, UNKNOWN),
        (UNKNOWN, UNKNOWN, UNKNOWN), (None, UNHELD, UNHELD)])
    def test_what_was_measured_stays(self, new, old, expected):
        merged = probe_result.merged(*(
            dataclasses.replace(make_result(), vhost=vhost)
            for vhost in (new, old)))
        assert merged.vhost == expected


class TestJudge:
    @pytest.mark.parametrize('slice_us, mean_us, turn_us, tick_us, enforced', [
        (90_000, 30_000, 45_000, TICK_US, True),
        (90_000, 30_000, 64_600, TICK_US, True),
        (90_000, 30_000, 92_000, TICK_US, True),
        (90_000, 30_000, 139_000, TICK_US, True),
        (90_000, 7000, 8000, TICK_US, False),
        # Cut by the kernel itself.
        (90_000, 7000, 24_000, TICK_US, True),
        (90_000, 7000, 22_000, TICK_US, False),
        (90_000, 7000, 140_000, TICK_US, False),
        # The machine stood still during one turn.
        (90_000, 75_300, 139_500, TICK_US, True),
        # Below the tick a slice is exact or not enforced at all.
        (1000, 1100, 1100, TICK_US, True),
        (1000, 1600, 1600, TICK_US, False),
        (1000, 2900, 2900, TICK_US, False),
        (1000, 1990, 1990, 1000, True)])
    def test_slice(self, slice_us, mean_us, turn_us, tick_us, enforced):
        found = probe_result.judge(slice_us, mean_us, turn_us, 3950, tick_us)
        assert found == Outcome(slice_us, mean_us, enforced, found.reason)
        assert enforced or f'{turn_us / 1000:.1f} ms' in found.reason

    def test_like_the_default(self):
        found = probe_result.judge(1000, 3700, 3990, 3950, TICK_US)
        assert found.enforced is False
        assert 'default of 4.0 ms: the tick is 4 ms' in found.reason

    @given(st.integers(100, 100_000), st.floats(1, 1e6), st.floats(1, 1e6),
           st.sampled_from([1000, 4000, 10_000]))
    def test_enforced_or_reason(self, slice_us, turn_us, default_us, tick_us):
        found = probe_result.judge(slice_us, turn_us, turn_us, default_us,
                                   tick_us)
        assert bool(found.reason) is not found.enforced


class TestChoose:
    @pytest.mark.parametrize('waits_us, slice_us', [
        ({300: 70.0}, 300),
        ({300: 3000.0}, 300),
        ({300: 900.0, 1000: 200.0, 2000: 800.0}, 1000),
        # Of equal ones the longest.
        ({300: 200.0, 1000: 270.0, 2000: 300.0}, 1000)])
    def test_the_best(self, waits_us, slice_us):
        assert probe_result.choose_slice_us(
            by_work(1500.0), {one: by_work(wait_us)
                              for one, wait_us in waits_us.items()}
        ) == slice_us

    def test_by_the_mean_of_all_works(self):
        assert probe_result.choose_slice_us(by_work(500.0, 900.0, 1700.0), {
            300: by_work(70.0, 70.0, 800.0),
            1000: by_work(500.0, 700.0, 1200.0)}) == 300


class TestJudgeWaits:
    @pytest.mark.parametrize('default_us, waits_us, work_us, wait_us', [
        ([1500.0], [70.0], 2000, 70.0),
        ([1500.0], [1270.0], 2000, 1270.0),
        ([1500.0], [1280.0], None, 1280.0),
        ([1500.0], [3000.0], None, 3000.0),
        # There is nothing to gain.
        ([0.0], [0.0], None, 0.0),
        # Linux 6.18, with a slice of 500 us.
        ([515.0, 897.0, 1626.0, 2097.0, 2902.0],
         [477.0, 590.0, 1134.0, 1343.0, 2482.0], 2000, 733.67),
        # The same, where the first one was hit by chance.
        ([515.0, 897.0, 1626.0, 2097.0, 2902.0],
         [550.0, 590.0, 1134.0, 1343.0, 2482.0], 2000, 758.0),
        # Linux 7.3, likewise.
        ([581.0, 940.0, 1521.0, 1871.0, 4285.0],
         [65.0, 136.0, 1721.0, 2755.0, 4382.0], 400, 100.5),
        # What comes after a clear loss does not count.
        ([1500.0], [70.0, 9000.0, 70.0], 200, 70.0),
        # Nor does one that is a little longer, without what comes after it.
        ([1000.0], [70.0, 70.0, 1100.0, 9000.0], 400, 70.0)])
    def test_wait(self, default_us, waits_us, work_us, wait_us):
        default_us, waits_us = by_work(*default_us), by_work(*waits_us)
        _kernels_us, found = probe_result.judge_waits(300, default_us,
                                                      waits_us)
        assert found == Outcome(300, None, work_us is not None, found.reason,
                                pytest.approx(wait_us, abs=0.01), work_us)
        assert bool(found.reason) is (work_us is None)

    def test_waits_are_those_of_short_work(self):
        kernels_us, found = probe_result.judge_waits(
            300, by_work(300.0, 600.0, 900.0, 9000.0),
            by_work(30.0, 60.0, 90.0, 8000.0))
        assert (kernels_us, found.wait_us) == (600.0, 60.0)

    @given(st.lists(st.floats(0, 1e6), min_size=5, max_size=5),
           st.lists(st.floats(0, 1e6), min_size=5, max_size=5))
    def test_no_work_takes_longer(self, default_us, waits_us):
        default_us, waits_us = by_work(*default_us), by_work(*waits_us)
        _kernels_us, found = probe_result.judge_waits(300, default_us,
                                                      waits_us)
        assert found.enforced is (found.work_us is not None)
        for work_us in WORKS_US:
            if work_us <= (found.work_us or 0):
                assert (work_us + waits_us[work_us]
                        <= (1.031 if work_us == found.work_us else 1.101)
                        * (work_us + default_us[work_us]))


class TestClasses:
    @pytest.mark.parametrize('result, slices_us, expected', [
        (None, SLICES_US, ()),
        (make_result(io_wait_us=1400.0, cache=70_100.0), SLICES_US,
         ('cache',)),
        (make_result(io_wait_us=300.0, cache=9000.0), SLICES_US, ('io',)),
        (make_result(io_wait_us=300.0, cache=70_100.0), SLICES_US,
         ('io', 'cache')),
        # The one that was measured is given.
        (make_result(io_wait_us=300.0), {**SLICES_US, 'io': IO_US}, ('io',)),
        # Another slice than the measured one.
        (make_result(io_wait_us=300.0), {**SLICES_US, 'io': 300}, ()),
        (make_result(cache=70_100.0), {**SLICES_US, 'cache': 80_000}, ())])
    def test_enforced_classes(self, result, slices_us, expected):
        assert probe_result.enforced_classes(result, slices_us) == (
            *FREE, *expected)

    def test_without_pools(self):
        assert probe_result.enforced_classes(
            None, SLICES_US, has_pools=False) == ('default', 'neutral')

    def test_longest_work(self):
        assert probe_result.longest_work_us(None) == 0
        assert probe_result.longest_work_us(make_result()) == 0
        assert probe_result.longest_work_us(
            make_result(io_wait_us=1400.0)) == 0
        assert probe_result.longest_work_us(
            make_result(io_wait_us=300.0)) == 2000

    @pytest.mark.parametrize('outcome', [
        Outcome(1000, 1100.0, True),
        Outcome(1000, 3900.0, False, 'the same as the default'),
        Outcome(900, None, True, wait_us=300.0)])
    def test_what_older_probes_found_of_io(self, outcome, path, root):
        """By its turns, or not for which work."""
        probe_result.store(dataclasses.replace(
            make_result(), outcomes={'io': outcome}), path)
        result = probe_result.load(path, root)
        assert probe_result.enforced_classes(result, SLICES_US) == FREE
        new = dataclasses.replace(make_result(), outcomes={
            'io': Outcome(None, None, None, 'not measured: busy')})
        assert probe_result.merged(new, result) == new

    def test_the_slices(self):
        result = make_result(io_wait_us=300.0, cache=70_100.0)
        assert probe_result.enforced_slices_us(result, SLICES_US) == {
            'io': IO_US, 'cache': 90_000}

    @pytest.mark.parametrize('change', [
        {'enforced': False}, {'enforced': None}, {'slice_us': None}])
    def test_class_that_is_not_enforced(self, change):
        result = make_result(cache=70_100.0)
        result = dataclasses.replace(result, outcomes={
            'cache': dataclasses.replace(result.outcomes['cache'], **change)})
        assert probe_result.enforced_classes(result, SLICES_US) == FREE


class TestMerged:
    UNKNOWN = Outcome(90_000, None, None, 'not measured: busy')
    OLD = make_result(cache=70_100.0)

    def test_old_outcomes_replace_missing_ones(self):
        new = dataclasses.replace(self.OLD, measured_at='later', outcomes={
            'default': Outcome(None, None, None, 'why'),
            'cache': self.UNKNOWN})
        assert probe_result.merged(new, self.OLD) == dataclasses.replace(
            self.OLD, measured_at='later')

    def test_one_that_would_have_been_chosen(self):
        old = make_result(io_wait_us=300.0)
        new = dataclasses.replace(old, outcomes={
            'io': Outcome(None, None, None, 'not measured: busy')})
        assert probe_result.merged(new, old).outcomes['io'] == (
            old.outcomes['io'])

    @pytest.mark.parametrize('new, old', [
        # Measured again.
        (make_result(cache=9000.0), OLD),
        # Of another slice.
        (dataclasses.replace(OLD, outcomes={'cache': dataclasses.replace(
            UNKNOWN, slice_us=80_000)}), OLD),
        # Nothing was measured before.
        (dataclasses.replace(OLD, outcomes={'cache': UNKNOWN}), None),
        (dataclasses.replace(OLD, outcomes={'cache': UNKNOWN}),
         make_result())])
    def test_the_new_result_counts(self, new, old):
        assert probe_result.merged(new, old) == new

    @pytest.mark.parametrize('was, now, holds', [
        (('none', 'n'), ('none', 'n'), True),
        (('none', 'n'), ('none', 'y'), False),
        (('none', 'n'), ('full', 'n'), False),
        (('none', 'unknown'), ('none', 'y'), True),
        (('', ''), ('lazy', 'y'), True), (('', 'y'), ('lazy', 'n'), False)])
    def test_a_kernel_that_was_set_otherwise(self, was, now, holds):
        vhost = probe_result.Vhost(0.99, limited=False)
        old, new = (dataclasses.replace(
            self.OLD, preemption=preemption, hrtick=hrtick)
            for preemption, hrtick in (was, now))
        merged = probe_result.merged(
            dataclasses.replace(new, outcomes={'cache': self.UNKNOWN}),
            dataclasses.replace(old, vhost=vhost))
        assert (merged.outcomes['cache'] != self.UNKNOWN) is holds
        assert (merged.preemption, merged.hrtick) == now
        # That does not depend on it.
        assert merged.vhost == vhost

    def test_a_change_is_seen_over_a_probe_that_could_not_look(self):
        result = dataclasses.replace(self.OLD, preemption='none', hrtick='n')
        for preemption, hrtick in (('unknown', 'unknown'), ('none', 'y')):
            result = probe_result.merged(dataclasses.replace(
                self.OLD, preemption=preemption, hrtick=hrtick,
                outcomes={'cache': self.UNKNOWN}), result)
        assert result.outcomes['cache'] == self.UNKNOWN


class TestFile:
    def test_roundtrip(self, path, root):
        result = make_result(io_wait_us=1400.0, cache=70_100.0)
        result = dataclasses.replace(result, outcomes={
            **result.outcomes, 'spin': Outcome(1000, None, None, 'why')},
            preemption='lazy', hrtick='n')
        probe_result.store(result, path)
        assert probe_result.load(path, root) == result
        assert os.stat(path).st_mode & 0o777 == 0o644

    def test_no_file(self, path, root, caplog):
        assert probe_result.load(path, root) is None
        assert caplog.records == []

    def test_another_boot(self, path, root):
        probe_result.store(dataclasses.replace(
            make_result(cache=70_100.0), boot_id='other'), path)
        assert probe_result.load(path, root) is None

    @pytest.mark.parametrize('change, text', [
        ({'schema': 2}, 'schema'),
        ({'schema': '1'}, 'schema'),
        ({'kernel': ''}, 'kernel'),
        ({'boot_id': 7}, 'boot_id'),
        ({'tick_us': 0}, 'tick_us'),
        ({'tick_us': float('nan')}, 'tick_us'),
        ({'measured_at': 'x' * 300}, 'measured_at'),
        ({'outcomes': []}, 'outcomes'),
        ({'outcomes': {'cache': 5}}, 'cache'),
        ({'outcomes': {'cache': {'slice_us': 99}}}, 'slice_us'),
        ({'outcomes': {'cache': {'mean_run_us': -1}}}, 'mean_run_us'),
        ({'outcomes': {'cache': {'enforced': 1}}}, 'enforced'),
        ({'outcomes': {'cache': {'reason': 'x' * 300}}}, 'reason'),
        ({'outcomes': {str(i): {} for i in range(65)}}, 'outcomes'),
    ])
    def test_bad_fields_are_logged(self, path, root, caplog, change, text):
        probe_result.store(make_result(cache=70_100.0), path)
        with open(path, encoding='ascii') as file:
            document = json.load(file)
        document.update(change)
        with open(path, 'w', encoding='ascii') as file:
            json.dump(document, file)
        for _ in range(2):
            assert probe_result.load(path, root) is None
        record, = caplog.records
        assert text in record.getMessage()

    @pytest.mark.parametrize('content', [
        b'', b'{', b'[]', b'\xff', b'[' * 100_000])
    def test_no_document(self, path, root, caplog, content):
        os.mkdir(os.path.dirname(path))
        with open(path, 'wb') as file:
            file.write(content)
        assert probe_result.load(path, root) is None
        assert len(caplog.records) == 1

    def test_a_file_that_others_may_write_is_refused(self, path, root):
        probe_result.store(make_result(cache=70_100.0), path)
        os.chmod(path, 0o666)
        assert probe_result.load(path, root) is None

    def test_a_host_without_a_boot_id(self, path, tmp_path):
        probe_result.store(make_result(cache=70_100.0), path)
        assert probe_result.load(path, str(tmp_path / 'nowhere')) is None
