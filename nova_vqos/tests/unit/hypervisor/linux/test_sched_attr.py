# SPDX-License-Identifier: Apache-2.0
"""Slices are set, and nothing else is."""

import ctypes
import errno

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.tests.fixtures import fake_kernel

TID = 42


@pytest.fixture
def kernel(monkeypatch):
    return fake_kernel.FakeKernel(monkeypatch)


def test_the_structure_is_the_kernels():
    assert ctypes.sizeof(sched_attr.Attributes) == 48


@pytest.mark.parametrize('policy', [0, 3])
def test_a_slice_is_set_and_all_else_kept(kernel, policy):
    kernel.add(TID, policy=policy, nice=-5, flags=1)
    assert sched_attr.set_slice(TID, 90_000)
    thread = kernel.threads[TID]
    assert (thread.policy, thread.nice, thread.flags, thread.slice_ns) == (
        policy, -5, 1, 90_000_000)
    assert sched_attr.slice_us(TID) == 90_000


def test_one_that_has_it_is_read_only(kernel):
    kernel.add(TID, slice_ns=1_000_000)
    assert not sched_attr.set_slice(TID, 1000)
    assert (kernel.reads, kernel.writes) == (1, [])


def test_the_kernels_own_slice_comes_back(kernel):
    kernel.add(TID, slice_ns=90_000_000, nice=7)
    assert sched_attr.set_slice(TID, None)
    thread = kernel.threads[TID]
    assert not thread.custom
    assert (thread.slice_ns, thread.nice) == (fake_kernel.OWN_SLICE_NS, 7)


def test_the_kernels_own_slice_is_learned_once(kernel):
    kernel.add(TID, 43, 44)
    # What it is cannot be read without setting it on one thread.
    assert not sched_attr.set_slice(TID, None)
    assert kernel.writes == [TID]
    assert not sched_attr.set_slice(43, None)
    assert not sched_attr.set_slice(44, None)
    assert kernel.writes == [TID]


def test_the_kernels_own_slice_may_change(kernel):
    kernel.add(TID, 43)
    sched_attr.set_slice(TID, None)
    # pCPUs went offline.
    kernel.own_slice_ns = 1_400_000
    kernel.threads[TID].slice_ns = kernel.threads[43].slice_ns = 1_400_000
    assert not sched_attr.set_slice(TID, None)
    assert not sched_attr.set_slice(43, None)
    assert kernel.writes == [TID, TID]


@pytest.mark.parametrize('policy', [1, 2, 5, 6])
def test_other_policies_are_left_alone(kernel, policy):
    kernel.add(TID, policy=policy)
    assert not sched_attr.set_slice(TID, 90_000)
    assert kernel.writes == []
    assert sched_attr.slice_us(TID) is None


def test_a_policy_that_is_set_meanwhile_stays(kernel):
    kernel.add(TID)

    def meddle(tid):
        kernel.threads[tid].policy = 1
    kernel.before_write = meddle
    assert not sched_attr.set_slice(TID, 90_000)
    assert kernel.threads[TID].policy == 1
    assert not kernel.threads[TID].custom


def test_a_thread_that_is_gone(kernel):
    with pytest.raises(ProcessLookupError):
        sched_attr.set_slice(TID, 90_000)


def test_a_thread_that_goes_between_read_and_write(kernel):
    kernel.add(TID)
    kernel.before_write = kernel.threads.pop
    with pytest.raises(ProcessLookupError):
        sched_attr.set_slice(TID, 90_000)


def test_a_kernel_without_slices(monkeypatch):
    kernel = fake_kernel.FakeKernel(monkeypatch, has_slices=False)
    kernel.add(TID)
    with pytest.raises(base.SlicesUnsupported, match=r'6\.12'):
        sched_attr.set_slice(TID, 90_000)
    assert not sched_attr.set_slice(TID, None)
    assert kernel.writes == []
    assert sched_attr.slice_us(TID) is None


def test_another_architecture(monkeypatch):
    sched_attr._numbers.cache_clear()
    monkeypatch.setattr(sched_attr, '_CALLS', {})
    with pytest.raises(base.SlicesUnsupported, match='implemented'):
        sched_attr.set_slice(TID, 90_000)


@pytest.mark.parametrize('number, error, text', [
    (errno.EPERM, base.SlicesDenied, 'CAP_SYS_NICE'),
    (errno.EACCES, base.SlicesDenied, 'CAP_SYS_NICE'),
    (errno.ENOSYS, base.SlicesUnsupported, 'thread 42'),
    (errno.EINVAL, base.HypervisorError, 'setting the slice of thread 42'),
])
def test_what_the_kernel_refuses(kernel, number, error, text):
    kernel.add(TID)
    kernel.refuse[TID] = number
    with pytest.raises(error, match=text) as caught:
        sched_attr.set_slice(TID, 90_000)
    assert type(caught.value) is error


@pytest.mark.parametrize('slice_us', [-1, 0, 99, 100_001])
def test_slices_that_the_kernel_would_clamp(kernel, slice_us):
    kernel.add(TID)
    with pytest.raises(ValueError, match=f'{slice_us} us'):
        sched_attr.set_slice(TID, slice_us)
    assert kernel.writes == []


@pytest.mark.parametrize('slice_us', [100, 100_000])
def test_slices_at_both_bounds(kernel, slice_us):
    kernel.add(TID)
    assert sched_attr.set_slice(TID, slice_us)
    assert not sched_attr.set_slice(TID, slice_us)
