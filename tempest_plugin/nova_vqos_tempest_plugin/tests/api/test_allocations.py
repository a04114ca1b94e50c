# SPDX-License-Identifier: Apache-2.0
"""From the units of a flavor to what Placement has claimed."""

from tempest import config
from tempest.common import waiters
from tempest.lib import decorators

from nova_vqos_tempest_plugin.tests import base

CONF = config.CONF


class AllocationsTest(base.UnitsTestCase):

    @decorators.idempotent_id('b8e8a5d4-94ce-49f1-8d7c-0f8a2f3a7c11')
    def test_boot_and_delete(self):
        units = CONF.nova_vqos.units
        server = self.boot(self.make_flavor(units))
        self.assertEqual({self.get_host_for_server(server): units},
                         self.allocated(server))
        self.admin_servers_client.delete_server(server)
        waiters.wait_for_server_termination(self.admin_servers_client, server)
        self.assertEqual({}, self.allocated(server))


class ResizeTest(base.SingleHostMixin, base.UnitsTestCase):

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.compute_feature_enabled.resize:
            raise cls.skipException('resize is not available')

    @decorators.idempotent_id('3f9d5a51-3b4a-4f5a-8a0f-7d1a2b9d0e77')
    def test_resize_down_and_up(self):
        units = CONF.nova_vqos.units
        large, small = self.make_flavor(units), self.make_flavor(units // 2)
        server = self.boot(large, zone=CONF.nova_vqos.single_host_zone)
        host = self.get_host_for_server(server)
        for flavor, wanted in ((small, units // 2), (large, units)):
            self.admin_servers_client.resize_server(server, flavor)
            waiters.wait_for_server_status(
                self.admin_servers_client, server, 'VERIFY_RESIZE')
            self.admin_servers_client.confirm_resize_server(server)
            waiters.wait_for_server_status(
                self.admin_servers_client, server, 'ACTIVE')
            self.assertEqual({host: wanted}, self.allocated(server))
