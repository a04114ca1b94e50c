# SPDX-License-Identifier: Apache-2.0
"""The page of metrics, and who is shown it."""

import gzip
import logging
from wsgiref import util

import pytest

from nova_vqos.metrics import endpoint
from nova_vqos.tests.fixtures import metrics


class Site:
    """An application, and who asks it.

    :ivar now_s: on the page's clock
    """

    def __init__(self, make):
        self.now_s = 0.0
        self._application = endpoint.Application(
            endpoint.Page(make, clock=lambda: self.now_s))

    def ask(self, method='GET', path=endpoint.PATH, encoding=''):
        """:returns: status, headers and body of an answer."""
        environ = {'REQUEST_METHOD': method, 'PATH_INFO': path,
                   'HTTP_ACCEPT_ENCODING': encoding}
        util.setup_testing_defaults(environ)
        started = []
        body = b''.join(self._application(
            environ, lambda *arguments: started.extend(arguments)))
        headers = dict(started[1])
        assert headers['Content-Length'] == str(len(body))
        return int(started[0].split()[0]), headers, body


@pytest.fixture
def agent(tmp_path):
    return metrics.Agent(tmp_path)


@pytest.fixture
def site(agent):
    return Site(agent.page)


def test_the_page(agent, site):
    status, headers, body = site.ask()
    assert status == 200
    assert headers['Content-Type'].startswith('text/plain; version=0.0.4')
    assert metrics.parse(body.decode()) == agent.scrape()


def test_zipped_where_that_is_understood(agent, site):
    _, headers, body = site.ask(encoding='gzip, br')
    assert headers['Content-Encoding'] == 'gzip'
    assert gzip.decompress(body).decode() == agent.text()


@pytest.mark.parametrize(('method', 'path', 'status'), [
    ('GET', '/', 404), ('GET', '/metrics/../etc/passwd', 404),
    ('POST', '/metrics', 405), ('BREW', '/metrics', 405)])
def test_nothing_else(site, method, path, status):
    found, _, body = site.ask(method, path)
    assert (found, body) == (status, b'')


def test_a_flood_has_the_page_made_once_a_second():
    made = []

    def make():
        made.append(True)
        return b''
    site = Site(make)
    for _ in range(100):
        site.ask(encoding='gzip')
        site.ask()
    assert len(made) == 1
    site.now_s = 1.0
    site.ask()
    assert len(made) == 2


def test_a_bug_is_logged_once_and_costs_no_other_page(agent, site, caplog):
    agent.host.pop('connected')
    for _ in range(3):
        assert site.ask()[0] == 500
    assert len([record for record in caplog.records
                if record.levelno == logging.ERROR]) == 1
    agent.host['connected'] = True
    assert site.ask()[0] == 200
