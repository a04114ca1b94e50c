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


def test_a_flavor_that_others_change_at_the_same_time():
    refused = Answer({'conflictingRequest': {'code': 409, 'message': 'no'}})
    refused.status_code = 409
    compute = types.SimpleNamespace(
        delete=lambda path, microversion: Answer({}),
        post=lambda path, microversion, json: refused)
    found = make_cloud(compute=compute)
    found.change_flavor('1', {}, ['trait:X'])
    with pytest.raises(errors.ManageError, match='flavor 1 .* try again'):
        found.change_flavor('1', {'trait:Y': 'required'}, ())
