# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The sources of recognition, on counters that the tests make up.

Events of the real kernel are counted in tests/host/test_quantum_sources.py.
"""

import errno

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import activity
from nova_vqos.quantum.sources import base
from nova_vqos.quantum.sources import cache
from nova_vqos.quantum.sources import growth
from nova_vqos.quantum.sources import io
from nova_vqos.quantum.sources import loading
from nova_vqos.quantum.sources import perf
from nova_vqos.quantum.sources import spin

UUID = 'd3b1a8c2-0000-4000-8000-000000000001'
OTHER_UUID = 'd3b1a8c2-0000-4000-8000-000000000002'
THREADS = {UUID: {0: 100, 1: 101}}


def look(now_s, activities, servers=THREADS):
    return base.Look(now_s, servers, activities)


class TestGrowth:
    def test_how_fast_a_counter_grows(self):
        made = growth.Growth()
        assert made.per_second('a', 100, 10) is None
        assert made.per_second('a', 300, 14) == 50
        assert made.per_second('a', 300, 15) == 0

    @pytest.mark.parametrize('count, now_s', [
        (99, 14), (200, 10), (200, 9), (200, 311)])
    def test_what_cannot_be_compared_begins_anew(self, count, now_s):
        made = growth.Growth()
        made.per_second('a', 100, 10)
        assert made.per_second('a', count, now_s) is None
        assert made.per_second('a', count + 6, now_s + 2) == 3

    def test_others_are_forgotten(self):
        made = growth.Growth()
        made.per_second('a', 100, 10)
        made.per_second('b', 100, 10)
        made.keep(['b'])
        assert made.per_second('a', 200, 11) is None
        assert made.per_second('b', 200, 11) == 100

    @hypothesis.given(st.lists(st.tuples(st.integers(0, 2**64),
                                         st.floats(0, 1e9))))
    def test_no_rate_is_below_zero(self, readings):
        made = growth.Growth()
        for count, now_s in readings:
            rate = made.per_second('a', count, now_s)
            assert rate is None or rate >= 0


class TestIo:
    @pytest.fixture
    def source(self):
        return io.IoSource()

    @staticmethod
    def read(source, now_s, requests, runs=(10, 10), *, run=1,
             servers=THREADS):
        found = activity.Activity(run, requests, dict(enumerate(runs)), {})
        return {key: sample.io_requests for key, sample in source.read(
            look(now_s, {UUID: found}, servers)).items()}

    def test_requests_go_to_whoever_was_woken(self, source):
        assert self.read(source, 10, {'vda': 100, 'tap': 0}) == {}
        # 50 and 150 requests per second, 300 and 100 runs.
        found = self.read(source, 12, {'vda': 200, 'tap': 300}, (310, 110))
        assert found == {(UUID, 0): pytest.approx(150),
                         (UUID, 1): pytest.approx(50)}

    @pytest.mark.parametrize('runs', [(10, 10), (20, 20), (5, 5), ()])
    def test_of_those_that_are_alike_each_gets_the_same(self, source, runs):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, {'vda': 200}, runs) == {
            (UUID, 0): 50, (UUID, 1): 50}

    def test_a_vcpu_whose_runs_are_not_known_gets_nothing(self, source):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, {'vda': 200}, (20,)) == {
            (UUID, 0): 100, (UUID, 1): 0}

    def test_a_vcpu_that_is_not_looked_at_gets_nothing(self, source):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, {'vda': 200}, (20, 900),
                         servers={UUID: {0: 100}}) == {(UUID, 0): 100}
        assert self.read(source, 14, {'vda': 400}, servers={UUID: {}}) == {}

    def test_requests_that_are_not_known_once(self, source):
        self.read(source, 10, {'vda': 0})
        assert self.read(source, 12, None) == {}
        assert source.available() == 'the hypervisor tells of no requests now'
        # Those of both looks.
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

    def test_who_is_not_looked_at_is_forgotten(self, source):
        self.read(source, 10, {'vda': 0})
        source.read(look(12, {}, {}))
        assert self.read(source, 14, {'vda': 9000}) == {}

    def test_it_says_what_is_missing(self, source):
        assert source.available() == base.NOT_LOOKED
        source.read(look(10, {}, {}))
        assert source.available() == base.NOT_LOOKED
        source.read(look(11, {}))
        assert 'no requests' in source.available()


class TestSpin:
    @staticmethod
    def read(source, now_s, waits, *, run=1):
        return {key: sample.spin_events for key, sample in source.read(look(
            now_s, {UUID: activity.Activity(run, None, {}, waits)})).items()}

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

    def test_a_hypervisor_that_does_not_answer_once(self):
        source = spin.SpinSource()
        self.read(source, 10, {0: 100})
        assert source.read(look(12, {})) == {}
        assert source.available() == 'the hypervisor tells of no server now'
        assert self.read(source, 14, {0: 500}) == {(UUID, 0): 100}

    def test_without_counters_it_says_so(self):
        source = spin.SpinSource()
        assert source.available() == base.NOT_LOOKED
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
                in source.read(look(now_s, {}, servers)).items()}

    def test_events_are_scaled_by_the_time_that_they_were_counted(self,
                                                                  kernel):
        source = cache.CacheSource()
        assert self.read(source, 10) == {}
        # Counted for a quarter of the time; the other did not run.
        kernel.counts[100] = self.counts(1050, 300, 5000, 600)
        assert self.read(source, 12) == {(UUID, 0): (8000, 1000),
                                         (UUID, 1): (0, 0)}
        assert source.available() == ''

    def test_what_was_not_counted_is_not_known(self, kernel):
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

    def test_a_thread_that_is_gone_is_nobodys_fault(self, kernel):
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
        source = cache.CacheSource(most_threads=1)
        self.read(source, 10)
        assert set(self.read(source, 12)) == {(UUID, 0)}
        assert source.available() == (
            '1 of 2 vCPUs are not watched: these are too many')

    @pytest.mark.parametrize('error, text', [
        (errno.EACCES, 'CAP_PERFMON'), (errno.EPERM, 'CAP_PERFMON'),
        (errno.ENOENT, 'this CPU'), (errno.ENODEV, 'this CPU'),
        (errno.EOPNOTSUPP, 'this CPU'), (errno.ENOSYS, 'no performance'),
        (errno.EMFILE, 'x')])
    def test_it_says_why_there_are_no_events(self, kernel, error, text):
        kernel.errors[0] = error
        source = cache.CacheSource()
        assert text in source.available()
        assert self.read(source, 10) == {}
        assert kernel.open == []
        # It may be mended.
        del kernel.errors[0]
        self.read(source, 12)
        assert source.available() == ''

    def test_it_says_why_there_are_none_of_others(self, kernel):
        kernel.errors[100] = errno.EACCES
        source = cache.CacheSource()
        self.read(source, 10)
        assert source.available().startswith('1 of 2 vCPUs are not watched: ')
        assert 'CAP_PERFMON' in source.available()


def test_a_source_that_cannot_be_made_says_why():
    sources = loading.load(['nonsense'])
    assert sources['nonsense'].available() == (
        "no source 'nonsense' is installed")
    assert sources['nonsense'].read(look(10, {})) == {}
    sources['nonsense'].close()
