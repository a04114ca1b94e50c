# SPDX-License-Identifier: Apache-2.0
"""Servers without CPU units on a host that sells units, and what they take.

Placement does not see that they run on the same pCPUs: they claim VCPU, and no
units. So the inventory of units reserves what they can use.
"""

from fractions import Fraction
import math
import typing as ty

from nova_vqos import policy
from nova_vqos import units

# libvirt's, where a quota has no period.
_DEFAULT_PERIOD_US = 100_000


class StockServer(ty.NamedTuple):
    """A server of Nova without units.

    :ivar vcpus: how many it has
    :ivar pcpus: those that they may run on; None: all that servers share
    :ivar vcpu_share: the most of a pCPU's time that each may use, up to 1
    """

    vcpus: int
    pcpus: frozenset[int] | None
    vcpu_share: Fraction


class Load(ty.NamedTuple):
    """What the servers without units of a host take.

    :ivar servers: how many there are, those that are stopped included
    :ivar cu: CU that they can use of the shared pCPUs; None: there is no
        profile, or nothing is reserved for them
    """

    servers: int
    cu: int | None


def of_domain(domain):
    """A domain as a server without units, None if it is none.

    One whose flavor has units is none, even if the flavor is invalid: it
    claimed them.

    :param domain: :class:`nova_vqos.domain_xml.Domain`
    """
    if (domain.extra_specs is None
            or policy.UNITS_KEY in domain.extra_specs):
        return None
    share = Fraction(1)
    if domain.quota_us is not None and domain.quota_us > 0:
        share = min(share, Fraction(
            domain.quota_us, domain.period_us or _DEFAULT_PERIOD_US))
    return StockServer(max(domain.vcpus or 1, 1), domain.pcpus, share)


def cu_of(servers, profile, pcpus):
    """CU of the shared pCPUs that servers without units can use.

    Each vCPU a whole pCPU, the fastest that it may run on, or the part of one
    that its quota allows; a server no more than all of its pCPUs have.

    :param profile: of the host
    :param pcpus: those that servers share; one that was not measured has none
    """
    total_cu = Fraction(0)
    measured = profile.pcpus & pcpus
    for server in servers:
        # None of these where they are dedicated.
        pcpus_cu = [units.pcpu_cu(profile.coefficient(pcpu)) for pcpu in (
            measured if server.pcpus is None else measured & server.pcpus)]
        if pcpus_cu:
            total_cu += min(sum(pcpus_cu), server.vcpus * server.vcpu_share
                            * max(pcpus_cu))
    return math.ceil(total_cu)
