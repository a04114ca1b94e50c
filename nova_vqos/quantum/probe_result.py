# SPDX-License-Identifier: Apache-2.0
"""What this kernel enforces, as ``nova-vqos-probe`` measured it.

The probe runs before each start of the agent and writes the result to a file,
which is valid for one boot of the host. Imports neither Nova nor libvirt.
"""

from collections.abc import Mapping
import dataclasses
import functools
import itertools
import json
import logging
import os
import statistics

from nova_vqos import files
from nova_vqos.quantum import classes

LOG = logging.getLogger(__name__)

SCHEMA = 1

#: Runs within this part of those with the kernel's own slice equal them.
LIKE_DEFAULT = 0.25

# A slice is enforced when threads run for a quarter of it to one and a half
# times it, and up to a tick longer: the kernel checks at each tick only. It
# cuts long turns itself: on Linux 6.18 those of 90 ms often after 50 ms, and
# what is left is a turn, too. A slice shorter than a tick is enforced exactly,
# by timers, or not at all.
_LEAST, _MOST = 0.25, 1.5

#: With how much work at a time the waits of a thread that wakes are tried:
#: with all slices, and with the one that is chosen by those.
SHORT_WORKS_US = 200, 400, 800
LONG_WORKS_US = 1200, 2000

# A slice is enforced when a thread that wakes waits for less than this part of
# what it waits with the kernel's own.
_SHORTER = 0.85
# It is for work that takes at most this part of the time that it takes with
# the kernel's own. What suits some work suits shorter work, too: where that is
# seen to take longer, and not clearly so, it is by chance.
_LONGER_AT_MOST, _CLEARLY_LONGER = 1.03, 1.1
# Waits that differ by less than this part of that do not differ.
_ALIKE = 0.05

# Of preemption and HRTICK; '' is of a probe that did not look.
_UNKNOWN = frozenset(('', 'unknown'))

_MOST_OUTCOMES = 64
_MAX_US = 1e9


class _Unusable(Exception):
    """The file exists and cannot be used."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The measurement of one slice.

    :ivar slice_us: None: the kernel's own, or none was chosen
    :ivar mean_run_us: how long threads ran on average, including runs that
        others cut short; None: not measured, or of no pooled class
    :ivar enforced: of a pooled class, whether threads ran for the slice, and
        not for the kernel's default; of others, whether one that woke waited
        for clearly less time than with that; None: not measured
    :ivar reason: why not; '' where it is enforced
    :ivar wait_us: how long a thread that woke waited on average, with short
        works that the slice suits; None: not measured, or of a pooled class
    :ivar work_us: how long servers may work at a time, from when they wake
        until they sleep, that gain by the slice, or lose nothing; None: not
        measured, not enforced, or of a pooled class
    """

    slice_us: int | None
    mean_run_us: float | None
    enforced: bool | None
    reason: str = ''
    wait_us: float | None = None
    work_us: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Vhost:
    """Whether a limit on a server's group holds its vhost worker.

    :ivar share: of a pCPU's time that a worker had with much to do; None: not
        measured
    :ivar limited: None: not measured
    :ivar reason: why not; '' where it is
    """

    share: float | None
    limited: bool | None
    reason: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeResult:
    """The measurements of one boot.

    :ivar kernel: its release
    :ivar boot_id: of the boot on which they were made
    :ivar tick_us: length of the scheduler tick
    :ivar measured_at: ISO 8601, UTC
    :ivar outcomes: by quantum class
    :ivar vhost: None: of a probe that did not look
    :ivar preemption: see :class:`nova_vqos.profile.kernel.Scheduling`; '': of
        a probe that did not look
    :ivar hrtick: likewise
    """

    kernel: str
    boot_id: str
    tick_us: int
    measured_at: str
    outcomes: Mapping[str, Outcome]
    vhost: Vhost | None = None
    preemption: str = ''
    hrtick: str = ''


def judge(slice_us: int, mean_run_us: float, turn_us: float,
          default_turn_us: float, tick_us: int) -> Outcome:
    """Decide whether the kernel enforced a slice.

    :param mean_run_us: how long threads ran on average with that slice
    :param turn_us: how long they ran undisturbed
    :param default_turn_us: the same with the kernel's own slice
    """
    reason = ''
    most_us = _MOST * slice_us
    runs_us = [turn_us]
    if slice_us >= tick_us:
        most_us += tick_us
        # A turn may be too long since the machine stood still meanwhile.
        runs_us.append(mean_run_us)
    if abs(turn_us - default_turn_us) <= LIKE_DEFAULT * default_turn_us:
        reason = (', the same as the default of '
                  f'{default_turn_us / 1000:.1f} ms: the tick is '
                  f'{tick_us / 1000:g} ms')
    elif any(_LEAST * slice_us <= run_us <= most_us for run_us in runs_us):
        return Outcome(slice_us, mean_run_us, enforced=True)
    return Outcome(
        slice_us, mean_run_us, enforced=False,
        reason=f'threads ran for {turn_us / 1000:.1f} ms at a time{reason}')


def choose_slice_us(default_us: Mapping[int, float],
                    waits_us: Mapping[int, Mapping[int, float]]) -> int:
    """Choose the slice with which a thread that wakes gets its pCPU soonest.

    Of slices that do not differ the longest: it suits longer work.

    :param default_us: how long it waited with the kernel's own slice, by how
        long it works at a time
    :param waits_us: and with others, by slice
    """
    means_us = {slice_us: statistics.fmean(by_work.values())
                for slice_us, by_work in waits_us.items()}
    most_us = min(means_us.values()) + _ALIKE * statistics.fmean(
        default_us.values())
    return max(slice_us for slice_us, mean_us in means_us.items()
               if mean_us <= most_us)


def judge_waits(slice_us: int, default_us: Mapping[int, float],
                waits_us: Mapping[int, float]) -> tuple[float, Outcome]:
    """Decide whether a slice is enforced, and for which work.

    Work that is longer than the slice loses its pCPU in between, and can take
    longer than with the kernel's own slice.

    :param default_us: how long a thread waited with the kernel's own slice, by
        how long it works at a time
    :param waits_us: and with this one
    :returns: how long it waited with the kernel's own, with the same works as
        that of the outcome; and the outcome
    """
    parts = {work_us: (work_us + waits_us[work_us])
             / (work_us + default_us[work_us]) for work_us in sorted(waits_us)}
    works_us = list(itertools.takewhile(
        lambda work_us: parts[work_us] <= _CLEARLY_LONGER, parts))
    while works_us and parts[works_us[-1]] > _LONGER_AT_MOST:
        del works_us[-1]
    counted = [work_us for work_us in works_us or sorted(waits_us)[:1]
               if work_us <= SHORT_WORKS_US[-1]]
    wait_us, kernels_us = (
        statistics.fmean(by_work[work_us] for work_us in counted)
        for by_work in (waits_us, default_us))
    if works_us and wait_us < _SHORTER * kernels_us:
        return kernels_us, Outcome(slice_us, None, enforced=True,
                                   wait_us=wait_us, work_us=works_us[-1])
    return kernels_us, Outcome(
        slice_us, None, enforced=False, wait_us=wait_us,
        reason=f'a thread that woke waited for {wait_us / 1000:.2f} ms, with '
        f"the kernel's own slice for {kernels_us / 1000:.2f} ms")


def enforced_slices_us(result: ProbeResult | None,
                       slices_us: Mapping[str, int]) -> dict[str, int]:
    """The slices that the kernel enforces, by quantum class.

    :param slices_us: see :func:`nova_vqos.quantum.classes.slices_us`
    """
    found = {}
    for name in classes.SLICED:
        outcome = result and result.outcomes.get(name)
        if (outcome and outcome.enforced and outcome.slice_us is not None
                and slices_us.get(name, outcome.slice_us)
                == outcome.slice_us):
            found[name] = outcome.slice_us
    return found


def longest_work_us(result: ProbeResult | None) -> float:
    """For work of how long at a time the slice of io is.

    :returns: 0 where none is enforced
    """
    outcome = result and result.outcomes.get(classes.IO)
    return outcome.work_us or 0 if outcome else 0


def enforced_classes(result: ProbeResult | None, slices_us: Mapping[str, int],
                     *, has_pools: bool = True) -> tuple[str, ...]:
    """The quantum classes that the host may offer.

    Those that need no slice; the others where the kernel enforced theirs.

    :param slices_us: see :func:`nova_vqos.quantum.classes.slices_us`
    :param has_pools: whether the agent gives servers that spin pCPUs of their
        own
    """
    return (classes.DEFAULT, classes.NEUTRAL,
            *((classes.SPIN,) if has_pools else ()),
            *enforced_slices_us(result, slices_us))


def limits_vhost(result: ProbeResult | None) -> bool:
    """Whether a limit on a server's group holds its vhost worker.

    True where it was not measured: it does before Linux 6.18.
    """
    return (result is None or result.vhost is None
            or result.vhost.limited is not False)


def is_changed(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether the kernel was set to schedule otherwise, as far as is known.

    :param before: preemption and HRTICK, see :class:`ProbeResult`
    :param now: likewise
    """
    return any(was != now and _UNKNOWN.isdisjoint((was, now))
               for was, now in zip(before, now, strict=True))


def merged(new: ProbeResult, old: ProbeResult | None) -> ProbeResult:
    """A new result, with old outcomes for slices that it could not measure.

    On a host with busy pCPUs earlier measurements still hold, those of slices
    unless the kernel was set to schedule otherwise meanwhile.

    :param old: of the same boot
    """
    if old is None:
        return new
    new = dataclasses.replace(
        new, vhost=old.vhost if new.vhost is None or (
            new.vhost.limited is None and old.vhost is not None
            and old.vhost.limited is not None) else new.vhost)
    if is_changed((old.preemption, old.hrtick), (new.preemption, new.hrtick)):
        return new
    return dataclasses.replace(
        new, outcomes={name: _latest(outcome, old.outcomes.get(name))
                       for name, outcome in new.outcomes.items()},
        preemption=_known(new.preemption, old.preemption),
        hrtick=_known(new.hrtick, old.hrtick))


def store(result: ProbeResult, path: str) -> None:
    """Write a result, whole or not at all.

    :raises OSError: when it cannot be written; the old file is then untouched
    """
    files.write(json.dumps({
        'schema': SCHEMA, 'kernel': result.kernel, 'boot_id': result.boot_id,
        'tick_us': result.tick_us, 'measured_at': result.measured_at,
        'outcomes': {name: document(outcome)
                     for name, outcome in result.outcomes.items()},
        **({} if result.vhost is None
           else {'vhost': document(result.vhost)}),
        **{name: value for name in ('preemption', 'hrtick')
           if (value := getattr(result, name))},
    }, indent=2) + '\n', path)


def document(outcome: Outcome | Vhost) -> dict[str, object]:
    """An outcome in primitives, without unknown fields."""
    return {name: value for name, value in dataclasses.asdict(outcome).items()
            if value not in (None, '')}


def load(path: str, root: str = '/') -> ProbeResult | None:
    """Read the result of this boot of this host.

    Logs each reason once why an existing file cannot be used.

    :param root: of /proc, for tests
    :returns: None: there is no usable result of this boot
    """
    try:
        found = _from_fields(files.Fields(
            json.loads(files.read(path)), ''))
        own_boot_id = boot_id(root)
    except files.FileMissing:
        return None
    except (files.FileError, _Unusable, OSError, ValueError,
            OverflowError, RecursionError) as error:
        _warn_once(f'Probe result {path} cannot be used: {error}')
        return None
    return found if found.boot_id == own_boot_id else None


def boot_id(root: str = '/') -> str:
    """The kernel's identifier of this boot.

    :raises OSError: when it cannot be read
    """
    path = os.path.join(root, 'proc/sys/kernel/random/boot_id')
    with open(path, encoding='ascii') as file:
        return file.read().strip()


def _known(new: str, old: str) -> str:
    """What outcomes were measured with, of which some may be the old ones."""
    return old if new in _UNKNOWN and old not in _UNKNOWN else new


def _latest(new: Outcome, old: Outcome | None) -> Outcome:
    if (new.enforced is None and old is not None
            and old.enforced is not None
            # None: the probe would have chosen one.
            and new.slice_us in (None, old.slice_us)):
        return old
    return new


def _from_fields(fields: files.Fields) -> ProbeResult:
    schema = fields.number('schema', 0, 1e9)
    if schema != SCHEMA:
        raise _Unusable(f'its schema is {schema:g}, not {SCHEMA}')
    outcomes = fields.mapping('outcomes') or {}
    if len(outcomes) > _MOST_OUTCOMES:
        raise _Unusable(f'it has {len(outcomes)} outcomes, more than '
                        f'{_MOST_OUTCOMES}')
    return ProbeResult(
        kernel=fields.text('kernel'), boot_id=fields.text('boot_id'),
        tick_us=round(fields.number('tick_us', 1, _MAX_US)),
        measured_at=fields.text('measured_at'),
        outcomes={
            name: outcome for name, outcome in (
                (name, _outcome(files.Fields(value, f'outcomes.{name}')))
                for name, value in outcomes.items())
            if name != classes.IO or not _is_judged_as_before(outcome)},
        vhost=_vhost(files.Fields(fields.mapping('vhost'), 'vhost'))
        if fields.has('vhost') else None,
        preemption=(fields.text('preemption')
                    if fields.has('preemption') else ''),
        hrtick=fields.text('hrtick') if fields.has('hrtick') else '')


def _is_judged_as_before(io: Outcome) -> bool:
    """Older probes judged io by its turns, or did not try for which work."""
    return io.enforced is not None and (
        io.work_us if io.enforced else io.wait_us) is None


def _vhost(fields: files.Fields) -> Vhost:
    return Vhost(
        share=(fields.number('share', 0, _MAX_US)
               if fields.has('share') else None),
        limited=fields.truth('limited') if fields.has('limited') else None,
        reason=fields.text('reason') if fields.has('reason') else '')


def _outcome(fields: files.Fields) -> Outcome:
    return Outcome(
        slice_us=(round(fields.number('slice_us', classes.MIN_SLICE_US,
                                      classes.MAX_SLICE_US))
                  if fields.has('slice_us') else None),
        mean_run_us=(fields.number('mean_run_us', 0, _MAX_US)
                     if fields.has('mean_run_us') else None),
        enforced=fields.truth('enforced') if fields.has('enforced') else None,
        reason=fields.text('reason') if fields.has('reason') else '',
        wait_us=(fields.number('wait_us', 0, _MAX_US)
                 if fields.has('wait_us') else None),
        work_us=(round(fields.number('work_us', 1, _MAX_US))
                 if fields.has('work_us') else None))


# The file is read again and again.
@functools.lru_cache(maxsize=16)
def _warn_once(text: str) -> None:
    LOG.warning('%s', text)
