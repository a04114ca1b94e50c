# SPDX-License-Identifier: Apache-2.0
"""Which hosts the scheduler's weighers prefer."""

from fractions import Fraction
import random

from hypothesis import given
from hypothesis import strategies as st
from nova.scheduler import host_manager
from nova.scheduler import weights

from nova import objects
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.quantum import occupancy
from nova_vqos.scheduler import filter as vqos_filter
from nova_vqos.scheduler import weigher
from nova_vqos.tests.fixtures import nova_case
from nova_vqos.tests.unit.scheduler import test_filter

CLASS_KEY = policy.QUANTUM_CLASS_KEY
TEXTS = st.one_of(
    st.text(max_size=300), st.just('cache:2:3'), st.none(), st.integers(),
    st.lists(st.sampled_from(['cache:', 'io:1:', '1', '9' * 40, ' ', ':',
                              'polluters:']), max_size=8).map(''.join))


def make_host(name='compute1', pools=None, room_cu=None, aggregate=None,
              pieces=None):
    """A host whose stats say this, or nothing where it is None."""
    stats = {}
    if pools is not None:
        stats['vqos_quantum_pools'] = pools
    if room_cu is not None:
        stats['vqos_room_cu'] = str(room_cu)
    if pieces is not None:
        stats['vqos_pieces'] = pieces
    host_state = test_filter.make_host(name, **stats)
    host_state.aggregates = [] if aggregate is None else [
        objects.Aggregate(metadata=aggregate)]
    return host_state


def make_spec(quantum_class=None, units=None, vcpus=2):
    specs = {}
    if quantum_class is not None:
        specs[CLASS_KEY] = quantum_class
    if units is not None:
        specs[policy.UNITS_KEY] = str(units)
    return test_filter.make_spec(specs, vcpus=vcpus)


class WeigherTestCase(nova_case.NovaTestCase):

    def weigh(self, hosts, spec, only=None):
        """{host: weight} as the scheduler's own machinery gives it.

        :param only: the one weigher that is enabled; None: all of ours
        """
        handler = weights.HostWeightHandler()
        weighers = [one() for one in handler.get_matching_classes(
            ['nova_vqos.scheduler.weigher.all_weighers'])
            if only in (None, one)]
        return {weighed.obj.host: weighed.weight for weighed
                in handler.get_weighed_objects(weighers, hosts, spec)}

    def order(self, hosts, spec, only=None):
        hosts = list(hosts)
        random.Random(4).shuffle(hosts)
        return list(self.weigh(hosts, spec, only))


class QuantumTestCase(WeigherTestCase):

    def raw(self, pools, spec, vcpus_used=0):
        """What VqosQuantumWeigher itself says of a host."""
        host = make_host(pools=pools)
        host.vcpus_used = vcpus_used
        return weigher.VqosQuantumWeigher()._weigh_object(host, spec)

    def test_a_pool_with_room_then_a_full_one_then_none(self):
        hosts = [
            make_host('roomy', 'cache:2:2 default:2:6'),
            # One vCPU of two finds room.
            make_host('tight', 'cache:2:5 default:2:5'),
            make_host('full', 'cache:2:6 default:2:4'),
            make_host('none', 'io:2:2 default:2:4')]
        spec = make_spec('cache')
        self.assertEqual(['roomy', 'tight', 'full', 'none'],
                         self.order(hosts, spec))
        self.assertEqual([1.0, 0.875, 0.75, 0.5], [
            self.raw(host.stats['vqos_quantum_pools'], spec)
            for host in hosts])

    def test_a_larger_server_needs_more_room(self):
        pools = 'cache:4:2 default:4:6'
        self.assertEqual(1.0, self.raw(pools, make_spec('cache', vcpus=2)))
        self.assertEqual(0.9375, self.raw(pools, make_spec('cache', vcpus=8)))

    def test_a_pool_that_is_crowded_beyond_others(self):
        self.assertEqual(
            0.75, self.raw('cache:1:90 default:9:1', make_spec('cache')))

    def test_a_pool_without_pcpus_is_none(self):
        self.assertEqual(
            0.5, self.raw('cache:0:2 default:4:1', make_spec('cache')))
        self.assertEqual(0.5, self.raw('cache:0:0', make_spec('cache')))

    def test_cache_is_kept_from_reported_polluters(self):
        spec = make_spec('cache')
        hosts = [make_host('clean', 'cache:2:2 default:2:6 polluters:0'),
                 make_host('one', 'cache:2:2 default:2:6 polluters:1'),
                 make_host('many', 'cache:2:2 default:2:6 polluters:4'),
                 make_host('nothing', ''),
                 make_host('no pool', 'default:4:8 polluters:4')]
        self.assertEqual(
            ['clean', 'one', 'many', 'nothing', 'no pool'],
            self.order(hosts, spec))
        # None is known: no reason to stay away.
        self.assertEqual(1.0, self.raw('cache:2:2 default:2:6', spec))
        self.assertEqual(0.0, self.raw('polluters:7', spec))
        # Nova knows the vCPUs where the stats have no pool.
        self.assertEqual(0.375, self.raw('polluters:7', spec, vcpus_used=28))

    def test_neutral_may_be_a_polluter(self):
        hosts = [make_host('cache', 'cache:4:8 polluters:0'),
                 make_host('some', 'cache:2:4 io:2:4'),
                 make_host('io', 'io:4:8 polluters:3')]
        spec = make_spec('neutral')
        self.assertEqual(['io', 'some', 'cache'], self.order(hosts, spec))
        self.assertEqual([0.0, 0.5, 1.0, 1.0], [
            self.raw(pools, spec) for pools in (
                'cache:4:8', 'cache:2:4 io:2:4', 'io:4:8', '')])
        self.assertEqual(0.75, self.raw('cache:2:4 io:2:4', spec, 16))

    def test_servers_of_no_class_are_not_weighed(self):
        hosts = [make_host('one', 'io:2:1 cache:2:3 polluters:7'),
                 make_host('two', '')]
        for spec in (make_spec(), make_spec('default'), make_spec('auto'),
                     make_spec('io'), make_spec('spin'), make_spec(units=60),
                     make_spec('default', units=60)):
            self.assertEqual({0.0}, set(self.weigh(
                hosts, spec, weigher.VqosQuantumWeigher).values()))

    def test_a_small_difference_remains_one(self):
        """Unlike the stock weighers', which are stretched to 0 and 1."""
        found = self.weigh([make_host('one', 'cache:4:4 default:96:96'),
                            make_host('two', 'io:4:4 default:96:96')],
                           make_spec('neutral'), weigher.VqosQuantumWeigher)
        self.assertAlmostEqual(0.4, found['two'] - found['one'])

    def test_the_multiplier(self):
        hosts = [make_host('one', 'cache:2:1'),
                 make_host('two', 'polluters:7')]
        spec = make_spec('cache')
        self.assertEqual({'one': 10.0, 'two': 0.0}, self.weigh(hosts, spec))
        self.flags(quantum_weight_multiplier=-0.5, group='vqos')
        self.assertEqual({'one': -0.5, 'two': 0.0}, self.weigh(hosts, spec))
        self.assertEqual('two', self.order(hosts, spec)[0])
        self.flags(quantum_weight_multiplier=0, group='vqos')
        self.assertEqual({'one': 0.0, 'two': 0.0}, self.weigh(hosts, spec))

    def test_the_multiplier_of_an_aggregate(self):
        hosts = [make_host('one', 'cache:2:1',
                           aggregate={'quantum_weight_multiplier': '7.5'}),
                 make_host('two', 'cache:2:1', aggregate={
                     'quantum_weight_multiplier': 'high'}),
                 make_host('three', 'polluters:7', aggregate={
                     'quantum_weight_multiplier': '9'})]
        self.assertEqual({'one': 7.5, 'two': 10.0, 'three': 0.0},
                         self.weigh(hosts, make_spec('cache')))

    def test_a_flavor_that_is_invalid(self):
        """The filter refuses it, where that is enabled."""
        hosts = [make_host('one', 'io:2:1', 5), make_host('two', '', 6)]
        for spec in (make_spec('gold'), make_spec('io', units=1),
                     make_spec('io', units='many')):
            self.assertEqual({'one': 0.0, 'two': 0.0}, self.weigh(hosts, spec))


class UnitsTestCase(WeigherTestCase):

    def test_the_host_that_is_filled_best(self):
        hosts = [make_host('empty', room_cu=900), make_host('exact',
                                                            room_cu=60),
                 make_host('nearly', room_cu=61), make_host('half',
                                                            room_cu=450)]
        spec = make_spec(units=60)
        self.assertEqual(['exact', 'nearly', 'half', 'empty'],
                         self.order(hosts, spec))
        found = self.weigh(hosts, spec)
        self.assertEqual((4.0, 0.0), (found['exact'], found['empty']))

    def test_stats_that_are_older_than_placement(self):
        hosts = [make_host('one', room_cu=59), make_host('two', room_cu=0),
                 make_host('three', room_cu=61)]
        found = self.weigh(hosts, make_spec(units=60))
        self.assertEqual({'one': 4.0, 'two': 4.0, 'three': 0.0}, found)

    def test_hosts_that_do_not_say(self):
        hosts = [make_host('none'), test_filter.stock_host(),
                 host_manager.HostState('new', 'new', None),
                 make_host('empty', room_cu=900),
                 make_host('half', room_cu=450)]
        for number, text in enumerate(('', '-5', '9' * 400)):
            hosts.append(make_host(f'odd{number}', room_cu=text))
        for host in hosts:
            host.aggregates = []
        found = self.weigh(hosts, make_spec(units=60))
        self.assertEqual(4.0, found.pop('half'))
        self.assertEqual({0.0}, set(found.values()))
        hosts = hosts[:3]
        self.assertEqual({0}, set(self.weigh(
            hosts, make_spec(units=60)).values()))

    def test_servers_without_units_are_not_weighed(self):
        hosts = [make_host('one', room_cu=900), make_host('two', room_cu=60)]
        for spec in (make_spec(), make_spec('auto')):
            self.assertEqual({0.0}, set(self.weigh(hosts, spec).values()))

    def test_the_multiplier(self):
        hosts = [make_host('one', room_cu=900), make_host(
            'two', room_cu=60, aggregate={'units_weight_multiplier': '3'})]
        spec = make_spec(units=60)
        self.assertEqual({'one': 0.0, 'two': 3.0}, self.weigh(hosts, spec))
        self.flags(units_weight_multiplier=-1, group='vqos')
        hosts[1].aggregates = []
        self.assertEqual(['one', 'two'], self.order(hosts, spec))


class PackingTestCase(WeigherTestCase):

    def raw(self, pieces, units, vcpus=1):
        """CU that a server leaves of the pieces that it takes."""
        hosts = [weights.WeighedHost(host, 0.0) for host in (
            make_host('one', pieces=pieces),
            make_host('far', pieces='99999999:1'))]
        return -weigher.VqosPackingWeigher().weigh_objects(
            hosts, make_spec(units=units, vcpus=vcpus))[0]

    def test_the_smallest_pieces_that_vcpus_fit_are_taken(self):
        for left_cu, pieces, units, vcpus in (
                (0, '100:3 60:1', 60, 1), (40, '100:3 59:1', 60, 1),
                (0, '100:3 60:1 20:8', 60, 1),
                # Several in one piece.
                (0, '120:1', 120, 2), (20, '100:9 70:2', 120, 4),
                # 70 - 60, and 100 - 60.
                (50, '100:3 70:1', 120, 2),
                # The second piece has one of three.
                (60, '90:2', 120, 4)):
            self.assertEqual(left_cu, self.raw(pieces, units, vcpus),
                             (pieces, units, vcpus))

    def test_no_fractions_are_lost(self):
        # 16 2/3 CU each.
        self.assertEqual(0, self.raw('200:1 100:1', 100, 6))
        self.assertEqual(16, self.raw('100:1 99:1', 183, 11))

    def test_the_host_that_strands_least(self):
        hosts = [make_host('waste', pieces='100:4', room_cu=400),
                 make_host('exact', pieces='100:3 60:1', room_cu=400),
                 make_host('nearly', pieces='100:3 70:1', room_cu=400),
                 make_host('small', pieces='50:8', room_cu=400),
                 make_host('none', room_cu=400)]
        spec = make_spec(units=60, vcpus=1)
        found = self.weigh(hosts, spec)
        self.assertEqual(
            {'exact': 8.0, 'nearly': 6.0, 'waste': 0.0, 'small': 0.0,
             'none': 0.0}, found)
        self.flags(packing_weight_multiplier=-1, group='vqos')
        self.assertEqual('exact', self.order(hosts, spec)[-1])

    def test_it_counts_before_the_fewest_units(self):
        hosts = [make_host('fuller', pieces='100:1', room_cu=100),
                 make_host('exact', pieces='100:8 60:1', room_cu=860)]
        spec = make_spec(units=60, vcpus=1)
        self.assertEqual(['exact', 'fuller'], self.order(hosts, spec))
        self.flags(packing_weight_multiplier=0, group='vqos')
        self.assertEqual(['fuller', 'exact'], self.order(hosts, spec))

    def test_the_multiplier_of_an_aggregate(self):
        hosts = [make_host('one', pieces='60:1', aggregate={
            'packing_weight_multiplier': '3'}), make_host('two',
                                                          pieces='100:1')]
        self.assertEqual({'one': 3.0, 'two': 0.0}, self.weigh(
            hosts, make_spec(units=60, vcpus=1)))

    def test_servers_without_units_are_not_weighed(self):
        hosts = [make_host('one', pieces='60:1'),
                 make_host('two', pieces='100:1')]
        self.assertEqual({0.0}, set(self.weigh(hosts, make_spec()).values()))


class ServerGroupTestCase(WeigherTestCase):

    def test_a_group_to_be_spread_is_left_to_novas_weigher(self):
        hosts = [make_host('tight', room_cu=60, pieces='60:1'),
                 make_host('roomy', room_cu=400, pieces='100:4')]
        spec = make_spec(units=60, vcpus=1)
        for group, expected in (
                (None, {'tight': 12.0, 'roomy': 0.0}),
                ('anti-affinity', {'tight': 12.0, 'roomy': 0.0}),
                ('soft-affinity', {'tight': 12.0, 'roomy': 0.0}),
                ('soft-anti-affinity', {'tight': 0.0, 'roomy': 0.0})):
            spec.instance_group = group and objects.InstanceGroup(
                policy=group)
            self.assertEqual(expected, self.weigh(hosts, spec))


class BothTestCase(WeigherTestCase):

    def test_a_pool_counts_before_the_best_fit(self):
        hosts = [make_host('pool', 'cache:2:2 default:2:4', 900),
                 make_host('fits', 'io:2:2 default:2:4', 60),
                 make_host('empty', '', 1200)]
        self.assertEqual(['pool', 'fits', 'empty'],
                         self.order(hosts, make_spec('cache', units=60)))

    def test_where_no_pool_is_the_best_fit_counts(self):
        hosts = [make_host('one', '', 900), make_host('two', '', 60)]
        self.assertEqual(['two', 'one'],
                         self.order(hosts, make_spec('cache', units=60)))


class InvalidTestCase(WeigherTestCase):

    def test_a_host_with_invalid_stats_has_the_worst_weight(self):
        hosts = [make_host('bad', 'cache:2:1', 60, pieces='30:2'),
                 make_host('near', 'cache:2:1', 60, pieces='30:2'),
                 make_host('far', '', 900, pieces='100:9')]
        hosts[0].stats['vqos_slowest_cu'] = '9e999999'
        for multiplier in (1.0, -1.0):
            self.flags(units_weight_multiplier=multiplier,
                       packing_weight_multiplier=multiplier,
                       quantum_weight_multiplier=multiplier, group='vqos')
            for spec, one in (
                    (make_spec(units=60), weigher.VqosUnitsWeigher),
                    (make_spec(units=60), weigher.VqosPackingWeigher),
                    (make_spec('cache'), weigher.VqosQuantumWeigher),
                    (make_spec('neutral'), weigher.VqosQuantumWeigher)):
                found = self.weigh(hosts, spec, one)
                self.assertEqual(found['bad'], min(found.values()))
                self.assertLess(found['bad'], max(found.values()))


HOSTS = st.lists(st.dictionaries(st.sampled_from(host_stats.KEYS), TEXTS),
                 min_size=2, max_size=4)


@given(HOSTS, st.sampled_from(policy.CHOICES[CLASS_KEY]), st.integers(1, 8))
def test_nonsense_raises_nothing(stats, quantum_class, vcpus):
    hosts = []
    for one in stats:
        hosts.append(make_host())
        hosts[-1].stats.update(one)
        hosts[-1].aggregates = []
    spec = make_spec(quantum_class, units=60, vcpus=vcpus)
    weighed = [weights.WeighedHost(host, 0.0) for host in hosts]
    for one in weigher.VqosQuantumWeigher().weigh_objects(weighed, spec):
        assert 0.0 <= one <= 1.0
    for ours in weigher.VqosUnitsWeigher, weigher.VqosPackingWeigher:
        for one in ours().weigh_objects(weighed, spec):
            assert -float(policy.units.MAX_UNITS * 10) <= one <= 0.0
    passed = vqos_filter.VqosFilter().filter_all(
        [test_filter.make_host('good'), *hosts], make_spec(units=60))
    assert passed[0].host == 'good'


OCCUPANCIES = st.builds(
    occupancy.Occupancy, st.dictionaries(
        st.sampled_from(occupancy.NAMES), st.builds(
            occupancy.PoolSize, st.integers(0, 9), st.integers(0, 40))),
    st.none() | st.integers(0, 40))


@given(OCCUPANCIES, st.integers(1, 8), st.integers(1, 9))
def test_one_more_polluter_is_never_better(reported, vcpus, more):
    def weight(pools):
        return weigher.VqosQuantumWeigher()._weigh_object(
            make_host(pools=host_stats.encode(host_stats.HostStats(
                quantum_pools=pools))['vqos_quantum_pools']), spec)

    spec = make_spec('cache', vcpus=vcpus)
    assert weight(reported._replace(
        polluters=(reported.polluters or 0) + more)) <= weight(reported)


PIECES = st.dictionaries(st.integers(0, 200), st.integers(1, 9), max_size=6
                         ).map(lambda found: tuple(
                             host_stats.Piece(*one) for one in sorted(
                                 found.items(), reverse=True)))


@given(PIECES, st.integers(1, 400), st.integers(1, 8))
def test_pieces_are_filled_one_vcpu_after_the_other(pieces, units, vcpus):
    """As by best fit on each pCPU, of which this is the sum."""
    left_cu = sorted(Fraction(one.cu) for one in pieces
                     for _ in range(one.pcpus))
    whole_cu = list(left_cu)
    vcpu_cu, used = Fraction(units, vcpus), set()
    for _ in range(vcpus):
        fitting = [(cu, number) for number, cu in enumerate(left_cu)
                   if cu >= vcpu_cu]
        if not fitting:
            wanted = None
            break
        _cu, number = min(fitting)
        left_cu[number] -= vcpu_cu
        used.add(number)
    else:
        wanted = sum(whole_cu[number] for number in used) - units
    assert weigher.VqosPackingWeigher._left_cu(
        host_stats.HostStats(pieces=pieces),
        policy.ServerPolicy(vcpus, units)) == wanted
