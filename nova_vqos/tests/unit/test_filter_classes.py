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

"""The scheduler's filter on hosts of unlike pCPUs."""

import gc

from nova import objects
from nova_vqos.scheduler import filter as vqos_filter
from nova_vqos.scheduler import fitness
from nova_vqos.tests.unit import nova_case
from nova_vqos.tests.unit import test_filter

# 2 pCPUs of 200 CU, 4 of 80 CU.
EMPTY = '80:320:0.64 200:400:1.6'


def make_host(name='hybrid', classes=EMPTY, **stats):
    return test_filter.make_host(name, **{
        'vqos_slowest_cu': '80', 'vqos_fastest_cu': '200',
        'vqos_least_cu': '0.64', 'vqos_classes': classes, **stats})


class ClassesTestCase(nova_case.NovaTestCase):

    def setUp(self):
        super().setUp()
        self.filter = vqos_filter.VqosFilter()

    def refusal(self, cu, vcpus=1, classes=EMPTY):
        """What is said of a host that is refused, '' if it passes."""
        spec = test_filter.with_units(cu, vcpus=vcpus)
        host = make_host(classes=classes)
        with self.assertLogs(vqos_filter.LOG.logger) as logs:
            # assertLogs wants one line at least.
            vqos_filter.LOG.info('first')
            passed = self.filter.filter_all([host], spec)
        lines = [record.getMessage() for record in logs.records[1:]]
        self.assertEqual(1, len(passed) + len(lines))
        return ''.join(lines)

    def test_any_class_that_is_fast_enough_with_room(self):
        for cu, vcpus in ((80, 1), (81, 1), (200, 1), (400, 2), (400, 5),
                          (320, 4)):
            self.assertEqual('', self.refusal(cu, vcpus))

    def test_too_fast_for_all(self):
        line = self.refusal(201)
        for text in ('hybrid', '201 CU on 1 vCPUs', '200 CU', '80 CU'):
            self.assertIn(text, line)

    def test_room_in_no_single_class(self):
        line = self.refusal(300, 4, '80:299:0.64 200:299:1.6')
        self.assertIn('299 CU left on pCPUs of 80 CU, 299 CU left on pCPUs '
                      'of 200 CU', line)
        self.assertEqual('', self.refusal(299, 4, '80:0:0.64 200:299:1.6'))

    def test_the_fast_class_has_no_room_the_other_is_too_slow(self):
        self.assertIn('79 CU left', self.refusal(
            120, classes='80:320:0.64 200:79:1.6'))

    def test_too_small_a_share_for_the_class_with_room(self):
        self.assertIn('320 CU left', self.refusal(
            1, classes='80:320:1.1 200:400:1.6'))

    def test_speeds_are_compared_exactly(self):
        self.assertEqual('', self.refusal(167, 5, '1:1:1 33.4:400:0.2'))
        self.assertIn('33.39', self.refusal(
            167, 5, '1:1:1 33.39999999999999999:400:0.2'))

    def test_stats_that_are_garbage(self):
        for classes in ('80', '80:320', '80:x:1', 'a:320:1', '80:320:1:1',
                        '80:320:1  80:320:1', '80:1.5:1'):
            self.assertIn('its stats do not say', self.refusal(
                60, classes=classes))

    def test_a_numa_topology_may_be_on_the_slowest_pcpus(self):
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(),
                                     memory=512)])
        for cu, passes in ((80, True), (81, False)):
            spec = test_filter.with_units(cu, numa_topology=topology)
            self.assertEqual(passes, self.filter.host_passes(
                make_host(classes='80:0:0.64 200:400:1.6'), spec))

    def test_a_host_of_equal_pcpus_says_that_it_has_no_classes(self):
        spec = test_filter.with_units(81)
        self.assertEqual([], self.filter.filter_all(
            [make_host(classes='')], spec))


class SeveralServersTestCase(nova_case.NovaTestCase):
    """Servers of one request: what it takes itself, no stats tell."""

    def setUp(self):
        super().setUp()
        self.filter = vqos_filter.VqosFilter()
        self.handler = vqos_filter.filters.HostFilterHandler()

    def schedule(self, hosts, cu, servers, vcpus=1):
        """Hosts of a request's servers, each the first that passes."""
        spec = test_filter.with_units(cu, vcpus=vcpus, num_instances=servers)
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

    def test_servers_that_were_there_before_do_not(self):
        host = make_host()
        host.num_instances = 7
        self.assertEqual(['hybrid'] * 2, self.schedule([host], 200, 3))

    def test_each_request_begins_with_the_stats(self):
        host = make_host()
        for _ in range(2):
            self.assertEqual(['hybrid'] * 2, self.schedule([host], 200, 3))

    def test_stats_are_parsed_once(self):
        parsed = []
        stock = fitness.Classes
        self.stub_out('nova_vqos.scheduler.fitness.Classes',
                      lambda *args: parsed.append(args) or stock(*args))
        self.schedule([make_host(), make_host('second')], 60, 5)
        self.assertEqual(2, len(parsed))

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
