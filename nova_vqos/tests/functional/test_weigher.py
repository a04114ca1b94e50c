# SPDX-License-Identifier: Apache-2.0
"""Where the scheduler puts servers when its weighers know of pools."""

from nova_vqos.quantum import occupancy
from nova_vqos.tests.functional import base

POOLS = {
    # One more server of 2 vCPUs finds room.
    'cache': occupancy.Occupancy(
        {'cache': occupancy.PoolSize(2, 2), 'io': occupancy.PoolSize(2, 4)},
        polluters=0),
    'io': occupancy.Occupancy(
        {'io': occupancy.PoolSize(4, 6)}, polluters=0),
    'none': occupancy.UNKNOWN,
}
CLASSES = ('default', 'io', 'cache', 'neutral', 'auto')


class WeigherTestCase(base.VqosTestCase):
    """Three hosts of 4 pCPUs of 100 CU; the one that has the pool is used.

    Nova's own weighers, which are enabled as well, prefer the others.
    """

    def setUp(self):
        self.flags(weight_classes=[
            'nova.scheduler.weights.all_weighers',
            'nova_vqos.scheduler.weigher.all_weighers',
        ], group='filter_scheduler')
        super().setUp()
        for name, pools in POOLS.items():
            files = self.start_host(name)
            files.agent_lives(classes=CLASSES, quantum=pools)
        self._run_periodics()
        self.boot(self.make_flavor(100), 'cache')
        self._run_periodics()

    def boot_class(self, quantum_class, cu=40, vcpus=2):
        flavor = self.make_flavor(
            cu, vcpus=vcpus, specs={'vqos:quantum_class': quantum_class})
        return self.host_of(self.boot(flavor))

    def test_a_server_goes_where_its_class_has_a_pool(self):
        self.assertEqual('cache:2:2 io:2:4 polluters:0',
                         self.stats('cache')['vqos_quantum_pools'])
        self.assertIn('CUSTOM_VQOS_QUANTUM_CACHE', self.traits('cache'))
        self.assertNotIn('CUSTOM_VQOS_QUANTUM_SPIN', self.traits('cache'))
        self.assertEqual('cache', self.boot_class('cache'))
        # Away from what a polluter would harm.
        self.assertNotEqual('cache', self.boot_class('neutral'))

    def test_switched_off_the_stock_weighers_decide(self):
        """So it was the weigher that did."""
        self.flags(quantum_weight_multiplier=0.0,
                   units_weight_multiplier=0.0, group='vqos')
        self.assertNotEqual('cache', self.boot_class('cache'))

    def test_polluters_are_told_and_shunned(self):
        self.host_files['cache'].agent_lives(
            classes=CLASSES, quantum=POOLS['cache']._replace(polluters=6))
        self.host_files['none'].agent_lives(classes=CLASSES, quantum=(
            occupancy.Occupancy({'cache': occupancy.PoolSize(2, 2)}, 0)))
        self._run_periodics()
        # The best fit would be the other one.
        self.assertEqual('none', self.boot_class('cache'))

    def test_the_best_fit_where_no_class_says_anything(self):
        self.assertEqual(['300', '400', '400'], [
            self.stats(name)['vqos_room_cu'] for name in POOLS])
        self.assertEqual('cache', self.boot_class('default'))
        # What no longer fits there goes to an empty one.
        self.assertNotEqual('cache', self.boot_class('auto', 261, vcpus=4))

    def test_an_aggregate_has_its_own_multiplier(self):
        aggregate = self.api.post_aggregate({'aggregate': {'name': 'away'}})
        self.api.add_host_to_aggregate(aggregate['id'], 'cache')
        self.api.post_aggregate_action(aggregate['id'], {'set_metadata': {
            'metadata': {'quantum_weight_multiplier': '-10',
                         'units_weight_multiplier': '0'}}})
        self.assertNotEqual('cache', self.boot_class('cache'))


class ServerGroupTestCase(base.VqosTestCase):
    """A group of servers, for two hosts that are alike."""

    def setUp(self):
        self.flags(weight_classes=[
            'nova.scheduler.weights.all_weighers',
            'nova_vqos.scheduler.weigher.all_weighers',
        ], group='filter_scheduler')
        super().setUp()
        for name in 'one', 'other':
            self.start_host(name)
        self.flavor = self.make_flavor(60)

    def _boot_two(self, policy):
        """:returns: on how many hosts they are"""
        group = self.api.post_server_groups(
            {'name': policy, 'policy': policy})
        hosts = set()
        for _ in range(2):
            body = self._build_server(image_uuid=base.IMAGE_ID,
                                      flavor_id=self.flavor, networks='none')
            server = self.api.post_server({
                'server': body, 'os:scheduler_hints': {'group': group['id']}})
            self._wait_for_state_change(server, 'ACTIVE')
            self.assertEqual({self.host_of(server): 60},
                             self.allocated(server['id']))
            hosts.add(self.host_of(server))
            self._run_periodics()
        return len(hosts)

    def test_anti_affinity(self):
        self.assertEqual(2, self._boot_two('anti-affinity'))

    def test_soft_anti_affinity_outweighs_the_best_fit(self):
        self.assertEqual(2, self._boot_two('soft-anti-affinity'))
