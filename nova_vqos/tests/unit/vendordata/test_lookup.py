# SPDX-License-Identifier: Apache-2.0
"""Where a server is, and what is asked when that changes or fails."""

from concurrent import futures
import json
import logging
import threading

from keystoneauth1 import exceptions
import pytest
import requests

from nova_vqos.agent.messages import server_report
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits
from nova_vqos.vendordata import agents
from nova_vqos.vendordata import failures
from nova_vqos.vendordata import figures
from nova_vqos.vendordata import lookup


class Agents:
    """Those who ask agents.

    :ivar answers: by host
    :ivar asked: hosts and cells, in order
    """

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def ask(self, host, cell, server_uuid):
        assert server_uuid == fakes.UUID
        self.asked.append((host, cell))
        return self.answers[host]


FOUND = agents.Answer('cell1', server_report.ServerDetail(
    server_uuid=fakes.UUID, entitled_cu=60))
SILENT, NOT_RUNNING, BUSY = (agents.Answer('', None, problem) for problem in (
    figures.Problem.HOST_SILENT, figures.Problem.NOT_RUNNING,
    figures.Problem.BUSY))


class Nova:
    """:ivar host: of the server; None: there is none; an error is raised"""

    def __init__(self, host):
        self.host = host
        self.asked = 0

    def place(self, server_uuid):
        assert server_uuid == fakes.UUID
        self.asked += 1
        if isinstance(self.host, Exception):
            raise self.host
        return None if self.host is None else lookup.Place('p', self.host)


def make(nova, asked):
    return lookup.Lookup(nova.place, asked.ask, failures.Failures(),
                         nova_at_once=2)


def problem(found):
    return found.figures.problem


class TestLookup:
    def test_nova_is_asked_once(self):
        """And the cell is known then."""
        nova, asked = Nova('one'), Agents(one=FOUND)
        look_up = make(nova, asked)
        for _ in range(3):
            found = look_up(fakes.UUID)
            assert found.project_id == 'p'
            assert found.figures.promised_cu == 60
        assert nova.asked == 1
        assert asked.asked == [('one', ''), *[('one', 'cell1')] * 2]

    def test_a_silent_nova_holds_up_no_server_whose_host_is_known(self):
        hangs = threading.Event()

        def place(server_uuid):
            if server_uuid == fakes.UUID:
                return lookup.Place('p', 'one')
            assert hangs.wait(waits.LIMIT_S)
            return None

        look_up = lookup.Lookup(
            place, Agents(one=FOUND).ask, failures.Failures(), nova_at_once=2)
        look_up(fakes.UUID)
        with futures.ThreadPoolExecutor() as pool:
            try:
                waiting = [pool.submit(look_up, uuid)
                           for uuid in ('a', 'b', 'c')]
                # One of three, whichever came last.
                done, _ = futures.wait(
                    waiting, waits.LIMIT_S, futures.FIRST_COMPLETED)
                assert [problem(one.result()) for one in done] == [
                    figures.Problem.BUSY]
                assert look_up(fakes.UUID).figures.available
            finally:
                hangs.set()

    def test_one_that_moved_is_found_at_once(self):
        nova, asked = Nova('one'), Agents(one=FOUND, two=FOUND)
        look_up = make(nova, asked)
        look_up(fakes.UUID)
        asked.answers['one'] = NOT_RUNNING
        nova.host = 'two'
        assert look_up(fakes.UUID).figures.available
        # It may be in another cell.
        assert asked.asked == [('one', ''), ('one', 'cell1'), ('two', '')]

    def test_one_whose_host_died_is_found_the_next_time(self):
        """Within one deadline there is no time for two silent hosts."""
        nova, asked = Nova('one'), Agents(one=FOUND, two=FOUND)
        look_up = make(nova, asked)
        look_up(fakes.UUID)
        asked.answers['one'] = SILENT
        nova.host = 'two'
        assert problem(look_up(fakes.UUID)) == figures.Problem.HOST_SILENT
        assert look_up(fakes.UUID).figures.available

    def test_one_whose_host_is_busy_is_still_there(self):
        nova, asked = Nova('one'), Agents(one=FOUND)
        look_up = make(nova, asked)
        look_up(fakes.UUID)
        asked.answers['one'] = BUSY
        assert problem(look_up(fakes.UUID)) == figures.Problem.BUSY
        asked.answers['one'] = FOUND
        assert look_up(fakes.UUID).figures.available
        assert nova.asked == 1

    def test_an_agent_that_does_not_answer(self):
        found = make(Nova('one'), Agents(one=SILENT))(fakes.UUID)
        assert problem(found) == figures.Problem.HOST_SILENT
        assert found.project_id == 'p'

    def test_one_that_does_not_run(self):
        for nova, asked in ((Nova(''), Agents()),
                             (Nova('one'), Agents(one=NOT_RUNNING))):
            assert problem(make(nova, asked)(fakes.UUID)) == (
                figures.Problem.NOT_RUNNING)

    def test_one_that_there_is_not(self):
        assert make(Nova(None), Agents())(fakes.UUID) is None

    def test_a_nova_that_does_not_answer(self):
        found = make(Nova(lookup.NovaError('x')), Agents())(fakes.UUID)
        assert problem(found) == figures.Problem.NOVA_SILENT
        assert found.project_id == ''

    def test_that_is_logged_once_and_its_end_too(self, caplog):
        caplog.set_level(logging.INFO)
        nova = Nova('one')
        look_up = make(nova, Agents(one=FOUND))
        for number in range(3):
            # As keystoneauth has it, with the UUID of the server.
            nova.host = lookup.NovaError('ConnectFailure', f'of {number}')
            look_up(fakes.UUID)
        assert [one.levelname for one in caplog.records] == ['WARNING']
        assert 'of 0' in caplog.records[0].getMessage()
        nova.host = 'one'
        look_up(fakes.UUID)
        look_up(fakes.UUID)
        assert [one.levelname for one in caplog.records] == [
            'WARNING', 'INFO']


class Adapter:
    """Nova's API; an error is raised."""

    def __init__(self, status, body):
        self.answer = requests.Response()
        self.answer.status_code = status
        self.answer._content = (
            body if isinstance(body, bytes) else json.dumps(body).encode())

    def get(self, path, *, raise_exc):
        assert (path, raise_exc) == (f'/servers/{fakes.UUID}', False)
        return self.answer


def place(status=200, body=b''):
    return lookup.NovaServers(Adapter(status, body)).place(fakes.UUID)


class TestNovaServers:
    def test_a_place(self):
        for host in ('one', None):
            assert place(body={'server': {
                'tenant_id': 'p', 'OS-EXT-SRV-ATTR:host': host}}) == (
                    'p', host or '', '')

    def test_no_server(self):
        assert place(404) is None

    @pytest.mark.parametrize('status, body', [
        (503, b''), (401, b''), (200, b'<html>'), (200, []),
        (200, {}), (200, {'server': {'OS-EXT-SRV-ATTR:host': 'one'}})])
    def test_anything_else_is_no_answer(self, status, body):
        with pytest.raises(lookup.NovaError):
            place(status, body)

    def test_a_user_who_may_not_see_hosts(self):
        with pytest.raises(lookup.NovaError, match='admin'):
            place(body={'server': {'tenant_id': 'p'}})

    def test_a_nova_out_of_reach(self):
        class Down:
            def get(self, *_arguments, **_options):
                raise exceptions.ConnectFailure('down')
        with pytest.raises(lookup.NovaError, match='ConnectFailure') as error:
            lookup.NovaServers(Down()).place(fakes.UUID)
        assert error.value.kind == 'ConnectFailure'
