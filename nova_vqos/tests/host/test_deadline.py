# SPDX-License-Identifier: Apache-2.0
"""Reservations by this machine's own kernel."""

import os
import subprocess
import sys
import time

import pytest

from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.tests.host import standstill
from nova_vqos_lab import process

WINDOW_S = 2.0
LIMIT_S = 60
PCPUS = len(os.sched_getaffinity(0))

pytestmark = pytest.mark.quiet


@pytest.fixture(autouse=True)
def reserves(lab):
    """Of this test level alone: others may reserve as well."""
    try:
        deadline.free_bandwidth(PCPUS)
    except base.ReservationRefused as error:
        pytest.skip(str(error))


def free_pcpus():
    """What is free once all threads that ended are forgotten: the time of
    one is only some periods after its end.
    """
    time.sleep(0.3)
    return deadline.free_bandwidth(PCPUS)


def share(tid):
    """:returns: the part of a pCPU's time that a thread gets"""
    def measure():
        before, began_ns = procfs.read_run(tid), time.monotonic_ns()
        # The length of the measurement.
        time.sleep(WINDOW_S)
        run_ns = procfs.read_run(tid).run_ns - before.run_ns
        return run_ns / (time.monotonic_ns() - began_ns)
    return standstill.undisturbed(measure)


@pytest.fixture
def spinner():
    made = subprocess.Popen([sys.executable, '-c', 'while True: pass'],
                            start_new_session=True)
    yield made
    made.kill()
    made.wait()


def test_a_thread_gets_what_is_reserved_and_no_more(spinner):
    wanted = units.CpuCap(15_000, 50_000)
    assert deadline.reserve(spinner.pid, wanted)
    assert not deadline.reserve(spinner.pid, wanted)
    assert deadline.reservation(spinner.pid) == wanted
    assert share(spinner.pid) == pytest.approx(0.3, rel=0.05)


def test_one_that_reclaims_uses_what_others_leave(spinner):
    deadline.reserve(spinner.pid, units.CpuCap(400, 5_000), reclaims=True)
    assert share(spinner.pid) > 0.2


def test_what_is_reserved_is_not_free_until_its_end(spinner):
    before = free_pcpus()
    deadline.reserve(spinner.pid, units.CpuCap(25_000, 50_000))
    assert float(before - free_pcpus()) == pytest.approx(0.5, abs=0.005)
    spinner.kill()
    spinner.wait()
    process.wait_until(
        lambda: before - deadline.free_bandwidth(PCPUS) < 0.005, LIMIT_S,
        'the reservation to end with its thread')


def test_a_measurement_takes_nothing_from_the_next():
    free = free_pcpus()
    def measure():
        # Ten periods of the processes that measure.
        time.sleep(0.1)
        return deadline.free_bandwidth(PCPUS)
    for _ in range(10):
        assert standstill.undisturbed(measure) == free


def test_more_than_is_left_is_refused(spinner):
    made = [subprocess.Popen(['sleep', '60']) for _ in range(2 * PCPUS)]
    try:
        with pytest.raises(base.ReservationRefused, match='left'):
            for one in (*made, spinner):
                deadline.reserve(one.pid, units.CpuCap(42_000, 50_000))
        assert deadline.reservation(spinner.pid) is None
    finally:
        for one in made:
            one.kill()
            one.wait()


@pytest.mark.skipif(PCPUS < 2, reason='a single pCPU is all of them')
def test_a_thread_that_may_not_run_everywhere(spinner):
    os.sched_setaffinity(spinner.pid, {min(os.sched_getaffinity(0))})
    with pytest.raises(base.ReservationRefused, match='all pCPUs'):
        deadline.reserve(spinner.pid, units.CpuCap(15_000, 50_000))
