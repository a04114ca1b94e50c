# SPDX-License-Identifier: Apache-2.0
"""Pools that hold the guaranteed shares of their vCPUs.

The thesis is fair by count: each vCPU gets the same part of a pCPU. Servers
with CPU units have guaranteed parts of their own: the ``share`` of a vCPU. So,
beyond the thesis, a pool must have at least as many pCPUs as the shares of its
vCPUs add up to. Where the two disagree fairness by count yields: vCPUs without
a share then have less room in one pool than in another, while every share
holds everywhere. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
import itertools
import math
import typing as ty

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import pools


def guaranteed_pcpus(vcpus: Iterable[model.Vcpu]) -> Fraction:
    """The sum of the shares of vCPUs, in pCPUs."""
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

    Each needs as many pCPUs: on fewer a vCPU that waits for a lock takes the
    pCPU of the lock's holder (measured on Linux 6.18: 30 and 93 times slower
    than with all pCPUs).
    """
    counts: dict[str, int] = {}
    spinning = set()
    for vcpu in vcpus:
        counts[vcpu.server] = counts.get(vcpu.server, 0) + 1
        if vcpu.kind is model.Kind.SPIN:
            spinning.add(vcpu.server)
    return {server: counts[server] for server in counts if server in spinning}


def needed_pcpus(vcpus: Sequence[model.Vcpu]) -> int:
    """The least number of pCPUs that these vCPUs may be confined to."""
    return max(math.ceil(guaranteed_pcpus(vcpus)), min(1, len(vcpus)),
               *spinning_servers(vcpus).values())


def exchange(sockets: Sequence[Sequence[model.Vcpu]],
             pcpus: Sequence[int]) -> list[list[model.Vcpu]]:
    """Exchange servers between sockets, so that each holds its guarantees.

    A socket with too many guarantees exchanges servers with others that can
    spare the time. Only servers with as many vCPUs of each kind there change
    places, so that all else that the first level achieved stays. Some sockets
    may still have too many.

    :param sockets: the vCPUs of each
    :param pcpus: how many each socket has
    :returns: the vCPUs of each socket
    """
    spare = [count - guaranteed_pcpus(members)
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
            relief = (parts[giver][heavy].guaranteed
                      - parts[taker][light].guaranteed)
            if 0 < relief <= spare[taker]:
                parts[giver][heavy], parts[taker][light] = (
                    parts[taker][light], parts[giver][heavy])
                spare[giver] += relief
                spare[taker] -= relief
    return [[vcpu for part in of_socket for vcpu in part.vcpus]
            for of_socket in parts]


def widen(clusters: Sequence[pools.Cluster]) -> list[pools.Cluster]:
    """Give each cluster of a socket the pCPUs that it needs.

    Clusters that need more get them from those with most to spare. Where the
    socket has too few, the neediest cluster and the default one (or, without
    one, that with most to spare) become one at the default quantum.

    :param clusters: the socket has enough pCPUs for all of them as one
    """
    clusters = list(clusters)
    needed = [needed_pcpus(cluster.vcpus) for cluster in clusters]
    while len(clusters) > 1 and sum(needed) > sum(
            cluster.pcpus for cluster in clusters):
        clusters = _merge(clusters, needed)
        needed = [needed_pcpus(cluster.vcpus) for cluster in clusters]
    spare = [cluster.pcpus - need
             for cluster, need in zip(clusters, needed, strict=True)]
    while min(spare) < 0 < max(spare):
        spare[spare.index(min(spare))] += 1
        spare[spare.index(max(spare))] -= 1
    return [cluster._replace(pcpus=need + more) for cluster, need, more
            in zip(clusters, needed, spare, strict=True)]


def _merge(clusters: Sequence[pools.Cluster],
           needed: Sequence[int]) -> list[pools.Cluster]:
    """Make one cluster of two, at the default quantum."""
    by_spare = sorted(range(len(clusters)), key=lambda place: (
        clusters[place].pcpus - needed[place]))
    neediest = by_spare.pop(0)
    other = next((place for place in by_spare
                  if clusters[place].slice_us is None), by_spare[-1])
    merged = pools.Cluster(
        None, clusters[neediest].pcpus + clusters[other].pcpus,
        clusters[neediest].vcpus + clusters[other].vcpus)
    return [cluster for place, cluster in enumerate(clusters)
            if place not in (neediest, other)] + [merged]


class _Part(ty.NamedTuple):
    """The vCPUs of one server on one socket.

    :ivar guaranteed: their shares together
    :ivar kinds: of each of them, sorted
    """

    vcpus: Sequence[model.Vcpu]
    guaranteed: Fraction
    kinds: tuple[tuple[str, bool], ...]


def _parts(vcpus: Sequence[model.Vcpu]) -> Iterator[_Part]:
    by_server: dict[str, list[model.Vcpu]] = {}
    for vcpu in vcpus:
        by_server.setdefault(vcpu.server, []).append(vcpu)
    for members in by_server.values():
        yield _Part(members, guaranteed_pcpus(members), tuple(sorted(
            (vcpu.kind.value, vcpu.is_polluter) for vcpu in members)))


def _pairs(givers: Sequence[_Part],
           takers: Sequence[_Part]) -> Iterator[tuple[int, int]]:
    """Positions of parts that differ in their guarantees only.

    Each is in one pair at most; the heaviest giver goes with the lightest
    taker.
    """
    alike: dict[tuple[tuple[str, bool], ...], list[int]] = {}
    for place in sorted(range(len(takers)),
                        key=lambda place: -takers[place].guaranteed):
        alike.setdefault(takers[place].kinds, []).append(place)
    for place in sorted(range(len(givers)),
                        key=lambda place: -givers[place].guaranteed):
        lightest = alike.get(givers[place].kinds)
        if lightest:
            yield place, lightest.pop()
