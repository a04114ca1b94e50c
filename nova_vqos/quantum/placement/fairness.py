# SPDX-License-Identifier: Apache-2.0
"""What vCPUs get of pCPUs: in pools, and where nothing is separated.

Clustering is fair by count, and a pool has whole pCPUs. So one vCPU may get
less than the kernel would give it without pools: where others of its pool want
more time than those of the next pool, and where numbers do not divide. Here is
how much. Pure.

The kernel gives each vCPU what it wants, and divides what is scarce by weight
(max-min fairness).
"""

import collections
from collections.abc import Container, Iterable, Mapping, Sequence
import itertools
import math
import typing as ty

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import pools


class _Claim(ty.NamedTuple):
    """What one vCPU wants, in pCPUs, and its weight."""

    wants: float
    weight: float

    def gets(self, level: float) -> float:
        return min(self.wants, level * self.weight)


def is_fair(groups: Iterable[tuple[Sequence[model.Vcpu], int]]) -> bool:
    """Whether no vCPU gets clearly less in its group than in all together.

    :param groups: the vCPUs of each, and how many pCPUs it has
    """
    claims = [(_claims(vcpus), pcpus) for vcpus, pcpus in groups]
    together = _level(sum((each for each, _pcpus in claims),
                          collections.Counter()),
                      sum(pcpus for _each, pcpus in claims))
    return all(
        claim.gets(level) >= (1 - pools.TOLERANCE) * claim.gets(together)
        for each, pcpus in claims
        for level in [_level(each, pcpus)] for claim in each)


def represent(vcpus: Sequence[model.Vcpu], pcpus: int,
              spinning: Container[str]
              ) -> tuple[list[model.Vcpu],
                         Mapping[model.Key, Sequence[model.Vcpu]]]:
    """Let one vCPU stand for several alike that want less than others get.

    For what goes by count: a pool of those that hardly want to run is to be
    small.

    :param pcpus: how many there are for all of them
    :param spinning: servers of which each vCPU stands for itself: where they
        are has to be known
    :returns: those that stand for themselves or for others, too; and by key of
        such a one the others
    """
    if all(vcpu.tenths == model.TENTHS for vcpu in vcpus):
        return list(vcpus), {}
    # None uses more than one pCPU.
    level = min(1.0, _level(collections.Counter(
        _Claim(vcpu.tenths / model.TENTHS, 1.0) for vcpu in vcpus), pcpus))
    standing: list[model.Vcpu] = []
    small: dict[tuple[model.Kind, bool], list[model.Vcpu]] = {}
    whole: dict[tuple[model.Kind, bool], model.Key] = {}
    for vcpu in vcpus:
        alike = vcpu.kind, vcpu.is_polluter
        if (vcpu.server in spinning
                or vcpu.tenths >= level * model.TENTHS):
            standing.append(vcpu)
            whole[alike] = vcpu.key
        else:
            small.setdefault(alike, []).append(vcpu)
    others: dict[model.Key, list[model.Vcpu]] = {}
    for alike, group in small.items():
        parts = [vcpu.tenths / model.TENTHS / level for vcpu in group]
        # Rather one too few: what comes of it is checked.
        count = int(sum(parts) + 1e-9)
        if not count and alike in whole:
            others[whole[alike]] = group
            continue
        last, place = group[0].key, -1
        for vcpu, part in zip(group, itertools.accumulate(parts, initial=0),
                              strict=False):
            if place < int(part / sum(parts) * max(1, count)):
                place += 1
                last = vcpu.key
                standing.append(vcpu)
            else:
                others.setdefault(last, []).append(vcpu)
    return standing, others


def _claims(vcpus: Iterable[model.Vcpu]) -> 'collections.Counter[_Claim]':
    return collections.Counter(_Claim(
        float(min(vcpu.tenths / model.TENTHS, vcpu.cap)),
        # A server with units weighs as much as its share, one without as a
        # whole pCPU of the reference.
        float(vcpu.share) or 1.0) for vcpu in vcpus)


def _level(claims: 'collections.Counter[_Claim]', pcpus: int) -> float:
    """What a vCPU of weight one gets, if it wants that much."""
    left = float(pcpus)
    weight = sum(claim.weight * count for claim, count in claims.items())
    for claim, count in sorted(claims.items(), key=lambda each: (
            each[0].wants / each[0].weight)):
        if claim.wants / claim.weight * weight > left:
            return left / weight
        left -= claim.wants * count
        weight -= claim.weight * count
    return math.inf
