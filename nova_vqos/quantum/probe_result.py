# SPDX-License-Identifier: Apache-2.0
"""What this kernel enforces, as ``nova-vqos-probe`` measured it.

The probe runs before each start of the agent and writes the result to a file,
which is valid for one boot of the host. Imports neither Nova nor libvirt.
"""

from collections.abc import Mapping
import dataclasses
import functools
import json
import logging
import os

from nova_vqos import files
from nova_vqos.quantum import classes

LOG = logging.getLogger(__name__)

SCHEMA = 1

#: Runs within this part of those with the kernel's own slice equal them.
LIKE_DEFAULT = 0.25

# A slice is enforced when threads run for half of it to one and a half times
# it, and up to a tick longer: the kernel checks at each tick only. A slice
# shorter than a tick is enforced exactly, by timers, or not at all.
_LEAST, _MOST = 0.5, 1.5

# Of preemption and HRTICK; '' is of a probe that did not look.
_UNKNOWN = frozenset(('', 'unknown'))

_MOST_OUTCOMES = 64
_MAX_US = 1e9


class _Unusable(Exception):
    """The file exists and cannot be used."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The measurement of one slice.

    :ivar slice_us: None: the kernel's own
    :ivar mean_run_us: how long threads ran on average, including runs that
        others cut short; None: not measured
    :ivar enforced: whether threads ran for the slice, and not for the
        kernel's default; None: not measured
    :ivar reason: why not; '' where it is enforced
    """

    slice_us: int | None
    mean_run_us: float | None
    enforced: bool | None
    reason: str = ''


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


def enforced_classes(result: ProbeResult | None,
                     slices_us: Mapping[str, int]) -> tuple[str, ...]:
    """The quantum classes that the host may offer.

    Classes without a slice of their own always; the others where the kernel
    enforced their slice.

    :param slices_us: see :func:`nova_vqos.quantum.classes.slices_us`
    """
    outcomes = result.outcomes if result is not None else {}
    return (classes.DEFAULT, classes.NEUTRAL, *(
        name for name, slice_us in slices_us.items()
        if name in outcomes
        and outcomes[name].enforced is True
        and outcomes[name].slice_us == slice_us))


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
            and old.enforced is not None and old.slice_us == new.slice_us):
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
        outcomes={name: _outcome(files.Fields(value, f'outcomes.{name}'))
                  for name, value in outcomes.items()},
        vhost=_vhost(files.Fields(fields.mapping('vhost'), 'vhost'))
        if fields.has('vhost') else None,
        preemption=(fields.text('preemption')
                    if fields.has('preemption') else ''),
        hrtick=fields.text('hrtick') if fields.has('hrtick') else '')


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
        reason=fields.text('reason') if fields.has('reason') else '')


# The file is read again and again.
@functools.lru_cache(maxsize=16)
def _warn_once(text: str) -> None:
    LOG.warning('%s', text)
