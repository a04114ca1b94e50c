# SPDX-License-Identifier: Apache-2.0
"""What is not honoured is not booted either, whichever way it comes in."""

from nova.tests.functional.api import client as api_client
import pytest

from nova_vqos.tests.functional import base

UNITS = base.UNITS_KEY
SUFFIXED = 'resources1:' + base.RESOURCE_CLASS

#: Of each key a value that it may not have, and a part of what it may be.
BAD_VALUES = {
    'units of zero': (UNITS, '0', 'from 1 to'),
    'negative units': (UNITS, '-1', 'from 1 to'),
    'too many units': (UNITS, str(2 ** 40), 'from 1 to'),
    'units in words': (UNITS, 'sixty', 'whole number'),
    'units that int() takes': (UNITS, '6_0', 'whole number'),
    'units in spaces': (UNITS, ' 60 ', 'whole number'),
    'half a unit': (UNITS, '0.5', 'whole number'),
    'no units': (UNITS, '', 'whole number'),
    'unknown cap': ('vqos:cap', 'soft', 'hard'),
    'unknown class': ('vqos:quantum_class', 'fast', 'spin'),
    'unknown billing': ('vqos:dd_billing', 'on', 'account'),
    'unknown key': ('vqos:speed', '60', 'vqos:cap'),
}

#: Whole flavors that cannot be honoured: (vcpus, extra specs).
BAD_FLAVORS = {
    'zero': (1, {UNITS: '0'}),
    'text': (1, {UNITS: 'sixty'}),
    'in spaces': (1, {UNITS: ' 60 '}),
    'underscore': (1, {UNITS: '6_0'}),
    'too many': (1, {UNITS: str(2 ** 40)}),
    'suffixed': (1, {SUFFIXED: '60'}),
    'suffixed too': (1, {UNITS: '60', SUFFIXED: '60'}),
    'bad cap': (1, {UNITS: '60', 'vqos:cap': 'soft'}),
    'bad class': (1, {UNITS: '60', 'vqos:quantum_class': 'fast'}),
    'bad billing': (1, {UNITS: '60', 'vqos:dd_billing': 'on'}),
    'unknown key': (1, {UNITS: '60', 'vqos:speed': '60'}),
    'cap without units': (1, {'vqos:cap': 'hard'}),
    'charge without units': (1, {'vqos:dd_billing': 'charge'}),
    'with quota': (1, {UNITS: '60', 'quota:cpu_quota': '20000'}),
    'with period': (1, {UNITS: '60', 'quota:cpu_period': '20000'}),
    'with shares': (1, {UNITS: '60', 'quota:cpu_shares': '2048'}),
    'dedicated': (1, {UNITS: '60', 'hw:cpu_policy': 'dedicated'}),
    'mixed': (2, {UNITS: '60', 'hw:cpu_policy': 'mixed',
                  'hw:cpu_dedicated_mask': '0'}),
    'dedicated by resource': (1, {UNITS: '60', 'resources:PCPU': '1'}),
    'realtime': (2, {UNITS: '60', 'hw:cpu_policy': 'dedicated',
                     'hw:cpu_realtime': 'yes',
                     'hw:cpu_realtime_mask': '^0'}),
    'emulator isolated': (1, {UNITS: '60', 'hw:cpu_policy': 'dedicated',
                              'hw:emulator_threads_policy': 'isolate'}),
    'less than a unit per vCPU': (4, {UNITS: '3'}),
    # A class or a billing that no host has yet: not ignored.
    'class not to be had': (1, {UNITS: '60', 'vqos:quantum_class': 'io'}),
    'auto not to be had': (1, {UNITS: '60', 'vqos:quantum_class': 'auto'}),
    'billing not to be had': (1, {UNITS: '60', 'vqos:dd_billing': 'charge'}),
    'account not to be had': (1, {UNITS: '60',
                                  'vqos:dd_billing': 'account'}),
}


@pytest.mark.smoke
class ApiTestCase(base.VqosTestCase):
    """The answer to whoever makes the flavor."""

    def test_bad_value_from_2_86(self):
        # One cloud for all: nothing is left behind by a refusal.
        for name, (key, value, expected) in BAD_VALUES.items():
            try:
                self.make_flavor(specs={key: value})
            except api_client.OpenStackApiException as exc:
                error = exc
            else:
                self.fail('%s is taken' % name)
            answer = error.response.json()['badRequest']
            self.assertEqual(400, answer['code'], name)
            for part in (key, repr(value), expected):
                self.assertIn(part, answer['message'], name)

    def test_good_values_from_2_86(self):
        for specs in (
                {UNITS: '1'}, {UNITS: '60', 'vqos:cap': 'hard'},
                {UNITS: '60', 'vqos:cap': 'floor'},
                {UNITS: '60', 'vqos:quantum_class': 'cache'},
                {UNITS: '60', 'vqos:dd_billing': 'charge'}):
            flavor = self.make_flavor(specs=specs)
            self.assertEqual(specs, self.api.get_extra_specs(flavor))

    def test_others_keys_are_as_ever(self):
        specs = {'quota:cpu_quota': '20000', 'hw:cpu_policy': 'shared',
                 'resources:CUSTOM_OTHER': '3', 'os:secure_boot': 'required'}
        flavor = self.make_flavor(specs=specs)
        self.assertEqual(specs, self.api.get_extra_specs(flavor))


@pytest.mark.smoke
class BootRefusedTestCase(base.VqosTestCase):
    """The flavor got by the API: made before 2.86, or bad as a whole."""

    def setUp(self):
        super().setUp()
        # With dedicated pCPUs as well: that a flavor wants some is not
        # refused for lack of them.
        self.flags(cpu_shared_set='0-3', cpu_dedicated_set='4-7',
                   group='compute')
        self.start_host('fast', 2.0, pcpus=8)

    def _assert_unclaimed(self, server, name):
        self.assertEqual({}, self.allocated(server['id']), name)
        self.assertEqual(0, self.used('fast'), name)

    def test_finds_no_host(self):
        for name, (vcpus, specs) in BAD_FLAVORS.items():
            flavor = self.make_flavor(
                vcpus=vcpus, specs=specs, version=base.NOT_VALIDATED)
            body = self._build_server(
                image_uuid=base.IMAGE_ID, flavor_id=flavor, networks='none')
            server = self.api.post_server({'server': body})
            refused = self._wait_for_state_change(server, 'ERROR')
            self.assertIn('No valid host', refused['fault']['message'], name)
            self._assert_unclaimed(refused, name)
            # For the quota of servers.
            self.api.delete_server(refused['id'])

    def test_dedicated_cpus_by_the_image(self):
        image = self._create_image({'hw_cpu_policy': 'dedicated'})
        refused = self.boot(self.make_flavor(60), image=image['id'],
                            expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self._assert_unclaimed(refused, 'image')

    def test_forced_host_is_refused_by_the_driver(self):
        for name in ('zero', 'suffixed', 'with quota', 'class not to be had',
                     'less than a unit per vCPU'):
            vcpus, specs = BAD_FLAVORS[name]
            flavor = self.make_flavor(
                vcpus=vcpus, specs=specs, version=base.NOT_VALIDATED)
            refused = self.boot(flavor, az='nova:fast', expected_state='ERROR')
            self.wait_until_used('fast', 0)
            self._assert_unclaimed(refused, name)
            self.assertEqual([], self._domains('fast'), name)

    def _domains(self, host):
        return list(self.computes[host].driver._host.get_connection()._vms)


class DriverRefusesTestCase(base.VqosTestCase):
    """Filters may be skipped or not configured: the driver is the last."""

    # Stock filters alone.
    ADDITIONAL_FILTERS: list[str] = []
    HOST_WEIGHTS = {'slow': 2, 'fast': 1}

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)
        self.start_host('slow', 0.8)

    def _builds(self, server):
        """Hosts that tried to build a server, and how it ended."""
        return [(event['host'], event['result'])
                for event in self.events(server, 'create')
                if event['event'] == 'compute__do_build_and_run_instance']

    def test_too_slow_is_retried_elsewhere(self):
        server = self.boot(self.make_flavor(90))
        self.assertEqual('fast', self.host_of(server))
        self.assertEqual((22500, 50000, 922), self.tunables(server))
        self.assertEqual({'fast': 90}, self.allocated(server['id']))
        self.assertEqual(0, self.used('slow'))
        self.assertRegex(self.log(), r'slow.*90|90.*slow')

    def test_forced_to_the_slow_host(self):
        refused = self.boot(self.make_flavor(90), az='nova:slow',
                            expected_state='ERROR')
        self.wait_until_used('slow', 0)
        self.assertEqual({}, self.allocated(refused['id']))

    def test_bad_policy_is_not_retried(self):
        # It would be as bad on the next host.
        flavor = self.make_flavor(
            specs={UNITS: '60', 'quota:cpu_quota': '20000'},
            version=base.NOT_VALIDATED)
        refused = self.boot(flavor, expected_state='ERROR')
        self.assertIn('quota:cpu_quota', refused['fault']['message'])
        self.assertEqual(500, refused['fault']['code'])
        tried = [host for host in self.computes
                 if 'Build of instance %s' % refused['id'] in self.log()]
        self.assertTrue(tried)
        for host in self.computes:
            self.assertEqual(0, self.used(host))
