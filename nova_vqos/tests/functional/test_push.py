# SPDX-License-Identifier: Apache-2.0
"""Flavors are read from Nova's real API, and its servers follow them."""

from nova import utils
from nova_vqos import domain_xml
from nova_vqos import primitives
from nova_vqos.agent import manager
from nova_vqos.agent.overrides import receiver
from nova_vqos.agent.overrides import store
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import manage_case


class PushTestCase(manage_case.ManageTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)
        directory = self.config.parent / 'agent'
        directory.mkdir()
        self.store = store.OverrideStore(str(directory / 'pushed.json'))
        self.world = agent.World(directory, store=self.store)
        self.agents.add('fast', manager.AgentManager(
            self.world.loop, 'fast', push_receiver=receiver.Receiver(
                self.store, self.world.loop.follow_pushed,
                self.world.loop.pushed_report, 'fast')), self.world)

    def run_server(self, flavor_id):
        """Boot one, and let the agent's host have it as Nova made it."""
        server = self.boot(flavor_id, 'fast')
        found = domain_xml.read(self.domain(server).XMLDesc(0))
        self.world.host.boot(
            server['id'], specs=found.extra_specs, vcpus=found.vcpus,
            flavor=(found.flavor_name, found.flavor_id))
        self.world.loop.refresh()
        self.wait_for(
            lambda: self.world.loop.server_report(server['id'])
            and self.report(server)['flavor'], lambda: 'not described')
        return server

    def report(self, server):
        return primitives.to_primitives(
            self.world.loop.server_report(server['id']))

    def set_specs(self, flavor_id, version=base.VALIDATED, **specs):
        with utils.temporary_mutation(self.api, microversion=version):
            self.api.post_extra_spec(flavor_id, {'extra_specs': {
                f'vqos:{key}': value for key, value in specs.items()}})

    def push(self, *arguments):
        ran = self.run_manage('policy', 'push', *arguments, '-f', 'json')
        self.assertEqual(0, ran.status, ran.err)
        (row,) = ran.json
        return row

    def test_a_running_server_follows_its_flavor(self):
        # Nova gives no more at a time: its own flavors are five.
        self.flags(max_limit=2, group='api')
        flavor_id = self.make_flavor(60)
        server = self.run_server(flavor_id)
        self.assertEqual(flavor_id, self.report(server)['flavor_id'])
        self.set_specs(flavor_id, dd_billing='account', quantum_class='io',
                       guarantee='preferred')
        self.assertEqual('off', self.report(server)['dd_billing'])

        row = self.push()
        self.assertEqual(('applied', 1, 1), (
            row['state'], row['servers'], row['following']))
        report = self.report(server)
        self.assertEqual(('account', 'io'), (report['dd_billing'],
                                             report['quantum_class']))
        self.assertEqual((60, 'preferred'), (report['policy']['units'],
                                             report['policy']['guarantee']))
        self.assertGreater(len(self.store.overrides), 2)

        # What is removed reaches it too.
        for key in ('dd_billing', 'quantum_class', 'guarantee'):
            self.api.api_delete(
                f'/flavors/{flavor_id}/os-extra_specs/vqos:{key}')
        self.assertEqual(1, self.push()['servers'])
        report = self.report(server)
        self.assertEqual(('off', 'off'), (report['dd_billing'],
                                          report['policy']['guarantee']))

    def test_units_stay_those_of_the_server(self):
        flavor_id = self.make_flavor(60)
        server = self.run_server(flavor_id)
        self.api.post_extra_spec(
            flavor_id, {'extra_specs': {base.UNITS_KEY: '90'}})
        row = self.push()
        self.assertEqual((0, 1), (row['servers'], row['other_units']))
        self.assertEqual(60, self.report(server)['policy']['units'])

    def test_a_flavor_that_was_made_anew_is_another_one(self):
        flavor_id = self.make_flavor(60)
        server = self.run_server(flavor_id)
        name = self.api.get_flavor(flavor_id)['name']
        self.api.delete_flavor(flavor_id)
        made = self._create_flavor(
            vcpu=1, memory_mb=256, disk=1, name=name, id='anew',
            extra_spec={base.UNITS_KEY: '90', 'vqos:dd_billing': 'charge'})
        self.assertNotEqual(flavor_id, made)
        row = self.push()
        self.assertEqual((0, 0), (row['servers'], row['following']))
        (named,) = row['not_following']['servers']
        self.assertEqual(server['id'], named['server_uuid'])
        self.assertEqual('off', self.report(server)['dd_billing'])

    def test_what_is_pushed(self):
        flavor_id = self.make_flavor(60)
        self.policy.set_rules(
            {'os_compute_api:os-flavor-extra-specs:index': '!'},
            overwrite=False)
        ran = self.run_manage('policy', 'push')
        self.assertEqual(1, ran.status)
        self.assertIn('administrator', ran.err)
        self.assertEqual({}, self.store.overrides)
        self.policy.set_rules(
            {'os_compute_api:os-flavor-extra-specs:index': ''},
            overwrite=False)

        # What the API did not validate is not pushed.
        self.set_specs(flavor_id, base.NOT_VALIDATED, dd_billing='free')
        ran = self.run_manage('policy', 'push')
        self.assertEqual(1, ran.status)
        self.assertIn(f"({flavor_id}): vqos:dd_billing is 'free', it must be "
                      'one of off, account, charge', ' '.join(ran.err.split()))
        self.assertNotIn(flavor_id, self.store.overrides)
        self.assertTrue(self.store.overrides)

        # Private flavors are.
        self.set_specs(flavor_id, dd_billing='off')
        self.api.post_flavor({'flavor': {
            'name': 'private', 'id': 'p1', 'ram': 256, 'vcpus': 1, 'disk': 1,
            'os-flavor-access:is_public': False}})
        self.push()
        self.assertLessEqual({'p1', flavor_id}, self.store.overrides.keys())

    def test_what_holds_for_a_server_by_name(self):
        flavor_id = self.make_flavor(60)
        server = self.run_server(flavor_id)
        self.set_specs(flavor_id, dd_billing='account')
        self.push('--flavor', flavor_id)
        ran = self.run_manage('policy', 'show', '--server', server['name'],
                              '-f', 'json')
        self.assertEqual(0, ran.status, ran.err)
        found = {row['field']: row for row in ran.json}
        self.assertEqual('pushed', found['dd_billing']['source'])
        self.assertEqual('account', found['dd_billing']['in_force'])
        self.assertEqual('off', found['dd_billing']['booted'])
