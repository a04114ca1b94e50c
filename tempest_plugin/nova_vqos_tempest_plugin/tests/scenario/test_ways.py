# SPDX-License-Identifier: Apache-2.0
"""A server's speed and units, whatever its owner or an administrator does."""

from tempest import config
from tempest.common import waiters
from tempest.lib import decorators

from nova_vqos_tempest_plugin.tests import base

CONF = config.CONF


class WaysTestCase(base.SpeedTestCase):

    def do(self, method, server, status, *arguments):
        """Do something to a server, and wait for what it becomes."""
        getattr(self.admin_servers_client, method)(server, *arguments)
        waiters.wait_for_server_status(self.admin_servers_client, server,
                                       status)


class PausesTest(WaysTestCase):
    """A server that its owner lets rest, and that goes on."""

    # What lets it rest, and what it is then; what has it go on.
    WAYS = (('stop_server', 'SHUTOFF', 'start_server'),
            ('pause_server', 'PAUSED', 'unpause_server'),
            ('suspend_server', 'SUSPENDED', 'resume_server'),
            ('rescue_server', 'RESCUE', 'unrescue_server'))

    @decorators.attr(type='slow')
    @decorators.idempotent_id('6f2f0f0b-52b7-4dc6-9ad8-4f0d6a1c7b11')
    def test_units_are_kept_meanwhile(self):
        units = CONF.nova_vqos.units
        server = self.boot(self.make_flavor(units),
                           image=CONF.nova_vqos.work_image_ref)
        host = self.get_host_for_server(server)
        for rest, status, go_on in self.WAYS:
            self.do(rest, server, status)
            self.assertEqual({host: units}, self.allocated(server))
            self.do(go_on, server, 'ACTIVE')
            self.assertEqual({host: units}, self.allocated(server))
        self.check_speed(server, units)

    @decorators.attr(type='slow')
    @decorators.idempotent_id('0b9c6c52-9d6f-4d4e-8d56-2a7f3f1f5a22')
    def test_shelved_without_units_and_back(self):
        if not CONF.compute_feature_enabled.shelve:
            raise self.skipException('shelving is not available')
        units = CONF.nova_vqos.units
        server = self.boot(self.make_flavor(units),
                           image=CONF.nova_vqos.work_image_ref)
        self.do('shelve_server', server, 'SHELVED_OFFLOADED')
        self.assertEqual({}, self.allocated(server))
        self.do('unshelve_server', server, 'ACTIVE')
        self.assertEqual({self.get_host_for_server(server): units},
                         self.allocated(server))
        self.check_speed(server, units)


class ColdMigrationTest(base.TwoHostsMixin, WaysTestCase):

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.compute_feature_enabled.cold_migration:
            raise cls.skipException('cold migration is not available')

    @decorators.attr(type='slow')
    @decorators.idempotent_id('b1d0a7be-0b0a-4c36-8d0c-1c9ad9ac6e33')
    def test_reverted_then_confirmed(self):
        units = CONF.nova_vqos.units
        server = self.boot(self.make_flavor(units),
                           image=CONF.nova_vqos.work_image_ref)
        source = self.get_host_for_server(server)
        self.do('migrate_server', server, 'VERIFY_RESIZE')
        self.assertNotEqual(source, self.get_host_for_server(server))
        self.do('revert_resize_server', server, 'ACTIVE')
        self.assertEqual({source: units}, self.allocated(server))
        self.do('migrate_server', server, 'VERIFY_RESIZE')
        self.do('confirm_resize_server', server, 'ACTIVE')
        target = self.get_host_for_server(server)
        self.assertNotEqual(source, target)
        self.assertEqual({target: units}, self.allocated(server))
        self.check_speed(server, units)
