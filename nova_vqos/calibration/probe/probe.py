# SPDX-License-Identifier: Apache-2.0
"""Which slices this kernel enforces, by a trial on an idle pCPU.

A slice only holds between threads of one cgroup, or of nested ones on a kernel
that carries it up (Linux commit aef6987d8954), and no shorter than the tick
unless the kernel has timers for it. So it is tried, at each boot: for classes
in pools, how long two busy threads with the slice take turns; for others, how
long a thread with the slice waits for busy ones when it wakes.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
import itertools
import os
import statistics

from nova_vqos import utc
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.probe import spinners
from nova_vqos.calibration.probe import waker
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import topology
from nova_vqos.profile import fingerprint
from nova_vqos.profile import kernel
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result

#: The group right below the root of the hierarchy in which it is tried.
NAME = 'nova-vqos-probe'

# All in all about eight seconds: to look for an idle pCPU, for each turn long
# enough for the kernel's own or for some turns of a long one, and for waits.
_WATCH_S = 0.1
_LEAST_WINDOW_S = 0.12
_WINDOW_TURNS = 5
# Slices take turns, with each work.
_WAIT_WINDOW_S = 0.15
_WAIT_ROUNDS = 2
# Of the kernel's own slice: those that are tried where none is given. How much
# shorter than that one has to be differs from kernel to kernel, and it has to
# be as long as the work.
_PARTS = Fraction(1, 5), Fraction(1, 3), Fraction(2, 3)

# A pCPU that is busier than this is not tried, and one on which others took
# more than this from the threads is not believed.
_IDLE_LIMIT = 0.1
_OTHERS_LIMIT = 0.05
# That a slice is not enforced is not believed when so many runs were cut.
_CUT_LIMIT = 0.25
_MOST_TRIES = 2

_Outcomes = dict[str, probe_result.Outcome]


def measure(slices_us: Mapping[str, int],
            root: str = '/') -> probe_result.ProbeResult:
    """See what slices this kernel enforces.

    :param slices_us: see :func:`nova_vqos.quantum.classes.slices_us`
    :param root: where /proc and /sys are looked for, for tests
    :raises CalibrationError: when it cannot be tried at all: no root, no
        cgroups
    :raises nova_vqos.hypervisor.base.HypervisorError: when pCPUs cannot be
        told, or slices may not be set
    :raises OSError: when a group cannot be used
    """
    tick_us = fingerprint.tick_us()
    try:
        found = _try(slices_us, tick_us, root)
    except base.SlicesUnsupported as error:
        found = {name: probe_result.Outcome(
            slices_us.get(name), None, enforced=False, reason=str(error))
            for name in classes.SLICED}
        found[classes.DEFAULT] = probe_result.Outcome(
            None, None, enforced=True)
    scheduling = kernel.scheduling(root)
    return probe_result.ProbeResult(
        kernel=os.uname().release, boot_id=probe_result.boot_id(root),
        tick_us=tick_us,
        measured_at=utc.text(),
        outcomes={name: found[name] for name in (classes.DEFAULT,
                                           *classes.SLICED)},
        preemption=scheduling.preemption, hrtick=scheduling.hrtick)


def _try(slices_us: Mapping[str, int], tick_us: int, root: str) -> _Outcomes:
    """The outcome of each class, and of the kernel's own slice."""
    # Before the search for a pCPU: its error names what is lacking.
    with server_groups.Tree(NAME, root) as tree:
        pcpus, busiest = idle_pcpus(root)
        found = _unknown(slices_us, 'no pCPU was idle: the least busy one, '
                         f'{busiest}')
        # The same one again where there is no other.
        for number, pcpu in enumerate((pcpus * _MOST_TRIES)[:_MOST_TRIES]):
            try:
                with spinners.spinning(tree, pcpu, str(number)) as pair:
                    tried = _Trial(tree, pair, pcpu, tick_us).outcomes(
                        slices_us, f'{number}-waker')
            except spinners.Starved as error:
                # It was idle a moment ago.
                tried = _unknown(slices_us, f'on pCPU {pcpu} {error}')
            found = {name: _surer(outcome, found[name])
                     for name, outcome in tried.items()}
            if (found[classes.IO] is tried[classes.IO]
                    and found[classes.IO].wait_us is not None):
                # Its wait is compared with that of the same try.
                found[classes.DEFAULT] = tried[classes.DEFAULT]
            if all(outcome.enforced for outcome in found.values()):
                break
    return found


def _surer(new: probe_result.Outcome,
           old: probe_result.Outcome) -> probe_result.Outcome:
    """That a slice is enforced is seen only where it is."""
    return (old if old.enforced or new.enforced is None
            and old.enforced is not None else new)


def idle_pcpus(root: str) -> tuple[list[int], str]:
    """Idle pCPUs, the idlest first.

    :returns: them, and a text about the idlest one where there are none
    """
    usable = os.sched_getaffinity(0) & frozenset().union(*(
        socket.pcpus for socket in topology.Topology(root).read()))
    shares = host_cpus.busy_shares(usable, _WATCH_S, root)
    order = sorted(shares, key=lambda pcpu: (shares[pcpu], pcpu))
    if not order:
        return [], 'is not for this process to use'
    return ([pcpu for pcpu in order if shares[pcpu] <= _IDLE_LIMIT],
            f'{order[0]}, was used to {shares[order[0]]:.0%}')


class _Disturbed(Exception):
    """Others ran on the pCPU."""


class _Trial:
    """What is enforced on one pCPU."""

    def __init__(self, tree: server_groups.Tree, pair: spinners.Spinners,
                 pcpu: int, tick_us: int) -> None:
        """
        :param pair: two threads that are busy on it
        """
        self._tree = tree
        self._pair = pair
        self._pcpu = pcpu
        self._tick_us = tick_us

    def outcomes(self, slices_us: Mapping[str, int], name: str) -> _Outcomes:
        """
        :param name: of the group of a thread that wakes
        :raises spinners.Starved: when a thread did not run
        """
        default = self._pair.measure(None, _window_s(0))
        if doubt := self._doubt(default):
            return _unknown(slices_us, doubt)
        cache = self._try_turns(slices_us[classes.CACHE], default)
        # They keep the slice that they were given last.
        self._pair.measure(None, _window_s(0))
        wait_us, io = self._try_waits(slices_us.get(classes.IO), name)
        return {classes.DEFAULT: probe_result.Outcome(
                    None, default.mean_run_us, enforced=True, wait_us=wait_us),
                classes.CACHE: cache, classes.IO: io}

    def _try_turns(self, slice_us: int, default: spinners.Turns
                   ) -> probe_result.Outcome:
        turns = self._pair.measure(slice_us, _window_s(slice_us))
        if doubt := self._doubt(turns):
            return _not_measured(slice_us, doubt)
        return _judge_turns(slice_us, turns, default, self._tick_us,
                            self._pcpu)

    def _try_waits(self, given_us: int | None, name: str
                   ) -> tuple[float | None, probe_result.Outcome]:
        """
        :param given_us: the only slice to be tried; None: some
        :returns: how long a thread waits with the kernel's own slice, in
            microseconds, None where that is not believed; and the outcome
        """
        try:
            with waker.waking(self._tree, self._pcpu, name,
                              self._pair) as woken:
                tried_us = _tried_us(woken, given_us)
                waits = self._wait(woken, [None, *tried_us],
                                   probe_result.SHORT_WORKS_US)
                chosen_us = probe_result.choose_slice_us(
                    waits[None], {one: waits[one] for one in tried_us})
                longer = self._wait(woken, [None, chosen_us],
                                    probe_result.LONG_WORKS_US)
        except spinners.Starved as error:
            return None, _not_measured(given_us,
                                       f'on pCPU {self._pcpu} {error}')
        except _Disturbed as error:
            return None, _not_measured(given_us, str(error))
        return probe_result.judge_waits(
            chosen_us, waits[None] | longer[None],
            waits[chosen_us] | longer[chosen_us])

    def _wait(self, woken: waker.Waker, slices_us: Sequence[int | None],
              works_us: Sequence[int]
              ) -> dict[int | None, dict[int, float]]:
        """How long a thread waits, in us, by its slice and its work.

        :raises _Disturbed: when others ran meanwhile
        """
        windows: dict[tuple[int | None, int], list[waker.Waits]] = {
            (slice_us, work_us): [] for work_us in works_us
            for slice_us in slices_us}
        for _ in range(_WAIT_ROUNDS):
            for (slice_us, work_us), seen in windows.items():
                seen.append(woken.measure(slice_us, work_us, _WAIT_WINDOW_S))
        # One window of all: each has few ticks.
        if doubt := self._doubt(waker.Waits(*map(sum, zip(
                *itertools.chain(*windows.values()), strict=True)))):
            raise _Disturbed(doubt)
        return {slice_us: {
            work_us: statistics.fmean(
                one.mean_us for one in windows[slice_us, work_us])
            for work_us in works_us} for slice_us in slices_us}

    def _doubt(self, seen: spinners.Turns | waker.Waits) -> str:
        """Why it is not believed: others ran; '' where it is."""
        # What one ran since the last tick is not counted yet.
        others = 1 - (seen.run_us + self._tick_us) / seen.wall_us
        return (f'others took {others:.0%} of pCPU {self._pcpu}'
                if others > _OTHERS_LIMIT else '')


def _tried_us(woken: waker.Waker, given_us: int | None) -> list[int]:
    """The slices of a thread that wakes to try.

    :param given_us: the only one; None: some
    """
    kernels_us = woken.kernels_slice_us()
    if kernels_us is None:
        raise base.SlicesUnsupported('this kernel has no slices to set')
    return [given_us] if given_us is not None else [
        max(classes.MIN_SLICE_US, int(part * kernels_us)) for part in _PARTS]


def _judge_turns(slice_us: int, turns: spinners.Turns,
                 default: spinners.Turns, tick_us: int, pcpu: int
                 ) -> probe_result.Outcome:
    # Another program that runs for a moment may end a turn, so that turns are
    # cut, and a machine that stands still for a moment makes one too long. Of
    # long turns there are few: those count in which most of the time passed.
    # Short ones must be short in any case: so nearly all of them.
    is_long = slice_us > default.mean_run_us
    turn_us, default_turn_us = (
        (turns.half_us, default.half_us) if is_long
        else (turns.common_us, default.common_us))
    outcome = probe_result.judge(slice_us, turns.mean_run_us, turn_us,
                                 default_turn_us, tick_us)
    if outcome.enforced:
        return outcome
    if turns.cut > _CUT_LIMIT:
        return _not_measured(
            slice_us, f'others cut {turns.cut:.0%} of the runs on pCPU {pcpu}')
    if is_long and turn_us > slice_us:
        # No kernel does that, whatever slice it heeds.
        return _not_measured(
            slice_us, f'the machine stood still: threads ran for '
            f'{turn_us / 1000:.1f} ms at a time on pCPU {pcpu}')
    return outcome


def _window_s(slice_us: int) -> float:
    return max(_LEAST_WINDOW_S, _WINDOW_TURNS * slice_us / 1e6)


def _unknown(slices_us: Mapping[str, int], reason: str) -> _Outcomes:
    return {classes.DEFAULT: _not_measured(None, reason),
            **{name: _not_measured(slices_us.get(name), reason)
               for name in classes.SLICED}}


def _not_measured(slice_us: int | None, reason: str) -> probe_result.Outcome:
    return probe_result.Outcome(slice_us, None, None,
                                f'not measured: {reason}')
