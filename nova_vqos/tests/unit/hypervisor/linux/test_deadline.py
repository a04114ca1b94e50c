# SPDX-License-Identifier: Apache-2.0
"""Reservations are set, changed, and never ended."""

import errno
from fractions import Fraction

import pytest

from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.tests.fixtures import fake_kernel

TID = 42
HALF = units.CpuCap(25_000, 50_000)


@pytest.fixture
def kernel(monkeypatch):
    made = fake_kernel.FakeKernel(monkeypatch)
    made.add(TID)
    return made


@pytest.mark.parametrize('reclaims, flags', [(False, 1), (True, 3)])
def test_a_reservation_is_set(kernel, reclaims, flags):
    assert deadline.reserve(TID, HALF, reclaims=reclaims)
    thread = kernel.threads[TID]
    assert (thread.policy, thread.flags, thread.runtime_ns,
            thread.deadline_ns, thread.period_ns) == (
        fake_kernel.DEADLINE, flags, 25_000_000, 50_000_000, 50_000_000)
    assert deadline.reservation(TID) == HALF


def test_one_that_is_set_is_read_only(kernel):
    deadline.reserve(TID, HALF)
    assert not deadline.reserve(TID, HALF)
    assert kernel.writes == [TID]


@pytest.mark.parametrize('other', [
    {'wanted': units.CpuCap(24_000, 50_000)},
    {'wanted': units.CpuCap(50_000, 100_000)},
    {'wanted': HALF, 'reclaims': True}])
def test_another_one_replaces_it(kernel, other):
    deadline.reserve(TID, HALF)
    assert deadline.reserve(TID, **other)
    assert deadline.reservation(TID) == other['wanted']


def test_a_thread_without_one(kernel):
    assert deadline.reservation(TID) is None


@pytest.mark.parametrize('wanted', [(99, 1000), (1000, 600_000), (11, 10),
                                    (50_001, 50_000), (0, 50_000)])
def test_what_could_stop_a_thread_is_refused(kernel, wanted):
    with pytest.raises(ValueError, match=f'{wanted[0]}/{wanted[1]} us'):
        deadline.reserve(TID, units.CpuCap(*wanted))
    assert kernel.writes == []


@pytest.mark.parametrize('number, part', [
    (errno.EBUSY, 'left to reserve'), (errno.EPERM, 'CAP_SYS_NICE'),
    (errno.EINVAL, 'numbers'), (errno.ENOSYS, 'no reservations'),
    (errno.EIO, 'thread 42')])
def test_what_the_kernel_refuses(kernel, number, part):
    kernel.refuse[TID] = number
    with pytest.raises(base.ReservationRefused, match=part):
        deadline.reserve(TID, HALF)
    assert deadline.reservation(TID) is None


def test_a_thread_that_is_gone(kernel):
    for call in (lambda: deadline.reserve(43, HALF),
                 lambda: deadline.reservation(43)):
        with pytest.raises(ProcessLookupError):
            call()


class TestFreeBandwidth:
    @pytest.fixture
    def kernel(self, kernel, monkeypatch):
        """One that reserves a part of two pCPUs, for any process."""
        tids = iter(range(100, 10_000))
        kernel.ended = []

        class Process:
            def __init__(self, *_args, **_kwargs):
                self.pid = next(tids)
                kernel.add(self.pid)

            def kill(self):
                kernel.ended.append(self.pid)

            def wait(self):
                return 0

        monkeypatch.setattr(deadline.subprocess, 'Popen', Process)
        return kernel

    @pytest.mark.parametrize('free', [
        Fraction(0), Fraction(9, 5), Fraction(1, 3), Fraction(1023, 512)])
    def test_all_that_is_left_is_found(self, kernel, free):
        kernel.free = free
        found = deadline.free_bandwidth(2)
        assert 0 <= free - found <= Fraction(1, 1000)
        assert set(kernel.ended) == kernel.threads.keys() - {TID}

    def test_no_more_than_the_pcpus(self, kernel):
        """Without limits the kernel admits anything."""
        assert deadline.free_bandwidth(2) == 2

    def test_a_host_that_reserves_nothing(self, kernel):
        for tid in range(100, 200):
            kernel.refuse[tid] = errno.EPERM
        with pytest.raises(base.ReservationRefused, match='CAP_SYS_NICE'):
            deadline.free_bandwidth(2)
        assert kernel.ended == [100]
