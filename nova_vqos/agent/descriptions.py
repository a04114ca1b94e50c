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


"""Servers are described: what their policy follows from is read."""

from collections.abc import Callable
import functools
import logging

from nova_vqos import pushed
from nova_vqos.agent import counts as counting
from nova_vqos.agent import failures as failing
from nova_vqos.agent import jobs as jobbing
from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base


class Descriptions:
    """Keeps what is known of servers up to date; called by the loop."""

    def __init__(self, hypervisor: base.Hypervisor, jobs: jobbing.Jobs,
                 failures: failing.Failures, counts: counting.Counts,
                 clock: Callable[[], float],
                 overrides: Callable[[], pushed.Overrides]) -> None:
        """
        :param clock: monotonic, in seconds
        :param overrides: gives what was pushed
        """
        self._hypervisor = hypervisor
        self._jobs = jobs
        self._failures = failures
        self._counts = counts
        self._clock = clock
        self._overrides = overrides

    def look_at(self, server: servers.Server, now_s: float) -> bool:
        """Have a server described, if it is time to.

        :param server: that is not being worked on
        :returns: whether it is up to date; False: nothing may follow from
            what is known of it
        """
        if server.is_arriving and now_s >= server.describe_at_s:
            server.undescribed = True
        if not server.undescribed:
            return True
        if now_s >= server.retry_at_s:
            # What happens from now on asks for another description.
            server.undescribed = False
            self._jobs.begin(server, self._describe, self._take_failure)
        return False

    def _describe(self, uuid: str) -> jobbing.Outcome:
        return functools.partial(self._take, self._hypervisor.describe(uuid))

    def _take(self, domain: base.Domain, server: servers.Server) -> None:
        before = server.policy_errors
        server.take_description(domain, self._clock(), self._overrides())
        self._counts.policy_errors += len(server.policy_errors - before)

    def _take_failure(self, error: Exception, server: servers.Server) -> None:
        server.undescribed = True
        # Each one that boots is met while it is being started.
        self._failures.take(error, server, busy_level=logging.DEBUG)
