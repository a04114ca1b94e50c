# SPDX-License-Identifier: Apache-2.0
"""The state file of a host's agent: its heartbeat, and what works there.

The agent writes it in an interval. The compute driver and nova-vqos-status
read it.
"""

from collections.abc import Mapping
import dataclasses
import datetime
import io
import json
import typing as ty

from nova_vqos import files
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos import units
from nova_vqos import utc
from nova_vqos.quantum import occupancy as occupancies

_VERSION = 1
_MOST_PCPUS = 65536
MAX_CHARACTERS = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class AgentState:
    """The state of a host's agent.

    :ivar profile_id: of the profile in use; None: there is none
    :ivar connected: whether the hypervisor can be reached
    :ivar dd_billing: values of ``vqos:dd_billing`` that work now
    :ivar quantum_classes: values of ``vqos:quantum_class`` that work now
    :ivar occupancy: of the pools
    :ivar guarantee_pcpus: pCPUs whose time can still be reserved for servers;
        None: none can
    :ivar guarantee_total_pcpus: the same, with what is reserved already; 0:
        none can be reserved; None: not known
    :ivar keeps_ceilings: whether it keeps the ceilings of projects
    :ivar reserve_cu: that follows the load of the host, see
        :mod:`nova_vqos.billing.reserve`; None: it was not measured
    :ivar alarms: problems that an operator has to look at, one text each; they
        alone make no heartbeat due
    :ivar seen_at: time of the heartbeat; None: there was none
    """

    profile_id: str | None = None
    connected: bool = False
    dd_billing: tuple[str, ...] = ('off',)
    quantum_classes: tuple[str, ...] = ('default',)
    occupancy: occupancies.Occupancy = occupancies.UNKNOWN
    guarantee_pcpus: float | None = None
    guarantee_total_pcpus: float | None = None
    keeps_ceilings: bool = False
    reserve_cu: int | None = None
    alarms: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    seen_at: datetime.datetime | None = None


def to_text(state: AgentState, *, host: str, pid: int) -> str:
    """Write a state as JSON, with the time of now.

    :param host: name of the host
    :param pid: of the agent
    """
    return json.dumps({
        'version': _VERSION,
        'pid': pid,
        'host': host,
        'profile_id': state.profile_id,
        'seen_at': utc.text(),
        'classes': list(state.quantum_classes),
        'quantum': state.occupancy.to_state(),
        'dd_billing': list(state.dd_billing),
        'guarantee_pcpus': state.guarantee_pcpus,
        'guarantee_total_pcpus': state.guarantee_total_pcpus,
        'keeps_ceilings': state.keeps_ceilings,
        'reserve_cu': state.reserve_cu,
        'hypervisor_connected': state.connected,
        'alarms': list(state.alarms),
    })


def from_text(text: str) -> AgentState:
    """Read the state of an agent of any version.

    Values that are not understood are left out.

    :raises nova_vqos.files.FileInvalid: when there is no valid heartbeat
    """
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f'longer than {MAX_CHARACTERS} characters')
        state = json.loads(text)
        seen_at = host_stats.read_time(state['seen_at'])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise files.FileInvalid(
            f'no heartbeat: {type(error).__name__}: {error}') from error
    profile_id = state.get('profile_id')
    return AgentState(
        profile_id=profile_id if isinstance(profile_id, str) else None,
        connected=state.get('hypervisor_connected') is True,
        dd_billing=_known(state, 'dd_billing', policy.DD_BILLING_KEY),
        quantum_classes=_known(state, 'classes', policy.QUANTUM_CLASS_KEY),
        occupancy=occupancies.from_state(state.get('quantum')),
        guarantee_pcpus=_pcpus(state.get('guarantee_pcpus')),
        guarantee_total_pcpus=_pcpus(state.get('guarantee_total_pcpus')),
        keeps_ceilings=state.get('keeps_ceilings') is True,
        reserve_cu=_cu(state.get('reserve_cu')),
        alarms=tuple(alarm for alarm in _list(state, 'alarms')
                     if isinstance(alarm, str)),
        seen_at=seen_at)


def read(path: str) -> AgentState:
    """The last state that an agent wrote; the default where there is none."""
    try:
        with io.TextIOWrapper(files.open_regular(path), 'utf-8') as file:
            return from_text(file.read(MAX_CHARACTERS + 1))
    except (files.FileError, OSError, ValueError):
        return AgentState()


def _known(state: Mapping[str, ty.Any], field: str,
           key: str) -> tuple[str, ...]:
    """The values of a field that a key may have; its default at least."""
    given = _list(state, field)
    choices = policy.CHOICES[key]
    return tuple(choice for choice in choices
                 if choice == choices[0] or choice in given)


def _pcpus(value: object) -> float | None:
    """A number of pCPUs; None where it is none."""
    if (isinstance(value, bool) or not isinstance(value, int | float)
            or not 0 <= value <= _MOST_PCPUS):
        return None
    return float(value)


def _cu(value: object) -> int | None:
    """A number of CU; None where it is none."""
    if (isinstance(value, bool) or not isinstance(value, int)
            or not 0 <= value <= units.MAX_UNITS):
        return None
    return value


def _list(state: Mapping[str, ty.Any], field: str) -> list[ty.Any]:
    value = state.get(field)
    return value if isinstance(value, list) else []
