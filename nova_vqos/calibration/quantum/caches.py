# SPDX-License-Identifier: Apache-2.0
"""How long the lists are that servers walk: within a cache, or beyond it."""

from collections.abc import Callable
import dataclasses
import pathlib
import re

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import loads

#: A walk that takes less than this part of what one beyond the last-level
#: cache takes is one within it.
CACHED = 0.5

_MULTIPLES = {'': 1, 'K': 1024, 'M': 1024 ** 2, 'G': 1024 ** 3}
# Beyond the largest one there is.
_MOST_BYTES = 4 * 1024 ** 3


@dataclasses.dataclass(frozen=True, slots=True)
class Caches:
    """Sizes of a pCPU's caches, by the kernel.

    :ivar private_bytes: the largest that it shares with its siblings alone
    :ivar last_bytes: the last level's
    """

    private_bytes: int
    last_bytes: int

    @property
    def neutral_lines(self) -> int:
        """Of a list that the pCPU's own cache holds twice."""
        return _power_of_two(self.private_bytes // 2)

    @property
    def half_lines(self) -> int:
        """Of a list that takes half of the last level at most."""
        return _power_of_two(self.last_bytes // 2)

    @property
    def beyond_lines(self) -> int:
        """Of a list that the last level cannot hold by half."""
        return 2 * _power_of_two(2 * self.last_bytes - loads.LINE_BYTES)


def of_pcpu(pcpu: int, sysroot: str = '/') -> Caches:
    """
    :raises CalibrationError: when the kernel does not know them
    """
    base = pathlib.Path(sysroot, f'sys/devices/system/cpu/cpu{pcpu}')
    sizes: dict[int, int] = {}
    for directory in base.glob('cache/index*'):
        try:
            if (directory / 'type').read_text().strip() == 'Instruction':
                continue
            level = int((directory / 'level').read_text())
            sizes[level] = _bytes((directory / 'size').read_text().strip())
        except (OSError, ValueError):
            continue
    if len(sizes) < 2:
        raise CalibrationError(
            f'the kernel does not know the sizes of caches of pCPU {pcpu}')
    *_, private, last = (sizes[level] for level in sorted(sizes))
    if last > _MOST_BYTES:
        raise CalibrationError(
            f'a last-level cache of {last} bytes, as the kernel has it of '
            f'pCPU {pcpu}, is implausible')
    return Caches(min(private, last), last)


def held_lines(caches: Caches,
               walk_ns: Callable[[int], float]) -> int | None:
    """The longest list, of half the last level at most, that it really holds.

    A virtual machine may get only a part of the cache that its kernel sees; so
    may a host whose caches are divided.

    :param walk_ns: time for a node of a list of so many lines, alone on the
        pCPU
    :returns: None: it holds no list beyond the pCPU's own cache
    """
    beyond_ns = walk_ns(caches.beyond_lines)
    lines = caches.half_lines
    while lines * loads.LINE_BYTES > caches.private_bytes:
        if walk_ns(lines) < CACHED * beyond_ns:
            return lines
        lines //= 2
    return None


def _bytes(text: str) -> int:
    found = re.fullmatch(r'([0-9]{1,9})([KMG]?)', text)
    if not found:
        raise ValueError(text)
    return int(found[1]) * _MULTIPLES[found[2]]


def _power_of_two(size: int) -> int:
    """:returns: how many lines fit, rounded down to a power of two"""
    lines = max(1, size // loads.LINE_BYTES)
    return 1 << (lines.bit_length() - 1)
