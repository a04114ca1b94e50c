# SPDX-License-Identifier: Apache-2.0
"""What servers burst at: decided by one controller, enforced by caps."""

from nova_vqos.agent import server as servers


class _Share:
    def __init__(self, _server: servers.Server) -> None:
        self.share: float | None = None


class BurstShares:
    """How many times its units each server may use now."""

    def __init__(self, known: servers.Servers) -> None:
        self._servers = known
        self._states = known.states(_Share)

    def share(self, server: servers.Server) -> float | None:
        """What a server may use: above 1; None: its units, and no more."""
        return self._states[server].share

    def change(self, server: servers.Server, share: float | None) -> None:
        """Let a server use more, or less; its cap follows."""
        state = self._states[server]
        if share != state.share:
            state.share = share
            self._servers.mark(server)
