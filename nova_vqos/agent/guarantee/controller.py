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
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.caps import controller as caps
from nova_vqos.agent.guarantee import bandwidth
from nova_vqos.agent.guarantee import state as states
from nova_vqos.agent.guarantee import wanted as wants
from nova_vqos.agent.messages import host_report
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# Between two looks at a reservation that is right, at least. By ticks of a
# second, a server has its turn more rarely (servers.TURNS): none is left out.
_CHECK_INTERVAL_S = 5.0
# Between two looks at what threads of I/O use.
_IO_INTERVAL_S = 2.0
# For how long the first measurement is put off for servers that have a
# reservation by an earlier agent: what they have is not left.
_FIND_TIMEOUT_S = 60.0
# How long the end of the agent is put off to give vCPUs what they lack.
_GIVE_BACK_TIMEOUT_S = 2.0

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
        self.host: host_report.HostGuarantee | None = None
        self.total_pcpus: float | None = None if is_on else 0.0
        self._hypervisor = hypervisor
        self._is_on = is_on
        self._servers = known
        self._jobs = jobs
        self._caps = server_caps
        self._executor = executor
        self._clock = clock
        self._on_change = on_change
        self._states = known.states(states.GuaranteeState)
        self._terms: controller.HostTerms | None = None
        self._io_at_s = float('-inf')
        self._find_until_s: float | None = None
        self._unlike = False
        self._refusals = 0
        self._bandwidth = bandwidth.HostBandwidth(
            hypervisor, is_on, guaranteed_share, least_frequency_scale, probe,
            clock, self._reserved_pcpus, self._update_host)

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
        self._bandwidth.tick(now_s, lambda: (
            not self._is_busy and self._has_found_all(now_s)))
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
        scale = self._bandwidth.scale
        # NOTE: of a thread that may use more the kernel counts all.
        state.counted_part = (
            scale if self._bandwidth.counts_clock and server.has_reservation
            and not wants.may_use_more(server) else None)
        seen = states.Seen(cap.desired, cap.in_force, server.revision,
                           scale, state.io.share)
        # At each tick, for each server: no fractions where all is as it was.
        if seen == state.seen and now_s < state.check_at_s:
            return
        wanted = self._wanted(server, terms)
        if isinstance(wanted, str):
            state.problem = wanted
            return
        state.pending = True
        if self._bandwidth.is_probing or self._jobs.is_waiting(server, now_s):
            # All that is left is asked for by the measurement.
            return
        if self._jobs.is_busy(server):
            # As soon as its cap is written.
            self._servers.mark(server)
            return
        # NOTE: the kernel would not notice. One that has a reservation keeps
        # it, whatever the bound was when it came.
        if not state.taken_pcpus:
            problem = self._admit(state, wanted)
            if problem:
                self._record(server, problem)
                return
        wanted = self._grown(server, terms, wanted)
        state.seen, state.wanted = seen, wanted
        state.reserving = True
        self._jobs.begin(
            server, functools.partial(self._reserve, server, wanted),
            functools.partial(self._finish, server),
            functools.partial(self._fail, server))

    def is_settled(self, server: servers.Server) -> bool:
        """Whether nothing is left to be done before something changes."""
        return server.reserved is not None and not self._states[server].pending

    def status(self) -> controller.Status:
        """What can be guaranteed here, and what is not."""
        problem = ('its pCPUs differ' if self._unlike
                   else self._bandwidth.problem)
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
        lost_pcpus = self._bandwidth.lost_pcpus
        if lost_pcpus:
            alarms.append(
                f'{lost_pcpus:.2f} pCPUs that could be reserved are lost or '
                'reserved by others; the kernel finds lost ones again when a '
                'cpuset is made or removed')
        return controller.Status(
            alarms=tuple(alarms), busy=self._is_busy,
            counters={'refused_reservations': self._refusals},
            errors=self._bandwidth.errors)

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
            wanted = self._wanted(
                server, self._terms, is_whole=True,
                most_counted=state.held_share if state.problem else None)
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
        io = self._hypervisor.io_runs(splits)
        vcpus = self._hypervisor.vcpu_runs(
            [uuid for uuid, (one, _) in splits.items() if one.needs_vcpus])

        def follow(server: servers.Server) -> None:
            one, split = splits[server.uuid]
            before = one.share
            one.follow(now_s, split, io.get(server.uuid, {}),
                       vcpus.get(server.uuid, {}))
            if one.share != before:
                self._servers.mark(server)
        self._servers.isolation.each(
            'dividing what is reserved for server',
            [self._servers[uuid] for uuid in splits], follow)

    def _reserve(self, server: servers.Server,
                 wanted: wants.Wanted) -> base.Reserved:
        """Reserve it, on a worker: it may block."""
        return self._hypervisor.reserve(
            server.uuid, wanted.vcpu, wanted.io, reclaims=wanted.reclaims,
            anew=self._reserves(server))

    def _wanted(self, server: servers.Server, terms: controller.HostTerms,
                *, is_whole: bool = False,
                most_counted: Fraction | None = None) -> wants.Wanted | str:
        """What is to be reserved; or why nothing is.

        :param is_whole: whether its vCPUs are to have all, whatever its I/O
            needs or owes
        :param most_counted: see :func:`wanted.make`
        """
        scale = self._bandwidth.scale
        if scale is None:
            return (self._bandwidth.problem if self._is_on
                    else bandwidth.NO_SCALE)
        return wants.make(
            server, self._caps.state(server), terms, scale,
            None if is_whole else self._states[server].io.share,
            limit_share=1.0 if is_whole else None, most_counted=most_counted)

    def _admit(self, state: states.GuaranteeState,
               wanted: wants.Wanted) -> str:
        """Take time for a server that has none; or say why not."""
        vcpus = wanted.whole_vcpu * len(wanted.vcpus)
        io = wanted.io.share * guarantee.IO_THREADS
        needed_pcpus = self._bandwidth.time_pcpus(vcpus, io, wanted.reclaims)
        problem = (self._bandwidth.above_bound(needed_pcpus, self._taken_pcpus)
                   or self._above_kept(float(vcpus + io)))
        if not problem:
            state.taken_pcpus = needed_pcpus
            state.counted_pcpus = float(vcpus + io)
            state.held_share = None
        return problem

    def _grown(self, server: servers.Server, terms: controller.HostTerms,
               wanted: wants.Wanted) -> wants.Wanted:
        """What a server is to have now: less where it has no time to grow.

        With what it had it goes on to pay for its I/O, and to have back what
        it paid.
        """
        state = self._states[server]
        state.held, state.withheld = None, ''
        if (state.held_share is None
                or wanted.counted_share <= state.held_share):
            return wanted
        held = self._wanted(server, terms, most_counted=state.held_share)
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

    def _above_kept(self, needed_pcpus: float, *, keeps: bool = False) -> str:
        """Why a server gets no more of what is kept for others; '': it does.

        :param needed_pcpus: beyond what it has, as the kernel counts it
        :param keeps: whether some of it will be kept: the kernel, which is
            asked for the rest, would refuse it when the debt is paid
        """
        if not (keeps or any(state.is_kept_some
                             for state in self._states.values())):
            return ''
        return self._bandwidth.above_kept(needed_pcpus, sum(
            state.counted_pcpus for state in self._states.values()))

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
            state.held_share = state.wanted.counted_share
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
        state.is_kept_some = kept > bandwidth.RESOLUTION_PCPUS
        state.taken_pcpus = self._bandwidth.time_pcpus(
            vcpus + kept, io, wants.may_use_more(server))
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
            0.0 if self._bandwidth.is_measured or self._unlike
            or not self._is_on else None)
        sellable_pcpus = self._bandwidth.sellable_pcpus
        if sellable_pcpus is not None and not self._unlike:
            total, taken = float(sellable_pcpus), self._taken_pcpus
            self.host = host_report.HostGuarantee(
                total_pcpus=round(total, 4), reserved_pcpus=round(taken, 4),
                free_pcpus=round(max(0.0, total - taken), 4))
            self.total_pcpus = self.host.total_pcpus

    @property
    def _taken_pcpus(self) -> float:
        """What servers take of the pCPUs' time."""
        # NOTE: at each tick, over all servers: no fractions.
        return sum(state.taken_pcpus for state in self._states.values())

    def _reserved_pcpus(self) -> Fraction:
        return sum((server.reserved.pcpus for server in self._servers.values()
                    if server.reserved is not None), start=Fraction(0))


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
