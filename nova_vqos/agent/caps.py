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


"""Caps: judged by what is in force, and written where that is wrong."""

from collections.abc import Callable, Mapping
import functools
import logging

from nova_vqos import profile as profiles
from nova_vqos.agent import counts as counting
from nova_vqos.agent import decision
from nova_vqos.agent import failures as failing
from nova_vqos.agent import jobs as jobbing
from nova_vqos.agent import plan
from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# Between two looks for a class of pCPUs for a server that none has room for.
_CHOOSE_INTERVAL_S = 10.0


class Caps:
    """Keeps the caps of a host's servers; called by the loop."""

    def __init__(self, hypervisor: base.Hypervisor,
                 known: Mapping[str, servers.Server], jobs: jobbing.Jobs,
                 failures: failing.Failures, counts: counting.Counts,
                 terms: Callable[[], decision.HostTerms],
                 clock: Callable[[], float]) -> None:
        """
        :param known: the loop's servers by UUID
        :param terms: gives what the host has to offer now
        :param clock: monotonic, in seconds
        """
        self._hypervisor = hypervisor
        self._known = known
        self._jobs = jobs
        self._failures = failures
        self._counts = counts
        self._terms = terms
        self._clock = clock

    def look_at(self, server: servers.Server, now_s: float) -> None:
        """Have done what is to be done about a server's cap.

        :param server: that was described, and is not being worked on
        """
        if server.policy is None and server.want is None:
            server.reconsider = False
            return
        try:
            in_force = self._hypervisor.read(server.uuid)
        except (base.DomainGone, base.Unavailable):
            # The bulk call of the next tick tells.
            return
        except base.HypervisorError as error:
            server.complain(f'its cap cannot be read: {error}')
            return
        if self._is_to_be_pinned(server, in_force, now_s):
            return
        if (server.right and in_force is server.in_force
                and not server.reconsider):
            server.last_right_s = now_s
            return
        server.reconsider = False
        self._judge(server, in_force, now_s)

    def _is_to_be_pinned(self, server: servers.Server,
                         in_force: base.InForce, now_s: float) -> bool:
        """Have a server pinned to one class if it may run on several.

        Its cap comes after, by that class; one that cannot be pinned is
        capped by the slowest.
        """
        if now_s < max(server.retry_at_s, server.choose_at_s):
            return False
        try:
            pcpus = plan.to_pin(server, self._known.values(),
                                self._terms(), in_force)
        except decision.Unenforceable as error:
            server.note_floating(str(error))
            # Sums over all servers are nothing for each tick.
            server.choose_at_s = now_s + _CHOOSE_INTERVAL_S
            return False
        server.note_floating('')
        if pcpus is None or not server.pin_allowance.take(now_s):
            return False
        server.pinned_to = pcpus
        self._begin(server, functools.partial(self._pin, pcpus))
        return True

    def _judge(self, server: servers.Server, in_force: base.InForce,
               now_s: float) -> None:
        if server.policy is None:
            self._release(server, in_force, now_s)
            return
        try:
            changes = plan.pending(server, self._terms(), in_force)
        except decision.Unenforceable as error:
            server.in_force = in_force
            server.right = False
            server.complain(f'its cap is left as it is: {error}')
            self._release(server, in_force, now_s)
            return
        if not changes:
            if server.want is not None:
                server.note_right(in_force, now_s)
            return
        server.note_wrong(in_force, changes, now_s)
        if now_s < server.retry_at_s:
            return
        if server.tampering.open and not server.allowance.take(now_s):
            server.complain('somebody else changes its cap again and again: '
                            'it is restored every ten seconds only')
            return
        self._begin(server, functools.partial(self._write, changes))

    def _release(self, server: servers.Server, in_force: base.InForce,
                 now_s: float) -> None:
        """Have the limit on its I/O ended where nobody can work it out."""
        changes = plan.to_release(server, self._terms(), in_force)
        if (changes and now_s >= server.retry_at_s
                and server.allowance.take(now_s)):
            self._begin(server, functools.partial(self._write, changes))

    def _begin(self, server: servers.Server,
               job: Callable[[str], jobbing.Outcome]) -> None:
        self._jobs.begin(server, job, self._failures.take)

    # Jobs: they run on a worker, and must not touch any state.

    def _write(self, changes: tuple[base.Change, ...],
               uuid: str) -> jobbing.Outcome:
        self._hypervisor.write(uuid, changes)
        return functools.partial(self._take_written, changes)

    def _pin(self, pcpus: frozenset[int], uuid: str) -> jobbing.Outcome:
        self._hypervisor.pin(uuid, pcpus)
        return functools.partial(self._take_pinned, pcpus)

    # Their outcomes.

    def _take_written(self, changes: tuple[base.Change, ...],
                      server: servers.Server) -> None:
        server.writes += 1
        self._counts.writes += 1
        if server.tampering.open:
            self._counts.restored += 1
        LOG.debug('Wrote to server %s: %s', server.uuid, changes)
        if server.policy is None:
            server.complain('')
            server.recaps.note_released()
            return
        now_s = self._clock()
        # Read back before anything else is decided.
        try:
            in_force = self._hypervisor.read(server.uuid)
            left = plan.pending(server, self._terms(), in_force)
        except decision.Unenforceable:
            # It is looked at next, as all that was written to.
            server.recaps.note_released()
            return
        except base.HypervisorError as error:
            self._failures.take(error, server)
            return
        if left:
            # Unless another vCPU was plugged in meanwhile.
            if server.has_vcpus_of(in_force):
                server.complain('its cap was written, and is not in force: '
                                f'{left}')
                server.back_off(now_s)
            server.note_wrong(in_force, left, now_s)
        else:
            server.note_right(in_force, now_s)

    def _take_pinned(self, pcpus: frozenset[int],
                     server: servers.Server) -> None:
        self._counts.pins += 1
        LOG.info('Server %s (%s, %s) was pinned to one class of pCPUs: %s',
                 server.uuid, server.name, server.origin,
                 profiles.format_pcpus(pcpus))
        # Read back before anything else is decided.
        server.undescribed = True
