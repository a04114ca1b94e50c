# SPDX-License-Identifier: Apache-2.0
"""Which servers run on this host, and what they are."""

from collections.abc import Callable
import functools
import logging

from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.overrides import controller
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# How often an arriving server is described: the event that ends its arrival
# may be lost.
_ARRIVAL_INTERVAL_S = 60.0
# How often servers are listed that events may have missed. The loss of the
# connection is reported by itself.
_LIST_INTERVAL_S = 10.0


class _Description:
    """
    :ivar stale: whether it has to be read
    :ivar again_at_s: when that of an arriving server is stale
    """

    def __init__(self, _server: servers.Server) -> None:
        self.stale = True
        self.again_at_s = float('-inf')


class Informer:
    """Keeps servers and their descriptions up to date; the loop calls it.

    :ivar policy_errors: flavors, as booted or pushed, that could not be
        honoured
    """

    def __init__(self, hypervisor: base.CapDriver, known: servers.Servers,
                 jobs: worker.ServerJobs, clock: Callable[[], float],
                 overrides: controller.OverridesController,
                 on_change: Callable[[], None]) -> None:
        """
        :param clock: monotonic, in seconds
        :param overrides: has what was pushed
        :param on_change: called when a server was described
        """
        self.policy_errors = 0
        self._hypervisor = hypervisor
        self._servers = known
        self._jobs = jobs
        self._clock = clock
        self._overrides = overrides
        self._on_change = on_change
        self._states = known.states(_Description)
        self._list_at_s = float('-inf')

    def tick(self, now_s: float) -> None:
        """Find the servers that run here, with one bulk call, if it is due.

        :raises nova_vqos.hypervisor.base.HypervisorError: when that fails
        """
        if now_s < self._list_at_s:
            return
        running = self._hypervisor.running()
        self._list_at_s = now_s + _LIST_INTERVAL_S
        for uuid in self._servers.keys() - running.keys():
            self._servers.remove(uuid)
        for uuid, run_id in running.items():
            server = self._servers.get(uuid)
            if server is None or server.run_id != run_id:
                self._servers.add(servers.Server(uuid, run_id))

    def list_again(self) -> None:
        """Have servers listed in the next tick: one has come or gone."""
        self._list_at_s = float('-inf')

    def apply_event(self, event: base.Event) -> servers.Server | None:
        """Apply what an event of the hypervisor changes.

        :returns: the server whose present run it is about, if there is one
        """
        LOG.debug('Event %s', event)
        server = self._servers.get(event.uuid)
        if event.kind is base.EventKind.TOUCHED:
            if server is not None:
                self._servers.mark(server)
            return server
        if event.run_id >= 0 and (server is None
                                  or server.run_id < event.run_id):
            server = self._servers.add(
                servers.Server(event.uuid, event.run_id))
        if event.kind is base.EventKind.STOPPED:
            self.list_again()
        if server is None or server.run_id != event.run_id:
            return None
        self._servers.mark(server)
        self._jobs.retry_now(server)
        if event.kind is not base.EventKind.TUNED:
            self._states[server].stale = True
            server.record_event(event)
        return server

    def expire(self, server: servers.Server) -> None:
        """Have a server described again."""
        self._states[server].stale = True
        self._servers.mark(server)
        self._jobs.retry_now(server)

    def is_current(self, server: servers.Server) -> bool:
        """Whether a server's description may be relied on."""
        return not self._states[server].stale and not self._jobs.is_busy(
            server)

    def refresh(self, server: servers.Server, now_s: float) -> None:
        """Begin to describe a server again, if it has to be."""
        if self._jobs.is_busy(server):
            return
        state = self._states[server]
        if server.is_arriving and now_s >= state.again_at_s:
            state.stale = True
        if state.stale and not self._jobs.is_waiting(server, now_s):
            # What happens from now on asks for another description.
            state.stale = False
            self._jobs.begin(
                server, functools.partial(self._hypervisor.describe,
                                          server.uuid),
                functools.partial(self._describe, server),
                functools.partial(self._fail, server))

    def _describe(self, server: servers.Server, domain: base.Domain) -> None:
        before = server.policy_errors
        server.describe(domain, self._overrides.overrides)
        self.policy_errors += len(server.policy_errors - before)
        self._states[server].again_at_s = self._clock() + _ARRIVAL_INTERVAL_S
        self._servers.mark(server)
        self._on_change()

    def _fail(self, server: servers.Server, error: Exception) -> None:
        self._states[server].stale = True
        # Each one that boots is met while it is being started.
        self._jobs.fail(server, error, busy_level=logging.DEBUG)
