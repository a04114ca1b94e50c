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

"""Billing, as the agent's loop sees it: rounds on a worker, and their fruit.

All here is called by the loop, but for what is done in a round.
"""

from collections.abc import Callable, Mapping
from concurrent import futures
import functools
import logging
import time
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos import units
from nova_vqos.agent import biller as billers
from nova_vqos.agent import decision
from nova_vqos.agent import plan
from nova_vqos.agent import server as servers
from nova_vqos.agent import subject as subjects
from nova_vqos.billing import costs
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# How long the end of the agent is put off to give servers their due.
_GIVE_BACK_TIMEOUT_S = 4.0
# The second time is for a write that was under way at the first.
_GIVE_BACK_TIMES = 2
# How long a server is limited by what it used before nobody could read it.
_LONGEST_UNREAD_S = 60.0


class Rounds:
    """The rounds in which the servers of a loop are billed.

    :ivar done: how many there were
    """

    def __init__(self, biller: billers.Biller | None,
                 known: Mapping[str, servers.Server],
                 executor: futures.Executor,
                 post: Callable[[Callable[[], None]], None]) -> None:
        """
        :param biller: None: nobody is billed
        :param known: the loop's servers by UUID
        :param executor: runs the rounds
        :param post: has the loop call something
        """
        self.done = 0
        self._biller = biller
        self._known = known
        self._executor = executor
        self._post = post
        self._working = False
        self._failures = 0
        self._failure = ''
        self._now_s = float('-inf')
        # The profile whose costs of I/O were found to be nonsense.
        self._refused_id = ''

    @property
    def working(self) -> bool:
        """Whether a round is under way."""
        return self._working

    @property
    def charges(self) -> bool:
        """Whether servers can pay; False: nobody counts their I/O."""
        return self._biller is not None and self._biller.can_read

    @property
    def offers(self) -> tuple[str, ...]:
        """What of ``vqos:dd_billing`` works on this host now."""
        return ('off',) if self._biller is None else self._biller.offers

    @property
    def alarms(self) -> tuple[str, ...]:
        """What is wrong, one text each."""
        if self._biller is None:
            return ()
        unread = sum(bool(server.unread) for server in self._known.values())
        return (*self._biller.alarms, *([
            f'{unread} servers are not billed now: what they use cannot be '
            'read'] if unread else []))

    @property
    def capacity(self) -> dict[str, ty.Any] | None:
        """Where the CPU time of the host goes; None: nobody knows."""
        return None if self._biller is None else self._biller.capacity

    @property
    def errors(self) -> int:
        """How often a round, or a server, could not be billed."""
        return self._failures + (
            0 if self._biller is None else self._biller.errors)

    def begin(self, now_s: float, terms: decision.HostTerms) -> None:
        """Have the servers billed that are to be, if it is time to."""
        biller = self._biller
        if biller is None:
            return
        self._look_for_unread(biller, now_s, terms)
        if self._working or now_s < biller.next_at_s:
            return
        to_bill = [subject for server in self._known.values() if (
            subject := subjects.subject_of(server, terms)) is not None]
        if not biller.is_due(now_s, to_bill):
            return
        self._working = True
        io_costs = self._costs(terms.profile)
        running = frozenset(self._known)
        off = frozenset(
            uuid for uuid, server in self._known.items()
            if server.domain is not None and server.dd_billing == 'off')
        pcpu_cu = _mean_cu(terms.profile)
        runs = {subject.uuid: self._known[subject.uuid].run_id
                for subject in to_bill}

        def work() -> None:
            bills: dict[str, billers.Billed] = {}
            failure: Exception | None = None
            try:
                bills = biller.round(to_bill, io_costs, running, pcpu_cu, off)
            except Exception as error:
                failure = error
            self._post(functools.partial(self._take, bills, runs, failure))
        self._executor.submit(work)

    def _look_for_unread(self, biller: billers.Biller, now_s: float,
                         terms: decision.HostTerms) -> None:
        """End the limit of servers that nobody could bill for long."""
        longest_s = max(_LONGEST_UNREAD_S, 3 * biller.options.interval_s)
        # There was no connection: nobody could have been read.
        paused = now_s - self._now_s > longest_s / 2
        self._now_s = now_s
        for server in self._known.values():
            if server.billed_at_s is None or paused:
                server.billed_at_s = now_s
            if now_s - server.billed_at_s < longest_s:
                continue
            if subjects.subject_of(server, terms) is None:
                server.billed_at_s = now_s
                server.note_unread('')
                continue
            server.note_unread(f'what it uses could not be read for '
                               f'{longest_s:.0f} s: it pays for nothing')
            if server.limit_share not in (None, 1.0):
                server.limit_share = 1.0
                server.reconsider = True

    def _costs(self, held: profiles.Profile | None) -> costs.IoCosts | None:
        """What the kernel's part is billed by; None: it is not billed."""
        try:
            return None if held is None else held.io_costs
        except profiles.ProfileInvalid as error:
            # The rest of the profile can be used, and was.
            if held is not None and held.id != self._refused_id:
                self._refused_id = held.id
                LOG.warning("Nobody is billed for the kernel's part of I/O, "
                            'measure it again with nova-vqos-calibrate io: '
                            '%s', error)
            return None

    def give_back(self, terms: decision.HostTerms,
                  hypervisor: base.Hypervisor) -> None:
        """Give servers that paid for their I/O all they are entitled to.

        Nobody is there to end it once this agent is gone. What they owe is
        in the ledger.
        """
        until_s = time.monotonic() + _GIVE_BACK_TIMEOUT_S
        wrong = self._to_give_back(terms, hypervisor)
        for _ in range(_GIVE_BACK_TIMES):
            left_s = until_s - time.monotonic()
            if not wrong or left_s <= 0:
                break
            futures.wait([
                self._executor.submit(hypervisor.write, uuid, changes)
                for uuid, changes in wrong.items()], timeout=left_s)
            wrong = self._to_give_back(terms, hypervisor)
        for uuid in wrong:
            LOG.warning('Server %s (%s) keeps the limit on its I/O', uuid,
                        self._known[uuid].name)

    def _to_give_back(self, terms: decision.HostTerms,
                      hypervisor: base.Hypervisor
                      ) -> dict[str, tuple[base.Change, ...]]:
        """By what is in force: what is wanted may not have been written."""
        found = {}
        for server in self._known.values():
            if server.want is None or not (
                    server.policy is None or server.is_charged(terms)):
                continue
            try:
                changes = plan.to_give_back(
                    server, terms, hypervisor.read(server.uuid))
            except base.DomainGone:
                continue
            except base.HypervisorError as error:
                LOG.warning('Server %s (%s) may keep its limit: %s',
                            server.uuid, server.name, error)
                continue
            if changes:
                found[server.uuid] = changes
        return found

    def close(self) -> None:
        """Store what is left."""
        if self._biller is not None and not self._working:
            self._biller.close()

    def _take(self, bills: Mapping[str, billers.Billed],
              runs: Mapping[str, int], failure: Exception | None) -> None:
        self._working = False
        self.done += 1
        if failure is not None:
            self._take_failure(failure)
        for uuid, billed in bills.items():
            server = self._known.get(uuid)
            if server is None or server.run_id != runs[uuid]:
                continue
            server.billed_at_s = self._now_s
            server.note_unread('')
            if server.dd_billing == 'off':
                # It was switched off in the meantime.
                continue
            server.bill = billed.report
            if server.limit_share is not None and billed.limit_share not in (
                    None, server.limit_share):
                server.limit_share = billed.limit_share
                server.reconsider = True

    def _take_failure(self, error: Exception) -> None:
        # NOTE: caps do not depend on it. Whether the hypervisor is there at
        # all, the bulk call of the next tick tells.
        self._failures += 1
        if str(error) != self._failure:
            LOG.error('Servers cannot be billed now: %s', error,
                      exc_info=None if isinstance(
                          error, base.HypervisorError) else error)
        self._failure = str(error)


def _mean_cu(profile: profiles.Profile | None) -> float:
    """Mean speed of a host's pCPUs in CU, 0 where it is not known."""
    if profile is None:
        return 0.0
    return float(units.CU_PER_REFERENCE_PCPU * sum(
        len(cpu_class.pcpus) * cpu_class.busy.coefficient
        for cpu_class in profile.cpu_classes) / len(profile.pcpus))
