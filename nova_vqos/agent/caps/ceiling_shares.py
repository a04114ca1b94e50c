# SPDX-License-Identifier: Apache-2.0
"""What ceilings leave servers: decided by one controller, enforced by caps."""

from nova_vqos.agent import server as servers


class _Share:
    def __init__(self, _server: servers.Server) -> None:
        self.share: float | None = None


class Shares:
    """The part of its units that its project's ceiling leaves each server."""

    def __init__(self, known: servers.Servers) -> None:
        self._servers = known
        self._states = known.states(_Share)

    def share(self, server: servers.Server) -> float | None:
        """What a server is left; None: all of its units."""
        return self._states[server].share

    def change(self, server: servers.Server, share: float | None) -> None:
        """Leave a server more, or less; its cap follows."""
        state = self._states[server]
        if share != state.share:
            state.share = share
            self._servers.mark(server)
