# SPDX-License-Identifier: Apache-2.0
"""The clock of CPUs, by counters and by the figures of cpufreq."""

import errno
import os
import time

import pytest

from nova_vqos.billing import usage
from nova_vqos.hypervisor.linux import clock
from nova_vqos.hypervisor.linux import perf
from nova_vqos.tests.fixtures import requirement

PMU = 'sys/bus/event_source/devices/msr'
CPUFREQ = 'sys/devices/system/cpu/cpu{}/cpufreq/{}'
EVENTS = (perf.Event(9, 1), perf.Event(9, 2), perf.Event(9, 0))
MS_NS = 1_000_000


def write(root, name, content):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def write_pmu(root, kind='9', aperf='0x01', mperf='0x02', tsc='0x00'):
    """The files of the kernel where the CPU has the counters."""
    write(root, f'{PMU}/type', f'{kind}\n')
    for name, config in (('aperf', aperf), ('mperf', mperf), ('tsc', tsc)):
        if config is not None:
            write(root, f'{PMU}/events/{name}', f'event={config}\n\n')


class Kernel:
    """The kernel's counters of threads and pCPUs, of a base clock of 2 GHz.

    :ivar errors: that opening one meets, by thread
    :ivar opened: the events of each open counter, by thread and pCPU
    """

    def __init__(self, monkeypatch):
        self.errors = {}
        self.opened = {}
        self.counts = {}
        monkeypatch.setattr(perf, 'Group', self.open)

    def run(self, key, ran_ms, mhz, awake=1.0):
        """Have a thread or pCPU run for a while.

        :param awake: the part of it in which the CPU was not halted
        """
        self.counts[key] = tuple(one + more for one, more in zip(
            self.counts.get(key, (0, 0, 0, 0)), (
                ran_ms * MS_NS, round(ran_ms * mhz * 1000 * awake),
                round(ran_ms * 2_000_000 * awake), ran_ms * 2_000_000),
            strict=True))

    def open(self, events, thread, pcpu=perf.ANY_PCPU):
        if thread in self.errors:
            raise OSError(self.errors[thread], 'x')
        key = thread if pcpu == perf.ANY_PCPU else (thread, pcpu)
        self.opened[key] = tuple(events)
        return _Group(self, key)


class _Group:
    def __init__(self, kernel, key):
        self._kernel, self._key = kernel, key

    def read(self):
        ran_ns, *values = self._kernel.counts.get(self._key, (0, 0, 0, 0))
        return perf.Counts(ran_ns, ran_ns, tuple(values))

    def close(self):
        self._kernel.opened.pop(self._key, None)


@pytest.fixture
def kernel(monkeypatch):
    made = Kernel(monkeypatch)
    yield made
    assert not made.opened


class TestEvents:
    def test_as_the_kernel_names_them(self, tmp_path):
        write_pmu(tmp_path)
        assert clock.find_events(str(tmp_path)) == EVENTS

    @pytest.mark.parametrize('files', [
        {'aperf': None}, {'mperf': None}, {'tsc': None}, {'kind': 'x'},
        {'aperf': 'fast'}])
    def test_a_cpu_without_them(self, tmp_path, files):
        write_pmu(tmp_path, **files)
        with pytest.raises(clock.ClockError):
            clock.find_events(str(tmp_path))

    def test_a_kernel_without_them(self, tmp_path):
        with pytest.raises(clock.ClockError):
            clock.find_events(str(tmp_path))


class TestCounter:
    @pytest.fixture
    def counter(self, kernel):
        made = clock.Counter(EVENTS, 50)
        yield made
        made.close()
        made.close()

    def test_cycles_are_those_since_the_last_reading(self, kernel, counter):
        kernel.run(50, 100, 3000)
        assert counter.read() == (100 * MS_NS, pytest.approx(3e8))
        kernel.run(50, 50, 1500)
        found = counter.read()
        assert found.ran_ns == 50 * MS_NS
        assert found.mhz == pytest.approx(1500)

    def test_a_halted_cpu_has_no_lower_clock(self, kernel, counter):
        """A guest may halt it itself: QEMU's -overcommit cpu-pm=on."""
        kernel.run(50, 100, 3000, awake=0.25)
        assert counter.read().mhz == pytest.approx(3000)

    def test_a_thread_that_did_not_run_has_no_clock(self, kernel, counter):
        assert counter.read() == usage.NO_CLOCK_TIME
        kernel.run(50, 100, 3000, awake=0.0)
        assert counter.read() == usage.NO_CLOCK_TIME


def test_the_kernel_counts_a_thread_by_these_calls(tmp_path):
    """Events of software in the place of those that no machine here has.

    Each counts nanoseconds, which is a clock of 1 GHz.
    """
    write_pmu(tmp_path, perf.TYPE_SOFTWARE, '0x1', '0x1', '0x1')
    before = os.listdir('/proc/self/fd')
    try:
        counter = clock.Counter(clock.find_events(str(tmp_path)),
                                perf.OWN_THREAD)
    except OSError as error:
        requirement.need(perf.reason(error))
    until_s = time.thread_time() + 0.05
    while time.thread_time() < until_s:
        pass
    found = counter.read()
    assert found.ran_ns > 40 * MS_NS
    assert found.mhz == pytest.approx(1000, rel=0.05)
    counter.close()
    assert os.listdir('/proc/self/fd') == before


class TestPcpuClock:
    def test_the_mean_of_each_pcpu(self, tmp_path, kernel):
        write_pmu(tmp_path)
        with clock.PcpuClock((0, 3), str(tmp_path)) as clocks:
            assert kernel.opened == {(-1, 0): EVENTS, (-1, 3): EVENTS}
            kernel.run((-1, 0), 100, 2500)
            assert clocks.read_mhz() == {0: pytest.approx(2500)}
            kernel.run((-1, 3), 100, 2600)
            assert clocks.read_mhz() == {3: pytest.approx(2600)}

    def test_a_cpu_that_does_not_count(self, tmp_path, kernel):
        with clock.PcpuClock((0, 3), str(tmp_path)) as clocks:
            assert clocks.read_mhz() == {}

    def test_a_process_that_may_not_count(self, tmp_path, kernel):
        write_pmu(tmp_path)
        kernel.errors[perf.ALL_THREADS] = errno.EACCES
        with clock.PcpuClock((0, 3), str(tmp_path)) as clocks:
            assert clocks.read_mhz() == {}


class TestFigures:
    def test_pcpus_that_have_one(self, tmp_path):
        write(tmp_path, CPUFREQ.format(0, 'scaling_cur_freq'), '2400000\n')
        write(tmp_path, CPUFREQ.format(12, 'cpuinfo_avg_freq'), '2500123\n')
        write(tmp_path, 'sys/devices/system/cpu/cpufreq/boost', '1\n')
        write(tmp_path, 'sys/devices/system/cpu/cpu3/topology/core_id', '1\n')
        assert clock.find_pcpus(str(tmp_path)) == [0, 12]
        assert clock.read_pcpu_mhz(0, str(tmp_path)) == 2400.0
        assert clock.read_pcpu_mhz(12, str(tmp_path)) == 2500.123
        assert clock.read_pcpu_mhz(3, str(tmp_path)) is None

    def test_the_mean_comes_first(self, tmp_path):
        write(tmp_path, CPUFREQ.format(0, 'scaling_cur_freq'), '2400000\n')
        write(tmp_path, CPUFREQ.format(0, 'cpuinfo_avg_freq'), '2500000\n')
        assert clock.read_pcpu_mhz(0, str(tmp_path)) == 2500.0

    @pytest.mark.parametrize('text', ['', '<unknown>', '0', '-5', '9' * 30])
    def test_a_figure_that_is_none(self, tmp_path, text):
        write(tmp_path, CPUFREQ.format(0, 'scaling_cur_freq'), text)
        assert clock.read_pcpu_mhz(0, str(tmp_path)) is None

    def test_a_machine_without_cpufreq(self, tmp_path):
        assert clock.find_pcpus(str(tmp_path)) == []
