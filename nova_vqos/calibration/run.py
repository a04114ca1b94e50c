# SPDX-License-Identifier: Apache-2.0
"""What the measurements of CPUs, of I/O and of slices have in common."""

import dataclasses
import typing as ty

#: A host that is busier than this before, or loses more of its time to a
#: hypervisor below it, gets a warning.
BUSY_WARNING = 0.05
STEAL_WARNING = 0.01

Part = ty.TypeVar('Part')


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    :ivar max_rounds: of each measurement
    :ivar max_s: wall time of all measurements together; each has the least
        rounds that it needs, however long they take
    :ivar max_interval: relative to a coefficient; a narrower one is enough
    """

    max_rounds: int
    max_s: float = 240
    max_interval: float = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Result(ty.Generic[Part]):
    """A part of a profile, or a whole one, and what may be wrong with it."""

    measured: Part
    warnings: tuple[str, ...]


class Observations:
    """Observations during a measurement.

    :ivar provenance: facts by name, for the profile
    """

    def __init__(self) -> None:
        self.provenance: dict[str, str] = {}
        self._warnings: dict[str, None] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may be wrong with the result, each text once."""
        return tuple(self._warnings)

    def warn(self, *warnings: str) -> None:
        self._warnings |= dict.fromkeys(warnings)

    def warn_of_steal(self, share: float, when: str = '') -> None:
        """:param share: of the pCPUs' time"""
        if share > STEAL_WARNING:
            self.warn(f'{share:.1%} of the time was stolen by a hypervisor '
                      f'below this host{when}')
