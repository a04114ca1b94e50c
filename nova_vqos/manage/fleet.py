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

"""Asks the agents of all hosts at once."""

from collections.abc import Callable, Mapping
import functools
import threading
import time
import typing as ty

import oslo_messaging

from nova_vqos.agent import rpcapi
from nova_vqos.manage import errors

# What a host's cell is called when nobody knows it: all are asked.
ANY_CELL = ''
# The least version of agents that answer what is asked here.
_VERSION = '1.2'
# NOTE: oslo.messaging waits for a bus that is down without a limit when it
# begins to listen for answers. The threads that hang so are left behind.
_GRACE_S = 5.0
# What it takes to send a question, at the most; they are sent in turn.
_SEND_S = 0.02
# What is said of those that give no answer.
TOO_OLD = f'the agent is older than {_VERSION}: upgrade it'
NO_AGENT = 'the bus knows no agent by this name'


class Answer(ty.NamedTuple):
    """What became of a question to one host.

    :ivar host: who was asked
    :ivar cell: where; empty: nobody knows, and none of all cells answered
    :ivar value: what it answered, None: see error
    :ivar error: why there is no value, in words; empty: there is
    """

    host: str
    cell: str
    value: dict[str, ty.Any] | None
    error: str


class Fleet:
    """The agents of all cells.

    All are asked at once, each in a thread of its own: oslo.messaging has no
    other way, and most of the threads only wait.
    """

    def __init__(self, cells: Mapping[str, ty.Any], *,
                 exchange: str = rpcapi.EXCHANGE, topic: str = rpcapi.TOPIC,
                 timeout_s: float = 3.0) -> None:
        """Prepare; nothing is connected yet.

        :param cells: RPC transport of each cell, by its name
        :param exchange: as the agents' [vqos_agent] exchange
        :param topic: as the agents' [vqos_agent] topic
        :param timeout_s: within which an agent has to answer
        """
        self.timeout_s = timeout_s
        # retry=0: None, the default, would wait for a dead bus for ever.
        # A host that has no queue is known at once, by at_least_once.
        self._clients = {
            name: oslo_messaging.get_rpc_client(
                transport, oslo_messaging.Target(
                    exchange=exchange, topic=topic, version=_VERSION),
                retry=0, timeout=timeout_s,
                serializer=oslo_messaging.NoOpSerializer(),
                transport_options=oslo_messaging.TransportOptions(
                    at_least_once=True))
            for name, transport in cells.items()}

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of all cells."""
        return tuple(self._clients)

    def ask(self, hosts: Mapping[str, str], method: str,
            **arguments: ty.Any) -> list[Answer]:
        """Ask hosts all at once.

        However many do not answer cost one timeout altogether.

        :param hosts: cell by host; one of ANY_CELL is asked in each
        :param method: of :class:`nova_vqos.agent.manager.AgentManager`
        :param arguments: of the method
        :returns: one for each host, sorted by host
        :raises ManageError: when a cell is unknown, or no bus can be reached
        """
        questions = [(host, cell) for host, known in sorted(hosts.items())
                     for cell in ([known] if known else self._clients)]
        cells = {cell for _host, cell in questions}
        for cell in cells - self._clients.keys():
            raise errors.ManageError(
                f'there is no cell {cell!r}: known are '
                f'{", ".join(self._clients)}')
        dead = self._dead_buses(cells)
        if cells and len(dead) == len(cells):
            raise errors.ManageError(next(iter(dead.values())))
        found = _at_once(
            [functools.partial(self._ask_one, host, cell, method, arguments,
                               dead)
             for host, cell in questions],
            self.timeout_s + _GRACE_S + _SEND_S * len(questions))
        answers: dict[str, list[Answer]] = {host: [] for host in sorted(hosts)}
        for one, (host, cell) in zip(found, questions, strict=True):
            answers[host].append(
                one or Answer(host, cell, None, self._silence()))
        return [_best(said) for said in answers.values()]

    def _dead_buses(self, cells: ty.Iterable[str]) -> dict[str, str]:
        """:returns: why a bus cannot be used, by cell"""
        names = sorted(cells)
        found = _at_once([functools.partial(self._probe, name)
                          for name in names], self.timeout_s + _GRACE_S)
        return {name: f'the bus of cell {name} does not answer'
                if error is None else error
                for name, error in zip(names, found, strict=True)
                if error != ''}

    def _probe(self, cell: str) -> str:
        """:returns: why a bus cannot be used; empty: it can"""
        try:
            # Nobody listens on this topic: the bus drops it.
            self._clients[cell].prepare(
                topic='vqos-manage', transport_options=None).cast({}, 'none')
        except Exception as error:
            return (f'the bus of cell {cell} cannot be used: '
                    f'{errors.one_line(error)}')
        return ''

    def _ask_one(self, host: str, cell: str, method: str,
                 arguments: Mapping[str, ty.Any],
                 dead: Mapping[str, str]) -> Answer:
        if cell in dead:
            return Answer(host, cell, None, dead[cell])
        try:
            value = self._clients[cell].prepare(server=host).call(
                {}, method, **arguments)
        except Exception as error:
            return Answer(host, cell, None, self._reason(error))
        return Answer(host, cell, value, '')

    def _silence(self) -> str:
        return f'no answer within {self.timeout_s:g} s'

    def _reason(self, error: Exception) -> str:
        if isinstance(error, oslo_messaging.MessagingTimeout):
            return self._silence()
        if isinstance(error, oslo_messaging.MessageUndeliverable):
            return NO_AGENT
        kind = getattr(error, 'exc_type', None) or type(error).__name__
        if kind.startswith(('UnsupportedVersion', 'NoSuchMethod')):
            return TOO_OLD
        return errors.one_line(getattr(error, 'value', None) or error)


def _at_once(jobs: ty.Sequence[Callable[[], ty.Any]],
             limit_s: float) -> list[ty.Any]:
    """Do jobs, each in a thread of its own.

    :param limit_s: after which those that hang are left alone
    :returns: what each returned, None where it did not return in time
    """
    done: list[ty.Any] = [None] * len(jobs)

    def work(number: int) -> None:
        done[number] = jobs[number]()
    threads = [threading.Thread(target=work, args=(number,), daemon=True)
               for number in range(len(jobs))]
    end_s = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return list(done)


def _best(answers: ty.Sequence[Answer]) -> Answer:
    """The one of all cells that says most of a host.

    One that answers, else the one that has heard of it.
    """
    for one in answers:
        if one.value is not None:
            return one
    heard = [one for one in answers if one.error != NO_AGENT]
    best = (heard or answers)[0]
    return best if len(answers) == 1 else best._replace(
        cell=best.cell if heard else ANY_CELL)
