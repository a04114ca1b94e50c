# SPDX-License-Identifier: Apache-2.0
"""Which pCPUs each pool of a socket gets, and each vCPU that spins.

Beyond the thesis. It knows no SMT: siblings share a core's caches and units,
so that a vCPU on one disturbs a vCPU on the other, and they stay in one pool
where the numbers allow it. And it relies on Xen's credit scheduler to keep
vCPUs that wait for each other's locks apart. Two of them on one pCPU are worse
than any slice: the one that waits uses up its turn, in which the lock's holder
cannot run (measured on Linux 6.18: hundreds of times slower; see the
contributor's guide). The kernel puts them there, since it balances by load
alone. Pure.
"""

from collections.abc import Iterable, Sequence, Set
import zlib

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import guarantees


def assign_to_pools(cores: Sequence[Sequence[int]], counts: Sequence[int],
                    previous: Sequence[Set[int]]) -> list[frozenset[int]]:
    """The pCPUs of each pool.

    A pool keeps whole cores that it has, then gets free cores that it needs as
    a whole, larger ones first. Only then are cores divided: where all are of
    one size at most one per pool.

    :param cores: the pCPU numbers of each core
    :param counts: how many pCPUs each pool gets; as many as there are
    :param previous: the pCPUs that each pool had so far
    """
    pools: list[set[int]] = [set() for _ in counts]
    wanting = list(counts)
    free: list[Sequence[int]] = sorted(cores, key=len, reverse=True)
    for as_whole in (True, False):
        if not as_whole:
            free = [(pcpu,) for core in free for pcpu in core]
        for to_holder in (True, False):
            left = []
            for part in free:
                pool = next((
                    pool for pool, want in enumerate(wanting)
                    if len(part) <= want
                    and (not to_holder or previous[pool] >= set(part))), None)
                if pool is None:
                    left.append(part)
                else:
                    pools[pool].update(part)
                    wanting[pool] -= len(part)
            free = left
    return [frozenset(pool) for pool in pools]


def assign_to_spinning(pools: Iterable[model.Pool]
                       ) -> dict[model.Key, frozenset[int]]:
    """The pCPUs of each vCPU of servers that spin on locks.

    Divides the pCPUs of a pool among such a server's vCPUs in equal parts.
    What equal vCPUs of a server are guaranteed is then spread evenly over the
    pool, and units hold as before. Divides nothing where parts would be
    unequal, since the pCPUs are no multiple of the vCPUs; nor where each vCPU
    of a pool can have a pCPU to itself.

    :returns: by :attr:`model.Vcpu.key`, only vCPUs that are confined to fewer
        pCPUs than their pool has
    """
    found: dict[model.Key, frozenset[int]] = {}
    for pool in pools:
        pcpus = sorted(pool.pcpus)
        if (len(pool.vcpus) <= len(pcpus)
                or guarantees.guaranteed_pcpus(pool.vcpus) > len(pcpus)):
            continue
        for server, count in guarantees.spinning_servers(pool.vcpus).items():
            size, rest = divmod(len(pcpus), count)
            if count == 1 or rest:
                continue
            # First vCPUs often have more work than others: those of several
            # servers get different parts, the same ones each time.
            first = zlib.crc32(server.encode())
            keys = sorted(vcpu.key for vcpu in pool.vcpus
                          if vcpu.server == server)
            for index, key in enumerate(keys, start=first):
                begin = index % count * size
                found[key] = frozenset(pcpus[begin:begin + size])
    return found
