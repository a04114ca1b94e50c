# SPDX-License-Identifier: Apache-2.0
"""Load on a guest from a network namespace, within bounds.

Run as a script, by nothing but ionet.py and without the lab's other modules:

    ioload.py http ADDRESS --clients 4 --seconds 60
    ioload.py udp ADDRESS --rate 10000 --size 64 --seconds 60

http: clients, each of which asks for a page as soon as it has had the last
one. udp: packets to a port without a listener. Twice a second it prints
what it did so far: ``{"at_s": TIME, "done": NUMBER, "failed": NUMBER}``, the
time on the monotonic clock, which is that of all namespaces.
"""

import argparse
import json
import os
import socket
import threading
import time

_MOST_CLIENTS = 64
_MOST_PACKETS_S = 100_000
_MOST_SECONDS = 3600
_MOST_BURST = 1000
_REPORT_S = 0.5
_ANSWER_LIMIT_S = 5
_BATCH_S = 0.002
_PRIORITY = -19
# The discard service, which no guest has.
_PORT = 9
# Ethernet, IP and UDP, without which a size is not that of a frame.
_HEADERS = 42


class Counter:
    """Counts what is done, and prints it.

    :ivar stopped: set when it is over
    """

    def __init__(self, seconds):
        self.stopped = threading.Event()
        self._ends_s = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._done = self._failed = 0

    def add(self, done=0, failed=0):
        with self._lock:
            self._done += done
            self._failed += failed

    def report(self):
        """Report until it is over."""
        while not self.stopped.is_set():
            with self._lock:
                print(json.dumps({
                    'at_s': time.monotonic(), 'done': self._done,
                    'failed': self._failed}), flush=True)
            if time.monotonic() > self._ends_s:
                self.stopped.set()
            self.stopped.wait(_REPORT_S)


def ask(address, counter):
    """Be one client of a server of HTTP."""
    request = b'GET /page HTTP/1.0\r\n\r\n'
    while not counter.stopped.is_set():
        try:
            with socket.create_connection((address, 80),
                                          _ANSWER_LIMIT_S) as connection:
                connection.sendall(request)
                answer = b''.join(iter(lambda: connection.recv(65536), b''))
        except OSError:
            counter.add(failed=1)
            # One that refuses is not asked again at once.
            counter.stopped.wait(0.1)
        else:
            good = b' 200 ' in answer[:20]
            counter.add(done=int(good), failed=int(not good))


def flood(address, rate, size, batch_s, counter):
    """Send packets at an even rate; what cannot be sent is not made up.

    :param batch_s: from each time that some are sent at once to the next
    """
    content = bytes(max(0, size - _HEADERS))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        due_s = time.monotonic()
        owed = 0.0
        while not counter.stopped.is_set():
            owed += rate * batch_s
            sent = failed = 0
            for _ in range(int(owed)):
                try:
                    sender.sendto(content, (address, _PORT))
                    sent += 1
                except OSError:
                    # What an earlier packet was answered with; it counts as
                    # one that was not sent.
                    failed += 1
            counter.add(done=sent, failed=failed)
            owed -= int(owed)
            due_s = max(due_s + batch_s, time.monotonic() - batch_s)
            time.sleep(max(0, due_s - time.monotonic()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('kind', choices=('http', 'udp'))
    parser.add_argument('address')
    parser.add_argument('--seconds', type=float, default=60)
    parser.add_argument('--clients', type=int, default=4)
    parser.add_argument('--rate', type=int, default=10_000,
                        help='packets a second')
    parser.add_argument('--size', type=int, default=64,
                        help='of a frame, in bytes')
    parser.add_argument('--burst', type=int,
                        help='packets at once; default: those of 2 ms')
    parser.add_argument('--pcpu', type=int, help='to run on')
    options = parser.parse_args()
    if not 0 < options.clients <= _MOST_CLIENTS:
        parser.error(f'--clients must be 1 to {_MOST_CLIENTS}')
    if not 0 < options.rate <= _MOST_PACKETS_S:
        parser.error(f'--rate must be 1 to {_MOST_PACKETS_S}')
    if not 0 < options.seconds <= _MOST_SECONDS:
        parser.error(f'--seconds must be up to {_MOST_SECONDS}')
    if not _HEADERS <= options.size <= 1514:
        parser.error(f'--size must be {_HEADERS} to 1514')
    if options.burst is not None and not (
            0 < options.burst <= _MOST_BURST):
        parser.error(f'--burst must be 1 to {_MOST_BURST}')
    if options.pcpu is not None:
        os.sched_setaffinity(0, {options.pcpu})
    # Whatever else the machine does is not to be seen in what guests are
    # asked for.
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    counter = Counter(options.seconds)
    if options.kind == 'http':
        workers = [threading.Thread(target=ask,
                                    args=(options.address, counter))
                   for _ in range(options.clients)]
    else:
        workers = [threading.Thread(target=flood, args=(
            options.address, options.rate, options.size,
            options.burst / options.rate if options.burst else _BATCH_S,
            counter))]
    for worker in workers:
        worker.start()
    try:
        counter.report()
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        counter.stopped.set()
    for worker in workers:
        worker.join()


if __name__ == '__main__':
    main()
