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

"""What the agent tells others, without ever waiting for them.

A thread of its own hands messages to the bus. Those that cannot be sent are
dropped: what must get through is asked for again by the one who needs it.
"""

from collections.abc import Callable, Mapping
import logging
import queue
import threading
import time
import typing as ty

from nova_vqos.billing import account as accounts

LOG = logging.getLogger(__name__)

USAGE = 'vqos.server.usage'
OVERDRAWN = 'vqos.server.overdrawn'

# A bus that hangs must not fill the memory.
_MOST_WAITING = 10_000
# How long the end of the agent is put off to send what waits.
_STOP_TIMEOUT_S = 2.0


class Api(ty.Protocol):
    """Those calls of :class:`nova_vqos.agent.rpcapi.AgentAPI`."""

    def claim_ledger(self, server_uuid: str, host: str,
                     claimed_at: float) -> None: ...

    def hand_over(self, host: str, statement: Mapping[str, ty.Any]
                  ) -> None: ...


class Messenger:
    """Tells other agents, and whoever listens to notifications.

    :ivar dropped: how many messages could not be sent
    """

    def __init__(self, host: str, *,
                 utc: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is sent before :meth:`start`.

        :param host: name of this host
        """
        self.dropped = 0
        self._host = host
        self._utc = utc
        self._api: Api | None = None
        self._notify: Callable[[str, Mapping[str, ty.Any]], None] | None = (
            None)
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(
            _MOST_WAITING)
        self._complained = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send."""
        self._thread = threading.Thread(
            target=self._work, name='messenger', daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send what waits, and no more.

        Waits for two seconds at most: what a bus that hangs does not take
        is lost.
        """
        self._put(None)
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def use_bus(self, api: Api) -> None:
        """Reach other agents from now on."""
        self._api = api

    def use_notifier(self, notify: Callable[[str, Mapping[str, ty.Any]],
                                            None]) -> None:
        """Send notifications from now on.

        :param notify: takes the type of an event, and its payload
        """
        self._notify = notify

    def claim(self, server_uuid: str) -> None:
        api = self._api
        if api is not None:
            self._put(lambda: api.claim_ledger(server_uuid, self._host,
                                               self._utc()))

    def hand_over(self, host: str, statement: accounts.Statement) -> None:
        api = self._api
        if api is not None:
            self._put(lambda: api.hand_over(host, statement.to_dict()))

    def overdrawn(self, payload: Mapping[str, ty.Any]) -> None:
        self._send_event(OVERDRAWN, payload)

    def usage(self, payload: Mapping[str, ty.Any]) -> None:
        self._send_event(USAGE, payload)

    def _send_event(self, event_type: str,
                    payload: Mapping[str, ty.Any]) -> None:
        notify = self._notify
        if notify is not None:
            self._put(lambda: notify(event_type, payload))

    def _put(self, message: Callable[[], None] | None) -> None:
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self.dropped += 1

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                message()
            except Exception as error:
                # Whatever the bus or its driver raises.
                self.dropped += 1
                if not self._complained:
                    LOG.warning('Others cannot be told for now: %s', error)
                self._complained = True
            else:
                self._complained = False
