# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Many agents asked at once, over oslo.messaging's in-memory transport."""

import time

import pytest

from nova_vqos.manage import errors
from nova_vqos.manage import fleet as fleets
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import manage_world


@pytest.fixture
def agents(tmp_path):
    world = manage_world.Agents(tmp_path)
    try:
        yield world
    finally:
        world.stop()


@pytest.fixture
def fleet(agents):
    return fleets.Fleet({'default': agents.transport()}, timeout_s=5.0)


def test_all_answer_and_are_sorted(agents, fleet):
    for host in ('b', 'c', 'a'):
        agents.add(host)
    answers = fleet.ask(dict.fromkeys('bca', 'default'), 'get_host')
    assert [one.host for one in answers] == ['a', 'b', 'c']
    assert [one.value['host'] for one in answers] == ['a', 'b', 'c']
    assert {one.error for one in answers} == {''}
    assert {one.cell for one in answers} == {'default'}


def test_however_many_are_dead_cost_one_timeout(agents, fleet):
    agents.add('alive')
    fleet.timeout_s = 1.0
    fleet = fleets.Fleet({'default': agents.transport()}, timeout_s=1.0)
    began_s = time.monotonic()
    answers = fleet.ask(
        dict.fromkeys(['alive', *(f'dead{n}' for n in range(100))],
                      'default'), 'get_host')
    assert time.monotonic() - began_s < 5
    assert [one.host for one in answers if one.value] == ['alive']
    assert {one.error for one in answers[1:]} == {'no answer within 1 s'}


def test_what_an_agent_refuses_is_told(agents, fleet):
    agents.add('a')
    (answer,) = fleet.ask({'a': 'default'}, 'get_server',
                          server_uuid=fakes.UUID)
    assert answer.value is None
    assert answer.error == f'server {fakes.UUID} does not run on a'


def test_nobody_is_asked_where_there_is_nobody(fleet):
    assert fleet.ask({}, 'get_host') == []


def test_a_cell_that_is_unknown_is_refused(fleet):
    with pytest.raises(errors.ManageError, match="no cell 'x'"):
        fleet.ask({'a': 'x'}, 'get_host')
