# SPDX-License-Identifier: Apache-2.0
"""Requests to a server, sent at times that do not depend on its answers.

A client that waited for each answer would send less just while the server is
slow, and not see it. The wait of a request begins when the request is due.
"""

from collections.abc import Sequence
import contextlib
import math
import random
import select
import socket
import struct
import time

#: On average; apart by exponential times, as of many clients.
PER_SECOND = 200.0

# A client that waited longer has gone.
_PATIENCE_NS = 2_000_000_000
_MESSAGE = struct.Struct('=Q')
_SECOND_NS = 1_000_000_000

_random = random.SystemRandom()


class Client:
    """Sends requests to one server.

    :ivar server: the socket that the server reads them from
    """

    def __init__(self, per_second: float = PER_SECOND) -> None:
        """
        :param per_second: requests, on average
        """
        # NOTE: not SOCK_DGRAM: a server that has not read ten of them (sysctl
        # net.unix.max_dgram_qlen) would be sent no more, however slow it is.
        self._own, self.server = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._per_second = per_second
        self._own.setblocking(False)
        self._number = 0

    @property
    def sent(self) -> int:
        """Requests so far."""
        return self._number

    def greet(self) -> None:
        """Send one request for nothing, so that the server does something."""
        self._number += 1
        self._own.send(_MESSAGE.pack(self._number))

    def close(self) -> None:
        self._own.close()
        self.server.close()

    def ask(self, settle_s: float, window_s: float) -> list[int]:
        """Send requests for a while.

        :param settle_s: first, for nothing
        :param window_s: after that
        :returns: how long each of the latter waited for its answer, in ns;
            those that got none, until now
        """
        start_ns = time.monotonic_ns()
        counts_ns = start_ns + round(settle_s * _SECOND_NS)
        end_ns = counts_ns + round(window_s * _SECOND_NS)
        due_ns = start_ns
        waiting: dict[int, int] = {}
        found: list[int] = []
        while True:
            due_ns = self._send(due_ns, end_ns, waiting)
            now_ns = time.monotonic_ns()
            if now_ns >= end_ns and (
                    not waiting or now_ns >= end_ns + _PATIENCE_NS):
                break
            until_ns = due_ns if due_ns < end_ns else (
                end_ns + _PATIENCE_NS if waiting else end_ns)
            select.select([self._own], [], [],
                          max(0, until_ns - now_ns) / _SECOND_NS)
            for number in self._answers():
                since_ns = waiting.pop(number, None)
                if since_ns is not None and since_ns >= counts_ns:
                    found.append(time.monotonic_ns() - since_ns)
        now_ns = time.monotonic_ns()
        return found + [now_ns - since_ns for since_ns in waiting.values()
                        if since_ns >= counts_ns]

    def _send(self, due_ns: int, end_ns: int,
              waiting: dict[int, int]) -> int:
        """Send all requests that are due.

        :returns: when the next one is due
        """
        while due_ns <= time.monotonic_ns() and due_ns < end_ns:
            self._number += 1
            waiting[self._number] = due_ns
            # One that a server has no room for waits for ever.
            with contextlib.suppress(BlockingIOError):
                self._own.send(_MESSAGE.pack(self._number))
            due_ns += round(_random.expovariate(self._per_second) * _SECOND_NS)
        return due_ns

    def _answers(self) -> list[int]:
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                (number,) = _MESSAGE.unpack(self._own.recv(_MESSAGE.size))
                found.append(number)
        return found


def percentile(found: Sequence[float], share: float) -> float:
    """The least of some numbers that so many of them do not exceed.

    :param found: one or more
    """
    return sorted(found)[max(0, math.ceil(share * len(found)) - 1)]
