# SPDX-License-Identifier: Apache-2.0
"""Overrides: running servers follow the pushes of their flavors."""

from collections.abc import Callable

from nova_vqos import policy_override
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.overrides import store as stores

# A reply names so many servers, and counts the others.
_MAX_NAMED = 100


class OverridesController(controller.Controller):
    """Makes all servers follow the overrides in the store.

    :ivar overrides: that they follow now
    """

    def __init__(self, store: stores.OverrideStore | None,
                 known: servers.Servers, jobs: worker.ServerJobs,
                 on_change: Callable[[], None]) -> None:
        """
        :param store: None: nothing can be pushed
        :param on_change: called when a server has another policy
        """
        self._store = store
        self._servers = known
        self._jobs = jobs
        self._on_change = on_change
        self.overrides = self._stored()
        self._policy_errors = 0

    def tick(self, _now_s: float, _terms: controller.HostTerms) -> None:
        """Apply the stored overrides once; a push is applied at once."""
        self.due_at_s = float('inf')
        self.apply()

    def apply(self) -> tuple[int, pushes.Following]:
        """Make all servers follow the overrides.

        :returns: how many have another policy now, and :meth:`report`
        """
        self.overrides = self._stored()
        changed = self._servers.isolation.each(
            'pushing to server', self._servers.values(), self._follow)
        return sum(changed.values()), self.report()

    def _follow(self, server: servers.Server) -> bool:
        """:returns: whether it has another policy now"""
        before = server.policy_errors
        is_changed = server.follow(self.overrides)
        if is_changed:
            self._servers.mark(server)
            self._jobs.retry_now(server)
            self._on_change()
        self._policy_errors += len(server.policy_errors - before)
        return is_changed

    def report(self) -> pushes.Following:
        """How servers follow the overrides."""
        known = self._servers.values()
        refused = [server for server in known if server.push_error]
        unmatched = [server for server in known if server.unmatched]
        return pushes.Following(
            following=sum(server.applied is not None for server in known),
            other_units=sum(server.has_other_units for server in known),
            refused=len(refused), unmatched=len(unmatched),
            not_following=tuple(
                pushes.NotFollowing(
                    server.uuid, '' if server.domain is None
                    else server.domain.flavor_name,
                    server.push_error or server.unmatched)
                for server in (refused + unmatched)[:_MAX_NAMED]),
            keep_reservation=sum(
                server.keeps_reservation for server in known))

    def status(self) -> controller.Status:
        """Problems of the store, and how often a policy was invalid."""
        problems = () if self._store is None else (
            self._store.problem, self._store.refused,
            self._store.verifier.problem)
        return controller.Status(
            alarms=tuple(filter(None, problems)),
            counters={'policy_errors': self._policy_errors})

    def close(self) -> None:
        """Nothing is open."""

    def _stored(self) -> policy_override.Overrides:
        return (policy_override.NOTHING if self._store is None
                else self._store.overrides)
