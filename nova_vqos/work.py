# SPDX-License-Identifier: Apache-2.0
"""Kinds of work, and mixes of them: the values of ``vqos:work``.

A kind is the name of a benchmark in the reference. Pure: standard library
only; what a mix costs on a host is in :mod:`nova_vqos.core_types`. With the
value AUTO the agent learns a server's own speed instead: see
:mod:`nova_vqos.agent.correction`.
"""

from collections.abc import Mapping
import functools
import re

from nova_vqos import light_typing
from nova_vqos import units

MOST_KINDS = 8
MOST_WEIGHT = 1000
#: Of Nova, for the value of an extra spec.
MOST_CHARACTERS = 255

#: No kind: the units follow the measured speed of the server.
AUTO = 'auto'

KIND = '[a-z0-9][a-z0-9-]{0,31}'
# NOTE: not float() alone: it accepts 'inf', '1e3', '1_0' and other scripts'
# digits.
_WEIGHT = r'[0-9]{1,4}(?:\.[0-9]{1,6})?'
_PART = f'{KIND}:{_WEIGHT}'
#: The form of all values, for forms of others: a weight of 0 has it too, and a
#: kind that is there twice.
PATTERN = f'^(?:{KIND}|{_PART}(?:,{_PART}){{0,{MOST_KINDS - 1}}})$'

EXPECTED = (f'{AUTO}, a kind of work such as integer, or 1 to {MOST_KINDS} '
            f'different kinds with weights above 0 and up to {MOST_WEIGHT}, '
            'such as integer:0.5,hash:0.5')


class KindMissing(units.UnitsError):
    """A host was not measured with a kind of work.

    :ivar kind: its name
    """

    def __init__(self, kind: str, measured: Mapping[str, float]) -> None:
        self.kind = kind
        super().__init__(
            f'vqos:work has {kind!r}, of which the profile of this host has '
            f'no score: it has {", ".join(measured) or "none"}')


class KindUnsure(units.UnitsError):
    """Too little is known of how fast a host is in a kind of work."""

    def __init__(self, kind: str, width: float) -> None:
        """
        :param kind: its name
        :param width: of the confidence interval, relative to the coefficient
        """
        super().__init__(
            f'vqos:work has {kind!r}, and the interval of its coefficient on '
            f'this host is {width:.1%} wide, more than [vqos] '
            'profile_max_interval: measure it again')


class Mix(light_typing.NamedTuple):
    """Kinds of work, and the weight of each.

    :ivar weights: by kind, as pairs
    """

    weights: tuple[tuple[str, float], ...]

    def check(self, measured: Mapping[str, float]) -> None:
        """
        :param measured: coefficient of each kind
        :raises KindMissing: when one has none
        """
        for kind, _weight in self.weights:
            if kind not in measured:
                raise KindMissing(kind, measured)

    def check_intervals(self, wide: Mapping[str, float]) -> None:
        """
        :param wide: kinds of which too little is known, and their intervals
        :raises KindUnsure: when the mix has one of them
        """
        for kind, _weight in self.weights:
            if kind in wide:
                raise KindUnsure(kind, wide[kind])

    def coefficient(self, measured: Mapping[str, float]) -> float:
        """That of the mix on a pCPU, see :func:`units.mean_coefficient`.

        :param measured: coefficient of each kind
        :raises KindMissing: when one has none
        """
        self.check(measured)
        return units.mean_coefficient(
            (weight, measured[kind]) for kind, weight in self.weights)


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Mix | None:
    """A mix from its text, such as ``integer`` or ``integer:0.5,hash:0.5``.

    :returns: None: it is AUTO
    :raises ValueError: when it is something else
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(EXPECTED)
    if text == AUTO:
        return None
    if re.fullmatch(KIND, text):
        return Mix(((text, 1.0),))
    weights: dict[str, float] = {}
    for part in text.split(','):
        kind, _colon, weight = part.partition(':')
        if (not re.fullmatch(KIND, kind) or kind in weights
                or kind == AUTO
                or not re.fullmatch(_WEIGHT, weight)
                or not 0 < float(weight) <= MOST_WEIGHT):
            raise ValueError(EXPECTED)
        weights[kind] = float(weight)
    if len(weights) > MOST_KINDS:
        raise ValueError(EXPECTED)
    return Mix(tuple(weights.items()))
