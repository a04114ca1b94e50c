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

"""The lab's hosts themselves: apart from each other, and gone when removed."""

import os
import signal

import libvirt
import pytest

from nova_vqos.tests.host import conftest
from nova_vqos.tests.host import guests
from nova_vqos_lab import cgroups
from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns
from nova_vqos_lab import paths
from nova_vqos_lab import process


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
    shown = process.wait_until(
        lambda: lab.fast.run(['pgrep', '-c', 'sleep'], check=False), 10,
        'the count of zombies')
    assert shown.stdout.strip() == '0'


def test_a_command_that_fails_says_why(lab):
    with pytest.raises(process.LabError, match='on host fast failed with 3'):
        lab.fast.run(['sh', '-c', 'exit 3'])
    with pytest.raises(process.LabError, match='not done within 0.2 s'):
        lab.fast.run(['sleep', '1000'], limit_s=0.2)
    with pytest.raises(process.LabError, match='cannot be run: No such file'):
        lab.fast.popen(['nonesuch'])


def test_the_slow_host_wraps_qemu_and_the_fast_one_does_not(lab, guest_on):
    assert '-plugin' not in command_line(guest_on(lab.fast))
    assert '-plugin' in command_line(guest_on(lab.slow))


def command_line(guest):
    pid = guest.host.run(['cat', f'/run/libvirt/qemu/{guest.name}.pid'])
    return guest.host.run(
        ['cat', f'/proc/{pid.stdout.strip()}/cmdline']).stdout.split('\0')


def test_a_host_that_was_killed_starts_anew_and_leaves_nothing():
    # A lab of its own: killing a host of the others' would end their guests.
    prefix = f'{conftest.PREFIX}2'
    root = f'{conftest.ROOT}/second'
    network = netns.Network(prefix)
    host = hosts.Host('fast', {0}, root=root, prefix=prefix)
    try:
        network.create()
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
    finally:
        host.remove()
        network.remove()
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
