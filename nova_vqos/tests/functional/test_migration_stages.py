# SPDX-License-Identifier: Apache-2.0
"""Live migrations that are aborted, hurried or broken, at each stage."""

import fixtures

from nova import exception
from nova_vqos.tests.functional import test_live_migration

ON_FAST = test_live_migration.ON_FAST
ON_SLOW = test_live_migration.ON_SLOW


class StagesTestCase(test_live_migration.LiveMigrationTestCase):
    """A server of 60 CU, which is to go from the fast host to the slow one."""

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.make_flavor(60), 'fast')

    def _begin_to_copy(self):
        """:returns: the migration, while its transfer is held"""
        self._begin(self.server)
        self.wait_for(lambda: self.migrations.arrived,
                      lambda: 'no transfer yet')
        self.assertEqual({'slow': 60}, self.allocated(self.server['id']))
        self.assertEqual(60, self.used('slow'))
        return self._wait_for_migration_status(self.server, ['running'])

    def _abort(self, server, migration):
        self.api.api_delete(
            f'/servers/{server["id"]}/migrations/{migration["id"]}')

    def _assert_moved(self):
        self._wait_for_migration_status(self.server, ['completed'])
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertEqual('slow', self.host_of(self.server))
        self.assertEqual(ON_SLOW, self.tunables(self.server))
        self.assertEqual({'slow': 60}, self.allocated(self.server['id']))
        self.wait_until_used('fast', 0)
        self.assertEqual(60, self.used('slow'))


class AbortTestCase(StagesTestCase):

    def test_while_it_waits_for_another_one(self):
        second = self.boot(self.make_flavor(60), 'fast')
        with self.migrations.held():
            self._begin_to_copy()
            self._begin(second)
            migration = self._wait_for_migration_status(second, ['queued'])
            self.assertEqual({'slow': 60}, self.allocated(second['id']))
            self._abort(second, migration)
            self._wait_for_migration_status(second, ['cancelled'])
            self._wait_for_state_change(second, 'ACTIVE')
            self.wait_for(
                lambda: self.allocated(second['id']) == {'fast': 60},
                lambda: self.allocated(second['id']))
            self.wait_until_used('slow', 60)
        self._wait_for_migration_status(self.server, ['completed'])
        self.assertEqual(ON_FAST, self.tunables(second, 'fast'))
        self.wait_until_used('fast', 60)

    def test_while_the_destination_prepares(self):
        manager = self.computes['fast'].manager
        stock = self.computes['slow'].driver.pre_live_migration

        def prepare(*args, **kwargs):
            self._abort(self.server, self._wait_for_migration_status(
                self.server, ['preparing']))
            self.wait_for(lambda: self.server['id'] not in
                          manager._waiting_live_migrations,
                          lambda: 'the abort has not come')
            return stock(*args, **kwargs)

        self.computes['slow'].driver.pre_live_migration = prepare
        self._begin(self.server)
        self._wait_for_migration_status(self.server, ['cancelled'])
        self._assert_stayed(self.server, ON_FAST, 60)
        self.assertEqual([], self.migrations.arrived)

    def test_while_memory_is_copied(self):
        with self.migrations.held():
            self._abort(self.server, self._begin_to_copy())
            self._assert_rolled_back(self.server)
        # And once more, to the end.
        self._live_migrate(self.server, host='slow')
        self._assert_moved()


class ForceCompleteTestCase(StagesTestCase):

    POST_COPY = False

    def setUp(self):
        self.flags(live_migration_permit_post_copy=self.POST_COPY,
                   group='libvirt')
        super().setUp()

    def test_it_arrives(self):
        with self.migrations.held():
            migration = self._begin_to_copy()
            self.api.api_post(
                f'/servers/{self.server["id"]}/migrations/{migration["id"]}'
                '/action', {'force_complete': None},
                check_response_status=[202])
            self._assert_moved()
        # Else Nova pauses it.
        self.assertEqual([self.server['id']] if self.POST_COPY else [],
                         self.migrations.switched)


class PostCopyTestCase(ForceCompleteTestCase):

    POST_COPY = True


class BrokenTestCase(StagesTestCase):

    def test_the_destination_cannot_prepare(self):
        def fail(*_args, **_kwargs):
            raise exception.NovaException('it broke')
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.LibvirtDriver.pre_live_migration', fail))
        self._begin(self.server)
        # NOTE: Nova sets it twice.
        self._wait_for_migration_status(self.server, ['error', 'failed'])
        self._assert_stayed(self.server, ON_FAST, 60)
        self.assertEqual([], self.migrations.arrived)
