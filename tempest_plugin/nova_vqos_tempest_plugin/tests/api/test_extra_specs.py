# SPDX-License-Identifier: Apache-2.0
"""Extra specs: what the API takes, and what it says where it does not."""

import ddt
from tempest.lib import decorators
from tempest.lib import exceptions as lib_exc

from nova_vqos import policy
from nova_vqos_tempest_plugin.tests import base


@ddt.ddt
class ExtraSpecsTest(base.UnitsTestCase):
    min_microversion = base.VALIDATED

    def setUp(self):
        super().setUp()
        self.flavor = self.create_flavor(ram=64, vcpus=1, disk=0)['id']

    def set_spec(self, key, value):
        self.admin_flavors_client.set_flavor_extra_spec(
            self.flavor, **{key: value})

    @decorators.idempotent_id('5d2ff0d0-5f5e-4c7e-8b13-1f1f55a5f0a1')
    @ddt.data((policy.UNITS_KEY, '1'), (policy.UNITS_KEY, '250'),
              (policy.WORK_KEY, 'integer'),
              (policy.WORK_KEY, 'integer:0.5,hash:0.5'),
              *((key, value) for key, values in policy.CHOICES.items()
                for value in values))
    @ddt.unpack
    def test_accepted(self, key, value):
        self.set_spec(key, value)
        shown = self.admin_flavors_client.list_flavor_extra_specs(self.flavor)
        self.assertEqual({key: value}, shown['extra_specs'])

    @decorators.attr(type='negative')
    @decorators.idempotent_id('0b3b6f5e-0a4e-4ee5-9e0c-3a3df2e3a7c2')
    @ddt.data((policy.UNITS_KEY, '0'), (policy.UNITS_KEY, '-1'),
              (policy.UNITS_KEY, '6_0'), (policy.UNITS_KEY, 'many'),
              (policy.UNITS_KEY, str(2 ** 40)), (policy.CAP_KEY, 'soft'),
              (policy.QUANTUM_CLASS_KEY, 'fast'),
              (policy.DD_BILLING_KEY, 'yes'), (policy.WORK_KEY, 'hash:0'),
              ('vqos:unknown', 'x'))
    @ddt.unpack
    def test_refused(self, key, value):
        error = self.assertRaises(lib_exc.BadRequest, self.set_spec, key,
                                  value)
        self.assertIn(key, str(error))
        self.assertIn('must be', str(error))
        shown = self.admin_flavors_client.list_flavor_extra_specs(self.flavor)
        self.assertEqual({}, shown['extra_specs'])
