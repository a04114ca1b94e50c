# SPDX-License-Identifier: Apache-2.0
"""What holds a server to the limit on its I/O. Pure.

One owner writes each: quotas follow :mod:`nova_vqos.agent.caps`, what is
reserved for vCPUs :mod:`nova_vqos.agent.guarantee`.
"""

import abc
import dataclasses
from fractions import Fraction
import typing as ty

from nova_vqos import cputune
from nova_vqos import units
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.billing import charge
from nova_vqos.billing import runtime_charge
from nova_vqos.hypervisor import base


class Backend(abc.ABC):
    """A way to hold a server to a limit_share, see :class:`charge.Control`.

    :cvar limits_threads: see :class:`charge.Interval`
    :cvar control: what decides the limit
    """

    limits_threads: ty.ClassVar[bool]
    control: ty.ClassVar[type[charge.Control]]

    @abc.abstractmethod
    def quotas(self, tune: cputune.CpuTune, vcpus: int, limit_share: float,
               terms: controller.HostTerms) -> cputune.CpuTune:
        """The quotas of a server that is limited.

        :param tune: that of its units
        :param vcpus: that share them
        """

    @abc.abstractmethod
    def limit_in_force(self, tune: cputune.CpuTune, vcpus: int,
                       in_force: base.InForce,
                       terms: controller.HostTerms) -> float:
        """The limit_share by which :meth:`quotas` gives what is in force.

        1.0 where no limit is, or one that is not ours.

        :param tune: that of its units
        """


class DomainQuota(Backend):
    """A quota that all of a server's threads share."""

    limits_threads = True
    control = charge.Charge

    def quotas(self, tune: cputune.CpuTune, vcpus: int, limit_share: float,
               terms: controller.HostTerms) -> cputune.CpuTune:
        cap = tune.cap
        if cap is None or terms.profile is None:
            return tune
        domain = _share_of(
            units.CpuCap(cap.quota_us * vcpus, cap.period_us), limit_share,
            terms.profile.tick_us)
        if terms.cgroup_version == 1 and domain.share < cap.share:
            # NOTE: a child must not be given more than its parent.
            cap = domain
        return tune._replace(cap=cap, domain=domain)

    def limit_in_force(self, tune: cputune.CpuTune, vcpus: int,
                       in_force: base.InForce,
                       terms: controller.HostTerms) -> float:
        return _limit_share(tune, vcpus, in_force.domain, terms)


class VcpuQuota(Backend):
    """A quota of each vCPU, by itself.

    Where the kernel does not hold a worker of vhost to a limit, the worker's
    time would be taken from that of the domain all the same, and its vCPUs
    would pay, down to nothing.
    """

    limits_threads = False
    control = charge.Charge

    def quotas(self, tune: cputune.CpuTune, vcpus: int, limit_share: float,
               terms: controller.HostTerms) -> cputune.CpuTune:
        cap = tune.cap
        if cap is None or terms.profile is None or limit_share >= 1:
            return tune
        return tune._replace(
            cap=_share_of(cap, limit_share, terms.profile.tick_us))

    def limit_in_force(self, tune: cputune.CpuTune, vcpus: int,
                       in_force: base.InForce,
                       terms: controller.HostTerms) -> float:
        limits = set(in_force.vcpus.values())
        return (_limit_share(tune, 1, limits.pop(), terms)
                if len(limits) == 1 else 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Runtime(Backend):
    """What is reserved for each vCPU: no quota binds a thread that has that.

    Quotas stay what they are without a limit, for threads that have nothing
    reserved.

    :ivar quota: what would hold the server without a reservation
    """

    quota: Backend
    limits_threads: ty.ClassVar[bool] = False
    control: ty.ClassVar[type[charge.Control]] = runtime_charge.RuntimeCharge

    def quotas(self, tune: cputune.CpuTune, vcpus: int, _limit_share: float,
               terms: controller.HostTerms) -> cputune.CpuTune:
        return self.quota.quotas(tune, vcpus, 1.0, terms)

    def limit_in_force(self, tune: cputune.CpuTune, vcpus: int,
                       in_force: base.InForce,
                       terms: controller.HostTerms) -> float:
        # It can be changed at once, as soon as there is a bill.
        return 1.0


DOMAIN_QUOTA, VCPU_QUOTA = DomainQuota(), VcpuQuota()


def backend(server: servers.Server, terms: controller.HostTerms) -> Backend:
    """What holds a server to its limit, if it has one."""
    quota = (VCPU_QUOTA if server.has_vhost and not terms.limits_vhost
             else DOMAIN_QUOTA)
    return Runtime(quota) if server.has_reserved_vcpus else quota


def _limit_share(tune: cputune.CpuTune, vcpus: int, limit: base.Limit,
                 terms: controller.HostTerms) -> float:
    """The limit_share that a limit of so many vCPUs together gives.

    1.0 where it is none, or not ours.
    """
    cap = tune.cap
    if cap is None or limit.quota_us is None or terms.profile is None:
        return 1.0
    whole = units.CpuCap(cap.quota_us * vcpus, cap.period_us)
    found = units.CpuCap(limit.quota_us, limit.period_us)
    limit_share = float(found.share / whole.share)
    if limit_share > 1.0 or found != _share_of(whole, limit_share,
                                               terms.profile.tick_us):
        return 1.0
    return limit_share


def _share_of(cap: units.CpuCap, limit_share: float,
              tick_us: int) -> units.CpuCap:
    # NOTE: not the quota alone: below two ticks it is overrun (TRAPS, Linux
    # 6 and 7).
    return units.cap_of_share(cap.share * Fraction(limit_share),
                              tick_us=tick_us, period_us=cap.period_us)
