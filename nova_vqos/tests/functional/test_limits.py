# SPDX-License-Identifier: Apache-2.0
"""Quotas in units, by Nova's unified limits; Keystone, which keeps them, is
faked by a fixture of Nova's.
"""

from nova.tests import fixtures
from nova.tests.functional.api import client

from nova_vqos.tests.functional import base

UNITS = f'class:{base.RESOURCE_CLASS}'
# What else a request needs a limit for, or a default of Nova says so.
OTHERS = {'servers': 10, 'class:VCPU': 100, 'class:MEMORY_MB': 1_000_000,
          'class:DISK_GB': 1000, 'server_metadata_items': 128,
          'server_injected_files': 5,
          'server_injected_file_content_bytes': 10240,
          'server_injected_file_path_bytes': 255}


class LimitsTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.flags(driver='nova.quota.UnifiedLimitsDriver', group='quota')
        self.keystone = self.useFixture(fixtures.UnifiedLimitsFixture())
        self.start_host('host', 2.0)

    def _limit(self, units=None, own=None):
        """:param units: registered for all projects
        :param own: of the project of this test
        """
        registered = OTHERS if units is None else {**OTHERS, UNITS: units}
        for name, limit in registered.items():
            self.keystone.create_registered_limit(
                resource_name=name, default_limit=limit)
        if own is not None:
            self.keystone.create_limit(
                resource_name=UNITS, resource_limit=own,
                project_id=self.api.project_id)

    def _assert_over(self, refused, *arguments):
        error = self.assertRaises(client.OpenStackApiException, refused,
                                  *arguments)
        self.assertEqual(403, error.response.status_code)
        self.assertIn(UNITS, error.response.text)

    def test_servers_up_to_the_limit(self):
        self._limit(units=130)
        flavor = self.make_flavor(60)
        made = [self.boot(flavor), self.boot(flavor)]
        self._assert_over(self.boot, flavor)
        self.assertEqual(120, self.used('host'))
        self._delete_server(made[0])
        self.boot(flavor)

    def test_a_project_with_a_limit_of_its_own(self):
        self._limit(units=1000, own=60)
        flavor = self.make_flavor(60)
        self.boot(flavor)
        self._assert_over(self.boot, flavor)

    def test_several_vcpus_count_once(self):
        """Units are of the server, not of each of its vCPUs."""
        self._limit(units=120)
        self.boot(self.make_flavor(120, vcpus=2))
        self._assert_over(self.boot, self.make_flavor(1))

    def test_a_resize_to_more(self):
        self._limit(units=150)
        server = self.boot(self.make_flavor(60))
        self._assert_over(self.api.post_server_action, server['id'],
                          {'resize': {'flavorRef': self.make_flavor(160)}})

    def test_a_migration_at_the_limit(self):
        """It is allowed, and both hosts' units count until it is confirmed."""
        self._limit(units=130)
        self.start_host('other', 2.0)
        flavor = self.make_flavor(60)
        server = self.boot(flavor, 'host')
        self.boot(flavor, 'host')
        self._migrate_server(server)
        self.assertEqual('other', self.host_of(server))
        self._assert_over(self.boot, self.make_flavor(10))
        self._confirm_resize(server)
        self.boot(self.make_flavor(10))

    def test_without_a_registered_limit_there_is_none(self):
        self._limit()
        self.boot(self.make_flavor(160))

    def test_what_is_required_and_not_registered_is_zero(self):
        self.flags(unified_limits_resource_strategy='require',
                   unified_limits_resource_list=['servers', UNITS],
                   group='quota')
        self._limit()
        self._assert_over(self.boot, self.make_flavor(1))
        # Without units nothing of them is asked for.
        self.flags(servers_without_units='allow', group='vqos')
        self.boot(self.make_flavor())
