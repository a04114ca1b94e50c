# SPDX-License-Identifier: Apache-2.0
"""Groups of the lab's hosts, in a tree of files as the kernel shows them."""

import os
import threading

import pytest

from nova_vqos_lab import cgroups

DOMAIN = 'lab/fast/machine/qemu-1-a.libvirt-qemu'


@pytest.fixture
def hierarchy(tmp_path):
    return cgroups.Hierarchy(2, dict.fromkeys(
        cgroups.CONTROLLERS, cgroups.Mount(str(tmp_path), '')))


@pytest.fixture
def make(tmp_path):
    def group(name, **files):
        path = tmp_path / name
        path.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (path / file.replace('_', '.')).write_text(content)
    return group


@pytest.fixture
def thread():
    """A second thread of this process."""
    done = threading.Event()
    running = threading.Thread(target=done.wait)
    running.start()
    yield running
    done.set()
    running.join()


def test_members_of_a_threaded_group_are_processes(hierarchy, make, thread):
    """The kernel lists the threads of such a group, and no processes."""
    make(DOMAIN, cgroup_type='domain threaded\n', cgroup_procs='')
    make(f'{DOMAIN}/emulator', cgroup_type='threaded\n',
         cgroup_threads=f'{thread.native_id}\n{os.getpid()}\n')
    assert list(cgroups.members(hierarchy, f'{DOMAIN}/emulator')) == [
        os.getpid()]


def test_a_thread_that_is_gone_is_no_member(hierarchy, make):
    most = 2**22  # Linux has no larger number.
    make(DOMAIN, cgroup_type='threaded\n', cgroup_threads=f'{most + 1}\n')
    assert list(cgroups.members(hierarchy, DOMAIN)) == []


@pytest.mark.parametrize('files', [
    {'cgroup_type': 'domain\n'}, {},
], ids=['version 2', 'version 1, or a root'])
def test_members_of_another_group(hierarchy, make, files):
    make('lab/fast', cgroup_procs='11\n12\n', **files)
    make('lab/fast/services', cgroup_procs='13\n', **files)
    assert sorted(cgroups.members(hierarchy, 'lab/fast')) == [11, 12, 13]


@pytest.mark.parametrize('vcpu, domain', [
    (f'{DOMAIN}/vcpu0', DOMAIN),
    # Where systemd made the group of the domain, libvirt made the rest.
    (f'{DOMAIN}/libvirt/vcpu0', DOMAIN),
])
def test_the_group_that_has_the_weight(vcpu, domain):
    assert cgroups.weight_group(vcpu) == domain
