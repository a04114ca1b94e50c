# SPDX-License-Identifier: Apache-2.0
"""The scheduler's filter on hosts of unlike pCPUs."""

import gc

from nova import objects
from nova_vqos import policy
from nova_vqos.scheduler import filter as vqos_filter
from nova_vqos.tests.fixtures import nova_case
from nova_vqos.tests.unit.scheduler import test_filter

# 2 pCPUs of 200 CU, 4 of 80 CU.
EMPTY = '80:320:0.64 200:400:1.6'


def make_host(name='hybrid', core_types=EMPTY, **stats):
    return test_filter.make_host(name, **{
        'vqos_slowest_cu': '80', 'vqos_fastest_cu': '200',
        'vqos_least_cu': '0.64', 'vqos_classes': core_types, **stats})


class CoreTypesTestCase(nova_case.NovaTestCase):

    def setUp(self):
        super().setUp()
        self.filter = vqos_filter.VqosFilter()

    def test_a_core_type_that_is_fast_enough_with_room(self):
        for cu, vcpus, core_types, passes in (
                (80, 1, EMPTY, True), (81, 1, EMPTY, True),
                (200, 1, EMPTY, True), (400, 2, EMPTY, True),
                (400, 5, EMPTY, True), (320, 4, EMPTY, True),
                # Too fast for all.
                (201, 1, EMPTY, False),
                # Room on no single one.
                (300, 4, '80:299:0.64 200:299:1.6', False),
                (299, 4, '80:0:0.64 200:299:1.6', True),
                # The fast one has no room, the other is too slow.
                (120, 1, '80:320:0.64 200:79:1.6', False),
                # Too small a share for the one with room.
                (1, 1, '80:320:1.1 200:400:1.6', False),
                (167, 5, '1:1:1 33.4:400:0.2', True),
                (167, 5, '1:1:1 33.39999999999999999:400:0.2', False),
                # All pCPUs are equal.
                (81, 1, '', False), (80, 1, '', True)):
            self.assertEqual(passes, self.filter.host_passes(
                make_host(core_types=core_types),
                test_filter.with_units(cu, vcpus=vcpus)))

    def test_the_line_says_what_each_has(self):
        with self.assertLogs(vqos_filter.LOG.logger) as logs:
            self.filter.filter_all([make_host()], test_filter.with_units(201))
        (line,) = [record.getMessage() for record in logs.records]
        for text in ('hybrid', '201 CU on 1 vCPUs', '320 CU left on pCPUs of '
                     '80 CU, 400 CU left on pCPUs of 200 CU'):
            self.assertIn(text, line)

    def test_a_numa_topology_has_one_for_a_hard_cap_only(self):
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(),
                                     memory=512)])
        for cu, cap, passes in (
                (80, 'floor', True), (81, 'floor', False),
                (80, 'hard', True), (200, 'hard', True), (201, 'hard', False),
                (1, 'hard', False)):
            spec = test_filter.make_spec(
                {policy.UNITS_KEY: str(cu), policy.CAP_KEY: cap},
                numa_topology=topology)
            self.assertEqual(passes, self.filter.host_passes(
                make_host(core_types='80:0:0.64 200:400:1.6'), spec))


class SeveralServersTestCase(nova_case.NovaTestCase):
    """Servers of one request: the stats do not have its own usage yet."""

    def setUp(self):
        super().setUp()
        self.filter = vqos_filter.VqosFilter()
        self.handler = vqos_filter.filters.HostFilterHandler()

    def schedule(self, hosts, cu, servers, vcpus=1, **specs):
        """Hosts of a request's servers, each the first that passes."""
        spec = test_filter.make_spec(
            {policy.UNITS_KEY: str(cu), **specs}, vcpus=vcpus,
            num_instances=servers)
        chosen = []
        for index in range(servers):
            hosts = self.handler.get_filtered_objects(
                [self.filter], hosts, spec, index)
            if not hosts:
                break
            chosen.append(hosts[0].host)
            hosts[0].num_instances += 1
        return chosen

    def test_its_own_servers_count(self):
        hosts = [make_host(), make_host('second')]
        # On each host two in the fast class, and two in the slow one.
        self.assertEqual(['hybrid'] * 4 + ['second'] * 4,
                         self.schedule(hosts, 160, 9, vcpus=2))
        # Too fast for the slow class.
        hosts = [make_host(), make_host('second')]
        self.assertEqual(['hybrid'] * 2 + ['second'] * 2,
                         self.schedule(hosts, 200, 5))

    def test_what_their_kind_of_work_takes(self):
        """Placement counts 40 of 200 CU for each, and each takes 80."""
        hosts = [test_filter.make_host(
            name, vqos_slowest_cu='100', vqos_fastest_cu='100',
            vqos_least_cu='0.64', vqos_room_cu='200',
            vqos_work='100=hash:50,integer:200')
            for name in ('first', 'second')]
        self.assertEqual(['first'] * 2 + ['second'] * 2, self.schedule(
            hosts, 40, 5, **{policy.WORK_KEY: 'hash'}))

    def test_one_left_since_its_room_was_counted(self):
        """A host reports once a minute; the driver has the last word."""
        work = {policy.WORK_KEY: 'hash'}
        full = {'vqos_room_cu': '0', 'vqos_servers': '3',
                'vqos_work': '100=hash:50', 'vqos_slowest_cu': '100',
                'vqos_fastest_cu': '100', 'vqos_least_cu': '0.64'}
        for host, specs in (
                (test_filter.make_host(**full), work),
                (make_host(core_types='100:0:0.64 200:0:1.6',
                           vqos_servers='3'), {})):
            for servers, chosen in ((4, 0), (3, 0), (2, 1)):
                with self.subTest(specs=specs, servers=servers):
                    host.num_instances = servers
                    self.assertEqual([host.host] * chosen, self.schedule(
                        [host], 40, 1, **specs))
        # It stays too slow.
        host.num_instances = 2
        self.assertEqual([], self.schedule([host], 300, 1))

    def test_servers_that_were_there_before_do_not(self):
        host = make_host()
        host.num_instances = 7
        self.assertEqual(['hybrid'] * 2, self.schedule([host], 200, 3))

    def test_each_request_begins_with_the_stats(self):
        host = make_host()
        for _ in range(2):
            self.assertEqual(['hybrid'] * 2, self.schedule([host], 200, 3))

    def test_fewer_servers_than_before(self):
        # Nova has read the compute node anew meanwhile.
        host = make_host()
        host.num_instances = 5
        spec = test_filter.with_units(200, num_instances=2)
        self.assertEqual([host], self.filter.filter_all([host], spec))
        host.num_instances = 3
        self.assertEqual([host], self.filter.filter_all([host], spec))

    def test_hosts_of_equal_pcpus_are_looked_at_once(self):
        for hosts, servers, again in (
                ([test_filter.make_host()], 3, False),
                ([make_host()], 1, False),
                ([test_filter.make_host(), make_host()], 2, True)):
            spec = test_filter.with_units(60, num_instances=servers)
            self.filter.filter_all(hosts, spec)
            self.assertTrue(self.filter.run_filter_for_index(0))
            self.assertEqual(again, self.filter.run_filter_for_index(1))

    def test_nothing_is_kept_of_a_request_that_is_done(self):
        self.schedule([make_host()], 60, 2)
        gc.collect()
        self.assertFalse(self.filter.run_filter_for_index(1))
