# SPDX-License-Identifier: Apache-2.0
"""What a bench differs from itself by: a ratio within that is noise."""

from collections.abc import Sequence
import itertools
import typing as ty


class Noise(ty.NamedTuple):
    """The ratios of one arm to itself, from each round to the next."""

    least: float
    greatest: float

    def __str__(self) -> str:
        return f'({self.least:.2f}, {self.greatest:.2f})'


def noise(values: Sequence[float]) -> Noise | None:
    """What an arm differs from itself by, of one round against another.

    :param values: above 0, of one arm, in the order of the rounds
    :returns: None: there is a single one
    """
    found = [later / earlier for earlier, later in itertools.pairwise(values)]
    return Noise(min(found), max(found)) if found else None


def line(arm: str, values: Sequence[float]) -> str:
    """The noise of an arm, for people."""
    found = noise(values)
    return (f'{arm} against itself: not known, by a single round'
            if found is None else
            f'{arm} against itself, one round later: {found}')
