# SPDX-License-Identifier: Apache-2.0
"""Limits on the disks of servers that are overdrawn.

The limit wanted follows from the bills, see :mod:`nova_vqos.billing.throttle`.
A server's description has the limit in force.
"""

from collections.abc import Callable
from concurrent import futures
import functools
import logging
import time

from nova_vqos import utc
from nova_vqos.agent import controller
from nova_vqos.agent import informer as informers
from nova_vqos.agent import retry
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.messages import enforcement
from nova_vqos.billing import throttle
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# Where a limit cannot be set, or does not stay.
_FIRST_RETRY_S = 10.0
_LONGEST_RETRY_S = 600.0
# How long the end of the agent is put off to end limits.
_GIVE_BACK_TIMEOUT_S = 2.0


class DiskLimitState:
    """What is known of the limit on one server's disks.

    :ivar wanted: None: none
    :ivar is_known: whether that is known: an agent that has just started finds
        out by the first bill
    :ivar since_s: when the limit began, in seconds since 1970; None: there is
        none
    :ivar problem: why it is not in force; '': it is, or is not wanted
    """

    def __init__(self, _server: servers.Server) -> None:
        self.wanted: throttle.DiskLimit | None = None
        self.is_known = False
        self.since_s: float | None = None
        self.problem = ''
        self.backoff = retry.Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)

    def message(self, server: servers.Server) -> enforcement.DiskLimit | None:
        """For people; None: there is none, and none is wanted."""
        limit = in_force(server.domain) or self.wanted
        return None if limit is None else enforcement.DiskLimit(
            requests_per_s=limit.requests_per_s,
            bytes_per_s=limit.bytes_per_s,
            since=None if self.since_s is None else utc.text(self.since_s),
            problem=self.problem)

    def record_problem(self, server: servers.Server, problem: str) -> None:
        """Record why it is not in force; a problem is logged once."""
        if problem and problem != self.problem:
            LOG.warning('Server %s (%s) is overdrawn, and its disks are not '
                        'held back: %s', server.uuid, server.name, problem)
        self.problem = problem

    def record_in_force(self, server: servers.Server) -> None:
        """Record, and log, that what is wanted is in force."""
        self.record_problem(server, '')
        self.backoff.reset()
        if self.wanted is not None and self.since_s is None:
            self.since_s = time.time()
            LOG.warning('Server %s (%s) is overdrawn: its disks are held back '
                        'to %d requests and %d bytes per second', server.uuid,
                        server.name, *self.wanted)
        elif self.wanted is None and self.since_s is not None:
            self.since_s = None
            LOG.info('Server %s (%s): its disks are not held back any more',
                     server.uuid, server.name)


class DiskLimitController(controller.Controller):
    """Sets and ends the limits on disks."""

    def __init__(self, hypervisor: base.CapDriver, known: servers.Servers,
                 jobs: worker.ServerJobs, informer: informers.Informer,
                 executor: futures.Executor,
                 clock: Callable[[], float]) -> None:
        """
        :param informer: keeps descriptions of servers
        :param executor: runs the last writes, at the end of the agent
        :param clock: monotonic, in seconds
        """
        self._hypervisor = hypervisor
        self._servers = known
        self._jobs = jobs
        self._informer = informer
        self._executor = executor
        self._clock = clock
        self._states = known.states(DiskLimitState)

    def state(self, server: servers.Server) -> DiskLimitState:
        """What is known of a server; for reading."""
        return self._states[server]

    def want(self, server: servers.Server,
             limit: throttle.DiskLimit | None) -> None:
        """Limit the disks of a server; None: limit them no more."""
        state = self._states[server]
        before, state.wanted, state.is_known = state.wanted, limit, True
        if limit != before or not self.is_settled(server):
            self._servers.mark(server)

    def tick(self, _now_s: float, _terms: controller.HostTerms) -> None:
        """Nothing is to be done for the host as a whole."""
        self.due_at_s = float('inf')

    def reconcile(self, server: servers.Server, now_s: float) -> None:
        """Compare what is in force for a server, and begin to mend it."""
        state, domain = self._states[server], server.domain
        if not self._informer.is_current(server) or domain is None:
            return
        if state.wanted is not None and not domain.disk_limits:
            state.record_problem(server, 'each of them has a limit of another '
                                 'writer, or cannot have one')
            return
        if self.is_settled(server):
            if state.is_known:
                state.record_in_force(server)
            return
        if (now_s < state.backoff.next_at_s
                or self._jobs.is_waiting(server, now_s)):
            return
        # Unless it is in force by the next description.
        state.backoff.fail(now_s)
        self._jobs.begin(
            server, functools.partial(self._hypervisor.limit_disks,
                                      server.uuid, state.wanted),
            functools.partial(self._read_back, server),
            functools.partial(self._fail, server))

    def is_settled(self, server: servers.Server) -> bool:
        """Whether what is wanted is in force, as far as both are known."""
        state, domain = self._states[server], server.domain
        if domain is None or not state.is_known or server.is_arriving:
            return True
        return all(limit == state.wanted
                   for limit in domain.disk_limits.values())

    def status(self) -> controller.Status:
        """Nothing: problems of servers are in their own reports."""
        return controller.Status()

    def close(self) -> None:
        """End all limits: nothing else would, once this agent is gone."""
        limited = [server for server in self._servers.values()
                   if in_force(server.domain) is not None]
        jobs = [self._executor.submit(self._hypervisor.limit_disks,
                                      server.uuid, None)
                for server in limited]
        futures.wait(jobs, timeout=_GIVE_BACK_TIMEOUT_S)
        for server, job in zip(limited, jobs, strict=True):
            if not job.done() or job.exception() is not None:
                LOG.warning('Server %s (%s) keeps the limit on its disks',
                            server.uuid, server.name)

    def _read_back(self, server: servers.Server, _changed: bool) -> None:
        self._informer.expire(server)

    def _fail(self, server: servers.Server, error: Exception) -> None:
        if type(error) is not base.HypervisorError:
            # It is busy, or gone, or the hypervisor is: no write succeeds.
            self._states[server].backoff.reset()
            self._jobs.fail(server, error)
            return
        self._states[server].record_problem(server, str(error))
        # A part of it may have been written.
        self._informer.expire(server)


def in_force(domain: base.Domain | None) -> throttle.DiskLimit | None:
    """The limit on the disks of a server; None: there is none."""
    limits = () if domain is None else domain.disk_limits.values()
    return next((limit for limit in limits if limit is not None), None)
