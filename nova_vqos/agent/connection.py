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


"""The agent's connection to the hypervisor: made again when it is lost."""

from collections.abc import Callable
from concurrent import futures
import functools
import logging

from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

_FIRST_RECONNECT_S = 0.5
_LONGEST_RECONNECT_S = 10.0


class Connection:
    """Whether the hypervisor can be reached; a worker connects.

    All here is called by the loop.
    """

    def __init__(self, hypervisor: base.Hypervisor,
                 executor: futures.Executor,
                 post: Callable[[Callable[[], None]], None],
                 clock: Callable[[], float], *,
                 on_event: Callable[[base.Event], None],
                 on_up: Callable[[], None]) -> None:
        """Prepare; nothing is connected yet.

        :param executor: runs what connects
        :param post: has the loop call something
        :param clock: monotonic, in seconds
        :param on_event: told of the hypervisor's events, by any thread
        :param on_up: told by the loop that there is a connection again
        """
        self._hypervisor = hypervisor
        self._executor = executor
        self._post = post
        self._clock = clock
        self._on_event = on_event
        self._on_up = on_up
        self._up = self._connecting = False
        self._failures = 0
        self._next_at_s = float('-inf')

    @property
    def up(self) -> bool:
        """Whether there is one, as far as known."""
        return self._up

    def make(self, now_s: float) -> None:
        """Have it made, if it is time to, and nobody is at it."""
        if self._connecting or now_s < self._next_at_s:
            return
        self._connecting = True

        def connect() -> None:
            failure: Exception | None = None
            try:
                self._hypervisor.connect(self._on_event)
            except Exception as error:
                failure = error
            self._post(functools.partial(self._take, failure))
        self._executor.submit(connect)

    def lose(self, reason: str) -> None:
        """It is gone: nothing is read or written until it is made again."""
        if self._up:
            LOG.warning('Connection to the hypervisor lost: %s', reason)
            self._up = False

    def _take(self, error: Exception | None) -> None:
        self._connecting = False
        if error is not None:
            delay_s = min(_LONGEST_RECONNECT_S,
                          _FIRST_RECONNECT_S * 2 ** min(self._failures, 10))
            self._failures += 1
            self._next_at_s = self._clock() + delay_s
            LOG.warning('%s. Next try in %.1f s; caps stay as they are',
                        error, delay_s)
            return
        self._up = True
        self._failures = 0
        LOG.info('Connected to the hypervisor, cgroup version %d',
                 self._hypervisor.cgroup_version)
        self._on_up()
