# SPDX-License-Identifier: Apache-2.0
"""Measurements whose rounds had two speeds."""

from collections.abc import Collection, Iterable, Iterator, Sequence
import itertools
import typing as ty

from nova_vqos import cpuset
from nova_vqos.calibration import modes
from nova_vqos.calibration.cpu.record import Rounds


class TwoSpeeds(ty.NamedTuple):
    """The two speeds of equal pCPUs in one measurement.

    :ivar pcpus: those that were measured
    """

    pcpus: tuple[int, ...]
    seen: modes.Modes

    def __str__(self) -> str:
        return f'pCPU {cpuset.format_pcpus(self.pcpus)}: {self.seen}'

    @property
    def is_serious(self) -> bool:
        """Whether a mean over all rounds would be wrong by it."""
        return self.seen.shift >= modes.MOST_SHIFT


def find(measured: Collection[Rounds],
         classes: Iterable[frozenset[int]]) -> Iterator[TwoSpeeds]:
    """Find two speeds in the rounds of a benchmark in one state.

    Where each pCPU had one of them it is no matter of rounds, but of classes
    (:mod:`nova_vqos.calibration.cpu.classes`).

    :param classes: of equal pCPUs
    """
    for pcpus in classes:
        scores = {pcpu: own for pcpu in sorted(pcpus)
                  if (own := [score for rounds in measured
                              for score in rounds.scores({pcpu})])}
        seen = modes.find(list(itertools.chain(*scores.values())))
        if seen and not _is_of_pcpus(seen, scores.values()):
            yield TwoSpeeds(tuple(scores), seen)


def _is_of_pcpus(seen: modes.Modes,
                 scores: Collection[Sequence[float]]) -> bool:
    """Whether nearly all rounds of each pCPU are in one mode.

    :param scores: of each pCPU
    """
    strays = 0
    for own in scores:
        slow = sum(score < seen.boundary for score in own)
        strays += min(slow, len(own) - slow)
    return strays < modes.LEAST_SHARE * sum(map(len, scores))
