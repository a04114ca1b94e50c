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


"""What the hypervisor tells of changes what is known of servers."""

from collections.abc import Callable
import logging

from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)


class Events:
    """Takes the hypervisor's events, on the loop."""

    def __init__(self, known: dict[str, servers.Server], *,
                 on_lost: Callable[[str], None],
                 on_stopped: Callable[[], None]) -> None:
        """
        :param known: the loop's servers by UUID: new ones are added
        :param on_lost: told why the connection is gone
        :param on_stopped: told that a domain may have left the host
        """
        self._known = known
        self._on_lost = on_lost
        self._on_stopped = on_stopped

    def take(self, event: base.Event) -> None:
        """Note what an event changes."""
        LOG.debug('Event %s', event)
        if event.kind is base.EventKind.CONNECTION_LOST:
            self._on_lost(event.detail)
            return
        server = self._known.get(event.uuid)
        if event.kind is base.EventKind.TOUCHED:
            if server is not None:
                server.reconsider = True
            return
        if event.run_id >= 0 and (server is None
                                  or server.run_id < event.run_id):
            server = self._known[event.uuid] = servers.Server(
                event.uuid, event.run_id)
        if event.kind is base.EventKind.STOPPED:
            self._on_stopped()
        if server is None or server.run_id != event.run_id:
            return
        server.reconsider = True
        server.stop_backing_off()
        if event.kind is base.EventKind.TUNED:
            server.tampering.take_event(event, server.want)
            return
        server.undescribed = True
        _note_run(event, server)


def _note_run(event: base.Event, server: servers.Server) -> None:
    """Note how and when a server came to run here."""
    if event.detail == base.JOB_COMPLETED:
        # A migration that failed, or anything else that it is not worth
        # to be told from.
        server.lifted_until_s = None
    if event.kind is base.EventKind.STARTED:
        server.origin = event.detail
    # Whichever comes first: libvirt may tell of RESUMED before STARTED. In
    # a migration STARTED is but the QEMU, whose guest is not here yet.
    if server.runs_since_s is None and (
            event.kind is base.EventKind.RESUMED
            or (event.kind is base.EventKind.STARTED
                and event.detail != 'migrated')):
        server.runs_since_s = event.seen_at_s
