# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of CPU units.

100 CPU units (CU) are the sustained speed of one reference pCPU. A vCPU that
is entitled to ``u`` CU runs, on a pCPU of coefficient ``c`` (how many times
faster than the reference it is), for the share ``u / (100 * c)`` of the time;
a CFS quota of that share of its period makes it so.

Pure: no Nova, no libvirt, no state. The sums are exact (:class:`Fraction`);
only the last step rounds, to whole microseconds. For the cap of a server on a
host see :func:`nova_vqos.cputune.compute`.
"""

from collections.abc import Iterable
from fractions import Fraction
import functools
import math

from nova_vqos import light_typing

CU_PER_REFERENCE_PCPU = 100

# What libvirt accepts (src/conf/domain_conf.c: quota and period of a vCPU).
MIN_QUOTA_US = 1_000
MIN_PERIOD_US = 1_000
MAX_PERIOD_US = 1_000_000

# With a shorter period each write of a quota gives less CPU time away, with a
# longer one there is less overrun and a better open-loop tail:
# doc/source/contributor/decisions.rst.
DEFAULT_PERIOD_US = 50_000

# For servers with long slices: enough for a slice of 90 ms at 45 % of a pCPU.
DEFAULT_CACHE_MAX_PERIOD_US = 200_000

# A server overruns a quota below two scheduler ticks by up to a tick in each
# period, for which the kernel then throttles it in one long stall.
MIN_QUOTA_TICKS = 2

# Units are a Placement resource: its amounts are signed 32 bit integers.
MAX_UNITS = 2**31 - 1

# The least and the greatest weight of a cgroup, and that of a new one, by
# cgroup version. A server of 100 CU gets the weight of a new one.
# NOTE: the kernel accepts a cpu.weight of 1 too, libvirt refuses it (9.0, seen
# on Linux 7.2).
_SHARES = {1: (2, 262_144, 1024), 2: (2, 10_000, 100)}


class UnitsError(ValueError):
    """A speed that this host cannot give."""


class HostTooSlow(UnitsError):
    """A vCPU needs more than a whole pCPU.

    :ivar needed_coefficient: the least coefficient that suffices
    """

    def __init__(self, cu_per_vcpu: Fraction, pcpu_cu: Fraction) -> None:
        self.needed_coefficient = cu_per_vcpu / CU_PER_REFERENCE_PCPU
        super().__init__(
            f'a vCPU of {format_cu(cu_per_vcpu)} CU is faster than the pCPU, '
            f'which has {format_cu(pcpu_cu)} CU: a host with a coefficient '
            f'of at least {float(self.needed_coefficient):.4g} is needed')


class ShareTooSmall(UnitsError):
    """A vCPU needs less than the smallest quota gives.

    :ivar cu_per_vcpu: the speed asked for, in CU
    :ivar least_cu: the least speed that this host can give, in CU
    """

    def __init__(self, cu_per_vcpu: Fraction, least_cu: Fraction) -> None:
        self.cu_per_vcpu = cu_per_vcpu
        self.least_cu = least_cu
        super().__init__(
            f'a vCPU of {format_cu(cu_per_vcpu)} CU is slower than what a '
            f'quota can express on this host: it needs at least '
            f'{format_cu(least_cu)} CU per vCPU')


class CpuCap(light_typing.NamedTuple):
    """A CFS bandwidth limit of one vCPU, as in libvirt and the kernel."""

    quota_us: int
    period_us: int

    @property
    def share(self) -> Fraction:
        """The part of a pCPU's time that it allows, from 0 to 1."""
        return Fraction(self.quota_us, self.period_us)


def format_cu(value: Fraction | float) -> str:
    """A number of CU for people: at most two decimals, none of a whole one."""
    return f'{float(value):.2f}'.rstrip('0').rstrip('.')


def pcpu_cu(coefficient: float) -> Fraction:
    """The speed of a pCPU in CU.

    :param coefficient: how many times faster than the reference it is. Its
        shortest decimal form counts, so that 0.6 is six tenths: by its binary
        fraction 60 CU would not fit on a pCPU of exactly 60 CU.
    :raises ValueError: when the coefficient is not a positive number
    """
    if not (math.isfinite(coefficient) and coefficient > 0):
        raise ValueError(
            f'coefficient is {coefficient!r}, it must be a positive number')
    return CU_PER_REFERENCE_PCPU * Fraction(repr(float(coefficient)))


def mean_coefficient(weighted: Iterable[tuple[float, float]]) -> float:
    """One coefficient from those by several benchmarks.

    The weighted geometric mean: the only mean that comes out the same
    whichever host is the reference (Fleming and Wallace, How Not to Lie With
    Statistics, CACM 29(3), 1986).

    :param weighted: weight and coefficient of each, at least one weight above
        0, and all coefficients
    """
    counted = [pair for pair in weighted if pair[0]]
    if len({coefficient for _weight, coefficient in counted}) == 1:
        # Exactly that, so that a pCPU of 60 CU serves a vCPU of 60 CU.
        return counted[0][1]
    return math.exp(
        math.fsum(weight * math.log(coefficient)
                  for weight, coefficient in counted)
        / math.fsum(weight for weight, _ in counted))


def cu_per_vcpu(units: int, vcpus: int) -> Fraction:
    """The speed of each vCPU of a server of ``units`` CU.

    :raises ValueError: when either is not positive
    """
    if units < 1 or vcpus < 1:
        raise ValueError(
            f'units are {units} and vCPUs {vcpus}, both must be at least 1')
    return Fraction(units, vcpus)


def share(units: int, vcpus: int, coefficient: float) -> Fraction:
    """The part of a pCPU's time that each vCPU of a server needs.

    :param units: CU of the whole server
    :param coefficient: of the slowest pCPU that the server may run on
    :returns: above 1 where the pCPU is too slow
    :raises ValueError: when an argument is not positive
    """
    return cu_per_vcpu(units, vcpus) / pcpu_cu(coefficient)


def clock_scale(mhz: float, calibrated_mhz: float) -> float:
    """How fast a pCPU is at a clock, where it has 1 at another.

    Work that waits for memory changes by less.

    :param mhz: the clock
    :param calibrated_mhz: that at which it was calibrated, above 0
    """
    return mhz / calibrated_mhz


def cost_cu(units: Fraction | int, coefficient: float,
            work_coefficient: float) -> Fraction:
    """CU of a host that a server takes whose units are of a kind of work.

    It gets ``units / (100 * work_coefficient)`` of a pCPU's time, which has
    ``100 * coefficient`` CU. Never less than its units, which it claimed.

    :param units: CU of the whole server, or of a part of it
    :param coefficient: of the pCPUs, by all kinds of work
    :param work_coefficient: of the same, by the server's
    :returns: rounded up to 1/1000 CU, so that sums stay small fractions
    """
    exact = units * pcpu_cu(coefficient) / pcpu_cu(work_coefficient)
    return max(Fraction(units), Fraction(math.ceil(exact * 1000), 1000))


@functools.lru_cache(maxsize=4096)
def least_cu_per_vcpu(coefficient: float, *, tick_us: int) -> Fraction:
    """The least speed in CU that a cap can express on a pCPU.

    :param tick_us: length of the kernel's scheduler tick
    """
    return pcpu_cu(coefficient) * Fraction(_min_quota_us(tick_us),
                                           MAX_PERIOD_US)


def cap(units: int, vcpus: int, coefficient: float, *, tick_us: int,
        period_us: int = DEFAULT_PERIOD_US) -> CpuCap:
    """The cap that makes each vCPU of a server run at its promised speed.

    quota / period = u / (100 * c), within 0.1 % (thesis 4.4: a vCPU sold as
    one reference pCPU gets 1 / coef(p) of pCPU p). Where the quota would fall
    below the least one, the period is stretched instead. Never clipped.

    :param units: CU of the whole server
    :param vcpus: its vCPUs, which share the units equally
    :param coefficient: of the slowest pCPU that the server may run on
    :param tick_us: length of the kernel's scheduler tick
    :param period_us: the period wanted, 1000 to 1000000
    :raises HostTooSlow: when a vCPU would need more than a whole pCPU
    :raises ShareTooSmall: when even the longest period is too short
    :raises ValueError: when an argument is out of its range
    """
    check_period_us('period_us', period_us)
    wanted_cu = cu_per_vcpu(units, vcpus)
    speed_cu = pcpu_cu(coefficient)
    if wanted_cu > speed_cu:
        raise HostTooSlow(wanted_cu, speed_cu)
    least_cu = least_cu_per_vcpu(coefficient, tick_us=tick_us)
    if wanted_cu < least_cu:
        raise ShareTooSmall(wanted_cu, least_cu)
    return cap_of_share(wanted_cu / speed_cu, tick_us=tick_us,
                        period_us=period_us)


def holding_period_us(share: Fraction, slice_us: int, period_us: int,
                      longest_us: int) -> int:
    """The least period whose quota holds a slice of time.

    A cap cuts slices that are longer than its quota. So the period is the
    least multiple of ``period_us`` whose quota is no shorter than the slice.
    Where that would be too long, it is ``period_us``: a longer one costs CPU
    time, and the slice would be cut all the same.

    :param share: of a pCPU's time, above 0; with all of it a vCPU is never
        throttled, and needs no longer period
    :param slice_us: of the server
    :param period_us: the period of other servers
    :param longest_us: bound of the result, unless period_us is longer
    :raises ValueError: when an argument is out of its range
    """
    check_period_us('period_us', period_us)
    check_period_us('the longest period', longest_us)
    if share <= 0 or slice_us < 1:
        raise ValueError(f'share is {share} and slice_us {slice_us}, both '
                         'must be above 0')
    if share >= 1:
        return period_us
    holding_us = period_us * math.ceil(slice_us / (share * period_us))
    return holding_us if holding_us <= longest_us else period_us


def check_period_us(name: str, period_us: int) -> None:
    """Check that a CFS period is in its range.

    :param name: of the option or argument, for the error
    :raises ValueError: when it is not
    """
    if not MIN_PERIOD_US <= period_us <= MAX_PERIOD_US:
        raise ValueError(
            f'{name} is {period_us}, it must be from {MIN_PERIOD_US} to '
            f'{MAX_PERIOD_US}')


def cap_of_share(share: Fraction, *, tick_us: int, period_us: int) -> CpuCap:
    """The limit that gives a share of a pCPU's time, or of several.

    Where the quota would fall below the least one, the period is stretched
    instead; a share that is too small for the longest period becomes the least
    possible share.

    :param share: above 0; above 1 for a limit of several vCPUs together
    :param tick_us: length of the kernel's scheduler tick
    :param period_us: the period wanted
    """
    min_quota_us = _min_quota_us(tick_us)
    if share * period_us >= min_quota_us:
        return CpuCap(round(share * period_us), period_us)
    # Compared by the longest period: a share may be next to nothing.
    if share * MAX_PERIOD_US <= min_quota_us:
        return CpuCap(min_quota_us, MAX_PERIOD_US)
    return CpuCap(min_quota_us, round(min_quota_us / share))


def capacity_cu(coefficients: Iterable[float]) -> int:
    """The whole CU of a host.

    :param coefficients: one of each pCPU that its servers share, measured
        with all of them busy
    """
    return math.floor(sum(map(pcpu_cu, coefficients), start=Fraction(0)))


def shares(units: Fraction | int, cgroup_version: int) -> int:
    """The weight of a server among its neighbours, proportional to its units.

    libvirt's ``<shares>`` are cpu.shares (2 to 262144) of cgroup v1 or
    cpu.weight (2 to 10000) of v2, which depends on the host.

    :param cgroup_version: 1 or 2
    :raises ValueError: when there is no such version
    """
    try:
        least, most, of_new_group = _SHARES[cgroup_version]
    except KeyError:
        raise ValueError(
            f'cgroup version is {cgroup_version!r}, it must be 1 or 2'
        ) from None
    return max(least, min(
        most, round(Fraction(units * of_new_group, CU_PER_REFERENCE_PCPU))))


def _min_quota_us(tick_us: int) -> int:
    if not 100 <= tick_us <= 10_000:
        raise ValueError(
            f'tick_us is {tick_us}, it must be from 100 to 10000')
    return max(MIN_QUOTA_US, MIN_QUOTA_TICKS * tick_us)
