# SPDX-License-Identifier: Apache-2.0
"""What was measured of servers on this and on other hosts, in a file.

An agent that starts again goes on with it, and the host that a server moved to
asks for it.
"""

from collections.abc import Mapping
import json
import logging
import typing as ty

from nova_vqos import files
from nova_vqos import primitives
from nova_vqos import speeds as records

LOG = logging.getLogger(__name__)

SCHEMA = 1
# Beyond it those of servers that were measured longest ago are dropped.
MOST_SERVERS = 1_000


class _Document(ty.NamedTuple):
    """The content of the file.

    :ivar servers: by UUID
    """

    schema: int
    servers: Mapping[str, records.Speeds]


class Store:
    """Speeds of servers, by UUID. Of one thread, but for :meth:`write`.

    :ivar problem: why the file cannot be written, or was ignored; '': none
    """

    def __init__(self, path: str) -> None:
        """Prepare; nothing is read yet.

        :param path: '': all is kept in memory alone
        """
        self.problem = ''
        self._path = path
        self._servers: dict[str, records.Speeds] = {}
        self._is_changed = False

    @property
    def is_changed(self) -> bool:
        """Whether the file lacks anything."""
        return self._is_changed

    def load(self) -> None:
        """Read the file; log and ignore an invalid one."""
        try:
            found = primitives.parse(
                _Document, json.loads(files.read(self._path)))
            if found.schema != SCHEMA:
                raise ValueError(f'its schema is {found.schema}, this agent '
                                 f'knows {SCHEMA}')
            self._servers = dict(found.servers)
        except files.FileMissing:
            return
        except (files.FileError, ValueError, RecursionError) as error:
            self._record_problem(f'{self._path} is ignored, the speeds of '
                                 f'servers are measured anew: {error}')

    def get(self, uuid: str) -> records.Speeds | None:
        """What was measured of a server; None: nothing."""
        return self._servers.get(uuid)

    def put(self, uuid: str, speeds: records.Speeds | None) -> None:
        """Replace what was measured of a server.

        :param speeds: None: nothing was
        """
        if speeds == self.get(uuid):
            return
        self._is_changed = True
        # Last in the order of the dictionary.
        self._servers.pop(uuid, None)
        if speeds is not None:
            self._servers[uuid] = speeds
        while len(self._servers) > MOST_SERVERS:
            del self._servers[next(iter(self._servers))]

    def text(self) -> str | None:
        """The content for the file; None: it has not changed."""
        if not self._is_changed:
            return None
        self._is_changed = False
        return json.dumps(primitives.to_primitives(
            _Document(SCHEMA, self._servers)))

    def write(self, text: str | None) -> None:
        """Write the file; may block. Never raises.

        :param text: see :meth:`text`; None: nothing is written
        """
        if text is None or not self._path:
            return
        try:
            # Not durable: it can be measured again.
            files.write(text, self._path, durable=False, mode=0o600)
        except (OSError, UnicodeError) as error:
            self._record_problem(
                f'{self._path} cannot be written: {error}')
            self._is_changed = True
        else:
            self.problem = ''

    def _record_problem(self, problem: str) -> None:
        if problem != self.problem:
            LOG.error('Speeds of servers: %s', problem)
        self.problem = problem
