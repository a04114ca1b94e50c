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

"""What a server's policy means on one host: the cap and weight it gets there.

The one place where units become microseconds: the compute driver (for a new
guest), libvirt's hook (for one that migrates in) and the agent (for those
that run) all ask here, so they cannot differ.
"""

from collections.abc import Iterable
import os
import typing as ty

from nova_vqos import policy as policies
from nova_vqos import profile as profiles
from nova_vqos import units
from nova_vqos.quantum import classes

_CGROUP_V2_MARK = '/sys/fs/cgroup/cgroup.controllers'


class Tune(ty.NamedTuple):
    """CPU tuning of a server on a host.

    :ivar cap: of each vCPU; None: no limit
    :ivar shares: weight of the whole server, in the terms of the host's
        cgroup version
    :ivar domain: limit of all that runs for the server, its I/O included;
        None: no limit
    """

    cap: units.CpuCap | None
    shares: int
    domain: units.CpuCap | None = None


class Periods(ty.NamedTuple):
    """The CFS periods of a host's caps, in microseconds.

    :ivar plain_us: of most servers
    :ivar cache_longest_us: see :func:`nova_vqos.units.holding_period_us`
    :ivar cache_slice_us: how long a server of class ``cache`` is to run at a
        time
    """

    plain_us: int = units.DEFAULT_PERIOD_US
    cache_longest_us: int = units.DEFAULT_CACHE_MAX_PERIOD_US
    cache_slice_us: int = classes.DEFAULT_SLICES_US[classes.CACHE]


DEFAULT_PERIODS: ty.Final = Periods()


def tune(policy: policies.ServerPolicy, profile: profiles.Profile,
         pcpus: Iterable[int], *, cgroup_version: int,
         periods: Periods = DEFAULT_PERIODS) -> Tune | None:
    """The tuning that keeps a server's promise on a host.

    The period of class ``cache`` follows from the flavor alone: one that the
    agent has recognised as such (``auto``) keeps the plain one. Driver and
    hook cannot know of that, and each change of a period is a write that
    gives CPU time away.

    :param pcpus: those that the server's vCPUs may run on: the slowest counts
    :returns: None where the policy promises no speed: stock Nova's business
    :raises nova_vqos.units.HostTooSlow: when a vCPU needs a faster pCPU
    :raises nova_vqos.units.ShareTooSmall: when a vCPU is too slow for a quota
    :raises nova_vqos.profile.ProfileInvalid: when a pCPU was not measured
    """
    if policy.units is None:
        return None
    return Tune(
        cap=cap_of(policy, profile.slowest(pcpus), tick_us=profile.tick_us,
                   periods=periods),
        shares=units.shares(policy.units, cgroup_version))


def cap_of(policy: policies.ServerPolicy, coefficient: float, *,
           tick_us: int, periods: Periods) -> units.CpuCap | None:
    """The cap of each vCPU of a server on pCPUs of one speed.

    :param policy: with units
    :param coefficient: of the slowest pCPU that the server may run on
    :param tick_us: length of the kernel's scheduler tick
    :returns: None where the policy is a floor
    :raises nova_vqos.units.HostTooSlow: when a vCPU needs a faster pCPU
    :raises nova_vqos.units.ShareTooSmall: when a vCPU is too slow for a quota
    """
    cu = ty.cast(int, policy.units)
    period_us = periods.plain_us
    if policy.quantum_class == classes.CACHE:
        period_us = units.holding_period_us(
            units.share(cu, policy.vcpus, coefficient),
            periods.cache_slice_us, periods.plain_us,
            periods.cache_longest_us)
    # Also for a floor: a pCPU that is too slow cannot give it either.
    cap = units.cap(cu, policy.vcpus, coefficient, tick_us=tick_us,
                    period_us=period_us)
    return cap if policy.cap == 'hard' else None


def host_cgroup_version() -> int:
    """2 where cgroups are unified on this host, else 1."""
    return 2 if os.path.exists(_CGROUP_V2_MARK) else 1
