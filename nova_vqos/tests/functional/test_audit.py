# SPDX-License-Identifier: Apache-2.0
"""Nova, Placement and the agents differ: the audit finds it, and mends some.

What it advises is done here by nova-manage's own code.
"""

import fixtures
from nova.cmd import manage as nova_manage

from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import manage_case
from nova_vqos.tests.functional import test_resize

NOBODY = '00000000-0000-4000-8000-000000000001'
ORPHAN = '00000000-0000-4000-8000-000000000002'


class AuditTestCase(manage_case.ManageTestCase):
    """Hosts of 200 and of 100 CU, with agents."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'nova_vqos.cmd.manage.audit._AGAIN_AFTER_S', 0.1))
        for host, coefficient in (('fast', 2.0), ('slow', 1.0)):
            self.start_host(host, coefficient, pcpus=1)
            self.start_agent(host)
        self.flavor = self.make_flavor(60)

    def audit(self, *arguments, status=None):
        """:returns: its rows, without what differs from run to run"""
        ran = self.run_manage('audit', '-f', 'json', *arguments)
        self.assertTrue(ran.out, ran.err)
        self.assertEqual(
            int(any(row.get('result') != 'repaired' for row in ran.json)),
            ran.status, ran.err)
        self.said = ran.err
        self.rows = ran.json
        return [(row['kind'], row['server_uuid'], row['host'],
                 row['found_cu'], row['expected_cu']) for row in ran.json]

    def command(self, kind):
        """What the audit advises for the only difference of a kind."""
        (found,) = [row['command'] for row in self.rows
                    if row['kind'] == kind]
        return found

    def runs(self, server_uuid, host, units=60):
        """Have the agent of a host see a server."""
        self.agents.worlds[host].boot(
            server_uuid, vcpus=1, specs=fakes.make_specs(str(units)))
        self._wait_until_seen(server_uuid, host, {units})

    def ends(self, server_uuid, host):
        del self.agents.worlds[host].host.runs[server_uuid]
        self._wait_until_seen(server_uuid, host, set())

    def _wait_until_seen(self, server_uuid, host, units):
        world = self.agents.worlds[host]
        world.now_s += 20
        self.wait_for(
            lambda: units == {
                one['entitled_cu'] for one
                in world.manager.list_servers({})['servers']
                if one['server_uuid'] == server_uuid},
            lambda: f'the agent of {host} sees {server_uuid}')

    def boot_seen(self, host, flavor=None, units=60):
        server = self.boot(flavor or self.flavor, host)
        self.runs(server['id'], host, units)
        return server

    def hold(self, consumer, host, resources):
        """Have a consumer hold resources of a host."""
        held = self._get_allocations_by_server_uuid(consumer)
        self.placement.put(f'/allocations/{consumer}', {
            'allocations': {
                **{uuid: {'resources': one['resources']}
                   for uuid, one in held.items()},
                self.compute_rp_uuids[host]: {'resources': resources}},
            'project_id': 'p', 'user_id': 'u',
            'consumer_generation': self.placement.get(
                f'/allocations/{consumer}', version='1.28').body.get(
                    'consumer_generation')}, version='1.28')

    def all_held(self, consumer):
        return {uuid: one['resources'] for uuid, one
                in self._get_allocations_by_server_uuid(consumer).items()}


class ClaimsTestCase(test_resize.FailedResizeMixin, AuditTestCase):

    def setUp(self):
        super().setUp()
        # As where Placement does not answer the driver.
        self.useFixture(fixtures.MonkeyPatch(
            'nova_vqos.virt.claim.correct', lambda *_args: None))
        self.placement_commands = nova_manage.PlacementCommands()

    def test_nothing_differs(self):
        self.boot_seen('fast')
        self.assertEqual([], self.audit())
        self.assertEqual([], self.audit('--repair'))
        # Stock servers are none of its business.
        self.start_host('plain', None)
        self.start_agent('plain')
        self.boot(self.make_flavor(), 'plain')
        self.assertEqual([], self.audit())

    def test_a_resize_that_failed(self):
        server = self.boot_seen('slow')
        self.fail_to_resize(server, self.make_flavor(30))
        self.assertEqual([], self.audit())
        self.migrations.hook = self.hook
        self._live_migrate(server, host='fast')
        self.ends(server['id'], 'slow')
        self.runs(server['id'], 'fast')
        self.assertEqual({'fast': 30}, self.allocated(server['id']))
        self.wait_until_used('slow', 0)

        expected = [('claim-differs', server['id'], 'fast', 30, 60)]
        self.assertEqual(expected, self.audit())
        self.assertEqual('nova-vqos-manage audit --host fast --repair',
                         self.command('claim-differs'))
        before = self.all_held(server['id'])
        self.assertEqual(expected, self.audit('--repair'))
        provider = self.compute_rp_uuids['fast']
        before[provider][base.RESOURCE_CLASS] = 60
        self.assertEqual(before, self.all_held(server['id']))
        self.assertEqual([], self.audit('--repair'))

    def test_what_ends_the_flavor_of_a_resize_that_failed(self):
        # A cold migration, also one that is reverted: as the guide says.
        server = self.boot_seen('slow')
        self.fail_to_resize(server, self.make_flavor(30))
        self._migrate_server(server)
        self._revert_resize(server)
        self.migrations.hook = self.hook
        self._live_migrate(server, host='fast')
        self.assertEqual({'fast': 60}, self.allocated(server['id']))

    def test_shelved_after_a_resize_that_failed(self):
        server = self.boot_seen('slow')
        self.fail_to_resize(server, self.make_flavor(30))
        self._shelve_server(server, expected_state='SHELVED_OFFLOADED')
        self.ends(server['id'], 'slow')
        self.assertEqual([], self.audit())
        self._unshelve_server(server)
        host = self.host_of(server)
        self.assertEqual({host: 30}, self.allocated(server['id']))
        self.assertEqual(
            {('claim-differs', server['id'], host, 30, 60)},
            {row for row in self.audit() if row[0] == 'claim-differs'})
        self.runs(server['id'], host)
        self.audit('--repair')
        self.assertEqual({host: 60}, self.allocated(server['id']))
        self.assertEqual([], self.audit())

    def test_there_is_no_room(self):
        server = self.boot_seen('slow')
        self.hold(server['id'], 'slow', {'VCPU': 1, base.RESOURCE_CLASS: 10})
        self.hold(NOBODY, 'slow', {'VCPU': 1, base.RESOURCE_CLASS: 90})
        self.assertEqual([
            ('claim-differs', server['id'], 'slow', 10, 60),
            ('claim-leaked', NOBODY, 'slow', 90, 0)], self.audit('--repair'))
        self.assertIn('no room', self.rows[0]['result'])
        self.assertEqual(10, self.allocated(server['id'])['slow'])
        self.placement.delete(f'/allocations/{NOBODY}')
        self.assertEqual([('claim-differs', server['id'], 'slow', 10, 60)],
                         self.audit('--repair'))
        self.assertEqual(60, self.allocated(server['id'])['slow'])

    def test_what_an_agent_contradicts_is_not_repaired(self):
        server = self.boot_seen('slow', units=30)
        self.hold(server['id'], 'slow', {'VCPU': 1, base.RESOURCE_CLASS: 30})
        self.assertEqual([
            ('claim-differs', server['id'], 'slow', 30, 60),
            ('runs-otherwise', server['id'], 'slow', 30, 60)],
            self.audit('--repair'))
        self.assertEqual({'slow': 30}, self.allocated(server['id']))

    def test_a_server_that_moves_is_not_judged(self):
        server = self.boot_seen('slow')
        self._migrate_server(server)
        self.assertEqual([], self.audit('--repair'))
        self.assertIn(server['id'], self.said)
        self.assertIn('verify_resize', self.said)
        self._revert_resize(server)
        self.assertEqual([], self.audit())

    def test_no_claim_at_all(self):
        server = self.boot_seen('slow')
        before = self.all_held(server['id'])
        self.placement.delete(f'/allocations/{server["id"]}')
        self.assertEqual([('claim-differs', server['id'], 'slow', 0, 60)],
                         self.audit('--repair'))
        self.assertEqual({}, self.all_held(server['id']))
        self.assertEqual(
            'nova-manage placement heal_allocations --instance '
            f'{server["id"]} --verbose', self.command('claim-differs'))
        self.assertEqual(0, self.placement_commands.heal_allocations(
            instance_uuid=server['id'], verbose=True,
            skip_port_allocations=True))
        self.assertEqual(before, self.all_held(server['id']))
        self.assertEqual([], self.audit())

    def test_leaked(self):
        self.hold(NOBODY, 'fast', {'VCPU': 1, base.RESOURCE_CLASS: 60})
        self.hold(ORPHAN, 'slow', {base.RESOURCE_CLASS: 40})
        self.assertEqual([
            ('claim-leaked', NOBODY, 'fast', 60, 0),
            ('claim-leaked', ORPHAN, 'slow', 40, 0)], self.audit('--repair'))
        fast, slow = (self.compute_rp_uuids[host] for host in (
            'fast', 'slow'))
        self.assertEqual([
            'nova-manage placement audit --verbose --delete '
            f'--resource_provider {fast}',
            f'openstack resource provider allocation delete {ORPHAN}'],
            [row['command'] for row in self.rows])
        # 4: some were deleted. It does not see the other.
        self.assertEqual(4, self.placement_commands.audit(
            verbose=True, provider_uuid=fast, delete=True))
        self.assertEqual(0, self.placement_commands.audit(
            verbose=True, provider_uuid=slow, delete=True))
        self.assertEqual([('claim-leaked', ORPHAN, 'slow', 40, 0)],
                         self.audit())
        self.placement.delete(f'/allocations/{ORPHAN}')
        self.assertEqual([], self.audit())

    def test_held_of_another_host(self):
        server = self.boot_seen('slow')
        self.hold(server['id'], 'fast', {'VCPU': 1, base.RESOURCE_CLASS: 60})
        self.assertEqual([('claim-elsewhere', server['id'], 'fast', 60, 0)],
                         self.audit())
        self.assertEqual(4, self.placement_commands.audit(
            verbose=True, provider_uuid=self.compute_rp_uuids['fast'],
            delete=True))
        self.assertEqual({'slow': 60}, self.allocated(server['id']))
        self.assertEqual([], self.audit())

    def test_nova_manage_deletes_the_claim_of_an_arriving_server(self):
        # Why the audit warns of servers that move: the destination's claim
        # is the server's, which Nova still has on its old host.
        server = self.boot_seen('slow')
        deleted = []

        def while_it_migrates(*_args):
            deleted.append(self.placement_commands.audit(
                verbose=True, provider_uuid=self.compute_rp_uuids['fast'],
                delete=True))
            return _args[-1]
        self.migrations.hook = while_it_migrates
        self._live_migrate(server, host='fast')
        self.assertEqual([4], deleted)
        self.assertEqual({}, self.allocated(server['id']))


class GuestsTestCase(AuditTestCase):

    def test_one_server_on_two_hosts(self):
        server = self.boot_seen('slow')
        self.runs(server['id'], 'fast')
        self.assertEqual([('runs-twice', server['id'], 'fast', 60, 0)],
                         self.audit('--repair'))
        self.assertRegex(self.command('runs-twice'), '^virsh destroy ')
        self.ends(server['id'], 'fast')
        self.assertEqual([], self.audit())

    def test_on_another_host_than_novas(self):
        # As after a nova-compute that was killed in a live migration.
        server = self.boot(self.flavor, 'fast')
        self.runs(server['id'], 'slow')
        self.hold(server['id'], 'slow', {'VCPU': 1, base.RESOURCE_CLASS: 60})
        self.assertEqual([
            ('claim-elsewhere', server['id'], 'slow', 60, 0),
            ('runs-elsewhere', server['id'], 'slow', 60, 0)], self.audit())
        # What it runs on is not to be sold to another.
        self.assertEqual('', self.command('claim-elsewhere'))

    def test_nova_knows_no_such_server(self):
        self.runs(NOBODY, 'slow')
        self.assertEqual([('runs-unknown', NOBODY, 'slow', 60, 0)],
                         self.audit())

    def test_nowhere(self):
        server = self.boot(self.flavor, 'slow')
        self.assertEqual([('runs-nowhere', server['id'], 'slow', 0, 60)],
                         self.audit())
        self._stop_server(server)
        self.assertEqual([], self.audit())

    def test_an_agent_that_does_not_answer(self):
        self.start_host('silent', 2.0)
        server = self.boot(self.flavor, 'silent')
        ran = self.run_manage('audit', '-f', 'json')
        self.assertEqual((1, []), (ran.status, ran.json))
        self.assertIn('1 of 3 hosts gave no answer: silent', ran.err)
        # Its claims are judged all the same.
        self.hold(server['id'], 'silent', {
            'VCPU': 1, base.RESOURCE_CLASS: 30})
        ran = self.run_manage('audit', '-f', 'json', '--repair')
        self.assertEqual(['repaired'], [row['result'] for row in ran.json])
        self.assertEqual({'silent': 60}, self.allocated(server['id']))


class HostsTestCase(AuditTestCase):

    def test_more_is_sold_than_there_is(self):
        self.boot_seen('slow')
        small = self.boot_seen('slow', self.make_flavor(30), units=30)
        # That a host is closed to new servers is no difference.
        self.host_files['slow'].calibrate(
            {'0-0': 1.0}, fingerprint={'cpu_model': 'another'})
        self._run_periodics()
        self.assertEqual(100, self.inventory('slow')['reserved'])
        self.assertEqual([], self.audit())
        self.host_files['slow'].calibrate({'0-0': 0.7})
        self._run_periodics()
        self.assertEqual([('host-oversold', None, 'slow', 90, 70)],
                         self.audit('--repair'))
        self.assertEqual(
            f'openstack server migrate --live-migration {small["id"]}',
            self.command('host-oversold'))

    def test_more_runs_than_there_is(self):
        # Whatever Placement counts: these have 200 CU by their agents.
        for units in (90, 90):
            self.boot_seen('fast', self.make_flavor(units), units)
        self.runs(NOBODY, 'fast')
        self.assertEqual([
            ('host-overloaded', None, 'fast', 240, 200),
            ('runs-unknown', NOBODY, 'fast', 60, 0)], self.audit())
        (alarm,) = self.run_manage(
            'host', 'show', 'fast', '-f', 'json').json['alarms']
        self.assertIn('240 CU', alarm)

    def test_what_servers_without_units_leave(self):
        """Agent and Placement count the same."""
        for _ in range(2):
            self.boot_seen('fast')
        # Half of its pCPU, and past the scheduler's filters.
        self.boot(self.make_flavor(specs={
            'quota:cpu_quota': '20000', 'quota:cpu_period': '40000'}),
            az='nova:fast')
        self._run_periodics()
        self.assertEqual(100, self.inventory('fast')['reserved'])
        self.agents.worlds['fast'].now_s += 20

        def show(*names):
            found = self.run_manage('host', 'show', 'fast', '-f', 'json').json
            return [found[name] for name in names]
        self.wait_for(lambda: show('reserved_cu') == [100],
                      lambda: show('reserved_cu'))
        self.assertEqual([200, 120], show('capacity_cu', 'used_cu'))
        self.assertEqual([('host-overloaded', None, 'fast', 120, 100),
                          ('host-oversold', None, 'fast', 120, 100)],
                         self.audit())

    def test_one_host(self):
        for host in ('fast', 'slow'):
            self.hold(NOBODY if host == 'fast' else ORPHAN, host,
                      {'VCPU': 1, base.RESOURCE_CLASS: 20})
        self.assertEqual([('claim-leaked', ORPHAN, 'slow', 20, 0)],
                         self.audit('--host', 'slow'))
        ran = self.run_manage('audit', '--host', 'nonesuch')
        self.assertEqual((1, ''), (ran.status, ran.out))
        self.assertIn('nonesuch', ran.err)
