# SPDX-License-Identifier: Apache-2.0
"""The helper's end of the socket: it answers the agent."""

from collections.abc import Callable
from concurrent import futures
import logging
import socket
import threading
import typing as ty

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import session as libvirt_session
from nova_vqos.hypervisor.libvirt import writer
from nova_vqos.hypervisor.libvirt.helper import protocol

LOG = logging.getLogger(__name__)

# A domain that is held occupies one for half a minute.
_THREADS = 16
# The agent sends its request as soon as it has connected.
_REQUEST_TIMEOUT_S = 5.0


class HelperServer:
    """Does what requests ask for, and connects to libvirt when it has to."""

    def __init__(self, session: libvirt_session.Session,
                 target: writer.Writer) -> None:
        """
        :param session: the connection that the target writes by
        :param target: does the work
        """
        self._session = session
        self._target = target
        self._lock = threading.Lock()

    def serve(self, listening: socket.socket) -> None:
        """Answer all requests that come, for ever.

        :raises OSError: when the socket accepts no more connections
        """
        with futures.ThreadPoolExecutor(_THREADS, 'helper') as threads:
            while True:
                threads.submit(self._serve_one, listening.accept()[0])

    def _serve_one(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_REQUEST_TIMEOUT_S)
                message = connection.recv(protocol.MOST_BYTES)
                connection.send(protocol.encode(self.answer(message)))
            except OSError as error:
                LOG.debug('A request is lost: %s', error)

    def answer(self, message: bytes) -> protocol.Fields:
        """Do what a request asks for.

        :returns: the answer; never raises
        """
        try:
            request = protocol.decode(message)
            return {'result': self._connected(
                lambda: protocol.execute(request, self._target))}
        except protocol.RequestError as error:
            LOG.warning('Refused a request that the agent never sends: %s',
                        error)
            return protocol.encode_error(error)
        except base.HypervisorError as error:
            return protocol.encode_error(error)
        except Exception as error:
            LOG.exception('A request failed')
            return protocol.encode_error(error)

    def _connected(self, work: Callable[[], ty.Any]) -> ty.Any:
        """Do something, after connecting anew where libvirt was lost."""
        tried = self._session.connection
        if tried is not None:
            try:
                return work()
            except base.Unavailable as error:
                LOG.warning('Connection to libvirt lost: %s', error)
        with self._lock:
            # Another thread may have been faster.
            if self._session.connection is tried:
                self._session.open({}, _ignore)
        return work()


def _ignore(_reason: int) -> None:
    """The next request finds out that libvirt was lost."""
