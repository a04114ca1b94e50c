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

"""What is to be done about a server, by what is remembered of it."""

from collections.abc import Iterable

from nova_vqos import cpu_classes
from nova_vqos import units
from nova_vqos.agent import decision
from nova_vqos.agent import recap
from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base

_OF_DOMAIN = (base.Parameter.DOMAIN_QUOTA_US, base.Parameter.DOMAIN_PERIOD_US)


def pending(server: servers.Server, terms: decision.HostTerms,
            in_force: base.InForce) -> tuple[base.Change, ...]:
    """What has to be written to a server; updates what it wants.

    :raises decision.Unenforceable: when that cannot be told
    """
    if server.policy is None or server.domain is None:
        return ()
    server.honoured = False
    try:
        server.want = decision.wanted(
            server.policy, len(in_force.vcpus), server.domain.pcpus, terms)
    except decision.Unenforceable:
        # Nobody can tell what it has to pay from.
        server.limit_share = None
        raise
    server.honoured = True
    server.entitled = server.want
    if server.want is None:
        return ()
    if server.is_charged(terms):
        vcpus = max(server.policy.vcpus, len(in_force.vcpus))
        if server.limit_share is None:
            # Whoever was charged before this agent started still is.
            server.limit_share = decision.limit_in_force(
                server.want, vcpus, in_force, terms)
        if server.lifted_until_s is None:
            server.want = decision.limited(server.want, vcpus,
                                           server.limit_share, terms)
    else:
        server.limit_share = None
    server.grounds = recap.Grounds(
        server.policy, '' if terms.profile is None else terms.profile.id,
        server.domain.pcpus, len(in_force.vcpus),
        server.lifted_until_s is not None, server.limit_share)
    return decision.changes(server.want, in_force)


def to_release(server: servers.Server, terms: decision.HostTerms,
               in_force: base.InForce) -> tuple[base.Change, ...]:
    """What ends the limit on the I/O of a server that nobody works out.

    Its cap stays, or becomes again what it was without that limit; one that
    somebody else set is left as it is.
    """
    limited, entitled = server.want, server.entitled
    server.limit_share = None
    server.right = False
    ours = server.is_charged(terms) or (
        limited is not None and limited.domain is not None
        and _is(in_force.domain, limited.domain))
    lowered = (
        limited is not None and entitled is not None
        and limited.cap is not None and limited.cap != entitled.cap
        and all(_is(limit, limited.cap) for limit in in_force.vcpus.values()))
    if lowered and entitled is not None:
        end = entitled._replace(shares=in_force.shares)
        return tuple(change for change in decision.changes(end, in_force)
                     if ours or change.parameter not in _OF_DOMAIN)
    if ours and in_force.domain.quota_us is not None:
        return (base.Change(base.Parameter.DOMAIN_QUOTA_US, None),)
    # All of it is done.
    server.want = entitled if server.policy is not None else None
    return ()


def to_give_back(server: servers.Server, terms: decision.HostTerms,
                 in_force: base.InForce) -> tuple[base.Change, ...]:
    """What gives a server that pays for its I/O its whole entitlement."""
    if server.policy is None:
        return to_release(server, terms, in_force)
    server.limit_share = 1.0
    try:
        return pending(server, terms, in_force)
    except decision.Unenforceable:
        return to_release(server, terms, in_force)


def to_pin(server: servers.Server, host: Iterable[servers.Server],
           terms: decision.HostTerms,
           in_force: base.InForce) -> frozenset[int] | None:
    """The pCPUs of one class that a server is to be pinned to, if any.

    :param host: all servers of the host
    :raises decision.Unenforceable: when no class fits
    """
    profile = terms.profile
    if (server.policy is None or server.domain is None or profile is None
            or not decision.floats(server.domain, profile)):
        return None
    others = []
    for other in host:
        domain, policy = other.domain, other.policy
        if (other is not server and domain is not None and policy is not None
                and policy.units is not None
                and (other.pinned_to or not decision.floats(
                    domain, profile))):
            others.append(cpu_classes.Server(
                policy.units, other.pinned_to or domain.pcpus))
    return decision.pcpus_to_pin(
        server.policy, len(in_force.vcpus), server.domain.pcpus, others,
        terms, profile)


def _is(limit: base.Limit, cap: units.CpuCap) -> bool:
    return (limit.quota_us, limit.period_us) == cap
