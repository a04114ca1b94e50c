# SPDX-License-Identifier: Apache-2.0
"""A bus or host that hangs costs guests of others nothing."""

import logging
import threading
import time

import oslo_messaging
import pytest

from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import server_report
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits
from nova_vqos.vendordata import agents
from nova_vqos.vendordata import failures
from nova_vqos.vendordata import figures

TIMEOUT_S = waits.LIMIT_S
# For what hangs.
SHORT_TIMEOUT_S = 0.2
SERVER = server_report.ServerDetail(server_uuid=fakes.UUID, entitled_cu=60)
UNDELIVERABLE = oslo_messaging.MessageUndeliverable(None, None, None, None)


class Cell:
    """The agents of a cell.

    :ivar hosts: of each host that answers: True, or an error
    :ivar hangs: whether its bus does, until :meth:`release`
    :ivar asked: hosts, in order
    :ivar released: how many questions ended that hung
    """

    def __init__(self, hangs=False, **hosts):
        self.hosts = hosts
        self.hangs = hangs
        self.asked = []
        self.released = 0
        self._released = threading.Event()

    def release(self):
        self._released.set()

    def call(self, host, method, *, timeout, at_least_once, server_uuid):
        assert (method, at_least_once) == (rpcapi.GET_SERVER, True)
        assert timeout in (TIMEOUT_S, SHORT_TIMEOUT_S)
        assert server_uuid == fakes.UUID
        self.asked.append(host)
        found = self.hosts.get(host, UNDELIVERABLE)
        if self.hangs or found == 'hangs':
            self._released.wait(waits.LIMIT_S)
            self.released += 1
        if isinstance(found, Exception):
            raise found
        return SERVER


@pytest.fixture
def make(clock):
    """Makes agents of cells; those that hang end after the test."""
    made = []

    def of_cells(**cells):
        made.extend(cells.values())
        return agents.Agents(
            cells, TIMEOUT_S, failures.Failures(), agents.Limits(
                at_once=4, of_host_at_once=2, silent_s=10.0), clock)
    yield of_cells
    for cell in made:
        cell.release()


def ask(asked, host='one', cell=''):
    return asked.ask(host, cell, fakes.UUID)


class TestCells:
    def test_the_one_that_answers_is_known_then(self, make):
        first, second = Cell(), Cell(one=True)
        asked = make(first=first, second=second)
        assert ask(asked) == ('second', SERVER, None)
        assert ask(asked, cell='second').server == SERVER
        assert (len(first.asked), len(second.asked)) == (1, 2)

    def test_a_bus_that_hangs_holds_up_no_other(self, make):
        first = Cell(hangs=True)
        asked = make(first=first, second=Cell(one=True))
        for _ in range(20):
            assert ask(asked).server == SERVER
        assert first.released == 0

    def test_nor_is_it_asked_for_ever(self, make, clock):
        first = Cell(hangs=True)
        asked = make(first=first, second=Cell(one=True))
        asked._timeout_s = SHORT_TIMEOUT_S
        threads = threading.active_count()
        for _ in range(20):
            ask(asked, 'two')
            clock.now_s += 11
        asked._timeout_s = TIMEOUT_S
        assert len(first.asked) == 4
        assert threading.active_count() - threads <= 4
        # That it does is known.
        assert ask(asked, cell='first').problem == 'host_silent'
        assert len(first.asked) == 4

    def test_errors_of_one_cell_are_none_of_another(self, make):
        asked = make(first=Cell(one=OSError()), second=Cell(one=True))
        assert ask(asked).server == SERVER

    def test_a_server_that_does_not_run(self, make):
        asked = make(first=Cell(),
                     second=Cell(one=rpcapi.UnknownServer()))
        assert ask(asked).problem == figures.Problem.NOT_RUNNING


class TestSilentHosts:
    def test_one_is_left_alone_for_a_while(self, make, clock):
        cell = Cell(one='hangs', two=True)
        asked = make(default=cell)
        asked._timeout_s = SHORT_TIMEOUT_S
        for _ in range(3):
            assert ask(asked).problem == figures.Problem.HOST_SILENT
        asked._timeout_s = TIMEOUT_S
        assert cell.asked == ['one']
        assert ask(asked, 'two').server == SERVER
        clock.now_s += 10
        cell.hosts['one'] = True
        assert ask(asked).server == SERVER

    def test_its_guests_take_few_places(self, make):
        cell = Cell(one='hangs', two=True)
        asked = make(default=cell)
        threads = [threading.Thread(target=ask, args=(asked,))
                   for _ in range(2)]
        for thread in threads:
            thread.start()
        while len(cell.asked) < 2:
            time.sleep(0.001)
        assert ask(asked).problem == figures.Problem.BUSY
        assert ask(asked, 'two').server == SERVER
        cell.release()
        for thread in threads:
            thread.join(waits.LIMIT_S)
        cell.hosts['one'] = True
        assert ask(asked).problem != figures.Problem.BUSY

    @pytest.mark.parametrize('error', [
        oslo_messaging.MessagingTimeout(), OSError('bus'),
        ValueError('an answer that cannot be read'), UNDELIVERABLE])
    def test_an_agent_that_does_not_answer(self, make, error):
        found = ask(make(default=Cell(one=error)))
        assert found == ('', None, figures.Problem.HOST_SILENT)


class TestLog:
    @pytest.mark.parametrize('errors, said', [
        # With the ID of the message, as oslo.messaging has it.
        ([oslo_messaging.MessagingTimeout(f'for message ID {number}')
          for number in range(3)], f'no answer within {TIMEOUT_S:g} s'),
        ([UNDELIVERABLE] * 3, fanout.NO_AGENT)])
    def test_a_failure_is_logged_once_and_its_end_too(
            self, make, clock, caplog, errors, said):
        caplog.set_level(logging.INFO)
        cell = Cell()
        asked = make(default=cell)
        for error in errors:
            cell.hosts['one'] = error
            ask(asked)
            clock.now_s += 11
        assert [one.levelname for one in caplog.records] == ['WARNING']
        text = caplog.records[0].getMessage()
        assert 'the agent of one' in text
        assert said in text
        cell.hosts['one'] = True
        ask(asked)
        ask(asked)
        assert [one.levelname for one in caplog.records] == [
            'WARNING', 'INFO']
