# SPDX-License-Identifier: Apache-2.0
"""Asks the agents of many hosts, in all cells, at once.

Programs of operators use it. nova-compute uses :mod:`nova_vqos.agent.rpcapi`
alone: it may have no threads of ours.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import functools
import math
import threading
import time
import typing as ty

import oslo_messaging

from nova_vqos import plain_text
from nova_vqos import primitives
from nova_vqos.agent import rpcapi

#: Agents that are asked at once. Of a thousand the last would be asked, or
#: their answers read, when the first time out; and an agent whose asker is
#: gone tries for a minute to answer.
MOST_AT_ONCE = 64
#: The cell of a host whose cell is unknown: it is asked for in all of them.
ANY_CELL = ''
# The version whose answers the command line reads. Agents that lack what came
# later are asked, so that it serves clouds that are being upgraded.
_LEAST_VERSION = '1.2'
#: Errors of answers.
TOO_OLD = f'the agent is older than {_LEAST_VERSION}: upgrade it'
NO_AGENT = ('no agent of this name is on the bus: check the name, whether '
            'nova-vqos-agent runs there, and which cell the host is in')

# NOTE: oslo.messaging waits for a bus that is down without a limit when it
# begins to listen for answers. The threads that hang so are left behind.
_GRACE_S = 5.0
# The time that it takes to send one call, at most; they are sent in turn.
_SEND_S = 0.02

_Reply = ty.TypeVar('_Reply')
_Outcome = ty.TypeVar('_Outcome')


class BusError(Exception):
    """No agent can be asked; the text says why."""


class Answer(ty.NamedTuple, ty.Generic[_Reply]):
    """One host's answer.

    :ivar cell: of the host; '': unknown, and it answered in none
    :ivar value: None: see error
    :ivar error: why there is no value; '': there is
    """

    host: str
    cell: str
    value: _Reply | None
    error: str


class Fleet:
    """The agents of all cells.

    They are asked at once, in threads: oslo.messaging has no other way, and
    most of the threads only wait.

    :ivar cells: their names
    :ivar apis: clients of their agents, by cell
    """

    def __init__(self, transports: Mapping[str, ty.Any], *,
                 exchange: str = rpcapi.EXCHANGE, topic: str = rpcapi.TOPIC,
                 timeout_s: float = 3.0) -> None:
        """Prepare; nothing is connected yet.

        :param transports: of each cell, by its name
        :param exchange: as the agents' [vqos_agent] exchange
        :param topic: as the agents' [vqos_agent] topic
        :param timeout_s: within which an agent has to answer
        """
        self.cells = tuple(transports)
        self._timeout_s = timeout_s
        self.apis = {
            name: rpcapi.AgentAPI(transport, exchange=exchange, topic=topic)
            for name, transport in transports.items()}

    def ask(self, hosts: Mapping[str, str], method: rpcapi.Method[_Reply],
            **arguments: ty.Any) -> list[Answer[_Reply]]:
        """Ask hosts, many at once.

        Those that do not answer cost one timeout altogether, or one for each
        MOST_AT_ONCE of them. Agents older than 1.2 are not asked.

        :param hosts: cell by host; one of ANY_CELL is asked in each
        :param arguments: of the method
        :returns: one for each host, sorted by host
        :raises BusError: when a cell is unknown, or no bus can be used
        """
        questions = [(host, cell) for host, known in sorted(hosts.items())
                     for cell in ([known] if known else self.cells)]
        cells = {cell for _host, cell in questions}
        for cell in sorted(cells.difference(self.cells)):
            raise BusError(f'there is no cell {cell!r}: known are '
                           f'{", ".join(self.cells)}')
        dead = self._dead_buses(cells)
        if cells and len(dead) == len(cells):
            raise BusError(next(iter(dead.values())))
        turns = math.ceil(len(questions) / MOST_AT_ONCE)
        found = _at_once(
            [functools.partial(self._ask_one, host, cell, method, arguments,
                               dead) for host, cell in questions],
            self._timeout_s * turns + _GRACE_S + _SEND_S * len(questions))
        answers: dict[str, list[Answer[_Reply]]] = {
            host: [] for host in sorted(hosts)}
        for one, (host, cell) in zip(found, questions, strict=True):
            answers[host].append(
                one or Answer(host, cell, None, _no_answer(self._timeout_s)))
        return [_best(of_host) for of_host in answers.values()]

    def _dead_buses(self, cells: Iterable[str]) -> dict[str, str]:
        """:returns: why a bus cannot be used, by cell"""
        names = sorted(cells)
        found = _at_once([functools.partial(self._probe, name)
                          for name in names], self._timeout_s + _GRACE_S)
        return {name: f'the bus of cell {name} does not answer'
                if error is None else error
                for name, error in zip(names, found, strict=True)
                if error != ''}

    def _probe(self, cell: str) -> str:
        """:returns: why a bus cannot be used; empty: it can"""
        try:
            self.apis[cell].check_bus()
        except Exception as error:
            return (f'the bus of cell {cell} cannot be used: '
                    f'{one_line(error)}')
        return ''

    def _ask_one(self, host: str, cell: str, method: rpcapi.Method[_Reply],
                 arguments: Mapping[str, ty.Any], dead: Mapping[str, str]
                 ) -> Answer[_Reply]:
        if cell in dead:
            return Answer(host, cell, None, dead[cell])
        try:
            value = self.apis[cell].call(
                host, method, timeout=self._timeout_s, version=_LEAST_VERSION,
                at_least_once=True, **arguments)
        except Exception as error:
            return Answer(host, cell, None, reason(error, self._timeout_s))
        return Answer(host, cell, value, '')


def reason(error: Exception, timeout_s: float) -> str:
    """Why an agent gave no answer, for operators.

    :param error: of :meth:`rpcapi.AgentAPI.call`
    :param timeout_s: for which it was waited for
    """
    if isinstance(error, oslo_messaging.MessagingTimeout):
        return _no_answer(timeout_s)
    if isinstance(error, oslo_messaging.MessageUndeliverable):
        return NO_AGENT
    if isinstance(error, primitives.MessageInvalid):
        return f'its answer cannot be read: {error}'
    if rpcapi.is_too_old(error):
        return TOO_OLD
    return one_line(getattr(error, 'value', None) or error)


def _no_answer(timeout_s: float) -> str:
    return f'no answer within {timeout_s:g} s'


def _at_once(jobs: Sequence[Callable[[], _Outcome]],
             limit_s: float) -> list[_Outcome | None]:
    """Do jobs, MOST_AT_ONCE at a time.

    :param limit_s: after which those that hang are left alone
    :returns: what each returned, None where it did not return in time
    """
    done: list[_Outcome | None] = [None] * len(jobs)
    left = iter(range(len(jobs)))
    lock = threading.Lock()
    end_s = time.monotonic() + limit_s

    def work() -> None:
        # The caller gives up at the limit: no job starts after it.
        while time.monotonic() < end_s:
            with lock:
                number = next(left, None)
            if number is None:
                return
            done[number] = jobs[number]()
    threads = [threading.Thread(target=work, daemon=True)
               for _ in range(min(len(jobs), MOST_AT_ONCE))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return list(done)


def _best(answers: Sequence[Answer[_Reply]]) -> Answer[_Reply]:
    """The best answer of all cells about a host.

    One with a value, else one of a cell that knows the host.
    """
    for one in answers:
        if one.value is not None:
            return one
    known = [one for one in answers if one.error != NO_AGENT]
    best = (known or answers)[0]
    return best if len(answers) == 1 else best._replace(
        cell=best.cell if known else ANY_CELL)


def one_line(error: object) -> str:
    """The text of an exception in one line."""
    return plain_text.one_line(
        ' '.join(str(error).split())) or type(error).__name__
