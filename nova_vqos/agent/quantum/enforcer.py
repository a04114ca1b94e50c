# SPDX-License-Identifier: Apache-2.0
"""Set the slices of servers' threads, and confine vCPUs to their pools.

Runs on a worker, one call at a time, since it may block on the hypervisor.
Servers come in as :class:`enforced_server.Target`, and an
:class:`Enforcement` comes back: nothing else is shared with the loop.
"""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
import dataclasses
from fractions import Fraction
import functools
import logging
import time

from nova_vqos import cpuset
from nova_vqos.agent import isolation
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.quantum import awake_times
from nova_vqos.agent.quantum import demand as demands
from nova_vqos.agent.quantum import enforced_server
from nova_vqos.agent.quantum import preemptions
from nova_vqos.agent.quantum import trials
from nova_vqos.agent.quantum import watcher as watchers
from nova_vqos.hypervisor import base
from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import occupancy
from nova_vqos.quantum import probe_result
from nova_vqos.quantum import recognition
from nova_vqos.quantum.placement import host

LOG = logging.getLogger(__name__)

#: Between two readings of what vCPUs ran that have the kernel's own slices;
#: and what demand is averaged over.
IDLE_INTERVAL_S = 60.0
# Between two checks that they still have those: only the agent sets slices.
_IDLE_CHECK_INTERVAL_S = 600.0

# The source that recognises polluters.
_CACHE_SOURCE = 'cache'
_PINNED = 'its vCPUs are pinned by others, or its speed is guaranteed'
# All vCPUs of a pool have the same pCPUs.
_format_pcpus = functools.lru_cache(maxsize=256)(cpuset.format_pcpus)


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """See the options of the agent.

    :ivar slices_us: see :func:`nova_vqos.quantum.classes.slices_us`
    :ivar pool_interval_s: None: no affinity is ever touched
    """

    slices_us: Mapping[str, int]
    probe_result_path: str
    interval_s: float = 5.0
    pool_interval_s: float | None = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Enforcement:
    """The state of slices and pools after one call of the enforcer.

    :ivar probe_result: of this boot; None: slices were not measured
    :ivar classes: quantum classes that work on this host
    :ivar occupancy: of the pools
    :ivar slices: by UUID
    :ivar alarms: problems that an operator has to look at
    """

    probe_result: probe_result.ProbeResult | None
    classes: tuple[str, ...]
    occupancy: occupancy.Occupancy
    slices: Mapping[str, enforcement.Slices]
    pools: host_report.Pools
    alarms: tuple[str, ...]


@dataclasses.dataclass(slots=True)
class _State:
    """One server, from call to call.

    :ivar problem: why its slices are not enforced; '': they are
    :ivar kinds: of its vCPUs, by their numbers
    :ivar suited: likewise, for which kinds of slices they are
    :ivar planned: what the plan knows of it; None: it has no pool
    :ivar placed_at_s: when its affinity was last set or confirmed
    :ivar is_confined: whether its vCPUs are confined to some pCPUs
    :ivar pcpus: that they were last confined to
    :ivar floated: whether that was for a trial, or what came of it
    :ivar slices_us: that its vCPUs were last given
    :ivar checked_at_s: when they were last looked at
    :ivar runs: counters of its vCPUs
    :ivar runs_before: likewise, a reading earlier
    :ivar runs_at_s: when they were last read
    :ivar demand: what its vCPUs want
    :ivar awake: how long those of kind io work at a time
    """

    problem: str = ''
    kinds: Mapping[int, model.Kind] = dataclasses.field(
        default_factory=dict)
    suited: Mapping[int, model.Kind] = dataclasses.field(
        default_factory=dict)
    planned: host.Server | None = None
    placed_at_s: float = float('-inf')
    is_confined: bool = False
    pcpus: Mapping[int, frozenset[int]] = dataclasses.field(
        default_factory=dict)
    floated: bool = False
    slices_us: Mapping[int, int | None] = dataclasses.field(
        default_factory=dict)
    checked_at_s: float = float('-inf')
    runs: Mapping[int, base.ThreadRun] = dataclasses.field(
        default_factory=dict)
    runs_before: Mapping[int, base.ThreadRun] = dataclasses.field(
        default_factory=dict)
    runs_at_s: float = float('-inf')
    demand: demands.Demand = dataclasses.field(
        default_factory=demands.Demand)
    awake: awake_times.AwakeTimes = dataclasses.field(
        default_factory=awake_times.AwakeTimes)

    def needs_check(self, slices_us: Mapping[int, int | None],
                    now_s: float) -> bool:
        """Whether to look at the slices of the server's threads.

        Seldom where they are, and are to be, the kernel's own.
        """
        return (bool(self.problem) or any(slices_us.values())
                or slices_us != self.slices_us
                or now_s >= self.checked_at_s + _IDLE_CHECK_INTERVAL_S)

    def is_at(self, wanted: host.Placement | None,
              slices_us: Mapping[int, int | None]) -> bool:
        """Whether vCPUs are where they are to be, with such slices."""
        return (wanted is not None and not self.problem
                and self.slices_us == slices_us
                and self.pcpus == (wanted.pcpus or {}))


class Enforcer:
    """Enforces the slices and pools of a host's servers.

    :ivar options: as given
    """

    def __init__(self, hypervisor: base.ThreadDriver,
                 watcher: watchers.Watcher, options: Options, *,
                 clock: Callable[[], float] = time.monotonic,
                 preempted: preemptions.PreemptionReader | None = None
                 ) -> None:
        """Prepare; nothing is read yet.

        :param watcher: recognises servers of class auto; closed with this
        :param preempted: counts preemptions of servers that spin, closed with
            this; None: nothing does
        :param clock: monotonic, in seconds
        """
        self.options = options
        self._hypervisor = hypervisor
        self._watcher = watcher
        self._clock = clock
        self._isolation = isolation.Isolation(clock)
        self._each = functools.partial(self._isolation.each,
                                       passes=(base.Unavailable,))
        self._preempted = preempted
        # A second, by UUID.
        self._preemptions: Mapping[str, float] = {}
        self._plan = host.NOTHING
        self._planned_from: tuple[object, ...] = ()
        self._states: dict[str, _State] = {}
        self._host_problems: list[str] = []
        self._logged_problems: list[str] = []
        self._logged_sources: Mapping[str, str] = {}
        self._slices_written = self._servers_placed = 0
        self._trials = trials.PoolTrials()

    def enforce(self, targets: Sequence[enforced_server.Target]
                ) -> Enforcement:
        """Enforce the slices and pools of all servers.

        :param targets: a server that is missing is dropped from all pools
        :raises nova_vqos.hypervisor.base.Unavailable: when the hypervisor
            cannot be reached
        """
        now_s = self._clock()
        self._logged_problems, self._host_problems = self._host_problems, []
        states, self._states = self._states, {
            target.uuid: self._states.get(target.uuid) or _State()
            for target in targets}
        for uuid in states.keys() - self._states.keys():
            self._isolation.forget(uuid)
        result = probe_result.load(self.options.probe_result_path)
        enforced = probe_result.enforced_classes(
            result, self.options.slices_us,
            has_pools=self.options.pool_interval_s is not None)
        slices_us = probe_result.enforced_slices_us(result,
                                                    self.options.slices_us)
        threads = self._find_threads(targets)
        self._trials.retain(targets)
        targets = _among(targets, threads)
        self._recognise(targets, threads, now_s)

        def judge(target: enforced_server.Target) -> None:
            kinds = self._kinds(target, threads[target.uuid])
            state = self._states[target.uuid]
            state.kinds, state.suited = kinds, self._suited(target, kinds)
        # Where it fails, they stay as they were: others' pools depend on it.
        self._each('judging the work of server', targets, judge)
        kinds = {target.uuid: self._states[target.uuid].kinds
                 for target in targets}
        self._count_preemptions([
            target for target in targets
            if model.Kind.SPIN in kinds[target.uuid].values()], threads)
        pooled_us = {name: slice_us for name, slice_us in slices_us.items()
                     if name in classes.POOLED}
        self._plan = self._make_plan(targets, pooled_us)
        wanted = self._each(
            'choosing the slices of server', targets,
            lambda target: self._wanted_slices_us(target.uuid, slices_us))
        targets = _among(targets, wanted)

        def apply(target: enforced_server.Target) -> None:
            self._apply(target, wanted[target.uuid], now_s)
            self._trials.place(
                target, threads[target.uuid].values(),
                kinds[target.uuid].values(), self._plan,
                self._states[target.uuid].is_at(
                    self._plan.placements.get(target.uuid),
                    wanted[target.uuid]))
        self._each('setting the slices of server', targets, apply)
        self._read_runs(now_s)
        self._read_sleeps(kinds if classes.IO in slices_us else {},
                          probe_result.longest_work_us(result), now_s)
        slices = self._each(
            'describing the slices of server', targets,
            lambda target: self._describe(target, kinds[target.uuid],
                                          wanted[target.uuid]))
        counts = self._each('counting server', targets, self._count).values()
        sources = self._watcher.status()
        occupied = occupancy.Occupancy(
            host.pool_sizes(self._plan, pooled_us),
            # Without the source none is recognised, which is not the same as
            # none.
            None if sources.get(_CACHE_SOURCE, 'absent')
            else sum(polluters for polluters, _out in counts))
        return Enforcement(
            result, (*enforced, classes.AUTO), occupied, slices,
            host_report.Pools(
                pools={name: (size.pcpus, size.vcpus)
                       for name, size in occupied.pools.items()},
                polluters=occupied.polluters,
                left_alone=len(self._plan.unplanned) + sum(
                    is_out for _polluters, is_out in counts),
                sources=dict(sources),
                slices_written=self._slices_written,
                servers_placed=self._servers_placed,
                undone=self._trials.undone), self._alarms())

    @property
    def errors(self) -> int:
        """How often something failed for a server, unexpectedly."""
        return self._isolation.errors + self._watcher.errors

    def close(self) -> None:
        """Release what is open. Slices and affinity stay as they are."""
        self._watcher.close()
        if self._preempted is not None:
            self._preempted.close()

    def _find_threads(self, targets: Sequence[enforced_server.Target]
                      ) -> dict[str, Mapping[int, int]]:
        """By UUID, the thread of each vCPU by its number."""
        def find(target: enforced_server.Target) -> Mapping[int, int] | None:
            try:
                return self._hypervisor.vcpu_threads(target.uuid)
            except base.Unavailable:
                raise
            except base.DomainGone as error:
                LOG.debug('Server %s is gone: %s', target.uuid, error)
            except base.HypervisorError as error:
                self._set_problem(target, str(error))
            return None
        found = self._each('finding the threads of server', targets, find)
        return {uuid: threads for uuid, threads in found.items()
                if threads is not None}

    def _recognise(self, targets: Sequence[enforced_server.Target],
                   threads: Mapping[str, Mapping[int, int]],
                   now_s: float) -> None:
        """Observe servers of class auto; log each change of a source once."""
        observed = {target.uuid: threads[target.uuid] for target in targets
                    if target.quantum_class == classes.AUTO}
        found = self._watcher.observe(observed, now_s)
        if found is not None:
            self._trials.look(targets, found, now_s)
        if not observed:
            return
        sources = self._watcher.status()
        for name, reason in sources.items():
            logged = self._logged_sources.get(name)
            if reason and reason != logged:
                LOG.warning('Recognition source %s is unavailable: %s', name,
                            reason)
            elif logged and not reason:
                LOG.info('Recognition source %s is available', name)
        self._logged_sources = sources

    def _kinds(self, target: enforced_server.Target,
               threads: Mapping[int, int]) -> dict[int, model.Kind]:
        """The kind of each vCPU, by its number."""
        numbers = sorted(threads)
        if target.quantum_class == classes.AUTO:
            return {number: self._watcher.kind(target.uuid, number)
                    or model.Kind.DEFAULT for number in numbers}
        return dict.fromkeys(numbers, model.Kind(target.quantum_class))

    def _suited(self, target: enforced_server.Target,
                kinds: Mapping[int, model.Kind]) -> Mapping[int, model.Kind]:
        """For which kinds of slices vCPUs are.

        Recognised ones suit a long slice only if they are busy, and neither
        serve requests nor wait for others.
        """
        if target.quantum_class != classes.AUTO:
            return kinds
        return {number: model.Kind.DEFAULT
                if (kind is model.Kind.CACHE or kind in model.AGNOSTIC)
                and self._watcher.is_sensitive(target.uuid, number) else kind
                for number, kind in kinds.items()}

    def _count_preemptions(self, spin: Sequence[enforced_server.Target],
                           threads: Mapping[str, Mapping[int, int]]) -> None:
        reader = self._preempted
        if reader is None:
            return
        reader.retain({thread for target in spin
                       for thread in threads[target.uuid].values()})
        found = self._each('counting the preemptions of server', spin,
                           lambda target: reader.read(threads[target.uuid]))
        self._preemptions = {uuid: count for uuid, count in found.items()
                             if count is not None}

    def _make_plan(self, targets: Sequence[enforced_server.Target],
                   slices_us: Mapping[str, int]) -> host.HostPlan:
        def prepare(target: enforced_server.Target) -> None:
            state = self._states[target.uuid]
            state.planned = self._planned(target, state)
        self._each('planning the pool of server', targets, prepare)
        servers = [one for target in targets if (
            one := self._states[target.uuid].planned) is not None]
        if self.options.pool_interval_s is None or not servers:
            self._planned_from = ()
            return host.NOTHING
        try:
            sockets = self._hypervisor.topology()
        except base.Unavailable:
            raise
        except base.HypervisorError as error:
            # Slices do not depend on it.
            self._set_host_problem(f'no server has a pool: {error}')
            self._planned_from = ()
            return host.NOTHING
        planned_from = servers, sockets, slices_us
        if planned_from == self._planned_from:
            return self._plan
        try:
            plan = host.plan_host(servers, sockets, slices_us, self._plan)
        except Exception as error:
            # The plan is of all servers. Slices do not depend on it.
            self._set_host_problem(f'no server has a pool: {error!r}')
            self._planned_from = ()
            return host.NOTHING
        self._planned_from = planned_from
        return plan

    def _planned(self, target: enforced_server.Target, state: _State
                 ) -> host.Server | None:
        """What the plan needs to know of a server; None: it has no pool."""
        if target.pcpus is None or target.is_guaranteed:
            return None
        return host.Server(
            target.uuid, state.suited, target.share, target.pcpus,
            frozenset(number for number in state.suited
                      if self._watcher.pollutes(target.uuid, number)),
            dict(state.demand.tenths),
            _cap_share(target), floats=self._trials.floats(target.uuid),
            # What waits for locks is not always seen: on x86 no counter has
            # the pause loops of spin locks.
            may_spin=target.quantum_class == classes.AUTO)

    def _wanted_slices_us(self, uuid: str, slices_us: Mapping[str, int]
                          ) -> Mapping[int, int | None]:
        """By kind, and by the plan where that may put it into a pool.

        A slice of io is for vCPUs that do not work for too long at a time.
        """
        kinds = self._states[uuid].suited
        is_too_long = self._states[uuid].awake.is_too_long
        own_us = {number: None
                  if kind is model.Kind.IO and is_too_long(number)
                  else slices_us.get(model.QUANTUM_CLASS[kind])
                  for number, kind in kinds.items()}
        placement = self._plan.placements.get(uuid)
        if placement is None:
            return own_us
        unpooled = slices_us.keys() - classes.POOLED
        return {number: own_us[number]
                if model.QUANTUM_CLASS[kind] in unpooled
                else placement.slices_us[number]
                for number, kind in kinds.items()}

    def _apply(self, target: enforced_server.Target,
               slices_us: Mapping[int, int | None], now_s: float) -> None:
        """Set the slices and the affinity of one server."""
        state = self._states[target.uuid]
        try:
            if state.needs_check(slices_us, now_s):
                state.checked_at_s = now_s
                self._slices_written += self._hypervisor.set_slices(
                    target.uuid, slices_us, _longest(slices_us.values()))
                state.slices_us = slices_us
            self._place(target, slices_us, now_s)
        except base.Unavailable:
            raise
        except base.SlicesUnsupported as error:
            # The same for all servers.
            self._set_host_problem(f'no server has slices: {error}')
        except (base.DomainGone, base.DomainBusy) as error:
            LOG.debug('Slices of server %s cannot be set now: %s',
                      target.uuid, error)
        except base.HypervisorError as error:
            self._set_problem(target, str(error))
        else:
            self._set_problem(target, '')

    def _read_runs(self, now_s: float) -> None:
        """Read what vCPUs ran: of idle servers, not each time."""
        due = {uuid: state for uuid, state in self._states.items()
               if state.checked_at_s == now_s
               or now_s >= state.runs_at_s + IDLE_INTERVAL_S}
        runs = self._hypervisor.vcpu_runs(due)

        def record(server: isolation.Named) -> None:
            state = due[server.uuid]
            state.runs_before, state.runs = (
                state.runs, runs.get(server.uuid, {}))
            state.runs_at_s = now_s
            state.demand.update(state.runs, now_s, max(
                IDLE_INTERVAL_S, self.options.interval_s))
        self._each('recording the runs of server',
                   map(isolation.Named, due), record)

    def _read_sleeps(self, kinds: Mapping[str, Mapping[int, model.Kind]],
                     longest_us: float, now_s: float) -> None:
        """Read how long vCPUs of kind io work at a time, with their runs."""
        due = {}
        for uuid, state in self._states.items():
            numbers = {number for number, kind in kinds.get(uuid, {}).items()
                       if kind is model.Kind.IO}
            state.awake.retain(numbers)
            if numbers and state.runs_at_s == now_s:
                due[uuid] = numbers
        sleeps = self._hypervisor.vcpu_sleeps(due)

        def record(server: isolation.Named) -> None:
            state = self._states[server.uuid]
            state.awake.update({
                number: run for number, run in state.runs.items()
                if number in due[server.uuid]},
                sleeps.get(server.uuid, {}), longest_us)
        self._each('recording the sleep of server',
                   map(isolation.Named, due), record)

    def _place(self, target: enforced_server.Target, vcpus: Collection[int],
               now_s: float) -> None:
        """Let the vCPUs of a server run where the plan wants them.

        A server that the plan does not confine is touched only where a pin of
        ours may still confine it; at once where that keeps it from a
        guarantee. The hypervisor reads the affinity in force each time: vCPUs
        are plugged in, and others change pins.

        :param vcpus: their numbers
        """
        placement = self._plan.placements.get(target.uuid)
        interval_s = self.options.pool_interval_s
        if (target.pcpus is None or interval_s is None
                or placement is None and not target.is_guaranteed):
            return
        state = self._states[target.uuid]
        confined = (placement and placement.pcpus) or {}
        if not confined and not (target.pinned or state.is_confined):
            return
        if now_s < state.placed_at_s + interval_s and not (
                state.is_confined and (target.is_guaranteed
                                       or self._trials.floats(target.uuid))
                # Back from a trial.
                or state.floated and not self._trials.floats(target.uuid)):
            return
        wanted = {number: confined.get(number, target.pcpus)
                  for number in vcpus}
        moved = self._hypervisor.place(target.uuid, wanted)
        state.placed_at_s = now_s
        state.is_confined, state.pcpus = bool(confined), confined
        state.floated = self._trials.floats(target.uuid)
        if moved:
            self._servers_placed += 1
            LOG.info('Server %s (%s) runs on pCPUs %s from now on',
                     target.uuid, target.name, cpuset.format_pcpus(
                         frozenset().union(*wanted.values())))

    def _set_problem(self, target: enforced_server.Target,
                     problem: str) -> None:
        """Set the problem of a server; log it once."""
        state = self._states[target.uuid]
        if problem and problem != state.problem:
            LOG.warning('Slices of server %s (%s) cannot be set, trying again '
                        'in %g s: %s', target.uuid, target.name,
                        self.options.interval_s, problem)
        state.problem = problem

    def _set_host_problem(self, problem: str) -> None:
        """Set a problem of all servers; log it once."""
        if problem in self._host_problems:
            return
        self._host_problems.append(problem)
        if problem not in self._logged_problems:
            LOG.warning('Quantum classes are limited on this host: %s',
                        problem)

    def _alarms(self) -> tuple[str, ...]:
        failing = sum(bool(state.problem) for state in self._states.values())
        return (*self._host_problems, *(
            [f'slices of {failing} servers cannot be set'] if failing
            else []), *self._isolation.alarms, *self._watcher.alarms)

    def _count(self, target: enforced_server.Target) -> tuple[int, bool]:
        """Its polluters, and whether it is out of the pool it could have."""
        polluters = sum(
            kind is model.Kind.POLLUTER
            or self._watcher.pollutes(target.uuid, number)
            for number, kind in self._states[target.uuid].kinds.items())
        return polluters, (target.uuid in self._plan.placements
                           and self._trials.is_out(target.uuid))

    def _describe(self, target: enforced_server.Target,
                  kinds: Mapping[int, model.Kind],
                  slices_us: Mapping[int, int | None]) -> enforcement.Slices:
        state = self._states[target.uuid]
        runs = state.runs
        placement = self._plan.placements.get(target.uuid)
        pcpus = {} if placement is None else placement.pcpus or {}
        return enforcement.Slices(
            class_=target.quantum_class,
            recognised_class=(
                recognition.server_class(kinds.values())
                if target.quantum_class == classes.AUTO else None),
            problem=state.problem,
            left_alone=self._why_left_alone(target),
            sibling_preemptions_per_s=self._preemptions.get(target.uuid),
            vcpus={str(number): enforcement.Vcpu(
                kind=kind.value, slice_us=slices_us.get(number),
                obtainable_us=(
                    None if (slice_us := slices_us.get(number)) is None
                    else classes.obtainable_run_us(slice_us, target.cap)),
                mean_run_us=_mean_run_us(state.runs_before.get(number),
                                         runs.get(number)),
                waited_s=(runs[number].waited_ns / 1e9
                          if number in runs else None),
                pcpus=(_format_pcpus(pcpus[number])
                       if number in pcpus else None),
                recognised_after_s=self._watcher.recognised_after_s(
                    target.uuid, number),
                awake_us=state.awake.us.get(number))
                for number, kind in kinds.items()})

    def _why_left_alone(self, target: enforced_server.Target) -> str:
        if target.pcpus is None or target.is_guaranteed:
            return _PINNED
        return (self._plan.unplanned.get(target.uuid, '')
                or self._trials.why_out(target.uuid))


def _among(targets: Sequence[enforced_server.Target],
           uuids: Container[str]) -> list[enforced_server.Target]:
    return [target for target in targets if target.uuid in uuids]


def _cap_share(target: enforced_server.Target) -> Fraction | int:
    """The part of a pCPU's time that a cap leaves each vCPU."""
    if target.cap is None or target.cap.share > 1:
        return 1
    return target.cap.share


def _longest(slices_us: Collection[int | None]) -> int | None:
    """The longest of some slices; None: all are the kernel's own.

    Emulator and I/O threads get it, since the shortest slice in a group
    counts for all of it: they take no turn from a vCPU of class cache, and
    where all are of class io, they serve these at once.
    """
    return max((slice_us for slice_us in slices_us if slice_us is not None),
               default=None)


def _mean_run_us(before: base.ThreadRun | None,
                 now: base.ThreadRun | None) -> float | None:
    """The mean run between two readings of a vCPU.

    :returns: None: it did not run, or its thread is another one
    """
    if (before is None or now is None or now.runs <= before.runs
            or now.run_ns < before.run_ns):
        return None
    return round((now.run_ns - before.run_ns)
                 / (now.runs - before.runs) / 1000, 1)
