# SPDX-License-Identifier: Apache-2.0
"""Nova's waits, looking earlier and waiting longer.

Nova's look each 0.5 s, which is most of the time of a test here, and give up
after 5 s, which a busy machine needs now and then. An answer of the API takes
as much CPU time as a tenth of a boot, so it is asked when the database says
what is waited for.
"""

import functools
import time

from nova.api.openstack import common
from nova.db.main import api as main_db
from nova.tests.functional.api import client as api_client

from nova import context
from nova import exception

# NOTE: a look costs the very CPU time that what is waited for needs.
_FIRST_TURN_S = 0.05
_LAST_TURN_S = 0.3
_TIMEOUT_S = 60
# The API is asked so often whatever the database says.
_LOOK_S = 1


class WaitsMixin:
    """Overrides what InstanceHelperMixin waits with; same contracts."""

    def setUp(self):
        super().setUp()
        self.notifier.wait_for_versioned_notifications = functools.partial(
            self.notifier.wait_for_versioned_notifications,
            timeout=_TIMEOUT_S)

    def wait_for(self, condition, what, timeout_s=_TIMEOUT_S):
        """Wait until something is so.

        :param condition: callable; what it returns, when true, is returned
        :param what: callable that tells, when it is too late, what is instead
        """
        deadline = time.monotonic() + timeout_s
        turn_s = _FIRST_TURN_S
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                self.fail('not within %d s: %s' % (timeout_s, what()))
            time.sleep(turn_s)
            turn_s = min(turn_s * 2, _LAST_TURN_S)

    def _wait_for_server_parameter(
            self, server, expected_params, max_retries=10, api=None,
            wait_for_fault_key=True):
        api = api or self.admin_api
        shown = {}
        look_s = time.monotonic() + _LOOK_S

        def reached():
            nonlocal look_s
            wanted = expected_params.get('status')
            if (wanted and wanted != self._status(server['id'])
                    and time.monotonic() < look_s):
                return False
            look_s = time.monotonic() + _LOOK_S
            shown.update(api.get_server(server['id']))
            wants_fault = (wait_for_fault_key
                           and expected_params.get('status') == 'ERROR')
            return (all(shown[key] == value
                        for key, value in expected_params.items())
                    and (not wants_fault or 'fault' in shown))

        def said():
            return '%s of %s' % (expected_params, shown)

        self.wait_for(reached, said)
        return shown

    def row(self, server_uuid):
        """:returns: of the first cell that knows a server; None: none does"""
        # cell0 last: few servers are there.
        for mapping in reversed(self.cell_mappings.values()):
            with context.target_cell(
                    context.get_admin_context(), mapping) as cell:
                try:
                    return main_db.instance_get_by_uuid(
                        cell, server_uuid, columns_to_join=[])
                except exception.InstanceNotFound:
                    continue
        return None

    def _status(self, server_uuid):
        row = self.row(server_uuid)
        return row and common.status_from_state(row.vm_state, row.task_state)

    def _wait_for_state_change(
            self, server, expected_status, max_retries=10,
            wait_for_fault_key=True):
        # Nova 33 has no wait_for_fault_key.
        return self._wait_for_server_parameter(
            server, {'status': expected_status},
            wait_for_fault_key=wait_for_fault_key)

    def _wait_for_migration_status(self, server, expected_statuses):
        wanted = {status.lower() for status in expected_statuses}
        seen = []

        def reached():
            seen[:] = [
                m for m in self.admin_api.api_get(
                    '/os-migrations').body['migrations']
                if m['instance_uuid'] == server['id']]
            return next(
                (m for m in seen if m['status'].lower() in wanted), None)

        def said():
            return 'migration %s, only %s' % (
                wanted, [m['status'] for m in seen])

        return self.wait_for(reached, said)

    def _wait_until_deleted(self, server):
        def gone():
            try:
                self.admin_api.get_server(server['id'])
            except api_client.OpenStackApiNotFoundException:
                return True
            return False

        self.wait_for(gone, lambda: 'deletion of %s' % server['id'])

    def _wait_for_instance_action_event(
            self, server, action_name, event_name, event_result):
        seen = []

        def reached():
            seen[:] = self.events(server, action_name)
            return next((e for e in seen if e['event'] == event_name
                         and (e['result'] or '').lower()
                         == event_result.lower()), None)

        def said():
            return '%s of %s, only %s' % (event_result, event_name, seen)

        return self.wait_for(reached, said)

    def events(self, server, action_name):
        """All events of all actions of this name, newest action first."""
        return [event
                for action in self.admin_api.get_instance_actions(
                    server['id']) if action['action'] == action_name
                for event in self.admin_api.get_instance_action_details(
                    server['id'], action['request_id'])['events']]
