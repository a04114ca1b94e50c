# SPDX-License-Identifier: Apache-2.0
"""How much of a server's reservation its threads of I/O have. Pure."""

from collections.abc import Mapping
from fractions import Fraction
import typing as ty

from nova_vqos import guarantee
from nova_vqos.hypervisor import base

# Changes of less than this part are not worth a write.
_LEAST_CHANGE = Fraction(1, 10)


class Split(ty.NamedTuple):
    """How a server's reservation is divided, in parts of a pCPU's time.

    :ivar entitled: of each vCPU, by its units
    :ivar limited: likewise, less what it pays for its I/O
    :ivar vcpus: how many there are
    :ivar kept: the part of limited that each vCPU has
    :ivar io: what each thread has that serves I/O
    """

    entitled: Fraction
    limited: Fraction
    vcpus: int
    kept: Fraction
    io: Fraction

    @property
    def vcpu(self) -> Fraction:
        """What each vCPU has."""
        return self.limited * self.kept

    @classmethod
    def make(cls, entitled: Fraction, limited: Fraction, vcpus: int,
             io: Fraction | None) -> 'Split':
        """:param io: what each thread of I/O is to have; None: the least"""
        least = guarantee.io_share(entitled, vcpus)
        io = least if io is None else max(least, io)
        taken = (io - least) * guarantee.IO_THREADS / vcpus
        kept = min(Fraction(1), (entitled - taken) / limited)
        return cls(entitled, limited, vcpus, kept, io)


class IoShare:
    """What threads of I/O are to have, as their use rises and falls.

    :ivar share: of a pCPU's time, for each of them; None: the least
    :ivar needs_vcpus: whether the next decision needs what vCPUs use
    """

    def __init__(self) -> None:
        self.share: Fraction | None = None
        self.needs_vcpus = True
        self._io = _Use()
        self._vcpus = _Use()

    def follow(self, now_s: float, split: Split,
               io: Mapping[int, base.ThreadRun],
               vcpus: Mapping[int, base.ThreadRun]) -> None:
        """Decide anew.

        :param now_s: when runs were read, on the monotonic clock
        :param io: of each thread of I/O
        :param vcpus: of each vCPU; empty where that was not needed
        """
        used_io = self._io.busiest(now_s, io)
        used_vcpu = self._vcpus.busiest(now_s, vcpus)
        least = guarantee.io_share(split.entitled, split.vcpus)
        unused = max(
            (split.entitled - split.limited) * split.vcpus,
            # Not known: none.
            Fraction(0) if used_vcpu is None else guarantee.unused_pcpus(
                split.entitled, split.vcpus, split.vcpu, used_vcpu))
        wanted = least if used_io is None else guarantee.followed_io_share(
            least, split.io, used_io, unused)
        # Later on it costs nothing where I/O has enough.
        self.needs_vcpus = (
            used_io is None or wanted > least
            or guarantee.is_io_short(split.io, used_io))
        if wanted == least:
            self.share = None
        elif abs(wanted - split.io) >= _LEAST_CHANGE * split.io:
            self.share = wanted


class _Use:
    """What threads use, from one reading to the next."""

    def __init__(self) -> None:
        self._read_at_s = 0.0
        self._runs: Mapping[int, base.ThreadRun] = {}

    def busiest(self, now_s: float,
                runs: Mapping[int, base.ThreadRun]) -> float | None:
        """What the busiest used of a pCPU's time since the last reading.

        :returns: None where no thread was read twice in a row
        """
        over_s, before = now_s - self._read_at_s, self._runs
        self._read_at_s, self._runs = now_s, runs
        used_ns = [runs[key].run_ns - before[key].run_ns
                   for key in runs.keys() & before.keys()]
        if not used_ns or over_s <= 0:
            return None
        return max(0, *used_ns) / 1e9 / over_s
