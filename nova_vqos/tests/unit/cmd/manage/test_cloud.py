# SPDX-License-Identifier: Apache-2.0
"""What is made of answers that no test cloud gives; see test_checks."""

import datetime
import types

from openstack import exceptions
import pytest

from nova_vqos import policy
from nova_vqos.agent import fanout
from nova_vqos.cmd.manage import checks
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import demand as demands
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import migration
from nova_vqos.tests.fixtures import manage


class Answer:
    status_code = 200

    def __init__(self, body):
        self._body = body

    def json(self):
        return self._body


class Service:
    """A service that answers by path, and fails on demand."""

    def __init__(self, answers=(), error=None):
        self._answers = {manage.SERVICES: manage.services('b', 'a'),
                         **dict(answers)}
        self._error = error
        self.asked = []

    def get(self, path, microversion):
        self.asked.append(path)
        return Answer(self._answers[path])

    def find_server(self, name, all_projects):
        raise self._error

    def find_flavor(self, name, get_extra_specs, is_public):
        raise self._error


def make_cloud(**services):
    return cloud.Cloud(types.SimpleNamespace(**services))


def hypervisor(host, uuid):
    return {'id': uuid, 'service': {'host': host}}


def test_hypervisors_come_in_pages():
    path = '/os-hypervisors/detail?limit=500'
    compute = Service({
        path: {'hypervisors': [hypervisor('a', '1')]},
        f'{path}&marker=1': {'hypervisors': [hypervisor('c', '2')]},
        f'{path}&marker=2': {'hypervisors': []}})
    found = make_cloud(compute=compute).computes()
    assert [(one.host, one.provider) for one in found] == [
        ('a', '1'), ('b', '')]
    assert len(compute.asked) == 4


@pytest.mark.parametrize('fields, is_down, obstacles', [
    ({}, False, []),
    ({'state': 'down'}, True, ['its compute service is down']),
    ({'forced_down': True}, True, ['its compute service was forced down']),
    ({'status': 'disabled'}, False, ['its compute service is disabled']),
    ({'status': 'disabled', 'disabled_reason': 'worn out'}, False,
     ['its compute service is disabled: worn out'])])
def test_what_is_wrong_with_a_compute_service(fields, is_down, obstacles):
    compute = Service({
        manage.SERVICES: manage.services('a', **fields),
        '/os-hypervisors/detail?limit=500': {'hypervisors': []}})
    (found,) = make_cloud(compute=compute).computes()
    assert found == ('a', '', is_down, tuple(obstacles))


@pytest.mark.parametrize('body', [{}, [], None, {'services': [{'id': 1}]}])
def test_services_of_something_else(body):
    compute = Service({manage.SERVICES: body})
    with pytest.raises(errors.ManageError, match='not what its API'):
        make_cloud(compute=compute).hosts()


@pytest.mark.parametrize('body', [
    {}, [], None, {'hypervisors': [{'id': '1'}]}, {'hypervisors': 7}])
def test_an_answer_of_something_else(body):
    compute = Service({'/os-hypervisors/detail?limit=500': body})
    with pytest.raises(errors.ManageError, match='not what its API'):
        make_cloud(compute=compute).computes()


@pytest.mark.parametrize('body', [
    {}, {'allocation_requests': None, 'provider_summaries': {}},
    {'allocation_requests': [{'allocations': {'1': {}}}],
     'provider_summaries': {'2': {}}}])
def test_placement_answers_something_else(body):
    demand = demands.Demand({'VCPU': 1})
    placement = Service({f'/allocation_candidates?{demand.query}': body})
    with pytest.raises(errors.ManageError, match='the answer of Placement'):
        make_cloud(placement=placement).offers(demand)


@pytest.mark.parametrize('what', ['server', 'flavor'])
def test_several_of_a_name(what):
    compute = Service(error=exceptions.DuplicateResource('two'))
    with pytest.raises(errors.ManageError,
                       match=f'several {what}s are called web: give the ID'):
        getattr(make_cloud(compute=compute), what)('web')


def test_a_server_whose_host_is_none_of_novas():
    flavor = types.SimpleNamespace(vcpus=1, ram=512, disk=1, ephemeral=0,
                                   swap=0, extra_specs={})
    moved = migration.Migration(
        cloud.Server('uuid', 'web', flavor, 'gone', {}, False, ()),
        agent_max_age_s=300, servers_without_units='refuse')
    (reason,) = moved.obstacles(None)
    assert 'gone' in reason
    facts = checks.Facts(cloud.Compute('gone', '', True, ()), False, None,
                         fanout.Answer('gone', '', None, 'silent'))
    assert moved.obstacles(facts) == [reason]


class ChangingPlacement:
    """One provider, which others change so many times while it is read."""

    def __init__(self, changes=0):
        self.traits = {'CUSTOM_OTHER', 'CUSTOM_VQOS'}
        self.generation = 1
        self._changes = changes

    def get(self, path, microversion):
        assert path == '/resource_providers/1/traits'
        return Answer({'traits': sorted(self.traits),
                       'resource_provider_generation': self.generation})

    def put(self, path, microversion, json):
        answer = Answer({})
        if self._changes:
            self._changes -= 1
            self.generation += 1
            self.traits.add(f'CUSTOM_NEW_{self._changes}')
        if json['resource_provider_generation'] != self.generation:
            answer.status_code = 409
        else:
            self.traits = set(json['traits'])
        return answer

    def delete(self, path, microversion):
        answer = Answer({})
        answer.status_code = 409
        return answer


class TestRemoval:
    def remove(self, placement):
        return make_cloud(placement=placement).remove_traits(
            '1', lambda traits: {'CUSTOM_VQOS'} & set(traits))

    @pytest.mark.parametrize('changes', [0, 2])
    def test_traits_that_others_change_meanwhile_stay(self, changes):
        placement = ChangingPlacement(changes)
        assert self.remove(placement) == ['CUSTOM_VQOS']
        assert placement.traits == {'CUSTOM_OTHER', *(
            f'CUSTOM_NEW_{number}' for number in range(changes))}
        assert self.remove(placement) == []

    def test_a_provider_that_never_rests(self):
        with pytest.raises(errors.ManageError, match='try again'):
            self.remove(ChangingPlacement(100))

    def test_units_that_were_claimed_meanwhile(self):
        with pytest.raises(errors.ManageError, match='servers hold CLASS'):
            make_cloud(placement=ChangingPlacement()).remove_inventory(
                '1', 'CLASS')


CLASS = policy.RESOURCE_CLASS
BEFORE = {'rp': {'VCPU': 1, CLASS: 30}, 'disks': {'DISK_GB': 5}}


class ClaimingPlacement:
    """The claim of one server, which others change while it is read."""

    def __init__(self, changes=0, refusal=None, held=None):
        self.held = BEFORE if held is None else held
        self.generation = 1
        self._changes = changes
        self._refusal = refusal

    def get(self, path, microversion):
        assert path == '/allocations/s'
        body = {'allocations': {
            uuid: {'generation': 7, 'resources': amounts}
            for uuid, amounts in self.held.items()}}
        if self.held:
            body |= {'project_id': 'p', 'user_id': 'u',
                     'consumer_generation': self.generation}
        return Answer(body)

    def put(self, path, microversion, json):
        assert (json['project_id'], json['user_id']) == ('p', 'u')
        if self._changes:
            self._changes -= 1
            self.generation += 1
        stale = json['consumer_generation'] != self.generation
        answer = Answer({'errors': [{'code': (
            'placement.concurrent_update' if stale else self._refusal)}]})
        if stale or self._refusal:
            answer.status_code = 409
        else:
            self.held = {uuid: one['resources']
                         for uuid, one in json['allocations'].items()}
        return answer


class TestSetClaim:
    def set_claim(self, placement, amount_cu=60, is_right=lambda: True):
        return make_cloud(placement=placement).set_claim(
            's', 'rp', amount_cu, is_right)

    @pytest.mark.parametrize('changes', [0, 2])
    def test_all_else_stays(self, changes):
        placement = ClaimingPlacement(changes)
        assert self.set_claim(placement) == ''
        assert placement.held == {'rp': {'VCPU': 1, CLASS: 60},
                                  'disks': {'DISK_GB': 5}}

    @pytest.mark.parametrize('held, left', [
        (BEFORE, {'rp': {'VCPU': 1}, 'disks': {'DISK_GB': 5}}),
        ({'rp': {CLASS: 30}, 'disks': {'DISK_GB': 5}},
         {'disks': {'DISK_GB': 5}})])
    def test_none_is_left(self, held, left):
        placement = ClaimingPlacement(held=held)
        assert self.set_claim(placement, 0) == ''
        assert placement.held == left

    @pytest.mark.parametrize('placement, is_right, said', [
        (ClaimingPlacement(), False, 'the server has changed'),
        (ClaimingPlacement(100), True, 'try again'),
        (ClaimingPlacement(refusal='placement.undefined_code'), True,
         'no room for its 60 CU'),
        (ClaimingPlacement(held={'other': {CLASS: 5}}), True,
         'holds nothing of its host'),
        (ClaimingPlacement(held={}), True, 'holds nothing of its host')])
    def test_what_is_not_changed(self, placement, is_right, said):
        before = placement.held
        assert said in self.set_claim(placement, is_right=lambda: is_right)
        assert placement.held == before


def nova_server(uuid, **flavor):
    return {'id': uuid, 'status': 'ACTIVE', 'updated': '2026-11-23T12:00:00Z',
            'OS-EXT-SRV-ATTR:host': None, 'OS-EXT-STS:task_state': None,
            'flavor': {'vcpus': 1, 'original_name': 'web', **flavor}}


class TestServers:
    def read(self, *servers):
        path = '/servers/detail?all_tenants=1&limit=500'
        return make_cloud(compute=Service({
            path: {'servers': servers},
            f'{path}&marker={servers[-1]["id"]}': {'servers': []}})
        ).all_servers()

    @pytest.mark.parametrize('specs, units_cu', [
        ({}, 0), ({policy.UNITS_KEY: '60'}, 60),
        ({policy.UNITS_KEY: '6_0'}, None)])
    def test_units(self, specs, units_cu):
        (found,) = self.read(nova_server('s', extra_specs=specs))
        assert found == ('s', '', 'ACTIVE', '', units_cu, datetime.datetime(
            2026, 11, 23, 12, tzinfo=datetime.UTC))

    def test_in_a_cell_that_is_down(self):
        (found,) = self.read({'id': 's', 'status': 'UNKNOWN'})
        assert found == ('s', '', 'UNKNOWN', '', None, None)

    def test_extra_specs_that_nova_hides(self):
        with pytest.raises(errors.ManageError, match='flavor web'):
            self.read(nova_server('s'))
