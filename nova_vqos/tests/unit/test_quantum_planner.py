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

import collections
import dataclasses
from fractions import Fraction
import random
import unittest

import hypothesis
from hypothesis import strategies as st

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import planner
from nova_vqos.quantum import pool_level
from nova_vqos.quantum import promises
from nova_vqos.tests.unit import quantum_vcpus

Kind = model.Kind
SLICES_US = quantum_vcpus.SLICES_US
of_kind = quantum_vcpus.of_kind
sockets = quantum_vcpus.sockets


def shown(plan):
    return [(pool.socket, pool.slice_us, len(pool.pcpus),
             quantum_vcpus.counted(pool.vcpus)) for pool in plan.pools]


def plan_of(vcpus, host, before=None, slices_us=SLICES_US):
    return planner.plan(vcpus, host, slices_us, before)


class ExamplesTest(unittest.TestCase):
    """The examples of the thesis, as whole plans."""

    def test_figure_3_3_has_six_clusters(self):
        # Of the servers of each kind it says nothing. Where IOInt+ and LLCO
        # ones take turns the second socket has two clusters as drawn.
        vcpus = []
        for number in range(3):
            vcpus += of_kind(Kind.IO, 4, pollutes=True, per_server=4,
                             name=f'io{number}-')
            vcpus += of_kind(Kind.POLLUTER, 4, per_server=4,
                             name=f'polluter{number}-')
        vcpus += of_kind(Kind.CACHE, 17) + of_kind(Kind.SPIN, 7)
        plan = plan_of(vcpus, sockets(3, 4))
        self.assertTrue(plan.separates)
        self.assertEqual([
            (0, 1_000, 4, {'IO+': 8, 'POLLUTER': 8}),
            (1, 1_000, 2, {'IO+': 4, 'POLLUTER': 4}),
            (1, 90_000, 2, {'CACHE': 8}),
            (2, 1_000, 1, {'SPIN': 4}),
            (2, 90_000, 2, {'CACHE': 8}),
            (2, None, 1, {'CACHE': 1, 'SPIN': 3})], shown(plan))

    def test_scenarios(self):
        for groups, expected in (
                ({Kind.SPIN: 5, Kind.CACHE: 5, Kind.NEUTRAL: 6},
                 [(0, 1_000, 2, {'SPIN': 5, 'NEUTRAL': 3}),
                  (0, 90_000, 2, {'CACHE': 5, 'NEUTRAL': 3})]),
                ({Kind.IO: 5, Kind.CACHE: 5, Kind.POLLUTER: 6},
                 [(0, 1_000, 2, {'IO': 5, 'POLLUTER': 3}),
                  (0, 90_000, 2, {'CACHE': 5, 'POLLUTER': 3})]),
                ({Kind.CACHE: 5, Kind.POLLUTER: 5, Kind.NEUTRAL: 6},
                 [(0, 90_000, 4,
                   {'CACHE': 5, 'POLLUTER': 5, 'NEUTRAL': 6})]),
                ({Kind.IO: 4, Kind.SPIN: 4, Kind.CACHE: 4, Kind.POLLUTER: 4},
                 [(0, 1_000, 2, {'IO': 4, 'SPIN': 4}),
                  (0, 90_000, 2, {'CACHE': 4, 'POLLUTER': 4})]),
                ({Kind.IO: 4, Kind.SPIN: 4, Kind.CACHE: 4, Kind.POLLUTER: 2,
                  Kind.NEUTRAL: 2},
                 [(0, 1_000, 2, {'IO': 4, 'SPIN': 4}),
                  (0, 90_000, 2,
                   {'CACHE': 4, 'POLLUTER': 2, 'NEUTRAL': 2})])):
            with self.subTest(groups=groups):
                plan = plan_of(
                    [vcpu for kind, count in groups.items()
                     for vcpu in of_kind(kind, count, per_server=2)],
                    sockets(1, 4))
                self.assertEqual(expected, shown(plan))
                self.assertEqual(len(expected) > 1, plan.separates)


class NeedTest(unittest.TestCase):
    """Nothing is separated without need."""

    def _check_together(self, plan, slice_us):
        self.assertFalse(plan.separates)
        self.assertEqual({slice_us}, {pool.slice_us for pool in plan.pools})

    def test_one_quantum_suits_all(self):
        for kinds, slice_us in (
                ((Kind.CACHE,), 90_000), ((Kind.IO, Kind.SPIN), 1_000),
                ((Kind.CACHE, Kind.NEUTRAL), 90_000), ((Kind.NEUTRAL,), None),
                ((Kind.DEFAULT, Kind.POLLUTER, Kind.NEUTRAL), None)):
            with self.subTest(kinds=kinds):
                vcpus = [vcpu for kind in kinds for vcpu in of_kind(kind, 9)]
                self._check_together(plan_of(vcpus, sockets(2, 2)), slice_us)

    def test_each_vcpu_can_have_a_pcpu(self):
        vcpus = of_kind(Kind.IO, 2) + of_kind(Kind.CACHE, 2)
        self._check_together(plan_of(vcpus, sockets(1, 4)), None)

    def test_no_slice_is_enforced(self):
        vcpus = of_kind(Kind.IO, 9) + of_kind(Kind.CACHE, 9)
        self._check_together(plan_of(vcpus, sockets(1, 4), slices_us={}),
                             None)

    def test_no_vcpus(self):
        plan = plan_of([], sockets(1, 4))
        self.assertFalse(plan.separates)
        self.assertEqual((), plan.pools)

    def test_default_vcpus_are_kept_from_long_slices(self):
        vcpus = of_kind(Kind.DEFAULT, 4) + of_kind(Kind.CACHE, 4)
        self.assertEqual(
            [(0, 90_000, 1, {'CACHE': 4}), (0, None, 1, {'DEFAULT': 4})],
            shown(plan_of(vcpus, sockets(1, 2))))

    def test_polluters_are_parted_from_cache_users_also_with_room(self):
        vcpus = of_kind(Kind.CACHE, 2) + of_kind(Kind.POLLUTER, 2)
        plan = plan_of(vcpus, sockets(2, 2))
        self.assertTrue(plan.separates)
        self.assertEqual([(0, None, 2, {'POLLUTER': 2}),
                          (1, 90_000, 2, {'CACHE': 2})], shown(plan))

    def test_not_on_a_single_socket(self):
        vcpus = of_kind(Kind.CACHE, 4) + of_kind(Kind.POLLUTER, 4)
        self._check_together(plan_of(vcpus, sockets(1, 2)), 90_000)

    def test_a_socket_without_pcpus_is_left_out(self):
        host = [*sockets(1, 2), model.Socket(7, ())]
        vcpus = of_kind(Kind.IO, 4) + of_kind(Kind.CACHE, 4)
        self.assertEqual({0}, {pool.socket
                               for pool in plan_of(vcpus, host).pools})


class SpinTest(unittest.TestCase):

    def test_a_wide_server_stays_with_a_default_pool_of_its_width(self):
        # By count its pool would have one pCPU.
        vcpus = [*of_kind(Kind.SPIN, 4, per_server=4),
                 *of_kind(Kind.CACHE, 28)]
        self.assertEqual(
            [(0, 90_000, 4, {'CACHE': 16}),
             (0, None, 4, {'SPIN': 4, 'CACHE': 12})],
            shown(plan_of(vcpus, sockets(1, 8))))

    def test_a_server_that_fits_its_pool_stays_there(self):
        vcpus = [*of_kind(Kind.SPIN, 8, per_server=2),
                 *of_kind(Kind.CACHE, 8)]
        self.assertEqual(
            [(0, 1_000, 2, {'SPIN': 8}), (0, 90_000, 2, {'CACHE': 8})],
            shown(plan_of(vcpus, sockets(1, 4))))

    def test_as_wide_as_the_socket_nothing_is_separated(self):
        vcpus = [*of_kind(Kind.SPIN, 4, per_server=4),
                 *of_kind(Kind.CACHE, 12)]
        plan = plan_of(vcpus, sockets(1, 4))
        self.assertFalse(plan.separates)
        self.assertEqual([(0, None, 4, {'SPIN': 4, 'CACHE': 12})],
                         shown(plan))

    def test_wider_than_a_socket_nothing_is_separated(self):
        vcpus = [*of_kind(Kind.SPIN, 5, per_server=5),
                 *of_kind(Kind.CACHE, 27)]
        self.assertFalse(plan_of(vcpus, sockets(2, 4)).separates)

    @hypothesis.settings(deadline=None)
    @hypothesis.given(
        quantum_vcpus.vcpus(kinds=(Kind.SPIN, Kind.SPIN, Kind.IO, Kind.CACHE,
                                   Kind.NEUTRAL)),
        quantum_vcpus.hosts())
    def test_never_on_fewer_pcpus_than_vcpus(self, vcpus, host):
        plan = plan_of(vcpus, host)
        if not plan.separates:
            return
        for pool in plan.pools:
            widths = promises.spinning_servers(pool.vcpus).values()
            self.assertLessEqual(max(widths, default=0), len(pool.pcpus))


class PromisesTest(unittest.TestCase):

    def test_a_pool_has_the_time_that_was_promised(self):
        vcpus = [dataclasses.replace(vcpu, share=Fraction(share))
                 for group, share in ((of_kind(Kind.IO, 8), '1/8'),
                                      (of_kind(Kind.CACHE, 8), '3/8'))
                 for vcpu in group]
        self.assertEqual(
            [(0, 1_000, 1, {'IO': 8}), (0, 90_000, 3, {'CACHE': 8})],
            shown(plan_of(vcpus, sockets(1, 4))))

    def test_a_socket_that_cannot_hold_them_exchanges_servers(self):
        vcpus = [dataclasses.replace(vcpu, share=Fraction(share))
                 for group, share in (
                     (of_kind(Kind.CACHE, 4, name='heavy'), '3/4'),
                     (of_kind(Kind.CACHE, 4, name='light'), '1/8'),
                     (of_kind(Kind.IO, 4, name='io'), '1/8'))
                 for vcpu in group]
        plan = plan_of(vcpus, sockets(2, 2))
        self.assertTrue(plan.separates)
        for pool in plan.pools:
            self.assertLessEqual(promises.promised(pool.vcpus),
                                 len(pool.pcpus))

    def test_where_no_socket_can_nothing_is_separated(self):
        vcpus = [dataclasses.replace(vcpu, share=Fraction(3, 4))
                 for vcpu in of_kind(Kind.IO, 3) + of_kind(Kind.CACHE, 3)]
        self.assertFalse(plan_of(vcpus, sockets(1, 4)).separates)

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(shares=True), quantum_vcpus.hosts())
    def test_every_pool_holds_them(self, vcpus, host):
        plan = plan_of(vcpus, host)
        if plan.separates:
            for pool in plan.pools:
                self.assertLessEqual(promises.promised(pool.vcpus),
                                     len(pool.pcpus))


class RefusalTest(unittest.TestCase):

    def test_nonsense_is_refused(self):
        twice = [model.Vcpu('a', 0, Kind.IO)] * 2
        with self.assertRaises(model.VcpuTwice):
            plan_of(twice, sockets(1, 1))
        with self.assertRaises(model.NoPcpus):
            plan_of([], [])
        with self.assertRaises(model.ShareInvalid):
            plan_of([model.Vcpu('a', 0, Kind.IO, share=2)], sockets(1, 1))

    def test_slices_that_no_kernel_takes_are_refused(self):
        for slice_us in (0, -1, 99, 100_001):
            with self.subTest(slice_us=slice_us):
                with self.assertRaises(classes.SliceInvalid) as caught:
                    plan_of([], sockets(1, 1), slices_us={'io': slice_us})
                self.assertIn(str(slice_us), str(caught.exception))


class PropertiesTest(unittest.TestCase):

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(shares=True), quantum_vcpus.hosts())
    def test_every_vcpu_and_every_pcpu_is_in_one_pool(self, vcpus, host):
        plan = plan_of(vcpus, host)
        self.assertEqual(
            collections.Counter(vcpu.key for vcpu in vcpus),
            collections.Counter(vcpu.key for pool in plan.pools
                                for vcpu in pool.vcpus))
        for socket in host:
            pools = [pool for pool in plan.pools
                     if pool.socket == socket.number]
            self.assertEqual(
                sorted(socket.pcpus),
                sorted(pcpu for pool in pools for pcpu in pool.pcpus))
            self.assertEqual(len(pools),
                             len({pool.slice_us for pool in pools}))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(), quantum_vcpus.hosts())
    def test_pcpus_are_fair_within_one(self, vcpus, host):
        # By count: nobody was promised a share.
        plan = plan_of(vcpus, host)
        least = len(vcpus) // sum(len(socket.pcpus) for socket in host)
        for pool in plan.pools:
            self.assertTrue(
                least * len(pool.pcpus) <= len(pool.vcpus)
                <= (least + 1) * len(pool.pcpus))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(), quantum_vcpus.hosts())
    def test_a_pool_with_a_quantum_suits_all_in_it(self, vcpus, host):
        for pool in plan_of(vcpus, host).pools:
            wanted = {pool_level.slice_us(vcpu.kind, SLICES_US)
                      for vcpu in pool.vcpus
                      if vcpu.kind not in model.AGNOSTIC}
            self.assertTrue(pool.slice_us is None
                            or wanted <= {pool.slice_us})


class StabilityTest(unittest.TestCase):

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(shares=True), quantum_vcpus.hosts(),
                      st.randoms())
    def test_its_own_result_is_a_fixed_point(self, vcpus, host, chance):
        plan = plan_of(vcpus, host)
        self.assertEqual(plan, plan_of(vcpus, host, plan))
        shuffled = list(vcpus)
        chance.shuffle(shuffled)
        self.assertEqual(plan, plan_of(shuffled, host, plan))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(), quantum_vcpus.vcpus(),
                      quantum_vcpus.hosts())
    def test_also_when_made_from_another_plan(self, vcpus, others, host):
        plan = plan_of(vcpus, host, plan_of(others, host))
        self.assertEqual(plan, plan_of(vcpus, host, plan))

    def test_new_shares_alone_move_nobody(self):
        vcpus = of_kind(Kind.IO, 8) + of_kind(Kind.CACHE, 8)
        plan = plan_of(vcpus, sockets(2, 2))
        after = plan_of([dataclasses.replace(vcpu, share=Fraction(1, 8))
                         for vcpu in vcpus], sockets(2, 2), plan)
        self.assertEqual(0, quantum_vcpus.moved(plan, after))

    def test_other_slices_make_another_plan(self):
        vcpus = of_kind(Kind.IO, 8) + of_kind(Kind.CACHE, 8)
        plan = plan_of(vcpus, sockets(1, 4), slices_us={})
        self.assertFalse(plan.separates)
        self.assertTrue(plan_of(vcpus, sockets(1, 4), plan).separates)

    def test_a_host_that_lost_pcpus_makes_another_plan(self):
        vcpus = of_kind(Kind.IO, 8) + of_kind(Kind.CACHE, 8)
        plan = plan_of(vcpus, sockets(2, 4))
        after = plan_of(vcpus, sockets(1, 3), plan)
        self.assertEqual({0, 1, 2}, {pcpu for pool in after.pools
                                     for pcpu in pool.pcpus})

    @hypothesis.settings(deadline=None, max_examples=300)
    @hypothesis.given(st.integers(0, 2**32), st.integers(1, 4),
                      st.integers(1, 6), st.integers(1, 2),
                      st.sampled_from(('more', 'fewer', 'changed')))
    def test_a_small_change_moves_few(self, seed, count, cores, siblings,
                                      change):
        """At most three times ceil(k) vCPUs per socket change their pool.

        So many at most where the same pools are needed before and after, and
        polluters are on the same sockets: who has to make room for the first
        polluter, or is in a pool that is not needed any more, moves in any
        case. Servers that spin have one vCPU here: a wide one that no longer
        fits its pool takes others along.
        """
        chance = random.Random(seed)
        host = sockets(count, cores, siblings)
        pcpus = count * cores * siblings
        vcpus = self._servers(chance, chance.randint(1, 5 * pcpus))
        before = plan_of(vcpus, host)
        changed = list(vcpus)
        place = chance.randrange(len(vcpus))
        if change == 'more':
            changed.append(model.Vcpu('new', 0, chance.choice(list(Kind))))
        elif change == 'fewer':
            changed.pop(place)
        else:
            is_alone = sum(vcpu.server == vcpus[place].server
                           for vcpu in vcpus) == 1
            changed[place] = dataclasses.replace(
                vcpus[place], kind=chance.choice([
                    kind for kind in Kind
                    if is_alone or kind is not Kind.SPIN]))
        after = plan_of(changed, host, before)
        hypothesis.assume(before.separates and after.separates)
        hypothesis.assume(self._shape(before) == self._shape(after))
        bound = 3 * -(-len(vcpus) // pcpus) * count
        self.assertLessEqual(quantum_vcpus.moved(before, after), bound)

    @staticmethod
    def _servers(chance, count):
        vcpus = []
        kinds = chance.sample(list(Kind), chance.randint(1, 6))
        while len(vcpus) < count:
            kind = chance.choice(kinds)
            size = 1 if kind is Kind.SPIN else chance.choice((1, 1, 2, 4))
            vcpus += of_kind(kind, size, chance.random() < 0.3, size,
                             name=f'server{len(vcpus)}-')
        return vcpus

    @staticmethod
    def _shape(plan):
        return (
            {(pool.socket, pool.slice_us) for pool in plan.pools},
            {pool.socket for pool in plan.pools for vcpu in pool.vcpus
             if vcpu.is_polluter})

    def test_a_pool_keeps_its_pcpus(self):
        vcpus = of_kind(Kind.IO, 12) + of_kind(Kind.CACHE, 4)
        plan = plan_of(vcpus, sockets(1, 4, 2))
        after = plan_of([*vcpus, *of_kind(Kind.CACHE, 8, name='new')],
                        sockets(1, 4, 2), plan)
        old, new = ({pool.slice_us: pool.pcpus for pool in each.pools}
                    for each in (plan, after))
        self.assertLess(new[1_000], old[1_000])
        self.assertGreater(new[90_000], old[90_000])
