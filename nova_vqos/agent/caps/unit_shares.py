# SPDX-License-Identifier: Apache-2.0
"""How much of its units a server may use: less by a ceiling, more in a burst.

One controller decides, and caps enforces.
"""

from nova_vqos.agent import server as servers


class _Share:
    def __init__(self, _server: servers.Server) -> None:
        self.share: float | None = None


class UnitShares:
    """How many times its units each server may use, by one controller."""

    def __init__(self, known: servers.Servers) -> None:
        self._servers = known
        self._states = known.states(_Share)

    def share(self, server: servers.Server) -> float | None:
        """What a server may use: below 1 by a ceiling, above 1 in a burst;
        None: its units.
        """
        return self._states[server].share

    def change(self, server: servers.Server, share: float | None) -> None:
        """Let a server use more, or less; its cap follows."""
        state = self._states[server]
        if share != state.share:
            state.share = share
            self._servers.mark(server)
