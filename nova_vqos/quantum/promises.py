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

"""Pools that can keep what was promised to their vCPUs.

The thesis is fair by count: each vCPU gets the same part of a pCPU. Servers
that were sold CPU units were promised parts of their own: the ``share`` of a
vCPU. So, beyond the thesis, a pool must have at least as many pCPUs as the
shares of its vCPUs add up to. Where the two disagree fairness by count
yields: vCPUs without a promise then have less room in one pool than in
another, while who was promised a share gets it everywhere. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
import itertools
import math
import typing as ty

from nova_vqos.quantum import model
from nova_vqos.quantum import pool_level


def promised(vcpus: Iterable[model.Vcpu]) -> Fraction:
    """The pCPU time that vCPUs were promised, in pCPUs."""
    # NOTE: adding fractions one by one takes most of the time of a plan.
    numerators: dict[int, int] = {}
    for vcpu in vcpus:
        denominator = vcpu.share.denominator
        numerators[denominator] = (
            numerators.get(denominator, 0) + vcpu.share.numerator)
    return sum((Fraction(numerator, denominator)
                for denominator, numerator in numerators.items()),
               start=Fraction(0))


def spinning_servers(vcpus: Iterable[model.Vcpu]) -> dict[str, int]:
    """Servers that spin on locks, and how many of these vCPUs are theirs.

    So many pCPUs each must have: on fewer a vCPU that waits for a lock takes
    the pCPU that the lock's holder needs (measured on Linux 6.18: 30 and 93
    times slower than with all pCPUs).
    """
    counts: dict[str, int] = {}
    spinning = set()
    for vcpu in vcpus:
        counts[vcpu.server] = counts.get(vcpu.server, 0) + 1
        if vcpu.kind is model.Kind.SPIN:
            spinning.add(vcpu.server)
    return {server: counts[server] for server in counts if server in spinning}


def needed_pcpus(vcpus: Sequence[model.Vcpu]) -> int:
    """The least number of pCPUs that these vCPUs can be confined to."""
    return max(math.ceil(promised(vcpus)), min(1, len(vcpus)),
               *spinning_servers(vcpus).values())


def exchanged(sockets: Sequence[Sequence[model.Vcpu]],
              pcpus: Sequence[int]) -> list[list[model.Vcpu]]:
    """The vCPUs of each socket, so that it can hold their promises.

    A socket that cannot exchanges servers with others that can spare the
    time: only such as have as many vCPUs there of each kind, so that all else
    that the first level achieved stays. Sockets may be left over which that
    does not help.

    :param sockets: the vCPUs of each
    :param pcpus: how many each socket has
    """
    spare = [count - promised(members)
             for members, count in zip(sockets, pcpus, strict=True)]
    if min(spare) >= 0:
        return [list(members) for members in sockets]
    parts = [list(_parts(members)) for members in sockets]
    for giver, taker in itertools.permutations(range(len(parts)), 2):
        if spare[giver] >= 0 or spare[taker] <= 0:
            continue
        for heavy, light in _pairs(parts[giver], parts[taker]):
            if spare[giver] >= 0:
                break
            relief = (parts[giver][heavy].promised
                      - parts[taker][light].promised)
            if 0 < relief <= spare[taker]:
                parts[giver][heavy], parts[taker][light] = (
                    parts[taker][light], parts[giver][heavy])
                spare[giver] += relief
                spare[taker] -= relief
    return [[vcpu for part in of_socket for vcpu in part.vcpus]
            for of_socket in parts]


def grown(clusters: Sequence[pool_level.Cluster]) -> list[pool_level.Cluster]:
    """Clusters of one socket, each with the pCPUs that it needs.

    Those that need more take them from those with most to spare. Where there
    are none to spare, the neediest one and the default one (or, where there
    is none, that with most to spare) become one at the default quantum.

    :param clusters: what they need together as one, they have
    """
    clusters = list(clusters)
    needed = [needed_pcpus(cluster.vcpus) for cluster in clusters]
    while len(clusters) > 1 and sum(needed) > sum(
            cluster.pcpus for cluster in clusters):
        clusters = _merged(clusters, needed)
        needed = [needed_pcpus(cluster.vcpus) for cluster in clusters]
    spare = [cluster.pcpus - need
             for cluster, need in zip(clusters, needed, strict=True)]
    while min(spare) < 0 < max(spare):
        spare[spare.index(min(spare))] += 1
        spare[spare.index(max(spare))] -= 1
    return [cluster._replace(pcpus=need + more) for cluster, need, more
            in zip(clusters, needed, spare, strict=True)]


def _merged(clusters: Sequence[pool_level.Cluster],
            needed: Sequence[int]) -> list[pool_level.Cluster]:
    """One cluster less: two become one at the default quantum."""
    by_spare = sorted(range(len(clusters)), key=lambda place: (
        clusters[place].pcpus - needed[place]))
    neediest = by_spare.pop(0)
    other = next((place for place in by_spare
                  if clusters[place].slice_us is None), by_spare[-1])
    merged = pool_level.Cluster(
        None, clusters[neediest].pcpus + clusters[other].pcpus,
        clusters[neediest].vcpus + clusters[other].vcpus)
    return [cluster for place, cluster in enumerate(clusters)
            if place not in (neediest, other)] + [merged]


class _Part(ty.NamedTuple):
    """The vCPUs of one server on one socket.

    :ivar promised: their shares together
    :ivar kinds: of each of them, in some fixed order
    """

    vcpus: Sequence[model.Vcpu]
    promised: Fraction
    kinds: tuple[tuple[str, bool], ...]


def _parts(vcpus: Sequence[model.Vcpu]) -> Iterator[_Part]:
    by_server: dict[str, list[model.Vcpu]] = {}
    for vcpu in vcpus:
        by_server.setdefault(vcpu.server, []).append(vcpu)
    for members in by_server.values():
        yield _Part(members, promised(members), tuple(sorted(
            (vcpu.kind.value, vcpu.is_polluter) for vcpu in members)))


def _pairs(givers: Sequence[_Part],
           takers: Sequence[_Part]) -> Iterator[tuple[int, int]]:
    """Positions of parts alike in all but their promise.

    Each is in one pair at most; of those alike the heaviest goes with the
    lightest.
    """
    alike: dict[tuple[tuple[str, bool], ...], list[int]] = {}
    for place in sorted(range(len(takers)),
                        key=lambda place: -takers[place].promised):
        alike.setdefault(takers[place].kinds, []).append(place)
    for place in sorted(range(len(givers)),
                        key=lambda place: -givers[place].promised):
        lightest = alike.get(givers[place].kinds)
        if lightest:
            yield place, lightest.pop()
