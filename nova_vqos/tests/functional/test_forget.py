# SPDX-License-Identifier: Apache-2.0
"""What an uninstallation leaves in Placement: nothing."""

from nova_vqos.tests.functional import manage_case


class ForgetTestCase(manage_case.ManageTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)
        self.assertIn('CUSTOM_VQOS', self.traits('fast'))

    def forget(self, *arguments):
        return self.run_manage('host', 'forget', 'fast', '-f', 'json',
                               *arguments)

    def assert_refused(self, said, *arguments):
        before = self.traits('fast'), self.inventory('fast')
        ran = self.forget(*arguments)
        self.assertEqual((1, ''), (ran.status, ran.out))
        self.assertIn(said, ran.err)
        self.assertEqual(before, (self.traits('fast'),
                                  self.inventory('fast')))

    def switch_back(self):
        self.flags(compute_driver='libvirt.LibvirtDriver')
        self.restart_compute_service('fast')
        self._run_periodics()

    def all_traits(self):
        return set(self._get_provider_traits(self.compute_rp_uuids['fast']))

    def test_after_the_driver_was_set_back(self):
        self.switch_back()
        left, others = self.traits('fast'), self.all_traits()
        self.assertIn('CUSTOM_VQOS', left)
        ran = self.forget()
        self.assertEqual(0, ran.status, ran.err)
        self.assertEqual({
            'host': 'fast', 'provider': self.compute_rp_uuids['fast'],
            'units_removed': False, 'traits_removed': sorted(left)}, ran.json)
        self.assertEqual(others - left, self.all_traits())
        self.assertIsNone(self.inventory('fast'))
        # Nothing brings them back, and nothing is left to remove.
        self._run_periodics()
        again = self.forget()
        self.assertEqual((0, []), (again.status,
                                   again.json['traits_removed']))

    def test_a_host_that_is_down_for_good(self):
        self.host_dies('fast')
        ran = self.forget()
        self.assertEqual(0, ran.status, ran.err)
        self.assertIs(True, ran.json['units_removed'])
        self.assertIsNone(self.inventory('fast'))
        self.assertEqual(set(), self.traits('fast'))

    def test_units_that_a_server_holds(self):
        server = self.boot(self.make_flavor(60), 'fast')
        for arguments in ((), ('--force',)):
            self.assert_refused('60 CU', *arguments)
        self._delete_server(server)
        self.wait_until_used('fast', 0)
        self.assertEqual(0, self.forget('--force').status)
        self.assertIsNone(self.inventory('fast'))

    def test_a_driver_that_would_report_them_again(self):
        self.assert_refused('compute_driver')
        self.assertEqual(0, self.forget('--force').status)
        self.assertEqual(set(), self.traits('fast'))
        # Which it does when it reads again what Placement has.
        self.restart_compute_service('fast')
        self.assertIn('CUSTOM_VQOS', self.traits('fast'))

    def test_an_agent_that_still_answers(self):
        self.switch_back()
        self.start_agent('fast')
        self.assert_refused('nova-vqos-agent')
        self.assertEqual(0, self.forget('--force').status)
        self.assertEqual(set(), self.traits('fast'))

    def test_a_host_that_nova_does_not_know(self):
        ran = self.run_manage('host', 'forget', 'nonesuch')
        self.assertEqual(1, ran.status)
        self.assertIn('nonesuch', ran.err)


class StockTestCase(manage_case.ManageTestCase):

    def test_a_host_that_never_sold_units(self):
        self.start_host('plain', None)
        others = self._get_provider_traits(self.compute_rp_uuids['plain'])
        ran = self.run_manage('host', 'forget', 'plain', '-f', 'json')
        self.assertEqual(0, ran.status, ran.err)
        self.assertIs(False, ran.json['units_removed'])
        self.assertEqual(others, self._get_provider_traits(
            self.compute_rp_uuids['plain']))
        self.boot(self.make_flavor(), 'plain')
