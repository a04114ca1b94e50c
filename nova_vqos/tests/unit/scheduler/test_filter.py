# SPDX-License-Identifier: Apache-2.0
"""Which hosts the scheduler's filter lets pass, and what it says."""

import datetime
import logging

from nova.objects import fields
from nova.scheduler import host_manager
from nova.tests.unit import fake_flavor
from oslo_config import cfg

from nova import objects
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.scheduler import filter as vqos_filter
from nova_vqos.scheduler import request
from nova_vqos.scheduler import weigher
from nova_vqos.tests.fixtures import nova_case

objects.register_all()


def ago(seconds):
    now = datetime.datetime.now(datetime.UTC)
    return (now - datetime.timedelta(seconds=seconds)).isoformat()


def make_host(name='compute1', **stats):
    """A host with units, of 60 CU per pCPU, but for these stats."""
    host_state = host_manager.HostState(name, name, None)
    host_state.stats = {
        'num_instances': '0', 'vqos_sells_units': 'True',
        'vqos_profile': 'valid', 'vqos_profile_id': 'f00',
        'vqos_slowest_cu': '60', 'vqos_fastest_cu': '90',
        'vqos_least_cu': '0.48', 'vqos_agent_seen_at': ago(10),
        'vqos_quantum_classes': 'default', 'vqos_dd_billing': 'off', **stats}
    return host_state


def stock_host(name='stock1'):
    host_state = host_manager.HostState(name, name, None)
    host_state.stats = {'num_instances': '0'}
    return host_state


def make_spec(extra_specs=None, vcpus=1, numa_topology=None, **kwargs):
    flavor = fake_flavor.fake_flavor_obj(
        None, vcpus=vcpus, extra_specs=extra_specs or {},
        expected_attrs=['extra_specs'])
    return objects.RequestSpec(
        flavor=flavor, instance_uuid='8d2b5d4f-0000-4000-8000-000000000001',
        numa_topology=numa_topology, **kwargs)


def with_units(units=60, **others):
    return make_spec({policy.UNITS_KEY: str(units)}, **others)


class FilterTestCase(nova_case.NovaTestCase):

    def setUp(self):
        super().setUp()
        self.filter = vqos_filter.VqosFilter()

    def passed(self, hosts, spec):
        return [host.host for host in self.filter.filter_all(hosts, spec)]

    def test_speeds_are_compared_exactly(self):
        for slowest_cu, units, vcpus, passes in (
                ('60', 60, 1, True), ('60', 120, 2, True),
                ('60', 121, 2, False), ('33.4', 167, 5, True),
                ('33.39999999999999999', 167, 5, False)):
            passed = self.passed([make_host(vqos_slowest_cu=slowest_cu)],
                                 with_units(units, vcpus=vcpus))
            self.assertEqual(['compute1'] if passes else [], passed)

    def test_a_line_names_the_refused_hosts(self):
        seen_at = ago(301)
        for spec, reasons, stats in (
                (with_units(61), ('61 CU on 1 vCPUs', '60 CU'), {}),
                (with_units(150, vcpus=2), ('75 CU each', '60 CU'),
                 {'vqos_fastest_cu': '900'}),
                (with_units(2, vcpus=2), ('2 CU on 2 vCPUs', '1.5 CU'),
                 {'vqos_least_cu': '1.5'}),
                (with_units(), ('the governor changed',),
                 {'vqos_profile': 'the governor changed'}),
                (with_units(), ('how fast',), {'vqos_slowest_cu': ''}),
                (with_units(), ('how fast',), {'vqos_least_cu': ''}),
                (with_units(), ('never seen',), {'vqos_agent_seen_at': ''}),
                (with_units(), (seen_at, '300 s'),
                 {'vqos_agent_seen_at': seen_at}),
                *((make_spec({policy.UNITS_KEY: '60', key: value}),
                   (f'{key} {value}',), {})
                  for key, value in ((policy.QUANTUM_CLASS_KEY, 'io'),
                                     (policy.DD_BILLING_KEY, 'charge')))):
            with self.assertLogs(vqos_filter.LOG.logger, logging.INFO) as logs:
                self.assertEqual([], self.passed([make_host(**stats)], spec))
            (line,) = [record.getMessage() for record in logs.records]
            for text in ('compute1', spec.instance_uuid, *reasons):
                self.assertIn(text, line)

    def test_a_host_of_stock_nova(self):
        with self.assertLogs(vqos_filter.LOG.logger, logging.INFO) as logs:
            self.assertEqual([], self.passed([stock_host()], with_units()))
        self.assertIn('it has no CPU units', logs.records[0].getMessage())

    def test_a_host_without_a_report_yet(self):
        # As Nova makes it, without stats.
        new = host_manager.HostState('new', 'new', None)
        self.assertEqual([], self.passed([new], with_units()))
        self.assertEqual(['new'], self.passed([new], make_spec()))

    def test_a_host_with_invalid_stats_is_refused_alone(self):
        for key, value in (
                ('vqos_slowest_cu', '9e999999'), ('vqos_least_cu', '9e999999'),
                ('vqos_classes', '9e999999:100:1'),
                ('vqos_slowest_cu', 'Infinity'), ('vqos_slowest_cu', 'NaN'),
                ('vqos_slowest_cu', '9' * 10**6),
                ('vqos_quantum_pools', 'cache:2'),
                ('vqos_agent_seen_at', 'yesterday')):
            hosts = [make_host('good1'), make_host('bad', **{key: value}),
                     make_host('good2')]
            for specs in ({policy.UNITS_KEY: '120'},
                          {policy.DD_BILLING_KEY: 'off',
                           policy.UNITS_KEY: '2'}):
                self.assertEqual(['good1', 'good2'], self.passed(
                    hosts, make_spec(specs, vcpus=2)))

    def test_invalid_stats_are_logged_once_an_hour(self):
        self.stub_out('nova_vqos.scheduler.request._known', {})
        self.stub_out('nova_vqos.scheduler.request.time.monotonic',
                      lambda: self.now_s)
        with self.assertLogs(request.LOG.logger, logging.INFO) as logs:
            for self.now_s, cu in (
                    (5, '9e99'), (6, '9e99'), (7, 'fast\n'), (8, '60'),
                    (3604, '8e99'), (3605, '7e99')):
                self.passed([make_host('one', vqos_slowest_cu=cu),
                             make_host('other')], with_units())
        first, second = [record.getMessage() for record in logs.records]
        for text in ('Host one ', 'vqos_slowest_cu', "'9e99'", '33.4'):
            self.assertIn(text, first)
        self.assertIn("'7e99'", second)

    def test_stats_are_decoded_when_they_change(self):
        """Not for each request, and not for each filter and weigher."""
        decoded = []
        seen_at = ago(0)
        stock = host_stats.decode
        self.stub_out('nova_vqos.scheduler.request._known', {})
        self.stub_out('nova_vqos.host_stats.decode',
                      lambda texts: decoded.append(texts) or stock(texts))
        for spec in (with_units(), with_units(num_instances=2)):
            hosts = [make_host(vqos_agent_seen_at=seen_at)]
            self.assertEqual(['compute1'], self.passed(hosts, spec))
            weigher.VqosUnitsWeigher()._weigh_object(hosts[0], spec)
        self.assertEqual(1, len(decoded))
        hosts[0].stats['vqos_slowest_cu'] = '59'
        self.assertEqual([], self.passed(hosts, spec))
        self.assertEqual(2, len(decoded))

    def test_the_age_of_the_agent(self):
        for max_age_s, seen_at, passes in (
                (300, ago(290), True), (300, ago(301), False),
                (100, ago(290), False), (0, ago(10**6), True), (0, '', True)):
            self.flags(agent_max_age_s=max_age_s, group='vqos')
            self.assertEqual(passes, self.filter.host_passes(
                make_host(vqos_agent_seen_at=seen_at), with_units()))

    def test_classes_and_billings_that_a_host_offers(self):
        spec = make_spec({policy.UNITS_KEY: '60',
                          policy.QUANTUM_CLASS_KEY: 'io',
                          policy.DD_BILLING_KEY: 'charge'})
        hosts = [make_host(), make_host('io', vqos_quantum_classes='io'),
                 make_host('both', vqos_quantum_classes='default,io',
                           vqos_dd_billing='off,account,charge')]
        self.assertEqual(['both'], self.passed(hosts, spec))

    def test_each_class_needs_a_host_that_offers_it(self):
        """auto as well: what recognises is a host's agent."""
        hosts = [make_host(name, vqos_quantum_classes=classes)
                 for name, classes in (
                     ('none', ''), ('stock', 'default'),
                     ('cache', 'default,cache,neutral'),
                     ('auto', 'default,cache,neutral,auto'),
                     ('all', ','.join(policy.CHOICES[
                         policy.QUANTUM_CLASS_KEY])))]
        names = [host.host for host in hosts]
        for wanted, expected in (
                ('default', names), ('io', ['all']), ('spin', ['all']),
                ('cache', names[2:]), ('neutral', names[2:]),
                ('auto', names[3:])):
            self.assertEqual(expected, self.passed(hosts, make_spec({
                policy.UNITS_KEY: '60', policy.QUANTUM_CLASS_KEY: wanted})))

    def test_a_class_without_units(self):
        self.flags(servers_without_units='allow', group='vqos')
        spec = make_spec({policy.QUANTUM_CLASS_KEY: 'io'})
        hosts = [make_host(), stock_host(),
                 make_host('compute2', vqos_quantum_classes='default,io')]
        self.assertEqual(['compute2'], self.passed(hosts, spec))
        self.flags(servers_without_units='refuse', group='vqos')
        self.assertEqual([], self.passed(hosts, spec))

    def refuse_many(self, level):
        with self.assertLogs(vqos_filter.LOG.logger, level) as logs:
            self.assertEqual([], self.passed(
                [make_host(f'compute{n}') for n in range(100)],
                with_units(80)))
        return [record.getMessage() for record in logs.records]

    def test_many_refused_hosts_do_not_flood_the_log(self):
        lines = self.refuse_many(logging.INFO)
        self.assertEqual(21, len(lines))
        self.assertIn('compute19', lines[19])
        self.assertIn('80 more hosts', lines[20])

    def test_level_debug_has_a_line_for_each(self):
        lines = self.refuse_many(logging.DEBUG)
        self.assertEqual(101, len(lines))
        self.assertIn('compute99', lines[100])

    def assert_no_host(self, spec, *texts):
        with self.assertLogs(vqos_filter.LOG.logger, logging.INFO) as logs:
            self.assertEqual([], self.passed(
                [make_host(f'compute{n}') for n in range(3)], spec))
        (line,) = [record.getMessage() for record in logs.records]
        for text in (spec.instance_uuid, *texts):
            self.assertIn(text, line)

    def test_invalid_flavors_find_no_host(self):
        # What an API before 2.86 lets pass.
        for specs in (
                *({policy.UNITS_KEY: value} for value in (
                    '0', '-1', str(2**40), 'sixty', ' 60 ', '6_0', '60.0')),
                *({f'resources{group}:CUSTOM_VQOS_CPU_UNIT': '60'}
                  for group in ('1', '_gpu', '-x')),
                *({key: value, policy.UNITS_KEY: '60'} for key, value in (
                    ('quota:cpu_quota', '10000'), ('quota:cpu_shares', '1024'),
                    ('hw:cpu_policy', 'dedicated'),
                    ('hw:cpu_policy', 'mixed'), ('resources:PCPU', '1'))),
                {'vqos:kap': 'hard'}):
            key, value = next(iter(specs.items()))
            self.assert_no_host(make_spec(specs), key, value)
        self.assert_no_host(with_units(3, vcpus=4), policy.UNITS_KEY)

    def test_dedicated_cpus_by_image_find_no_host(self):
        for cpu_policy in (fields.CPUAllocationPolicy.DEDICATED,
                           fields.CPUAllocationPolicy.MIXED):
            topology = objects.InstanceNUMATopology(cells=[
                objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset={0},
                                         memory=512, cpu_policy=cpu_policy)])
            self.assert_no_host(with_units(numa_topology=topology),
                                'hw_cpu_policy', cpu_policy)

    def test_a_numa_topology_of_shared_cpus_is_fine(self):
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(),
                                     memory=512)])
        self.assertEqual(['compute1'], self.passed(
            [make_host()], with_units(numa_topology=topology)))


class WithoutUnitsTestCase(nova_case.NovaTestCase):

    SPECS = (make_spec(), make_spec({'hw:cpu_policy': 'dedicated'}),
             make_spec({policy.QUANTUM_CLASS_KEY: 'default'}),
             make_spec({policy.DD_BILLING_KEY: 'off'}))

    def setUp(self):
        super().setUp()
        self.filter = vqos_filter.VqosFilter()
        self.hosts = [make_host(), stock_host(),
                      make_host('uncalibrated', vqos_sells_units='False',
                                vqos_profile='no profile')]

    def test_hosts_with_units_are_kept(self):
        for spec in self.SPECS:
            with self.assertLogs(vqos_filter.LOG.logger, logging.INFO) as logs:
                passed = self.filter.filter_all(self.hosts, spec)
            self.assertEqual(['stock1', 'uncalibrated'],
                             [host.host for host in passed])
            (line,) = [record.getMessage() for record in logs.records]
            self.assertIn('compute1', line)
            self.assertNotIn('stock1', line)
            self.assertIn('servers_without_units', line)

    def test_a_long_list_of_kept_hosts_is_cut(self):
        hosts = [make_host(f'compute{n}') for n in range(1000)]
        with self.assertLogs(vqos_filter.LOG.logger, logging.INFO) as logs:
            self.assertEqual([], self.filter.filter_all(hosts, make_spec()))
        self.assertIn('and 980 more', logs.records[0].getMessage())
        self.assertLess(len(logs.records[0].getMessage()), 1000)

    def test_a_host_that_lost_its_profile_is_kept(self):
        hosts = [make_host(vqos_profile='the profile is gone')]
        self.assertEqual([], self.filter.filter_all(hosts, make_spec()))

    def test_the_operator_may_allow_it(self):
        self.flags(servers_without_units='allow', group='vqos')
        for spec in self.SPECS:
            # The very list: it costs nothing.
            self.assertIs(self.hosts, self.filter.filter_all(self.hosts, spec))

    def test_no_line_where_nothing_is_refused(self):
        with self.assertNoLogs(vqos_filter.LOG.logger, logging.INFO):
            self.filter.filter_all([stock_host()], make_spec())

    def test_a_flavor_whose_extra_specs_were_not_read(self):
        spec = make_spec()
        spec.flavor = objects.Flavor(id=1, flavorid='1', vcpus=1)
        self.assertEqual(['stock1'], [
            host.host for host in self.filter.filter_all([stock_host()],
                                                         spec)])


class ProtocolTestCase(nova_case.NovaTestCase):
    """What the scheduler's machinery expects of a filter."""

    def test_rebuild_is_let_pass(self):
        # The server stays where it is, and its flavor as it is: a host that
        # is closed or slower now must not keep it from being rebuilt.
        hosts = [make_host(vqos_profile='stale')]
        spec = with_units(10_000, scheduler_hints={
            '_nova_check_type': ['rebuild']})
        self.assertFalse(vqos_filter.VqosFilter.RUN_ON_REBUILD)
        self.assertEqual(hosts, vqos_filter.VqosFilter().filter_all(hosts,
                                                                    spec))

    def test_evacuation_is_not(self):
        spec = with_units(61, scheduler_hints={'_nova_check_type': ['evac']})
        self.assertEqual([], vqos_filter.VqosFilter().filter_all(
            [make_host()], spec))

    def test_it_needs_no_other_for_its_options(self):
        self.stub_out('nova_vqos.scheduler.filter.CONF', cfg.ConfigOpts())
        vqos_filter.VqosFilter()
        self.assertEqual('refuse', vqos_filter.CONF.vqos.servers_without_units)

    def test_one_host(self):
        vqos = vqos_filter.VqosFilter()
        self.assertTrue(vqos.host_passes(make_host(), with_units(60)))
        self.assertFalse(vqos.host_passes(make_host(), with_units(61)))

    def test_nova_loads_and_runs_it(self):
        handler = vqos_filter.filters.HostFilterHandler()
        (loaded,) = handler.get_matching_classes(
            ['nova_vqos.scheduler.filter.VqosFilter'])
        spec = with_units(61)
        hosts = [make_host(), make_host('fast', vqos_slowest_cu='61')]
        passed = handler.get_filtered_objects([loaded()], hosts, spec)
        self.assertEqual(['fast'], [host.host for host in passed])
        # Once per request is enough, but where pCPUs are unlike: see
        # test_filter_core_types.
        self.assertEqual(hosts, handler.get_filtered_objects(
            [loaded()], hosts, spec, index=1))
