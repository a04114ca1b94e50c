# SPDX-License-Identifier: Apache-2.0
"""A flavor with a ceiling for its servers of one project, through all of Nova.

libvirt is faked; that the agent keeps it is in the tests of the agent, and of
real guests.
"""

from nova.tests.functional.api import client as api_client

from nova import utils
from nova_vqos import policy
from nova_vqos.tests.functional import base

KEY = policy.PROJECT_CEILING_KEY


class CeilingTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)

    def make_ceiling(self, ceiling_cu=100, units=60, specs=None, **kwargs):
        return self.make_flavor(
            units, specs={KEY: str(ceiling_cu), **(specs or {})}, **kwargs)

    def agent_keeps(self, host, keeps):
        """The agent of a host beats, one that knows ceilings or not."""
        self.host_files[host].agent_lives(keeps_ceilings=keeps)
        self._run_periodics()

    def test_hosts_that_do_not_keep_it_refuse(self):
        flavor = self.make_ceiling()
        self.agent_keeps('fast', False)
        refused = self.boot(flavor, expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertIn(f'its agent does not keep {KEY}', self.log())
        self.boot(flavor, az='nova:fast', expected_state='ERROR')
        self.assertIn("this host's agent does not keep it", self.log())
        self.assertEqual(0, self.used('fast'))
        self.agent_keeps('fast', True)
        self.boot(flavor)

    def test_a_live_migration_to_one_is_refused(self):
        self.start_host('old', 2.0)
        server = self.boot(self.make_ceiling(), 'fast')
        self.agent_keeps('old', False)
        with utils.temporary_mutation(self.api, microversion='2.67'):
            self.api.post_server_action(server['id'], {'os-migrateLive': {
                'host': 'old', 'block_migration': 'auto', 'force': True}})
        self._wait_for_migration_status(server, ['error'])
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual('fast', self.host_of(server))

    def test_the_api_says_what_it_may_be(self):
        for value in '0', '-1', 'p1', '2147483648':
            error = self.assertRaises(
                api_client.OpenStackApiException, self.make_ceiling, value)
            self.assertEqual(400, error.response.status_code)
            self.assertIn(f'{KEY} is {value!r}, it must be a whole number '
                          'from 1 to 2147483647', str(error))

    def test_contradictions_find_no_host(self):
        for specs, ceiling_cu, reason in (
                ({}, 59, 'at least the 60 CU'),
                ({'vqos:cap': 'floor'}, 60, 'hard in a flavor with'),
                ({'vqos:guarantee': 'required'}, 60, 'off in a flavor with')):
            flavor = self.make_ceiling(ceiling_cu, specs=specs)
            self.boot(flavor, expected_state='ERROR')
            self.assertIn(reason, self.log())
            self.boot(flavor, az='nova:fast', expected_state='ERROR')
        self.assertEqual(0, self.used('fast'))
