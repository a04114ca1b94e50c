# SPDX-License-Identifier: Apache-2.0
"""What is made of answers of Placement that no test cloud gives."""

import types

import pytest

from nova_vqos import policy
from nova_vqos.cmd.manage import demand as demands
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import placement as placements


class Answer:
    status_code = 200

    def __init__(self, body):
        self._body = body

    def json(self):
        return self._body


def connect(service):
    return placements.Placement(types.SimpleNamespace(placement=service))


@pytest.mark.parametrize('body', [
    {}, {'allocation_requests': None, 'provider_summaries': {}},
    {'allocation_requests': [{'allocations': {'1': {}}}],
     'provider_summaries': {'2': {}}}])
def test_an_answer_of_something_else(body):
    demand = demands.Demand({'VCPU': 1})
    service = types.SimpleNamespace(
        get=lambda path, microversion: Answer(body))
    with pytest.raises(errors.ManageError, match='the answer of Placement'):
        connect(service).offers(demand)


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
        return connect(placement).remove_traits(
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
            connect(ChangingPlacement()).remove_inventory(
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
        return connect(placement).set_claim(
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
