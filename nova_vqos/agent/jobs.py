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


"""What may block, done for single servers by workers."""

from collections.abc import Callable, Mapping
from concurrent import futures
import functools

from nova_vqos.agent import server as servers

# What the loop does with a server once a job for it is done.
Outcome = Callable[[servers.Server], None]


class Jobs:
    """Work on the servers of a loop, at most one job for each at a time.

    A job runs on a worker, knows its server by UUID, and touches nothing that
    the loop owns: it returns what the loop has to do then, which is dropped
    where the server has gone or was started again. All else here is called
    by the loop.
    """

    def __init__(self, known: Mapping[str, servers.Server],
                 executor: futures.Executor,
                 post: Callable[[Callable[[], None]], None]) -> None:
        """
        :param known: the loop's servers by UUID
        :param executor: runs the jobs
        :param post: has the loop call something
        """
        self._known = known
        self._executor = executor
        self._post = post

    @property
    def working(self) -> bool:
        """Whether any is under way for a server that is still known."""
        return any(server.working for server in self._known.values())

    def begin(self, server: servers.Server, job: Callable[[str], Outcome],
              on_failure: Callable[[Exception, servers.Server], None]
              ) -> None:
        """Have a job done; the server is looked at again after it.

        :param server: that is not being worked on
        :param on_failure: called by the loop with what the job raised
        """
        server.working = True
        uuid, run_id = server.uuid, server.run_id

        def work() -> None:
            outcome: Outcome
            try:
                outcome = job(uuid)
            except Exception as error:
                outcome = functools.partial(on_failure, error)
            self._post(functools.partial(self._take, uuid, run_id, outcome))
        self._executor.submit(work)

    def _take(self, uuid: str, run_id: int, outcome: Outcome) -> None:
        server = self._known.get(uuid)
        if server is None or server.run_id != run_id:
            return
        server.working = False
        server.reconsider = True
        outcome(server)
