# SPDX-License-Identifier: Apache-2.0
"""The HTTP server in the agent that Prometheus scrapes.

No client can hold up the agent's loop or fill its memory: it serves a few
requests at a time, each within a limit, and makes the page at most once a
second.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import gzip
import http
import logging
import socket
import socketserver
import sys
import threading
import time
import typing as ty
from wsgiref import simple_server

from oslo_config import cfg
import prometheus_client

from nova_vqos.agent import messages
from nova_vqos.metrics import collector
from nova_vqos.metrics import exposition

LOG = logging.getLogger(__name__)

PATH = '/metrics'
# What all versions of Prometheus read.
CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'
RETRY_S = 30.0

_MOST_REQUESTS = 8
_LONGEST_REQUEST_S = 15.0
# Who asked so long ago and still reads makes room for others.
_SLOW_REQUEST_S = 2.0
_CUT_OFF_INTERVAL_S = 0.5
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


class Endpoint:
    """Listens from as soon as it can until stopped."""

    def __init__(self, application: Application, address: str,
                 port: int, retry_s: float = RETRY_S) -> None:
        """Prepare; nothing is opened yet.

        :param address: of this host, IPv4 or IPv6
        :param retry_s: time between attempts to listen
        """
        self._application = application
        self._address = address
        self._port = port
        self._retry_s = retry_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._thread = threading.Thread(
            target=self._run, name='metrics', daemon=True)

    def start(self) -> None:
        """Begin in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        with self._lock:
            self._stopping.set()
            server = self._server
        if server is not None:
            server.end_wait()
        self._thread.join()

    def _run(self) -> None:
        failure = ''
        while not self._stopping.is_set():
            try:
                server = _Server(self._address, self._port)
            except OSError as error:
                if str(error) != failure:
                    LOG.error('Cannot listen on %s, port %d, for metrics, '
                              'retrying every %g s: %s', self._address,
                              self._port, self._retry_s, error)
                failure = str(error)
                self._stopping.wait(self._retry_s)
                continue
            self._serve(server)
            return

    def _serve(self, server: '_Server') -> None:
        with server:
            with self._lock:
                if self._stopping.is_set():
                    return
                # From here on stop() has to shut it down.
                self._server = server
            LOG.info('Serving metrics on %s, port %d', self._address,
                     self._port)
            server.set_app(self._application)
            while not self._stopping.is_set():
                server.handle_next()


class _Handler(simple_server.WSGIRequestHandler):
    # For each byte that is waited for.
    timeout = 5.0

    def parse_request(self) -> bool:
        """Read a request, and have the server know that it was made."""
        parsed = super().parse_request()
        if parsed:
            ty.cast(_Server, self.server).record_asked(self.request)
        return parsed

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a scrape is no event."""


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """Serves a few at a time, none of them for long."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: str, port: int) -> None:
        """Listen.

        :raises OSError: when it cannot
        """
        self.address_family = (
            socket.AF_INET6 if ':' in address else socket.AF_INET)
        # Clients in the order in which they came; the second has those that
        # have made their request.
        self._until_s: dict[socket.socket, float] = {}
        self._asked_at_s: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Without looking up the host's name, which may take for ever."""
        socketserver.TCPServer.server_bind(self)
        address, self.server_port = self.server_address[:2]
        self.server_name = str(address)
        self.setup_environ()

    def process_request(self, request: ty.Any, client_address: ty.Any
                        ) -> None:
        """Answer in a thread of its own, or not at all."""
        with self._lock:
            accepted = (len(self._until_s) < _MOST_REQUESTS
                        or self._make_room())
            if accepted:
                self._until_s[request] = (
                    time.monotonic() + _LONGEST_REQUEST_S)
        if accepted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def record_asked(self, request: socket.socket) -> None:
        """Record that a client has made its request."""
        with self._lock:
            if request in self._until_s:
                self._asked_at_s[request] = time.monotonic()

    def _make_room(self) -> bool:
        """Cut off the first client that has asked nothing, or reads slowly.

        Otherwise a few silent clients could keep all others out.

        :returns: whether there was one
        """
        before_s = time.monotonic() - _SLOW_REQUEST_S
        for request in self._until_s:
            if self._asked_at_s.get(request, 0.0) < before_s:
                self._until_s.pop(request)
                self._asked_at_s.pop(request, None)
                _shut_down(request)
                return True
        return False

    def shutdown_request(self, request: ty.Any) -> None:
        """Close a connection, whether it was answered or not."""
        with self._lock:
            self._until_s.pop(request, None)
            self._asked_at_s.pop(request, None)
        super().shutdown_request(request)

    def handle_next(self) -> None:
        """Wait for a request, and have it answered.

        NOTE: not serve_forever(), which wakes up twice a second to see whether
        it was shut down. So does this as long as any client is to be cut off.
        """
        self.timeout = _CUT_OFF_INTERVAL_S if self._until_s else None
        self.handle_request()
        self._cut_off()

    def end_wait(self) -> None:
        """End the wait for a request."""
        # NOTE: select() reports a socket as ready once it is shut down.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _cut_off(self) -> None:
        """Cut off clients that take too long."""
        now_s = time.monotonic()
        with self._lock:
            late = [request for request, until_s in self._until_s.items()
                    if now_s > until_s]
            for request in late:
                _shut_down(request)

    def handle_error(self, request: ty.Any, client_address: ty.Any) -> None:
        """A client that hangs up is no error of ours."""
        LOG.debug('A scrape by %s ended early: %r', client_address,
                  sys.exception())


def _shut_down(request: socket.socket) -> None:
    # The client may have closed it.
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def start_exporter(conf: cfg.ConfigOpts, ask: Callable[
        [], tuple[messages.LoopReport, Sequence[messages.Server]]]
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
    endpoint = Endpoint(Application(Page(make)), options.metrics_address,
                        options.metrics_port)
    endpoint.start()

    def stop() -> None:
        endpoint.stop()
        asking.close()
    return stop
