# SPDX-License-Identifier: Apache-2.0
"""No vCPU gets clearly less CPU time in a pool than without it."""

import dataclasses
from fractions import Fraction

import hypothesis
import pytest

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import fairness
from nova_vqos.quantum.placement import plan as planning
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
of_kind = quantum_vcpus.of_kind


def wanting(tenths, vcpus):
    return [dataclasses.replace(vcpu, tenths=tenths) for vcpu in vcpus]


def times(vcpus, pcpus):
    """What each gets, by small steps: another way than the code's."""
    got = dict.fromkeys((vcpu.key for vcpu in vcpus), 0.0)
    wants = {vcpu.key: float(min(vcpu.tenths / 10, vcpu.cap))
             for vcpu in vcpus}
    weights = {vcpu.key: float(vcpu.share) or 1.0 for vcpu in vcpus}
    left = float(pcpus)
    while left > 1e-6:
        hungry = [key for key in got if got[key] < wants[key] - 1e-9]
        if not hungry:
            break
        weight = sum(weights[key] for key in hungry)
        step = min(left / weight, *(
            (wants[key] - got[key]) / weights[key] for key in hungry))
        for key in hungry:
            got[key] += step * weights[key]
        left -= step * weight
    return got


class TestIsFair:
    @pytest.mark.parametrize('groups, fair', [
        # Four that hardly want to run have half of the host.
        ([(of_kind(Kind.CACHE, 4), 1),
          (wanting(1, of_kind(Kind.IO, 4)), 1)], False),
        ([(of_kind(Kind.CACHE, 9), 9),
          (wanting(1, of_kind(Kind.IO, 10)), 1)], True),
        ([(of_kind(Kind.CACHE, 4), 1), (of_kind(Kind.IO, 4), 1)], True),
        ([(of_kind(Kind.CACHE, 4), 1), (of_kind(Kind.IO, 3), 1)], False),
        # By 2.4 %, and by 3.2 %.
        ([(of_kind(Kind.CACHE, 41), 10), (of_kind(Kind.IO, 39), 10)], True),
        ([(of_kind(Kind.CACHE, 31), 10), (of_kind(Kind.IO, 29), 10)], False),
        # Each has a pCPU.
        ([(of_kind(Kind.CACHE, 1), 1), (of_kind(Kind.IO, 1), 3)], True),
        ([([], 1), (of_kind(Kind.CACHE, 2), 3)], True)])
    def test_by_count_and_demand(self, groups, fair):
        assert fairness.is_fair(groups) is fair

    def test_what_a_cap_takes_a_pool_does_not(self):
        vcpus = [dataclasses.replace(vcpu, share=Fraction(1, 4),
                                     cap=Fraction(1, 4))
                 for vcpu in of_kind(Kind.CACHE, 4)]
        others = of_kind(Kind.IO, 2)
        assert not fairness.is_fair([(of_kind(Kind.CACHE, 4), 1),
                                     (others, 1)])
        assert fairness.is_fair([(vcpus, 1), (wanting(5, others), 1)])

    @hypothesis.given(quantum_vcpus.vcpus(shares=True), quantum_vcpus.hosts(),
                      quantum_vcpus.slices())
    def test_plans(self, vcpus, host, slices_us):
        """Whoever is confined, gets as much as where nothing is divided."""
        plan = planning.make_plan(vcpus, host, slices_us)
        together = times(vcpus, sum(len(one.pcpus) for one in host))
        for pool in plan.pools if plan.separates else ():
            for key, time in times(pool.vcpus, len(pool.pcpus)).items():
                assert time >= 0.97 * together[key] - 1e-6


class TestRepresent:
    @pytest.mark.parametrize('vcpus, pcpus, standing', [
        (of_kind(Kind.CACHE, 4), 2, 4),
        # 0.4 pCPUs for those of kind IO leave 0.4 to each other: ten of these
        # are as one.
        (of_kind(Kind.CACHE, 4) + wanting(1, of_kind(Kind.IO, 4)), 2, 5),
        (of_kind(Kind.CACHE, 9) + wanting(1, of_kind(Kind.IO, 20)), 8, 12),
        # There is enough for all.
        (wanting(5, of_kind(Kind.IO, 4)), 4, 2),
        # With others of their kind they need none that stands for them.
        (of_kind(Kind.IO, 4) + wanting(1, of_kind(Kind.IO, 1)), 2, 4),
        # Those that spin are counted one by one.
        (wanting(1, of_kind(Kind.SPIN, 4)), 2, 4)])
    def test_how_many_count(self, vcpus, pcpus, standing):
        spinning = {vcpu.server for vcpu in vcpus if vcpu.kind is Kind.SPIN}
        found, others = fairness.represent(vcpus, pcpus, spinning)
        assert len(found) == standing
        assert sorted(vcpu.key for vcpu in found + [
            one for group in others.values() for one in group]) == sorted(
                vcpu.key for vcpu in vcpus)
        for key, group in others.items():
            (kind,) = {vcpu.kind for vcpu in found if vcpu.key == key}
            assert {vcpu.kind for vcpu in group} == {kind}

    def test_of_a_server_that_spins_each_stands_for_itself(self):
        vcpus = wanting(1, [
            *of_kind(Kind.CACHE, 4, name='other'),
            *of_kind(Kind.SPIN, 1, name='spins'),
            model.Vcpu('spins0', 1, Kind.CACHE)])
        found, _others = fairness.represent(vcpus, 2, {'spins0'})
        assert {('spins0', 0), ('spins0', 1)} <= {vcpu.key for vcpu in found}


def test_others_stand_for_no_vcpu_of_a_server_that_spins():
    """It was sent to a pool that is too narrow for it, again and again."""
    kinds = {
        'a': (Kind.POLLUTER, Kind.CACHE),
        'b': (Kind.IO, Kind.DEFAULT, Kind.SPIN, Kind.CACHE),
        'c': (Kind.IO, Kind.SPIN, Kind.IO)}
    vcpus = [model.Vcpu(server, number, kind)
             for server, of_server in kinds.items()
             for number, kind in enumerate(of_server)]
    vcpus += wanting(1, [
        model.Vcpu('d', number, kind) for number, kind
        in enumerate((Kind.POLLUTER, Kind.POLLUTER, Kind.SPIN))])
    plan = planning.make_plan(vcpus, quantum_vcpus.sockets(1, 5),
                              quantum_vcpus.SLICES_US)
    assert {vcpu.key for pool in plan.pools for vcpu in pool.vcpus} == {
        vcpu.key for vcpu in vcpus}


def test_a_pool_of_idle_ones_is_small():
    vcpus = [*of_kind(Kind.CACHE, 60), *wanting(1, of_kind(Kind.DEFAULT, 40))]
    plan = planning.make_plan(vcpus, quantum_vcpus.sockets(1, 32),
                              {'cache': 90_000})
    assert {pool.slice_us: (len(pool.pcpus), quantum_vcpus.counted(pool.vcpus))
            for pool in plan.pools} == {
        90_000: (28, {'CACHE': 60}), None: (4, {'DEFAULT': 40})}
