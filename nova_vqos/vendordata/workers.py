# SPDX-License-Identifier: Apache-2.0
"""Threads for what may hang, so many at once at the most."""

from collections.abc import Callable
from concurrent import futures
import functools
import threading
import typing as ty

_Result = ty.TypeVar('_Result')


class Workers:
    """Does each job in a thread of its own, or not at all.

    NOTE: no executor of concurrent.futures. The process waits for the threads
    of those when it ends, and a message bus that is down hangs without a
    limit. And they queue what no thread is free for.
    """

    def __init__(self, name: str, most: int) -> None:
        """
        :param name: of the threads
        :param most: at once
        """
        self._name = name
        self._free = threading.BoundedSemaphore(most)

    def start(self, job: Callable[[], _Result]
              ) -> futures.Future[_Result] | None:
        """Begin a job.

        :returns: what has its outcome; None: it was not begun, since as many
            run, or the system has no more threads
        """
        if not self._free.acquire(blocking=False):
            return None
        future: futures.Future[_Result] = futures.Future()
        try:
            threading.Thread(target=self._work, args=(job, future),
                             name=self._name, daemon=True).start()
        except RuntimeError:
            self._free.release()
            return None
        return future

    def _work(self, job: Callable[[], _Result],
              future: futures.Future[_Result]) -> None:
        try:
            end = functools.partial(future.set_result, job())
        except Exception as error:
            end = functools.partial(future.set_exception, error)
        # First: whoever waits for the outcome may begin another job then.
        self._free.release()
        end()
