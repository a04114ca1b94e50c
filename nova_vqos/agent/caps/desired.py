# SPDX-License-Identifier: Apache-2.0
"""What is wanted for one server, and what has to be written for it. Pure."""

from collections.abc import Set
from fractions import Fraction
import typing as ty

from nova_vqos import cputune
from nova_vqos import files
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.agent import charging
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base

_OF_DOMAIN = (base.Parameter.DOMAIN_QUOTA_US, base.Parameter.DOMAIN_PERIOD_US)


class Unenforceable(Exception):
    """What was promised to a server cannot be worked out on this host."""


class Inputs(ty.NamedTuple):
    """What the cap of a server follows from, the weightiest first.

    :ivar flavor: its policy
    :ivar profile: id of the host's
    :ivar pcpus: those that it may run on; None: all
    :ivar vcpus: how many are online
    :ivar correction: of the coefficient, for the server's own work
    :ivar lifted: whether the limit on its I/O is lifted, for a migration
    :ivar debt: part of its entitlement that its I/O leaves it; None: it does
        not pay for it
    :ivar ceiling: part of its entitlement that its project's ceiling leaves
        it; None: all of it
    :ivar burst: how many times its units it may use; None: once
    """

    flavor: policies.ServerPolicy
    profile: str
    pcpus: frozenset[int] | None
    vcpus: int
    correction: float
    lifted: bool
    debt: float | None
    ceiling: float | None = None
    burst: float | None = None

    def difference(self, before: 'Inputs | None') -> str:
        """The name of the first that is another one than before.

        ``other`` where all are the same, or there was nothing before.
        """
        if before is None:
            return 'other'
        for name, now, then in zip(self._fields, self, before, strict=True):
            if now != then and not (name == 'lifted' and not self.lifted):
                return name
        if self.lifted == before.lifted:
            return 'other'
        # Its limit is in force again after a migration.
        return 'ceiling' if self.debt is None else 'debt'


class Desired(ty.NamedTuple):
    """What is wanted for a server.

    :ivar tune: what is to be in force
    :ivar entitled: the same, without a limit on its I/O, a ceiling or a burst
    :ivar inputs: what both follow from
    """

    tune: cputune.CpuTune
    entitled: cputune.CpuTune
    inputs: Inputs

    @property
    def limit_share(self) -> float:
        """The part of its entitlement that its I/O leaves it."""
        debt = self.inputs.debt
        return 1.0 if self.inputs.lifted or debt is None else debt

    @property
    def without_limit(self) -> 'Desired':
        """The same, with the whole entitlement and no more."""
        return self._replace(tune=self.entitled,
                             inputs=self.inputs._replace(debt=None,
                                                         ceiling=None,
                                                         burst=None))


def desire(server: servers.Server, in_force: base.InForce,
           terms: controller.HostTerms, *, limit_share: float | None,
           ceiling_share: float | None = None,
           burst_share: float | None = None, lifted: bool = False,
           before: Desired | None = None) -> Desired:
    """Work out what is wanted for a server with units.

    :param server: that was described, and has a policy
    :param limit_share: what its I/O leaves it, see
        :class:`nova_vqos.billing.charge.Control`; None: not yet known, so what
        is in force stays, where an agent before this one has set it
    :param ceiling_share: what its project's ceiling leaves it; None: all
    :param burst_share: how many times its units it may use; None: once. Its
        flavor has no other limit
    :param lifted: whether neither limits it for now
    :param before: what was wanted last
    :raises Unenforceable: when it cannot be worked out, or given
    """
    policy, domain = server.policy, server.domain
    if policy is None or domain is None:
        raise Unenforceable('the server was not described')
    inputs = Inputs(policy, '' if terms.profile is None else terms.profile.id,
                    domain.pcpus, len(in_force.vcpus), server.correction,
                    lifted, None, ceiling_share, burst_share)
    if before is not None and before.inputs[:5] == inputs[:5]:
        entitled = before.entitled
    else:
        entitled = entitlement(policy, len(in_force.vcpus), domain.pcpus,
                               terms, server.correction)
    if burst_share is not None:
        return Desired(_in_burst(entitled, burst_share, terms), entitled,
                       inputs)
    charged = server.is_charged(terms)
    if not charged and ceiling_share is None:
        return Desired(entitled, entitled, inputs)
    backend = charging.backend(server, terms)
    vcpus = max(policy.vcpus, len(in_force.vcpus))
    if not charged:
        limit_share = None
    elif limit_share is None:
        # Whoever was charged before this agent started still is.
        limit_share = backend.limit_in_force(entitled, vcpus, in_force, terms)
    return Desired(
        entitled if lifted
        else backend.quotas(entitled, vcpus, min(
            share for share in (limit_share, ceiling_share)
            if share is not None), terms),
        entitled, inputs._replace(debt=limit_share))


def _in_burst(entitled: cputune.CpuTune, burst_share: float,
              terms: controller.HostTerms) -> cputune.CpuTune:
    """The same with larger quotas: no vCPU runs on two pCPUs at a time.

    The weight stays, so that others who want their units have them.
    """
    cap = entitled.cap
    if cap is None or terms.profile is None:
        return entitled
    return entitled._replace(cap=units.cap_of_share(
        min(Fraction(1), cap.share * Fraction(burst_share)),
        tick_us=terms.profile.tick_us, period_us=cap.period_us))


def entitlement(policy: policies.ServerPolicy, vcpus_online: int,
                pcpus: Set[int] | None, terms: controller.HostTerms,
                correction: float = 1.0) -> cputune.CpuTune:
    """The tuning that keeps a server's promise, without any limit.

    :param policy: with units
    :param vcpus_online: a server with more of them than its flavor says (they
        were hotplugged) shares its units among all of them
    :param pcpus: those that its vCPUs may run on; None: all of the profile
    :param correction: see :func:`nova_vqos.cputune.compute`
    :raises Unenforceable: when it cannot be worked out, or given
    """
    if terms.profile is None:
        raise Unenforceable('the host has no valid profile')
    policy = policy._replace(vcpus=max(policy.vcpus, vcpus_online))
    try:
        found = cputune.compute(
            policy, terms.profile,
            terms.profile.pcpus if pcpus is None else pcpus,
            cgroup_version=terms.cgroup_version, periods=terms.periods,
            correction=correction)
    except (units.UnitsError, files.FileError) as error:
        raise Unenforceable(str(error)) from error
    if found is None:
        raise Unenforceable('the server has no units')
    return found


def changes(want: cputune.CpuTune,
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


def release_changes(desired: Desired | None, in_force: base.InForce, *,
                    charged: bool) -> tuple[base.Change, ...]:
    """What ends the limit on the I/O of a server where it has no basis.

    Its cap stays, or becomes again what it was without that limit; what
    another writer set is left as it is.

    :param desired: what was wanted last
    :param charged: whether any limit there is is ours
    """
    limited_tune = None if desired is None else desired.tune
    entitled = None if desired is None else desired.entitled
    ours = charged or (
        limited_tune is not None and limited_tune.domain is not None
        and _is(in_force.domain, limited_tune.domain))
    lowered = (
        limited_tune is not None and entitled is not None
        and limited_tune.cap is not None and limited_tune.cap != entitled.cap
        and all(_is(limit, limited_tune.cap)
                for limit in in_force.vcpus.values()))
    if lowered and entitled is not None:
        end = entitled._replace(shares=in_force.shares)
        return tuple(change for change in changes(end, in_force)
                     if ours or change.parameter not in _OF_DOMAIN)
    if ours and in_force.domain.quota_us is not None:
        return (base.Change(base.Parameter.DOMAIN_QUOTA_US, None),)
    return ()


def _is(limit: base.Limit, cap: units.CpuCap) -> bool:
    return (limit.quota_us, limit.period_us) == cap


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
