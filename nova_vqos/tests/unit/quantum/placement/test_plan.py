# SPDX-License-Identifier: Apache-2.0
import collections
import dataclasses
from fractions import Fraction
import random

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum.placement import guarantees
from nova_vqos.quantum.placement import plan as planning
from nova_vqos.quantum.placement import pools
from nova_vqos.quantum.placement import wide
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
SLICES_US = quantum_vcpus.SLICES_US
of_kind = quantum_vcpus.of_kind
servers = quantum_vcpus.servers
sockets = quantum_vcpus.sockets


def shown(plan):
    return [(pool.socket, pool.slice_us, len(pool.pcpus),
             quantum_vcpus.counted(pool.vcpus)) for pool in plan.pools]


def make_plan(vcpus, host, previous=None, slices_us=SLICES_US):
    return planning.make_plan(vcpus, host, slices_us, previous)


def with_shares(*groups):
    return [dataclasses.replace(vcpu, share=Fraction(share))
            for vcpus, share in groups for vcpu in vcpus]


class TestExamples:
    """The examples of the thesis, as whole plans."""

    def test_figure_3_3(self):
        # The figure does not say which servers the vCPUs of a kind are of. It
        # has six clusters, one at the default quantum, since it leaves half of
        # the CACHE vCPUs beside polluters.
        vcpus = []
        for number in range(3):
            vcpus += of_kind(Kind.IO, 4, pollutes=True, per_server=4,
                             name=f'io{number}-')
            vcpus += of_kind(Kind.POLLUTER, 4, per_server=4,
                             name=f'polluter{number}-')
        vcpus += of_kind(Kind.CACHE, 17) + of_kind(Kind.SPIN, 7)
        plan = make_plan(vcpus, sockets(3, 4))
        assert plan.separates
        assert shown(plan) == [
            (0, 1_000, 4, {'IO+': 8, 'POLLUTER': 8}),
            (1, 1_000, 3, {'IO+': 4, 'POLLUTER': 1, 'SPIN': 7}),
            (1, 90_000, 1, {'POLLUTER': 3, 'CACHE': 1}),
            (2, 90_000, 4, {'CACHE': 16})]

    @pytest.mark.parametrize('name', quantum_vcpus.SCENARIOS)
    def test_scenario(self, name):
        groups, expected = quantum_vcpus.SCENARIOS[name]
        plan = make_plan(servers(groups, per_server=2), sockets(1, 4))
        assert shown(plan) == [(0, *pool) for pool in expected]
        assert plan.separates == (len(expected) > 1)


class TestTogether:
    """Nothing is separated without need."""

    @pytest.mark.parametrize('vcpus, host, slices_us, slice_us', [
        # One quantum suits all.
        (servers({Kind.CACHE: 9}), sockets(2, 2), SLICES_US, 90_000),
        (servers({Kind.IO: 9, Kind.SPIN: 9}), sockets(2, 2), SLICES_US,
         1_000),
        (servers({Kind.CACHE: 9, Kind.NEUTRAL: 9}), sockets(2, 2), SLICES_US,
         90_000),
        (servers({Kind.NEUTRAL: 9}), sockets(2, 2), SLICES_US, None),
        (servers({Kind.DEFAULT: 9, Kind.POLLUTER: 9, Kind.NEUTRAL: 9}),
         sockets(2, 2), SLICES_US, None),
        # Each vCPU can have a pCPU.
        (servers({Kind.IO: 2, Kind.CACHE: 2}), sockets(1, 4), SLICES_US,
         None),
        # No slice is enforced.
        (servers({Kind.IO: 9, Kind.CACHE: 9}), sockets(1, 4), {}, None),
        # Polluters cannot be parted on a single socket.
        (servers({Kind.CACHE: 4, Kind.POLLUTER: 4}), sockets(1, 2),
         SLICES_US, 90_000)])
    def test_one_slice(self, vcpus, host, slices_us, slice_us):
        plan = make_plan(vcpus, host, slices_us=slices_us)
        assert not plan.separates
        assert {pool.slice_us for pool in plan.pools} == {slice_us}

    def test_no_vcpus(self):
        plan = make_plan([], sockets(1, 4))
        assert not plan.separates
        assert plan.pools == ()


class TestSeparated:
    def test_default_vcpus_from_long_slices(self):
        vcpus = servers({Kind.DEFAULT: 4, Kind.CACHE: 4})
        assert shown(make_plan(vcpus, sockets(1, 2))) == [
            (0, 90_000, 1, {'CACHE': 4}), (0, None, 1, {'DEFAULT': 4})]

    def test_polluters_from_cache_users_also_with_room(self):
        vcpus = servers({Kind.CACHE: 2, Kind.POLLUTER: 2})
        plan = make_plan(vcpus, sockets(2, 2))
        assert plan.separates
        assert shown(plan) == [(0, None, 2, {'POLLUTER': 2}),
                               (1, 90_000, 2, {'CACHE': 2})]

    def test_a_socket_without_pcpus_is_left_out(self):
        host = [*sockets(1, 2), model.Socket(7, ())]
        plan = make_plan(servers({Kind.IO: 4, Kind.CACHE: 4}), host)
        assert {pool.socket for pool in plan.pools} == {0}


class TestRest:
    @staticmethod
    def vcpus(busy, resting):
        return [*of_kind(Kind.CACHE, busy),
                *(dataclasses.replace(vcpu, tenths=1)
                  for vcpu in of_kind(Kind.DEFAULT, resting))]

    @pytest.mark.parametrize('busy, resting, separates', [
        (8, 9, False), (8, 10, True), (7, 19, False), (7, 20, True),
        # It would have a pCPU of its own, and nine the other seven.
        (9, 1, False), (9, 10, True)])
    def test_one_that_rests_counts_as_a_tenth(self, busy, resting, separates):
        plan = make_plan(self.vcpus(busy, resting), sockets(1, 8))
        assert plan.separates is separates

    def test_pools_stay_until_a_tenth_less_is_wanted(self):
        host = sockets(1, 10)
        before = make_plan(self.vcpus(10, 10), host)
        assert before.separates
        for busy, separates in ((9, True), (8, True), (7, False)):
            vcpus = self.vcpus(10, 10)
            vcpus[busy:10] = [dataclasses.replace(vcpu, tenths=1)
                              for vcpu in vcpus[busy:10]]
            assert make_plan(vcpus, host, before).separates is separates
            assert not make_plan(vcpus, host).separates


class TestSpin:
    @pytest.mark.parametrize('width, others, cores, separates, expected', [
        # By count the pool of the wide server would have one pCPU.
        (4, 28, 8, True, [(0, 90_000, 4, {'CACHE': 16}),
                          (0, None, 4, {'SPIN': 4, 'CACHE': 12})]),
        # As wide as the socket.
        (4, 12, 4, False, [(0, None, 4, {'SPIN': 4, 'CACHE': 12})])])
    def test_a_wide_server_shares_a_default_pool_of_its_width(
            self, width, others, cores, separates, expected):
        vcpus = [*of_kind(Kind.SPIN, width, per_server=width),
                 *of_kind(Kind.CACHE, others)]
        plan = make_plan(vcpus, sockets(1, cores))
        assert shown(plan) == expected
        assert plan.separates is separates

    def test_a_server_that_fits_its_pool_stays_there(self):
        vcpus = [*of_kind(Kind.SPIN, 8, per_server=2), *of_kind(Kind.CACHE, 8)]
        assert shown(make_plan(vcpus, sockets(1, 4))) == [
            (0, 1_000, 2, {'SPIN': 8}), (0, 90_000, 2, {'CACHE': 8})]

    @pytest.mark.parametrize('width, sockets_of_it', [
        (8, 1), (9, 2), (16, 2), (17, 3)])
    def test_wider_than_a_socket_it_gets_several(self, width, sockets_of_it):
        """One tenant does not switch pools off for all."""
        vcpus = [*servers({Kind.IO: 60, Kind.CACHE: 60, Kind.POLLUTER: 60},
                          per_server=2),
                 *of_kind(Kind.SPIN, 1, name='wide'),
                 *(model.Vcpu('wide0', number, Kind.DEFAULT)
                   for number in range(1, width))]
        plan = make_plan(vcpus, sockets(4, 8))
        assert plan.separates
        assert len({pool.socket for pool in plan.pools}) == (
            4 - sockets_of_it + 1)
        its_socket = set()
        for pool in plan.pools:
            here = sum(vcpu.server == 'wide0' for vcpu in pool.vcpus)
            assert here <= len(pool.pcpus)
            if here:
                its_socket.add(pool.socket)
        assert len(its_socket) == 1
        assert any(pool.slice_us == SLICES_US['cache'] for pool in plan.pools
                   if pool.socket not in its_socket)

    def test_wider_than_the_host_nothing_is_separated(self):
        vcpus = [*of_kind(Kind.SPIN, 9, per_server=9),
                 *of_kind(Kind.CACHE, 27)]
        assert not make_plan(vcpus, sockets(2, 4)).separates

    def test_it_goes_where_it_fits(self):
        """Pools stay, also where the first socket lost some pCPUs."""
        narrow = model.Socket(0, ((0,), (1,)))
        vcpus = [*of_kind(Kind.SPIN, 3, per_server=3),
                 *of_kind(Kind.CACHE, 15), *of_kind(Kind.IO, 9)]
        plan = make_plan(vcpus, [narrow, *sockets(2, 4)[1:]])
        assert plan.separates
        (pool,) = {pool for pool in plan.pools for vcpu in pool.vcpus
                   if vcpu.kind is Kind.SPIN}
        assert len(pool.pcpus) >= 3

    @hypothesis.given(
        quantum_vcpus.vcpus(kinds=(Kind.SPIN, Kind.SPIN, Kind.IO, Kind.CACHE,
                                   Kind.NEUTRAL)),
        quantum_vcpus.hosts())
    def test_never_on_fewer_pcpus_than_vcpus(self, vcpus, host):
        plan = make_plan(vcpus, host)
        for pool in plan.pools if plan.separates else ():
            widths = guarantees.spinning_servers(pool.vcpus).values()
            assert max(widths, default=0) <= len(pool.pcpus)

    def test_also_those_of_its_vcpus_that_do_not_spin(self):
        vcpus = [*of_kind(Kind.SPIN, 1, name='wide'),
                 *(model.Vcpu('wide0', number, Kind.DEFAULT)
                   for number in range(1, 4)),
                 *of_kind(Kind.CACHE, 24)]
        plan = make_plan(vcpus, sockets(1, 4))
        for pool in plan.pools:
            assert sum(vcpu.server == 'wide0' for vcpu in pool.vcpus
                       ) <= len(pool.pcpus)


class TestGuarantees:
    def test_pools_by_shares(self):
        vcpus = with_shares((of_kind(Kind.IO, 8), '1/8'),
                            (of_kind(Kind.CACHE, 8), '3/8'))
        assert shown(make_plan(vcpus, sockets(1, 4))) == [
            (0, 1_000, 1, {'IO': 8}), (0, 90_000, 3, {'CACHE': 8})]

    def test_sockets_exchange_servers(self):
        vcpus = with_shares(
            (of_kind(Kind.CACHE, 4, name='heavy'), '3/4'),
            (of_kind(Kind.CACHE, 4, name='light'), '1/8'),
            (of_kind(Kind.IO, 4, name='io'), '1/8'))
        plan = make_plan(vcpus, sockets(2, 2))
        assert plan.separates
        self._check(plan)

    def test_where_no_socket_can_hold_them_nothing_is_separated(self):
        vcpus = with_shares((servers({Kind.IO: 3, Kind.CACHE: 3}), '3/4'))
        assert not make_plan(vcpus, sockets(1, 4)).separates

    @pytest.mark.parametrize('share, expected', [
        ('3/10', [(0, 1_000, 1, {'IO': 4}), (0, 90_000, 3, {'CACHE': 10})]),
        # Others need more than three: it is kept apart from none.
        ('39/100', [(0, None, 4, {'CACHE': 10, 'IO': 4})])])
    def test_a_floor_server_that_fakes_a_class(self, share, expected):
        """It has a pool of its own at most as long as others keep theirs."""
        vcpus = with_shares((of_kind(Kind.CACHE, 10), share),
                            (of_kind(Kind.IO, 4, per_server=4), '1/80'))
        vcpus = [vcpu if vcpu.kind is Kind.IO else dataclasses.replace(
            vcpu, cap=vcpu.share) for vcpu in vcpus]
        assert shown(make_plan(vcpus, sockets(1, 4))) == expected

    @hypothesis.given(quantum_vcpus.vcpus(shares=True), quantum_vcpus.hosts(),
                      quantum_vcpus.slices())
    def test_every_pool_holds_them(self, vcpus, host, slices_us):
        plan = make_plan(vcpus, host, slices_us=slices_us)
        if plan.separates:
            self._check(plan)

    @staticmethod
    def _check(plan):
        for pool in plan.pools:
            assert guarantees.guaranteed_pcpus(pool.vcpus) <= len(pool.pcpus)


class TestRefused:
    @pytest.mark.parametrize('vcpus, host, error', [
        ([model.Vcpu('a', 0, Kind.IO)] * 2, sockets(1, 1),
         'more than once'),
        ([], [], 'at least one pCPU'),
        ([model.Vcpu('a', 0, Kind.IO, share=2)], sockets(1, 1),
         'the share of')])
    def test_input(self, vcpus, host, error):
        with pytest.raises(model.PlanError, match=error):
            make_plan(vcpus, host)

    @pytest.mark.parametrize('slice_us', [0, -1, 99, 100_001])
    def test_slices(self, slice_us):
        with pytest.raises(classes.SliceInvalid, match=f' is {slice_us}, '):
            make_plan([], sockets(1, 1), slices_us={'io': slice_us})


class TestProperties:
    @hypothesis.given(quantum_vcpus.vcpus(shares=True), quantum_vcpus.hosts(),
                      quantum_vcpus.slices())
    def test_every_vcpu_and_every_pcpu_is_in_one_pool(self, vcpus, host,
                                                      slices_us):
        plan = make_plan(vcpus, host, slices_us=slices_us)
        assert collections.Counter(vcpu.key for vcpu in vcpus) == (
            collections.Counter(vcpu.key for pool in plan.pools
                                for vcpu in pool.vcpus))
        for socket in wide.join(host, vcpus):
            made = [pool for pool in plan.pools
                    if pool.socket == socket.number]
            assert sorted(socket.pcpus) == sorted(
                pcpu for pool in made for pcpu in pool.pcpus)
            assert len(made) == len({pool.slice_us for pool in made})

    @hypothesis.given(quantum_vcpus.vcpus(), quantum_vcpus.hosts())
    def test_pcpus_are_fair_within_one(self, vcpus, host):
        # By count: no vCPU has a share, or wants less than others.
        vcpus = [dataclasses.replace(vcpu, tenths=10) for vcpu in vcpus]
        least = len(vcpus) // sum(len(socket.pcpus) for socket in host)
        for pool in make_plan(vcpus, host).pools:
            assert (least * len(pool.pcpus) <= len(pool.vcpus)
                    <= (least + 1) * len(pool.pcpus))

    @hypothesis.given(quantum_vcpus.vcpus(), quantum_vcpus.hosts(),
                      quantum_vcpus.slices())
    def test_a_pool_with_a_quantum_suits_all_in_it(self, vcpus, host,
                                                   slices_us):
        for pool in make_plan(vcpus, host, slices_us=slices_us).pools:
            wanted = {pools.slice_us(vcpu.kind, slices_us)
                      for vcpu in pool.vcpus
                      if vcpu.kind not in model.AGNOSTIC}
            assert pool.slice_us is None or wanted <= {pool.slice_us}


class TestStability:
    IO_AND_CACHE = servers({Kind.IO: 8, Kind.CACHE: 8})

    @hypothesis.given(quantum_vcpus.vcpus(shares=True), quantum_vcpus.hosts(),
                      st.randoms(), quantum_vcpus.slices())
    def test_its_own_result_is_a_fixed_point(self, vcpus, host, chance,
                                             slices_us):
        plan = make_plan(vcpus, host, slices_us=slices_us)
        assert make_plan(vcpus, host, plan, slices_us) == plan
        shuffled = list(vcpus)
        chance.shuffle(shuffled)
        assert make_plan(shuffled, host, plan, slices_us) == plan

    @hypothesis.given(quantum_vcpus.vcpus(), quantum_vcpus.vcpus(),
                      quantum_vcpus.hosts(), quantum_vcpus.slices())
    def test_also_when_made_from_another_plan(self, vcpus, others, host,
                                              slices_us):
        other = make_plan(others, host, slices_us=slices_us)
        plan = make_plan(vcpus, host, other, slices_us)
        assert make_plan(vcpus, host, plan, slices_us) == plan

    def test_new_shares_alone_move_no_vcpu(self):
        plan = make_plan(self.IO_AND_CACHE, sockets(2, 2))
        after = make_plan(with_shares((self.IO_AND_CACHE, '1/8')),
                          sockets(2, 2), plan)
        assert quantum_vcpus.moved(plan, after) == 0

    def test_other_slices_make_another_plan(self):
        plan = make_plan(self.IO_AND_CACHE, sockets(1, 4), slices_us={})
        assert not plan.separates
        assert make_plan(self.IO_AND_CACHE, sockets(1, 4), plan).separates

    def test_a_host_that_lost_pcpus_makes_another_plan(self):
        plan = make_plan(self.IO_AND_CACHE, sockets(2, 4))
        after = make_plan(self.IO_AND_CACHE, sockets(1, 3), plan)
        assert {pcpu for pool in after.pools
                for pcpu in pool.pcpus} == {0, 1, 2}

    @hypothesis.settings(
        max_examples=300,
        # Small hosts have few numbers that divide.
        suppress_health_check=[hypothesis.HealthCheck.filter_too_much])
    @hypothesis.given(st.integers(0, 2**32), st.integers(1, 4),
                      st.integers(1, 6), st.integers(1, 2),
                      st.sampled_from(('more', 'fewer', 'changed')))
    def test_few_servers_are_moved(self, seed, count, cores, siblings, change):
        """At most three times ceil(k) vCPUs per socket change their pool.

        Twice as many where pools change their sizes: they may be those of the
        research before, and smaller ones after, or the other way round.

        That holds where the same pools are needed before and after, and
        polluters are on the same sockets: a vCPU that makes room for the
        first polluter, or whose pool is not needed any more, moves in any
        case. Servers that spin have one vCPU here: a wide one that no longer
        fits its pool takes others along.
        """
        chance = random.Random(seed)
        host = sockets(count, cores, siblings)
        pcpus = count * cores * siblings
        vcpus = self._servers(chance, chance.randint(1, 5 * pcpus))
        before = make_plan(vcpus, host)
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
        after = make_plan(changed, host, before)
        hypothesis.assume(before.separates and after.separates)
        hypothesis.assume(self._shape(before) == self._shape(after))
        bound = 3 * -(-len(vcpus) // pcpus) * count
        if self._sizes(before) != self._sizes(after):
            bound *= 2
        assert quantum_vcpus.moved(before, after) <= bound

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

    @staticmethod
    def _sizes(plan):
        return {(pool.socket, pool.slice_us): len(pool.pcpus)
                for pool in plan.pools}

    def test_a_pool_keeps_its_pcpus(self):
        vcpus = of_kind(Kind.IO, 12) + of_kind(Kind.CACHE, 4)
        plan = make_plan(vcpus, sockets(1, 4, 2))
        after = make_plan([*vcpus, *of_kind(Kind.CACHE, 8, name='new')],
                          sockets(1, 4, 2), plan)
        old, new = ({pool.slice_us: pool.pcpus for pool in each.pools}
                    for each in (plan, after))
        assert new[1_000] < old[1_000]
        assert new[90_000] > old[90_000]
