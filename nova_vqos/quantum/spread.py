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
"""Keeping the vCPUs of a server that spins on locks off each other's pCPUs.

Two of them on one pCPU are worse than any slice: who waits for a lock uses up
its turn, in which the lock's holder could not run (measured on Linux 6.18:
hundreds of times slower; see the contributor's guide). The kernel does put
them there, since it balances by load alone. Beyond the thesis, which has
Xen's credit scheduler do that. Pure.

So the pCPUs of a pool are divided among such a server's vCPUs, in equal parts:
what a server of equal vCPUs was promised then is spread evenly over the pool,
and units hold as they did. Nothing is divided where the pCPUs are no multiple
of the vCPUs, for parts would be unequal; nor where each vCPU of a pool can
have a pCPU for itself.
"""

from collections.abc import Iterable, Sequence
import zlib

from nova_vqos.quantum import model
from nova_vqos.quantum import promises


def parts(pools: Iterable[model.Pool]) -> dict[model.Key, frozenset[int]]:
    """The pCPUs that each vCPU of servers that spin is to be kept on.

    :returns: by :attr:`model.Vcpu.key`, only of those that have to be kept on
        fewer pCPUs than their pool has
    """
    found: dict[model.Key, frozenset[int]] = {}
    for pool in pools:
        if (len(pool.vcpus) <= len(pool.pcpus)
                or promises.promised(pool.vcpus) > len(pool.pcpus)):
            continue
        for server, count in promises.spinning_servers(pool.vcpus).items():
            if count > 1 and len(pool.pcpus) % count == 0:
                found.update(_divided(
                    server, [vcpu for vcpu in pool.vcpus
                             if vcpu.server == server], sorted(pool.pcpus)))
    return found


def _divided(server: str, vcpus: Sequence[model.Vcpu],
             pcpus: Sequence[int]) -> dict[model.Key, frozenset[int]]:
    size = len(pcpus) // len(vcpus)
    # First vCPUs often have more to do than others: those of several servers
    # are not to meet. By the name, so that it is the same each time.
    first = zlib.crc32(server.encode()) % len(vcpus)
    ordered = sorted(vcpus, key=lambda vcpu: vcpu.number)
    return {
        vcpu.key: frozenset(pcpus[part * size:(part + 1) * size])
        for index, vcpu in enumerate(ordered)
        for part in ((index + first) % len(vcpus),)}
