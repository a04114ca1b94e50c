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
"""Which servers can be kept apart, and what a plan means for each."""

from fractions import Fraction

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import pooling

KIND = model.Kind
SLICES_US = classes.DEFAULT_SLICES_US
SOCKETS = (model.Socket(0, ((0,), (1,))), model.Socket(1, ((2,), (3,))))


def server(uuid, kind, pcpus=(0, 1, 2, 3), vcpus=2, share=Fraction(1, 10)):
    return pooling.Server(uuid, dict.fromkeys(range(vcpus), kind), share,
                          frozenset(pcpus))


def test_unlike_servers_are_kept_apart():
    found = pooling.plan_host(
        [server('a', KIND.CACHE), server('b', KIND.DEFAULT)], SOCKETS[:1],
        SLICES_US)
    # pCPUs that may be used and are not online are nobody's.
    first, second = (found.placements[uuid] for uuid in 'ab')
    assert first.slices_us == {0: 90_000, 1: 90_000}
    assert second.slices_us == {0: None, 1: None}
    assert first.pcpus[0] | second.pcpus[0] == {0, 1}
    assert not first.pcpus[0] & second.pcpus[0]
    assert found.left_alone == {}


def test_servers_that_are_alike_get_slices_alone():
    found = pooling.plan_host(
        [server('a', KIND.CACHE), server('b', KIND.CACHE)], SOCKETS,
        SLICES_US)
    assert [placement.pcpus for placement in found.placements.values()] == [
        None, None]
    assert found.placements['a'].slices_us == {0: 90_000, 1: 90_000}


def test_servers_of_other_pcpus_are_planned_for_themselves():
    found = pooling.plan_host(
        [server('a', KIND.CACHE, {0, 1}), server('b', KIND.DEFAULT, {0, 1}),
         server('c', KIND.CACHE, {2, 3})], SOCKETS, SLICES_US)
    assert set(found.plans) == {frozenset({0, 1}), frozenset({2, 3})}
    assert found.placements['a'].pcpus is not None
    assert found.placements['c'].pcpus is None


def test_sets_that_overlap_are_left_alone():
    found = pooling.plan_host(
        [server('a', KIND.CACHE, {0, 1, 2}), server('b', KIND.CACHE, {1}),
         server('c', KIND.DEFAULT, {2}), server('d', KIND.DEFAULT, {3}),
         server('e', KIND.CACHE, {3})], SOCKETS, SLICES_US)
    assert found.left_alone == dict.fromkeys('abc', pooling.OVERLAP)
    assert set(found.placements) == {'d', 'e'}


def test_servers_without_a_pcpu_are_left_alone():
    found = pooling.plan_host([server('a', KIND.CACHE, {7})], SOCKETS,
                              SLICES_US)
    assert found.left_alone == {'a': pooling.NO_PCPU}


def test_a_plan_that_was_made_stays():
    servers = [server(uuid, kind) for uuid, kind in zip(
        'abcdef', (KIND.CACHE, KIND.DEFAULT) * 3, strict=True)]
    first = pooling.plan_host(servers, SOCKETS, SLICES_US)
    servers.reverse()
    again = pooling.plan_host(servers, SOCKETS, SLICES_US, first)
    assert again.placements == first.placements


def test_nobody():
    assert pooling.plan_host([], SOCKETS, SLICES_US) == pooling.NOTHING
