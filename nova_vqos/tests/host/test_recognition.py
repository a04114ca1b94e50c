# SPDX-License-Identifier: Apache-2.0
"""Recognition on real threads, real performance events and a real libvirt.

The machine that this was written on has no counters of its CPU's caches, and
no KVM: there it is shown that this is said, and that events which the kernel
itself counts are opened, read and closed in threads of another process.
"""

import contextlib
import gc
import os
import resource
import subprocess
import sys
import time

import pytest

from nova_vqos.agent.quantum import watcher
from nova_vqos.agent.quantum.sources import base
from nova_vqos.agent.quantum.sources import cache
from nova_vqos.agent.quantum.sources import loading
from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_usage

clients, image, start, reader = (
    test_usage.clients, test_usage.image, test_usage.start,
    test_usage.reader)

UUID = 'd3b1a8c2-0000-4000-8000-000000000001'
MEASURED_S = 1.0
# PERF_COUNT_SW_TASK_CLOCK, in nanoseconds, and PERF_COUNT_SW_PAGE_FAULTS.
SOFTWARE = (perf.Event(perf.TYPE_SOFTWARE, 1),
            perf.Event(perf.TYPE_SOFTWARE, 2))

# Its second thread spins and touches new pages, its first one sleeps.
_LOAD = """
import mmap, threading
def work():
    while True:
        with mmap.mmap(-1, 64 * mmap.PAGESIZE) as pages:
            for page in range(64):
                pages[page * mmap.PAGESIZE] = 1
thread = threading.Thread(target=work)
thread.start()
print(thread.native_id, flush=True)
thread.join()
"""


@pytest.fixture
def load():
    """A process, and its threads that spins and that sleeps."""
    with subprocess.Popen([sys.executable, '-c', _LOAD], text=True,
                          stdout=subprocess.PIPE) as process:
        try:
            yield process, int(process.stdout.readline()), process.pid
        finally:
            process.kill()


@pytest.fixture
def source():
    made = cache.CacheSource(SOFTWARE)
    yield made
    made.close()


def look(source, *threads):
    """The rates of a source of two events, by the number of the thread."""
    servers = {UUID: dict(enumerate(threads))}
    found = source.read(base.Observation(time.monotonic(), servers, {}))
    return {number: (sample.references, sample.misses)
            for (_uuid, number), sample in found.items()}


def run_ns(thread):
    return procfs.read_run(thread).run_ns


@pytest.mark.measured
def test_events_are_counted_in_threads_that_were_there_before(load, source):
    _process, spinning, sleeping = load
    assert look(source, spinning, sleeping) == {}
    ran_ns, began_s = run_ns(spinning), time.monotonic()
    time.sleep(MEASURED_S)
    found = look(source, spinning, sleeping)
    ran_ns, passed_s = run_ns(spinning) - ran_ns, time.monotonic() - began_s
    assert source.available() == ''
    clock_ns, faults = found[0]
    # The kernel's other count of the same, read around it.
    assert clock_ns == pytest.approx(ran_ns / passed_s, rel=0.05, abs=20e6)
    assert faults > 1000
    assert found[1] == (0, 0)


def test_what_is_counted_is_the_time_that_a_thread_ran(load):
    """What is enabled is not the time that passes: hence the scale."""
    _process, spinning, sleeping = load
    for thread, least_ns, most in ((spinning, 1, 1.1), (sleeping, 0, 0)):
        group = perf.Group(SOFTWARE, thread)
        began_ns, before = time.monotonic_ns(), group.read()
        time.sleep(0.3)
        after, ended_ns = group.read(), time.monotonic_ns()
        group.close()
        assert (least_ns <= after.enabled_ns - before.enabled_ns
                <= most * (ended_ns - began_ns))
        assert after.running_ns == after.enabled_ns
        assert len(after.values) == 2


def test_files_are_closed_when_threads_vanish(load, source):
    process, spinning, sleeping = load
    files = len(os.listdir('/proc/self/fd'))
    look(source, spinning, sleeping)
    assert len(os.listdir('/proc/self/fd')) == files + 4
    process.kill()
    process.wait()
    # Still asked for: they do nothing any more, and that is no error.
    time.sleep(0.01)
    look(source, spinning, sleeping)
    time.sleep(0.01)
    assert look(source, spinning, sleeping) == {0: (0, 0), 1: (0, 0)}
    look(source)
    assert len(os.listdir('/proc/self/fd')) == files
    # One that is gone is not opened again.
    assert look(source, spinning) == {}
    assert source.available() == ''
    assert len(os.listdir('/proc/self/fd')) == files


def _fill_numbers(filled):
    """Use all numbers of files that are free below the largest.

    The kernel takes the lowest, and a limit is on the number itself. What
    other tests left may have closed any.

    :param filled: closes them
    :returns: the next number
    """
    gc.collect()
    while True:
        number = os.open('/', os.O_RDONLY)
        if number > max(int(name) for name in os.listdir('/proc/self/fd')
                        if int(name) != number and os.path.lexists(
                            f'/proc/self/fd/{name}')):
            os.close(number)
            return number
        filled.callback(os.close, number)


def test_without_files_it_says_so(load, source):
    _process, spinning, sleeping = load
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as filled:
        free = _fill_numbers(filled)
        # Two more: a probe has them for a moment, then the first thread.
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, hard))
        try:
            look(source, spinning, sleeping)
            assert source.available().startswith(
                '1 of 2 vCPUs are not watched: ')
            assert 'Too many open files' in source.available()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    look(source, spinning, sleeping)
    assert source.available() == ''


# A user with one capability, as the agent's unit makes it, tries to count
# events of another user's thread.
_TRY = """
import sys
from nova_vqos.agent.quantum.sources import base, cache
from nova_vqos.hypervisor.linux import perf
source = cache.CacheSource((perf.Event(1, 1), perf.Event(1, 2)))
source.read(base.Observation(1.0, {'server': {0: int(sys.argv[1])}}, {}))
print(source.available())
"""


@pytest.mark.parametrize('capability, text', [
    ('perfmon', ''), ('sys_nice', 'CAP_PERFMON')])
def test_the_capability_that_it_takes(open_checkout, capability, text):
    confine = ['setpriv', '--reuid=2', '--regid=2', '--clear-groups',
               '--no-new-privs', *(
                   f'--{kind}=-all,+{capability}'
                   for kind in ('inh-caps', 'ambient-caps', 'bounding-set'))]
    with subprocess.Popen(['setpriv', '--reuid=1', '--regid=1',
                           '--clear-groups', 'sleep', '60']) as other:
        try:
            while os.stat(f'/proc/{other.pid}').st_uid != 1:
                time.sleep(0.01)
            done = subprocess.run(
                [*confine, sys.executable, '-c', _TRY, str(other.pid)],
                check=True, capture_output=True, text=True,
                timeout=guests.LIMIT_S)
        finally:
            other.kill()
    assert text in done.stdout
    assert bool(text) == bool(done.stdout.strip())


def test_what_this_machine_cannot_count_it_says(load):
    _process, spinning, _sleeping = load
    source = cache.CacheSource()
    try:
        look(source, spinning)
        time.sleep(0.1)
        found = look(source, spinning)
        if source.available():
            assert source.available() == (
                'this CPU, or the hypervisor below it, does not count these '
                'events')
            assert found == {}
        else:
            references, misses = found[0]
            assert references > 0
            assert misses >= 0
    finally:
        source.close()


@pytest.mark.measured
def test_a_guest_that_answers_requests_does_io(start, clients, reader):
    guest = start()
    reader.add(guest)
    made = watcher.Watcher(
        loading.load(['io', 'spin', 'cache']),
        recognition.Limits(io_requests=300),
        reader.driver.activity)

    def see(looks):
        for _ in range(looks):
            made.observe({guest.uuid: reader.driver.vcpu_threads(guest.uuid)},
                      time.monotonic())
            time.sleep(1)
        return made.kind(guest.uuid, 0)

    traffic = clients.load('http', guest.address, '--clients', '4',
                           '--seconds', '600')
    try:
        time.sleep(1)
        # The lab's own count, around the driver's, and within them.
        counted = [requests(guest)]
        before = reader.driver.activity([guest.uuid])[guest.uuid]
        counted.append(requests(guest))
        looks, began_s = 1, time.monotonic()
        # On a machine that stands still a look finds few requests.
        while see(1) is not model.Kind.IO:
            looks += 1
            assert looks < guests.LIMIT_S, made.status()
        late_s = time.monotonic() - began_s - looks
        # Four readings, a second apart; the first has no rates.
        assert 3 <= made.recognised_after_s(guest.uuid, 0) < 6 + late_s
        counted.append(requests(guest))
        after = reader.driver.activity([guest.uuid])[guest.uuid]
        counted.append(requests(guest))
        grown = sum(after.requests.values()) - sum(before.requests.values())
        assert counted[2] - counted[1] <= grown <= counted[3] - counted[0]
        assert after.run == before.run
        assert after.runs[0] > before.runs[0]
        ran_ns = after.ran_ns[0] - before.ran_ns[0]
        assert 0 < ran_ns <= after.ready_ns[0] - before.ready_ns[0]
        assert made.status()['io'] == ''
        if after.waits == {}:
            # As without KVM.
            assert 'does not count how often vCPUs wait' in (
                made.status()['spin'])
        traffic.kill()
        traffic.wait(guests.LIMIT_S)
        # It rests, and nobody sees what else it does, or that it rests.
        assert see(9) in (None, model.Kind.NEUTRAL)
    finally:
        traffic.kill()
        traffic.wait(guests.LIMIT_S)
        made.close()


def requests(guest):
    packets, disks = guest.packets(), guest.disk_requests()
    return packets['rx'] + packets['tx'] + disks['read'] + disks['write']
