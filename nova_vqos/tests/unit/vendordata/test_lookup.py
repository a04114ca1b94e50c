# SPDX-License-Identifier: Apache-2.0
"""Where a server is, and what is asked when that changes or fails."""

import json
import logging

from keystoneauth1 import exceptions
import oslo_messaging
import pytest
import requests

from nova_vqos.agent import messages
from nova_vqos.agent import rpcapi
from nova_vqos.tests.fixtures import fakes
from nova_vqos.vendordata import figures
from nova_vqos.vendordata import lookup

SERVER = messages.ServerDetail(server_uuid=fakes.UUID, entitled_cu=60)


class Agents:
    """The agents of a cell.

    :ivar servers: of each host that answers: True, or an error
    :ivar asked: hosts, in order
    """

    def __init__(self, **servers):
        self.servers = servers
        self.asked = []

    def call(self, host, method, *, timeout, at_least_once, server_uuid):
        assert (method, at_least_once) == (rpcapi.GET_SERVER, True)
        self.asked.append(host)
        found = self.servers.get(host)
        if found is True:
            return SERVER
        raise found or oslo_messaging.MessageUndeliverable(None, None, None,
                                                           None)


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


def make(nova, *cells):
    return lookup.Lookup(nova.place, cells, 1.0)


def problem(found):
    return found.figures.problem


class TestLookup:
    def test_nova_is_asked_once(self):
        nova, agents = Nova('one'), Agents(one=True)
        look_up = make(nova, agents)
        for _ in range(3):
            found = look_up(fakes.UUID)
            assert found.project_id == 'p'
            assert found.figures.promised_cu == 60
        assert (nova.asked, agents.asked) == (1, ['one'] * 3)

    def test_one_that_moved_is_found_at_once(self):
        nova, agents = Nova('one'), Agents(one=True, two=True)
        look_up = make(nova, agents)
        look_up(fakes.UUID)
        agents.servers['one'] = rpcapi.UnknownServer()
        nova.host = 'two'
        assert look_up(fakes.UUID).figures.available
        assert agents.asked == ['one', 'one', 'two']

    def test_one_whose_host_died_is_found_the_next_time(self):
        """Within one deadline there is no time for two silent hosts."""
        nova, agents = Nova('one'), Agents(one=True, two=True)
        look_up = make(nova, agents)
        look_up(fakes.UUID)
        agents.servers['one'] = oslo_messaging.MessagingTimeout()
        nova.host = 'two'
        assert problem(look_up(fakes.UUID)) == figures.Problem.HOST_SILENT
        assert look_up(fakes.UUID).figures.available

    @pytest.mark.parametrize('error', [
        oslo_messaging.MessagingTimeout(), OSError('bus'),
        ValueError('an answer that cannot be read'), None])
    def test_an_agent_that_does_not_answer(self, error):
        found = make(Nova('one'), Agents(one=error))(fakes.UUID)
        assert problem(found) == figures.Problem.HOST_SILENT
        assert found.project_id == 'p'

    def test_all_cells_are_asked_until_one_answers(self):
        cells = [Agents(), Agents(one=OSError()), Agents(one=True),
                 Agents(one=True)]
        assert make(Nova('one'), *cells)(fakes.UUID).figures.available
        assert [cell.asked for cell in cells] == [['one']] * 3 + [[]]

    def test_one_that_does_not_run(self):
        for nova, agents in ((Nova(''), Agents()),
                             (Nova('one'),
                              Agents(one=rpcapi.UnknownServer()))):
            assert problem(make(nova, agents)(fakes.UUID)) == (
                figures.Problem.NOT_RUNNING)

    def test_one_that_there_is_not(self):
        assert make(Nova(None), Agents())(fakes.UUID) is None

    def test_a_nova_that_does_not_answer(self):
        found = make(Nova(lookup.NovaError('x')), Agents())(fakes.UUID)
        assert problem(found) == figures.Problem.NOVA_SILENT
        assert found.project_id == ''

    def test_a_failure_is_logged_once_and_its_end_too(self, caplog):
        caplog.set_level(logging.INFO)
        nova, agents = Nova('one'), Agents()
        look_up = make(nova, agents)
        look_up(fakes.UUID)
        look_up(fakes.UUID)
        assert [one.levelname for one in caplog.records] == ['WARNING']
        assert 'one' in caplog.records[0].getMessage()
        agents.servers['one'] = True
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
                    'p', host or '')

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
        with pytest.raises(lookup.NovaError, match='ConnectFailure'):
            lookup.NovaServers(Down()).place(fakes.UUID)
