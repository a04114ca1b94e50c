# SPDX-License-Identifier: Apache-2.0
"""Sends messages and notifications to the bus, in a thread of its own.

Nothing here blocks the caller. Messages that cannot be sent are dropped; a
receiver that needs one asks for it again.

Each kind of message has a lane of its own, so that none pushes out another.
Questions about servers that came go first, then notifications, and then
answers, of which others can ask for any number: of those to one host about one
server only the newest is sent.
"""

import collections
from collections.abc import Callable, Hashable, Mapping
import logging
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
_MOST_WAITING = 10_000
# How long the agent's end waits for messages to be sent.
_STOP_TIMEOUT_S = 2.0

_Message = Callable[[], None]


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
        # By what a newer message takes the place of an older one; the first
        # lane that has any comes first.
        self._questions: _Lane = collections.OrderedDict()
        self._notifications: _Lane = collections.OrderedDict()
        self._answers: _Lane = collections.OrderedDict()
        self._changed = threading.Condition()
        self._stopping = False
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
        with self._changed:
            self._stopping = True
            self._changed.notify()
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
            self._put(self._questions, lambda: api.claim_ledger(
                server_uuid, self._host, self._utc(), nonce, most_debt_cu_us,
                source, most_saved_cu_us), ('account', server_uuid))

    def hand_over(self, host: str, statement: account.Statement, nonce: str,
                  *, is_copy: bool) -> None:
        """Send a statement to the host that a server went to."""
        api = self._api
        if api is not None:
            self._put(self._answers, lambda: api.hand_over(
                host, statement, nonce, is_copy=is_copy),
                ('account', statement.server_uuid, host))

    def claim_speeds(self, server_uuid: str, nonce: str) -> None:
        """Ask all hosts what they measured of a server that is here now."""
        api = self._api
        if api is not None:
            self._put(self._questions, lambda: api.claim_speeds(
                server_uuid, self._host, nonce), ('speeds', server_uuid))

    def hand_over_speeds(self, host: str, server_uuid: str, nonce: str,
                         speeds: records.Speeds) -> None:
        """Send what was measured of a server to the host that asked."""
        api = self._api
        if api is not None:
            self._put(self._answers, lambda: api.hand_over_speeds(
                host, server_uuid, nonce, speeds),
                ('speeds', server_uuid, host))

    def notify(self, event_type: str, payload: Mapping[str, ty.Any]) -> None:
        """Notify of a server's usage, or that it is overdrawn."""
        notify = self._notify
        if notify is not None:
            self._put(self._notifications,
                      lambda: notify(event_type, payload), object())

    def _put(self, lane: '_Lane', message: _Message, key: Hashable) -> None:
        """:param key: a message that waits with the same is dropped"""
        with self._changed:
            if key not in lane and len(lane) >= _MOST_WAITING:
                self.dropped += 1
                return
            # It keeps its place: who asks again and again waits no longer.
            lane[key] = message
            self._changed.notify()

    def _next(self) -> _Message | None:
        """Wait for the next message; None: the end."""
        with self._changed:
            while True:
                for lane in (self._questions, self._notifications,
                             self._answers):
                    if lane:
                        return lane.popitem(last=False)[1]
                if self._stopping:
                    return None
                self._changed.wait()

    def _work(self) -> None:
        while (message := self._next()) is not None:
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


_Lane = collections.OrderedDict[Hashable, _Message]
