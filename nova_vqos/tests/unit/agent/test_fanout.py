# SPDX-License-Identifier: Apache-2.0
"""Many agents asked at once, over oslo.messaging's in-memory transport."""

import threading
import time

import oslo_messaging
import pytest

from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits


@pytest.fixture
def fleet(agents):
    return fanout.Fleet({'default': agents.transport()},
                        timeout_s=waits.LIMIT_S)


def test_all_answer_and_are_sorted(agents, fleet):
    for host in ('b', 'c', 'a'):
        agents.add(host)
    answers = fleet.ask(dict.fromkeys('bca', 'default'), rpcapi.GET_HOST)
    assert [one.host for one in answers] == ['a', 'b', 'c']
    assert [one.value.host for one in answers] == ['a', 'b', 'c']
    assert {one.error for one in answers} == {''}
    assert {one.cell for one in answers} == {'default'}


def test_however_many_are_dead_cost_one_timeout(agents, fleet):
    agents.add('alive')
    # On a busy machine an answer may take a second.
    fleet = fanout.Fleet({'default': agents.transport()}, timeout_s=4.0)
    began_s = time.monotonic()
    answers = fleet.ask(
        dict.fromkeys(['alive', *(f'dead{n}' for n in range(100))],
                      'default'), rpcapi.GET_HOST)
    # One after the other they would take four hundred seconds.
    assert time.monotonic() - began_s < 60
    assert [one.host for one in answers if one.value] == ['alive']
    assert {one.error for one in answers[1:]} == {'no answer within 4 s'}


def test_the_refusal_of_an_agent_is_returned(agents, fleet):
    agents.add('a')
    (answer,) = fleet.ask({'a': 'default'}, rpcapi.GET_SERVER,
                          server_uuid=fakes.UUID)
    assert answer.value is None
    assert answer.error == f'server {fakes.UUID} does not run on a'


def test_no_host_means_no_question(fleet):
    assert fleet.ask({}, rpcapi.GET_HOST) == []


def test_a_cell_that_is_unknown_is_refused(fleet):
    with pytest.raises(fanout.BusError, match="no cell 'x'"):
        fleet.ask({'a': 'x'}, rpcapi.GET_HOST)


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


def test_a_bus_that_hangs_delays_no_caller(agents, monkeypatch):
    """As oslo.messaging does when it goes down before it is listened to."""
    monkeypatch.setattr(fanout, '_GRACE_S', 0.2)
    hanging = threading.Event()
    fleet = fanout.Fleet({'x': Bus(agents.transport(), hanging.wait)},
                         timeout_s=0.2)
    try:
        answers = fleet.ask({'a': 'x', 'b': fanout.ANY_CELL}, rpcapi.GET_HOST)
    finally:
        hanging.set()
    assert [(one.host, one.error) for one in answers] == [
        ('a', 'no answer within 0.2 s'), ('b', 'no answer within 0.2 s')]


class Counting:
    """Counts calls that wait at once; each is a little while under way."""

    def __init__(self, hanging=None):
        self.calls = self.most = self._now = 0
        self._hanging = hanging
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            self.calls += 1
            self._now += 1
            self.most = max(self.most, self._now)
        if self._hanging is None:
            time.sleep(0.02)
        else:
            self._hanging.wait()
        with self._lock:
            self._now -= 1
        return {'reason': ''}


def test_few_are_asked_at_once(agents, monkeypatch):
    monkeypatch.setattr(fanout, 'MOST_AT_ONCE', 3)
    count = Counting()
    fleet = fanout.Fleet({'x': Bus(agents.transport(), count)},
                         timeout_s=waits.LIMIT_S)
    answers = fleet.ask({f'h{n}': 'x' for n in range(20)}, rpcapi.CHECK_SERVER)
    assert [one.error for one in answers] == [''] * 20
    assert (count.calls, count.most) == (20, 3)


def test_no_call_starts_after_the_limit(agents, monkeypatch):
    monkeypatch.setattr(fanout, 'MOST_AT_ONCE', 3)
    monkeypatch.setattr(fanout, '_GRACE_S', 0.2)
    hanging = threading.Event()
    count = Counting(hanging)
    fleet = fanout.Fleet({'x': Bus(agents.transport(), count)}, timeout_s=0.1)
    answers = fleet.ask({f'h{n}': 'x' for n in range(5)}, rpcapi.CHECK_SERVER)
    assert {one.error for one in answers} == {'no answer within 0.1 s'}
    hanging.set()
    waits.wait_until(lambda: not any(
        '(work)' in thread.name for thread in threading.enumerate()))
    assert count.calls == 3


def test_each_host_of_a_dead_bus_has_its_error(agents, fleet):
    def fail():
        raise AssertionError('it was asked')

    class Dead(Bus):
        def _send(self, *_arguments, **_options):
            raise oslo_messaging.MessageDeliveryFailure('no way')

    agents.add('a')
    fleet = fanout.Fleet({'default': agents.transport(),
                          'north': Dead(agents.transport(), fail)},
                         timeout_s=waits.LIMIT_S)
    one, other, third = fleet.ask(
        {'a': fanout.ANY_CELL, 'b': 'north', 'c': 'north'}, rpcapi.GET_HOST)
    assert (one.cell, one.value.host) == ('default', 'a')
    assert other.error == 'the bus of cell north cannot be used: no way'
    assert third.error == other.error


def test_an_answer_is_preferred_to_what_others_say(agents):
    def undeliverable():
        raise oslo_messaging.MessageUndeliverable(None, None, None, None)

    def refuse():
        raise oslo_messaging.RemoteError('AgentError', 'not now', '')

    transport = agents.transport()
    fleet = fanout.Fleet({'first': Bus(transport, undeliverable),
                          'second': Bus(transport, refuse)}, timeout_s=5.0)
    (answer,) = fleet.ask({'a': fanout.ANY_CELL}, rpcapi.GET_HOST)
    assert (answer.cell, answer.error) == ('second', 'not now')
    (answer,) = fleet.ask({'a': 'first'}, rpcapi.GET_HOST)
    assert (answer.cell, answer.error) == ('first', fanout.NO_AGENT)
