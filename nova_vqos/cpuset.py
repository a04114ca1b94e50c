# SPDX-License-Identifier: Apache-2.0
"""Lists of pCPUs, as the kernel writes them."""

from collections.abc import Iterable

_MAX_PCPU = 8191


def parse_pcpus(text: str) -> frozenset[int]:
    """pCPUs from the kernel's list format, such as ``0-3,8``.

    :raises ValueError: when it is something else
    """
    pcpus: set[int] = set()
    for part in text.split(','):
        first, dash, last = part.strip().partition('-')
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f'{text!r} is no list of pCPUs such as 0-3,8')
        low, high = int(first), int(last or first)
        if not low <= high <= _MAX_PCPU:
            raise ValueError(
                f'{part!r} in {text!r} is no range of pCPUs up to {_MAX_PCPU}')
        pcpus.update(range(low, high + 1))
    return frozenset(pcpus)


def format_pcpus(pcpus: Iterable[int]) -> str:
    """The inverse of :func:`parse_pcpus`."""
    ranges: list[list[int]] = []
    for pcpu in sorted(pcpus):
        if ranges and ranges[-1][1] == pcpu - 1:
            ranges[-1][1] = pcpu
        else:
            ranges.append([pcpu, pcpu])
    return ','.join(str(low) if low == high else f'{low}-{high}'
                    for low, high in ranges)
