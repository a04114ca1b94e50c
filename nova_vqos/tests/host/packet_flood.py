# SPDX-License-Identifier: Apache-2.0
"""Floods one pCPU with packets, in a network namespace of its own.

Each packet is sent on one pCPU, and received on another one, once for each of
many sockets: that one cannot keep up. Run it in a network and a mount
namespace, as root; it ends by itself::

    unshare --net --mount python -m nova_vqos.tests.host.packet_flood 2 3 10
"""

import os
import pathlib
import socket
import subprocess
import sys
import time

SOCKETS = 50
_GROUP = '239.1.1.1'
_PORT = 5000
_LOOPBACK = socket.inet_aton('127.0.0.1')
_BATCH = 100


def main():
    sender, receiver, length_s = map(int, sys.argv[1:])
    subprocess.run(['ip', 'link', 'set', 'lo', 'up', 'multicast', 'on'],
                   check=True)
    # That of this network.
    subprocess.run(['mount', '-t', 'sysfs', 'sysfs', '/sys'], check=True)
    pathlib.Path('/sys/class/net/lo/queues/rx-0/rps_cpus').write_text(
        f'{1 << receiver:x}')
    receivers = [make_receiver() for _ in range(SOCKETS)]
    os.sched_setaffinity(0, {sender})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF,
                           _LOOPBACK)
        print('sending', flush=True)
        ends_s = time.monotonic() + length_s
        while time.monotonic() < ends_s:
            for _ in range(_BATCH):
                sending.sendto(b'x', (_GROUP, _PORT))
    for one in receivers:
        one.close()


def make_receiver():
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # It is full at once: no program reads it.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.bind((_GROUP, _PORT))
    made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
                    socket.inet_aton(_GROUP) + _LOOPBACK)
    return made


if __name__ == '__main__':
    main()
