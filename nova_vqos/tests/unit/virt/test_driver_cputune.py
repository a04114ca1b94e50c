# SPDX-License-Identifier: Apache-2.0
"""The tuning of a guest's CPUs, and who is refused one."""

from lxml import etree
from nova.compute import task_states
from nova.compute import vm_states
from nova.objects import fields
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver as libvirt_driver

from nova import exception
from nova import objects
from nova_vqos import domain_xml
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver
from nova_vqos.tests.fixtures import fake_host

UUID = driver.UUID


class CpuTuneTestCase(driver.DriverTestCase):

    def test_a_cap_on_this_host(self):
        # Of 150 CU; units are of the whole server.
        for units, vcpus, expected in (
                (60, 1, (20_000, 50_000, 614)),
                (120, 2, (20_000, 50_000, 1229)),
                (150, 1, (50_000, 50_000, 1536))):
            self.assertEqual(expected, self.cputune(
                {policy.UNITS_KEY: str(units)}, vcpus=vcpus))
        self.flags(period_us=100_000, group='vqos')
        self.assertEqual((40_000, 100_000, 614),
                         self.cputune({policy.UNITS_KEY: '60'}))

    def test_shares_in_the_terms_of_cgroup_v2(self):
        fake_host.FakeHost(self.root, *fake_host.LAYOUTS['v2'])
        self.cgroups.version = 2
        self.assertEqual((20_000, 50_000, 60),
                         self.cputune({policy.UNITS_KEY: '60'}))

    def test_a_floor_has_shares_alone(self):
        self.assertEqual((None, None, 614), self.cputune(
            {policy.UNITS_KEY: '60', policy.CAP_KEY: 'floor'}))

    def test_its_first_settings_are_logged(self):
        with self.assertLogs('nova_vqos.virt.guest_cputune', 'INFO') as logged:
            self.cputune({policy.UNITS_KEY: '60'})
            self.cputune({policy.UNITS_KEY: '60', policy.CAP_KEY: 'floor'})
        for cap, line in zip(('a cap of 20000/50000 us', 'no cap'),
                             logged.output, strict=True):
            self.assertIn(f'starts with {cap} for its 60 CPU units on '
                          '1 vCPUs, shares 614', line)

    def test_too_slow_a_host_is_for_the_scheduler_to_try_another(self):
        error = self.assertRaises(
            exception.ComputeResourcesUnavailable, self.cputune,
            {policy.UNITS_KEY: '151'})
        self.assertIn('151 CU', str(error))
        self.assertIn('150 CU', str(error))

    def test_the_pcpus_of_a_numa_cell_are_the_eligible_ones(self):
        self.files.calibrate({'0': 1.5, '1': 0.6})
        guest = vconfig.LibvirtConfigGuest()
        guest.uuid = UUID
        guest.cputune = vconfig.LibvirtConfigGuestCPUTune()
        pin = vconfig.LibvirtConfigGuestCPUTuneVCPUPin()
        pin.id, pin.cpuset = 0, {0}
        guest.cputune.vcpupin.append(pin)
        self.driver._update_guest_cputune(
            guest, self.make_flavor({policy.UNITS_KEY: '60'}))
        self.assertEqual((20_000, 50_000, 614), self.tunables(guest))
        self.assertEqual([pin], guest.cputune.vcpupin)

    def test_a_pcpu_that_was_not_measured(self):
        self.files.calibrate({'0': 1.5})
        self.assertRaises(exception.ComputeResourcesUnavailable,
                          self.cputune, {policy.UNITS_KEY: '60'})

    def test_bad_policies_are_for_no_host(self):
        units = {policy.UNITS_KEY: '60'}
        for specs in ({policy.UNITS_KEY: '0'}, {policy.UNITS_KEY: '-1'},
                      {policy.UNITS_KEY: str(2**40)},
                      {policy.UNITS_KEY: ' 60 '}, {policy.UNITS_KEY: '6_0'},
                      {'resources1:CUSTOM_VQOS_CPU_UNIT': '60'},
                      {**units, 'resources1:CUSTOM_VQOS_CPU_UNIT': '60'},
                      {**units, 'quota:cpu_quota': '10000'},
                      {**units, 'quota:cpu_period': '10000'},
                      {**units, 'quota:cpu_shares': '10'},
                      {**units, 'hw:cpu_policy': 'dedicated'},
                      {**units, 'hw:cpu_policy': 'mixed'},
                      {**units, 'resources:PCPU': '1'},
                      {**units, policy.CAP_KEY: 'soft'},
                      {**units, 'vqos:kap': 'hard'},
                      {policy.CAP_KEY: 'hard'}):
            error = self.assertRaises(exception.InvalidInput, self.cputune,
                                      specs)
            self.assertTrue(any(key in str(error) for key in specs))

    def test_more_vcpus_than_units(self):
        self.assertRaises(exception.InvalidInput, self.cputune,
                          {policy.UNITS_KEY: '3'}, vcpus=4)

    def test_a_class_or_billing_that_this_host_does_not_offer(self):
        for key, value in ((policy.QUANTUM_CLASS_KEY, 'io'),
                           (policy.QUANTUM_CLASS_KEY, 'auto'),
                           (policy.DD_BILLING_KEY, 'account')):
            for units in ({policy.UNITS_KEY: '60'}, {}):
                error = self.assertRaises(
                    exception.ComputeResourcesUnavailable, self.cputune,
                    {**units, key: value})
                self.assertIn(f"{key} is '{value}'", str(error))

    def test_each_offered_class_is_accepted(self):
        """auto as well: what recognises is the host's agent."""
        choices = policy.CHOICES[policy.QUANTUM_CLASS_KEY]
        for offered in choices:
            self.files.agent_lives(classes=[offered])
            for wanted in choices:
                asked = {policy.UNITS_KEY: '60',
                         policy.QUANTUM_CLASS_KEY: wanted}
                if wanted in ('default', offered):
                    self.cputune(asked)
                else:
                    self.assertRaises(exception.ComputeResourcesUnavailable,
                                      self.cputune, asked)

    def test_hosts_that_cannot_cap(self):
        units = {policy.UNITS_KEY: '60'}
        self.cgroups.version = 0
        self.assertRaises(exception.UnsupportedHostCPUControlPolicy,
                          self.cputune, units)
        self.cgroups.version = 1
        for virt_type in ('lxc', 'parallels'):
            self.flags(virt_type=virt_type, group='libvirt')
            self.assertRaises(exception.UnsupportedHostCPUControlPolicy,
                              self.cputune, units)

    def test_no_profile_no_new_server(self):
        for change in (self.files.truncate_profile,
                       self.lose_profile,
                       lambda: self.files.calibrate(
                           {'0-1': 1.5}, relative_width=0.2)):
            change()
            self.assertRaises(exception.ComputeResourcesUnavailable,
                              self.cputune, {policy.UNITS_KEY: '60'})

    def test_stock_behaviour_to_the_letter(self):
        for specs in ({}, {'hw:cpu_policy': 'dedicated'},
                      {'quota:cpu_quota': '10000'},
                      {'quota:cpu_shares': '7', 'quota:cpu_period': '20000'},
                      {'resources:CUSTOM_OTHER': '5'},
                      {policy.QUANTUM_CLASS_KEY: 'default',
                       policy.DD_BILLING_KEY: 'off'}):
            for change in (lambda: None, self.lose_profile,
                           lambda: self.files.calibrate({'0-1': 1.5})):
                change()
                stock = vconfig.LibvirtConfigGuest()
                libvirt_driver.LibvirtDriver._update_guest_cputune(
                    self.driver, stock, self.make_flavor(specs))
                self.assertEqual(self.tunables(stock), self.cputune(specs))

    def test_stock_refusal_to_the_letter(self):
        self.cgroups.version = 0
        self.assertRaises(exception.UnsupportedHostCPUControlPolicy,
                          self.cputune, {'quota:cpu_quota': '10000'})
        self.assertIsNone(self.cputune({}))


class GuestTestCase(driver.DriverTestCase):
    """The whole configuration of a guest, by Nova's own way to it."""

    def test_the_cap_is_in_the_xml(self):
        guest = self.make_guest(self.make_instance({policy.UNITS_KEY: '60'}))
        cputune = etree.fromstring(guest.to_xml()).find('cputune')
        self.assertEqual(
            {'shares': '614', 'quota': '20000', 'period': '50000'},
            {element.tag: element.text for element in cputune})

    def test_the_agent_reads_the_policy_from_the_xml(self):
        guest = self.make_guest(self.make_instance({policy.UNITS_KEY: '60'}))
        specs = {element.get('name'): element.text
                 for element in etree.fromstring(guest.to_xml()).iter()
                 if str(element.tag).endswith('}extraSpec')}
        self.assertEqual({policy.UNITS_KEY: '60'}, specs)

    def test_dedicated_cpus_by_image(self):
        for cpu_policy in (fields.CPUAllocationPolicy.DEDICATED,
                           fields.CPUAllocationPolicy.MIXED):
            topology = objects.InstanceNUMATopology(cells=[
                objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset={0},
                                         memory=512, cpu_policy=cpu_policy)])
            error = self.assertRaises(
                exception.InvalidInput, self.make_guest, self.make_instance(
                    {policy.UNITS_KEY: '60'}, numa_topology=topology))
            self.assertIn('hw_cpu_policy', str(error))

    RETURNING = (task_states.REBOOT_STARTED_HARD, task_states.POWERING_ON,
                 task_states.RESCUING, task_states.RESIZE_REVERTING,
                 task_states.REBUILD_SPAWNING, None)

    def test_a_bad_host_refuses_arrivals(self):
        self.files.calibrate({'0-1': 0.5})
        evacuated = {'task_state': task_states.REBUILD_SPAWNING,
                     'migration_context': objects.MigrationContext()}
        for changes in ({'task_state': task_states.SPAWNING},
                        {'task_state': task_states.RESIZE_FINISH},
                        evacuated):
            self.assertRaises(
                exception.ComputeResourcesUnavailable, self.make_guest,
                self.make_instance({policy.UNITS_KEY: '60'}, **changes))

    def test_a_returning_server_starts_on_a_bad_host(self):
        self.files.calibrate({'0-1': 0.5})
        for task_state in self.RETURNING:
            guest = self.make_guest(self.make_instance(
                {policy.UNITS_KEY: '60'}, task_state=task_state,
                vm_state=vm_states.ACTIVE))
            # It is slower than a cap would make it.
            self.assertEqual((None, None, 614), self.tunables(guest))
        self.assertIn('starts without the cap', self.stdlog.logger.output)
        self.assertFalse(self.driver._vqos_returning)
        self.lose_profile()
        guest = self.make_guest(self.make_instance(
            {policy.UNITS_KEY: '60'}, task_state=task_states.POWERING_ON))
        self.assertEqual((None, None, 614), self.tunables(guest))

    def test_a_returning_server_is_capped_by_a_stale_profile(self):
        self.files.calibrate({'0-1': 1.5}, fingerprint={'kernel': 'old'})
        guest = self.make_guest(self.make_instance(
            {policy.UNITS_KEY: '90'}, task_state=task_states.POWERING_ON))
        self.assertEqual((30_000, 50_000, 922), self.tunables(guest))
        self.assertIn('no longer holds', self.stdlog.logger.output)

    def test_a_returning_server_that_fails_is_forgotten(self):
        def fail(*args):
            raise exception.UnsupportedHostCPUControlPolicy()

        self.stub_driver('_update_guest_cputune', fail)
        self.assertRaises(
            exception.UnsupportedHostCPUControlPolicy, self.make_guest,
            self.make_instance({policy.UNITS_KEY: '60'},
                               task_state=task_states.POWERING_ON))
        self.assertFalse(self.driver._vqos_returning)

    def test_a_returning_server_needs_no_offer_of_its_class(self):
        guest = self.make_guest(self.make_instance(
            {policy.UNITS_KEY: '90', policy.QUANTUM_CLASS_KEY: 'io'},
            task_state=task_states.REBOOT_STARTED_HARD))
        self.assertEqual((30_000, 50_000, 922), self.tunables(guest))


class FormerGuest:
    """The guest of a server before it is made anew."""

    uuid = UUID

    def __init__(self, cputune, cpuset=''):
        self._xml = (f"<domain type='qemu'><name>a</name><vcpu{cpuset}>1"
                     f'</vcpu><cputune>{cputune}</cputune></domain>')

    def get_xml_desc(self):
        return self._xml


class ReturningTestCase(driver.DriverTestCase):
    """A server that was powered off already: it starts in any case."""

    LAST = '<shares>700</shares><period>40000</period><quota>9000</quota>'
    #: What a release before, or one after this one, may have accepted.
    INVALID = (
        {policy.UNITS_KEY: '60', 'vqos:later_key': 'x'},
        {policy.UNITS_KEY: '60', policy.CAP_KEY: 'later'},
        {policy.UNITS_KEY: 'sixty'},
        {'resources1:CUSTOM_VQOS_CPU_UNIT': '60'},
        {policy.UNITS_KEY: '60', 'hw:cpu_policy': 'mixed'},
        {policy.CAP_KEY: 'hard'})

    def start_again(self, extra_specs, former=None):
        instance = self.make_instance(
            extra_specs, task_state=task_states.REBOOT_STARTED_HARD,
            vm_state=vm_states.ACTIVE)

        def get_guest(host, instance):
            if former is None:
                raise exception.InstanceNotFound(instance_id=instance.uuid)
            return former

        self.stub_out('nova.virt.libvirt.host.Host.get_guest', get_guest)
        self.stub_driver('_get_existing_guest_config',
                         lambda this, instance: None)
        self.driver._get_existing_guest_config(instance)
        guest = self.make_guest(instance)
        self.assertEqual({}, self.driver._vqos_formers)
        return guest

    def test_an_invalid_flavor_leaves_the_last_cap(self):
        for specs in self.INVALID:
            guest = self.start_again(specs, FormerGuest(self.LAST))
            self.assertEqual((9000, 40000, 700), self.tunables(guest), specs)
        self.assertIn('later_key', self.stdlog.logger.output)

    def test_an_invalid_flavor_is_no_reason_for_a_cap(self):
        for specs in self.INVALID:
            guest = self.start_again(specs, FormerGuest(''))
            self.assertIsNone(guest.cputune, specs)

    def test_an_invalid_flavor_whose_guest_is_not_known(self):
        # A weight, where its units can be read.
        for specs, expected in (
                (self.INVALID[0], (None, None, 614)),
                (self.INVALID[2], None), (self.INVALID[3], None)):
            guest = self.start_again(specs)
            self.assertEqual(expected, self.tunables(guest), specs)

    def test_what_stock_nova_sets_is_as_it_was(self):
        specs = {policy.UNITS_KEY: '60', 'quota:cpu_quota': '9000',
                 'quota:cpu_shares': '7'}
        guest = self.start_again(specs)
        self.assertEqual((9000, None, 614), self.tunables(guest))
        guest = self.start_again(specs, FormerGuest(
            '<shares>7</shares><quota>9000</quota>'))
        self.assertEqual((9000, 100_000, 7), self.tunables(guest))

    def test_a_domain_that_cannot_be_read(self):
        former = FormerGuest('')
        former._xml = '<domain'
        guest = self.start_again(self.INVALID[0], former)
        self.assertEqual((None, None, 614), self.tunables(guest))

    def test_a_host_without_a_profile_leaves_the_last_cap(self):
        units = {policy.UNITS_KEY: '60'}
        former = FormerGuest(self.LAST, ' cpuset="1"')
        self.lose_profile()
        guest = self.start_again(units, former)
        self.assertEqual((9000, 40000, 614), self.tunables(guest))
        # Of the pCPU that it had.
        self.assertEqual({1}, guest.cpuset)
        self.assertIn('its last cap', self.stdlog.logger.output)
        guest = self.start_again({**units, policy.CAP_KEY: 'floor'}, former)
        self.assertEqual((None, None, 614), self.tunables(guest))
        # It has none but that of a pCPU that was not measured.
        self.files.calibrate({'0': 1.5})
        guest = self.start_again(units, former)
        self.assertEqual((9000, 40000, 614), self.tunables(guest))

    def test_pcpus_that_nova_has_taken_away(self):
        self.lose_profile()
        guest = self.start_again({policy.UNITS_KEY: '60'}, FormerGuest(
            self.LAST, ' cpuset="7"'))
        self.assertEqual((9000, 40000, 614), self.tunables(guest))
        self.assertNotEqual({7}, guest.cpuset)

    def test_too_slow_a_host_caps_no_more(self):
        # It would be slower still.
        self.files.calibrate({'0-1': 0.5})
        guest = self.start_again({policy.UNITS_KEY: '60'},
                                 FormerGuest(self.LAST))
        self.assertEqual((None, None, 614), self.tunables(guest))

    def test_a_host_that_can_cap_no_guest(self):
        # NOTE: with a tuning libvirt would not start it there.
        self.cgroups.version = 0
        for specs in ({policy.UNITS_KEY: '60'}, self.INVALID[0]):
            guest = self.start_again(specs, FormerGuest(self.LAST))
            self.assertIsNone(guest.cputune)
        self.assertIn('cgroup controller', self.stdlog.logger.output)


class UnrescueTestCase(driver.DriverTestCase):
    """Nova starts the XML of before the rescue."""

    UNITS = {policy.UNITS_KEY: '60'}

    def setUp(self):
        super().setUp()
        self.created = []
        self.stub_driver('_create_guest', lambda _this, _context, xml, *_args:
                         self.created.append(xml) or 'guest')

    def _unrescue(self, saved, specs=None):
        """:returns: the XML that the guest is made of"""
        self.driver._create_guest(self.context, saved, self.make_instance(
            self.UNITS if specs is None else specs,
            task_state=task_states.UNRESCUING))
        return self.created.pop()

    def _saved(self, cputune='<quota>40000</quota><period>50000</period>',
               more=''):
        return (f'<domain><uuid>{UUID}</uuid>{more}<vcpu>1</vcpu>'
                f'<cputune><shares>10</shares>{cputune}</cputune></domain>')

    def _tunables(self, xml):
        found = etree.fromstring(xml).find('./cputune')
        return {child.tag: child.text for child in found}

    def test_it_has_the_cap_of_today(self):
        # Of 60 CU, on pCPUs of 150.
        self.assertEqual(
            {'shares': '614', 'quota': '20000', 'period': '50000'},
            self._tunables(self._unrescue(self._saved())))

    def test_limits_and_pins_of_the_agent_are_left_out(self):
        saved = self._saved(
            '<quota>40000</quota><period>50000</period>'
            '<global_quota>30000</global_quota>'
            '<vcpupin vcpu="0" cpuset="1"/>',
            f'<metadata><v:{domain_xml.MARK} '
            f'xmlns:v="{domain_xml.MARK_NS}"/></metadata>')
        self.assertEqual(
            {'shares': '614', 'quota': '20000', 'period': '50000'},
            self._tunables(self._unrescue(saved)))

    def test_other_pins_count(self):
        self.files.calibrate({'0': 1.5, '1': 0.6})
        saved = self._saved('<vcpupin vcpu="0" cpuset="1"/>')
        self.assertEqual(
            {'shares': '614', 'vcpupin': None, 'quota': '50000',
             'period': '50000'}, self._tunables(self._unrescue(saved)))

    def test_a_host_that_is_too_slow_by_now(self):
        self.files.calibrate({'0-1': 0.5})
        self.assertEqual({'shares': '614'},
                         self._tunables(self._unrescue(self._saved())))

    def test_a_host_that_lost_its_profile(self):
        self.lose_profile()
        self.assertEqual(
            {'shares': '614', 'quota': '40000', 'period': '50000'},
            self._tunables(self._unrescue(self._saved())))

    def test_what_stays_as_it_was(self):
        for saved, specs in (
                (self._saved(), {}),
                (self._saved(), {policy.CAP_KEY: 'floor'}),
                (self._saved(), {policy.UNITS_KEY: 'sixty'}),
                ('no domain', self.UNITS)):
            self.assertEqual(saved, self._unrescue(saved, specs))
