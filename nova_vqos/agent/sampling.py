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

"""What servers use, read again and again by a worker.

All here is called by the loop, but for what is done in a round.
"""

from collections.abc import Callable, Mapping
from concurrent import futures
import functools
import logging

from nova_vqos.agent import server as servers
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)


class Sampling:
    """The rounds in which the CPU time of all servers is read.

    :ivar errors: how many of them failed
    """

    def __init__(self, hypervisor: base.Hypervisor,
                 known: Mapping[str, servers.Server],
                 executor: futures.Executor,
                 post: Callable[[Callable[[], None]], None], *,
                 interval_s: float) -> None:
        """
        :param known: the loop's servers by UUID
        :param executor: runs the rounds
        :param post: has the loop call something
        :param interval_s: from one round to the next
        """
        self.errors = 0
        self._hypervisor = hypervisor
        self._known = known
        self._executor = executor
        self._post = post
        self._interval_s = interval_s
        self._next_at_s = float('-inf')
        self._working = False
        self._failure = ''

    @property
    def working(self) -> bool:
        """Whether a round is under way."""
        return self._working

    @property
    def alarms(self) -> tuple[str, ...]:
        """What is wrong, one text each."""
        missed = sum(server.samples_missed >= servers.SAMPLES_MISSED
                     for server in self._known.values())
        return (f'what the vCPUs of {missed} servers use cannot be read',
                ) if missed else ()

    def begin(self, now_s: float) -> None:
        """Have all servers read, if it is time to.

        A driver from before this is not asked: nothing is known then.
        """
        if (self._working or now_s < self._next_at_s or not self._known
                or type(self._hypervisor).vcpu_times
                is base.Hypervisor.vcpu_times):
            return
        # Rounds that were missed are not made up for.
        late_s = now_s - self._next_at_s
        self._next_at_s = now_s + self._interval_s - (
            late_s if late_s < self._interval_s / 2 else 0.0)
        self._working = True
        run_ids = {uuid: server.run_id
                   for uuid, server in self._known.items()}

        def work() -> None:
            outcome: Mapping[str, usage.VcpuTime] | Exception
            try:
                outcome = self._hypervisor.vcpu_times(run_ids)
            except Exception as error:
                outcome = error
            self._post(functools.partial(self._take, run_ids, outcome))
        self._executor.submit(work)

    def _take(self, run_ids: Mapping[str, int],
              outcome: Mapping[str, usage.VcpuTime] | Exception) -> None:
        self._working = False
        if isinstance(outcome, Exception):
            self._take_failure(outcome)
            return
        self._failure = ''
        for uuid, run_id in run_ids.items():
            server = self._known.get(uuid)
            if server is not None and server.run_id == run_id:
                server.take_sample(outcome.get(uuid))

    def _take_failure(self, error: Exception) -> None:
        # NOTE: as with bills: caps do not depend on it.
        self.errors += 1
        if str(error) != self._failure:
            LOG.error('What servers use cannot be read now: %s', error,
                      exc_info=None if isinstance(
                          error, base.HypervisorError) else error)
        self._failure = str(error)
