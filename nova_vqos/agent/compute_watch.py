# SPDX-License-Identifier: Apache-2.0
"""Follows what nova-compute reports of this host, when its file changes."""

from collections.abc import Mapping
import contextlib

from nova_vqos import compute_state
from nova_vqos import files


class ComputeWatch:
    """What nova-compute counted last, which the agent cannot see.

    What cannot be read changes nothing: the servers are still there.

    :ivar stock_cu: CU that servers without units can use, those that are
        stopped included
    :ivar work_cu: CU that other servers take beyond their units
    :ivar sources: by UUID of servers that came lately, the host that they came
        from
    """

    def __init__(self, path: str) -> None:
        """Prepare; nothing is read yet.

        :param path: see :mod:`nova_vqos.compute_state`
        """
        self.stock_cu = self.work_cu = 0
        self.sources: Mapping[str, str] = {}
        self._path = path
        self._identity: tuple[int, ...] | None = None

    def poll(self) -> None:
        """Read the file, if it changed."""
        identity = files.identity(self._path)
        if identity == self._identity:
            return
        self._identity = identity
        with contextlib.suppress(ValueError):
            found = compute_state.load(self._path)
            if found is not None:
                self.stock_cu = found.stock_cu or 0
                self.work_cu = found.work_cu
                self.sources = found.sources
