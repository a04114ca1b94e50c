# SPDX-License-Identifier: Apache-2.0
"""Quantum classes: how long a vCPU may run before another one does.

libvirt's hook, the compute driver and the agent use it. Pure.
"""

from collections.abc import Mapping
import re

from nova_vqos import units

IO = 'io'
SPIN = 'spin'
CACHE = 'cache'
NEUTRAL = 'neutral'
DEFAULT = 'default'
#: The agent recognises the class.
AUTO = 'auto'

#: Classes that a host treats in a way of their own, the most impatient first.
SPECIAL = (IO, SPIN, CACHE)
#: The best slices of the research (thesis 3.3), among equals.
RESEARCHED_US: Mapping[str, int] = {IO: 1_000, SPIN: 1_000, CACHE: 90_000}
#: Classes with a slice of their own; the others run with the kernel's. That
#: of cache is a turn among equals. That of io is none: a vCPU with a shorter
#: slice than others has an earlier deadline, so it gets its pCPU as it wakes,
#: and keeps it for the slice.
SLICED = (IO, CACHE)
#: Their slices in microseconds. That of io depends on the kernel: unless it is
#: given, the probe finds one at each boot.
DEFAULT_SLICES_US: Mapping[str, int] = {CACHE: RESEARCHED_US[CACHE]}
#: Classes whose slice holds only among equals: these are put into pools.
POOLED = frozenset((CACHE,))
# Classes that had a slice: what configurations give for them has no effect.
_RETIRED = frozenset((SPIN,))

# NOTE: the kernel silently clamps any other slice (kernel/sched/syscalls.c,
# __setparam_fair).
MIN_SLICE_US = 100
MAX_SLICE_US = 100_000

# NOTE: int() alone accepts ' 60 ', '6_0', '+60' and digits of any script.
_SLICE = '[1-9][0-9]{0,5}'
_EXPECTED = (f'a whole number of microseconds from {MIN_SLICE_US} to '
             f'{MAX_SLICE_US}')


class SliceInvalid(ValueError):
    """A slice that cannot be set."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        """
        :param name: of the class
        :param expected: in words, for the message
        """
        super().__init__(f'the slice of {quoted(name)} is {quoted(value)}, '
                         f'it must be {expected}')


def split(text: str) -> dict[str, str]:
    """Split a text such as ``io:300,cache:90000``; values are unchecked.

    :raises SliceInvalid: when it has another form, or a class twice
    """
    given: dict[str, str] = {}
    for pair in filter(str.strip, text.split(',')):
        name, colon, value = (part.strip() for part in pair.partition(':'))
        if not colon:
            raise SliceInvalid(name, '', 'given as CLASS:MICROSECONDS')
        if name in given:
            raise SliceInvalid(name, value, 'given once')
        given[name] = value
    return given


def slices_us(given: Mapping[str, str]) -> Mapping[str, int]:
    """The slice of each class that has a known one, in microseconds.

    :param given: by class, as an operator sets them; cache has a default
    :raises SliceInvalid: when a class has no slice of its own, or the kernel
        does not accept a slice
    """
    slices = dict(DEFAULT_SLICES_US)
    for name, value in given.items():
        if name in _RETIRED:
            continue
        if name not in SLICED:
            raise SliceInvalid(
                name, value, 'left out: only '
                f'{", ".join(SLICED)} have a slice of their own')
        if not isinstance(value, str) or not re.fullmatch(_SLICE, value):
            raise SliceInvalid(name, value, _EXPECTED)
        slice_us = int(value)
        if not MIN_SLICE_US <= slice_us <= MAX_SLICE_US:
            raise SliceInvalid(name, value, _EXPECTED)
        slices[name] = slice_us
    return slices


def obtainable_run_us(slice_us: int, cap: units.CpuCap | None) -> int:
    """The longest time that a vCPU can run at once.

    A cap cuts a long slice: a vCPU without quota waits for the next period.

    :param slice_us: of its class
    :param cap: of each vCPU; None: no limit
    """
    if cap is None or cap.quota_us >= cap.period_us:
        return slice_us
    return min(slice_us, cap.quota_us)


def quoted(value: object) -> str:
    """A value for an error message, cut at 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:76]}...'
