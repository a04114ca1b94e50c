# SPDX-License-Identifier: Apache-2.0
"""What is made of answers that no test cloud gives; see test_checks."""

import types

from openstack import exceptions
import pytest

from nova_vqos.agent import fanout
from nova_vqos.cmd.manage import check
from nova_vqos.cmd.manage import checks
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import errors


class Answer:
    status_code = 200

    def __init__(self, body):
        self._body = body

    def json(self):
        return self._body


class Service:
    """A service that answers by path, and fails on demand."""

    def __init__(self, answers=(), error=None):
        self._answers = dict(answers)
        self._error = error
        self.asked = []

    def get(self, path, microversion):
        self.asked.append(path)
        return Answer(self._answers[path])

    def services(self, binary):
        return [types.SimpleNamespace(
            host=host, state='up', status='enabled', is_forced_down=False,
            disabled_reason=None) for host in ('b', 'a')]

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
    assert len(compute.asked) == 3


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
    demand = check.demands.Demand({'VCPU': 1})
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
    server = cloud.Server('uuid', 'web', None, 'gone', {}, False, ())
    (reason,) = check._obstacles(server, None)
    assert 'gone' in reason
    facts = checks.Facts(cloud.Compute('gone', '', True, ()), False, None,
                         fanout.Answer('gone', '', None, 'silent'))
    assert check._obstacles(server, facts) == [reason]


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
