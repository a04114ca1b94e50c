# SPDX-License-Identifier: Apache-2.0
"""The agent's connection to the hypervisor: made again when it is lost."""

from collections.abc import Callable
import functools
import logging

from nova_vqos.agent import retry
from nova_vqos.agent import worker as workers
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 10.0


class Connection:
    """Whether the hypervisor can be reached; a worker connects.

    The loop calls all of it.

    :ivar up: whether it can be reached, as far as known
    """

    def __init__(self, hypervisor: base.CapDriver, worker: workers.Worker,
                 clock: Callable[[], float], *,
                 on_event: Callable[[base.Event], None],
                 on_up: Callable[[], None]) -> None:
        """Prepare; nothing is connected yet.

        :param clock: monotonic, in seconds
        :param on_event: called with the hypervisor's events, by any thread
        :param on_up: called by the loop when there is a connection again
        """
        self.up = False
        self._hypervisor = hypervisor
        self._worker = worker
        self._clock = clock
        self._on_event = on_event
        self._on_up = on_up
        self._connecting = False
        self._backoff = retry.Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)

    def connect(self, now_s: float) -> None:
        """Begin to connect, if it is time to, and no attempt is under way."""
        if self._connecting or now_s < self._backoff.next_at_s:
            return
        self._connecting = True
        self._worker.submit(
            functools.partial(self._hypervisor.connect, self._on_event),
            self._succeed, self._fail)

    def lose(self, reason: str) -> None:
        """It is gone: nothing is read or written until it is made again."""
        if self.up:
            LOG.warning('Connection to the hypervisor lost: %s', reason)
            self.up = False

    def _succeed(self, _result: None) -> None:
        self._connecting = False
        self.up = True
        self._backoff.reset()
        LOG.info('Connected to the hypervisor, cgroup version %d',
                 self._hypervisor.cgroup_version)
        self._on_up()

    def _fail(self, error: Exception) -> None:
        self._connecting = False
        delay_s = self._backoff.fail(self._clock())
        LOG.warning('%s. Next try in %.1f s; caps stay as they are',
                    error, delay_s)
