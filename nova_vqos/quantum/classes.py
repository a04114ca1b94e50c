# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Quantum classes: how long a vCPU may run before another of its pool does.

Read by libvirt's hook, the compute driver and the agent. Pure: standard
library only.
"""

from collections.abc import Mapping
import re
import typing as ty

from nova_vqos import units

IO = 'io'
SPIN = 'spin'
CACHE = 'cache'
NEUTRAL = 'neutral'
DEFAULT = 'default'

#: Microseconds, of the classes that have a slice of their own: what was best
#: in the research (thesis 3.3). The others run with the kernel's.
DEFAULT_SLICES_US: ty.Final[Mapping[str, int]] = {
    IO: 1_000, SPIN: 1_000, CACHE: 90_000}

# What the kernel takes; it clamps the rest without a word (kernel/sched/
# syscalls.c, __setparam_fair).
MIN_SLICE_US = 100
MAX_SLICE_US = 100_000

# NOTE: not int() alone: it takes ' 60 ', '6_0', '+60' and other scripts'
# digits.
_SLICE_PATTERN = re.compile(r'[1-9][0-9]{0,5}')
_EXPECTED = (f'a whole number of microseconds from {MIN_SLICE_US} to '
             f'{MAX_SLICE_US}')


class SliceInvalid(ValueError):
    """A slice that cannot be set.

    :ivar name: of the class
    :ivar value: what was given
    :ivar expected: what it may be, in words
    """

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        super().__init__(f'the slice of {_shown(name)} is {_shown(value)}, '
                         f'it must be {expected}')


def split(text: str) -> dict[str, str]:
    """The slices in a text such as ``io:1000,cache:90000``, unchecked.

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
    """The slice of each class that has one, in microseconds.

    :param given: what an operator sets, by class; of the others the default
    :raises SliceInvalid: when a class has no slice of its own, or a slice is
        none that the kernel takes
    """
    slices = dict(DEFAULT_SLICES_US)
    for name, value in given.items():
        if name not in slices:
            raise SliceInvalid(
                name, value, 'given of '
                f'{", ".join(slices)} alone: no other class has its own')
        if not isinstance(value, str) or not _SLICE_PATTERN.fullmatch(value):
            raise SliceInvalid(name, value, _EXPECTED)
        slice_us = int(value)
        if not MIN_SLICE_US <= slice_us <= MAX_SLICE_US:
            raise SliceInvalid(name, value, _EXPECTED)
        slices[name] = slice_us
    return slices


def obtainable_run_us(slice_us: int, cap: units.CpuCap | None) -> int:
    """How long a server can run at a time at most.

    A cap cuts a long slice: when the quota is used up the server stands
    still until the next period.

    :param slice_us: of its class
    :param cap: of each vCPU; None: no limit
    """
    if cap is None or cap.quota_us >= cap.period_us:
        return slice_us
    return min(slice_us, cap.quota_us)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:76]}...'
