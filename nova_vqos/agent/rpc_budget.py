# SPDX-License-Identifier: Apache-2.0
"""How many messages of the bus the agent works on, and in which order.

Any member of the bus can send any message, in any number. So what is too much
is dropped before any work, no method waits for another, and questions that are
alike are worked on once.
"""

import collections
from collections.abc import Callable, Collection, Hashable
from concurrent import futures
import logging
import threading
import time
import typing as ty

from nova_vqos.agent import retry

LOG = logging.getLogger(__name__)

# Messages of one method that wait. To send an answer takes a millisecond.
_MOST_WAITING = 200
# Orders about one server by one method: some at once, then ten a second.
_SERVER_BURST, _SERVER_INTERVAL_S = 20, 0.1
# All orders by one method: a host that starts claims for all of its servers.
_METHOD_BURST, _METHOD_INTERVAL_S = 1000, 0.005
_MOST_SERVERS = 10_000
# Arguments of questions that are compared.
_MOST_COMPARED = 4


class Budget:
    """How many orders are worked on. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        :param clock: monotonic, in seconds
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._methods: dict[str, retry.TokenBucket] = collections.defaultdict(
            lambda: retry.TokenBucket(_METHOD_BURST, _METHOD_INTERVAL_S))
        # The one that was asked for longest ago comes first.
        self._servers: collections.OrderedDict[
            tuple[str, str], retry.TokenBucket] = collections.OrderedDict()

    def admit(self, method: str, server_uuid: str) -> bool:
        """Whether an order is to be worked on.

        :param server_uuid: '': it is about none
        """
        now_s = self._clock()
        with self._lock:
            return ((not server_uuid
                     or self._of_server(method, server_uuid).acquire(now_s))
                    and self._methods[method].acquire(now_s))

    def _of_server(self, method: str, server_uuid: str) -> retry.TokenBucket:
        key = method, server_uuid
        found = self._servers.pop(key, None)
        if found is None:
            found = retry.TokenBucket(_SERVER_BURST, _SERVER_INTERVAL_S)
            if len(self._servers) >= _MOST_SERVERS:
                self._servers.popitem(last=False)
        self._servers[key] = found
        return found


class Alike:
    """Messages that are alike, as one: each of them gets the answer."""

    def __init__(self, messages: list[ty.Any]) -> None:
        self._messages = messages

    def __getattr__(self, name: str) -> ty.Any:
        return getattr(self._messages[0], name)

    def acknowledge(self) -> None:
        """As of a message of oslo.messaging, like the next."""
        for message in self._messages:
            message.acknowledge()

    def reply(self, *arguments: ty.Any, **options: ty.Any) -> None:
        failure = None
        for message in self._messages:
            try:
                message.reply(*arguments, **options)
            except Exception as error:
                # One that asked may be gone.
                failure = error
        if failure is not None:
            raise failure


class _Queue:
    """Messages of one method that wait.

    :ivar alike: by what they have in common
    :ivar messages: how many there are
    :ivar is_served: whether a thread works on them
    """

    def __init__(self) -> None:
        self.alike: dict[Hashable, list[ty.Any]] = {}
        self.messages = 0
        self.is_served = False


class Queues:
    """What oslo.messaging submits messages to: a queue for each method.

    Has of an executor what a server of oslo.messaging uses. Each queue is
    served by one thread at a time, so that no method waits for another.
    """

    def __init__(self, questions: Collection[str], orders: Collection[str],
                 max_workers: int | None = None) -> None:
        """
        :param questions: methods that change nothing
        :param orders: all others
        :param max_workers: of an executor; not used
        """
        # All that are of neither are one.
        self._queues = {method: _Queue()
                        for method in (*questions, *orders, '')}
        self._questions = frozenset(questions)
        # NOTE: the threads of futurist, which oslo.messaging takes, wake up
        # once a second, each at the price of a tick of the loop.
        self._executor = futures.ThreadPoolExecutor(
            len(self._queues), thread_name_prefix='rpc')
        self._lock = threading.Lock()
        self._budget = Budget()
        self._log_tokens = retry.log_tokens()
        self._dropped = 0

    def submit(self, work: Callable[[list[ty.Any]], None],
               incoming: list[ty.Any]) -> None:
        """Have a message worked on, or drop it."""
        message, = incoming
        content = message.message if isinstance(message.message, dict) else {}
        method, arguments = content.get('method'), content.get('args')
        arguments = arguments if isinstance(arguments, dict) else {}
        if not isinstance(method, str) or method not in self._queues:
            method = ''
        if method in self._questions:
            is_taken = self._put(method, _likeness(content, arguments),
                                 message, work)
        else:
            is_taken = (self._budget.admit(method, _server_uuid(arguments))
                        and self._put(method, object(), message, work))
        if not is_taken:
            self._drop(message, method)

    def shutdown(self, wait: bool = True) -> None:
        """As of an executor."""
        self._executor.shutdown(wait=wait)

    def _put(self, method: str, likeness: Hashable, message: ty.Any,
             work: Callable[[list[ty.Any]], None]) -> bool:
        """:returns: whether there is room for it"""
        queue = self._queues[method]
        with self._lock:
            if queue.messages >= _MOST_WAITING:
                return False
            queue.messages += 1
            queue.alike.setdefault(likeness, []).append(message)
            if not queue.is_served:
                queue.is_served = True
                self._executor.submit(self._serve, queue, work)
        return True

    def _serve(self, queue: _Queue,
               work: Callable[[list[ty.Any]], None]) -> None:
        """Work on all messages of a queue, the oldest first."""
        while True:
            with self._lock:
                if not queue.alike:
                    queue.is_served = False
                    return
                messages = queue.alike.pop(next(iter(queue.alike)))
                queue.messages -= len(messages)
            try:
                work([Alike(messages)])
            except Exception:
                LOG.exception('A message cannot be worked on')

    def _drop(self, message: ty.Any, method: str) -> None:
        """Acknowledge a message without an answer to its caller."""
        self._dropped += 1
        if self._log_tokens.acquire(time.monotonic()):
            LOG.warning('The bus has more messages than this agent works on: '
                        '%d were dropped by now, the last one was %s',
                        self._dropped, method or 'of an unknown method')
        try:
            message.acknowledge()
        except Exception:
            LOG.debug('A message cannot be acknowledged', exc_info=True)


class FewLines(logging.Filter):
    """Lets few warnings of a logger pass that others can have written."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens = retry.log_tokens()

    def filter(self, record: logging.LogRecord) -> bool:
        return (record.levelno < logging.WARNING
                or self._tokens.acquire(time.monotonic()))


def _server_uuid(arguments: dict[str, ty.Any]) -> str:
    """The server that an order is about; '': none."""
    statement = arguments.get('statement')
    found = arguments.get('server_uuid') or (
        statement.get('server_uuid') if isinstance(statement, dict) else '')
    return found[:64] if isinstance(found, str) else ''


def _likeness(content: dict[str, ty.Any], arguments: dict[str, ty.Any]
              ) -> Hashable:
    """What questions have in common that get the same answer."""
    asked = (*(content.get(name) for name in (
        'method', 'namespace', 'version')), *arguments.values())
    if len(arguments) <= _MOST_COMPARED and all(
            value is None or isinstance(value, str | bool)
            for value in asked):
        return asked, tuple(arguments)
    return object()
