# SPDX-License-Identifier: Apache-2.0
"""Whether vCPUs fit on pCPUs, each vCPU on one pCPU.

Placement counts the units of a host as a sum. Three vCPUs of 60 CU are 180 of
the 200 CU of two pCPUs, but no pCPU has 60 CU left for the third one. CFS
quotas do not give it its share then (doc/source/admin/capacity.rst).

This is bin packing, by first fit decreasing: the largest vCPU comes first, and
each goes to the first pCPU with room. What is said to pack does pack. The
reverse does not hold: first fit decreasing misses some packings, and seldom
even one that it found before a vCPU left (test_packing has an example).

Pure: no Nova, no libvirt, no state, and exact sums as in
:mod:`nova_vqos.units`.
"""

import collections
from collections.abc import Callable, Mapping
from fractions import Fraction
import math
import typing as ty

_Size = ty.TypeVar('_Size', int, Fraction)


class Pcpus(ty.NamedTuple):
    """Equal pCPUs, and the vCPUs that they have to serve.

    :ivar number: of pCPUs
    :ivar size_cu: CU that the vCPUs of one pCPU may have together
    :ivar vcpus: number of vCPUs by the CU of each
    """

    number: int
    size_cu: Fraction
    vcpus: Mapping[Fraction, int]

    def packs(self) -> bool:
        """Whether the vCPUs fit."""
        _scale, size, vcpus = self._scaled()
        return pack(vcpus, self.number, size) is not None

    def takes(self, vcpu_cu: Fraction, count: int = 1) -> bool:
        """Whether more vCPUs fit beside these, all of which may move.

        :param vcpu_cu: CU of each of them
        """
        scale, size, vcpus = self._scaled(vcpu_cu.denominator)
        return self._takes(vcpus, size, int(vcpu_cu * scale), count)

    def largest_cu(self) -> Fraction:
        """CU of the largest vCPU that fits beside these; 0: none does."""
        # NOTE: the largest one fills its pCPU, so that it is a difference of
        # the sizes here, and whole where these are.
        scale, size, vcpus = self._scaled()
        return Fraction(_most(size, lambda vcpu: self._takes(
            vcpus, size, vcpu, 1)), scale)

    def pieces(self) -> Mapping[Fraction, int]:
        """What the vCPUs leave: number of pCPUs by the CU left of each.

        Pieces of 0 CU where they do not fit.
        """
        scale, size, vcpus = self._scaled()
        assigned = pack(vcpus, self.number, size)
        if assigned is None:
            return {Fraction(0): self.number}
        left = collections.Counter(
            size - sum(vcpu * count for vcpu, count in mine.items())
            for mine in assigned)
        return {Fraction(piece, scale): pcpus
                for piece, pcpus in left.items()}

    def _scaled(self, denominator: int = 1
                ) -> tuple[int, int, dict[int, int]]:
        """The sizes in whole numbers, which are much faster than fractions.

        :param denominator: of another size
        :returns: numbers for one CU, size of a pCPU, and vCPUs by their size
        """
        scale = math.lcm(denominator, self.size_cu.denominator,
                         *(cu.denominator for cu in self.vcpus))
        return scale, int(self.size_cu * scale), {
            int(cu * scale): count for cu, count in self.vcpus.items()}

    def _takes(self, vcpus: dict[int, int], size: int, vcpu: int,
               count: int) -> bool:
        more = {**vcpus, vcpu: vcpus.get(vcpu, 0) + count}
        return pack(more, self.number, size) is not None


def pack(vcpus: Mapping[_Size, int], pcpus: int, size: _Size
         ) -> list[dict[_Size, int]] | None:
    """Assign vCPUs to pCPUs by first fit decreasing.

    :param vcpus: number of vCPUs by the size of each, above 0
    :param size: of each pCPU
    :returns: the vCPUs of each pCPU; None: not all have a place
    """
    left = [size] * pcpus
    assigned: list[dict[_Size, int]] = [{} for _ in left]
    for vcpu, count in sorted(vcpus.items(), reverse=True):
        for pcpu, room in enumerate(left):
            # All that are equal at once.
            here = min(room // vcpu, count)
            if here:
                left[pcpu] = room - here * vcpu
                assigned[pcpu][vcpu] = here
                count -= here
                if not count:
                    break
        if count:
            return None
    return assigned


def _most(bound: int, fits: Callable[[int], bool]) -> int:
    """The greatest number that fits, where all smaller ones do; else 0.

    :param bound: the greatest to try
    """
    least = 0
    while least < bound:
        middle = (least + bound + 1) // 2
        if fits(middle):
            least = middle
        else:
            bound = middle - 1
    return least
