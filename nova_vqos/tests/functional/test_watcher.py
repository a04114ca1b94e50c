# SPDX-License-Identifier: Apache-2.0
"""Watcher's audits with units: what it proposes, Nova and the driver do."""

import contextlib

from nova.tests.functional.api import client as api_client

from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.functional import watcher_case


class WatcherTestCase(watcher_case.WatcherTestCase):

    def start(self, host, coefficient=1.0):
        self.start_host(host, coefficient)
        self.start_agent(host)

    def boot_many(self, number, flavor, host):
        return [self.boot(flavor, host)['id'] for _ in range(number)]

    def moves(self, server, host):
        """Whether Nova moves a server that its administrator wants moved."""
        with contextlib.suppress(api_client.OpenStackApiException):
            self.api.post_server_action(server, {'os-migrateLive': {
                'host': host, 'block_migration': 'auto'}})
        self.wait_for(
            lambda: all(one['status'] in ('completed', 'error')
                        for one in self.api.api_get(
                            '/os-migrations').body['migrations']),
            lambda: 'migrations end')
        self._wait_for_server_parameter({'id': server}, {
            'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        return self.host_of({'id': server}) == host

    def test_audit_action_plan_and_migrations(self):
        """400 of 400 and 0 of 400 CU become 200 and 200."""
        self.start('one')
        self.start('two')
        servers = self.boot_many(4, self.make_flavor(100), 'one')
        self.start_watcher()
        plan, moves = self.audit()
        self.assertEqual({('one', 'two')}, {move[1:] for move in moves})
        self.assertEqual(2, len(moves))
        self.carry_out(plan)
        self.wait_until_used('one', 200)
        self.assertEqual(200, self.used('two'))
        for server, _source, destination in moves:
            self.assertIn(server, servers)
            self.assertEqual(destination, self.host_of({'id': server}))
        # And that is the end of it.
        self.assertEqual([], self.audit()[1])
        # Each move looks at all servers and hosts again.
        self.audit(max_moves=100)
        self.assertRaises(AssertionError, self.audit, max_moves=101)

    def test_hosts_that_nova_would_refuse(self):
        """None is proposed: too slow, silent, stale, disabled, or without."""
        for host, coefficient in (('full', 1.0), ('slow', 0.8),
                                  ('silent', 2.0), ('stale', 2.0),
                                  ('disabled', 2.0), ('stock', None)):
            self.start(host, coefficient)
        servers = self.boot_many(4, self.make_flavor(100), 'full')
        self.host_files['silent'].agent_lives(age_s=1000)
        self.host_files['stale'].calibrate(
            {'0-3': 2.0}, fingerprint={'cpu_model': 'another'})
        self._run_periodics()
        self.api.put_service(
            self.api.get_services(host='disabled', binary='nova-compute')
            [0]['id'], {'status': 'disabled'})
        self.start_watcher()
        self.assertEqual([], self.audit(spread_threshold=0)[1])
        for host in ('slow', 'silent', 'stale', 'disabled', 'stock'):
            self.assertFalse(self.moves(servers[0], host), host)

        # Moves go to the one that fits, and not of the locked servers.
        self.start('fits', 1.25)
        for server in servers[:3]:
            self.api.post_server_action(server, {'lock': None})
        plan, moves = self.audit(spread_threshold=0)
        self.assertEqual([(servers[3], 'full', 'fits')], moves)
        self.carry_out(plan)
        self.assertEqual('fits', self.host_of({'id': servers[3]}))

    def test_no_more_than_a_host_has_left(self):
        """There is room for two on the fast core type, and for four in all."""
        self.start('full', 2.0)
        files = self.useFixture(host_files.HostFiles('hybrid'))
        files.calibrate({'0': 2.0, '1-3': 0.5})
        self.start_host('hybrid', None, files=files)
        self.start_agent('hybrid')
        servers = self.boot_many(8, self.make_flavor(90), 'full')
        self.start_watcher()
        plan, moves = self.audit(spread_threshold=0)
        self.assertEqual(2, len(moves))
        self.carry_out(plan)
        left = [one for one in servers if one not in {
            move[0] for move in moves}]
        self.assertFalse(self.moves(left[0], 'hybrid'))

    def test_stranded_units(self):
        """Half of the units of one host have no memory: two servers swap."""
        self.flags(ram=-1, group='quota')
        self.start('one')
        self.start('two')
        units = {base.UNITS_KEY: '100'}
        has = self._get_provider_inventory(
            self.compute_rp_uuids['one'])['MEMORY_MB']
        most_mb = int((has['total'] - has['reserved'])
                      * has['allocation_ratio'])
        for memory_mb, host in ((most_mb // 2 - 256, 'one'), (256, 'two')):
            self.boot_many(2, self._create_flavor(
                vcpu=1, memory_mb=memory_mb, disk=1, extra_spec=units), host)
        self.start_watcher()
        self.assertEqual([], self.audit(stranded_threshold=100)[1])
        plan, moves = self.audit(spread_threshold=30)
        self.assertEqual([('one', 'two'), ('two', 'one')],
                         sorted(move[1:] for move in moves))
        self.carry_out(plan)
        self.assertEqual([], self.audit(spread_threshold=30)[1])
