# SPDX-License-Identifier: Apache-2.0
"""Answers within a deadline, and the same one again for a while.

Guests read as often as they like, and what is asked may hang. So no server is
looked up twice at a time, or within some seconds, and only so many servers at
once; what hangs is left alone, and counts until it ends.
"""

from collections.abc import Callable
from concurrent import futures
import functools
import logging
import threading
import time
import typing as ty

from nova_vqos.vendordata import figures
from nova_vqos.vendordata import lookup
from nova_vqos.vendordata import workers

LOG = logging.getLogger(__name__)

_Future = futures.Future[lookup.Found | None]


class _Entry(ty.NamedTuple):
    future: _Future
    begun_at_s: float


class Answers:
    """The figures of any server."""

    def __init__(self, look_up: Callable[[str], lookup.Found | None], *,
                 keep_s: float, most_lookups: int,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        :param look_up: see :class:`lookup.Lookup`
        :param keep_s: for which an answer is given again
        :param most_lookups: at once
        :param clock: in seconds
        """
        self._look_up = look_up
        self._keep_s = keep_s
        self._workers = workers.Workers('lookup', most_lookups)
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def get(self, server_uuid: str, project_id: str, wait_s: float
            ) -> figures.Figures | None:
        """The figures of a server of this project.

        :param wait_s: after which there is an answer, whatever it is
        :returns: None: the project has no such server
        """
        with self._lock:
            future = self._future(server_uuid)
        if future is None:
            return figures.missing(figures.Problem.BUSY)
        try:
            found = future.result(wait_s)
        except TimeoutError:
            return figures.missing(figures.Problem.HOST_SILENT)
        if found is None:
            return None
        if found.project_id != project_id and (
                found.project_id or found.figures.available):
            LOG.warning('Figures of server %s were asked for in the name of '
                        'project %s, which does not own it: refused',
                        server_uuid, project_id)
            return None
        return found.figures

    def _future(self, server_uuid: str) -> _Future | None:
        """What gives the answer; None: there are too many lookups."""
        now_s = self._clock()
        known = self._entries.get(server_uuid)
        if known is not None and self._holds(known, now_s):
            return known.future
        self._entries = {uuid: entry for uuid, entry in self._entries.items()
                         if self._holds(entry, now_s)}
        future = self._workers.start(
            functools.partial(self._found, server_uuid))
        if future is not None:
            self._entries[server_uuid] = _Entry(future, now_s)
        return future

    def _holds(self, entry: _Entry, now_s: float) -> bool:
        if not entry.future.done():
            return True
        found = entry.future.result()
        # That may have changed by now.
        is_busy = found is not None and (
            found.figures.problem == figures.Problem.BUSY)
        return not is_busy and now_s - entry.begun_at_s < self._keep_s

    def _found(self, server_uuid: str) -> lookup.Found | None:
        try:
            return self._look_up(server_uuid)
        except Exception:
            LOG.exception('The figures of server %s cannot be looked up',
                          server_uuid)
            return lookup.Found('', figures.missing(
                figures.Problem.HOST_SILENT))
