# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for a WSGI application, in threads.

No client can hold it up or fill its memory: it serves a few requests at a
time, each within a limit.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import logging
import socket
import socketserver
import sys
import threading
import time
import typing as ty
from wsgiref import simple_server

LOG = logging.getLogger(__name__)

RETRY_S = 30.0

_CUT_OFF_INTERVAL_S = 0.5
# Within which the thread of a client that is cut off ends, unless it works.
_END_S = 0.1


class Limits(ty.NamedTuple):
    """What a server does for clients at the most.

    :ivar requests: at once, and so many threads: one counts until it ends,
        also when its client is gone
    :ivar longest_s: of a request, from the connection to its end
    :ivar slow_s: a client that has asked nothing, or asked so long ago and
        still reads, makes room for others
    """

    requests: int = 8
    longest_s: float = 15.0
    slow_s: float = 2.0


_DEFAULT = Limits()


class Endpoint:
    """Listens from as soon as it can until stopped."""

    def __init__(self, application: Callable[..., ty.Any], address: str,
                 port: int, *, name: str, limits: Limits = _DEFAULT,
                 retry_s: float = RETRY_S) -> None:
        """Prepare; nothing is opened yet.

        :param application: as WSGI has it
        :param address: of this host, IPv4 or IPv6
        :param name: what is served, for logs
        :param retry_s: time between attempts to listen
        """
        self._application = application
        self._name = name
        self._limits = limits
        self._address = address
        self._port = port
        self._retry_s = retry_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._thread = threading.Thread(
            target=self._run, name=name, daemon=True)

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
                server = _Server(self._address, self._port, self._limits)
            except OSError as error:
                if str(error) != failure:
                    LOG.error('Cannot listen on %s, port %d, for %s, '
                              'retrying every %g s: %s', self._address,
                              self._port, self._name, self._retry_s, error)
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
            LOG.info('Serving %s on %s, port %d', self._name, self._address,
                     self._port)
            server.set_app(self._application)
            while not self._stopping.is_set():
                server.handle_next()


@dataclasses.dataclass(slots=True)
class _Client:
    """A connection, whose thread runs.

    :ivar until_s: when it is cut off
    :ivar asked_at_s: when it had made its request
    :ivar cut_off: whether it was
    """

    until_s: float
    asked_at_s: float = 0.0
    cut_off: bool = False


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
        """Nothing: a request is no event."""


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """Serves a few at a time, none of them for long."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: str, port: int, limits: Limits) -> None:
        """Listen.

        :raises OSError: when it cannot
        """
        self.address_family = (
            socket.AF_INET6 if ':' in address else socket.AF_INET)
        self._limits = limits
        # In the order in which they came.
        self._clients: dict[socket.socket, _Client] = {}
        self._one_ended = threading.Condition()
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
        with self._one_ended:
            accepted = (len(self._clients) < self._limits.requests
                        or self._make_room())
            if accepted:
                self._clients[request] = _Client(
                    time.monotonic() + self._limits.longest_s)
        if accepted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def record_asked(self, request: socket.socket) -> None:
        """Record that a client has made its request."""
        with self._one_ended:
            self._clients[request].asked_at_s = time.monotonic()

    def _make_room(self) -> bool:
        """Cut off the first client that has asked nothing, or reads slowly.

        Otherwise a few silent clients could keep all others out.

        :returns: whether there is room: not while its thread works on
        """
        before_s = time.monotonic() - self._limits.slow_s
        slow = next((one for one, client in self._clients.items()
                     if not client.cut_off and client.asked_at_s < before_s),
                    None)
        if slow is None:
            return False
        _cut_off(slow, self._clients[slow])
        return self._one_ended.wait_for(
            lambda: slow not in self._clients, _END_S)

    def shutdown_request(self, request: ty.Any) -> None:
        """Close a connection, whether it was answered or not.

        It is the last thing that a thread does.
        """
        super().shutdown_request(request)
        with self._one_ended:
            self._clients.pop(request, None)
            self._one_ended.notify()

    def handle_next(self) -> None:
        """Wait for a request, and have it answered.

        NOTE: not serve_forever(), which wakes up twice a second to see whether
        it was shut down. So does this as long as any client is to be cut off.
        """
        self.timeout = _CUT_OFF_INTERVAL_S if self._clients else None
        self.handle_request()
        self._cut_off_late()

    def end_wait(self) -> None:
        """End the wait for a request."""
        # NOTE: select() reports a socket as ready once it is shut down.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _cut_off_late(self) -> None:
        """Cut off clients that take too long."""
        now_s = time.monotonic()
        with self._one_ended:
            for request, client in self._clients.items():
                if now_s > client.until_s and not client.cut_off:
                    _cut_off(request, client)

    def handle_error(self, request: ty.Any, client_address: ty.Any) -> None:
        """A client that hangs up is no error of ours."""
        LOG.debug('A request by %s ended early: %r', client_address,
                  sys.exception())


def _cut_off(request: socket.socket, client: _Client) -> None:
    client.cut_off = True
    # The client may have closed it.
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
