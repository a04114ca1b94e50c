# SPDX-License-Identifier: Apache-2.0
"""The claim of an arriving server, beside a Placement that answers oddly."""

import types

from keystoneauth1 import exceptions as keystone
from nova.compute import task_states
import pytest

from nova import exception
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver
from nova_vqos.virt import claim

CLASS = policy.RESOURCE_CLASS
CONTEXT = types.SimpleNamespace(global_id='req-1')


class Placement:
    """Nova's report client, and one server's claim.

    :ivar held: resources by provider
    """

    def __init__(self, held_cu=30, answers=(204,), error=None):
        self.held = {'host': {'VCPU': 1, CLASS: held_cu},
                     'disks': {'DISK_GB': 5}}
        self._answers = list(answers)
        self._error = error
        self.asked = 0

    def get_allocs_for_consumer(self, context, consumer):
        self.asked += 1
        if self._error:
            raise self._error
        return {'allocations': {uuid: {'generation': 1, 'resources': dict(one)}
                                for uuid, one in self.held.items()},
                'consumer_generation': 1, 'project_id': 'p', 'user_id': 'u'}

    def put(self, url, data, version, global_request_id):
        assert url == '/allocations/s'
        answer = self._answers.pop(0)
        if answer == 204:
            self.held = {uuid: one['resources']
                         for uuid, one in data['allocations'].items()}
        code = 'placement.undefined_code'
        if answer == 'changed':
            answer, code = 409, 'placement.concurrent_update'
        return types.SimpleNamespace(
            status_code=answer, json=lambda: {'errors': [{'code': code}]})


@pytest.fixture
def correct(monkeypatch):
    def correct(placement, units_cu=60, provider='host', held=None):
        monkeypatch.setattr(claim.report, 'report_client_singleton',
                            lambda: placement)
        claim.correct(CONTEXT, 's', provider, units_cu, held)
        return placement.held['host'].get(CLASS, 0)
    return correct


@pytest.mark.parametrize('units_cu', [60, 10, 0])
@pytest.mark.parametrize('answers', [[204], ['changed', 'changed', 204]])
def test_units_are_those_of_the_flavor(correct, units_cu, answers):
    placement = Placement(answers=answers)
    assert correct(placement, units_cu) == units_cu
    assert placement.held['host']['VCPU'] == 1
    assert placement.held['disks'] == {'DISK_GB': 5}


def test_what_nova_has_read_is_not_read_again(correct):
    placement = Placement(60)
    held = placement.get_allocs_for_consumer(None, 's')['allocations']
    assert correct(placement, held=held) == 60
    assert correct(placement, held={}) == 60
    assert placement.asked == 1
    # It may have changed since.
    assert correct(placement, held={'host': {'resources': {CLASS: 30}}}) == 60
    assert placement.asked == 2


def test_nothing_is_held_of_this_host(correct):
    placement = Placement(answers=())
    assert correct(placement, provider='other') == 30


def test_no_room(correct):
    with pytest.raises(claim.NoRoom, match='30 CU .* 60'):
        correct(Placement(answers=[409]))
    # What is too much is no reason to refuse a server.
    assert correct(Placement(answers=[409]), 10) == 30


@pytest.mark.parametrize('answers, error', [
    ([], keystone.ConnectTimeout()), ([], RuntimeError()), ([500], None),
    ([400], None), (['changed'] * 3, None)])
def test_a_placement_that_does_not_help(correct, answers, error, caplog):
    assert correct(Placement(answers=answers, error=error)) == 30
    assert ' s ' in caplog.text


class ArrivingTestCase(driver.DriverTestCase):
    """What the driver does where there is no room for a claim."""

    def setUp(self):
        super().setUp()
        self.spawned = []
        self.stub_driver('spawn', lambda this, *args: self.spawned.append(
            args))

        def refuse(context, uuid, provider, units_cu, held):
            self.assertEqual((driver.UUID, 'rp', 60), (
                uuid, provider, units_cu))
            raise claim.NoRoom('none is left')
        self.stub_out('nova_vqos.virt.claim.correct', refuse)
        self.driver._vqos_provider = 'rp'

    def spawn(self, instance):
        self.driver.spawn(self.context, instance, None, [], None, {})

    def make(self, **changes):
        return self.make_instance({policy.UNITS_KEY: '60'}, **changes)

    def test_one_that_is_new_here_is_refused(self):
        self.assertRaises(exception.ComputeResourcesUnavailable, self.spawn,
                          self.make())
        self.assertEqual([], self.spawned)

    def test_one_that_has_no_other_host_starts(self):
        for task_state in (task_states.RESIZE_FINISH,
                           task_states.REBUILD_SPAWNING):
            self.spawn(self.make(task_state=task_state))
        self.assertEqual(2, len(self.spawned))

    def test_before_the_provider_is_known(self):
        self.driver._vqos_provider = None
        self.spawn(self.make())
        self.assertEqual(1, len(self.spawned))

    def test_a_live_migration_is_refused(self):
        self.assertRaises(
            exception.MigrationPreCheckError,
            self.driver.check_can_live_migrate_destination, self.context,
            self.make(), {}, {})
