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

"""What a host can promise now: its profile, and its agent's sign of life.

Read by the compute driver. Imports neither Nova nor libvirt.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from decimal import Decimal
import functools
import json
import logging
import os
import re

from nova_vqos import cpu_classes
from nova_vqos import fingerprint
from nova_vqos import policy as policies
from nova_vqos import profile as profiles
from nova_vqos import units
from nova_vqos import verification
from nova_vqos.hooks import install
from nova_vqos.quantum import classes as quantum_classes
from nova_vqos.quantum import occupancy

LOG = logging.getLogger(__name__)

TRAIT = 'CUSTOM_VQOS'
TRAIT_HOOK = 'CUSTOM_VQOS_HOOK'
# Servers can be charged for what the host does for their I/O.
TRAIT_DD_BILLING = 'CUSTOM_VQOS_DD_BILLING'
# Of each quantum class that has a slice of its own, and is enforced.
_TRAIT_QUANTUM = 'CUSTOM_VQOS_QUANTUM_'
_TRAIT_SPEED = 'CUSTOM_VQOS_SPEED_'
# A flavor that requires one of them makes Placement leave slower hosts out,
# of which there may be more than [scheduler] max_placement_results.
SPEED_TIERS_CU = (10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100, 125, 150,
                  175, 200, 250, 300, 350, 400, 500, 600, 800, 1000)
_OWN_TRAIT = re.compile(
    rf'{TRAIT}|{TRAIT_HOOK}|{TRAIT_DD_BILLING}|{_TRAIT_SPEED}[0-9]+|'
    rf'{_TRAIT_QUANTUM}(IO|SPIN|CACHE)')

VALID = 'valid'
_MAX_STAT = 255
_MAX_AGENT_STATE_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class AgentState:
    """What a host's agent last said of itself.

    :ivar seen_at: ISO 8601, UTC; empty: never
    :ivar quantum_classes: that the host enforces
    :ivar dd_billing: that the host does
    :ivar quantum: what its pools hold
    """

    seen_at: str = ''
    quantum_classes: tuple[str, ...] = ('default',)
    dd_billing: tuple[str, ...] = ('off',)
    quantum: occupancy.Occupancy = occupancy.UNKNOWN


@dataclasses.dataclass(frozen=True)
class HostReport:
    """What a host can promise now.

    :ivar pcpus: those that servers with units share
    :ivar profile: None where there is none that can be read
    :ivar problem: why the host takes no new servers with units; empty: it
        does
    :ivar present: whether there is a profile at all, be it unreadable
    :ivar hook: whether our hook is installed in libvirt
    """

    pcpus: frozenset[int]
    profile: profiles.Profile | None
    problem: str
    present: bool
    agent: AgentState
    hook: bool

    @property
    def valid(self) -> bool:
        return not self.problem

    @property
    def capacity_cu(self) -> int:
        """CU that the shared pCPUs have while all of them are busy.

        :raises nova_vqos.profile.ProfileError: without a profile
        """
        profile = self._needed_profile()
        return units.capacity_cu(map(profile.coefficient, self.pcpus))

    @property
    def all_classes(self) -> tuple[cpu_classes.Room, ...]:
        """Classes of the shared pCPUs; one alone where all are equal."""
        return (() if self.profile is None else
                cpu_classes.of_host(self.profile, self.pcpus))

    @property
    def classes(self) -> tuple[cpu_classes.Room, ...]:
        """Unlike classes of the shared pCPUs; none where all are equal."""
        found = self.all_classes
        return found if len(found) > 1 else ()

    def stats(self, rooms: Sequence[cpu_classes.Room] = ()) -> dict[str, str]:
        """What the scheduler learns of the host: see VqosFilter, and weighers.

        All keys, always: one that is left out keeps its last value.

        :param rooms: what servers leave of :attr:`all_classes`
        """
        stats = {
            'vqos_profile': (self.problem or VALID)[:_MAX_STAT],
            'vqos_profile_id': '',
            'vqos_slowest_cu': '',
            'vqos_fastest_cu': '',
            'vqos_least_cu': '',
            'vqos_classes': '',
            'vqos_room_cu': '',
            'vqos_agent_seen_at': self.agent.seen_at,
            'vqos_quantum_classes': ','.join(self.agent.quantum_classes),
            'vqos_quantum_pools': self.agent.quantum.to_stat(),
            'vqos_dd_billing': ','.join(self.agent.dd_billing),
        }
        if self.profile is None:
            return stats
        stats['vqos_profile_id'] = self.profile.id
        try:
            slowest = self.profile.slowest(self.pcpus)
            fastest = self.profile.fastest(self.pcpus)
        except profiles.ProfileError:
            # The problem says it already.
            return stats
        stats['vqos_slowest_cu'] = _exact_cu(slowest)
        stats['vqos_fastest_cu'] = _exact_cu(fastest)
        stats['vqos_least_cu'] = _least_cu(slowest, self.profile)
        if len(rooms) > 1:
            stats['vqos_classes'] = _format_rooms(rooms, self.profile)
        if rooms:
            stats['vqos_room_cu'] = str(sum(
                room.whole_room_cu for room in rooms))
        return stats

    def traits(self) -> set[str]:
        """The traits of ours that the host has.

        The speed is that of the fastest class: a server that requires it
        must not be kept from that one. Quantum classes need no profile:
        servers without units have them too.
        """
        traits = {f'{_TRAIT_QUANTUM}{name.upper()}'
                  for name in self.agent.quantum_classes
                  if name in quantum_classes.DEFAULT_SLICES_US}
        if self.problem or self.profile is None:
            return traits
        speed_cu = units.pcpu_cu(self.profile.fastest(self.pcpus))
        traits |= {TRAIT} | {f'{_TRAIT_SPEED}{tier}' for tier in SPEED_TIERS_CU
                             if tier <= speed_cu}
        if self.hook:
            traits.add(TRAIT_HOOK)
        if 'charge' in self.agent.dd_billing:
            traits.add(TRAIT_DD_BILLING)
        return traits

    def _needed_profile(self) -> profiles.Profile:
        if self.profile is None:
            raise profiles.ProfileInvalid(self.problem)
        return self.profile


def own_traits(traits: Iterable[str]) -> set[str]:
    """Those among some traits that no one but :class:`HostReport` gives."""
    return {trait for trait in traits if _OWN_TRAIT.fullmatch(trait)}


class HostReporter:
    """Makes a host's reports.

    The profile is read again only when its file changed. The agent's state and
    the last verification, small files, are read for each report.
    """

    def __init__(self, profile_path: str, agent_state_path: str,
                 max_interval: float, verification_path: str) -> None:
        """
        :param max_interval: see :func:`nova_vqos.profile.staleness`
        :param verification_path: see :mod:`nova_vqos.verification`
        """
        self._verification_path = verification_path
        self._profile_path = profile_path
        self._agent_state_path = agent_state_path
        self._max_interval = max_interval
        self._logged_problem: str | None = None

    def report(self, pcpus: Iterable[int], obstacle: str = '') -> HostReport:
        """The report of now. Never raises: what is wrong is its problem.

        :param pcpus: those that servers with units share
        :param obstacle: what else keeps the host from selling units
        """
        pcpus = frozenset(pcpus)
        profile, problem, present = None, '', True
        try:
            profile = _load(self._profile_path)
            problem = self._problem_of(profile, pcpus)
        except profiles.ProfileMissing as error:
            problem, present = str(error), False
        except Exception as error:
            problem = str(error) or type(error).__name__
        problem = obstacle or problem
        self._log_change(profile, problem)
        return HostReport(
            pcpus=pcpus, profile=profile, problem=problem, present=present,
            agent=read_agent_state(self._agent_state_path),
            hook=hook_installed())

    def _problem_of(self, profile: profiles.Profile,
                    pcpus: frozenset[int]) -> str:
        profile.slowest(pcpus)
        reasons = profiles.staleness(
            profile,
            fingerprint.of_host(profile.fingerprint.get('emulator')),
            max_interval=self._max_interval)
        if not reasons:
            reasons = [verification.why_stale(self._verification_path,
                                              profile.id)]
        return (f'the profile is stale: {"; ".join(reasons)}'
                if any(reasons) else '')

    def _log_change(self, profile: profiles.Profile | None,
                    problem: str) -> None:
        """Once per change: the report is made each minute."""
        if problem == self._logged_problem:
            return
        self._logged_problem = problem
        if problem:
            LOG.warning('This host takes no new servers with CPU units: %s',
                        problem)
        elif profile is not None:
            LOG.info('This host has CPU units by profile %s', profile.id)


def read_agent_state(path: str) -> AgentState:
    """The agent's sign of life; the default where there is none.

    Classes and billings that this version does not know are left out.
    """
    try:
        with open(path, 'rb') as file:
            content = file.read(_MAX_AGENT_STATE_BYTES + 1)
        if len(content) > _MAX_AGENT_STATE_BYTES:
            return AgentState()
        state = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return AgentState()
    if not isinstance(state, dict):
        return AgentState()
    seen_at = state.get('seen_at')
    return AgentState(
        seen_at=seen_at if isinstance(seen_at, str) and len(
            seen_at) <= 64 else '',
        quantum_classes=_known(state, 'classes', policies.QUANTUM_CLASS_KEY),
        dd_billing=_known(state, 'dd_billing', policies.DD_BILLING_KEY),
        quantum=occupancy.from_state(state.get('quantum')))


def hook_installed() -> bool:
    """Whether libvirt of this host runs our hook at a migration."""
    try:
        return install.installed_path() is not None
    except OSError:
        # Of a directory that this user may not search.
        return False


def _known(state: Mapping[str, object], field: str,
           key: str) -> tuple[str, ...]:
    """The values of a field that a key may have; its default at least."""
    given = state.get(field)
    if not isinstance(given, list):
        given = []
    choices = policies.CHOICES[key]
    return tuple(choice for choice in choices
                 if choice == choices[0] or choice in given)


def _exact_cu(coefficient: float) -> str:
    """A pCPU's speed in CU, without an error of rounding or an exponent."""
    speed_cu = (Decimal(repr(float(coefficient)))
                * units.CU_PER_REFERENCE_PCPU)
    return format(speed_cu.normalize(), 'f')


def _least_cu(coefficient: float, profile: profiles.Profile) -> str:
    return str(float(units.least_cu_per_vcpu(
        coefficient, tick_us=profile.tick_us)))


def _format_rooms(rooms: Sequence[cpu_classes.Room],
                  profile: profiles.Profile) -> str:
    """``speed:room:least`` of each class, in CU, the slowest first.

    A host that has more classes than there is place for leaves those with
    the least room out: it is refused for what they could take, and never the
    other way round.
    """
    told: list[tuple[float, str]] = []
    left = _MAX_STAT
    for room in sorted(rooms, key=lambda room: -room.room_cu):
        text = ':'.join((_exact_cu(room.coefficient), str(room.whole_room_cu),
                         _least_cu(room.coefficient, profile)))
        left -= len(text) + 1
        if left < 0:
            break
        told.append((room.coefficient, text))
    return ' '.join(text for _coefficient, text in sorted(told))


def _load(path: str) -> profiles.Profile:
    """The profile, parsed again only when its file is another one."""
    try:
        status = os.stat(path)
    except OSError:
        # load() says what is wrong.
        return profiles.load(path)
    return _load_cached(path, status.st_mtime_ns, status.st_size,
                        status.st_ino, status.st_mode, status.st_uid)


@functools.lru_cache(maxsize=8)
def _load_cached(path: str, *_identity: int) -> profiles.Profile:
    return profiles.load(path)
