# SPDX-License-Identifier: Apache-2.0
"""What Prometheus scrapes of the agent, over HTTP.

No client can hold up the agent's loop or fill its memory: the page is made at
most once a second, and the server has its limits.
"""

from collections.abc import Callable, Iterable, Sequence
import gzip
import http
import logging
import threading
import time
import typing as ty

from oslo_config import cfg
import prometheus_client

from nova_vqos import wsgi_server
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import server_report
from nova_vqos.metrics import collector
from nova_vqos.metrics import exposition

LOG = logging.getLogger(__name__)

PATH = '/metrics'
# What all versions of Prometheus read.
CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'
_KEEP_S = 1.0
# Level 3 takes a fifth more time, for 1 % fewer bytes.
_GZIP_LEVEL = 1


class Page:
    """The metrics as text, made anew when they are older than a second."""

    def __init__(self, make: Callable[[], bytes],
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        :param make: makes the page
        :param clock: in seconds
        """
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._made_at_s = float('-inf')
        self._plain = b''
        self._zipped: bytes | None = None

    def read(self, *, zipped: bool) -> bytes:
        """The page; callers wait while it is made."""
        with self._lock:
            if self._clock() - self._made_at_s >= _KEEP_S:
                self._plain, self._zipped = self._make(), None
                self._made_at_s = self._clock()
            if not zipped:
                return self._plain
            if self._zipped is None:
                self._zipped = gzip.compress(self._plain, _GZIP_LEVEL)
            return self._zipped


class Application:
    """Answers requests for the page, as WSGI has it."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._fails = False

    def __call__(self, environ: dict[str, ty.Any],
                 start_response: ty.Any) -> Iterable[bytes]:
        """Answer one request."""
        status, headers, body = self._answer(environ)
        start_response(f'{status.value} {status.phrase}', [
            *headers, ('Content-Length', str(len(body)))])
        return [body]

    def _answer(self, environ: dict[str, ty.Any]) -> tuple[
            http.HTTPStatus, list[tuple[str, str]], bytes]:
        if environ['PATH_INFO'] != PATH:
            return http.HTTPStatus.NOT_FOUND, [], b''
        if environ['REQUEST_METHOD'] != 'GET':
            return (http.HTTPStatus.METHOD_NOT_ALLOWED, [('Allow', 'GET')],
                    b'')
        zipped = 'gzip' in environ.get('HTTP_ACCEPT_ENCODING', '')
        try:
            body = self._page.read(zipped=zipped)
            self._fails = False
        except Exception:
            if not self._fails:
                LOG.exception('Rendering metrics failed')
            self._fails = True
            return http.HTTPStatus.INTERNAL_SERVER_ERROR, [], b''
        return (http.HTTPStatus.OK, [
            ('Content-Type', CONTENT_TYPE),
            *([('Content-Encoding', 'gzip')] if zipped else [])], body)


def start_exporter(conf: cfg.ConfigOpts, ask: Callable[
        [], tuple[host_report.LoopReport, Sequence[server_report.Server]]]
        ) -> Callable[[], None]:
    """Begin to export the metrics of an agent.

    :param ask: asks the agent's loop; may block, or raise
    :returns: ends the export
    """
    options = conf.vqos_agent
    asking = collector.SingleFlight(lambda: collector.Snapshot(*ask()))
    agent = collector.AgentCollector(
        asking.ask, conf.host, conf.vqos.verification_path,
        conf.vqos.compute_state_path)
    # A registry of our own: other libraries register with the default.
    process = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=process)

    def make() -> bytes:
        return (exposition.text(agent.samples()).encode()
                + prometheus_client.generate_latest(process))
    endpoint = wsgi_server.Endpoint(
        Application(Page(make)), options.metrics_address,
        options.metrics_port, name='metrics')
    endpoint.start()

    def stop() -> None:
        endpoint.stop()
        asking.close()
    return stop
