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

"""Keeping vCPUs that wait for each other's locks off each other's pCPUs."""

from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import pooling
from nova_vqos.quantum import spread

KIND = model.Kind
SLICES_US = classes.DEFAULT_SLICES_US


def server(name, kind, vcpus, share=Fraction(0)):
    return tuple(model.Vcpu(name, number, kind, share=share)
                 for number in range(vcpus))


def pool(pcpus, *servers):
    return model.Pool(0, frozenset(pcpus), None, tuple(
        vcpu for vcpus in servers for vcpu in vcpus))


def test_each_has_pcpus_of_its_own():
    found = spread.parts([pool(range(4), server('a', KIND.SPIN, 2),
                               server('b', KIND.CACHE, 4))])
    assert set(found) == {('a', 0), ('a', 1)}
    assert sorted(map(sorted, found.values())) == [[0, 1], [2, 3]]


def test_so_have_those_of_its_vcpus_that_do_not_spin():
    vcpus = (model.Vcpu('a', 0, KIND.SPIN), model.Vcpu('a', 1, KIND.IO))
    found = spread.parts([pool({5, 7}, vcpus, server('b', KIND.CACHE, 2))])
    assert sorted(map(sorted, found.values())) == [[5], [7]]


@pytest.mark.parametrize('vcpus', [
    # One has nobody to wait for.
    server('a', KIND.SPIN, 1),
    # Parts would be unequal.
    server('a', KIND.SPIN, 3),
    server('a', KIND.CACHE, 4)])
def test_others_may_run_anywhere(vcpus):
    assert spread.parts([pool(range(4), vcpus,
                              server('b', KIND.CACHE, 4))]) == {}


def test_where_there_is_room_for_all_nothing_is_divided():
    assert spread.parts([pool(range(4), server('a', KIND.SPIN, 4))]) == {}


def test_a_pool_that_cannot_hold_what_it_promised_is_not_divided():
    assert spread.parts([pool(
        range(2), server('a', KIND.SPIN, 2, Fraction(9, 10)),
        server('b', KIND.CACHE, 1, Fraction(9, 10)))]) == {}


@hypothesis.given(
    st.integers(1, 12), st.lists(st.integers(1, 12), max_size=8))
def test_units_hold_on_each_pcpu(pcpus, sizes):
    """Whoever is kept on a part finds what it was promised there."""
    servers = [server(str(number), KIND.SPIN, size,
                      Fraction(pcpus, max(1, sum(sizes))))
               for number, size in enumerate(sizes)]
    hypothesis.assume(pcpus <= sum(sizes))
    found = spread.parts([pool(range(pcpus), *servers)])
    # Spread evenly over its part, no pCPU has more than all of its time.
    load = dict.fromkeys(range(pcpus), Fraction(0))
    for vcpus in servers:
        own = [found[vcpu.key] for vcpu in vcpus if vcpu.key in found]
        assert len(own) in (0, len(vcpus))
        assert sum(map(len, own)) == len(frozenset().union(*own))
        for vcpu, part in zip(vcpus, own, strict=False):
            for pcpu in part:
                load[pcpu] += vcpu.share / len(part)
    assert all(found <= 1 for found in load.values())


def test_it_is_the_same_each_time():
    pools = [pool(range(4), server('a', KIND.SPIN, 4),
                  server('b', KIND.SPIN, 2))]
    assert spread.parts(pools) == spread.parts(pools)


def test_a_host_where_nothing_else_is_kept_apart():
    servers = [
        pooling.Server('a', dict.fromkeys(range(2), KIND.SPIN), Fraction(0),
                       frozenset({0, 1})),
        pooling.Server('b', dict.fromkeys(range(2), KIND.CACHE), Fraction(0),
                       frozenset({0, 1}))]
    found = pooling.plan_host(
        servers, [model.Socket(0, ((0,), (1,)))], SLICES_US).placements
    assert found['b'].pcpus is None
    assert sorted(map(sorted, found['a'].pcpus.values())) == [[0], [1]]
