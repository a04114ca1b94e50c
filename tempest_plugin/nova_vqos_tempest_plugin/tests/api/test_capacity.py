# SPDX-License-Identifier: Apache-2.0
"""What does not fit is refused, or goes elsewhere."""

from tempest import config
from tempest.lib import decorators

from nova_vqos_tempest_plugin.tests import base

CONF = config.CONF


@decorators.serial
class CapacityTest(base.SingleHostMixin, base.UnitsTestCase):
    """Fills a host: nobody else may boot servers meanwhile."""

    @decorators.idempotent_id('d1d8c2c5-7c38-4c0e-a1b6-3f0f6f4d9e22')
    def test_a_full_host(self):
        units = CONF.nova_vqos.units
        zone = CONF.nova_vqos.single_host_zone
        flavor = self.make_flavor(units)
        first = self.boot(flavor, zone=zone)
        host = self.get_host_for_server(first)
        free, most = self.free_units(host)
        while free >= units:
            # Few servers, of as many vCPUs as the host has room for.
            vcpus = min(free, most) // units
            self.boot(self.make_flavor(units * vcpus, vcpus=vcpus), zone=zone)
            free, most = self.free_units(host)
        refused = self.boot(flavor, zone=zone, wait_until=None)
        self.assertIn('No valid host', self.refusal(refused))
        self.assertEqual({}, self.allocated(refused))


class TooFastTest(base.UnequalHostsMixin, base.UnitsTestCase):

    @decorators.idempotent_id('e2a1d6b3-0c1d-4b8e-9f6a-5b7c8d9e0f33')
    def test_never_on_a_host_that_is_too_slow(self):
        flavor = self.make_flavor(CONF.nova_vqos.too_fast_units)
        server = self.boot(flavor)
        self.assertNotEqual(CONF.nova_vqos.slow_host,
                            self.get_host_for_server(server))

    @decorators.attr(type='negative')
    @decorators.idempotent_id('f3b2e7c4-1d2e-4c9f-8a7b-6c8d9e0f1a44')
    def test_not_even_when_asked_for_there(self):
        flavor = self.make_flavor(CONF.nova_vqos.too_fast_units)
        server = self.boot(flavor, host=CONF.nova_vqos.slow_host,
                           wait_until=None)
        self.assertIn('No valid host', self.refusal(server))
