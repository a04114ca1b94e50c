# SPDX-License-Identifier: Apache-2.0
"""The promise: the same speed, wherever and whatever happens."""

from tempest import config
from tempest.common import waiters
from tempest.lib import decorators

from nova_vqos_tempest_plugin.tests import base

CONF = config.CONF


class LiveMigrationTest(base.TwoHostsMixin, base.SpeedTestCase):

    @decorators.attr(type='slow')
    @decorators.idempotent_id('a4c3f8d5-2e3f-4dab-9b8c-7d9e0f1a2b55')
    def test_there_and_back(self):
        units = CONF.nova_vqos.units
        server = self.boot(self.make_flavor(units),
                           image=CONF.nova_vqos.work_image_ref)
        source = self.get_host_for_server(server)
        self.check_speed(server, units)
        target = self.get_host_other_than(server)
        for host in (target, source):
            self.migrate(server, host)
            self.assertEqual({host: units}, self.allocated(server))
            self.check_speed(server, units)

    @decorators.attr(type='slow')
    @decorators.idempotent_id('1f0c8f1e-5b83-4c0e-8b0f-3a6f5d2f9c41')
    def test_several_vcpus_share_the_units(self):
        units, vcpus = CONF.nova_vqos.units, CONF.nova_vqos.several_vcpus
        if vcpus < 2:
            raise self.skipException('[nova_vqos] several_vcpus is 1')
        server = self.boot(self.make_flavor(units, vcpus=vcpus),
                           image=CONF.nova_vqos.work_image_ref)
        # Its guest works on one of them.
        self.check_speed(server, units / vcpus)
        target = self.get_host_other_than(server)
        self.migrate(server, target)
        self.assertEqual({target: units}, self.allocated(server))
        self.check_speed(server, units / vcpus)


class AfterwardsTest(base.SpeedTestCase):
    """What makes a guest anew: its cap is there again."""

    @decorators.attr(type='slow')
    @decorators.idempotent_id('b5d4a9e6-3f4a-4ebc-8c9d-8e0f1a2b3c66')
    def test_reboot_and_rebuild(self):
        units = CONF.nova_vqos.units
        image = CONF.nova_vqos.work_image_ref
        server = self.boot(self.make_flavor(units), image=image)
        for action in (
                lambda: self.admin_servers_client.reboot_server(
                    server, type='HARD'),
                lambda: self.admin_servers_client.rebuild_server(
                    server, image)):
            action()
            waiters.wait_for_server_status(
                self.admin_servers_client, server, 'ACTIVE')
            self.check_speed(server, units)
