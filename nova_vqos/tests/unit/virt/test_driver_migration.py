# SPDX-License-Identifier: Apache-2.0
"""Whom the driver lets come in a live migration."""

import fixtures
from nova.objects import fields

from nova import exception
from nova import objects
from nova_vqos import compute_state
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver


class LiveMigrationCheckTestCase(driver.DriverTestCase):

    def setUp(self):
        super().setUp()
        self.stock_calls = []
        self.stub_driver(
            'check_can_live_migrate_destination',
            lambda this, *args: self.stock_calls.append(args) or self.data)
        self.data = objects.LibvirtLiveMigrateData(filename='tmp1')

    def check(self, instance):
        return self.driver.check_can_live_migrate_destination(
            self.context, instance, {'src': 1}, {'dst': 1}, True, False)

    def assert_refused(self, instance, *texts):
        error = self.assertRaises(exception.MigrationPreCheckError,
                                  self.check, instance)
        for text in texts:
            self.assertIn(text, str(error))
        # Before the stock method, which makes a file.
        self.assertEqual([], self.stock_calls)

    def test_passed_on_as_given(self):
        for specs in ({policy.UNITS_KEY: '150'}, {}):
            instance = self.make_instance(specs)
            self.assertIs(self.data, self.check(instance))
            self.assertEqual((self.context, instance, {'src': 1},
                              {'dst': 1}, True, False),
                             self.stock_calls.pop())

    def test_too_slow(self):
        self.assert_refused(self.make_instance({policy.UNITS_KEY: '151'}),
                            '151 CU', '150 CU', 'host')

    def test_no_valid_profile(self):
        instance = self.make_instance({policy.UNITS_KEY: '60'})
        self.files.calibrate({'0-1': 1.5}, fingerprint={'kernel': 'old'})
        self.assert_refused(instance, 'stale')
        self.lose_profile()
        self.assert_refused(instance, 'nova-vqos-calibrate')

    def test_bad_policy(self):
        self.assert_refused(self.make_instance({policy.UNITS_KEY: '0'}),
                            policy.UNITS_KEY)

    def test_a_class_that_is_not_offered(self):
        self.assert_refused(
            self.make_instance({policy.UNITS_KEY: '60',
                                policy.QUANTUM_CLASS_KEY: 'io'}),
            policy.QUANTUM_CLASS_KEY)

    def test_dedicated_cpus(self):
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(
                id=0, cpuset=set(), pcpuset={0}, memory=512,
                cpu_policy=fields.CPUAllocationPolicy.DEDICATED)])
        self.assert_refused(
            self.make_instance({policy.UNITS_KEY: '60'},
                               numa_topology=topology), 'hw_cpu_policy')

    def test_a_host_that_cannot_cap(self):
        self.cgroups.version = 0
        self.assert_refused(self.make_instance({policy.UNITS_KEY: '60'}),
                            'cgroup')

    def test_nothing_else_is_ever_raised(self):
        # Any other exception puts the running server into ERROR.
        for name in ('nova_vqos.virt.host_state.HostReporter.report',
                     'nova_vqos.policy.parse',
                     'nova_vqos.virt.admission.admit'):
            with fixtures.MonkeyPatch(name, lambda *args, **kwargs: 1 / 0):
                self.assert_refused(
                    self.make_instance({policy.UNITS_KEY: '60'}),
                    'division by zero')

    def test_the_agent_learns_where_it_comes_from(self):
        def sources():
            return compute_state.load(self.files.compute_state_path).sources
        instance = self.make_instance(host='there')
        self.check(instance)
        self.assertEqual({instance.uuid: 'there'}, sources())
        uuids = [f'00000000-0000-4000-8000-{number:012}'
                 for number in range(100)]
        for uuid in uuids:
            instance.uuid = uuid
            self.check(instance)
        self.assertEqual(dict.fromkeys(uuids, 'there'), sources())

    def test_no_rpc(self):
        # Bounded: it must not wait for another process.
        self.stub_out('nova.rpc.TRANSPORT', None)
        self.check(self.make_instance({policy.UNITS_KEY: '60'}))
