# SPDX-License-Identifier: Apache-2.0
"""Bursts of other programs, in the groups of one domain."""

import pytest

from nova_vqos.hypervisor.linux import burst
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.tests.fixtures import fake_host


def path_of(host, child):
    return host.tuned / child / (
        'cpu.cfs_burst_us' if host.version == 1 else 'cpu.max.burst')


def set_burst(host, child, burst_us):
    path = path_of(host, child)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{burst_us}\n')
    return path


def clear(host):
    return burst.clear(str(host.root), fake_host.PID, host.version)


def test_all_groups_of_the_domain_are_cleared(host):
    expected = {str(set_burst(host, child, 1 + number)): 1 + number
                for number, child in enumerate(
                    ('', 'vcpu0', 'vcpu12', 'iothread1', 'emulator'))}
    set_burst(host, 'vcpu1', 0)
    assert clear(host) == expected
    for path in expected:
        with open(path) as file:
            assert int(file.read()) == 0
    assert clear(host) == {}


def test_groups_that_are_not_libvirts_stay(host):
    others = [set_burst(host, child, 7)
              for child in ('..', '../other', 'vcpux', 'guest')]
    assert clear(host) == {}
    assert [path.read_text() for path in others] == ['7\n'] * 4


def test_a_kernel_without_bursts_has_none(host):
    assert clear(host) == {}


def test_what_cannot_be_cleared_is_an_error(host):
    path = path_of(host, 'emulator')
    path.mkdir()
    with pytest.raises(cgroup.CgroupError, match='emulator'):
        clear(host)


def test_an_absent_emulator_is_an_error(host):
    with pytest.raises(cgroup.CgroupError):
        burst.clear(str(host.root), fake_host.PID + 1, host.version)
