# SPDX-License-Identifier: Apache-2.0
"""Finds a server's host, and asks the agent there."""

from collections.abc import Callable, Iterable
import logging
import threading
import typing as ty

from keystoneauth1 import exceptions
import oslo_messaging

from nova_vqos import plain_text
from nova_vqos.agent import messages
from nova_vqos.agent import rpcapi
from nova_vqos.vendordata import figures

LOG = logging.getLogger(__name__)

# The host of each is remembered until there are as many.
_MOST_PLACES = 10_000
_NOT_FOUND = 404
_HOST = 'OS-EXT-SRV-ATTR:host'


class NovaError(Exception):
    """Nova does not say where a server is; the text says why."""


class Place(ty.NamedTuple):
    """Where Nova has a server.

    :ivar host: '': on none
    """

    project_id: str
    host: str


class Found(ty.NamedTuple):
    """The figures of a server, and whose they are.

    :ivar project_id: '': it is not known
    """

    project_id: str
    figures: figures.Figures


class NovaServers:
    """Where servers are, as Nova's API says."""

    def __init__(self, adapter: ty.Any) -> None:
        """
        :param adapter: keystoneauth1.adapter.Adapter of the compute service,
            of a user that may see the host of any server
        """
        self._adapter = adapter

    def place(self, server_uuid: str) -> Place | None:
        """Where a server is; None: there is none of this UUID.

        :raises NovaError: when Nova does not answer, or does not say
        """
        try:
            answer = self._adapter.get(f'/servers/{server_uuid}',
                                       raise_exc=False)
            if answer.status_code == _NOT_FOUND:
                return None
            if not answer.ok:
                raise NovaError(f'status {answer.status_code}')
            server = answer.json()['server']
            if _HOST not in server:
                raise NovaError(
                    f'its answer has no {_HOST}: the user of '
                    '[keystone_authtoken] needs the role admin')
            return Place(str(server['tenant_id']), server[_HOST] or '')
        except (exceptions.ClientException, ValueError, KeyError,
                TypeError) as error:
            raise NovaError(plain_text.one_line(
                f'{type(error).__name__}: {error}')) from error


class Lookup:
    """Looks up the figures of one server at a time, in any thread."""

    def __init__(self, place: Callable[[str], Place | None],
                 agents: Iterable[rpcapi.AgentAPI],
                 timeout_s: float) -> None:
        """
        :param place: see :meth:`NovaServers.place`
        :param agents: those of each cell
        :param timeout_s: within which an agent has to answer
        """
        self._place = place
        self._agents = tuple(agents)
        self._timeout_s = timeout_s
        self._places: dict[str, Place] = {}
        # Whether the last answer was a failure, by what was asked.
        self._failures: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, server_uuid: str) -> Found | None:
        """Look up a server.

        Nova is asked where it is only if it is not where it was last.

        :returns: None: there is no such server
        """
        known = self._places.get(server_uuid)
        if known is not None:
            found = self._ask(known, server_uuid)
            if found.figures.available:
                return found
            # It may have moved, or its host is gone.
            self._places.pop(server_uuid, None)
            if found.figures.problem != figures.Problem.NOT_RUNNING:
                return found
        try:
            place = self._place(server_uuid)
        except NovaError as error:
            self._record('Nova', str(error))
            return Found(known.project_id if known else '',
                         figures.missing(figures.Problem.NOVA_SILENT))
        self._record('Nova', '')
        if place is None:
            return None
        found = self._ask(place, server_uuid)
        if found.figures.available:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            self._places[server_uuid] = place
        return found

    def _ask(self, place: Place, server_uuid: str) -> Found:
        problem = figures.Problem.NOT_RUNNING
        if place.host:
            answer = self._ask_agents(place.host, server_uuid)
            if isinstance(answer, messages.ServerDetail):
                return Found(place.project_id, figures.of(answer))
            problem = answer
        return Found(place.project_id, figures.missing(problem))

    def _ask_agents(self, host: str, server_uuid: str
                    ) -> messages.ServerDetail | figures.Problem:
        """Ask the agents of this host in all cells, until one answers."""
        failure = ''
        for api in self._agents:
            try:
                found = api.call(
                    host, rpcapi.GET_SERVER, timeout=self._timeout_s,
                    at_least_once=True, server_uuid=server_uuid)
            except rpcapi.UnknownServer:
                self._record(f'the agent of {host}', '')
                return figures.Problem.NOT_RUNNING
            except oslo_messaging.MessageUndeliverable:
                failure = failure or 'no agent of this name is on the bus'
            except Exception as error:
                # Whatever the bus or its driver raises.
                failure = plain_text.one_line(
                    f'{type(error).__name__}: {error}')
            else:
                self._record(f'the agent of {host}', '')
                return found
        self._record(f'the agent of {host}', failure)
        return figures.Problem.HOST_SILENT

    def _record(self, asked: str, failure: str) -> None:
        """Log a failure once, and its end."""
        with self._lock:
            before = self._failures.pop(asked, '')
            if failure:
                self._failures[asked] = failure
        if failure and failure != before:
            LOG.warning('Guests of servers read no figures, since %s does '
                        'not answer: %s', asked, failure)
        elif before and not failure:
            LOG.info('Guests of servers read figures again: %s answers',
                     asked)
