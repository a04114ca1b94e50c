# SPDX-License-Identifier: Apache-2.0
"""What fails again and again is logged once, and so is its end."""

import logging
import threading

LOG = logging.getLogger(__name__)


class Failures:
    """Of each that is asked, whether its last answer was a failure."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._lock = threading.Lock()

    def record(self, asked: str, kind: str, text: str) -> None:
        """Record a failure; log it, if the last one was of another kind.

        :param asked: who was asked
        :param kind: the same for the same failure, unlike texts of libraries,
            which have the ID of a message or the UUID of a server
        :param text: why there was no answer
        """
        with self._lock:
            before = self._kinds.get(asked)
            self._kinds[asked] = kind
        if kind != before:
            LOG.warning('Guests of servers read no figures, since %s does '
                        'not answer: %s', asked, text)

    def end(self, asked: str) -> None:
        """Record an answer; log it, if the last one was a failure."""
        with self._lock:
            before = self._kinds.pop(asked, None)
        if before is not None:
            LOG.info('Guests of servers read figures again: %s answers',
                     asked)
