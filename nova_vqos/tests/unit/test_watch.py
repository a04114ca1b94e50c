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

"""The watch: from what sources see to kinds and classes."""

import dataclasses

import pytest

from nova_vqos.hypervisor import base as hypervisors
from nova_vqos.quantum import activity
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition
from nova_vqos.quantum import trace
from nova_vqos.quantum import watch
from nova_vqos.quantum.sources import base
from nova_vqos.quantum.sources import io
from nova_vqos.quantum.sources import spin

Kind = model.Kind
UUID = 'd3b1a8c2-0000-4000-8000-000000000001'
OTHER_UUID = 'd3b1a8c2-0000-4000-8000-000000000002'
SERVERS = {UUID: {0: 100, 1: 101}}
LIMITS = recognition.Limits(io_requests=100, spin_events=200,
                            references=1000, misses=500)


class Cache(base.Source):
    """Sees what the test says."""

    def __init__(self):
        self.seen = {}
        self.missing = ''
        self.error = None
        self.closed = False

    def available(self):
        return self.missing

    def read(self, look):
        if self.error is not None:
            raise self.error
        return self.seen

    def close(self):
        self.closed = True


class Hypervisor:
    """Servers whose counters grow.

    :ivar per_second: requests and, by vCPU, runs and waits, by UUID
    """

    def __init__(self):
        self.per_second = {}
        self.now_s = 0
        self.error = None

    def activity(self, uuids):
        if self.error is not None:
            raise self.error
        return {uuid: activity.Activity(1, *(
            {key: count * self.now_s for key, count in counts.items()}
            for counts in self.per_second[uuid]))
            for uuid in uuids if uuid in self.per_second}


class Case:
    """A watch, and its hands on what it sees."""

    def __init__(self, **options):
        self.hypervisor = Hypervisor()
        self.cache = Cache()
        self.watch = watch.Watch(
            {'io': io.IoSource(), 'spin': spin.SpinSource(),
             'cache': self.cache}, LIMITS, self.hypervisor.activity,
            **options)
        self.now_s = 1000

    def look(self, times=1, servers=SERVERS):
        for _ in range(times):
            self.now_s += 5
            self.hypervisor.now_s = self.now_s
            self.watch.look(servers, self.now_s)

    def kinds(self, uuid=UUID):
        return [self.watch.kind(uuid, vcpu) for vcpu in (0, 1)]


@pytest.fixture
def case():
    made = Case()
    yield made
    made.watch.close()


def test_what_sources_see_together_tells_the_kinds(case):
    case.hypervisor.per_second[UUID] = ({'vda': 100}, {0: 50, 1: 0},
                                        {0: 0, 1: 0})
    case.cache.seen = {
        (UUID, 0): recognition.Sample(references=1000, misses=300),
        (UUID, 1): recognition.Sample(references=900, misses=0)}
    case.look(3)
    assert case.kinds() == [None, None]
    case.look()
    assert case.kinds() == [Kind.IO, Kind.CACHE]
    assert case.watch.pollutes(UUID, 0)
    assert not case.watch.pollutes(UUID, 1)
    assert case.watch.status() == {'io': '', 'spin': '', 'cache': ''}


def test_locks_are_told_by_the_counters_of_each_vcpu(case):
    case.hypervisor.per_second[UUID] = ({}, {}, {0: 0, 1: 200})
    case.look(6)
    assert case.kinds() == [None, Kind.SPIN]


def test_an_honest_host_tells_little(case):
    case.cache.missing = 'no PMU'
    case.hypervisor.per_second[UUID] = ({'vda': 10}, {}, {})
    case.look(6)
    assert case.kinds() == [None, None]
    status = case.watch.status()
    assert status['io'] == ''
    assert status['cache'] == 'no PMU'
    assert 'libvirt 8.9' in status['spin']


def test_a_server_that_nobody_asked_about_is_of_no_kind(case):
    assert case.watch.kind(UUID, 0) is None
    assert not case.watch.pollutes(UUID, 0)


def test_a_look_too_soon_is_none():
    calls = []
    made = watch.Watch({}, LIMITS, lambda uuids: calls.append(uuids) or {},
                       period_s=5)
    # A clock that went back is no reason to wait for it.
    for now_s, looks in ((100, 1), (104.9, 1), (105, 2), (3, 3), (7, 3)):
        made.look(SERVERS, now_s)
        assert len(calls) == looks


@pytest.mark.parametrize('after_s', [-2000, 10_000])
def test_a_clock_that_leaps_is_no_work(case, after_s):
    case.hypervisor.per_second[UUID] = ({'vda': 20}, {}, {0: 0, 1: 0})
    case.cache.seen = {
        (UUID, vcpu): recognition.Sample(references=0, misses=0)
        for vcpu in (0, 1)}
    case.look(6)
    assert case.kinds() == [Kind.NEUTRAL] * 2
    case.now_s += after_s
    for _ in range(8):
        case.look()
        assert case.kinds() == [Kind.NEUTRAL] * 2


def test_who_is_not_looked_at_is_forgotten(case):
    case.cache.seen = {(UUID, 0): recognition.Sample(references=900,
                                                     misses=0)}
    case.look(5)
    case.look(1, {})
    assert case.kinds() == [None, None]
    case.look(3)
    assert case.kinds() == [None, None]


def test_a_vcpu_that_is_unplugged_is_forgotten_alone(case):
    case.cache.seen = {
        (UUID, 0): recognition.Sample(references=900, misses=0),
        (UUID, 1): recognition.Sample(references=0, misses=0)}
    case.look(5)
    case.look(1, {UUID: {0: 100}})
    assert case.kinds() == [Kind.CACHE, None]


def test_another_thread_begins_anew(case):
    case.cache.seen = {
        (UUID, vcpu): recognition.Sample(references=900, misses=0)
        for vcpu in (0, 1)}
    case.look(5)
    case.look(1, {UUID: {0: 100, 1: 999}})
    assert case.kinds() == [Kind.CACHE, None]


def test_what_a_source_tells_of_others_is_not_taken(case):
    case.cache.seen = {(OTHER_UUID, 0): recognition.Sample(references=900,
                                                           misses=0)}
    case.look(6)
    assert case.watch.kind(OTHER_UUID, 0) is None


def test_a_hypervisor_that_hangs_leaves_the_others(case, caplog):
    case.hypervisor.error = hypervisors.Unavailable('it hangs')
    case.cache.seen = {(UUID, 0): recognition.Sample(references=900,
                                                     misses=0)}
    case.look(6)
    assert case.kinds() == [Kind.CACHE, None]
    assert 'it hangs' in caplog.text
    status = case.watch.status()
    assert status['io'] and status['spin'] and not status['cache']


def test_a_source_that_fails_leaves_the_others(case, caplog):
    case.hypervisor.per_second[UUID] = ({}, {}, {0: 300, 1: 0})
    case.cache.error = ZeroDivisionError('a bug')
    case.look(6)
    assert case.kinds() == [Kind.SPIN, None]
    assert "ZeroDivisionError('a bug')" in case.watch.status()['cache']
    # Its trace is shown once.
    assert caplog.text.count('Traceback') == 1
    case.cache.error = None
    case.look()
    assert case.watch.status()['cache'] == ''


def test_of_two_sources_that_know_the_same_the_first_counts():
    first, second = Cache(), Cache()
    first.seen = {(UUID, 0): recognition.Sample(references=900, misses=0)}
    second.seen = {(UUID, vcpu): recognition.Sample(references=900, misses=900)
                   for vcpu in (0, 1)}
    made = watch.Watch({'first': first, 'second': second}, LIMITS,
                       lambda _uuids: {})
    for now_s in range(5, 30, 5):
        made.look(SERVERS, now_s)
    assert made.kind(UUID, 0) is Kind.CACHE
    assert made.kind(UUID, 1) is Kind.POLLUTER


def test_all_is_closed(tmp_path):
    made = Case(recorder=trace.Recorder(str(tmp_path / 'trace')))
    made.watch.close()
    made.watch.close()
    assert made.cache.closed


def test_what_was_seen_is_recorded(tmp_path):
    path = str(tmp_path / 'trace')
    made = Case(recorder=trace.Recorder(path))
    made.hypervisor.per_second[UUID] = ({'vda': 100}, {0: 1, 1: 0},
                                        {0: 5, 1: 5})
    made.cache.seen = {(UUID, 1): recognition.Sample(references=900,
                                                     misses=0)}
    made.look(6)
    last = list(trace.looks(trace.load(path)))[-1]
    assert [dataclasses.asdict(record) for record in last] == [
        {'at_s': 1030, 'server': UUID, 'vcpu': 0, 'thread': 100,
         'sample': {'io_requests': 100, 'spin_events': 5, 'references': None,
                    'misses': None}},
        {'at_s': 1030, 'server': UUID, 'vcpu': 1, 'thread': 101,
         'sample': {'io_requests': 0, 'spin_events': 5, 'references': 900,
                    'misses': 0}}]
    made.watch.close()
