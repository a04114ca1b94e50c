# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
"""What slices this kernel was seen to enforce, and what follows from it.

``nova-vqos-probe`` measures it at each start of the agent, and leaves it in a
file, which is good for one boot of the host. Imports neither Nova nor libvirt.
"""

from collections.abc import Mapping
import dataclasses
import functools
import json
import logging
import os

from nova_vqos import profile
from nova_vqos.quantum import classes

LOG = logging.getLogger(__name__)

DEFAULT_PATH = '/run/nova-vqos/quantum.json'
SCHEMA = 1

#: Runs that differ by less than this from those by the kernel's own slice are
#: as good as those.
LIKE_DEFAULT = 0.25

# A slice is enforced when threads run for half of it to one and a half times
# it, and up to a tick longer: the kernel looks at each tick only. Not so where
# it is shorter than a tick: that is kept exactly, by timers, or not at all.
_LEAST, _MOST = 0.5, 1.5

_MOST_OUTCOMES = 64
_MAX_US = 1e9


class _Unusable(Exception):
    """A record that is there, and says nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a slice.

    :ivar slice_us: None: the kernel's own
    :ivar mean_run_us: how long threads ran on average, cut short by whoever
        came in; None: not measured
    :ivar enforced: whether that is what was asked for, and another thing
        than by default; None: not measured
    :ivar reason: why not; '' where it is enforced
    """

    slice_us: int | None
    mean_run_us: float | None
    enforced: bool | None
    reason: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """What a kernel was seen to do.

    :ivar kernel: its release
    :ivar boot_id: of the boot on which it was seen
    :ivar tick_us: length of its scheduler tick
    :ivar measured_at: ISO 8601, UTC
    :ivar outcomes: by quantum class
    """

    kernel: str
    boot_id: str
    tick_us: int
    measured_at: str
    outcomes: Mapping[str, Outcome]


def judge(slice_us: int, mean_run_us: float, turn_us: float,
          default_turn_us: float, tick_us: int) -> Outcome:
    """Whether a slice was enforced, by what was measured.

    :param mean_run_us: how long threads ran on average with that slice
    :param turn_us: how long they ran where nobody came in
    :param default_turn_us: the same with the kernel's own slice
    """
    reason = ''
    most_us = _MOST * slice_us
    runs_us = [turn_us]
    if slice_us >= tick_us:
        most_us += tick_us
        # A turn that is too long may be one of a machine that stood still.
        runs_us.append(mean_run_us)
    if abs(turn_us - default_turn_us) <= LIKE_DEFAULT * default_turn_us:
        reason = (f', which cannot be told from the default, '
                  f'{default_turn_us / 1000:.1f} ms: the tick is '
                  f'{tick_us / 1000:g} ms')
    elif any(_LEAST * slice_us <= run_us <= most_us for run_us in runs_us):
        return Outcome(slice_us, mean_run_us, enforced=True)
    return Outcome(
        slice_us, mean_run_us, enforced=False,
        reason=f'threads ran for {turn_us / 1000:.1f} ms at a time{reason}')


def enforced_classes(proof: Proof | None,
                     slices_us: Mapping[str, int]) -> tuple[str, ...]:
    """The quantum classes that may be offered.

    Those that have no slice of their own always; of the others those that
    were seen to be enforced with the slice that they have.

    :param slices_us: see :func:`nova_vqos.quantum.classes.slices_us`
    """
    outcomes = proof.outcomes if proof is not None else {}
    return (classes.DEFAULT, classes.NEUTRAL, *(
        name for name, slice_us in slices_us.items()
        if name in outcomes
        and outcomes[name].enforced is True
        and outcomes[name].slice_us == slice_us))


def kept(found: Proof, before: Proof | None) -> Proof:
    """What was seen now, and before where it could not be measured now.

    A kernel does not become another one: on a host whose pCPUs are busy what
    was seen when they were not still holds.

    :param before: of the same boot
    """
    if before is None:
        return found
    return dataclasses.replace(found, outcomes={
        name: _known(outcome, before.outcomes.get(name))
        for name, outcome in found.outcomes.items()})


def store(proof: Proof, path: str = DEFAULT_PATH) -> None:
    """Write it, whole or not at all.

    :raises OSError: when it cannot be written; an old one is then untouched
    """
    profile.write(json.dumps({
        'schema': SCHEMA, 'kernel': proof.kernel, 'boot_id': proof.boot_id,
        'tick_us': proof.tick_us, 'measured_at': proof.measured_at,
        'outcomes': {name: document(outcome)
                     for name, outcome in proof.outcomes.items()},
    }, indent=2) + '\n', path)


def document(outcome: Outcome) -> dict[str, object]:
    """An outcome in primitives; what is not known is not in it."""
    return {name: value for name, value in dataclasses.asdict(outcome).items()
            if value not in (None, '')}


def load(path: str = DEFAULT_PATH, root: str = '/') -> Proof | None:
    """Read what was seen on this boot of this host.

    What is there and cannot be used is warned of, once.

    :param root: where /proc is looked for, for tests
    :returns: None: nothing is proven
    """
    try:
        found = _from_fields(profile.Fields(
            json.loads(profile.read(path)), ''))
        own_boot_id = boot_id(root)
    except profile.ProfileMissing:
        return None
    except (profile.ProfileError, _Unusable, OSError, ValueError,
            OverflowError, RecursionError) as error:
        _warn(f'{path} proves nothing: {error}')
        return None
    return found if found.boot_id == own_boot_id else None


def boot_id(root: str = '/') -> str:
    """What names this boot of the host.

    :raises OSError: when the kernel does not tell
    """
    path = os.path.join(root, 'proc/sys/kernel/random/boot_id')
    with open(path, encoding='ascii') as file:
        return file.read().strip()


def _known(now: Outcome, before: Outcome | None) -> Outcome:
    if (now.enforced is None and before is not None
            and before.enforced is not None
            and before.slice_us == now.slice_us):
        return before
    return now


def _from_fields(fields: profile.Fields) -> Proof:
    schema = fields.number('schema', 0, 1e9)
    if schema != SCHEMA:
        raise _Unusable(f'its schema is {schema:g}, not {SCHEMA}')
    outcomes = fields.mapping('outcomes') or {}
    if len(outcomes) > _MOST_OUTCOMES:
        raise _Unusable(f'it has {len(outcomes)} outcomes, more than '
                        f'{_MOST_OUTCOMES}')
    return Proof(
        kernel=fields.text('kernel'), boot_id=fields.text('boot_id'),
        tick_us=round(fields.number('tick_us', 1, _MAX_US)),
        measured_at=fields.text('measured_at'),
        outcomes={name: _outcome(profile.Fields(value, f'outcomes.{name}'))
                  for name, value in outcomes.items()})


def _outcome(fields: profile.Fields) -> Outcome:
    return Outcome(
        slice_us=(round(fields.number('slice_us', classes.MIN_SLICE_US,
                                      classes.MAX_SLICE_US))
                  if fields.has('slice_us') else None),
        mean_run_us=(fields.number('mean_run_us', 0, _MAX_US)
                     if fields.has('mean_run_us') else None),
        enforced=fields.truth('enforced') if fields.has('enforced') else None,
        reason=fields.text('reason') if fields.has('reason') else '')


# Once for each thing that is wrong: it is read again and again.
@functools.lru_cache(maxsize=16)
def _warn(text: str) -> None:
    LOG.warning('%s', text)
