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


"""What follows when something cannot be done for a server."""

from collections.abc import Callable
import logging

from nova_vqos.agent import counts as counting
from nova_vqos.agent import decision
from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)


class Failures:
    """Tells a server that has to wait from one that is in trouble."""

    def __init__(self, counts: counting.Counts,
                 clock: Callable[[], float],
                 on_unavailable: Callable[[str], None]) -> None:
        """
        :param clock: monotonic, in seconds
        :param on_unavailable: told when the hypervisor cannot be reached
        """
        self._counts = counts
        self._clock = clock
        self._on_unavailable = on_unavailable

    def take(self, error: Exception, server: servers.Server, *,
             busy_level: int = logging.INFO) -> None:
        """Leave the server alone for a while, and say what is wrong.

        :param busy_level: at which a server that is only busy is logged
        """
        server.pinned_to = None
        server.back_off(self._clock())
        if isinstance(error, base.DomainBusy):
            LOG.log(busy_level, 'Server %s (%s) has to wait: %s', server.uuid,
                    server.name, error)
        elif isinstance(error, base.Unavailable):
            self._on_unavailable(str(error))
        elif isinstance(error, base.DomainGone):
            LOG.debug('Server %s is gone: %s', server.uuid, error)
        elif isinstance(error, base.HypervisorError | decision.Unenforceable):
            self._counts.errors += 1
            server.complain(str(error))
        else:
            self._counts.errors += 1
            if server.complain(f'unexpected: {error!r}'):
                LOG.error('A job on server %s (%s) failed', server.uuid,
                          server.name, exc_info=error)
