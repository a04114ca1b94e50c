# SPDX-License-Identifier: Apache-2.0
"""The watcher: from the rates of sources to the kinds of vCPUs."""

import dataclasses

from oslo_config import cfg
import pytest

from nova_vqos.agent.quantum import watcher
from nova_vqos.agent.quantum.sources import base as source_base
from nova_vqos.agent.quantum.sources import io
from nova_vqos.agent.quantum.sources import spin
from nova_vqos.conf import agent
from nova_vqos.hypervisor import base
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition
from nova_vqos.quantum import recognition_trace
from nova_vqos.tests.fixtures import fakes

Kind = model.Kind
UUID = fakes.UUID
SERVERS = {UUID: {0: 100, 1: 101}}
LIMITS = recognition.Limits(io_requests=100, spin_events=200,
                            references=1000, misses=500)
CACHE = recognition.Sample(references=900, misses=0)
NEUTRAL = recognition.Sample(references=0, misses=0)


class FakeSource(source_base.Source):
    """Provides the samples of a test."""

    def __init__(self, samples=()):
        self.samples = dict(samples)
        self.missing = ''
        self.error = None
        self.closed = False

    def available(self):
        return self.missing

    def read(self, observed):
        if self.error is not None:
            raise self.error
        return self.samples

    def close(self):
        self.closed = True


class Case:
    """A watcher of the real sources but for the CPU's counters.

    :ivar per_second: by UUID, the growth of requests and, by vCPU, of runs
        and waits
    """

    def __init__(self, **options):
        self.per_second = {}
        self.error = None
        self.cache = FakeSource()
        self.watcher = watcher.Watcher(
            {'io': io.IoSource(), 'spin': spin.SpinSource(),
             'cache': self.cache}, LIMITS, self.activity, **options)
        self.now_s = 1000

    def activity(self, uuids):
        if self.error is not None:
            raise self.error
        return {uuid: recognition.Activity(1, *(
            {key: count * self.now_s for key, count in counts.items()}
            for counts in self.per_second[uuid]))
            for uuid in uuids if uuid in self.per_second}

    def observe(self, times=1, servers=SERVERS):
        """:returns: what the last observation returns"""
        found = None
        for _ in range(times):
            self.now_s += 5
            found = self.watcher.observe(servers, self.now_s)
        return found

    def kinds(self):
        return [self.watcher.kind(UUID, vcpu) for vcpu in (0, 1)]


@pytest.fixture
def case():
    made = Case()
    yield made
    made.watcher.close()


class TestKinds:
    def test_all_sources_together(self, case):
        assert case.kinds() == [None, None]
        assert not case.watcher.pollutes(UUID, 0)
        case.per_second[UUID] = ({'vda': 100}, {0: 50, 1: 0}, {0: 0, 1: 0})
        case.cache.samples = {
            (UUID, 0): recognition.Sample(references=1000, misses=300),
            (UUID, 1): CACHE}
        case.observe(3)
        assert case.kinds() == [None, None]
        case.observe()
        assert case.kinds() == [Kind.IO, Kind.CACHE]
        assert case.watcher.pollutes(UUID, 0)
        assert not case.watcher.pollutes(UUID, 1)
        assert case.watcher.status() == {'io': '', 'spin': '', 'cache': ''}

    def test_how_long_that_takes(self, case):
        case.per_second[UUID] = ({}, {}, {0: 0, 1: 200})
        case.observe(3)
        assert case.watcher.recognised_after_s(UUID, 1) is None
        case.observe(7)
        assert case.watcher.recognised_after_s(UUID, 1) == 15.0
        assert case.watcher.recognised_after_s(UUID, 0) is None

    def test_spin_by_the_counters_of_each_vcpu(self, case):
        case.per_second[UUID] = ({}, {}, {0: 0, 1: 200})
        case.observe(6)
        assert case.kinds() == [None, Kind.SPIN]

    def test_a_host_without_counters(self, case):
        case.cache.missing = 'no PMU'
        case.per_second[UUID] = ({'vda': 10}, {}, {})
        case.observe(6)
        assert case.kinds() == [None, None]
        status = case.watcher.status()
        assert (status['io'], status['cache']) == ('', 'no PMU')
        assert 'libvirt 8.9' in status['spin']

    @pytest.mark.parametrize('after_s', [-2000, 10_000])
    def test_a_clock_that_leaps_is_no_work(self, case, after_s):
        case.per_second[UUID] = ({'vda': 20}, {}, {0: 0, 1: 0})
        case.cache.samples = dict.fromkeys([(UUID, 0), (UUID, 1)], NEUTRAL)
        case.observe(6)
        assert case.kinds() == [Kind.NEUTRAL] * 2
        case.now_s += after_s
        for _ in range(8):
            case.observe()
            assert case.kinds() == [Kind.NEUTRAL] * 2

    @pytest.mark.parametrize('servers, expected', [
        ({}, [None, None]), ({UUID: {0: 100}}, [Kind.CACHE, None]),
        # Another thread.
        ({UUID: {0: 100, 1: 999}}, [Kind.CACHE, None])])
    def test_missing_vcpus_begin_anew(self, case, servers, expected):
        case.cache.samples = dict.fromkeys([(UUID, 0), (UUID, 1)], CACHE)
        case.observe(5)
        case.observe(1, servers)
        assert case.kinds() == expected
        case.observe(3)
        assert case.kinds() == expected

    def test_rates_are_per_second_of_cpu_time(self, case):
        # A tenth of the limit, in a tenth of the time.
        case.per_second[UUID] = (
            {'vda': 10}, {0: 50, 1: 0}, {0: 0, 1: 0},
            {0: 10**8, 1: 10**8}, {0: 2 * 10**8, 1: 10**9})
        case.cache.samples = dict.fromkeys([(UUID, 0), (UUID, 1)], NEUTRAL)
        case.observe(8)
        assert case.kinds() == [Kind.IO, Kind.NEUTRAL]
        assert [case.watcher.is_sensitive(UUID, vcpu)
                for vcpu in (0, 1)] == [True, False]

    def test_a_look_without_counters_is_no_work_of_another_kind(self, case):
        # A tenth of what a polluter does, in a tenth of the time.
        case.per_second[UUID] = (
            {'vda': 0}, {0: 50}, {0: 0}, {0: 10**8}, {0: 2 * 10**8})
        case.cache.samples = {(UUID, 0): recognition.Sample(
            references=100, misses=100)}
        seen = []
        for number in range(40):
            case.error = base.Unavailable('it hangs') if number % 2 else None
            case.observe()
            seen.append(case.watcher.kind(UUID, 0))
        assert set(seen[10:]) == {Kind.POLLUTER}

    def test_samples_of_other_servers_are_ignored(self, case):
        case.cache.samples = {(fakes.OTHER_UUID, 0): CACHE}
        case.observe(6)
        assert case.watcher.kind(fakes.OTHER_UUID, 0) is None

    def test_the_first_of_two_sources_of_a_rate_counts(self):
        polluter = recognition.Sample(references=900, misses=900)
        made = watcher.Watcher(
            {'first': FakeSource({(UUID, 0): CACHE}),
             'second': FakeSource({(UUID, vcpu): polluter
                                   for vcpu in (0, 1)})},
            LIMITS, lambda _uuids: {})
        for now_s in range(5, 30, 5):
            made.observe(SERVERS, now_s)
        assert made.kind(UUID, 0) is Kind.CACHE
        assert made.kind(UUID, 1) is Kind.POLLUTER


class TestProgress:
    """What vCPUs ran, of the time that they wanted to."""

    def look(self, case, ran_s, ready_s):
        """:param ran_s: of each second, by vCPU"""
        case.per_second[UUID] = (
            {}, {}, {}, {number: round(share * 1e9)
                         for number, share in ran_s.items()},
            {number: round(share * 1e9) for number, share in ready_s.items()})
        return case.observe(2)

    @pytest.mark.parametrize('ran_s, ready_s, found', [
        ({0: 0.5, 1: 0.1}, {0: 1.0, 1: 0.2}, (0.6, 1.2, 2)),
        # Of one that is not counted nothing is known.
        ({0: 0.4}, {0: 0.5}, (0.4, 0.5, 1))])
    def test_of_a_server(self, case, ran_s, ready_s, found):
        assert self.look(case, ran_s, ready_s)[UUID] == pytest.approx(found)

    def test_of_one_that_is_not_counted(self, case):
        assert self.look(case, {}, {}) == {}

    def test_is_not_known_at_first_nor_while_it_cannot_be_read(self, case):
        case.per_second[UUID] = {}, {}, {}, {0: 10**8}, {0: 10**8}
        assert case.observe() == {}
        assert case.observe() == {UUID: (0.1, 0.1, 1)}
        case.error = base.Unavailable('it hangs')
        assert case.observe() == {}


def test_an_observation_too_soon_is_skipped():
    calls = []
    made = watcher.Watcher(
        {}, LIMITS, lambda uuids: calls.append(uuids) or {}, min_interval_s=5)
    # A clock that went back does not delay the next one.
    for now_s, count in ((100, 1), (104.9, 1), (105, 2), (3, 3), (7, 3)):
        made.observe(SERVERS, now_s)
        assert len(calls) == count


class TestFailures:
    def test_a_hypervisor_that_hangs_leaves_other_sources(self, case, caplog):
        case.error = base.Unavailable('it hangs')
        case.cache.samples = {(UUID, 0): CACHE}
        case.observe(6)
        assert case.kinds() == [Kind.CACHE, None]
        assert 'it hangs' in caplog.text
        status = case.watcher.status()
        assert status['io'] and status['spin'] and not status['cache']

    @pytest.mark.causes_faults
    def test_a_source_that_fails_leaves_other_sources(self, case, caplog):
        case.per_second[UUID] = ({}, {}, {0: 300, 1: 0})
        case.cache.error = ZeroDivisionError('a bug')
        case.observe(6)
        assert case.kinds() == [Kind.SPIN, None]
        assert "ZeroDivisionError('a bug')" in case.watcher.status()['cache']
        # Logged once.
        assert caplog.text.count('Traceback') == 1
        case.cache.error = None
        case.observe()
        assert case.watcher.status()['cache'] == ''


def test_observations_are_recorded(tmp_path):
    path = str(tmp_path / 'trace')
    made = Case(recorder=recognition_trace.Recorder(path))
    made.per_second[UUID] = ({'vda': 100}, {0: 1, 1: 0}, {0: 5, 1: 5},
                             {0: 500_000_000}, {0: 750_000_000})
    made.cache.samples = {(UUID, 1): CACHE}
    made.observe(6)
    made.watcher.close()
    made.watcher.close()
    assert made.cache.closed
    *_, last = recognition_trace.readings(recognition_trace.load(path))
    assert [dataclasses.asdict(record) for record in last] == [
        {'at_s': 1030, 'server': UUID, 'vcpu': 0, 'thread': 100,
         'sample': {'io_requests': 100, 'spin_events': 5, 'references': None,
                    'misses': None, 'ran': 0.5, 'ready': 0.75}},
        {'at_s': 1030, 'server': UUID, 'vcpu': 1, 'thread': 101,
         'sample': {'io_requests': 0, 'spin_events': 5, 'references': 900,
                    'misses': 0, 'ran': None, 'ready': None}}]


class TestMakeWatcher:
    @pytest.fixture
    def make(self, tmp_path):
        made = []

        def make(**options):
            path = tmp_path / 'nova-vqos.conf'
            path.write_text('\n'.join(['[vqos_agent]', *(
                f'{name} = {value}' for name, value in options.items())]))
            conf = cfg.ConfigOpts()
            agent.register_opts(conf)
            conf([], default_config_files=[str(path)])
            made.append(watcher.make_watcher(conf.vqos_agent,
                                             fakes.FakeHypervisor()))
            return made[-1]
        yield make
        for one in made:
            one.close()

    @pytest.fixture
    def path(self, tmp_path):
        return str(tmp_path / 'trace')

    def test_all_sources_by_default(self, make):
        made = make()
        made.observe({UUID: {0: 1}}, 10)
        assert set(made.status()) == {'io', 'spin', 'cache'}

    def test_sources_by_name(self, make):
        made = make(quantum_sources='spin, nonsense')
        assert made.status() == {
            'spin': source_base.NOT_READ,
            'nonsense': "no source 'nonsense' is installed"}
        made.observe({UUID: {0: 1}}, 10)

    def test_timers_may_be_early(self, make, path):
        made = make(quantum_trace_path=path, quantum_sources='',
                    quantum_interval_s=10)
        for now_s in (100, 101, 109.9, 112, 119.8):
            made.observe({UUID: {0: 1}}, now_s)
        records = list(recognition_trace.load(path))
        assert [record.at_s for record in records] == [100, 109.9, 119.8]
        assert (records[0].key, records[0].thread) == ((UUID, 0), 1)

    def test_invalid_limits_are_refused(self, make):
        with pytest.raises(recognition.LimitInvalid, match="'io' is '0'"):
            make(quantum_limits='misses:7,io:0')

    def test_an_unwritable_trace_is_logged(self, make, tmp_path, caplog):
        path = str(tmp_path / 'no' / 'trace')
        made = make(quantum_trace_path=path, quantum_sources='')
        made.observe({UUID: {0: 1}}, 10)
        assert path in caplog.text
