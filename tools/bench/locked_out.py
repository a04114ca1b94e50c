#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether stock Nova locks itself out of libvirt when libvirtd ends.

Starts a libvirtd on a host of the lab, and kills and starts it again and
again, while a thread does what nova-compute does each time it needs libvirt:
it asks nova.virt.libvirt.host.Host for its connection. Prints for each kind
of lock after how many kills the thread went on no more, and its stack then.
It needs root. Exits 1 unless the mended Nova, the last one, outlives all.
"""

import argparse
import logging
import os
import sys
import threading
import time
import traceback
import typing

import lab_host

os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = '1'

from nova.virt.libvirt import host as nova_host

from nova import config
from nova import exception

# libvirtd is back within a second.
LIMIT_S = 10
# What Nova's functions are in, as tracebacks show it.
NOVA = os.path.dirname(nova_host.__file__)


class Client:
    """Asks Nova for its connection, again and again."""

    def __init__(self, uri: str, lock: typing.Any) -> None:
        """:param lock: of the connection; None: Nova's own"""
        self._host = nova_host.Host(uri)
        if lock is not None:
            self._host._wrapped_conn_lock = lock
        self._host.initialize()
        self._answers = 0
        self._over = False
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._over:
            try:
                self._host.get_connection()
                self._answers += 1
            except exception.HypervisorUnavailable:
                time.sleep(0.01)

    def goes_on(self) -> bool:
        """:returns: whether it is given a connection within the limit"""
        before = self._answers
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if self._answers > before + 1:
                return True
            time.sleep(0.01)
        return False

    def stack(self) -> list[str]:
        """:returns: where it is, Nova's functions only"""
        frame = sys._current_frames()[self._thread.ident]
        return [f'{os.path.basename(one.filename)}:{one.lineno} {one.name}'
                for one in traceback.extract_stack(frame)
                if one.filename.startswith(NOVA)]

    def stop(self) -> None:
        """Ask no more."""
        self._over = True


def kills_outlived(bench: lab_host.BenchHost, name: str, lock: typing.Any,
                   most: int) -> int:
    """Kill libvirtd until Nova does not go on, and print what happened.

    :param most: how often at most
    """
    client = Client(bench.host.libvirt_uri, lock)
    if not client.goes_on():
        raise SystemExit(f'no connection within {LIMIT_S} s')
    for killed in range(most):
        bench.host.libvirtd.kill()
        bench.host.start_libvirtd()
        if not client.goes_on():
            print(f'{name:15} goes on no more after kill {killed + 1}; '
                  'its thread, innermost last:')
            for line in client.stack():
                print(f'    {line}')
            return killed
    client.stop()
    print(f'{name:15} goes on after {most} kills')
    return most


def main() -> int:
    """Print whether stock Nova goes on, and a mended one."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
    parser.add_argument('--kills', type=int, default=20,
                        help='of libvirtd for each (default %(default)s)')
    options = parser.parse_args()
    lab_host.prepare()
    # Nova notifies when it loses libvirt; by default nobody receives that.
    config.parse_args(['nova'], default_config_files=[], configure_db=False)
    # Each refused connection, with its traceback.
    logging.disable()
    with lab_host.started() as bench:
        kills_outlived(bench, 'stock', None, options.kills)
        outlived = kills_outlived(bench, 'reentrant lock', threading.RLock(),
                                  options.kills)
    return 0 if outlived == options.kills else 1


if __name__ == '__main__':
    status = main()
    sys.stdout.flush()
    # Without the threads of Nova's: they would be waited for.
    os._exit(status)
