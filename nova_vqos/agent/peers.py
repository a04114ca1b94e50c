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


"""An agent that missed a push hears of it from another.

Now and then it asks any other agent of its cell: the bus gives the question
to one of them, so that however many ask at a time, each costs one question
and one answer, which is short where both hold the same.
"""

from collections.abc import Callable
import logging
import random
import threading
import typing as ty

from nova_vqos import pushed
from nova_vqos.agent import pushing as pushings

LOG = logging.getLogger(__name__)

# The bus may give a question to the one who asks.
_MOST_QUESTIONS = 4
_TIMEOUT_S = 5.0
# After the start agents ask sooner; all of a cell may have been started at
# once.
_FIRST_S = 10.0
# Where nobody else answered, as when all of a cell are being started.
_AGAIN_S = 30.0
_STOP_TIMEOUT_S = 1.0


class Api(ty.Protocol):
    """That call of :class:`nova_vqos.agent.rpcapi.AgentAPI`."""

    def compare_pushed(self, digest: str, timeout: float = 10
                       ) -> dict[str, ty.Any]: ...


class Peers:
    """Asks other agents for what was pushed.

    :ivar heard: how often something newer was heard
    """

    def __init__(self, pushing: pushings.Pushing, host: str,
                 interval_s: float, *,
                 uniform: Callable[[float, float], float] = random.uniform
                 ) -> None:
        """Prepare; nobody is asked yet.

        :param host: name of this host
        :param interval_s: from one question to the next, on average
        """
        self.heard = 0
        self._refused = ''
        self._pushing = pushing
        self._host = host
        self._interval_s = interval_s
        self._uniform = uniform
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def use_bus(self, api: Api) -> None:
        """Begin to ask."""
        thread = threading.Thread(
            target=self._work, args=(api,), name='peers', daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """Ask no more; a question that is under way is left alone."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _work(self, api: Api) -> None:
        wait_s = self._uniform(0.0, min(_FIRST_S, self._interval_s))
        while not self._stopping.wait(wait_s):
            interval_s = self._interval_s
            if not self.ask(api):
                interval_s = min(interval_s, _AGAIN_S)
            wait_s = interval_s * self._uniform(0.5, 1.5)

    def ask(self, api: Api) -> bool:
        """Ask another agent, whichever it is.

        What goes wrong is no more than a question that was not asked.

        :returns: whether another one answered
        """
        try:
            for _ in range(_MOST_QUESTIONS):
                if self._stopping.is_set():
                    break
                answer = api.compare_pushed(self._pushing.digest(),
                                            _TIMEOUT_S)
                if answer['host'] != self._host:
                    self._take(answer)
                    return True
        except Exception as error:
            # Whatever the bus raises, or an agent of another version says.
            LOG.debug('No other agent said what was pushed: %s', error)
        return False

    def _take(self, answer: dict[str, ty.Any]) -> None:
        try:
            newer = answer['flavors'] is not None and self._pushing.hear(
                answer['flavors'])
        except pushed.PushInvalid as error:
            if str(error) != self._refused:
                LOG.warning('What host %s holds of flavors is not taken: %s',
                            answer['host'], error)
            self._refused = str(error)
            return
        if newer:
            self.heard += 1
            LOG.info('What was pushed of flavors while this agent did not '
                     'hear it was told by host %s', answer['host'])
