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


def tune(policy: policies.ServerPolicy, profile: profiles.Profile,
         pcpus: Iterable[int], *, cgroup_version: int,
         period_us: int = units.DEFAULT_PERIOD_US) -> Tune | None:
    """The tuning that keeps a server's promise on a host.

    :param pcpus: those that the server's vCPUs may run on: the slowest counts
    :returns: None where the policy promises no speed: stock Nova's business
    :raises nova_vqos.units.HostTooSlow: when a vCPU needs a faster pCPU
    :raises nova_vqos.units.ShareTooSmall: when a vCPU is too slow for a quota
    :raises nova_vqos.profile.ProfileInvalid: when a pCPU was not measured
    """
    if policy.units is None:
        return None
    # Also for a floor: a pCPU that is too slow cannot give it either.
    cap = units.cap(policy.units, policy.vcpus, profile.slowest(pcpus),
                    tick_us=profile.tick_us, period_us=period_us)
    return Tune(cap=cap if policy.cap == 'hard' else None,
                shares=units.shares(policy.units, cgroup_version))


def host_cgroup_version() -> int:
    """2 where cgroups are unified on this host, else 1."""
    return 2 if os.path.exists(_CGROUP_V2_MARK) else 1
