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

import threading
import time

import oslo_messaging
import pytest

from nova_vqos.manage import errors
from nova_vqos.manage import fleet as fleets
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import manage_world


@pytest.fixture
def agents(tmp_path):
    with manage_world.Agents(tmp_path) as world:
        yield world


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
    fleet = fleets.Fleet({'default': agents.transport()}, timeout_s=1.0)
    began_s = time.monotonic()
    answers = fleet.ask(
        dict.fromkeys(['alive', *(f'dead{n}' for n in range(100))],
                      'default'), 'get_host')
    # One after the other they would take a hundred seconds.
    assert time.monotonic() - began_s < 30
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


class Bus:
    """A transport whose calls do something else; casts do nothing."""

    def __init__(self, transport, work):
        self.conf = transport.conf
        self._work = work

    def _require_driver_features(self, **_features):
        pass

    def _send(self, *_arguments, wait_for_reply=None, retry=None, **_others):
        # None would try for ever.
        assert retry == 0
        return self._work() if wait_for_reply else None


def test_a_bus_that_hangs_holds_nobody_up(agents, monkeypatch):
    """As oslo.messaging does when it goes down before it is listened to."""
    monkeypatch.setattr(fleets, '_GRACE_S', 0.2)
    hanging = threading.Event()
    fleet = fleets.Fleet({'x': Bus(agents.transport(), hanging.wait)},
                         timeout_s=0.2)
    try:
        answers = fleet.ask({'a': 'x', 'b': fleets.ANY_CELL}, 'get_host')
    finally:
        hanging.set()
    assert [(one.host, one.error) for one in answers] == [
        ('a', 'no answer within 0.2 s'), ('b', 'no answer within 0.2 s')]


def test_a_bus_that_is_down_is_told_of_its_hosts(agents, fleet):
    def fail():
        raise AssertionError('it was asked')

    class Dead(Bus):
        def _send(self, *_arguments, **_options):
            raise oslo_messaging.MessageDeliveryFailure('no way')

    agents.add('a')
    fleet = fleets.Fleet({'default': agents.transport(),
                          'north': Dead(agents.transport(), fail)},
                         timeout_s=5.0)
    one, other, third = fleet.ask(
        {'a': fleets.ANY_CELL, 'b': 'north', 'c': 'north'}, 'get_host')
    assert (one.cell, one.value['host']) == ('default', 'a')
    assert other.error == 'the bus of cell north cannot be used: no way'
    assert third.error == other.error


def test_an_answer_is_preferred_to_what_others_say(agents):
    def undeliverable():
        raise oslo_messaging.MessageUndeliverable(None, None, None, None)

    def refuse():
        raise oslo_messaging.RemoteError('AgentError', 'not now', '')

    transport = agents.transport()
    fleet = fleets.Fleet({'first': Bus(transport, undeliverable),
                          'second': Bus(transport, refuse)}, timeout_s=5.0)
    (answer,) = fleet.ask({'a': fleets.ANY_CELL}, 'get_host')
    assert (answer.cell, answer.error) == ('second', 'not now')
    (answer,) = fleet.ask({'a': 'first'}, 'get_host')
    assert (answer.cell, answer.error) == ('first', fleets.NO_AGENT)
