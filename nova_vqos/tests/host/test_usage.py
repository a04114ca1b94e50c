# SPDX-License-Identifier: Apache-2.0
"""What real guests use, read by the driver and counted independently.

The driver runs here, outside of the host, and reads the machine's own /proc
and cgroups. It gets the ids of the emulators' processes from the test, since
these differ within the host.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import libvirt
import pytest

from nova_vqos.agent.messages import server_report
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import bulk
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.linux import accounting
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.tests.fixtures import readings
from nova_vqos.tests.host import guests
from nova_vqos_lab import cgroups
from nova_vqos_lab import emulator
from nova_vqos_lab import ioguest
from nova_vqos_lab import ionet
from nova_vqos_lab import process

MEASURED_S = 8
# More than a machine that stands still for seconds needs for a call of one.
HANGS_S = 15
# In which the kernel counts the time of a process.
TICK_NS = 10_000_000
# What it counts of a whole and of its parts differs by.
TOLERANCE = 0.02
# What differences of the clock are off by, in floating point.
ROUNDING_S = 1e-6
PARTS = ('vcpu_ns', 'emulator_ns', 'iothread_ns', 'vhost_ns', 'migration_ns')


@pytest.fixture(scope='module')
def clients(lab):
    network = ionet.ClientNetwork(lab.fast, lab.network)
    network.create()
    yield network
    network.remove()


@pytest.fixture(scope='module')
def image(lab):
    return ioguest.build_image(os.path.dirname(lab.fast.directory))


@pytest.fixture
def start(lab, clients, image):
    """Starts guests that do I/O; all are ended after the test."""
    started = []

    def start_guest(**options):
        started.append(ioguest.IoGuest(lab.fast, image, number=len(started),
                                       **options))
        started[-1].wait_ready()
        return started[-1]
    yield start_guest
    for guest in started:
        with contextlib.suppress(libvirt.libvirtError):
            guest.destroy()


class Reader:
    """The driver, for some guests of the host fast."""

    def __init__(self, host, directory):
        self._directory = directory
        self.driver = driver.LibvirtHypervisor(host.libvirt_uri,
                                               run_path=str(directory))
        self.driver.connect(lambda _event: None)

    def add(self, guest, pid=None):
        (self._directory / f'{guest.name}.pid').write_text(
            f'{pid or guest.pid}\n')

    def read(self, guest):
        return self.driver.usages([guest.uuid], {})[guest.uuid]


@pytest.fixture
def reader(lab, tmp_path):
    made = Reader(lab.fast, tmp_path)
    yield made
    made.driver.close()


def used_ns(before, after):
    return {name: getattr(after, name) - getattr(before, name)
            for name in PARTS}


@pytest.mark.measured
def test_the_parts_of_what_a_guest_uses(start, clients, reader):
    guest = start(readers=1, iothread=True)
    reader.add(guest)
    described = reader.driver.describe(guest.uuid)
    assert described.interfaces == {
        guest.tap: usage.InterfaceKind('bridge', 'qemu')}
    assert set(described.disks) == {'vda'}
    assert described.disks['vda'].source == 'file'

    load = clients.load('http', guest.address, '--clients', '2', '--seconds',
                        str(MEASURED_S + 4))
    time.sleep(2)
    counted = [guest.packets(), guest.disk_requests()]
    # Before and after each reading: on a busy machine one takes its time.
    times, read_s = [], []

    def count():
        times.append(cpu_times(guest))
        read_s.append(time.monotonic())
    count()
    before = reader.read(guest)
    count()
    time.sleep(MEASURED_S)
    count()
    after = reader.read(guest)
    count()
    counted += [guest.packets(), guest.disk_requests()]
    load.communicate(timeout=60)

    used = used_ns(before, after)
    outer, inner = ({part: last[part] - first[part] for part in first}
                    for first, last in ((times[0], times[3]),
                                        (times[1], times[2])))
    for part, part_ns in (('process', sum(used.values())), *(
            (part, used[f'{part}_ns'])
            for part in ('vcpu', 'emulator', 'iothread'))):
        assert part_ns > 0
        assert readings.between(inner[part], part_ns, outer[part],
                                TICK_NS + TOLERANCE * part_ns)
    assert used['vhost_ns'] == used['migration_ns'] == 0
    assert before.run == after.run
    # Read between the two that are counted around it.
    assert readings.between(
        read_s[2] - read_s[1], after.read_at_s - before.read_at_s,
        read_s[3] - read_s[0], ROUNDING_S)
    assert_devices_moved(guest, before, after, *counted)


@pytest.mark.parametrize('shares_memory', [True, False])
def test_the_memory_of_an_emulator(lab, reader, shares_memory):
    """Beyond the guest's RAM, by the kernel's own account of each mapping."""
    ram_mib = 48
    guest = guests.Guest(lab.fast, memory_mib=ram_mib,
                         shares_memory=shares_memory)
    try:
        reader.add(guest, guest.emulator)
        ram_bytes = reader.driver.describe(guest.uuid).private_ram_bytes
        assert ram_bytes == (0 if shares_memory else ram_mib * 2**20)
        before, of_ram = private_bytes(guest.emulator, ram_mib * 2**20)
        resident, = reader.driver.emulator_memory([guest.uuid]).values()
        after, _ = private_bytes(guest.emulator, ram_mib * 2**20)
    finally:
        guest.domain().destroy()
    found = server_report.EmulatorMemory.of(resident, ram_bytes)
    # The kernel counts up to 64 pages of each thread, or a batch of each
    # pCPU, late.
    slack = 8 * 2**20
    assert found.low_bytes - slack <= min(before, after)
    assert found.high_bytes + slack >= max(before, after)
    assert bool(of_ram) is not shares_memory
    if shares_memory:
        assert found.low_bytes == found.high_bytes
        assert found.high_bytes == pytest.approx(before, abs=slack)
        assert found.high_bytes > slack


def private_bytes(pid, ram_bytes):
    """Read the private memory of a process that is resident.

    :returns: that of all mappings but the guest's RAM, and that of the RAM,
        which is known by its size; the lab may have given it some more
    """
    sizes = (ram_bytes, ram_bytes + emulator.MORE_RAM_BYTES)
    others = of_ram = size = 0
    with open(f'/proc/{pid}/smaps', encoding='utf-8') as maps:
        for line in maps:
            name, _, value = line.partition(':')
            if name == 'Size':
                size = int(value.split()[0]) * 1024
            elif name == 'Anonymous':
                private = int(value.split()[0]) * 1024
                if size in sizes:
                    of_ram += private
                else:
                    others += private
    return others, of_ram


def cpu_times(guest):
    """:returns: of its process, and of each of its groups"""
    groups = guest.cpu_time()
    return {'process': guest.process_cpu_ns(), 'vcpu': groups.vcpu,
            'emulator': groups.emulator, 'iothread': groups.iothread}


def assert_devices_moved(guest, before, after, packets, requests,
                         packets_after, requests_after):
    """What the driver says lies within what is counted around it."""
    tap, tap_after = (found.interfaces[guest.tap] for found in (before, after))
    for name, others in (('rx_packets', 'rx'), ('rx_bytes', 'rx_bytes'),
                         ('tx_packets', 'tx'), ('tx_bytes', 'tx_bytes')):
        assert (packets[others] <= getattr(tap, name)
                < getattr(tap_after, name) <= packets_after[others])
    disk, disk_after = (found.disks['vda'] for found in (before, after))
    assert (requests['read'] <= disk.read_requests
            < disk_after.read_requests <= requests_after['read'])
    assert (requests['read_bytes'] <= disk.read_bytes
            < disk_after.read_bytes <= requests_after['read_bytes'])
    assert disk_after.write_requests == 0


@pytest.mark.measured
def test_the_time_that_a_cap_takes(start, reader):
    guest = start(cap=(10_000, 50_000), spin=True)
    reader.add(guest)
    periods = throttled_periods(guest)
    before = reader.read(guest)
    time.sleep(MEASURED_S)
    after = reader.read(guest)
    periods = throttled_periods(guest) - periods
    elapsed_ns = (after.read_at_s - before.read_at_s) * 1e9
    used = used_ns(before, after)['vcpu_ns'] / elapsed_ns
    # In a period in which it was held back it had used up its quota; on a busy
    # machine there are others.
    assert periods > 40
    assert 0.95 * 10_000_000 * (periods - 1) / elapsed_ns < used < 1.05 * 0.2
    # It spins: what it did not get, it was held back from; a busy machine
    # takes of that.
    throttled = (after.throttled_ns - before.throttled_ns) / elapsed_ns
    assert 0.4 < throttled < 0.85


def throttled_periods(guest):
    return cgroups.throttled_periods(guest.host.hierarchy, guest.group())


def test_a_new_agent_reads_the_same_counters(lab, start, reader, tmp_path):
    guest = start()
    reader.add(guest)
    guest.pause()
    before = reader.read(guest)
    again = Reader(lab.fast, tmp_path)
    after = again.read(guest)
    again.driver.close()
    assert after.run == before.run
    assert all(0 <= value < 50_000_000
               for value in used_ns(before, after).values())


def test_another_run_has_another_name(start, reader):
    guest = start()
    reader.add(guest)
    before = reader.read(guest)
    guest.domain.reset()
    # The guest boots anew; its emulator does not.
    assert reader.read(guest).run == before.run
    statistics = reader.driver._statistics
    guest.destroy()
    with pytest.raises(KeyError):
        reader.read(guest)
    again = start()
    reader.add(again)
    assert reader.read(again).run != before.run
    # One that ends while others are read does not hinder that: its domain was
    # looked up.
    assert set(statistics._read_disks([guest.uuid, again.uuid])) == {
        again.uuid}


@pytest.mark.measured
def test_what_a_cancelled_migration_used_is_nobodys(lab, guest_on, reader):
    """Its threads' time is counted apart from the emulator's, also after they
    ended.
    """
    guest = guest_on(lab.fast)
    pid = guest.emulator
    reader.add(guest, pid)
    # Before and after each reading: on a busy machine one takes its time.
    process_ns = [process_cpu_ns(pid)]
    before = reader.read(guest)
    process_ns.append(process_cpu_ns(pid))
    # 1 MiB/s: it would take minutes.
    migration = threading.Thread(target=migrate_slowly, args=(guest, lab))
    migration.start()
    process.wait_until(
        lambda: reader.read(guest).migration_ns > 10_000_000, guests.LIMIT_S,
        'CPU time of a migration')
    during = reader.read(guest)
    guest.domain().abortJob()
    migration.join(guests.LIMIT_S)
    time.sleep(2)
    process_ns.append(process_cpu_ns(pid))
    after = reader.read(guest)
    process_ns.append(process_cpu_ns(pid))
    used = sum(used_ns(before, after).values())
    assert ((process_ns[2] - process_ns[1]) * 0.98 - TICK_NS <= used
            <= (process_ns[3] - process_ns[0]) * 1.02 + TICK_NS)
    assert after.migration_ns >= during.migration_ns > 10_000_000


def process_cpu_ns(pid):
    with open(f'/proc/{pid}/stat', encoding='utf-8') as stat:
        fields = stat.read().rpartition(')')[2].split()
    return ((int(fields[11]) + int(fields[12]))
            * 1_000_000_000 // os.sysconf('SC_CLK_TCK'))


def migrate_slowly(guest, lab):
    domain = guest.domain()
    domain.migrateSetMaxSpeed(1)
    with contextlib.suppress(libvirt.libvirtError):
        guest.migrate(lab.slow)


@pytest.mark.measured
def test_a_qemu_that_hangs_hides_disks_once(start, reader):
    reader.driver._qemus._bulk = bulk.BulkReader(1.0)
    hanging, other = start(), start()
    for guest in hanging, other:
        reader.add(guest)
    uuids = [hanging.uuid, other.uuid]
    os.kill(hanging.pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        found = reader.driver.usages(uuids, {})
        # libvirt would wait for ever.
        assert 1 <= time.monotonic() - began_s < HANGS_S
        for uuid in uuids:
            assert found[uuid].disks is None
            assert found[uuid].vcpu_ns > 0
            assert found[uuid].interfaces

        def disks():
            found = reader.driver.usages(uuids, {})
            assert found[hanging.uuid].disks is None
            return found[other.uuid].disks
        # The next one passes it by.
        assert set(process.wait_until(
            disks, HANGS_S, 'the disks of one that answers')) == {'vda'}
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
    process.wait_until(
        lambda: reader.read(hanging).disks, guests.LIMIT_S,
        'the disks of a QEMU that goes on')


@contextlib.contextmanager
def asked_while_it_hangs(guest, reader):
    """:yields: the thread of a call to which the guest's QEMU gives no answer
    """
    reader.add(guest)
    reader.read(guest)
    reader.driver._qemus._bulk = bulk.BulkReader(guests.LIMIT_S)
    asking = threading.Thread(target=reader.driver.activity,
                              args=([guest.uuid],))
    os.kill(guest.pid, signal.SIGSTOP)
    try:
        asking.start()
        process.wait_until(
            lambda: guest.domain.controlInfo()[0]
            == libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, guests.LIMIT_S,
            'the call that asks the QEMU')
        yield asking
    finally:
        os.kill(guest.pid, signal.SIGCONT)
        asking.join(guests.LIMIT_S)


@pytest.mark.measured
def test_a_qemu_that_hangs_delays_no_other_call(start, reader):
    """Before version 10.0 libvirt's client loses calls for 5 s beside it."""
    guest = start()
    with asked_while_it_hangs(guest, reader) as asking:
        began_s = time.monotonic()
        for _ in range(500):
            assert guest.uuid in reader.driver.running()
        took_s = time.monotonic() - began_s
        assert asking.is_alive(), f'the calls took {took_s:.1f} s'


def test_no_write_waits_for_a_qemu_that_just_began_to_hang(start, reader):
    """libvirt would let it wait for 30 s."""
    guest = start()
    with asked_while_it_hangs(guest, reader) as asking:
        with pytest.raises(base.DomainBusy):
            reader.driver.write(guest.uuid, [
                base.Change(base.Parameter.SHARES, 600)])
        assert asking.is_alive()


@pytest.mark.measured
def test_the_cpu_time_of_the_whole_machine(start, reader):
    guest = start(spin=True)
    reader.add(guest)
    reader.read(guest)
    reader.driver.host_usage()
    # Known by then: below which of the topmost cgroups domains are.
    busy_ns = [busy()]
    before = reader.driver.host_usage()
    busy_ns.append(busy())
    server = reader.read(guest)
    time.sleep(MEASURED_S)
    server_after = reader.read(guest)
    busy_ns.append(busy())
    after = reader.driver.host_usage()
    busy_ns.append(busy())
    total_ns = after.total_ns - before.total_ns
    domains_ns = after.domains_ns - before.domains_ns
    own_ns = after.own_ns - before.own_ns
    # The kernel samples at ticks what /proc/stat says.
    assert (0.9 * (busy_ns[2] - busy_ns[1]) <= total_ns
            <= 1.1 * (busy_ns[3] - busy_ns[0]))
    assert domains_ns + own_ns <= total_ns * 1.01
    server_ns = sum(used_ns(server, server_after).values())
    # The whole lab is below one of them, its services included.
    assert server_ns * 0.98 < domains_ns
    # Loopback alone has had packets, and each pCPU has served a timer.
    assert after.packets.keys() >= os.sched_getaffinity(0)
    did = [after.packets[pcpu].since(before.packets[pcpu])
           for pcpu in after.packets]
    assert all(one.processed < 1 << 31 for one in did)
    assert sum(one.softirq_ns for one in after.packets.values()) > 0


def busy():
    """:returns: what all CPUs did that was not idling or another guest's"""
    with open('/proc/stat', encoding='ascii') as stat:
        ticks = [int(word) for word in stat.readline().split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq = ticks[:7]
    return ((user + nice + system + irq + softirq)
            * 1_000_000_000 // os.sysconf('SC_CLK_TCK'))


def test_what_a_vcpu_used_that_was_unplugged_stays(lab):
    """In cgroups of our own, as QEMU unplugs vCPUs of willing guests only."""
    with (group_of_our_own(lab.fast) as directories,
          run_in(directories, 'emulator', 'sleep', '60') as emulator,
          # For a second of CPU time.
          run_in(directories, 'vcpu0', 'prlimit', '--cpu=1', 'sh', '-c',
                 'while :; do :; done') as spinner):
        account = Account(emulator)
        spinner.wait(guests.LIMIT_S)
        used_ns = account.read().vcpu_ns
        assert used_ns > 500_000_000
        for directory in directories:
            os.rmdir(f'{directory}/vcpu0')
        assert account.read().vcpu_ns >= used_ns
        account.close()
        account = Account(emulator)
        assert account.read().vcpu_ns >= used_ns
        account.close()


# Has two threads of such names use a third of a second each; ends the second
# on request.
_THREADS = """
import ctypes, threading, time
def work(name, used, end):
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
    while time.thread_time() < 0.33:
        pass
    used.set()
    end.wait()
events = [(name, threading.Event(), threading.Event())
          for name in ('vhost-1', 'live_migration')]
threads = [threading.Thread(target=work, args=event, daemon=True)
           for event in events]
for thread in threads:
    thread.start()
for name, used, end in events:
    used.wait()
print('used', flush=True)
input()
events[1][2].set()
threads[1].join()
print('ended', flush=True)
input()
"""


@pytest.mark.measured
def test_threads_are_known_by_their_name(lab):
    """On the real kernel, with the names of threads that QEMU has not here."""
    with (group_of_our_own(lab.fast) as directories,
          run_in(directories, 'emulator', sys.executable, '-c',
                 _THREADS) as emulator):
        account = Account(emulator)
        assert emulator.stdout.readline() == 'used\n'
        before = account.read()
        for kind in 'vhost_ns', 'migration_ns':
            assert getattr(before, kind) == pytest.approx(330_000_000, rel=0.1)
        emulator.stdin.write('\n')
        emulator.stdin.flush()
        assert emulator.stdout.readline() == 'ended\n'
        after = account.read()
        account.close()
    assert after.migration_ns >= before.migration_ns
    assert after.vhost_ns >= before.vhost_ns
    assert after.emulator_ns - before.emulator_ns < 100_000_000


class Account:
    """The account of a process in cgroups of our own."""

    def __init__(self, emulator):
        self._cache = domain_files.Cache(
            '/', lambda _uuid: domain_files.Emulator(1, emulator.pid))
        self.close = self._cache.close

    def read(self):
        return self._cache.use('', accounting.Account,
                               accounting.Account.read)[1]


@contextlib.contextmanager
def group_of_our_own(host):
    """Cgroups as libvirt makes them for a domain with one vCPU."""
    hierarchy = host.hierarchy
    group = f'{host.cgroup}/{cgroups.MACHINE}/qemu-99-x.libvirt-qemu'
    directories = list(dict.fromkeys(
        hierarchy.directory(controller, group)
        for controller in ('cpu', 'cpuacct')))
    for directory in directories:
        for name in 'emulator', 'vcpu0':
            os.makedirs(f'{directory}/{name}')
    try:
        yield directories
    finally:
        cgroups.remove(hierarchy, group)


@contextlib.contextmanager
def run_in(directories, name, *command):
    """A command that runs in a cgroup, of all controllers."""
    entering = ''.join(f'echo $$ >{directory}/{name}/cgroup.procs; '
                       for directory in directories)
    # It says itself that it is there: it may end before anyone looks.
    with subprocess.Popen(
            ['sh', '-ec', f'{entering} echo there; exec "$@"', 'sh', *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == 'there\n'
            yield child
        finally:
            child.kill()
