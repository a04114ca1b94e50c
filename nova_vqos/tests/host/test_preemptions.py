# SPDX-License-Identifier: Apache-2.0
"""Preemptions of real threads, as the kernel records them."""

import contextlib
import errno
import os
import subprocess
import sys
import time

import pytest

from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import switches
from nova_vqos.quantum import sibling_preemptions
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_pauses

_PREEMPTED = sibling_preemptions.Change.PREEMPTED
# For so many changes there is room in a page.
_ROOM = 256
_SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True:
    pass
"""

pytestmark = pytest.mark.measured


@pytest.fixture
def spinning():
    """Starts threads that spin on a pCPU each; returns their ids."""
    with contextlib.ExitStack() as stack:
        def start(*pcpus):
            found = []
            for pcpu in pcpus:
                process = subprocess.Popen(
                    [sys.executable, '-c', _SPIN, str(pcpu)],
                    stdout=subprocess.PIPE)
                stack.callback(process.communicate)
                stack.callback(process.kill)
                process.stdout.read(1)
                found.append(process.pid)
            return found

        yield start


@pytest.fixture
def record():
    """Records threads for some time.

    Returns the turns of each; how many preemptions of it the kernel counted
    meanwhile, at least and at most; and for how long, in ns.
    """
    with contextlib.ExitStack() as stack:
        def read(threads, seconds):
            try:
                made = [switches.Recorder(thread) for thread in threads]
            except OSError as error:
                requirement.need(f'no turns are recorded: '
                                 f'{perf.reason(error)}')
            for one in made:
                stack.callback(one.close)

            def read_all():
                # Before and after: on a busy machine it takes its time.
                early = list(map(preemptions, threads))
                turns = [one.read() for one in made]
                return turns, early, list(map(preemptions, threads))
            began_ns = time.monotonic_ns()
            _, *before = read_all()
            time.sleep(seconds)
            turns, *after = read_all()
            return turns, [
                (first_after - last_before, last_after - first_before)
                for first_before, last_before, first_after, last_after
                in zip(*before, *after, strict=True)
            ], time.monotonic_ns() - began_ns

        yield read


def preemptions(thread):
    """The kernel's own count."""
    with open(f'/proc/{thread}/status', encoding='ascii') as file:
        return int(file.read().split('nonvoluntary_ctxt_switches:')[1])


def test_turns_are_those_that_the_kernel_counts(spinning, record):
    pcpu = min(os.sched_getaffinity(0))
    threads = spinning(pcpu, pcpu)
    # A pCPU that stood still meanwhile has few turns, or there was no room.
    for _ in range(30):
        turns, counted, _ = record(threads, 0.4)
        if all(least > 4 and most < _ROOM / 2 for least, most in counted):
            break
    for one, (least, most) in zip(turns, counted, strict=True):
        found = sum(turn.change is _PREEMPTED for turn in one)
        # One more or less where it was read.
        assert least - 2 <= found <= most + 2
        assert found > 2
        times = [turn.at_ns for turn in one]
        assert times == sorted(times)
    # On one pCPU neither runs while the other loses it.
    assert sibling_preemptions.count(turns).preemptions == 0


def test_what_runs_on_another_pcpu_counts(spinning, record):
    pcpus = sorted(os.sched_getaffinity(0))
    if len(pcpus) < 2:
        requirement.need('two pCPUs')
    # The third is no vCPU of theirs, and takes turns with the first.
    threads = spinning(pcpus[0], pcpus[1], pcpus[0])[:2]
    # Until there is a turn of both: the second may have a pCPU to itself.
    spinning(pcpus[1])
    # On a busy machine they seldom run at the same time.
    for _ in range(30):
        turns, _, length_ns = record(threads, 0.4)
        found = sibling_preemptions.count(turns)
        if found is not None and found.preemptions:
            break
    assert 0 < found.preemptions <= sum(
        turn.change is _PREEMPTED for one in turns for turn in one)
    assert 0 < found.length_ns <= length_ns


def test_a_full_buffer_has_no_gaps(spinning, record):
    pcpu = min(os.sched_getaffinity(0))
    thread, _ = spinning(pcpu, pcpu)
    (one,), _, _ = record([thread], 0.2)
    changes = [turn.change is _PREEMPTED for turn in one]
    assert all(first != second for first, second in zip(
        changes, changes[1:], strict=False))
    assert len(one) <= _ROOM


_TRY = """
import sys
from nova_vqos.hypervisor.linux import perf, switches
try:
    switches.Recorder(int(sys.argv[1]))
except OSError as error:
    print(perf.reason(error))
"""


@pytest.mark.parametrize('capability', ['perfmon', 'sys_nice'])
def test_the_capability_that_it_takes(open_checkout, capability):
    with subprocess.Popen([*test_pauses.as_user(1), 'sleep', '60']) as other:
        try:
            while os.stat(f'/proc/{other.pid}').st_uid != 1:
                time.sleep(0.01)
            done = subprocess.run(
                [*test_pauses.as_user(2, capability), sys.executable, '-c',
                 _TRY, str(other.pid)], check=True, capture_output=True,
                text=True, timeout=guests.LIMIT_S)
        finally:
            other.kill()
    assert ('CAP_PERFMON' in done.stdout) == (capability != 'perfmon')


def test_a_thread_that_is_gone():
    with subprocess.Popen(['true']) as ended:
        pass
    with pytest.raises(OSError) as caught:
        switches.Recorder(ended.pid)
    assert caught.value.errno == errno.ESRCH
