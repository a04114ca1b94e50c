# SPDX-License-Identifier: Apache-2.0
"""Pins a server that may run on unlike pCPUs to those of one core type."""

from collections.abc import Callable, Iterator
import functools
import logging

from nova_vqos import core_types
from nova_vqos import cpuset
from nova_vqos.agent import controller
from nova_vqos.agent import informer as informers
from nova_vqos.agent import retry
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.hypervisor import base
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

# Of one server.
_PINS_AT_ONCE = 5
_PIN_INTERVAL_S = 10.0
# Between two looks for a core type for a server that none has room for.
_CHOOSE_INTERVAL_S = 10.0


class _PinState:
    """What is known of the pins of one server.

    :ivar pcpus: that it was pinned to since it was last described; None: it
        was not
    :ivar revision: of the server, when it was
    :ivar choose_at_s: when a core type is looked for again
    """

    def __init__(self, _server: servers.Server) -> None:
        self.tokens = retry.TokenBucket(_PINS_AT_ONCE, _PIN_INTERVAL_S)
        self.pcpus: frozenset[int] | None = None
        self.revision = 0
        self.choose_at_s = float('-inf')
        self._floats = ''

    def record_floating(self, server: servers.Server, reason: str) -> None:
        """Log once that a server is kept on no core type.

        :param reason: empty: it is on one, or is going to be
        """
        if reason and not self._floats:
            LOG.warning('Server %s (%s) stays on unlike pCPUs, capped by the '
                        'slowest: %s', server.uuid, server.name, reason)
        self._floats = reason


class Pinning:
    """Keeps each server of a host on one core type.

    :ivar pins: how often a server was pinned
    """

    def __init__(self, hypervisor: base.CapDriver, known: servers.Servers,
                 jobs: worker.ServerJobs, informer: informers.Informer,
                 clock: Callable[[], float]) -> None:
        """
        :param informer: keeps descriptions of servers
        :param clock: monotonic, in seconds
        """
        self.pins = 0
        self._hypervisor = hypervisor
        self._servers = known
        self._jobs = jobs
        self._informer = informer
        self._clock = clock
        self._states = known.states(_PinState)

    def choose_at_s(self, server: servers.Server) -> float:
        """When a core type is looked for again for a server."""
        return self._states[server].choose_at_s

    def begin(self, server: servers.Server, in_force: base.InForce,
              now_s: float, terms: controller.HostTerms) -> bool:
        """Pin a server to one core type if it may run on several.

        Its cap comes after, by that type; one that cannot be pinned is capped
        by the slowest.

        :returns: whether a job was begun
        """
        state = self._states[server]
        self._check(server)
        if now_s < state.choose_at_s or self._jobs.is_waiting(server, now_s):
            return False
        try:
            pcpus = self._choose(server, in_force, terms)
        except core_types.NoCoreTypeFits as error:
            state.record_floating(server, str(error))
            # Sums over all servers are nothing for each tick.
            state.choose_at_s = now_s + _CHOOSE_INTERVAL_S
            return False
        if pcpus is None:
            state.record_floating(server, '')
        if pcpus is None or not state.tokens.acquire(now_s):
            return False
        state.pcpus = pcpus
        state.revision = server.revision
        self._jobs.begin(
            server, functools.partial(self._hypervisor.pin, server.uuid,
                                      pcpus),
            functools.partial(self._finish, server, pcpus),
            functools.partial(self._fail, server))
        return True

    def _check(self, server: servers.Server) -> None:
        """Compare pins with the first description after they were set."""
        state, domain = self._states[server], server.domain
        if (state.pcpus is None or domain is None
                or state.revision == server.revision):
            return
        if domain.pcpus != state.pcpus:
            LOG.warning(
                'Server %s (%s) was pinned to pCPUs %s, and may run on %s',
                server.uuid, server.name, cpuset.format_pcpus(state.pcpus),
                'all' if domain.pcpus is None
                else cpuset.format_pcpus(domain.pcpus))
        state.pcpus = None

    def _choose(self, server: servers.Server, in_force: base.InForce,
                terms: controller.HostTerms) -> frozenset[int] | None:
        """The pCPUs of one core type for a server; None: leave it.

        None but those that it may run on already: they may be all that Nova
        has for servers to share, which the profile does not say.

        :raises core_types.NoCoreTypeFits: when no core type has room for it
        """
        profile, policy, domain = terms.profile, server.policy, server.domain
        if (policy is None or domain is None or profile is None
                or not server.spans_core_types(profile)):
            return None
        rooms = core_types.with_servers(
            core_types.of_host(profile, profile.pcpus),
            self._others(server, profile),
            reserved_cu=terms.reserved_cu + terms.stock_cu,
            allocation_ratio=terms.allocation_ratio)
        return core_types.choose(
            policy._replace(vcpus=max(policy.vcpus, len(in_force.vcpus))),
            core_types.restricted(rooms, profile.pcpus if domain.pcpus is None
                                  else domain.pcpus),
            tick_us=profile.tick_us).pcpus

    def _others(self, server: servers.Server,
                profile: model.Profile) -> Iterator[core_types.Server]:
        """The other servers with units on the host.

        But for those that float as well: each gets its core type in turn.
        """
        for other in self._servers.values():
            pinned_to = self._states[other].pcpus
            domain, policy = other.domain, other.policy
            if (other is not server and domain is not None
                    and policy is not None and policy.units is not None
                    and (pinned_to or not other.spans_core_types(profile))):
                yield core_types.Server(
                    policy.units, pinned_to or domain.pcpus, policy.vcpus,
                    policy.mix)

    def _finish(self, server: servers.Server, pcpus: frozenset[int],
                _result: None) -> None:
        self.pins += 1
        self._states[server].record_floating(server, '')
        LOG.info('Server %s (%s, %s) was pinned to one core type: %s',
                 server.uuid, server.name, server.origin,
                 cpuset.format_pcpus(pcpus))
        # Read back before anything else is decided.
        self._informer.expire(server)

    def _fail(self, server: servers.Server, error: Exception) -> None:
        state = self._states[server]
        state.pcpus = None
        if type(error) is not base.HypervisorError:
            # It is busy, or gone, or the hypervisor is: no write succeeds.
            self._jobs.fail(server, error)
            return
        # Its cap does not wait for it.
        state.record_floating(server, str(error))
        state.choose_at_s = self._clock() + _CHOOSE_INTERVAL_S
