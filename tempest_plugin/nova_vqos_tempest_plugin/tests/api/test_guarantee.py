# SPDX-License-Identifier: Apache-2.0
"""A guarantee is given where a host can, and promised nowhere else."""

from tempest import config
from tempest.lib import decorators

from nova_vqos import policy
from nova_vqos_tempest_plugin.tests import base

CONF = config.CONF


class GuaranteeTest(base.UnitsTestCase):

    def boot_guaranteed(self, guarantee, **options):
        """:param guarantee: how much it is wanted"""
        return self.boot(self.make_flavor(
            CONF.nova_vqos.units, **{policy.GUARANTEE_KEY: guarantee}),
            **options)

    @decorators.idempotent_id('7a5f0c1e-52a4-4a0b-9a3f-0d9e8c7b6a51')
    def test_one_that_prefers_it_boots_anywhere(self):
        server = self.boot_guaranteed('preferred')
        self.assertEqual({self.get_host_for_server(server):
                          CONF.nova_vqos.units}, self.allocated(server))

    @decorators.idempotent_id('2c8d4e6f-9b1a-4d3c-8e5f-1a2b3c4d5e62')
    def test_one_that_requires_it_boots_only_where_it_is_given(self):
        if CONF.nova_vqos.guarantees_speed:
            server = self.boot_guaranteed('required')
            self.assertEqual({self.get_host_for_server(server):
                              CONF.nova_vqos.units}, self.allocated(server))
            return
        server = self.boot_guaranteed('required', wait_until=None)
        self.assertIn('No valid host', self.refusal(server))
        self.assertEqual({}, self.allocated(server))
