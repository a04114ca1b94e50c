# SPDX-License-Identifier: Apache-2.0
"""Other work of a host: processes that spin."""

from collections.abc import Callable, Iterator
import contextlib
import signal
import sys
import time

from nova_vqos_lab import host as hosts

# Until all of them run evenly.
_SETTLE_S = 2.0
# Waits for a signal before and after it is started.
_SPINNER = ('import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\n'
            'while True: pass')


@contextlib.contextmanager
def spinners(host: hosts.Host, count: int) -> Iterator[
        Callable[[], contextlib.AbstractContextManager[None]]]:
    """Start processes that can spin.

    Before the host is sold out: after that it would take long.

    :returns: what makes a context in which they spin
    """
    started = [host.popen([sys.executable, '-c', _SPINNER], log='noise')
               for _ in range(count)]

    @contextlib.contextmanager
    def running() -> Iterator[None]:
        for one in started:
            one.signal(signal.SIGCONT)
        try:
            time.sleep(_SETTLE_S)
            yield
        finally:
            for one in started:
                one.signal(signal.SIGSTOP)
    try:
        yield running
    finally:
        for one in started:
            one.kill()
