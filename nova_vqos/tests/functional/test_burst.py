# SPDX-License-Identifier: Apache-2.0
"""A flavor whose servers burst, through all of Nova.

libvirt is faked; what they save and spend is in the tests of the agent, and of
real guests.
"""

from nova.tests.functional.api import client as api_client

from nova_vqos import policy
from nova_vqos.tests.functional import base

KEY, SECONDS = policy.BURST_KEY, policy.BURST_SECONDS_KEY


class BurstTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)

    def make_burst(self, burst_cu=90, seconds=600, specs=None, **kwargs):
        return self.make_flavor(60, specs={
            KEY: str(burst_cu), SECONDS: str(seconds), **(specs or {})},
            **kwargs)

    def test_a_server_claims_and_starts_with_its_units(self):
        self.boot(self.make_burst())
        self.assertEqual(60, self.used('fast'))

    def test_the_api_says_what_they_may_be(self):
        for values, key, most in (
                ({'burst_cu': '0'}, KEY, 2**31 - 1),
                ({'burst_cu': 'fast'}, KEY, 2**31 - 1),
                ({'seconds': '86401'}, SECONDS, 86_400)):
            error = self.assertRaises(
                api_client.OpenStackApiException, self.make_burst, **values)
            self.assertEqual(400, error.response.status_code)
            (value,) = values.values()
            self.assertIn(f'{key} is {value!r}, it must be a whole number '
                          f'from 1 to {most}', str(error))

    def test_contradictions_find_no_host(self):
        for specs, reason in (
                ({KEY: '60'}, 'more than the 60 CU'),
                ({'vqos:cap': 'floor'}, 'hard in a flavor with'),
                ({'vqos:dd_billing': 'charge'}, 'off or account in a flavor'),
                ({'vqos:guarantee': 'required'}, 'off in a flavor with'),
                ({policy.PROJECT_CEILING_KEY: '100'}, 'left out of a flavor')):
            flavor = self.make_burst(specs=specs)
            self.boot(flavor, expected_state='ERROR')
            self.assertIn(reason, self.log())
            self.boot(flavor, az='nova:fast', expected_state='ERROR')
        self.assertEqual(0, self.used('fast'))
