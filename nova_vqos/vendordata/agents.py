# SPDX-License-Identifier: Apache-2.0
"""Asks the agents of hosts, so that none of them holds up guests of others.

The buses of cells are asked at once, each by a few threads of its own: one
that hangs keeps those, and is skipped then. A host that was silent is not
asked again for a while.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
import functools
import threading
import time
import typing as ty

import oslo_messaging

from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import server_report
from nova_vqos.vendordata import failures
from nova_vqos.vendordata import figures
from nova_vqos.vendordata import workers

_Future = futures.Future[server_report.ServerDetail]


class Answer(ty.NamedTuple):
    """What is known of a server.

    :ivar cell: of its host; '': it is not known
    :ivar server: None: see problem
    """

    cell: str
    server: server_report.ServerDetail | None
    problem: figures.Problem | None = None


class Limits(ty.NamedTuple):
    """What agents are asked at the most.

    :ivar at_once: agents of a cell
    :ivar of_host_at_once: servers of a host
    :ivar silent_s: for which a host that was silent is not asked again
    """

    at_once: int = 16
    of_host_at_once: int = 4
    silent_s: float = 10.0


_DEFAULT = Limits()


class Agents:
    """The agents of all cells."""

    def __init__(self, apis: Mapping[str, rpcapi.AgentAPI],
                 timeout_s: float, failed: failures.Failures,
                 limits: Limits = _DEFAULT,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        :param apis: by cell
        :param timeout_s: within which an agent has to answer
        :param failed: takes which hosts fail
        :param clock: in seconds
        """
        self._apis = dict(apis)
        self._timeout_s = timeout_s
        self._failed = failed
        self._limits = limits
        self._clock = clock
        self._workers = {
            cell: workers.Workers('agent', limits.at_once)
            for cell in self._apis}
        self._lock = threading.Lock()
        # By host: servers that are asked about, and until when it is silent.
        self._asked: dict[str, int] = {}
        self._silent_until_s: dict[str, float] = {}

    def ask(self, host: str, cell: str, server_uuid: str) -> Answer:
        """Ask the agent of a host about a server.

        :param cell: of the host; '': it is not known, ask in all
        """
        with self._lock:
            asked = self._asked.get(host, 0)
            if self._clock() < self._silent_until_s.get(host, 0.0):
                return Answer('', None, figures.Problem.HOST_SILENT)
            if asked >= self._limits.of_host_at_once:
                return Answer('', None, figures.Problem.BUSY)
            self._asked[host] = asked + 1
        try:
            return self._ask(host, [cell] if cell else list(self._apis),
                             server_uuid)
        finally:
            with self._lock:
                self._asked[host] -= 1
                if not self._asked[host]:
                    del self._asked[host]

    def _ask(self, host: str, cells: Iterable[str],
             server_uuid: str) -> Answer:
        errors: dict[str, Exception] = {}
        begun: dict[_Future, str] = {}
        for cell in cells:
            future = self._workers[cell].start(functools.partial(
                self._call, cell, host, server_uuid))
            if future is None:
                errors[cell] = _BusHangs(
                    f'calls hang on the bus of cell {cell}')
            else:
                begun[future] = cell
        asked = f'the agent of {host}'
        try:
            for one in futures.as_completed(begun, self._timeout_s):
                error = one.exception()
                if error is None or isinstance(error, rpcapi.UnknownServer):
                    self._failed.end(asked)
                    return (Answer(begun[one], one.result()) if error is None
                            else Answer(begun[one], None,
                                        figures.Problem.NOT_RUNNING))
                errors[begun[one]] = ty.cast(Exception, error)
        except TimeoutError:
            for cell in begun.values():
                errors.setdefault(cell, oslo_messaging.MessagingTimeout())
        self._record(host, asked, list(errors.values()))
        return Answer('', None, figures.Problem.HOST_SILENT)

    def _call(self, cell: str, host: str,
              server_uuid: str) -> server_report.ServerDetail:
        return self._apis[cell].call(
            host, rpcapi.GET_SERVER, timeout=self._timeout_s,
            at_least_once=True, server_uuid=server_uuid)

    def _record(self, host: str, asked: str,
                errors: Iterable[Exception]) -> None:
        """Record that a host failed, by the error of a cell that knows it."""
        error = max(errors, key=lambda one: not isinstance(
            one, oslo_messaging.MessageUndeliverable))
        if isinstance(error, oslo_messaging.MessagingTimeout):
            now_s = self._clock()
            with self._lock:
                self._silent_until_s = {
                    one: until_s for one, until_s
                    in self._silent_until_s.items() if until_s > now_s}
                self._silent_until_s[host] = now_s + self._limits.silent_s
        self._failed.record(asked, type(error).__name__,
                            fanout.reason(error, self._timeout_s))


class _BusHangs(Exception):
    """As many calls as there may be hang on a bus."""
