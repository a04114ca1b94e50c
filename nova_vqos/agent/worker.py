# SPDX-License-Identifier: Apache-2.0
"""What crosses between the loop and other threads.

Others leave messages for the loop; what may block is done on worker threads,
and the loop gets the outcomes.

Work touches nothing that the loop owns: it returns a value, and what the loop
does with it is called by the loop.
"""

from collections.abc import Callable
from concurrent import futures
import functools
import logging
import queue
import threading
import typing as ty

from nova_vqos.agent import retry
from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# How long RPC waits for the loop, which a hanging daemon can hold up.
ASK_TIMEOUT_S = 20.0

_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 30.0
# Less than the agent's interval: with each tick.
_BUSY_RETRY_S = 0.5

_Result = ty.TypeVar('_Result')


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

    def ask(self, question: Callable[[], _Result],
            timeout_s: float = ASK_TIMEOUT_S) -> _Result:
        """Have a question answered by the owner.

        :param timeout_s: for how long to wait for it
        :raises TimeoutError: when the owner is held up
        """
        answer: futures.Future[_Result] = futures.Future()

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

    def handle(self) -> int:
        """Call all messages, the oldest first; what one raises is logged.

        :returns: how many raised
        """
        errors = 0
        # Cleared first: what arrives from now on is not lost.
        self._wake.clear()
        while True:
            try:
                message = self._messages.get_nowait()
            except queue.Empty:
                return errors
            try:
                message()
            except Exception:
                errors += 1
                LOG.exception('A message was not understood')

    def wait(self, timeout_s: float) -> None:
        """Wait for a message that came after the last were taken."""
        self._wake.wait(timeout_s)


class Worker:
    """A pool of threads whose outcomes are posted to the loop."""

    def __init__(self, executor: futures.Executor,
                 post: Callable[[Callable[[], None]], None]) -> None:
        """
        :param executor: runs the work
        :param post: makes the loop call something
        """
        self._executor = executor
        self._post = post

    def submit(self, work: Callable[[], _Result],
               on_result: Callable[[_Result], None],
               on_failure: Callable[[Exception], None]) -> None:
        """Begin some work.

        :param on_result: called by the loop with what the work returned
        :param on_failure: called by the loop with what it raised
        """
        def run() -> None:
            outcome: Callable[[], None]
            try:
                outcome = functools.partial(on_result, work())
            except Exception as error:
                outcome = functools.partial(on_failure, error)
            self._post(outcome)
        self._executor.submit(run)


class PeriodicJob:
    """Work for all servers, done again and again, once at a time.

    Caps do not depend on it: a failure is counted, logged once, and the next
    time may go better.

    :ivar busy: whether it is under way
    :ivar runs: how often it ended
    :ivar errors: how often it failed
    """

    def __init__(self, worker: Worker, purpose: str,
                 on_end: Callable[[], None] = lambda: None) -> None:
        """
        :param purpose: names it in the log
        :param on_end: called by the loop after each run
        """
        self.busy = False
        self.runs = self.errors = 0
        self._worker = worker
        self._purpose = purpose
        self._on_end = on_end
        self._last_error = ''

    def begin(self, work: Callable[[], _Result],
              on_result: Callable[[_Result], None]) -> None:
        """Begin a run; none is under way."""
        self.busy = True
        self._worker.submit(
            work, functools.partial(self._finish, on_result), self._fail)

    def _finish(self, on_result: Callable[[_Result], None],
                result: _Result) -> None:
        self._last_error = ''
        self._end()
        on_result(result)

    def _fail(self, error: Exception) -> None:
        self.errors += 1
        if str(error) != self._last_error:
            LOG.error('%s failed, next try in its next interval: %s',
                      self._purpose, error, exc_info=None if isinstance(
                          error, base.HypervisorError) else error)
        self._last_error = str(error)
        self._end()

    def _end(self) -> None:
        self.busy = False
        self.runs += 1
        self._on_end()


class ServerJobs:
    """Work on single servers, at most one job for each at a time.

    The outcome of a job is dropped where its server has gone, or was started
    again.

    :ivar errors: how many jobs failed unexpectedly
    """

    def __init__(self, worker: Worker, known: servers.Servers,
                 clock: Callable[[], float],
                 on_unavailable: Callable[[str], None]) -> None:
        """
        :param clock: monotonic, in seconds
        :param on_unavailable: called with the reason when the hypervisor
            cannot be reached
        """
        self.errors = 0
        self._worker = worker
        self._servers = known
        self._clock = clock
        self._on_unavailable = on_unavailable
        self._busy: set[servers.Server] = set()
        # Of those that failed since they were last tried with success.
        self._backoffs = known.states(
            lambda _server: retry.Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S))

    def is_busy(self, server: servers.Server) -> bool:
        """Whether a job for a server is under way."""
        return server in self._busy

    def is_idle(self, server: servers.Server) -> bool:
        """Whether no job for a server is under way, and none has failed."""
        return server not in self._busy and server not in self._backoffs

    def any_busy(self) -> bool:
        """Whether any job is."""
        return bool(self._busy)

    def is_waiting(self, server: servers.Server, now_s: float) -> bool:
        """Whether a server is left alone for a while, after a failure."""
        return (server in self._backoffs
                and now_s < self._backoffs[server].next_at_s)

    def back_off(self, server: servers.Server) -> None:
        """Leave a server alone for a while, twice as long each time."""
        self._backoffs[server].fail(self._clock())

    def retry_now(self, server: servers.Server) -> None:
        """Wait no longer: something happened, and a try may succeed."""
        self._backoffs.drop(server)

    def begin(self, server: servers.Server, work: Callable[[], _Result],
              on_result: Callable[[_Result], None],
              on_failure: Callable[[Exception], None] | None = None) -> None:
        """Begin a job for a server for which none is under way.

        :param on_result: called by the loop with what the work returned
        :param on_failure: called by the loop with what it raised; by default
            :meth:`fail` is
        """
        self._busy.add(server)
        if on_failure is None:
            on_failure = functools.partial(self.fail, server)
        self._worker.submit(
            work, functools.partial(self._finish, server, on_result),
            functools.partial(self._finish, server, on_failure))

    def _finish(self, server: servers.Server,
                then: Callable[[ty.Any], None], outcome: ty.Any) -> None:
        self._busy.discard(server)
        if self._servers.runs(server):
            then(outcome)

    def fail(self, server: servers.Server, error: Exception, *,
             busy_level: int = logging.INFO) -> None:
        """Leave a server alone for a while, and log what is wrong.

        :param busy_level: of the log, where the server is only busy
        """
        if isinstance(error, base.DomainBusy):
            # What is wrong meanwhile is to be right soon after its end, and
            # no event may report that.
            known = server in self._backoffs
            self._backoffs[server].defer(self._clock() + _BUSY_RETRY_S)
            LOG.log(logging.DEBUG if known else busy_level,
                    'Server %s (%s) has to wait: %s', server.uuid,
                    server.name, error)
            return
        self.back_off(server)
        if isinstance(error, base.Unavailable):
            self._on_unavailable(str(error))
        elif isinstance(error, base.DomainGone):
            LOG.debug('Server %s is gone: %s', server.uuid, error)
        elif isinstance(error, base.HypervisorError):
            self.errors += 1
            server.set_problem(str(error))
        else:
            self.errors += 1
            if server.set_problem(f'unexpected: {error!r}'):
                LOG.error('Work on server %s (%s) failed', server.uuid,
                          server.name, exc_info=error)
