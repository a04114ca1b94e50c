# SPDX-License-Identifier: Apache-2.0
"""Instructions of real guests, counted by the lab's plugin and by the kernel.

The machine that this was written on has no performance counters and no KVM:
the kernel's events are shown to be refused, and a software event is counted in
their place.
"""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.linux import instructions
from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import conftest
from nova_vqos.tests.host import guests
from nova_vqos_lab import counting
from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns
from nova_vqos_lab import process
from nova_vqos_lab import slowcpu

MEASURED_S = 3
# Of an emulator on any CPU. How few there may be is the machine's affair.
MOST_PER_CPU_S = 5e9
# PERF_COUNT_SW_TASK_CLOCK, in nanoseconds.
TASK_CLOCK = perf.Event(perf.TYPE_SOFTWARE, 1)
_SPIN = 'while True: pass'


@contextlib.contextmanager
def made_host(lab, number, **options):
    """A host that counts, in a lab of its own.

    :param number: of that lab
    """
    prefix = f'{conftest.PREFIX}{number}'
    network = netns.Network(prefix)
    host = hosts.Host('fast', lab.fast.pcpus, counts=True,
                      root=f'{conftest.ROOT}/counting{number}',
                      prefix=prefix, **options)
    try:
        network.create()
        host.start()
        yield host
    finally:
        host.remove()
        network.remove()


@pytest.fixture(scope='module')
def counting_host(lab):
    with made_host(lab, 3) as host:
        yield host


@pytest.fixture
def start(counting_host):
    yield lambda **options: guests.Guest(counting_host, **options)
    guests.destroy_all(counting_host)


class Reader:
    """The driver, which runs outside of the host.

    There processes have other ids: it gets those of the machine, and for each
    counter a name by them.
    """

    def __init__(self, host, directory):
        self._directory = directory
        self.counters = host.path(counting.DIRECTORY.lstrip('/'))
        self._linked = os.path.join(self.counters, 'machine')
        os.makedirs(self._linked, exist_ok=True)
        self.driver = driver.LibvirtHypervisor(
            host.libvirt_uri, run_path=str(directory),
            instructions_path=self._linked)
        self.driver.connect(lambda _event: None)

    def add(self, guest):
        """:returns: the path of its counter, in the host"""
        pid = guest.emulator
        (self._directory / f'{guest.name}.pid').write_text(f'{pid}\n')
        inner = procfs.read_text(f'/proc/{pid}/status').split(
            'NSpid:')[1].splitlines()[0].split()[-1]
        counter = os.path.join(self.counters, inner)
        os.link(counter, os.path.join(self._linked, str(pid)))
        return counter

    def read(self, guest):
        return self.driver.guest_work(self.driver.running()).get(guest.uuid)

    def close(self):
        self.driver.close()

    def wait(self, guest):
        return process.wait_until(lambda: self.read(guest), guests.LIMIT_S,
                                  f'counted instructions of {guest.name}')


@pytest.fixture
def reader(counting_host, tmp_path):
    with contextlib.closing(Reader(counting_host, tmp_path)) as made:
        yield made


def rate(before, after):
    """:returns: instructions per CPU second"""
    return 1e9 * (after.instructions - before.instructions) / (
        after.vcpu_ns - before.vcpu_ns)


@pytest.mark.parametrize('vcpus', [1, 2])
def test_a_guest_is_counted_while_it_runs(start, reader, vcpus):
    guest = start(vcpus=vcpus)
    counter = reader.add(guest)
    assert os.stat(counter).st_mode & 0o777 == 0o644
    readings = [reader.wait(guest)]
    for _ in range(3):
        # Not a wait for anything: the length of the measurement.
        time.sleep(MEASURED_S)
        readings.append(reader.read(guest))
    assert len({one.run for one in readings}) == 1
    assert {one.vcpus for one in readings} == {vcpus}
    for before, after in zip(readings, readings[1:], strict=False):
        assert 0 < rate(before, after) < MOST_PER_CPU_S
    assert reader.driver.guest_work_problems() == {}


def test_the_counter_goes_with_its_emulator(start, reader):
    guest = start()
    counter = reader.add(guest)
    reader.wait(guest)
    guest.domain().destroyFlags(0)
    process.wait_until(lambda: not os.path.exists(counter), guests.LIMIT_S,
                       'the end of a counter')
    assert reader.read(guest) is None


def test_what_a_killed_emulator_left_counts_for_no_other(start, reader):
    guest = start()
    counter = reader.add(guest)
    reader.wait(guest)
    pid = guest.emulator
    os.kill(pid, signal.SIGKILL)
    process.wait_until(lambda: reader.read(guest) is None, guests.LIMIT_S,
                       'the end of a guest')
    assert os.path.exists(counter)


def test_a_host_counts_only_where_it_is_wanted(lab, guest_on):
    guest = guest_on(lab.fast)
    assert not os.path.exists(lab.fast.path(counting.DIRECTORY.lstrip('/')))
    with open(f'/proc/{guest.emulator}/cmdline', 'rb') as arguments:
        assert b'-plugin' not in arguments.read().split(b'\0')


@pytest.mark.parametrize('way', slowcpu.WAYS)
def test_a_slow_host_counts_too(lab, monkeypatch, tmp_path, way):
    monkeypatch.setenv(slowcpu.VARIABLE, way)
    with made_host(lab, 4, slow=True) as host, contextlib.closing(
            Reader(host, tmp_path)) as reader:
        guest = guests.Guest(host)
        reader.add(guest)
        before = reader.wait(guest)
        time.sleep(MEASURED_S)
        assert 0 < rate(before, reader.read(guest)) < MOST_PER_CPU_S


def test_an_emulated_guest_is_none_of_the_cpu(lab, guest_on, tmp_path):
    """Without a plugin nothing counts it, and an operator learns why."""
    guest = guest_on(lab.fast)
    (tmp_path / f'{guest.name}.pid').write_text(f'{guest.emulator}\n')
    made = driver.LibvirtHypervisor(
        lab.fast.libvirt_uri, run_path=str(tmp_path),
        instructions_path=str(tmp_path / 'none'))
    made.connect(lambda _event: None)
    try:
        def problem():
            assert made.guest_work(made.running()) == {}
            return made.guest_work_problems().get(guest.uuid)
        found = process.wait_until(
            lambda: 'performance events' in (problem() or '')
            or 'no instruction' in (problem() or ''), guests.LIMIT_S,
            'the reason')
        assert found
    finally:
        made.close()


@pytest.fixture
def spinning():
    """A process of one thread that spins."""
    with subprocess.Popen([sys.executable, '-c', _SPIN]) as running:
        yield running.pid
        running.kill()


@pytest.mark.measured
def test_the_kernel_counts_what_a_thread_ran(spinning):
    counter = instructions.CpuCounter({0: spinning}, TASK_CLOCK)
    try:
        began, ran_ns = counter.read(), procfs.read_run(spinning).run_ns
        time.sleep(MEASURED_S)
        counted = counter.read() - began
        ran_ns = procfs.read_run(spinning).run_ns - ran_ns
        assert counted == pytest.approx(ran_ns, rel=0.05)
    finally:
        counter.close()


def test_a_thread_that_ends_counts_no_more(spinning):
    with pytest.raises(instructions.CountError):
        instructions.CpuCounter({0: 2**22 + 1}, TASK_CLOCK)
    counter = instructions.CpuCounter({0: spinning}, TASK_CLOCK)
    os.kill(spinning, signal.SIGKILL)
    try:
        process.wait_until(
            lambda: not os.path.exists(f'/proc/{spinning}/schedstat')
            or 'Z' in procfs.read_text(f'/proc/{spinning}/stat').rpartition(
                ')')[2], guests.LIMIT_S, 'the end of a process')
        first = counter.read()
        assert counter.read() == first
    finally:
        counter.close()


def test_a_machine_without_counters_says_so(spinning):
    problem = perf.probe([instructions.GUEST_INSTRUCTIONS])
    if not problem:
        requirement.need('this machine counts instructions of guests')
    assert problem == perf.reason(OSError(errno.ENOENT, ''))
    with pytest.raises(instructions.CountError, match='this CPU'):
        instructions.CpuCounter({0: spinning},
                                instructions.GUEST_INSTRUCTIONS)


@pytest.mark.parametrize('value, is_wanted', [
    (None, False), ('0', False), ('1', True), ('', None), ('yes', None)])
def test_counting_is_off_unless_it_is_asked_for(monkeypatch, value,
                                                is_wanted):
    monkeypatch.delenv(counting.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(counting.VARIABLE, value)
    if is_wanted is None:
        with pytest.raises(process.LabError, match=counting.VARIABLE):
            counting.is_wanted()
        return
    assert counting.is_wanted() is is_wanted
