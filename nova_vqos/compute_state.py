# SPDX-License-Identifier: Apache-2.0
"""The latest stats of a compute node, from its driver to its agent.

Nova's API does not show the stats of a compute node. So the compute driver
writes them to a file, and the agent sends them to the command line, which then
decides by the same stats as the scheduler. Imports neither Nova nor libvirt.
"""

from collections.abc import Mapping, Sequence
import json
import logging
import types
import typing as ty

from nova_vqos import files
from nova_vqos import primitives
from nova_vqos import utc

LOG = logging.getLogger(__name__)

_VERSION = 1
_MAX_BYTES = 128 * 1024
# So that they fit beside the stats, whatever characters they have.
_MOST_MOVES = 20
_MOST_REASON = 300
#: Likewise.
MOST_ALARMS = 20
MOST_SOURCES = 100

#: The driver writes the state each minute, and at each claim of a server.
MAX_AGE_S = 300


class ComputeState(ty.NamedTuple):
    """The last report of a compute service.

    :ivar at: ISO 8601, UTC
    :ivar stats: our stats of its compute node
    :ivar terms: what the caps of the host depend on besides its pCPUs: tick_us
        and the fields of :class:`nova_vqos.cputune.Periods`; empty where the
        host has no profile
    :ivar stock_servers: how many servers without units are on the host; None:
        not counted yet
    :ivar stock_cu: CU that are reserved for them; None: none are
    :ivar work_cu: CU that are reserved for what servers with ``vqos:work``
        take beyond their units
    :ivar moves: by UUID of servers that are to move here cold, why the host
        cannot take them; '': it can, and holds their room
    :ivar alarms: what an operator has to see to
    :ivar sources: by UUID of servers that came lately, or are to come at once,
        the host that they came from
    """

    at: str
    stats: Mapping[str, str]
    terms: Mapping[str, int]
    stock_servers: int | None = None
    stock_cu: int | None = None
    work_cu: int = 0
    moves: Mapping[str, str] = types.MappingProxyType({})
    alarms: tuple[str, ...] = ()
    sources: Mapping[str, str] = types.MappingProxyType({})


class Writer:
    """Writes the state; logs the first of consecutive failures."""

    def __init__(self, path: str) -> None:
        """Prepare; nothing is written yet."""
        self._path = path
        self._failed = False

    def write(self, stats: Mapping[str, str],
              terms: Mapping[str, int],
              stock_load: tuple[int, int | None] | None = None,
              work_cu: int = 0,
              moves: Mapping[str, str] = types.MappingProxyType({}),
              alarms: Sequence[str] = (),
              sources: Mapping[str, str] = types.MappingProxyType({})
              ) -> None:
        """Write the state. Never raises: no server depends on it.

        :param stats: see :class:`ComputeState`
        :param terms: likewise
        :param stock_load: stock_servers and stock_cu, likewise; None: they
            were not counted yet
        :param work_cu: likewise
        :param moves: likewise; of more than can be written the last count
        :param alarms: likewise
        :param sources: likewise; of more than can be written the last count
        """
        servers, cu = stock_load or (None, None)
        try:
            # Not durable: it is written again each minute.
            files.write(json.dumps({
                'version': _VERSION, 'at': utc.text(),
                'stats': dict(stats), 'terms': dict(terms),
                'stock_servers': servers, 'stock_cu': cu,
                'work_cu': work_cu,
                'moves': {uuid: reason[:_MOST_REASON] for uuid, reason
                          in list(moves.items())[-_MOST_MOVES:]},
                'alarms': [text[:_MOST_REASON]
                           for text in alarms[-MOST_ALARMS:]],
                'sources': dict(list(sources.items())[-MOST_SOURCES:])}),
                self._path, durable=False)
        except Exception as error:
            if not self._failed:
                LOG.warning(
                    'Stats cannot be written to the file of [vqos] '
                    'compute_state_path, nova-vqos-manage cannot check which '
                    'servers this host can take: %s', error)
            self._failed = True
        else:
            self._failed = False


def load(path: str) -> ComputeState | None:
    """The last report of the compute service; None: there is no file.

    :raises ValueError: when the file cannot be used, with the reason
    """
    try:
        # It is in a directory of Nova's user.
        with files.open_regular(path, follow=False) as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, files.FileUnsafe) as error:
        raise ValueError(str(error)) from error
    if len(content) > _MAX_BYTES:
        raise ValueError(f'{path} is longer than {_MAX_BYTES} bytes')
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f'{path} is no JSON') from None
    if not isinstance(document, dict) or document.get('version') != _VERSION:
        raise ValueError(f'{path} is of another version')
    return primitives.parse(ComputeState, document)
