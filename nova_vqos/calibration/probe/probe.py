# SPDX-License-Identifier: Apache-2.0
"""Which slices this kernel enforces, by a trial on an idle pCPU.

A slice only holds between threads of one cgroup, or of nested ones on a kernel
that carries it up (Linux commit aef6987d8954), and no shorter than the tick
unless the kernel has timers for it. So it is tried, at each boot.
"""

from collections.abc import Collection, Mapping
import os

from nova_vqos import utc
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.probe import spinners
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import topology
from nova_vqos.profile import fingerprint
from nova_vqos.profile import kernel
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result

#: The group right below the root of the hierarchy in which it is tried.
NAME = 'nova-vqos-probe'

# All in all about a second: to look for an idle pCPU, and for each slice long
# enough for the kernel's own, or for some turns of a long one.
_WATCH_S = 0.1
_LEAST_WINDOW_S = 0.12
_WINDOW_TURNS = 5

# A pCPU that is busier than this is not tried, and one on which others took
# more than this from the threads is not believed.
_IDLE_LIMIT = 0.1
_OTHERS_LIMIT = 0.05
# That a slice is not enforced is not believed when so many runs were cut.
_CUT_LIMIT = 0.25
_MOST_TRIES = 2

_Outcomes = dict[int | None, probe_result.Outcome]


def measure(slices_us: Mapping[str, int],
            root: str = '/') -> probe_result.ProbeResult:
    """See what slices this kernel enforces.

    :param slices_us: by quantum class
    :param root: where /proc and /sys are looked for, for tests
    :raises CalibrationError: when it cannot be tried at all: no root, no
        cgroups
    :raises nova_vqos.hypervisor.base.HypervisorError: when pCPUs cannot be
        told, or slices may not be set
    :raises OSError: when a group cannot be used
    """
    wanted = sorted(set(slices_us.values()))
    tick_us = fingerprint.tick_us()
    try:
        found = _try(wanted, tick_us, root)
    except base.SlicesUnsupported as error:
        found = {slice_us: probe_result.Outcome(
            slice_us, None, enforced=False, reason=str(error))
            for slice_us in wanted}
        found[None] = probe_result.Outcome(None, None, enforced=True)
    scheduling = kernel.scheduling(root)
    return probe_result.ProbeResult(
        kernel=os.uname().release, boot_id=probe_result.boot_id(root),
        tick_us=tick_us,
        measured_at=utc.text(),
        outcomes={classes.DEFAULT: found[None],
                  **{name: found[slice_us]
                     for name, slice_us in slices_us.items()}},
        preemption=scheduling.preemption, hrtick=scheduling.hrtick)


def _try(slices_us: Collection[int], tick_us: int, root: str) -> _Outcomes:
    """The outcome of each slice, and of the kernel's own."""
    # Before the search for a pCPU: its error names what is lacking.
    with server_groups.Tree(NAME, root) as tree:
        pcpus, busiest = idle_pcpus(root)
        found = _unknown(slices_us, 'no pCPU was idle: the least busy one, '
                         f'{busiest}')
        # The same one again where there is no other.
        for number, pcpu in enumerate((pcpus * _MOST_TRIES)[:_MOST_TRIES]):
            try:
                with spinners.spinning(tree, pcpu, str(number)) as pair:
                    tried = _outcomes(pair, slices_us, tick_us, pcpu)
            except spinners.Starved as error:
                # It was idle a moment ago.
                tried = _unknown(slices_us, f'on pCPU {pcpu} {error}')
            found = {slice_us: outcome if outcome.enforced is not None
                     or found[slice_us].enforced is None else found[slice_us]
                     for slice_us, outcome in tried.items()}
            if all(outcome.enforced is not None
                   for outcome in found.values()):
                break
    return found


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


def _outcomes(pair: spinners.Spinners, slices_us: Collection[int],
              tick_us: int, pcpu: int) -> _Outcomes:
    default = pair.measure(None, _window_s(0))
    others = _others(default, tick_us)
    if others > _OTHERS_LIMIT:
        return _unknown(slices_us, f'others took {others:.0%} of pCPU {pcpu}')
    found: _Outcomes = {
        None: probe_result.Outcome(None, default.mean_run_us, enforced=True)}
    for slice_us in slices_us:
        turns = pair.measure(slice_us, _window_s(slice_us))
        others = _others(turns, tick_us)
        found[slice_us] = (
            _not_measured(slice_us, f'others took {others:.0%} of pCPU {pcpu}')
            if others > _OTHERS_LIMIT
            else _outcome(slice_us, turns, default, tick_us, pcpu))
    return found


def _outcome(slice_us: int, turns: spinners.Turns, default: spinners.Turns,
             tick_us: int, pcpu: int) -> probe_result.Outcome:
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


def _others(turns: spinners.Turns, tick_us: int) -> float:
    """The share of a pCPU that others had while two threads wanted it."""
    # What one ran since the last tick is not counted yet.
    return 1 - (turns.run_us + tick_us) / turns.wall_us


def _window_s(slice_us: int) -> float:
    return max(_LEAST_WINDOW_S, _WINDOW_TURNS * slice_us / 1e6)


def _unknown(slices_us: Collection[int], reason: str) -> _Outcomes:
    wanted: tuple[int | None, ...] = (None, *slices_us)
    return {slice_us: _not_measured(slice_us, reason) for slice_us in wanted}


def _not_measured(slice_us: int | None, reason: str) -> probe_result.Outcome:
    return probe_result.Outcome(slice_us, None, None,
                                f'not measured: {reason}')
