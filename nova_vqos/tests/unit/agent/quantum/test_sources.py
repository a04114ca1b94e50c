# SPDX-License-Identifier: Apache-2.0
"""The sources of recognition, on counters that the tests make up.

Events of the real kernel are counted in tests/host/test_recognition.py.
"""

import errno

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.agent.quantum.sources import base
from nova_vqos.agent.quantum.sources import cache
from nova_vqos.agent.quantum.sources import io
from nova_vqos.agent.quantum.sources import loading
from nova_vqos.agent.quantum.sources import pause
from nova_vqos.agent.quantum.sources import spin
from nova_vqos.hypervisor.linux import perf
from nova_vqos.quantum import recognition

UUID = 'd3b1a8c2-0000-4000-8000-000000000001'
OTHER_UUID = 'd3b1a8c2-0000-4000-8000-000000000002'
THREADS = {UUID: {0: 100, 1: 101}}


def observed(now_s, activities, servers=THREADS):
    return base.Observation(now_s, servers, activities)


class TestRates:
    def test_growth_per_second(self):
        made = base.Rates()
        assert made.update('a', 100, 10) is None
        assert made.update('a', 300, 14) == 50
        assert made.update('a', 300, 15) == 0

    @pytest.mark.parametrize('count, now_s', [
        (99, 14), (200, 10), (200, 9), (200, 311)])
    def test_readings_that_cannot_be_compared(self, count, now_s):
        made = base.Rates()
        made.update('a', 100, 10)
        assert made.update('a', count, now_s) is None
        assert made.update('a', count + 6, now_s + 2) == 3

    def test_others_are_dropped(self):
        made = base.Rates()
        made.update('a', 100, 10)
        made.update('b', 100, 10)
        made.retain(['b'])
        assert made.update('a', 200, 11) is None
        assert made.update('b', 200, 11) == 100

    @hypothesis.given(st.lists(st.tuples(st.integers(0, 2**64),
                                         st.floats(0, 1e9))))
    def test_no_rate_is_negative(self, readings):
        made = base.Rates()
        for count, now_s in readings:
            rate = made.update('a', count, now_s)
            assert rate is None or rate >= 0


class TestIo:
    @pytest.fixture
    def source(self):
        return io.IoSource()

    @staticmethod
    def read(source, now_s, requests, runs=(10, 10), *, run=1,
             servers=THREADS):
        found = recognition.Activity(run, requests, dict(enumerate(runs)), {})
        return {key: sample.io_requests for key, sample in source.read(
            observed(now_s, {UUID: found}, servers)).items()}

    def test_requests_go_to_vcpus_that_were_woken(self, source):
        assert self.read(source, 10, {'vda': 100, 'tap': 0}) == {}
        # 50 and 150 requests per second, 300 and 100 runs.
        found = self.read(source, 12, {'vda': 200, 'tap': 300}, (310, 110))
        assert found == {(UUID, 0): pytest.approx(150),
                         (UUID, 1): pytest.approx(50)}

    @pytest.mark.parametrize('runs', [(10, 10), (20, 20), (5, 5), ()])
    def test_equal_vcpus_get_equal_parts(self, source, runs):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, {'vda': 200}, runs) == {
            (UUID, 0): 50, (UUID, 1): 50}

    def test_a_vcpu_of_unknown_runs_gets_nothing(self, source):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, {'vda': 200}, (20,)) == {
            (UUID, 0): 100, (UUID, 1): 0}

    def test_a_vcpu_that_is_not_observed_gets_nothing(self, source):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, {'vda': 200}, (20, 900),
                         servers={UUID: {0: 100}}) == {(UUID, 0): 100}
        assert self.read(source, 14, {'vda': 400}, servers={UUID: {}}) == {}

    def test_requests_that_are_unknown_once(self, source):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, None) == {}
        assert 'no request counters' in source.available()
        # Requests of both intervals.
        assert self.read(source, 14, {'vda': 400}) == {
            (UUID, 0): 50, (UUID, 1): 50}
        assert source.available() == ''

    def test_devices_come_and_go(self, source):
        self.read(source, 10, {'vda': 0, 'vdb': 5000})
        found = self.read(source, 12, {'vda': 200, 'tap': 70})
        assert sum(found.values()) == 100
        found = self.read(source, 14, {'vda': 200, 'tap': 90})
        assert sum(found.values()) == 10

    def test_a_server_without_devices_does_no_io(self, source):
        assert sum(self.read(source, 10, {}).values()) == 0
        assert self.read(source, 12, {}) == {(UUID, 0): 0, (UUID, 1): 0}

    def test_another_run_begins_anew(self, source):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, {'vda': 9000}, run=2) == {}
        assert sum(self.read(source, 14, {'vda': 9020}, run=2).values()) == 10

    def test_a_missing_server_begins_anew(self, source):
        self.read(source, 10, {'vda': 0})
        source.read(observed(12, {}, {}))
        assert self.read(source, 14, {'vda': 9000}) == {}

    def test_why_it_is_unavailable(self, source):
        assert source.available() == base.NOT_READ
        source.read(observed(10, {}, {}))
        assert source.available() == base.NOT_READ
        source.read(observed(11, {}))
        assert 'no request' in source.available()


class TestSpin:
    @staticmethod
    def read(source, now_s, waits, *, run=1):
        found = recognition.Activity(run, None, {}, waits)
        return {key: sample.spin_events for key, sample in source.read(
            observed(now_s, {UUID: found})).items()}

    def test_waits_are_those_of_each_vcpu(self):
        source = spin.SpinSource()
        assert self.read(source, 10, {0: 100, 1: 0}) == {}
        assert self.read(source, 12, {0: 300, 1: 0}) == {
            (UUID, 0): 100, (UUID, 1): 0}
        assert source.available() == ''

    def test_another_run_begins_anew(self):
        source = spin.SpinSource()
        self.read(source, 10, {0: 100})
        assert self.read(source, 12, {0: 900}, run=2) == {}

    def test_a_hypervisor_that_fails_once(self):
        source = spin.SpinSource()
        self.read(source, 10, {0: 100})
        assert source.read(observed(12, {})) == {}
        assert 'no counters now' in source.available()
        assert self.read(source, 14, {0: 500}) == {(UUID, 0): 100}

    def test_no_counters(self):
        source = spin.SpinSource()
        assert source.available() == base.NOT_READ
        assert self.read(source, 10, {}) == {}
        assert 'libvirt 8.9' in source.available()


class Kernel:
    """Performance events of threads, in place of the kernel's."""

    def __init__(self):
        self.counts = {}
        self.errors = {}
        self.open = []

    def make(self, _events, thread):
        if thread in self.errors:
            raise OSError(self.errors[thread], 'x')
        return Group(self, thread)


class Group:
    def __init__(self, kernel, thread):
        self._kernel = kernel
        self._thread = thread
        kernel.open.append(thread)

    def read(self):
        if self._thread not in self._kernel.counts:
            raise OSError(errno.EIO, 'x')
        return self._kernel.counts[self._thread]

    def close(self):
        self._kernel.open.remove(self._thread)


class TestCache:
    MS_NS = 1_000_000

    @pytest.fixture
    def kernel(self, monkeypatch):
        made = Kernel()
        made.counts = {0: self.counts(0, 0, 0, 0),
                       100: self.counts(50, 50, 1000, 100),
                       101: self.counts(0, 0, 0, 0)}
        monkeypatch.setattr(perf, 'Group', made.make)
        return made

    @classmethod
    def counts(cls, enabled_ms, running_ms, references, misses):
        return perf.Counts(enabled_ms * cls.MS_NS, running_ms * cls.MS_NS,
                           (references, misses))

    @staticmethod
    def read(source, now_s, servers=THREADS):
        return {key: (sample.references, sample.misses) for key, sample
                in source.read(observed(now_s, {}, servers)).items()}

    def test_events_are_scaled(self, kernel):
        source = cache.CacheSource()
        assert self.read(source, 10) == {}
        # Counted for a quarter of the time; the other did not run.
        kernel.counts[100] = self.counts(1050, 300, 5000, 600)
        assert self.read(source, 12) == {(UUID, 0): (8000, 1000),
                                         (UUID, 1): (0, 0)}
        assert source.available() == ''

    def test_events_that_were_not_counted_are_unknown(self, kernel):
        source = cache.CacheSource()
        self.read(source, 10)
        kernel.counts[100] = self.counts(1050, 50, 1000, 100)
        assert (UUID, 0) not in self.read(source, 12)
        kernel.counts[100] = self.counts(2050, 1050, 1200, 100)
        assert self.read(source, 14)[UUID, 0] == (100, 0)

    def test_a_clock_that_leaps(self, kernel):
        source = cache.CacheSource()
        self.read(source, 10)
        assert self.read(source, 10) == {}
        assert self.read(source, 9) == {}
        assert self.read(source, 1000) == {}
        assert self.read(source, 1001) == {(UUID, 0): (0, 0),
                                           (UUID, 1): (0, 0)}

    def test_all_is_closed_when_threads_vanish(self, kernel):
        source = cache.CacheSource()
        self.read(source, 10)
        assert kernel.open == [100, 101]
        self.read(source, 12, {UUID: {0: 100}})
        assert kernel.open == [100]
        self.read(source, 14, {})
        assert kernel.open == []
        self.read(source, 16)
        source.close()
        source.close()
        assert kernel.open == []

    def test_a_thread_that_is_gone_is_ignored(self, kernel):
        kernel.errors[101] = errno.ESRCH
        source = cache.CacheSource()
        self.read(source, 10)
        assert set(self.read(source, 12)) == {(UUID, 0)}
        assert source.available() == ''

    def test_a_thread_that_cannot_be_read_is_opened_anew(self, kernel):
        source = cache.CacheSource()
        self.read(source, 10)
        del kernel.counts[101]
        assert set(self.read(source, 12)) == {(UUID, 0)}
        assert kernel.open == [100]
        assert '1 of 2' in source.available()
        kernel.counts[101] = self.counts(0, 0, 0, 0)
        self.read(source, 14)
        assert set(self.read(source, 16)) == {(UUID, 0), (UUID, 1)}

    def test_files_are_bounded(self, kernel):
        source = cache.CacheSource(max_threads=1)
        self.read(source, 10)
        assert set(self.read(source, 12)) == {(UUID, 0)}
        assert source.available() == (
            '1 of 2 vCPUs are not watched: these are too many')

    @pytest.mark.parametrize('error, text', [
        (errno.EACCES, 'CAP_PERFMON'), (errno.EPERM, 'CAP_PERFMON'),
        (errno.ENOENT, 'this CPU'), (errno.ENODEV, 'this CPU'),
        (errno.EOPNOTSUPP, 'this CPU'), (errno.ENOSYS, 'no performance'),
        (errno.EMFILE, 'x')])
    def test_why_there_are_no_events(self, kernel, error, text):
        kernel.errors[0] = error
        source = cache.CacheSource()
        assert text in source.available()
        assert self.read(source, 10) == {}
        assert kernel.open == []
        # An operator repaired it.
        del kernel.errors[0]
        self.read(source, 12)
        assert source.available() == ''

    def test_why_there_are_none_of_a_thread(self, kernel):
        kernel.errors[100] = errno.EACCES
        source = cache.CacheSource()
        self.read(source, 10)
        assert source.available().startswith('1 of 2 vCPUs are not watched: ')
        assert 'CAP_PERFMON' in source.available()


class TestPause:
    @pytest.fixture
    def kernel(self, monkeypatch):
        made = Kernel()
        made.counts = {0: self.count(0), 100: self.count(50),
                       101: self.count(0)}
        made.events = []

        def make(events, thread):
            made.events.append(*events)
            return made.make(events, thread)

        monkeypatch.setattr(perf, 'Group', make)
        return made

    @pytest.fixture
    def source(self, tmp_path):
        (tmp_path / 'record').write_text('103\n')
        return self.make(tmp_path)

    @staticmethod
    def make(path, machine='x86_64'):
        return pause.PauseSource(str(path / 'record'),
                                 tracing=str(path), machine=machine)

    @staticmethod
    def count(number):
        return perf.Counts(10, 10, (number,))

    @staticmethod
    def read(source, now_s, waits=None, servers=THREADS):
        return {key: sample.spin_events for key, sample in source.read(
            observed(now_s, {} if waits is None else {
                UUID: recognition.Activity(1, None, {}, waits)},
                servers)).items()}

    def test_exits_are_counted_by_thread(self, kernel, source):
        assert self.read(source, 10) == {}
        kernel.counts[100] = perf.Counts(30, 30, (1050,))
        assert self.read(source, 12) == {(UUID, 0): 500, (UUID, 1): 0}
        assert source.available() == ''
        assert {(event.type, event.config, event.filter)
                for event in kernel.events} == {
                    (perf.TYPE_TRACEPOINT, 103, pause.FILTER)}

    # Of a guest that asked a port thrice and for its CPU twice, and halted,
    # recorded by the kernel (tests/host/pause_guest.py): isa, exit_reason.
    RECORDED = ((2, 0x400), (2, 0x78), (2, 0x400), (2, 0x7b), (2, 0x7b),
                (2, 0x7b), (2, 0x78), (2, 0x400), (2, 0x72), (2, 0x72),
                (2, 0x78))

    @pytest.mark.parametrize('exits, counted', [
        (RECORDED, 0),
        # As the kernel's own format of the tracepoint names them.
        (((1, 40), *RECORDED, (1, 40)), 2), (((2, 0x77), *RECORDED), 1),
        # Other reasons that have the other one's number.
        (((1, 0x77), (2, 40)), 0)])
    def test_only_exits_for_pause_loops_count(self, kernel, source, exits,
                                              counted):
        self.read(source, 10)
        condition = kernel.events[-1].filter.replace('&&', 'and').replace(
            '||', 'or')
        found = sum(eval(condition, {'isa': isa, 'exit_reason': reason})
                    for isa, reason in exits)
        assert found == counted
        kernel.counts[101] = perf.Counts(30, 30, (found,))
        assert self.read(source, 11)[UUID, 1] == counted

    def test_one_thread_that_cannot_be_watched_stops_no_other(
            self, kernel, source):
        """Not even where that was seen at the first observation."""
        kernel.errors[101] = errno.EMFILE
        assert self.read(source, 10) == {}
        kernel.counts[100] = perf.Counts(30, 30, (1050,))
        assert self.read(source, 12) == {(UUID, 0): 500}
        assert '1 of 2 vCPUs are not watched' in source.available()

    def test_waits_count_beside(self, kernel, source):
        self.read(source, 10, {0: 0})
        kernel.counts[100] = perf.Counts(30, 30, (1050,))
        assert self.read(source, 12, {0: 20}) == {
            (UUID, 0): 510, (UUID, 1): 0}
        # The hypervisor fails once.
        assert self.read(source, 14) == {(UUID, 0): 0, (UUID, 1): 0}

    def test_nothing_is_traced_without_servers(self, kernel, source):
        assert self.read(source, 10, servers={}) == {}
        assert kernel.events == []
        assert source.available() == base.NOT_READ
        self.read(source, 12)
        assert kernel.open == [100, 101]
        self.read(source, 14, servers={UUID: {}})
        assert kernel.open == []
        self.read(source, 16)
        source.close()
        source.close()
        assert kernel.open == []

    def test_why_none_are_counted(self, kernel, source, tmp_path):
        kernel.errors = dict.fromkeys((0, 100, 101), errno.EACCES)
        assert self.read(source, 10) == {}
        assert 'CAP_PERFMON' in source.available()
        # KVM was loaded again, and the probe has run since.
        kernel.errors = {0: errno.EINVAL}
        self.read(source, 12)
        assert 'no such tracepoint' in source.available()
        kernel.errors = {}
        (tmp_path / 'record').write_text('104\n')
        self.read(source, 14)
        assert source.available() == ''
        assert kernel.events[-1].config == 104

    def test_no_tracepoint(self, kernel, tmp_path):
        source = self.make(tmp_path)
        assert self.read(source, 10) == {}
        assert 'no tracepoint kvm/kvm_exit' in source.available()
        (tmp_path / 'record').write_text('103\n')
        self.read(source, 12)
        assert source.available() == ''

    def test_another_architecture(self, kernel, tmp_path):
        source = self.make(tmp_path, 'aarch64')
        assert self.read(source, 10) == {}
        assert 'x86 only' in source.available()
        assert kernel.events == []


def test_a_source_that_cannot_be_loaded():
    sources = loading.load(['nonsense'])
    assert sources['nonsense'].available() == (
        "no source 'nonsense' is installed")
    assert sources['nonsense'].read(observed(10, {})) == {}
    sources['nonsense'].close()
