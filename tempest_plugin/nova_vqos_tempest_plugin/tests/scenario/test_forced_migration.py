# SPDX-License-Identifier: Apache-2.0
"""An administrator's will does not make a host faster."""

from tempest import config
from tempest.lib import decorators
from tempest.lib import exceptions as lib_exc
from tempest.lib.common import api_microversion_fixture

from nova_vqos_tempest_plugin.tests import base

CONF = config.CONF


class ForcedMigrationTest(base.UnequalHostsMixin, base.TwoHostsMixin,
                          base.UnitsTestCase):
    # The scheduler can be left out from 2.30 to 2.67; to name the host of a
    # new server takes 2.74, so that the scheduler chooses it here.
    min_microversion = '2.37'
    max_microversion = '2.67'

    @decorators.attr(type='negative')
    @decorators.idempotent_id('c6e5b0f7-4a5b-4fcd-9dae-9f1a2b3c4d77')
    def test_forced_to_a_host_that_is_too_slow(self):
        units = CONF.nova_vqos.too_fast_units
        server = self.boot(self.make_flavor(units))
        host = self.get_host_for_server(server)
        self.assertNotEqual(CONF.nova_vqos.slow_host, host)
        self.addCleanup(self.assert_unharmed, server, host, units)
        error = self.force(server)
        # Placement says no where it has not the units; where it has, each of
        # the host's pCPUs is too slow, and the driver says it.
        self.assertRegex(str(error), 'capacity|pCPU')
        self.assert_unharmed(server, host, units)

    def force(self, server):
        """Migrate to the slow host, without the scheduler."""
        # In 2.30 the answer waits for the destination's.
        self.useFixture(
            api_microversion_fixture.APIMicroversionFixture('2.30'))
        return self.assertRaises(
            lib_exc.BadRequest,
            self.admin_servers_client.live_migrate_server, server,
            host=CONF.nova_vqos.slow_host, block_migration='auto', force=True)

    def assert_unharmed(self, server, host, units):
        shown = self.admin_servers_client.show_server(server)['server']
        self.assertEqual(('ACTIVE', host),
                         (shown['status'], shown['OS-EXT-SRV-ATTR:host']))
        self.assertEqual({host: units}, self.allocated(server))
