# SPDX-License-Identifier: Apache-2.0
"""Where metrics are had from: real requests to a real server."""

import contextlib
import gzip
import logging
import socket
import threading
import time
import urllib.request

import pytest

from nova_vqos import wsgi_server
from nova_vqos.agent import service
from nova_vqos.metrics import endpoint
from nova_vqos.tests import functional
from nova_vqos.tests.fixtures import metrics
from nova_vqos.tests.fixtures import ports
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.fixtures import waits
from nova_vqos.tests.unit.agent import test_service

LIMIT_S = 20

# The agent is a program of its own, and has threads.
pytestmark = functional.needs_threads


class Slow:
    """Makes a page once it is released."""

    def __init__(self):
        self.release = threading.Event()
        self.asked = 0

    def __call__(self):
        self.asked += 1
        self.release.wait(LIMIT_S)
        return b''


@pytest.fixture
def agent(tmp_path):
    return metrics.Agent(tmp_path)


@pytest.fixture
def port():
    with ports.kept() as kept:
        yield kept


@pytest.fixture
def serve(port):
    """Starts an endpoint; it is stopped after the test."""
    started = []

    def start(make, port=port, address='127.0.0.1', wait=True, **limits):
        made = wsgi_server.Endpoint(
            endpoint.Application(endpoint.Page(make)), address, port,
            name='metrics', limits=wsgi_server.Limits(**limits),
            retry_s=0.05)
        made.start()
        started.append(made)
        if wait:
            waits.wait_until(lambda: ports.listens(port, address))
        return port
    yield start
    for one in started:
        one.stop()


class TestAnswers:
    def test_the_page(self, agent, serve):
        status, headers, body = fetch(serve(agent.page))
        assert status == 200
        assert headers['Content-Type'].startswith('text/plain; version=0.0.4')
        assert metrics.parse(body.decode()) == agent.scrape()

    def test_zipped_where_that_is_understood(self, agent, serve):
        _, headers, body = fetch(
            serve(agent.page), **{'Accept-Encoding': 'gzip, br'})
        assert headers['Content-Encoding'] == 'gzip'
        assert gzip.decompress(body).decode() == agent.text()

    def test_by_ipv6(self, agent, serve):
        with contextlib.ExitStack() as stack:
            try:
                port = stack.enter_context(ports.kept('::1'))
            except OSError:
                requirement.need('this machine has no IPv6')
            assert ports.listens(serve(agent.page, port, '::1'), '::1')


class TestThoseWhoAsk:
    def test_more_than_a_few_at_once_are_turned_away(self, serve):
        asked = Slow()
        port = serve(asked)
        answers = []

        def ask():
            try:
                answers.append(fetch(port)[0])
            except OSError:
                answers.append(None)
        threads = [threading.Thread(target=ask) for _ in range(40)]
        before = threading.active_count()
        for thread in threads:
            thread.start()
        waits.wait_until(lambda: answers.count(None) >= 24)
        # Ours, that of the answers, and no more than a few.
        assert threading.active_count() - before <= len(threads) + 8
        asked.release.set()
        for thread in threads:
            thread.join(LIMIT_S)
        assert 1 <= answers.count(200) <= 16
        assert fetch(port)[0] == 200

    def test_a_thread_counts_until_it_ends(self, serve):
        """Also that of a client that was cut off."""
        asked = Slow()
        port = serve(asked, requests=4, slow_s=0.0, longest_s=0.2)
        before = threading.active_count()
        for _ in range(12):
            with connected(port) as one:
                one.sendall(b'GET /metrics HTTP/1.0\r\n\r\n')
                # It is cut off, as it has to wait.
                one.settimeout(LIMIT_S)
                assert not read_all(one)
        assert threading.active_count() - before <= 4
        asked.release.set()
        waits.wait_until(lambda: answers(port))

    def test_who_says_nothing_is_cut_off(self, agent, serve):
        port = serve(agent.page, longest_s=0.2)
        silent = [connected(port)
                  for _ in range(8)]
        for one in silent:
            one.sendall(b'GET ')
        for one in silent:
            one.settimeout(LIMIT_S)
            # An end, or a reset: not a wait for ever.
            try:
                assert one.recv(1000)[:5] in (b'', b'HTTP/')
            except ConnectionResetError:
                pass
            one.close()
        waits.wait_until(lambda: answers(port))

    def test_the_silent_keep_nobody_out(self, agent, serve):
        port = serve(agent.page)
        with contextlib.ExitStack() as silent:
            for _ in range(40):
                silent.enter_context(connected(port)).sendall(b'GET ')
                assert fetch(port)[0] == 200

    def test_who_reads_nothing_keeps_nobody_out(self, serve):
        # More than two sockets take at once.
        port = serve(lambda: b'x' * 2**25, slow_s=0.1)
        with contextlib.ExitStack() as deaf:
            for _ in range(8):
                one = deaf.enter_context(connected(port))
                one.sendall(b'GET /metrics HTTP/1.0\r\n\r\n')
                assert one.recv(1)
            waits.wait_until(lambda: answers(port))

    def test_who_hangs_up(self, agent, serve):
        port = serve(agent.page)
        for _ in range(20):
            with connected(port) as one:
                one.sendall(b'GET /metrics HTTP/1.0\r\n\r\n')
        waits.wait_until(lambda: answers(port))

    def test_garbage(self, agent, serve):
        port = serve(agent.page)
        for text in (b'\x00\xff' * 100 + b'\r\n\r\n', b'\r\n\r\n',
                     b'GET /' + b'x' * 70_000 + b' HTTP/1.0\r\n\r\n'):
            with connected(port) as one:
                one.settimeout(LIMIT_S)
                try:
                    one.sendall(text)
                    one.recv(100)
                except ConnectionError:
                    continue
        waits.wait_until(lambda: answers(port))


def connected(port):
    return socket.create_connection(('127.0.0.1', port))


def read_all(connection):
    """What is sent until the end, or a reset."""
    found = b''
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1000):
            found += part
    return found


def fetch(port, **headers):
    """:returns: status, headers and body of an answer; errors are raised."""
    request = urllib.request.Request(
        f'http://127.0.0.1:{port}{endpoint.PATH}', headers=headers)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return answer.status, answer.headers, answer.read()


def answers(port):
    try:
        return fetch(port)[0] == 200
    except OSError:
        return False


class TestPort:
    def test_a_taken_port_is_tried_again(self, agent, serve, port, caplog):
        with socket.create_server(('127.0.0.1', port)):
            serve(agent.page, wait=False)
            waits.wait_until(lambda: caplog.records)
            time.sleep(0.2)
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert str(port) in record.getMessage()
        waits.wait_until(lambda: answers(port))

    def test_an_address_of_another_host(self, agent, serve, caplog):
        serve(agent.page, address='192.0.2.1', wait=False)
        waits.wait_until(lambda: '192.0.2.1' in caplog.text)

    def test_it_ends_at_once_however_early(self, agent, port):
        for _ in range(20):
            made = wsgi_server.Endpoint(endpoint.Application(
                endpoint.Page(agent.page)), '127.0.0.1', port,
                name='metrics')
            made.start()
            made.stop()
            assert not ports.listens(port)


conf = test_service.conf


class TestService:
    @pytest.fixture
    def agent(self, conf, port):
        for name, value in (('metrics_address', '127.0.0.1'),
                            ('metrics_port', port)):
            conf.set_override(name, value, 'vqos_agent')
        started = service.AgentService(conf, endpoint.start_exporter)
        started.start()
        yield started
        started.stop()

    @staticmethod
    def scrape(conf):
        port = conf.vqos_agent.metrics_port
        waits.wait_until(lambda: answers(port))
        return metrics.parse(fetch(port)[2].decode())

    def test_metrics_are_had_until_it_stops(self, conf, agent):
        found = self.scrape(conf)
        assert metrics.values(found, 'nova_vqos_agent_up') == [1]
        assert metrics.values(found, 'process_start_time_seconds')
        agent.stop()
        assert not ports.listens(conf.vqos_agent.metrics_port)

    def test_an_agent_that_is_held_up(self, conf, agent, monkeypatch):
        def hold_up():
            raise TimeoutError
        monkeypatch.setattr(agent._loop, 'host_report', hold_up)
        assert metrics.values(self.scrape(conf), 'nova_vqos_agent_up') == [0]
