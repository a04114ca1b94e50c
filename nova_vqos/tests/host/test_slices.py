# SPDX-License-Identifier: Apache-2.0
"""Slices of real threads on this kernel, and of a real guest's."""

import os
import subprocess
import sys

import libvirt
import pytest

from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.hypervisor.linux import threads
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import guests
from nova_vqos_lab import process

LIMIT_S = guests.LIMIT_S
SLICE_US = 90_000
OTHER_SLICE_US = 5_000

needs_slices = pytest.mark.requires(
    'this kernel has no slices to set' if sched_attr.slice_us(0) is None
    else '')
pytestmark = needs_slices


@pytest.fixture
def sleeper():
    """A process that waits for its end."""
    with subprocess.Popen([sys.executable, '-c', 'input()'],
                          stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def make_real_time(tid):
    try:
        os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(3))
    except PermissionError as error:
        requirement.need('this kernel lets no thread of this group be a '
                         f'real-time one (CONFIG_RT_GROUP_SCHED): {error}')


class TestThread:
    @pytest.mark.parametrize('policy', [os.SCHED_OTHER, os.SCHED_BATCH])
    @pytest.mark.parametrize('flag', [0, os.SCHED_RESET_ON_FORK])
    def test_all_else_is_kept(self, sleeper, policy, flag):
        os.sched_setscheduler(sleeper.pid, policy | flag, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, sleeper.pid, 7)
        own_us = sched_attr.slice_us(sleeper.pid)
        for slice_us in (SLICE_US, 100, 100_000):
            assert sched_attr.set_slice(sleeper.pid, slice_us)
            assert not sched_attr.set_slice(sleeper.pid, slice_us)
            assert sched_attr.slice_us(sleeper.pid) == slice_us
            assert os.sched_getscheduler(sleeper.pid) == policy | flag
            assert os.getpriority(os.PRIO_PROCESS, sleeper.pid) == 7
        assert sched_attr.set_slice(sleeper.pid, None)
        assert not sched_attr.set_slice(sleeper.pid, None)
        assert sched_attr.slice_us(sleeper.pid) == own_us

    def test_a_real_time_thread_is_left_alone(self, sleeper):
        make_real_time(sleeper.pid)
        assert not sched_attr.set_slice(sleeper.pid, SLICE_US)
        assert os.sched_getscheduler(sleeper.pid) == os.SCHED_FIFO
        assert os.sched_getparam(sleeper.pid).sched_priority == 3

    def test_one_that_becomes_that_meanwhile(self, sleeper, monkeypatch):
        write = sched_attr._write

        def write_late(tid, wanted):
            make_real_time(tid)
            return write(tid, wanted)
        monkeypatch.setattr(sched_attr, '_write', write_late)
        assert not sched_attr.set_slice(sleeper.pid, SLICE_US)
        assert os.sched_getscheduler(sleeper.pid) == os.SCHED_FIFO

    def test_one_that_is_gone(self, sleeper):
        sleeper.kill()
        sleeper.wait()
        with pytest.raises(ProcessLookupError):
            sched_attr.set_slice(sleeper.pid, SLICE_US)


@pytest.fixture
def guest(lab, guest_on):
    return guest_on(lab.fast, spare_vcpus=1)


@pytest.fixture
def hypervisor(lab, guest, tmp_path):
    """The driver, out here: ids of threads are the machine's."""
    (tmp_path / f'{guest.name}.pid').write_text(f'{guest.emulator}\n')
    made = driver.LibvirtHypervisor(lab.fast.libvirt_uri,
                                    run_path=str(tmp_path))
    made.connect(lambda _event: None)
    yield made
    made.close()


def slices_us(hypervisor, guest):
    """:returns: the slices of a guest's threads."""
    found = threads.read(hypervisor._domains, guest.uuid)
    return {sched_attr.slice_us(tid)
            for tid in (*found.vcpus.values(), *found.others)}


def test_a_guest_whose_vcpus_are_plugged_in(guest, hypervisor):
    before = threads.read(hypervisor._domains, guest.uuid)
    assert before.vcpus == {0: guest.thread(0)}
    assert guest.emulator in before.others
    own_us = sched_attr.slice_us(guest.thread(0))
    assert own_us not in (SLICE_US, OTHER_SLICE_US)

    assert hypervisor.set_slices(guest.uuid, {0: SLICE_US}, SLICE_US) >= 2
    assert hypervisor.set_slices(guest.uuid, {0: SLICE_US}, SLICE_US) == 0
    assert slices_us(hypervisor, guest) == {SLICE_US}

    guest.domain().setVcpusFlags(2, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    process.wait_until(
        lambda: set(hypervisor.vcpu_threads(guest.uuid)) == {0, 1}, LIMIT_S,
        'the second vCPU')
    hypervisor.set_slices(guest.uuid, {0: SLICE_US, 1: OTHER_SLICE_US},
                          SLICE_US)
    assert [sched_attr.slice_us(guest.thread(vcpu)) for vcpu in (0, 1)] == [
        SLICE_US, OTHER_SLICE_US]
    # What somebody else changes is set again.
    sched_attr.set_slice(guest.thread(0), OTHER_SLICE_US)
    assert hypervisor.set_slices(guest.uuid, {0: SLICE_US}, SLICE_US) == 1

    hypervisor.set_slices(guest.uuid, {0: None, 1: None}, None)
    assert slices_us(hypervisor, guest) == {own_us}


def test_what_a_guest_runs(guest, hypervisor):
    def runs():
        return hypervisor.vcpu_runs([guest.uuid])[guest.uuid][0]
    before = runs()
    # It does nothing but work.
    process.wait_until(
        lambda: runs().run_ns - before.run_ns > 100_000_000, LIMIT_S,
        'the guest to have run for 0.1 s')
    after = runs()
    assert after.runs >= before.runs
    assert after.waited_ns >= before.waited_ns
    guest.domain().destroy()
    assert hypervisor.vcpu_runs([guest.uuid]) == {}


def test_a_guest_whose_vcpus_are_placed(guest, hypervisor):
    pcpus = guest.host.pcpus
    assert hypervisor.place(guest.uuid, {0: pcpus})
    assert not hypervisor.place(guest.uuid, {0: pcpus})
    assert os.sched_getaffinity(guest.thread(0)) == pcpus
    described = hypervisor.describe(guest.uuid)
    assert described.pinned
    assert not described.pinned_by_others
    # One that is not plugged in yet.
    assert hypervisor.place(guest.uuid, {1: pcpus})
    guest.domain().setVcpusFlags(2, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    assert not hypervisor.place(guest.uuid, {0: pcpus, 1: pcpus})
