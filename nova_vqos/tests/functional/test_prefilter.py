# SPDX-License-Identifier: Apache-2.0
"""Hosts that Placement leaves out, so that others are among its answers."""

from nova_vqos.tests.functional import base

UNITS_HOSTS = ('units1', 'units2', 'units3')


class ManyHostsTestCase(base.VqosTestCase):
    """Placement answers with two hosts, and two or more come first."""

    def setUp(self):
        super().setUp()
        self.flags(max_placement_results=2, group='scheduler')

    def refuse(self, flavor, **boot):
        server = self.boot(flavor, expected_state='ERROR', **boot)
        self.assertIn('No valid host', server['fault']['message'])

    def test_servers_without_units_find_the_plain_host(self):
        for name in UNITS_HOSTS:
            self.start_host(name, 2.0)
        self.start_host('plain', None)
        self.answer_last('plain')
        stock = self.make_flavor()
        self.flags(placement_prefilter=False, group='vqos')
        self.refuse(stock)
        self.flags(placement_prefilter=True, group='vqos')
        self.assertEqual('plain', self.host_of(self.boot(stock)))
        # Also where the hosts with units have lost their profiles.
        for name in UNITS_HOSTS:
            self.host_files[name].lose_profile()
        self._run_periodics()
        self.assertEqual('plain', self.host_of(self.boot(stock)))

    def test_servers_with_units_find_the_fast_host(self):
        for name in UNITS_HOSTS:
            self.start_host(name, 0.8)
        self.start_host('fast', 2.0)
        self.answer_last('fast')
        flavor = self.make_flavor(180, vcpus=2)
        self.flags(placement_prefilter=False, group='vqos')
        self.refuse(flavor)
        self.flags(placement_prefilter=True, group='vqos')
        server = self.boot(flavor)
        self.assertEqual('fast', self.host_of(server))
        # A move asks again, by what is stored of the server.
        self.start_host('fast2', 2.0)
        self._migrate_server(server)
        self._confirm_resize(self.api.get_server(server['id']))
        self.assertEqual('fast2', self.host_of(server))


class RequestTestCase(base.VqosTestCase):

    def test_an_administrator_who_names_the_host(self):
        # Nova skips the filters, and so the pre-filter steps back.
        self.start_host('units', 2.0)
        server = self.boot(self.make_flavor(), az='nova:units')
        self.assertEqual('units', self.host_of(server))

    def test_a_placement_without_our_traits(self):
        self.start_host('plain', None)
        self.assertEqual('plain', self.host_of(self.boot(self.make_flavor())))
        # They exist now, and no host has them.
        refused = self.boot(self.make_flavor(60), expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])

    def test_a_resize_from_units_to_none(self):
        self.flags(allow_resize_to_same_host=True)
        self.start_host('units', 2.0)
        self.start_host('plain', None)
        server = self.boot(self.make_flavor(60))
        self.assertEqual('units', self.host_of(server))
        self._resize_server(server, self.make_flavor())
        self._confirm_resize(self.api.get_server(server['id']))
        self.assertEqual('plain', self.host_of(server))
