# SPDX-License-Identifier: Apache-2.0
"""The file by which other services see that the agent is alive."""

import logging
import os

from nova_vqos import agent_state
from nova_vqos import files

LOG = logging.getLogger(__name__)


class Heartbeat:
    """Written in an interval, and at once when the host's status changes.

    :ivar next_at_s: when the next is due, on the loop's clock
    :ivar status: that of the last; None: there was none
    """

    def __init__(self, path: str, host: str,
                 interval_s: float = 10.0) -> None:
        """Prepare; nothing is written yet."""
        self.next_at_s = float('-inf')
        self._path = path
        self._host = host
        self._interval_s = interval_s
        self.status: agent_state.AgentState | None = None
        self._fails = False

    def beat(self, now_s: float, status: agent_state.AgentState) -> None:
        """Write the file, if it is time to, or the status has changed."""
        if now_s < self.next_at_s and status == self.status:
            return
        self.next_at_s = now_s + self._interval_s
        self.status = status
        try:
            # Not durable: it is of no use after a crash of the host.
            files.write(agent_state.to_text(
                status, host=self._host, pid=os.getpid()),
                self._path, durable=False)
            self._fails = False
        except OSError as error:
            if not self._fails:
                LOG.error('Heartbeat file cannot be written, the scheduler '
                          'will refuse this host: %s', error)
            self._fails = True
