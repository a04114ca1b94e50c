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


"""What other threads leave for the one that owns all state."""

from collections.abc import Callable
from concurrent import futures
import queue
import threading
import typing as ty

# How long RPC waits for the loop, which a hanging daemon can hold up.
ASK_TIMEOUT_S = 20.0

_Answer = ty.TypeVar('_Answer')


class Mailbox:
    """Messages: each is something that the owner of the box is to call."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Callable[[], None]] = (
            queue.SimpleQueue())
        self._wake = threading.Event()

    # What any thread calls.

    def post(self, message: Callable[[], None]) -> None:
        """Have something called by the owner, soon."""
        self._messages.put(message)
        self._wake.set()

    def ask(self, question: Callable[[], _Answer],
            timeout_s: float = ASK_TIMEOUT_S) -> _Answer:
        """Have a question answered by the owner.

        :param timeout_s: for how long to wait for it
        :raises TimeoutError: when the owner is held up
        """
        answer: futures.Future[_Answer] = futures.Future()

        def reply() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)
        self.post(reply)
        return answer.result(timeout_s)

    def wake(self) -> None:
        """End the owner's wait."""
        self._wake.set()

    # What the owner calls.

    def take(self) -> None:
        """Call all messages, the oldest first.

        What a message raises ends it: the rest is left for the next time.
        """
        # Cleared first: what arrives from now on is not lost.
        self._wake.clear()
        while True:
            try:
                message = self._messages.get_nowait()
            except queue.Empty:
                return
            message()

    def wait(self, timeout_s: float) -> None:
        """Wait for a message that came after the last were taken."""
        self._wake.wait(timeout_s)
