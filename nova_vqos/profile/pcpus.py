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


"""Lists of pCPUs, as the kernel writes them."""

import typing as ty

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


def format_pcpus(pcpus: ty.Iterable[int]) -> str:
    """The inverse of :func:`parse_pcpus`."""
    ranges: list[list[int]] = []
    for pcpu in sorted(pcpus):
        if ranges and ranges[-1][1] == pcpu - 1:
            ranges[-1][1] = pcpu
        else:
            ranges.append([pcpu, pcpu])
    return ','.join(str(low) if low == high else f'{low}-{high}'
                    for low, high in ranges)
