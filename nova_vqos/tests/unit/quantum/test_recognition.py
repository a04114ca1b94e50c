# SPDX-License-Identifier: Apache-2.0
"""Recognition, as the research specifies it, and our additions."""

import dataclasses
import random

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

Kind = model.Kind
KEY = 'server', 0
LIMITS = recognition.Limits(io_requests=100, spin_events=200,
                            references=1000, misses=500)


def sample(io=0.0, spin=0.0, references=0.0, misses=0.0):
    return recognition.Sample(io, spin, references, misses)


def busy(**rates):
    """Of a vCPU that never rests."""
    return dataclasses.replace(sample(**rates), ran=1.0, ready=1.0)


BUSY = busy()
# What is wholly of one kind, as far as it goes.
IO = sample(io=100, references=1000, misses=250)
SPIN = sample(spin=200, references=1000, misses=250)
CACHE = sample(references=1000)
NEUTRAL = sample()
POLLUTER = sample(references=1000, misses=500)
UNKNOWN = recognition.Sample()
EACH = {Kind.IO: IO, Kind.SPIN: SPIN, Kind.CACHE: CACHE,
        Kind.NEUTRAL: NEUTRAL, Kind.POLLUTER: POLLUTER}

rates = st.floats(0, 1e12)
known_samples = st.builds(recognition.Sample, rates, rates, rates, rates)
maybe = st.none() | rates
samples = st.builds(recognition.Sample, maybe, maybe, maybe, maybe)


def fed(*samples, recognizer=None):
    recognizer = recognizer or recognition.Recognizer(LIMITS)
    for one in samples:
        recognizer.add(KEY, one)
    return recognizer


def kinds(samples):
    """The kind after each sample."""
    recognizer = recognition.Recognizer(LIMITS)
    return [fed(one, recognizer=recognizer).kind(KEY) for one in samples]


@pytest.mark.parametrize('given, kind, cursor', [
    (sample(io=25), Kind.IO, 25), (sample(io=100), Kind.IO, 100),
    (sample(io=1e9), Kind.IO, 100), (sample(spin=50), Kind.SPIN, 25),
    (sample(references=250), Kind.NEUTRAL, 75),
    (sample(references=1000), Kind.NEUTRAL, 0),
    (sample(references=5000), Kind.NEUTRAL, 0),
    # min(100 - 75, 90)
    (sample(references=250, misses=50), Kind.CACHE, 25),
    # min(100 - 0, 90)
    (sample(references=1000, misses=50), Kind.CACHE, 90),
    (sample(references=1000, misses=50), Kind.POLLUTER, 10),
    (sample(references=1000, misses=500), Kind.CACHE, 0),
    (sample(references=250, misses=500), Kind.POLLUTER, 25)])
def test_cursors_are_those_of_the_research(given, kind, cursor):
    assert recognition.cursors(given, LIMITS)[kind] == pytest.approx(cursor)


@hypothesis.given(known_samples)
def test_cursors_are_parts_of_a_hundred(given):
    found = recognition.cursors(given, LIMITS)
    assert all(0 <= cursor <= 100 for cursor in found.values())
    assert found[Kind.CACHE] + found[Kind.NEUTRAL] + found[
        Kind.POLLUTER] == pytest.approx(100)


@hypothesis.given(samples)
def test_a_cursor_is_known_where_its_source_is(given):
    found = recognition.cursors(given, LIMITS)
    assert (found[Kind.IO] is None) == (given.io_requests is None)
    assert (found[Kind.SPIN] is None) == (given.spin_events is None)
    cache = given.references is not None and given.misses is not None
    for kind in (Kind.CACHE, Kind.NEUTRAL, Kind.POLLUTER):
        assert (found[kind] is not None) == cache


def test_limits_are_those_of_a_period_of_30_ms():
    limits = recognition.Limits()
    assert [round(limit * 0.030) for limit in (
        limits.io_requests, limits.spin_events, limits.references,
        limits.misses)] == [30, 10, 100_000, 150_000]


@pytest.mark.parametrize('vcpus', [1, 2, 4])
@pytest.mark.parametrize('kind, references, misses', [
    # Per second: what walks a list, of nothing that the last-level cache
    # sees, of half of 8 MB that was lost 30 times, and of what does not fit.
    (Kind.NEUTRAL, 1e4, 1e3), (Kind.CACHE, 1e8, 0), (Kind.CACHE, 1e8, 2.2e6),
    (Kind.POLLUTER, 1.25e7, 1.25e7)])
def test_default_limits_separate_walks(kind, references, misses, vcpus):
    """Also where several share a pCPU, and each gets its part."""
    given = sample(references=references / vcpus, misses=misses / vcpus)
    means = recognition.cursors(given, recognition.Limits())
    assert recognition.highest_kind(means) is kind
    assert means[kind] > 50


@pytest.mark.parametrize('kind', EACH)
def test_each_kind_is_recognised_after_a_window(kind):
    assert kinds([EACH[kind]] * 4) == [None, None, None, kind]


def test_the_kind_is_that_of_the_highest_mean():
    # Means: io 45, cache 55 where it does not do I/O.
    assert kinds([IO, CACHE, CACHE, sample(io=80, references=1000)])[
        -1] is Kind.CACHE
    assert kinds([IO, IO, IO, CACHE])[-1] is Kind.IO


@hypothesis.given(st.lists(known_samples, min_size=4, max_size=4))
def test_a_window_of_all_sources_is_decided_by_its_highest_mean(window):
    found = [recognition.cursors(one, LIMITS) for one in window]
    means = {kind: sum(one[kind] for one in found) / 4 for kind in EACH}
    recognizer = fed(*window)
    assert means[recognizer.kind(KEY)] == max(means.values())
    assert recognizer.means(KEY) == means


def test_of_equal_cursors_the_first_in_order_counts():
    both = sample(io=100, spin=200)
    assert fed(*[both] * 4).kind(KEY) is Kind.IO
    assert fed(*[sample(spin=200)] * 4).kind(KEY) is Kind.SPIN


class TestMissingSources:
    @pytest.mark.parametrize('kind, missing', [
        (Kind.SPIN, 'spin_events'), (Kind.IO, 'io_requests')])
    @hypothesis.given(given=st.lists(known_samples, min_size=4, max_size=12))
    def test_a_missing_counter_gives_no_kind(self, kind, missing, given):
        blind = [recognition.Sample(**{
            name: None if name == missing else getattr(one, name)
            for name in ('io_requests', 'spin_events', 'references',
                         'misses')}) for one in given]
        assert kind not in kinds(blind)

    @hypothesis.given(st.lists(known_samples, min_size=4, max_size=12))
    def test_missing_cache_events_give_no_cache_kinds(self, given):
        blind = [recognition.Sample(one.io_requests, one.spin_events)
                 for one in given]
        assert set(kinds(blind)) <= {None, Kind.IO, Kind.SPIN}

    @pytest.mark.parametrize('io, kind', [(50, None), (51, Kind.IO)])
    def test_what_is_evident_is_over_the_half(self, io, kind):
        only = recognition.Sample(io_requests=io)
        assert fed(*[only] * 4).kind(KEY) is kind

    def test_a_source_that_fails_for_a_moment_is_not_missing(self):
        found = kinds([IO] * 6 + [UNKNOWN, UNKNOWN] + [IO] * 6)
        assert set(found[3:]) == {Kind.IO}

    def test_a_source_that_stays_away_takes_its_kinds_with_it(self):
        found = kinds([CACHE] * 4 + [UNKNOWN] * 7)
        assert found[3:] == [Kind.CACHE] * 6 + [None, None]

    def test_nothing_begins_before_anything_is_known(self):
        assert kinds([UNKNOWN] * 9 + [CACHE] * 4)[-4:] == [
            None, None, None, Kind.CACHE]


class TestHysteresis:
    def test_another_kind_counts_after_four_samples(self):
        found = kinds([CACHE] * 4 + [NEUTRAL] * 7)
        # The mean of the other is ahead after three, and for four in a row.
        assert found[3:] == [Kind.CACHE] * 6 + [Kind.NEUTRAL] * 2

    @pytest.mark.parametrize('turn', [1, 2, 3, 4])
    def test_a_load_that_takes_turns_does_not_flap(self, turn):
        found = kinds(([CACHE] * turn + [NEUTRAL] * turn) * 20)
        assert len(set(found[3:])) == 1

    @hypothesis.given(st.lists(samples, max_size=60))
    def test_a_kind_stays_for_four_samples(self, given):
        found = kinds(given)
        changes = [number for number, (before, after)
                   in enumerate(zip(found, found[1:], strict=False))
                   if before is not after and before is not None]
        assert all(later - earlier >= 4 for earlier, later
                   in zip(changes, changes[1:], strict=False))

    def test_a_small_lead_does_not_count(self):
        near = sample(references=1000, misses=270)
        assert kinds([CACHE] * 4 + [near] * 20)[-1] is Kind.CACHE
        far = sample(references=1000, misses=280)
        assert kinds([CACHE] * 4 + [far] * 20)[-1] is Kind.POLLUTER

    def test_one_at_the_half_does_not_come_and_go(self):
        above, below = (recognition.Sample(io_requests=io) for io in (60, 45))
        assert set(kinds([above] * 4 + [below, below, below, below, below,
                                        above] * 5)[3:]) == {Kind.IO}
        gone = recognition.Sample(io_requests=35)
        assert kinds([above] * 4 + [gone] * 8)[-1] is None


class TestCpuTime:
    """What a cap leaves of a vCPU is of the same kind."""

    @hypothesis.given(known_samples, st.floats(0.1, 1))
    def test_cursors_do_not_depend_on_it(self, given, ran):
        capped = recognition.Sample(*(
            getattr(given, field.name) * ran
            for field in dataclasses.fields(given)[:4]), ran=ran)
        whole = recognition.cursors(given, LIMITS)
        for kind, cursor in recognition.cursors(capped, LIMITS).items():
            assert cursor == pytest.approx(whole[kind], rel=1e-6, abs=1e-6)

    def test_one_that_hardly_runs_has_no_kind(self):
        idle = dataclasses.replace(POLLUTER, ran=0.005)
        assert set(kinds([idle] * 9)) == {None}
        assert kinds([CACHE] * 4 + [idle] * 8)[-1] is None

    def test_what_comes_from_outside_makes_no_idle_server_busy(self):
        idle = recognition.Sample(io_requests=1, spin_events=1, ran=0.02,
                                  ready=0.02)
        found = recognition.cursors(idle, LIMITS)
        assert found[Kind.IO] == pytest.approx(10)
        assert found[Kind.SPIN] == pytest.approx(5)
        assert fed(*[idle] * 9).kind(KEY) is None

    def test_one_that_wakes_up_is_recognised_as_one_that_boots(self):
        idle = dataclasses.replace(NEUTRAL, ran=0.001, ready=0.001)
        assert kinds([idle] * 20 + [CACHE] * 4)[-1] is Kind.CACHE


class TestSensitive:
    @pytest.mark.parametrize('given, sensitive', [
        (BUSY, False), (busy(io=2), False), (busy(io=6), True),
        (busy(spin=4), False), (busy(spin=12), True),
        (dataclasses.replace(NEUTRAL, ready=0.96), False),
        (dataclasses.replace(NEUTRAL, ready=0.85), True),
        # Also where it never waits.
        (dataclasses.replace(NEUTRAL, ran=0.2, ready=0.2), True),
        (dataclasses.replace(NEUTRAL, ran=0.2, ready=1.0), False),
        # Nobody knows whether it rests, or does I/O.
        (NEUTRAL, True),
        (dataclasses.replace(BUSY, io_requests=None), True),
        # What waits for another is counted on few machines.
        (dataclasses.replace(BUSY, spin_events=None), False)])
    def test_what_rests_or_waits(self, given, sensitive):
        recognizer = fed(*[given] * 7)
        assert recognizer.kind(KEY) is Kind.NEUTRAL
        assert recognizer.is_sensitive(KEY) is sensitive

    def test_one_at_the_limit_does_not_come_and_go(self):
        chance = random.Random(4)
        recognizer = fed(*[BUSY] * 7)
        seen = [fed(dataclasses.replace(
            NEUTRAL, ready=1 - max(0.0, chance.gauss(0.1, 0.02))),
            recognizer=recognizer).is_sensitive(KEY) for _ in range(2000)]
        assert sum(one is not other for one, other
                   in zip(seen, seen[1:], strict=False)) <= 1

    def test_nobody_is_known_to_be_busy_at_first(self):
        assert recognition.Recognizer(LIMITS).is_sensitive(KEY)
        assert fed(*[BUSY] * 6).is_sensitive(KEY)

    def test_it_comes_and_goes_as_slowly_as_kinds(self):
        light = busy(io=20)
        recognizer = fed(*[BUSY] * 7)
        # The mean of four is above 5 after two of them.
        assert not fed(*[light] * 4, recognizer=recognizer).is_sensitive(KEY)
        assert fed(light, recognizer=recognizer).is_sensitive(KEY)


class TestRestless:
    @pytest.mark.parametrize('turn', [5, 6, 8, 10])
    def test_one_that_changes_all_the_time_has_no_kind(self, turn):
        found = kinds(([CACHE] * turn + [NEUTRAL] * turn) * 20)
        assert set(found[3 * turn:]) == {None}

    @pytest.mark.parametrize('turn', [12, 20])
    def test_one_that_seldom_does_has_one(self, turn):
        found = kinds(([CACHE] * turn + [NEUTRAL] * turn) * 10)
        assert set(found[3:]) == {Kind.CACHE, Kind.NEUTRAL}

    def test_one_that_keeps_a_kind_has_it_again(self):
        found = kinds(([CACHE] * 6 + [NEUTRAL] * 6) * 4 + [CACHE] * 20)
        assert found[-21] is None and found[-1] is Kind.CACHE

    def test_one_that_looks_like_others_has_none(self):
        """Also where no other kind is confirmed."""
        turns = [CACHE] * 4 + [IO] * 4 + [NEUTRAL] * 4 + [SPIN] * 4
        found = kinds([CACHE] * 20 + turns * 10)
        assert found[19] is Kind.CACHE
        assert set(found[60:]) == {None}

    def test_it_evicts_all_the_same(self):
        recognizer = fed(*([CACHE] * 6 + [POLLUTER] * 6) * 4)
        assert recognizer.kind(KEY) is None
        polluting = set()
        for one in [CACHE] * 6 + [POLLUTER] * 6:
            recognizer.add(KEY, one)
            polluting.add(recognizer.pollutes(KEY))
        assert polluting == {True}


class TestPollutes:
    @pytest.mark.parametrize('given, pollutes', [
        (POLLUTER, True), (CACHE, False), (NEUTRAL, False),
        (recognition.Sample(io_requests=100), False), (UNKNOWN, False)])
    def test_one_kind(self, given, pollutes):
        assert fed(*[given] * 4).pollutes(KEY) is pollutes

    @pytest.mark.parametrize('kind', [Kind.IO, Kind.SPIN])
    @pytest.mark.parametrize('misses, pollutes', [(250, False), (255, True)])
    def test_io_and_spin_with_many_misses(self, kind, misses, pollutes):
        recognizer = fed(*[dataclasses.replace(EACH[kind], misses=misses)] * 4)
        assert recognizer.kind(KEY) is kind
        assert recognizer.pollutes(KEY) is pollutes

    def test_it_comes_and_goes_as_slowly_as_kinds(self):
        clean, dirty, between = (
            sample(io=100, references=1000, misses=misses)
            for misses in (0, 400, 230))
        recognizer = fed(*[clean] * 4)
        assert not fed(*[dirty] * 5, recognizer=recognizer).pollutes(KEY)
        assert fed(*[dirty] * 2, recognizer=recognizer).pollutes(KEY)
        # A polluter's cursor of 46 is not over the half, but just below.
        assert fed(*[between] * 20, recognizer=recognizer).pollutes(KEY)
        assert not fed(*[clean] * 8, recognizer=recognizer).pollutes(KEY)


class TestTimeToRecognise:
    """With a reading each 5 s."""

    @pytest.fixture
    def add(self):
        """Adds samples; returns the time to recognise after each."""
        recognizer = recognition.Recognizer(LIMITS)

        def add(*samples):
            found = []
            for one in samples:
                recognizer.add(KEY, one, elapsed_s=5.0)
                found.append(recognizer.recognised_after_s(KEY))
            return found

        return add

    def test_from_the_first_sample_on(self, add):
        assert add(UNKNOWN, *[CACHE] * 6) == [None] * 4 + [20.0] * 3

    @pytest.mark.parametrize('before', [1, 3, 30])
    def test_from_a_change_on(self, add, before):
        add(*[CACHE] * (4 + before))
        found = add(*[IO] * 10)
        readings = found.index(next(one for one in found if one != 20.0)) + 1
        assert 4 < readings < 8
        assert set(found[readings - 1:]) == {5.0 * readings}

    def test_idle_vcpus_have_nothing_to_recognise(self, add):
        idle = dataclasses.replace(IO, ran=0.0)
        # Two samples of four are enough.
        assert add(*[idle] * 50, *[CACHE] * 2) == [None] * 51 + [10.0]

    def test_a_short_rest_stops_no_clock(self, add):
        idle = dataclasses.replace(IO, ran=0.0)
        assert add(CACHE, idle, idle, CACHE)[-1] == 20.0

    def test_a_sample_of_another_kind_is_no_change(self, add):
        add(*[CACHE] * 10, IO, *[CACHE] * 10)
        assert max(add(*[IO] * 10)) < 40

    def test_kinds_that_are_close_are_none_to_recognise(self, add):
        near = sample(io=100, spin=204)
        add(*[sample(io=100, references=1000)] * 4, *[near] * 100)
        assert add(*[CACHE] * 10)[-1] < 40

    def test_the_time_of_one_that_changed_too_often_counts(self, add):
        add(*[CACHE] * 8, *[IO] * 8, *[CACHE] * 8)
        assert add(UNKNOWN) == [None]
        found = add(*[IO] * 30)
        assert found[0] is None
        assert found[-1] > 5 * found.count(None)

    @pytest.mark.parametrize('seed', range(5))
    def test_as_long_as_it_takes_also_where_rates_scatter(self, add, seed):
        chance = random.Random(seed)
        works = [IO, CACHE, SPIN] * 10
        off = []
        for before, work in zip(works, works[1:], strict=False):
            add(*[before] * 20)
            last = add(before)[0]
            found = add(*[dataclasses.replace(work, **{
                name: getattr(work, name) * chance.lognormvariate(0, 0.3)
                for name in ('io_requests', 'spin_events', 'references',
                             'misses')}) for _ in range(30)])
            after_s = next((one for one in found if one != last), None)
            if after_s is not None and None not in found:
                off.append(after_s - 5 * (found.index(after_s) + 1))
        assert len(off) > 5
        # The first sample may look like the kind before.
        assert set(off) <= {0.0, -5.0}
        assert off.count(0.0) > len(off) / 2


class TestRecognizer:
    def test_another_thread_begins_anew(self):
        recognizer = recognition.Recognizer(LIMITS)
        for thread in (7, 7, 7, 7, 8, 8, 8):
            recognizer.add(KEY, CACHE, thread)
        assert recognizer.kind(KEY) is None
        recognizer.add(KEY, CACHE, 8)
        assert recognizer.kind(KEY) is Kind.CACHE

    def test_others_are_dropped(self):
        recognizer = fed(*[CACHE] * 4)
        recognizer.retain([KEY, ('other', 0)])
        assert recognizer.kind(KEY) is Kind.CACHE
        recognizer.retain([])
        assert recognizer.kind(KEY) is None
        assert set(recognizer.means(KEY).values()) == {None}


@pytest.mark.parametrize('given, expected', [
    ([], 'default'), ([Kind.DEFAULT], 'default'),
    ([Kind.DEFAULT, Kind.NEUTRAL], 'default'), ([Kind.NEUTRAL], 'neutral'),
    ([Kind.NEUTRAL, Kind.POLLUTER], 'neutral'),
    ([Kind.IO, Kind.DEFAULT, Kind.DEFAULT], 'io'),
    ([Kind.NEUTRAL, Kind.CACHE], 'cache'),
    ([Kind.IO, Kind.CACHE, Kind.CACHE], 'cache'),
    ([Kind.IO, Kind.CACHE], 'io'), ([Kind.SPIN, Kind.CACHE], 'spin'),
    ([Kind.SPIN, Kind.IO], 'io'), ([Kind.SPIN, Kind.SPIN, Kind.IO], 'spin')])
def test_server_class(given, expected):
    assert recognition.server_class(given) == expected


class TestLimits:
    def test_missing_limits_have_defaults(self):
        default = recognition.Limits()
        assert recognition.limits({}) == default
        assert recognition.limits({'io': '7', 'misses': '999999999999'}) == (
            recognition.Limits(7, default.spin_events, default.references,
                               999_999_999_999))

    @pytest.mark.parametrize('name, value', [
        ('io', '0'), ('io', '-1'), ('io', '1.5'), ('io', ''), ('io', ' 5'),
        ('io', '1_0'), ('io', '٣'), ('io', '1000000000000'), ('net', '5'),
        ('', '5'), ('io', 'x' * 1000)])
    def test_an_invalid_one_is_refused_by_name_and_value(self, name, value):
        with pytest.raises(recognition.LimitInvalid) as caught:
            recognition.limits({name: value})
        assert repr(name) in str(caught.value)
        assert repr(value)[:70] in str(caught.value)
        assert len(str(caught.value)) < 250
