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
"""When the servers of a loop are given slices and pools, and what is told.

All here is called by the loop, but for what is done in a round.
"""

from collections.abc import Callable, Mapping
from concurrent import futures
import functools
import logging
import typing as ty

from nova_vqos.agent import decision
from nova_vqos.agent import quantum_keeper
from nova_vqos.agent import quantum_subject
from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base
from nova_vqos.quantum import occupancy as occupancies
from nova_vqos.quantum import proof as proofs

LOG = logging.getLogger(__name__)


class Quanta:
    """The rounds in which servers get their slices.

    :ivar done: how many there were
    :ivar errors: how many of them failed
    """

    def __init__(self, keeper: quantum_keeper.QuantumKeeper | None,
                 known: Mapping[str, servers.Server],
                 executor: futures.Executor,
                 post: Callable[[Callable[[], None]], None]) -> None:
        """
        :param keeper: None: nobody is given a slice
        :param known: the loop's servers by UUID
        :param executor: runs the rounds
        :param post: has the loop call something
        """
        self.done = self.errors = 0
        self._keeper = keeper
        self._known = known
        self._executor = executor
        self._post = post
        self._failure = ''
        self._working = False
        self._last: quantum_keeper.Round | None = None

    @property
    def working(self) -> bool:
        """Whether a round is under way."""
        return self._working

    @property
    def classes(self) -> tuple[str, ...]:
        """The quantum classes that work on this host now."""
        return ('default',) if self._last is None else self._last.classes

    @property
    def alarms(self) -> tuple[str, ...]:
        """What is wrong, one text each."""
        return () if self._last is None else self._last.alarms

    @property
    def occupancy(self) -> occupancies.Occupancy:
        """What the pools of this host hold."""
        return (occupancies.UNKNOWN if self._last is None
                else self._last.occupancy)

    @property
    def proof(self) -> proofs.Proof | None:
        """What the kernel was seen to do; None: nobody looked."""
        return None if self._last is None else self._last.proof

    @property
    def report(self) -> dict[str, ty.Any] | None:
        """Pools and counts, in primitives; None: there was no round."""
        return None if self._last is None else self._last.host

    def begin(self, now_s: float, terms: decision.HostTerms) -> None:
        """Have all servers looked at, if it is time to, or one is new."""
        keeper = self._keeper
        if keeper is None or self._working:
            return
        if now_s < keeper.next_at_s and not any(
                server.quantum_due
                and quantum_subject.is_ready(server)
                for server in self._known.values()):
            return
        subjects = []
        for server in self._known.values():
            subject = quantum_subject.subject_of(server, terms)
            if subject is not None:
                server.quantum_due = False
                subjects.append(subject)
        self._working = True

        def work() -> None:
            outcome: quantum_keeper.Round | Exception
            try:
                outcome = keeper.round(subjects)
            except Exception as error:
                outcome = error
            self._post(functools.partial(self._take, subjects, outcome))
        self._executor.submit(work)

    def close(self) -> None:
        """Release what is open; slices and pools stay as they are."""
        if self._keeper is not None and not self._working:
            self._keeper.close()

    def _take(self, subjects: list[quantum_subject.Subject],
              outcome: quantum_keeper.Round | Exception) -> None:
        self._working = False
        self.done += 1
        if isinstance(outcome, Exception):
            self._take_failure(outcome)
            return
        self._failure = ''
        self._last = outcome
        for subject in subjects:
            server = self._known.get(subject.uuid)
            if server is not None and server.run_id == subject.run_id:
                server.quantum = outcome.servers.get(subject.uuid)

    def _take_failure(self, error: Exception) -> None:
        # NOTE: as with bills: caps do not depend on it.
        self.errors += 1
        if str(error) != self._failure:
            LOG.error('Servers cannot be given their slices now: %s', error,
                      exc_info=None if isinstance(
                          error, base.HypervisorError) else error)
        self._failure = str(error)
