# SPDX-License-Identifier: Apache-2.0
"""Sends messages and notifications to the bus, in a thread of its own.

Nothing here blocks the caller. Messages that cannot be sent are dropped; a
receiver that needs one asks for it again.
"""

from collections.abc import Callable, Mapping
import logging
import queue
import threading
import time
import typing as ty

from nova_vqos import speeds as records
from nova_vqos.agent import rpcapi
from nova_vqos.billing import account

LOG = logging.getLogger(__name__)

USAGE = 'vqos.server.usage'
OVERDRAWN = 'vqos.server.overdrawn'

# A bus that hangs must not fill the memory.
_MAX_WAITING = 10_000
# How long the agent's end waits for messages to be sent.
_STOP_TIMEOUT_S = 2.0


class Outbox:
    """Messages to other agents, and notifications.

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
        self._api: rpcapi.AgentAPI | None = None
        self._notify: Callable[[str, Mapping[str, ty.Any]], None] | None = (
            None)
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(
            _MAX_WAITING)
        self._failing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to send."""
        self._thread = threading.Thread(
            target=self._work, name='outbox', daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send the waiting messages, and no more.

        Blocks for two seconds at most; then the rest is lost.
        """
        self._put(None)
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def use_bus(self, api: rpcapi.AgentAPI) -> None:
        """Send to other agents from now on."""
        self._api = api

    def use_notifier(self, notify: Callable[[str, Mapping[str, ty.Any]],
                                            None]) -> None:
        """Send notifications from now on.

        :param notify: takes the type of an event, and its payload
        """
        self._notify = notify

    def claim(self, server_uuid: str, nonce: str, most_debt_cu_us: int,
              source: str, most_saved_cu_us: int = 0) -> None:
        """Claim the account of a server that is here now.

        :param source: the host that it came from; '': all hosts are asked
        :param most_saved_cu_us: that the server may save
        """
        api = self._api
        if api is not None:
            self._put(lambda: api.claim_ledger(
                server_uuid, self._host, self._utc(), nonce, most_debt_cu_us,
                source, most_saved_cu_us))

    def hand_over(self, host: str, statement: account.Statement, nonce: str,
                  *, is_copy: bool) -> None:
        """Send a statement to the host that a server went to."""
        api = self._api
        if api is not None:
            self._put(lambda: api.hand_over(host, statement, nonce,
                                            is_copy=is_copy))

    def claim_speeds(self, server_uuid: str, nonce: str) -> None:
        """Ask all hosts what they measured of a server that is here now."""
        api = self._api
        if api is not None:
            self._put(lambda: api.claim_speeds(server_uuid, self._host,
                                               nonce))

    def hand_over_speeds(self, host: str, server_uuid: str, nonce: str,
                         speeds: records.Speeds) -> None:
        """Send what was measured of a server to the host that asked."""
        api = self._api
        if api is not None:
            self._put(lambda: api.hand_over_speeds(
                host, server_uuid, nonce, speeds))

    def notify(self, event_type: str, payload: Mapping[str, ty.Any]) -> None:
        """Notify of a server's usage, or that it is overdrawn."""
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
                # Any error of the bus or its driver.
                self.dropped += 1
                if not self._failing:
                    LOG.warning('Messages to other agents cannot be sent, '
                                'dropping them: %s', error)
                self._failing = True
            else:
                self._failing = False
