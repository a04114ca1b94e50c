# SPDX-License-Identifier: Apache-2.0
"""A host whose servers' vCPUs have to pack, by real Nova and Placement."""

from nova_vqos.tests.functional import base


class PackingTestCase(base.VqosTestCase):
    """Two servers of 60 CU on two pCPUs of 100 CU, 40 CU left on each."""

    HOST_WEIGHTS = {'full': 2, 'other': 1}

    def setUp(self):
        super().setUp()
        self.flags(packing='exact', group='vqos')
        self.start_host('full', 1.0, pcpus=2)
        self.flavor = self.make_flavor(60)
        self.servers = [self.boot(self.flavor) for _ in range(2)]

    def test_the_driver_refuses_and_another_host_is_tried(self):
        self.start_host('other', 1.0, pcpus=2)
        # The filter knows of no server yet.
        self.assertEqual('100', self.stats('full')['vqos_largest_vcpu_cu'])
        third = self.boot(self.flavor)
        self.assertEqual('other', self.host_of(third))
        self.assertIn('for a vCPU of at most 40 CU', self.log())
        self.wait_until_used('full', 120)

    def test_the_filter_refuses_what_is_too_large(self):
        self._run_periodics()
        self.assertEqual('40', self.stats('full')['vqos_largest_vcpu_cu'])
        refused = self.boot(self.flavor, expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertRegex(self.log(), 'Host full is refused.*60 CU each')
        self.assertEqual('full', self.host_of(
            self.boot(self.make_flavor(40))))

    def test_what_leaves_makes_room(self):
        self._delete_server(self.servers[0])
        self.wait_until_used('full', 60)
        self.assertEqual('full', self.host_of(self.boot(self.flavor)))

    def test_servers_that_do_not_pack_start_again(self):
        self.flags(packing='sum', group='vqos')
        third = self.boot(self.flavor)
        self.assertEqual('full', self.host_of(third))
        self.flags(packing='exact', group='vqos')
        for server in (*self.servers, third):
            self._reboot_server(server, hard=True)
        self._stop_server(third)
        self._start_server(third)


class StrandedTestCase(base.VqosTestCase):
    """Two hosts of four pCPUs of 100 CU, with 240 CU left on each."""

    def setUp(self):
        self.flags(weight_classes=[
            'nova.scheduler.weights.all_weighers',
            'nova_vqos.scheduler.weigher.all_weighers',
        ], group='filter_scheduler')
        super().setUp()
        self.flags(packing='exact', group='vqos')
        for name, sizes_cu in {'even': (40,) * 4, 'uneven': (100, 60)}.items():
            self.start_host(name)
            for cu in sizes_cu:
                self.boot(self.make_flavor(cu), name)
        self._run_periodics()
        self.flavor = self.make_flavor(40)

    def stats_of(self, key):
        return [self.stats(name)[key] for name in ('even', 'uneven')]

    def test_the_host_that_strands_least(self):
        self.assertEqual(['240', '240'], self.stats_of('vqos_room_cu'))
        self.assertEqual(['100:2 20:2', '100:2 40:1 0:1'],
                         self.stats_of('vqos_pieces'))
        self.assertEqual(['40', '40'], self.stats_of('vqos_stranded_cu'))
        self.assertEqual('uneven', self.host_of(self.boot(self.flavor)))
        self._run_periodics()
        self.assertEqual('100:2 0:2', self.stats('uneven')['vqos_pieces'])
        self.assertEqual(['40', '0'], self.stats_of('vqos_stranded_cu'))

    def test_a_negative_multiplier_does_the_opposite(self):
        """So it was the weigher that decided."""
        self.flags(packing_weight_multiplier=-8.0, group='vqos')
        self.assertEqual('even', self.host_of(self.boot(self.flavor)))
