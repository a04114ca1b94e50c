# SPDX-License-Identifier: Apache-2.0
"""Finds a server's host, and asks the agent there."""

from collections.abc import Callable
import threading
import typing as ty

from keystoneauth1 import exceptions

from nova_vqos import plain_text
from nova_vqos.vendordata import agents
from nova_vqos.vendordata import failures
from nova_vqos.vendordata import figures

# The host of each is remembered until there are as many.
_MOST_PLACES = 10_000
_NOT_FOUND = 404
_HOST = 'OS-EXT-SRV-ATTR:host'
_NAME = 'Nova'


class NovaError(Exception):
    """Nova does not say where a server is; the text says why.

    :ivar kind: the same for the same failure
    """

    def __init__(self, kind: str, text: str = '') -> None:
        super().__init__(text or kind)
        self.kind = kind


class Place(ty.NamedTuple):
    """Where Nova has a server.

    :ivar host: '': on none
    :ivar cell: where its agent answered; '': it has not yet
    """

    project_id: str
    host: str
    cell: str = ''


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
                    'no host', f'its answer has no {_HOST}: the user of '
                    '[keystone_authtoken] needs the role admin')
            return Place(str(server['tenant_id']), server[_HOST] or '')
        except (exceptions.ClientException, ValueError, KeyError,
                TypeError) as error:
            raise NovaError(type(error).__name__, plain_text.one_line(
                f'{type(error).__name__}: {error}')) from error


class Lookup:
    """Looks up the figures of one server at a time, in any thread."""

    def __init__(self, place: Callable[[str], Place | None],
                 ask: Callable[[str, str, str], agents.Answer],
                 failed: failures.Failures, nova_at_once: int) -> None:
        """
        :param place: see :meth:`NovaServers.place`
        :param ask: see :meth:`agents.Agents.ask`
        :param failed: takes that Nova fails
        :param nova_at_once: servers that Nova is asked about
        """
        self._place = place
        self._nova_free = threading.BoundedSemaphore(nova_at_once)
        self._ask_agent = ask
        self._failed = failed
        self._places: dict[str, Place] = {}

    def __call__(self, server_uuid: str) -> Found | None:
        """Look up a server.

        Nova is asked where it is only if it is not where it was last.

        :returns: None: there is no such server
        """
        known = self._places.get(server_uuid)
        if known is not None:
            found = self._ask(known, server_uuid)
            if found.figures.available or (
                    found.figures.problem == figures.Problem.BUSY):
                return found
            # It may have moved, or its host is gone.
            self._places.pop(server_uuid, None)
            if found.figures.problem != figures.Problem.NOT_RUNNING:
                return found
        project_id = known.project_id if known else ''
        # A Nova that is silent is to hold up no server whose host is known.
        if not self._nova_free.acquire(blocking=False):
            return Found(project_id, figures.missing(figures.Problem.BUSY))
        try:
            place = self._place(server_uuid)
        except NovaError as error:
            self._failed.record(_NAME, error.kind, str(error))
            return Found(project_id,
                         figures.missing(figures.Problem.NOVA_SILENT))
        finally:
            self._nova_free.release()
        self._failed.end(_NAME)
        if place is None:
            return None
        return self._ask(place, server_uuid)

    def _ask(self, place: Place, server_uuid: str) -> Found:
        answer = agents.Answer('', None, figures.Problem.NOT_RUNNING)
        if place.host:
            answer = self._ask_agent(place.host, place.cell, server_uuid)
        if answer.server is None:
            return Found(place.project_id, figures.missing(
                answer.problem or figures.Problem.HOST_SILENT))
        if len(self._places) >= _MOST_PLACES:
            self._places.clear()
        self._places[server_uuid] = place._replace(cell=answer.cell)
        return Found(place.project_id, figures.of(answer.server))
