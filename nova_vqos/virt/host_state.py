# SPDX-License-Identifier: Apache-2.0
"""What a host can promise now: its profile, and its agent's heartbeat.

Read by the compute driver. Imports neither Nova nor libvirt.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence, Set
import dataclasses
from decimal import Decimal
import functools
import logging
import math
import os

from nova_vqos import agent_state
from nova_vqos import core_types
from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos import guarantee
from nova_vqos import hooks
from nova_vqos import host_stats
from nova_vqos import units
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import model
from nova_vqos.profile import validity

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class HostReport:
    """What a host can promise now.

    :ivar pcpus: those that servers with units share
    :ivar profile: None where there is none that can be read
    :ivar problem: why the host accepts no new servers with units; empty: it
        does
    :ivar present: whether there is a profile, be it unreadable
    :ivar max_interval: see [vqos] profile_max_interval
    :ivar can_reserve: whether the kernel reserves time for threads that may
        run on these pCPUs alone
    """

    pcpus: frozenset[int]
    profile: model.Profile | None
    problem: str
    present: bool
    agent: agent_state.AgentState
    can_reserve: bool = True
    max_interval: float = math.inf

    @property
    def valid(self) -> bool:
        return not self.problem

    @property
    def capacity_cu(self) -> int:
        """CU that the shared pCPUs have while all of them are busy.

        :raises nova_vqos.files.FileError: without a profile
        """
        profile = self.profile
        if profile is None:
            raise files.FileInvalid(self.problem)
        return units.capacity_cu(map(profile.coefficient, self.pcpus))

    @property
    def wide_kinds(self) -> Mapping[str, float]:
        """See :meth:`nova_vqos.profile.model.Profile.wide_kinds`."""
        return ({} if self.profile is None else
                self.profile.wide_kinds(self.pcpus, self.max_interval))

    @property
    def guarantee_cu(self) -> int | None:
        """CU that can still be reserved for servers; None: none can."""
        free_pcpus = self.agent.guarantee_pcpus
        if (free_pcpus is None or self.profile is None
                or not self.can_reserve):
            return None
        return math.floor(free_pcpus * float(units.pcpu_cu(
            self.profile.slowest(self.pcpus))))

    @property
    def unsold_cu(self) -> int | None:
        """CU that are not sold, since they cannot be reserved for servers.

        None: it is not known whether the host guarantees speed, since its
        agent has just started, or has not.

        :raises nova_vqos.files.FileError: without a profile
        """
        if not self.can_reserve:
            return 0
        total_pcpus = self.agent.guarantee_total_pcpus
        if total_pcpus is None or self.profile is None:
            return None
        return guarantee.unsold_cu(
            self.capacity_cu, total_pcpus,
            units.pcpu_cu(self.profile.slowest(self.pcpus)))

    @property
    def all_core_types(self) -> tuple[core_types.CoreType, ...]:
        """The core types of the shared pCPUs, without any server."""
        return (() if self.profile is None else
                core_types.of_host(self.profile, self.pcpus))

    @property
    def unlike_core_types(self) -> tuple[core_types.CoreType, ...]:
        """Likewise; none where all pCPUs are equal."""
        found = self.all_core_types
        return found if len(found) > 1 else ()

    def stats(self, left: Sequence[core_types.CoreType] = (),
              servers: int | None = None) -> host_stats.HostStats:
        """What the scheduler learns of the host.

        :param left: what servers leave of :attr:`all_core_types`
        :param servers: how many these are; None: not known
        """
        stats = host_stats.HostStats(
            profile=self.problem or host_stats.VALID,
            agent_seen_at=self.agent.seen_at,
            quantum_classes=self.agent.quantum_classes,
            quantum_pools=self.agent.occupancy,
            dd_billing=self.agent.dd_billing,
            keeps_ceilings=self.agent.keeps_ceilings)
        profile = self.profile
        if profile is None:
            return stats
        stats = stats._replace(profile_id=profile.id)
        try:
            slowest = profile.slowest(self.pcpus)
            fastest = profile.fastest(self.pcpus)
        except files.FileError:
            # It is the problem already.
            return stats
        wide = self.wide_kinds
        return stats._replace(
            slowest_cu=host_stats.speed_cu(slowest),
            fastest_cu=host_stats.speed_cu(fastest),
            least_cu=_least_cu(slowest, profile),
            guarantee_cu=self.guarantee_cu,
            largest_vcpu_cu=_largest_vcpu_cu(left), pieces=_pieces(left),
            stranded_cu=_stranded_cu(left),
            core_types=tuple(host_stats.CoreTypeRoom(
                host_stats.speed_cu(one.coefficient), one.whole_room_cu,
                _least_cu(one.coefficient, profile))
                for one in left) if len(left) > 1 else (),
            room_cu=sum(one.whole_room_cu for one in left) if left else None,
            servers=servers if left else None,
            work=tuple(host_stats.WorkSpeeds(
                host_stats.speed_cu(one.coefficient),
                {kind: coefficient for kind, coefficient in one.kinds.items()
                 if kind not in wide})
                for one in sorted(self.all_core_types,
                                  key=lambda one: one.coefficient)))

    def traits(self, *, sold_units: bool = False) -> set[str]:
        """The traits of ours that the host has.

        :param sold_units: see :meth:`may_have_sold`
        """
        stats = self.stats()._replace(
            sells_units=self.may_have_sold(sold_units))
        return host_stats.traits(stats, hook=hooks.is_installed())

    def may_have_sold(self, sold_units: bool) -> bool:
        """Whether servers with units may be on the host.

        Without a profile the host is stock Nova's, unless its profile is lost.

        :param sold_units: whether Placement has an inventory of units
        """
        return self.present or sold_units


class HostReporter:
    """Makes a host's reports.

    The profile is read again only when its file changed. The agent's state and
    the last verification, small files, are read for each report.
    """

    def __init__(self, profile_path: str, agent_state_path: str,
                 max_interval: float, verification_path: str,
                 guaranteed_pcpus: Set[int] = frozenset()) -> None:
        """
        :param max_interval: see :func:`nova_vqos.profile.validity.staleness`
        :param verification_path: see :mod:`nova_vqos.profile.validity`
        :param guaranteed_pcpus: those of the cpuset partition of servers;
            empty: there is none
        """
        self._guaranteed_pcpus = guaranteed_pcpus
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
        found: Mapping[str, str] = {}
        try:
            profile = _load(self._profile_path)
            found = fingerprint.of_host(profile.fingerprint.get('emulator'))
            problem = self._problem_of(profile, pcpus, found)
        except files.FileMissing as error:
            problem, present = str(error), False
        except Exception as error:
            problem = str(error) or type(error).__name__
        problem = obstacle or problem
        self._log_change(profile, problem)
        return HostReport(
            pcpus=pcpus, profile=profile, problem=problem, present=present,
            agent=agent_state.read(self._agent_state_path),
            max_interval=self._max_interval,
            can_reserve=self._are_domain(pcpus,
                                         found.get('online_pcpus', '')))

    def _are_domain(self, pcpus: Set[int], online: str) -> bool:
        """Whether these are all pCPUs of a root domain, as far as known.

        :param online: the kernel's list of all of the host
        """
        if self._guaranteed_pcpus:
            return pcpus == self._guaranteed_pcpus
        try:
            return pcpus >= cpuset.parse_pcpus(online)
        except ValueError:
            return False

    def _problem_of(self, profile: model.Profile, pcpus: frozenset[int],
                    found: Mapping[str, str]) -> str:
        profile.slowest(pcpus)
        reasons = validity.staleness(
            profile, found, max_interval=self._max_interval)
        if not reasons:
            reasons = [validity.why_stale(self._verification_path,
                                          profile.id)]
        return (f'the profile is stale: {"; ".join(reasons)}'
                if any(reasons) else '')

    def _log_change(self, profile: model.Profile | None,
                    problem: str) -> None:
        """Once per change: the report is made each minute."""
        if problem == self._logged_problem:
            return
        self._logged_problem = problem
        if problem:
            LOG.warning('This host accepts no new servers with CPU units: %s',
                        problem)
        elif profile is not None:
            LOG.info('This host accepts servers with CPU units by profile %s',
                     profile.id)


def _largest_vcpu_cu(left: Iterable[core_types.CoreType]) -> Decimal | None:
    """Rounded up, so that only what cannot fit is above it."""
    largest_cu = max((cu for one in left
                      if (cu := one.largest_vcpu_cu) is not None),
                     default=None)
    return None if largest_cu is None else (
        Decimal(math.ceil(largest_cu * 10**6)) / 10**6)


def _pieces(left: Iterable[core_types.CoreType]
            ) -> tuple[host_stats.Piece, ...]:
    """Of all core types together, as far as their vCPUs have to pack."""
    pcpus: collections.Counter[int] = collections.Counter()
    for one in left:
        if one.packed is not None:
            for piece_cu, number in one.packed.pieces().items():
                pcpus[math.ceil(piece_cu)] += number
    return tuple(host_stats.Piece(cu, number) for cu, number
                 in sorted(pcpus.items(), reverse=True))


def _stranded_cu(left: Iterable[core_types.CoreType]) -> int | None:
    stranded_cu = [cu for one in left
                   if (cu := one.stranded_cu) is not None]
    return math.floor(sum(stranded_cu)) if stranded_cu else None


def _least_cu(coefficient: float, profile: model.Profile) -> Decimal:
    return Decimal(repr(float(units.least_cu_per_vcpu(
        coefficient, tick_us=profile.tick_us))))


def _load(path: str) -> model.Profile:
    """The profile, parsed again only when its file is another one."""
    try:
        status = os.stat(path)
    except OSError:
        # load() says what is wrong.
        return document.load(path)
    return _load_cached(path, status.st_mtime_ns, status.st_size,
                        status.st_ino, status.st_mode, status.st_uid)


@functools.lru_cache(maxsize=8)
def _load_cached(path: str, *_identity: int) -> model.Profile:
    return document.load(path)
