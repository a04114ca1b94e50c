# SPDX-License-Identifier: Apache-2.0
"""The CPU tuning of a server on a host: its cap and its weight.

Units become microseconds here only. The compute driver (for a new guest),
libvirt's hook (for a guest that migrates in) and the agent (for running
guests) all call this module, so their results are the same.
"""

from collections.abc import Iterable
from fractions import Fraction
import os

from nova_vqos import light_typing
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.quantum import classes

if light_typing.TYPE_CHECKING:
    from nova_vqos.profile import coefficients
    from nova_vqos.profile import model

_ROOT = '/'
_CGROUP_V2_MARK = 'sys/fs/cgroup/cgroup.controllers'


class CpuTune(light_typing.NamedTuple):
    """CPU tuning of a server on a host, as in libvirt's ``<cputune>``.

    :ivar cap: of each vCPU; None: no limit
    :ivar shares: weight of the whole server, on the scale of the host's cgroup
        version
    :ivar domain: limit of the vCPUs and the I/O threads of the server
        together; None: no limit
    """

    cap: units.CpuCap | None
    shares: int
    domain: units.CpuCap | None = None


class Periods(light_typing.NamedTuple):
    """The CFS periods of a host's caps, in microseconds.

    :ivar plain_us: of most servers
    :ivar cache_longest_us: see :func:`nova_vqos.units.holding_period_us`
    :ivar cache_slice_us: slice of class ``cache``
    """

    plain_us: int = units.DEFAULT_PERIOD_US
    cache_longest_us: int = units.DEFAULT_CACHE_MAX_PERIOD_US
    cache_slice_us: int = classes.DEFAULT_SLICES_US[classes.CACHE]


DEFAULT_PERIODS = Periods()


def compute(policy: policies.ServerPolicy,
            profile: 'model.Profile | coefficients.Coefficients',
            pcpus: Iterable[int], *, cgroup_version: int,
            periods: Periods = DEFAULT_PERIODS,
            correction: float = 1.0) -> CpuTune | None:
    """The tuning that gives a server its speed on a host.

    Only the flavor decides on the period of class ``cache``. A server that the
    agent recognised as one (``auto``) keeps the plain period: driver and hook
    do not know the recognised class, and each change of a period is a write,
    which gives CPU time away.

    :param pcpus: those that the server's vCPUs may run on: the slowest for
        its kind of work counts
    :param correction: of that coefficient, for the server's own work
    :returns: None where the policy has no units: stock Nova tunes the server
    :raises nova_vqos.units.HostTooSlow: when a vCPU needs a faster pCPU
    :raises nova_vqos.units.ShareTooSmall: when a vCPU is too slow for a quota
    :raises nova_vqos.work.KindMissing: when a kind of its work was not
        measured
    :raises nova_vqos.files.FileInvalid: when a pCPU was not measured
    """
    if policy.units is None:
        return None
    pcpus = frozenset(pcpus)
    coefficient = profile.slowest(pcpus, policy.mix) * correction
    # A floor has no cap: its weight gives it the time that its work needs.
    weighed = Fraction(policy.units)
    if policy.mix is not None or correction != 1.0:
        weighed *= (units.pcpu_cu(profile.slowest(pcpus))
                    / units.pcpu_cu(coefficient))
    return CpuTune(
        cap=compute_cap(policy, coefficient, tick_us=profile.tick_us,
                        periods=periods),
        shares=units.shares(weighed, cgroup_version))


def compute_cap(policy: policies.ServerPolicy, coefficient: float, *,
                tick_us: int, periods: Periods) -> units.CpuCap | None:
    """The cap of each vCPU of a server on pCPUs of one speed.

    :param policy: with units
    :param coefficient: of the slowest pCPU that the server may run on, by its
        kinds of work
    :param tick_us: length of the kernel's scheduler tick
    :returns: None where the policy is a floor
    :raises nova_vqos.units.HostTooSlow: when a vCPU needs a faster pCPU
    :raises nova_vqos.units.ShareTooSmall: when a vCPU is too slow for a quota
    """
    # NOTE: no units are refused as 0 units are.
    cu = policy.units or 0
    period_us = periods.plain_us
    if policy.quantum_class == classes.CACHE:
        period_us = units.holding_period_us(
            units.share(cu, policy.vcpus, coefficient),
            periods.cache_slice_us, periods.plain_us,
            periods.cache_longest_us)
    # Computed for a floor too: it raises where the pCPU is too slow.
    cap = units.cap(cu, policy.vcpus, coefficient, tick_us=tick_us,
                    period_us=period_us)
    return cap if policy.cap == 'hard' else None


def host_cgroup_version() -> int:
    """2 where cgroups are unified on this host, else 1."""
    return 2 if os.path.exists(
        os.path.join(_ROOT, _CGROUP_V2_MARK)) else 1
