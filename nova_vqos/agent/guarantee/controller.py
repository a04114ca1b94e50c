# SPDX-License-Identifier: Apache-2.0
"""Guarantees: what is promised to a server is reserved for it.

A server keeps its reservation to the end of its run, also where a push takes
its guarantee away: the kernel loses the bandwidth of a thread that gives it
up. Until then the reservation follows the server's cap, since no quota binds a
thread that has one.

So it also follows what a server is left that pays for its I/O. What such a
server lacks for a while is kept for it: no other server gets it.
"""

from collections.abc import Callable
from concurrent import futures
from fractions import Fraction
import functools
import logging
import time

from nova_vqos import guarantee
from nova_vqos import units
from nova_vqos.agent import controller
from nova_vqos.agent import messages
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.caps import controller as caps
from nova_vqos.agent.guarantee import io_share
from nova_vqos.agent.guarantee import state as states
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# Between two looks at a reservation that is right.
_CHECK_INTERVAL_S = 10.0
# Between two measurements of what the kernel would still reserve, and between
# two looks at how it counts.
_PROBE_INTERVAL_S = 600.0
# Between two looks at what threads of I/O use.
_IO_INTERVAL_S = 2.0
# As long as it would reserve nothing.
_RETRY_INTERVAL_S = 30.0
# For how long the first is put off for servers that have a reservation by an
# earlier agent: what they have is not left.
_FIND_TIMEOUT_S = 60.0
# How long the end of the agent is put off to give vCPUs what they lack.
_GIVE_BACK_TIMEOUT_S = 2.0
# Of what the kernel reserved once: less than that is lost, or is another's.
_LOST_PART = Fraction(2, 100)
# Within which two measurements are equal: each ends at 1/1024 of a pCPU.
_RESOLUTION_PCPUS = Fraction(2, 1024)


_NO_SCALE = (
    'the kernel counts reserved time by the clock of the CPU: switch turbo '
    'off (intel_pstate/no_turbo) and calibrate this host again, or set '
    '[vqos_agent] least_frequency_scale')
_SWITCHED_OFF = (
    'this host guarantees no speed: [vqos_agent] guarantees_speed is false')


class GuaranteeController(controller.Controller):
    """Reserves the CPU time of servers that are guaranteed their speed.

    :ivar host: what the host can reserve; None: it does not know, or none
    :ivar total_pcpus: what can be reserved here, with what already is, in
        pCPUs; 0: the host guarantees no speed; None: it is not measured yet
    """

    def __init__(self, hypervisor: base.ThreadDriver, is_on: bool,
                 guaranteed_share: float | None, least_frequency_scale: float,
                 known: servers.Servers, jobs: worker.ServerJobs,
                 probe: worker.PeriodicJob, server_caps: caps.CapsController,
                 executor: futures.Executor, clock: Callable[[], float],
                 on_change: Callable[[], None]) -> None:
        """
        :param is_on: whether this host guarantees speed; where it does not,
            reservations that servers still have are kept as they should be
        :param guaranteed_share: see the option; None: as much as the kernel
            reserves
        :param least_frequency_scale: see the option; 0: not known
        :param probe: measures what can still be reserved
        :param executor: runs the last writes, at the end of the agent
        :param clock: monotonic, in seconds
        :param on_change: called when more or less is reserved
        """
        self.host: messages.HostGuarantee | None = None
        self.total_pcpus: float | None = None if is_on else 0.0
        self._hypervisor = hypervisor
        self._is_on = is_on
        self._guaranteed_share = guaranteed_share
        self._least_frequency_scale = least_frequency_scale
        self._servers = known
        self._jobs = jobs
        self._probe = probe
        self._caps = server_caps
        self._executor = executor
        self._clock = clock
        self._on_change = on_change
        self._states = known.states(states.GuaranteeState)
        self._terms: controller.HostTerms | None = None
        self._probe_at_s = self._scale_at_s = float('-inf')
        self._io_at_s = float('-inf')
        # What the kernel counts of a second; None: not known.
        self._scale: Fraction | None = None
        self._counts_clock = False
        self._find_until_s: float | None = None
        self._total_pcpus: Fraction | None = None
        self._last_pcpus: Fraction | None = None
        # What the operator lets be reserved; None: no bound, or not known.
        self._bound_pcpus: Fraction | None = None
        self._most_pcpus = Fraction(0)
        self._is_measured = self._unlike = False
        self._problem = 'not measured yet'
        self._refusals = 0

    def state(self, server: servers.Server) -> states.GuaranteeState:
        """What is known of a server; for reading."""
        return self._states[server]

    def concerns(self, server: servers.Server) -> bool:
        """Whether time is reserved for a server here, or is to be."""
        return server.has_reservation or self._reserves(server)

    def tick(self, now_s: float, terms: controller.HostTerms) -> None:
        """Measure the host, and what threads of I/O use, where it is due."""
        self._unlike = (terms.profile is not None
                        and len(terms.profile.cpu_classes) > 1)
        if now_s >= self._scale_at_s:
            self._scale_at_s = now_s + _PROBE_INTERVAL_S
            self._counts_clock, self._scale = self._find_scale()
            if self._is_on and self._scale is None:
                self._measured(_NO_SCALE)
                self._probe_at_s = float('-inf')
        if (self._is_on and self._scale is not None
                and now_s >= self._probe_at_s
                and not self._probe.busy and not self._is_busy
                and self._has_found_all(now_s)):
            self._probe_at_s = now_s + _PROBE_INTERVAL_S
            self._probe.begin(
                functools.partial(_measure, self._hypervisor), self._measured)
        if now_s >= self._io_at_s:
            self._io_at_s = now_s + _IO_INTERVAL_S
            self._follow_io(now_s)
        # Servers have come and gone.
        self._update_host()
        if not self._is_on and not any(
                server.reserved is None or server.has_reservation
                for server in self._servers.values()):
            self.due_at_s = float('inf')

    def reconcile(self, server: servers.Server, now_s: float,
                  terms: controller.HostTerms) -> None:
        """Begin to reserve what is promised to a server, where it is not."""
        state, cap = self._states[server], self._caps.state(server)
        self._terms = terms
        if server.reserved is None and not self._find(server):
            return
        state.pending = False
        if not self.concerns(server):
            state.problem = _SWITCHED_OFF if server.asks_guarantee else ''
            state.since_s = None
            return
        self._log_kept(server)
        # NOTE: of a thread that may use more the kernel counts all.
        state.counted_part = (
            self._scale if self._counts_clock and server.has_reservation
            and not _reclaims(server) else None)
        seen = states.Seen(cap.desired, cap.in_force, server.revision,
                           self._scale, state.io.share)
        # At each tick, for each server: no fractions where all is as it was.
        if seen == state.seen and now_s < state.check_at_s:
            return
        wanted = self._wanted(server, terms)
        if isinstance(wanted, str):
            state.problem = wanted
            return
        state.pending = True
        if self._probe.busy or self._jobs.is_waiting(server, now_s):
            # All that is left is asked for by the measurement.
            return
        if self._jobs.is_busy(server):
            # As soon as its cap is written.
            self._servers.mark(server)
            return
        # NOTE: the kernel would not notice. One that has a reservation keeps
        # it, whatever the bound was when it came.
        if not state.taken_pcpus:
            vcpus = wanted.whole_vcpu * len(wanted.vcpus)
            io = wanted.io.share * guarantee.IO_THREADS
            needed_pcpus = self._time_pcpus(vcpus, io, wanted.reclaims)
            problem = (self._above_bound(needed_pcpus)
                       or self._above_kept(float(vcpus + io)))
            if problem:
                self._record(server, problem)
                return
            state.taken_pcpus = needed_pcpus
            state.counted_pcpus = float(vcpus + io)
            state.held_share = None
        wanted = self._grown(server, terms, wanted)
        state.seen, state.wanted = seen, wanted
        state.reserving = True
        self._jobs.begin(
            server, functools.partial(self._reserve, server, wanted),
            functools.partial(self._finish, server),
            functools.partial(self._fail, server))

    def _grown(self, server: servers.Server, terms: controller.HostTerms,
               wanted: states.Wanted) -> states.Wanted:
        """What a server is to have now: less where it has no time to grow.

        With what it had it goes on to pay for its I/O, and to have back what
        it paid.
        """
        state = self._states[server]
        state.held, state.withheld = None, ''
        if (state.held_share is None
                or self._counted_share(wanted) <= state.held_share):
            return wanted
        held = self._held(server, terms, state.held_share)
        if isinstance(held, str):
            return wanted
        state.held = held
        whole_pcpus = float(wanted.whole_pcpus)
        state.withheld = self._above_kept(
            min(whole_pcpus - float(held.whole_pcpus),
                whole_pcpus - state.counted_pcpus),
            keeps=wanted.split.limited < wanted.split.entitled)
        if state.withheld:
            return held
        # Others that grow meanwhile are not to count on the same time.
        state.counted_pcpus = max(state.counted_pcpus, whole_pcpus)
        return wanted

    def _held(self, server: servers.Server, terms: controller.HostTerms,
              held_share: Fraction, *, is_whole: bool = False
              ) -> states.Wanted | str:
        """What a server is to have where it does not grow; see _wanted."""
        scale = Fraction(1) if _reclaims(server) else self._scale
        return self._wanted(
            server, terms, is_whole=is_whole,
            most_share=held_share / (scale or Fraction(1)))

    def _counted_share(self, wanted: states.Wanted) -> Fraction:
        """What each vCPU is to have, of a pCPU, as the kernel counts it."""
        scale = Fraction(1) if wanted.reclaims else self._scale
        return wanted.split.entitled * (scale or Fraction(1))

    def is_settled(self, server: servers.Server) -> bool:
        """Whether nothing is left to be done before something changes."""
        return server.reserved is not None and not self._states[server].pending

    def status(self) -> controller.Status:
        """What can be guaranteed here, and what is not."""
        problem = 'its pCPUs differ' if self._unlike else self._problem
        alarms = ([f'no speed can be guaranteed: {problem}']
                  if self._is_on and self.host is None else [])
        failing = [(server.uuid, state.problem)
                   for server, state in self._states.items()
                   if state.problem
                   # That it prefers one is no reason to expect it here.
                   and (self._is_on or server.guarantee != 'preferred')]
        if failing:
            alarms.append(
                f'the speed of {len(failing)} servers is not guaranteed, of '
                f'{failing[0][0]}: {failing[0][1]}')
        if (self._total_pcpus is not None and self._total_pcpus
                < self._most_pcpus * (1 - _LOST_PART)):
            lost = float(self._most_pcpus - self._total_pcpus)
            alarms.append(
                f'{lost:.2f} pCPUs that could be reserved are lost or '
                'reserved by others; the kernel finds lost ones again when a '
                'cpuset is made or removed')
        return controller.Status(
            alarms=tuple(alarms), busy=self._is_busy,
            counters={'refused_reservations': self._refusals},
            errors=self._probe.errors)

    def close(self) -> None:
        """Give vCPUs all that they are to have.

        That is what their server pays for its I/O, and what its threads of I/O
        have of theirs: nothing gives it back once this agent is gone. What is
        reserved stays.
        """
        if self._terms is None:
            return
        writes = {}
        for server, state in self._states.items():
            if not state.is_kept_some and state.io.share is None:
                continue
            # Where it could not grow, it cannot now.
            wanted = (
                self._held(server, self._terms, state.held_share,
                           is_whole=True)
                if state.problem and state.held_share is not None
                else self._wanted(server, self._terms, is_whole=True))
            if not isinstance(wanted, str):
                writes[self._executor.submit(
                    self._reserve, server, wanted)] = server
        futures.wait(writes, timeout=_GIVE_BACK_TIMEOUT_S)
        for write, server in writes.items():
            if (not write.done() or write.exception() is not None
                    or write.result().refusal):
                LOG.warning('The vCPUs of server %s (%s) keep less than '
                            'they are to have', server.uuid, server.name)

    @property
    def _is_busy(self) -> bool:
        return any(state.reserving for state in self._states.values())

    def _reserves(self, server: servers.Server) -> bool:
        """Whether this host is to reserve time for a server."""
        return self._is_on and server.asks_guarantee

    def _find(self, server: servers.Server) -> bool:
        """Find what an earlier agent has reserved for a server.

        :returns: whether it is known
        """
        if server.domain is None:
            return False
        try:
            found = self._hypervisor.reserved(server.uuid)
        except (base.DomainGone, base.Unavailable):
            return False
        except base.HypervisorError as error:
            LOG.debug('What is reserved for server %s cannot be read: %s',
                      server.uuid, error)
            found = base.Reserved({}, Fraction(0))
        self._record_reserved(server, found)
        return True

    def _log_kept(self, server: servers.Server) -> None:
        """Log once that a guarantee that was taken away goes on."""
        state = self._states[server]
        if server.keeps_reservation and not state.said_kept:
            LOG.warning(
                'Server %s (%s) keeps its reservation of %.2f pCPUs until it '
                'stops or leaves this host: its flavor guarantees no speed '
                'any more', server.uuid, server.name, state.taken_pcpus)
        state.said_kept = server.keeps_reservation

    def _follow_io(self, now_s: float) -> None:
        """Divide anew what servers have reserved, after what they use."""
        splits = {server.uuid: (self._states[server].io, wanted.split)
                  for server in self._servers.values()
                  if server.has_reservation
                  and (wanted := self._states[server].wanted) is not None}
        if not splits:
            return
        try:
            io = self._hypervisor.io_runs(splits)
            vcpus = self._hypervisor.vcpu_runs(
                [uuid for uuid, (one, _) in splits.items()
                 if one.needs_vcpus])
        except base.HypervisorError as error:
            LOG.debug('What threads of I/O use cannot be read: %s', error)
            return
        for uuid, (one, split) in splits.items():
            before = one.share
            one.follow(now_s, split, io.get(uuid, {}), vcpus.get(uuid, {}))
            if one.share != before:
                self._servers.mark(self._servers[uuid])

    def _reserve(self, server: servers.Server,
                 wanted: states.Wanted) -> base.Reserved:
        """Reserve it, on a worker: it may block."""
        return self._hypervisor.reserve(
            server.uuid, wanted.vcpu, wanted.io, reclaims=wanted.reclaims,
            anew=self._reserves(server))

    def _wanted(self, server: servers.Server, terms: controller.HostTerms,
                *, is_whole: bool = False,
                most_share: Fraction | None = None) -> states.Wanted | str:
        """What is to be reserved; or why nothing is.

        :param is_whole: whether its vCPUs are to have all, whatever its I/O
            needs or owes
        :param most_share: of a pCPU, for each vCPU; None: all of its units
        """
        if self._scale is None:
            return self._problem if self._is_on else _NO_SCALE
        cap = self._caps.state(server)
        if (cap.desired is None or cap.in_force is None
                or terms.profile is None):
            return 'its cap is not known'
        flavor, tune = cap.desired.inputs.flavor, cap.desired.entitled
        limit_share, io = (
            (1.0, None) if is_whole
            else (cap.desired.limit_share, self._states[server].io.share))
        if flavor.units is None:
            return 'it has no units'
        vcpus = max(flavor.vcpus, len(cap.in_force.vcpus))
        # One that may use more has no cap.
        entitled = units.share(flavor.units, vcpus,
                               server.coefficient(terms.profile))
        if tune.cap is not None:
            entitled = min(entitled, tune.cap.share)
        if most_share is not None:
            entitled = min(entitled, most_share)
        if entitled > guarantee.MOST_SHARE:
            return (f'a vCPU needs {float(entitled):.0%} of a pCPU, more than '
                    'can be guaranteed')
        reclaims = _reclaims(server)
        reservation = functools.partial(
            guarantee.vcpu_reservation, quantum_class=server.quantum_class,
            tick_us=terms.profile.tick_us,
            scale=Fraction(1) if reclaims else self._scale)
        limited = entitled * guarantee.fraction(limit_share)
        split = io_share.Split.make(entitled, limited, vcpus, io)
        return states.Wanted(
            reservation(limited, kept=split.kept),
            guarantee.io_reservation(split.io),
            frozenset(cap.in_force.vcpus), reclaims, split,
            reservation(entitled).share, guarantee.io_share(entitled, vcpus))

    def _time_pcpus(self, vcpus: Fraction, io: Fraction,
                    reclaims: bool) -> float:
        """What reservations take of the pCPUs' time.

        :param vcpus: of all vCPUs of a server, as the kernel counts it
        :param io: likewise, of the threads that serve its I/O
        :param reclaims: whether its vCPUs may use more, as these threads may
        """
        may_not = Fraction(0) if reclaims else vcpus
        return float(guarantee.taken_pcpus(
            may_not, vcpus - may_not + io, self._scale or Fraction(1)))

    def _above_bound(self, needed_pcpus: float) -> str:
        """Why no more is to be reserved, though the kernel might; '': it is.

        NOTE: not before the first measurement: servers that have a reservation
        by an earlier agent are found in any order.
        """
        if self._bound_pcpus is None:
            return ''
        free_pcpus = float(self._bound_pcpus) - self._taken_pcpus
        # Runtimes are rounded.
        if needed_pcpus <= free_pcpus + float(_RESOLUTION_PCPUS):
            return ''
        return (f'[vqos_agent] guaranteed_share is {self._guaranteed_share}, '
                f'which leaves {max(0.0, free_pcpus):.3f} pCPUs to reserve, '
                f'and it needs {needed_pcpus:.3f}')

    def _above_kept(self, needed_pcpus: float, *, keeps: bool = False) -> str:
        """Why no more is to be reserved, though the kernel would; '': it is.

        NOTE: the kernel does not know what is kept for servers that pay for
        their I/O, and would give it to any other.

        :param needed_pcpus: beyond what it has, as the kernel counts it
        :param keeps: whether some of it will be kept: the kernel, which is
            asked for the rest, would refuse it when the debt is paid
        """
        if self._total_pcpus is None or not (keeps or any(
                state.is_kept_some for state in self._states.values())):
            return ''
        free_pcpus = float(self._total_pcpus) - sum(
            state.counted_pcpus for state in self._states.values())
        if needed_pcpus <= free_pcpus + float(_RESOLUTION_PCPUS):
            return ''
        return ('the rest is kept for servers that pay for their I/O, and '
                f'{max(0.0, free_pcpus):.3f} pCPUs are left to reserve, of '
                f'which it needs {needed_pcpus:.3f}')

    def _has_found_all(self, now_s: float) -> bool:
        """Whether it is known what each server has, or it takes too long."""
        if self._find_until_s is None:
            self._find_until_s = now_s + _FIND_TIMEOUT_S
        return now_s >= self._find_until_s or all(
            server.reserved is not None and (
                server.has_reservation or not self._reserves(server)
                or bool(self._states[server].problem))
            for server in self._servers.values())

    def _finish(self, server: servers.Server,
                reserved: base.Reserved) -> None:
        state = self._states[server]
        if reserved.refusal:
            # What it goes on to have, and is divided.
            state.wanted = state.held or state.wanted
        elif state.wanted is not None:
            state.held_share = self._counted_share(state.wanted)
        self._record_reserved(server, reserved)
        missing = (state.wanted is not None and self._reserves(server)
                   and state.wanted.vcpus - reserved.vcpus.keys())
        self._record(server, reserved.refusal or state.withheld or (
            'not all of its vCPUs have a thread yet' if missing else ''))

    def _record_reserved(self, server: servers.Server,
                         reserved: base.Reserved) -> None:
        was_held = server.has_reserved_vcpus
        server.record_reserved(reserved)
        if server.has_reserved_vcpus != was_held:
            # What holds it to a limit is another one.
            self._servers.mark(server)
        state = self._states[server]
        vcpus = sum((one.share for one in reserved.vcpus.values()),
                    start=Fraction(0))
        io = reserved.pcpus - vcpus
        kept = Fraction(0)
        if state.wanted is not None:
            # What its threads of I/O have above the least, vCPUs will have.
            kept = max(kept, state.wanted.whole_vcpu * len(reserved.vcpus)
                       - vcpus - io * (1 - state.wanted.least_io
                                       / state.wanted.io.share))
        state.is_kept_some = kept > _RESOLUTION_PCPUS
        state.taken_pcpus = self._time_pcpus(vcpus + kept, io,
                                             _reclaims(server))
        state.counted_pcpus = float(vcpus + kept + io)

    def _fail(self, server: servers.Server, error: Exception) -> None:
        if not server.has_reservation:
            self._states[server].taken_pcpus = 0.0
            self._states[server].counted_pcpus = 0.0
        if isinstance(error, base.HypervisorError) and not isinstance(
                error, base.DomainGone | base.Unavailable):
            self._record(server, str(error))
        else:
            self._states[server].reserving = False
            self._states[server].seen = self._states[server].wanted = None
            self._jobs.fail(server, error)

    def _record(self, server: servers.Server, problem: str) -> None:
        """Record, and log, whether all is reserved."""
        state, now_s = self._states[server], self._clock()
        state.reserving = False
        # Tried again at each tick until it is.
        state.pending = bool(problem)
        state.check_at_s = now_s if problem else now_s + _CHECK_INTERVAL_S
        if problem:
            state.since_s = None
            self._refusals += 1
            if problem != state.problem:
                LOG.warning('The speed of server %s (%s) is not guaranteed, '
                            'its cap holds: %s', server.uuid, server.name,
                            problem)
        elif state.since_s is None:
            state.since_s = time.time()
            if self._reserves(server):
                _log_begin(server, state, now_s)
        state.problem = problem
        self._update_host()
        self._on_change()

    def _update_host(self) -> None:
        self.host = None
        self.total_pcpus = (
            0.0 if self._is_measured or self._unlike or not self._is_on
            else None)
        if self._total_pcpus is not None and not self._unlike:
            total = float(guarantee.sellable_pcpus(self._total_pcpus,
                                                   self._bound_pcpus))
            taken = self._taken_pcpus
            self.host = messages.HostGuarantee(
                total_pcpus=round(total, 4), reserved_pcpus=round(taken, 4),
                free_pcpus=round(max(0.0, total - taken), 4))
            self.total_pcpus = self.host.total_pcpus

    def _find_scale(self) -> tuple[bool, Fraction | None]:
        """How the kernel counts time.

        :returns: whether by the clock, and what of a second it counts at the
            clock of the calibration; None: not known
        """
        if not self._hypervisor.counts_clock():
            return False, Fraction(1)
        return True, Fraction(str(self._least_frequency_scale)) or None

    @property
    def _taken_pcpus(self) -> float:
        """What servers take of the pCPUs' time."""
        # NOTE: at each tick, over all servers: no fractions.
        return sum(state.taken_pcpus for state in self._states.values())

    def _reserved_pcpus(self) -> Fraction:
        return sum((server.reserved.pcpus for server in self._servers.values()
                    if server.reserved is not None), start=Fraction(0))

    def _measured(self, found: base.Bandwidth | str) -> None:
        if isinstance(found, str):
            if found != self._problem:
                LOG.warning('This host can guarantee no speed: %s', found)
            self._total_pcpus = self._last_pcpus = None
            self._is_measured, self._problem = True, found
            self._probe_at_s = self._clock() + _RETRY_INTERVAL_S
            self._update_host()
            return
        total, last = found.pcpus + (
            0 if found.is_total else self._reserved_pcpus()), self._last_pcpus
        self._last_pcpus = total
        if not _are_equal(total, last):
            # The kernel forgets a server that goes sooner or later than the
            # agent does: two measurements in a row have to agree.
            self._probe_at_s = float('-inf')
            return
        if self._guaranteed_share is not None:
            self._bound_pcpus = found.number * Fraction(
                str(self._guaranteed_share))
        if self._total_pcpus is None:
            LOG.info('The kernel reserves up to %.3f pCPUs for servers, of '
                     'which %.3f are sold', float(total),
                     float(guarantee.sellable_pcpus(total,
                                                    self._bound_pcpus)))
        if not _are_equal(total, self._total_pcpus):
            # What Placement sells follows from it.
            self._total_pcpus = total
        self._is_measured, self._problem = True, ''
        self._most_pcpus = max(self._most_pcpus, total)
        self._update_host()


def _reclaims(server: servers.Server) -> bool:
    """Whether a server may use more than what is reserved for it."""
    return server.policy is not None and server.policy.cap == 'floor'


def _are_equal(pcpus: Fraction, others: Fraction | None) -> bool:
    """Whether two measurements are equal, as far as they are exact."""
    return others is not None and abs(pcpus - others) <= _RESOLUTION_PCPUS


def _measure(hypervisor: base.ThreadDriver) -> base.Bandwidth | str:
    """What can be reserved; or why nothing can."""
    try:
        return hypervisor.bandwidth()
    except base.ReservationRefused as error:
        return str(error)


def _log_begin(server: servers.Server, state: states.GuaranteeState,
               now_s: float) -> None:
    window = ('before its guest runs' if server.is_arriving
              else 'at an unknown time after its guest began to run'
              if server.runs_since_s is None else
              f'{(now_s - server.runs_since_s) * 1000:.0f} ms after its guest '
              'began to run')
    LOG.info('The speed of server %s (%s) is guaranteed, %s: %s us of %s us '
             'for each vCPU', server.uuid, server.name, window,
             *(state.wanted.vcpu if state.wanted else ('?', '?')))
