# SPDX-License-Identifier: Apache-2.0
"""Traits in flavors, in place of the pre-filter and for aggregates."""

from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import manage_case

RESERVED = 'trait:CUSTOM_VQOS_SELLS_UNITS'


class FlavorSyncTestCase(manage_case.ManageTestCase):

    def setUp(self):
        super().setUp()
        self.flags(placement_prefilter=False, group='vqos')

    def sync(self, *arguments):
        ran = self.run_manage('flavor', 'sync', *arguments, '-f', 'json')
        self.assertTrue(ran.out, ran.err)
        return ran.status, {row['flavor']: row for row in ran.json}

    def specs(self, flavor_id):
        return self.api.get_extra_specs(flavor_id)

    def name(self, flavor_id):
        return self.api.get_flavor(flavor_id)['name']

    def test_flavors_get_what_their_servers_need(self):
        units, stock = self.make_flavor(180, vcpus=2), self.make_flavor()
        invalid = self.make_flavor(specs={base.UNITS_KEY: 'many'},
                                   version=base.NOT_VALIDATED)
        before = self.specs(units)
        status, rows = self.sync('--dry-run')
        self.assertEqual(1, status)
        self.assertEqual('would change', rows[self.name(units)]['result'])
        self.assertEqual('invalid', rows[self.name(invalid)]['result'])
        self.assertEqual(before, self.specs(units))

        _, rows = self.sync()
        self.assertEqual('changed', rows[self.name(stock)]['result'])
        self.assertEqual({RESERVED: 'forbidden'}, self.specs(stock))
        self.assertEqual({**before, 'trait:CUSTOM_VQOS': 'required',
                          'trait:CUSTOM_VQOS_SPEED_90': 'required'},
                         self.specs(units))
        # A flavor that got units since.
        self.api.post_extra_spec(stock, {'extra_specs': {
            base.UNITS_KEY: '60'}})
        status, rows = self.sync(self.name(stock), self.name(units))
        self.assertEqual((0, 2), (status, len(rows)))
        self.assertEqual([RESERVED], rows[self.name(stock)]['removed'])
        self.assertNotIn(RESERVED, self.specs(stock))
        self.assertEqual('unchanged', rows[self.name(units)]['result'])
        self.assertEqual({'unchanged'}, {
            row['result'] for row in self.sync(self.name(stock))[1].values()})

    def test_a_flavor_that_is_not_there(self):
        ran = self.run_manage('flavor', 'sync', 'nonesuch')
        self.assertEqual(1, ran.status)
        self.assertIn('nonesuch', ran.err)

    def test_more_hosts_with_units_than_placement_answers_with(self):
        self.flags(max_placement_results=2, group='scheduler')
        for name in ('units1', 'units2', 'units3'):
            self.start_host(name, 2.0)
        self.start_host('plain', None)
        self.answer_last('plain')
        stock = self.make_flavor()
        self.boot(stock, expected_state='ERROR')
        self.sync()
        self.assertEqual('plain', self.host_of(self.boot(stock)))

    def test_isolated_aggregates(self):
        """Hosts of an aggregate take only servers that ask for its trait."""
        self.flags(max_placement_results=2, group='scheduler')
        self.flags(enable_isolated_aggregate_filtering=True,
                   group='scheduler')
        names = ('units1', 'units2', 'units3')
        for name in names:
            self.start_host(name, 2.0)
        self.start_host('plain', None)
        self.answer_last('plain')
        aggregate = self.api.post_aggregate({'aggregate': {'name': 'units'}})
        for name in names:
            self.api.add_host_to_aggregate(aggregate['id'], name)
        stock, units = self.make_flavor(), self.make_flavor(60)
        self.boot(stock, expected_state='ERROR')
        self.api.post_aggregate_action(aggregate['id'], {'set_metadata': {
            'metadata': {'trait:CUSTOM_VQOS': 'required'}}})
        self.assertEqual('plain', self.host_of(self.boot(stock)))
        # The flavor has to ask for the trait: the pre-filter's does not count.
        self.boot(units, expected_state='ERROR')
        self.sync()
        self.assertIn(self.host_of(self.boot(units)), names)
