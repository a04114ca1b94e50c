# SPDX-License-Identifier: Apache-2.0
"""A server with units: claimed, capped by its host's speed, kept capped."""

import fixtures
from lxml import etree
import nova.conf
import pytest

from nova_vqos.tests.functional import base

CONF = nova.conf.CONF


@pytest.mark.smoke
class BootTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)
        self.start_host('slow', 0.8)

    def test_same_units_other_cap_by_host(self):
        flavor = self.make_flavor(60)
        on_fast = self.boot(flavor, 'fast')
        on_slow = self.boot(flavor, 'slow')

        # 60 CU of 200 CU are 30 % of a pCPU, 60 of 80 are 75 %.
        self.assertEqual((15000, 50000, 614), self.tunables(on_fast))
        self.assertEqual((37500, 50000, 614), self.tunables(on_slow))
        self.assertEqual({'fast': 60}, self.allocated(on_fast['id']))
        self.assertEqual({'slow': 60}, self.allocated(on_slow['id']))
        self.assertEqual(60, self.used('fast'))
        self.assertEqual(60, self.used('slow'))

        self._delete_server(on_fast)
        self.wait_until_used('fast', 0)

    def test_caps(self):
        for host, units, vcpus, specs, expected in (
                # 60 CU for each vCPU; the weight is the server's.
                ('slow', 120, 2, {}, (37500, 50000, 1229)),
                # A weight and no cap.
                ('slow', 60, 1, {'vqos:cap': 'floor'}, (None, None, 614)),
                # A whole pCPU.
                ('slow', 80, 1, {}, (50000, 50000, 819)),
                # 4 CU of 200 are 2 %: two ticks of 4 ms in 400 ms.
                ('fast', 4, 1, {}, (8000, 400000, 41))):
            server = self.boot(
                self.make_flavor(units, vcpus=vcpus, specs=specs), host)
            self.assertEqual(expected, self.tunables(server))
            self.assertEqual({host: units}, self.allocated(server['id']))

    def test_period_option(self):
        self.flags(period_us=100000, group='vqos')
        server = self.boot(self.make_flavor(60), 'fast')
        self.assertEqual((30000, 100000, 614), self.tunables(server))

    def test_policy_is_in_the_metadata(self):
        # Where agent and hook read it from.
        server = self.boot(self.make_flavor(60), 'fast')
        xml = etree.fromstring(self.domain(server).XMLDesc(0))
        spec = xml.find('.//{*}extraSpec[@name="%s"]' % base.UNITS_KEY)
        self.assertEqual('60', spec.text)

    def test_faster_than_the_slow_host(self):
        # On the fast host only, however often it is asked.
        flavor = self.make_flavor(90)
        for _ in range(4):
            self.assertEqual('fast', self.host_of(self.boot(flavor)))
        refused = self.boot(flavor, 'slow', expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertEqual({}, self.allocated(refused['id']))
        self.assertIn('CUSTOM_VQOS_SPEED_90', self.log())
        self.assertNotIn('Host slow is refused', self.log())
        # The filter alone refuses it as well.
        self.flags(placement_prefilter=False, group='vqos')
        self.boot(flavor, 'slow', expected_state='ERROR')
        self.assertRegex(self.log(), r'slow.*90.*80')

    def test_capacity_by_placement(self):
        # 4 pCPUs of 80 CU: four servers of 80 fill the slow host.
        flavor = self.make_flavor(80)
        for _ in range(4):
            self.boot(flavor, 'slow')
        self.assertEqual(320, self.used('slow'))
        refused = self.boot(flavor, 'slow', expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertIn('Got no allocation candidates', self.log())
        self.assertEqual({}, self.allocated(refused['id']))
        self.assertEqual(320, self.used('slow'))

    def test_speed_tier_trait(self):
        # For clouds with more hosts than candidates are looked at.
        flavor = self.make_flavor(
            50, specs={'trait:CUSTOM_VQOS_SPEED_100': 'required'})
        for _ in range(2):
            self.assertEqual('fast', self.host_of(self.boot(flavor)))
        refused = self.boot(flavor, 'slow', expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])


class KeptCapTestCase(base.VqosTestCase):
    """What rebuilds the XML on the same host caps again."""

    def setUp(self):
        super().setUp()
        self.start_host('slow', 0.8)
        self.server = self.boot(self.make_flavor(60), 'slow')
        self.cap = (37500, 50000, 614)
        self.assertEqual(self.cap, self.tunables(self.server))

    def _tamper(self):
        domain = self.domain(self.server)
        domain.defined_xml = domain.defined_xml.replace('37500', '50000')
        self.assertNotEqual(self.cap, self.tunables(self.server))

    def _assert_kept(self):
        self.assertEqual(self.cap, self.tunables(self.server))
        self.assertEqual({'slow': 60}, self.allocated(self.server['id']))
        self.assertEqual(60, self.used('slow'))

    def test_what_makes_the_xml_anew(self):
        for act in (
                lambda: self._reboot_server(self.server, hard=True),
                lambda: (self._stop_server(self.server),
                         self._start_server(self.server)),
                lambda: self._rebuild_server(self.server, base.IMAGE_ID)):
            self._tamper()
            act()
            self._assert_kept()

    def test_what_leaves_it_as_it_is(self):
        self._suspend_server(self.server)
        self._resume_server(self.server)
        self._assert_kept()
        self.api.post_server_action(self.server['id'], {'pause': None})
        self._wait_for_state_change(self.server, 'PAUSED')
        self.api.post_server_action(self.server['id'], {'unpause': None})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self._assert_kept()
        self.restart_compute_service('slow')
        self._assert_kept()
        self._reboot_server(self.server, hard=True)
        self._assert_kept()

    def test_rescue(self):
        self._rescue()
        self._assert_kept()
        self._unrescue()
        self._assert_kept()

    def test_rescue_over_a_calibration(self):
        self._rescue()
        self.host_files['slow'].calibrate({'0-3': 1.2})
        self._run_periodics()
        # Nova starts what it saved when the rescue began.
        self._unrescue()
        self.assertEqual((25000, 50000, 614), self.tunables(self.server))

    def _rescue(self):
        self._tamper()
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.utils.get_instance_path',
            lambda *_args, **_kwargs: CONF.instances_path))
        self.api.post_server_action(self.server['id'], {'rescue': {
            'rescue_image_ref': base.IMAGE_ID}})
        self._wait_for_state_change(self.server, 'RESCUE')

    def _unrescue(self):
        self.api.post_server_action(self.server['id'], {'unrescue': None})
        self._wait_for_state_change(self.server, 'ACTIVE')

    def test_what_is_restored_has_the_cap_of_then(self):
        # libvirt's hook gets what it restores: from here on as after a
        # calibration in between.
        self.flags(disable_libvirt_livesnapshot=True, group='workarounds')
        self.migrations.hook = self.hook
        for coefficient, cap, act in (
                (1.2, (25000, 50000, 614), self._suspend_and_resume),
                (2.0, (15000, 50000, 614), self._snapshot)):
            self.host_files['slow'].calibrate({'0-3': coefficient})
            act()
            self.assertEqual(cap, self.tunables(self.server))
            self.assertEqual({'slow': 60}, self.allocated(self.server['id']))

    def _suspend_and_resume(self):
        self._suspend_server(self.server)
        self._resume_server(self.server)

    def _snapshot(self):
        self.api.post_server_action(
            self.server['id'], {'createImage': {'name': 'of it'}})
        self.notifier.wait_for_versioned_notifications('instance.snapshot.end')
        self._wait_for_server_parameter(
            self.server, {'OS-EXT-STS:task_state': None})

    def test_new_calibration_caps_at_the_next_start(self):
        # Until then the agent is who caps again.
        self.host_files['slow'].calibrate({'0-3': 1.2})
        self._run_periodics()
        self._reboot_server(self.server, hard=True)
        self.assertEqual((25000, 50000, 614), self.tunables(self.server))
