# SPDX-License-Identifier: Apache-2.0
"""The lab's hosts themselves: apart from each other, and gone when removed."""

import concurrent.futures
import contextlib
import os
import re
import signal
import statistics
import subprocess

import libvirt
import pytest

from nova_vqos.tests.host import conftest
from nova_vqos.tests.host import guests
from nova_vqos_lab import cgroups
from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import slowcpu

pytestmark = pytest.mark.rotation


def test_each_has_its_own_libvirt(lab):
    fast, slow = (guests.connect(host) for host in lab.hosts)
    assert (fast.getHostname(), slow.getHostname()) == ('fast', 'slow')
    assert uuid_of(fast) != uuid_of(slow)


def uuid_of(connection):
    start = connection.getCapabilities().index('<uuid>')
    return connection.getCapabilities()[start:start + 42]


def test_they_are_in_one_network_that_the_machine_is_not_in(lab):
    lab.fast.run(['virsh', '-c', 'qemu+tcp://slow/system', 'version'])
    shown = process.run(['ip', 'address', 'show']).stdout
    for address in (lab.fast.address, lab.slow.address,
                    paths.CONTROLLER_ADDRESS):
        assert address not in shown


def test_what_is_left_behind_runs_on_and_is_reaped(lab):
    left = lab.fast.popen(['sleep', '1000'])
    assert left.alive()
    left.kill()
    # It has ended, and is there until the host's PID 1 has looked.
    process.wait_until(
        lambda: lab.fast.run(['pgrep', '-c', 'sleep'],
                             check=False).stdout.strip() == '0', 60,
        'no zombie')


def test_the_slow_host_wraps_qemu_and_the_fast_one_does_not(lab, guest_on):
    """In whatever way it is slow: by a plugin, or by a library."""
    assert 'slowcpu' not in memory_map(guest_on(lab.fast))
    assert 'slowcpu' in memory_map(guest_on(lab.slow))


def memory_map(guest):
    return guest.host.run(['cat', f'/proc/{pid_of(guest)}/maps']).stdout


def pid_of(guest):
    """:returns: that of its QEMU, as its host sees it"""
    return guest.host.run(
        ['cat', f'/run/libvirt/qemu/{guest.name}.pid']).stdout.strip()


def test_nothing_finds_a_kvm(lab):
    """Nor may libvirt think that it could: it would ask QEMU each time."""
    assert lab.fast.run(['test', '-w', '/dev/kvm'],
                        check=False).returncode == 1


@contextlib.contextmanager
def second_host(**options):
    """A host in a lab of its own."""
    prefix = f'{conftest.PREFIX}2'
    network = netns.Network(prefix)
    host = hosts.Host('fast', {0}, root=f'{conftest.ROOT}/second',
                      prefix=prefix, **options)
    try:
        network.create()
        yield host, network
    finally:
        host.remove()
        network.remove()


def test_a_host_of_slower_instructions(lab, monkeypatch):
    monkeypatch.setenv(slowcpu.VARIABLE, slowcpu.INSTRUCTIONS)
    with second_host(slow=True) as (host, _network):
        host.start()
        assert 'slowcpu-instructions' in memory_map(guests.Guest(host))


def test_a_host_of_a_lower_clock(lab, monkeypatch):
    """Its guests' vCPUs take the signal that nothing else in QEMU does."""
    monkeypatch.setenv(slowcpu.VARIABLE, slowcpu.CLOCK)
    with second_host(slow=True) as (host, _network):
        host.start()
        guest = guests.Guest(host)
        assert 'slowcpu-clock' in memory_map(guest)
        last = 1 << (signal.SIGRTMAX - 1)
        assert signal_mask(guest, 'SigCgt') & last
        # For half of the time it is at work, and blocked meanwhile.
        process.wait_until(
            lambda: not signal_mask(guest, 'SigBlk') & last, 20,
            'a vCPU that is not idle by its clock')
        # As all others always are, in QEMU's threads.
        assert signal_mask(guest, 'SigBlk') & 1 << (signal.SIGHUP - 1)


def signal_mask(guest, name):
    """:returns: a mask of signals of its vCPU, as the kernel has it"""
    status = guest.host.run(['sh', '-c', 'cd /proc/$0/task && cat $(dirname '
                             '$(grep -lx "CPU 0/TCG" */comm))/status',
                             pid_of(guest)]).stdout
    return int(re.search(rf'^{name}:\s*(\w+)$', status, re.M)[1], 16)


@pytest.mark.measured
@pytest.mark.parametrize('argv', [
    ['sysbench', 'cpu', '--time=0', '--events=3000', '--threads=2', 'run'],
    ['awk', 'BEGIN {for (n = 0; n < 4e6; n++) l[n % 97] += length(n)}']],
    ids=['threads', 'awk'])
def test_a_lower_clock_slows_all_work_alike(argv, tmp_path):
    library = str(tmp_path / 'clock.so')
    slowcpu.build_clock(library)

    def spent_s(**variables):
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL,
                              env={**os.environ, **variables}) as running:
            _pid, status, usage = os.wait4(running.pid, 0)
            running.returncode = os.waitstatus_to_exitcode(status)
        assert running.returncode == 0
        return usage.ru_utime + usage.ru_stime

    # In turns: a machine among others has its moods.
    slower = statistics.median(spent_s(LD_PRELOAD=library) / spent_s()
                               for _ in range(5))
    # The slow emulator is between 1.2 and 2.3.
    assert slower == pytest.approx(100 / slowcpu.SHARE, rel=0.2)


def test_hosts_make_and_leave_the_labs_group_at_the_same_time():
    hierarchy = cgroups.detect()
    lab = f'{paths.PREFIX}-group'

    def make_and_leave(name):
        group = f'{lab}/{name}'
        for _ in range(50):
            cgroups.create(hierarchy, group)
            cgroups.remove(hierarchy, group)
            cgroups.remove_if_empty(hierarchy, lab)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        # An error of any of them is raised.
        list(pool.map(make_and_leave, ('fast', 'slow', 'other')))
    for mount in hierarchy.roots():
        assert not os.path.exists(os.path.join(mount.directory, lab))


def test_a_host_that_was_killed_starts_anew_and_leaves_nothing():
    prefix = f'{conftest.PREFIX}2'
    # Killing a host of the others' lab would end their guests.
    with second_host() as (host, network):
        host.start()
        first = process.Process.load(host.path('init.pid'))
        libvirtd = host.libvirtd
        first.signal(signal.SIGKILL)
        assert first.wait(10)
        # The kernel ends everything in a pid namespace with its first.
        assert libvirtd.wait(10)
        assert not host.alive()

        host.start()
        assert guests.connect(host).listAllDomains() == []
        # Again, with all of it running: nothing is done twice.
        running = host.libvirtd.pid
        host.start()
        assert host.libvirtd.pid == running
    assert not network.exists(network.controller)
    assert not network.exists(network.of_host('fast'))
    hierarchy = cgroups.detect()
    assert list(cgroups.members(hierarchy, prefix)) == []
    for controller in cgroups.CONTROLLERS:
        assert not os.path.exists(hierarchy.directory(controller, prefix))
    with open('/proc/self/mounts', encoding='utf-8') as mounts:
        assert prefix not in mounts.read()
    with pytest.raises(libvirt.libvirtError):
        guests.connect(host)
