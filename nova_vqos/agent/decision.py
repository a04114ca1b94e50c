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

"""What is to be done about one server: pure, no hypervisor, no clock."""

from collections.abc import Iterable, Set
import dataclasses
from fractions import Fraction

from nova_vqos import cpu_classes
from nova_vqos import policy as policies
from nova_vqos import profile as profiles
from nova_vqos import tuning
from nova_vqos import units
from nova_vqos.hypervisor import base


class Unenforceable(Exception):
    """What was promised to a server cannot be worked out on this host."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostTerms:
    """What a server's tuning depends on besides the server.

    :ivar profile: None: there is none
    :ivar periods: the CFS periods wanted
    :ivar reserved_cu: see :func:`nova_vqos.cpu_classes.with_servers`
    :ivar allocation_ratio: likewise
    :ivar charges: whether servers that pay for their I/O are limited; False:
        nobody counts it
    """

    profile: profiles.Profile | None
    cgroup_version: int
    periods: tuning.Periods
    reserved_cu: int = 0
    allocation_ratio: float = 1.0
    charges: bool = False


def wanted(policy: policies.ServerPolicy, vcpus_online: int,
           pcpus: Set[int] | None, terms: HostTerms) -> tuning.Tune | None:
    """The tuning that keeps a server's promise.

    :param vcpus_online: a server with more of them than its flavor says (they
        were hotplugged) shares its units among all of them
    :param pcpus: those that its vCPUs may run on; None: all of the profile
    :returns: None where no speed is promised
    :raises Unenforceable: when it cannot be told, or given
    """
    if policy.units is None:
        return None
    if terms.profile is None:
        raise Unenforceable('the host has no valid profile')
    policy = policy._replace(vcpus=max(policy.vcpus, vcpus_online))
    try:
        return tuning.tune(
            policy, terms.profile,
            terms.profile.pcpus if pcpus is None else pcpus,
            cgroup_version=terms.cgroup_version, periods=terms.periods)
    except (units.UnitsError, profiles.ProfileError) as error:
        raise Unenforceable(str(error)) from error


def limited(tune: tuning.Tune, vcpus: int, limit_share: float,
            terms: HostTerms) -> tuning.Tune:
    """The tuning of a server that pays for its I/O out of its units.

    :param tune: that of its units
    :param vcpus: that share them
    :param limit_share: see :class:`nova_vqos.billing.charge.Charge`
    """
    cap = tune.cap
    if cap is None or not terms.charges or terms.profile is None:
        return tune
    domain = _share_of(
        units.CpuCap(cap.quota_us * vcpus, cap.period_us), limit_share,
        terms.profile.tick_us)
    if terms.cgroup_version == 1 and domain.share < cap.share:
        # NOTE: a child must not be given more than its parent.
        cap = domain
    return tune._replace(cap=cap, domain=domain)


def limit_in_force(tune: tuning.Tune, vcpus: int, in_force: base.InForce,
                   terms: HostTerms) -> float:
    """The limit_share by which :func:`limited` gives what is in force.

    1.0 where no limit is, or one that is not ours.

    :param tune: that of its units
    """
    cap, limit = tune.cap, in_force.domain
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


def coefficient(domain: base.Domain, profile: profiles.Profile) -> float:
    """That of the slowest pCPU that a domain may run on.

    Of all pCPUs where it may run on one that was not measured.
    """
    try:
        return profile.slowest(
            profile.pcpus if domain.pcpus is None else domain.pcpus)
    except profiles.ProfileError:
        return profile.slowest(profile.pcpus)


def floats(domain: base.Domain, profile: profiles.Profile) -> bool:
    """Whether a domain may run on several classes of pCPUs, by no one's wish.

    What somebody else pinned is left as it is.
    """
    if domain.pinned_by_others:
        return False
    pcpus = profile.pcpus if domain.pcpus is None else domain.pcpus
    # At each tick, for each server: no sums here.
    return sum(not cpu_class.pcpus.isdisjoint(pcpus)
               for cpu_class in profile.cpu_classes) > 1


def eligible_pcpus(domain: base.Domain,
                   profile: profiles.Profile) -> frozenset[int] | None:
    """All pCPUs that the agent may choose from for a domain's vCPUs.

    They are of one class: on unlike pCPUs a domain is kept in one already.

    :returns: None where somebody else pinned them, or it is in no class yet
    """
    if domain.pinned_by_others:
        return None
    allowed = (profile.pcpus if domain.cpuset is None
               else profile.pcpus & domain.cpuset)
    now = allowed if domain.pcpus is None else domain.pcpus
    found = [cpu_class.pcpus for cpu_class in profile.cpu_classes
             if not cpu_class.pcpus.isdisjoint(now)]
    return allowed & found[0] if len(found) == 1 else None


def pcpus_to_pin(policy: policies.ServerPolicy, vcpus_online: int,
                 pcpus: frozenset[int] | None,
                 others: Iterable[cpu_classes.Server], terms: HostTerms,
                 profile: profiles.Profile) -> frozenset[int]:
    """The pCPUs of one class for a server that may run on several.

    None but those that it may run on already: they may be all that Nova has
    for servers to share, which the profile does not say.

    :param pcpus: those that its vCPUs may run on; None: all of the profile
    :param others: the other servers with units on the host, but for those
        that float as well: each gets its class in turn
    :raises Unenforceable: when no class fits
    """
    rooms = cpu_classes.with_servers(
        cpu_classes.of_host(profile, profile.pcpus), others,
        reserved_cu=terms.reserved_cu,
        allocation_ratio=terms.allocation_ratio)
    policy = policy._replace(vcpus=max(policy.vcpus, vcpus_online))
    try:
        return cpu_classes.choose(
            policy, cpu_classes.narrowed(
                rooms, profile.pcpus if pcpus is None else pcpus),
            tick_us=profile.tick_us).pcpus
    except cpu_classes.NoClassFits as error:
        raise Unenforceable(str(error)) from error


def changes(want: tuning.Tune,
            in_force: base.InForce) -> tuple[base.Change, ...]:
    """What has to be written, in the order in which it must be written.

    Nothing that is right already: each write of a quota, even of the same
    value, refills its pool and so gives CPU time away.

    cgroup v1 refuses a child more than its parent has: so the domain as a
    whole comes first where it gets more, and last where it gets less. Of
    quota and period the one comes first that leaves a vCPU with less, and the
    domain with more, until the other is written.

    :returns: empty when all is right
    """
    found = _vcpu_changes(want.cap, list(in_force.vcpus.values()))
    domain = _domain_changes(want.domain, in_force.domain)
    if _gets_less(want.domain, in_force.domain):
        found += domain
    else:
        found = domain + found
    if in_force.shares != want.shares:
        found.append(base.Change(base.Parameter.SHARES, want.shares))
    return tuple(found)


def _domain_changes(want: units.CpuCap | None,
                    limit: base.Limit) -> list[base.Change]:
    if want is None:
        # A limit on all vCPUs together would give less than was promised.
        return ([] if limit.quota_us is None else
                [base.Change(base.Parameter.DOMAIN_QUOTA_US, None)])
    found = []
    if limit.quota_us != want.quota_us:
        found.append(base.Change(base.Parameter.DOMAIN_QUOTA_US,
                                 want.quota_us))
    if limit.period_us != want.period_us:
        period = base.Change(base.Parameter.DOMAIN_PERIOD_US, want.period_us)
        first = limit.quota_us is None or want.period_us < limit.period_us
        found.insert(0 if first else len(found), period)
    return found


def _gets_less(want: units.CpuCap | None, limit: base.Limit) -> bool:
    if want is None:
        return False
    return (limit.quota_us is None
            or want.share < Fraction(limit.quota_us, limit.period_us))


def _vcpu_changes(cap: units.CpuCap | None,
                  limits: list[base.Limit]) -> list[base.Change]:
    if cap is None:
        # The period of what has no limit means nothing.
        return ([base.Change(base.Parameter.QUOTA_US, None)]
                if any(limit.quota_us is not None for limit in limits)
                else [])
    found = []
    if any(limit.quota_us != cap.quota_us for limit in limits):
        found.append(base.Change(base.Parameter.QUOTA_US, cap.quota_us))
    if any(limit.period_us != cap.period_us for limit in limits):
        period = base.Change(base.Parameter.PERIOD_US, cap.period_us)
        longest_us = max(limit.period_us for limit in limits)
        found.insert(0 if cap.period_us > longest_us else len(found), period)
    return found
