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
from nova_vqos.tests.fixtures import requirement
from nova_vqos_lab import process

WINDOW_S = 2.0
LIMIT_S = 60
# What is free is measured to 1/1024, and belongs to all of the machine.
SLACK_PCPUS = 0.005
PCPUS = len(os.sched_getaffinity(0))

pytestmark = pytest.mark.measured


@pytest.fixture(autouse=True)
def reserves(lab):
    """Of this test level alone: others may reserve as well."""
    try:
        deadline.free_bandwidth(PCPUS)
    except base.ReservationRefused as error:
        requirement.need(str(error))


def free_pcpus():
    """What is free once all threads that ended are forgotten: the time of
    one is only some periods after its end.
    """
    time.sleep(0.3)
    return deadline.free_bandwidth(PCPUS)


def share(tid):
    """:returns: the part of a pCPU's time that a thread gets"""
    before, began_ns = procfs.read_run(tid), time.monotonic_ns()
    # The length of the measurement.
    time.sleep(WINDOW_S)
    run_ns = procfs.read_run(tid).run_ns - before.run_ns
    return run_ns / (time.monotonic_ns() - began_ns)


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
    assert float(before - free_pcpus()) == pytest.approx(0.5, abs=SLACK_PCPUS)
    spinner.kill()
    spinner.wait()
    process.wait_until(
        lambda: before - deadline.free_bandwidth(PCPUS) < SLACK_PCPUS,
        LIMIT_S, 'the reservation to end with its thread')


def test_a_measurement_takes_nothing_from_the_next():
    free = free_pcpus()
    for _ in range(10):
        # Ten periods of the processes that measure.
        time.sleep(0.1)
        found = deadline.free_bandwidth(PCPUS)
        assert float(found) == pytest.approx(float(free), abs=SLACK_PCPUS)


# An agent while it measures.
MEASURING = """
from nova_vqos import units
from nova_vqos.hypervisor.linux import deadline
with deadline._sleepers(None) as start:
    pid = start()
    deadline.reserve(pid, units.CpuCap(5_000, 10_000))
    print(pid, flush=True)
    input()
"""


def test_nothing_is_left_of_one_that_is_killed_while_it_measures():
    free = free_pcpus()
    with subprocess.Popen(
            [sys.executable, '-c', MEASURING], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True) as agent:
        pid = int(agent.stdout.readline())
        assert deadline.reservation(pid).share == 0.5
        agent.kill()
    process.wait_until(lambda: not os.path.exists(f'/proc/{pid}'), LIMIT_S,
                       'what measured to end')
    assert float(free_pcpus()) == pytest.approx(float(free), abs=SLACK_PCPUS)


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


@pytest.mark.requires('' if PCPUS > 1 else 'a single pCPU is all of them')
def test_a_thread_that_may_not_run_everywhere(spinner):
    os.sched_setaffinity(spinner.pid, {min(os.sched_getaffinity(0))})
    with pytest.raises(base.ReservationRefused, match='all pCPUs'):
        deadline.reserve(spinner.pid, units.CpuCap(15_000, 50_000))
