#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether a tap's coalescing changes what packets of a guest with vhost cost.

libvirt's ``<coalesce><rx><frames max='64'/></rx></coalesce>`` sets a tap's
``rx-frames``. Here a worker of vhost sends a server's packets to a bridge, so
many for each wake-up, without it and with it, by turns. Where this kernel has
no vhost, on the emulated machine of level host-v2, whose CPU time is the
number of instructions. As root::

    tools/bench/vhost_coalescing.py --newer-kernel

Prints the CPU time of a packet: of the worker, and as the agent's biller
enters it into the ledger for the server, in ns.
"""

import argparse
import contextlib
import ctypes
import fcntl
import functools
import os
import pathlib
import socket
import struct
import subprocess
import sys

import newer_kernel

from nova_vqos.billing import costs

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'devstack'))

from nova_vqos.tests.host import tap_servers

FRAMES = (0, 64)
PACKETS = (1, 8, 64)
_PAUSE_S = 0.003
_TIMES = 12
_TIMEOUT_S = 550
# NOTE: include/uapi/linux/sockios.h and ethtool.h.
_SIOCETHTOOL = 0x8946
_SET_COALESCING = 0xF
_NUMBERS = 22
# Of rx_max_coalesced_frames among these.
_RX_FRAMES = 1


def main() -> int:
    options = parse()
    if options.newer_kernel:
        last = f'{PACKETS[-1]} packets'
        return 0 if last in newer_kernel.run(last, _TIMEOUT_S) else 1
    if not options.inside:
        os.execvp('unshare', ['unshare', '--net', '--mount', sys.executable,
                              os.path.abspath(__file__), *sys.argv[1:],
                              '--inside'])
    subprocess.run(['mount', '-t', 'sysfs', 'sysfs', '/sys'], check=True)
    for name in ('all', 'default'):
        pathlib.Path(f'/proc/sys/net/ipv6/conf/{name}/disable_ipv6'
                     ).write_text('1')
    pcpus = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        made = tap_servers.Network('bridge', 'vhost', (pcpus[0], pcpus[-1]),
                                   False, stack)
        made.set_costs(costs.IoCosts({}, {}))
        made.learn()
        for packets in PACKETS:
            show(packets, measure(made, packets, options.rounds))
    return 0


def measure(made: tap_servers.Network, packets: int, rounds: int
            ) -> dict[int, tap_servers.Took]:
    """:returns: what packets took in all rounds, by rx-frames"""
    send = functools.partial(made._servers['tap1'].send, 'world', packets)
    way = tap_servers.Way(send, lambda: None, packets, _TIMES, _PAUSE_S)
    took = {frames: tap_servers.Took() for frames in FRAMES}
    for number in range(rounds + 1):
        for frames in FRAMES:
            set_frames('tap1', frames)
            found = made.take(way, 1)
            # The first round only warms up.
            if number:
                took[frames].add(found)
    return took


def set_frames(tap: str, frames: int) -> None:
    """As ``ethtool -C TAP rx-frames FRAMES`` does."""
    numbers = [0] * _NUMBERS
    numbers[_RX_FRAMES] = frames
    command = ctypes.create_string_buffer(struct.pack(
        f'={1 + _NUMBERS}I', _SET_COALESCING, *numbers))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack(
            '16sP16x', tap.encode(), ctypes.addressof(command)))


def show(packets: int, took: dict[int, tap_servers.Took]) -> None:
    base = took[FRAMES[0]]
    for frames, one in took.items():
        print(f'{packets:3} packets a wake-up, rx-frames {frames:2}: '
              f'worker {one.servers / one.packets:7.0f}, billed '
              f'{one.billed / one.packets:7.0f}, ratio '
              f'{one.servers / base.servers:.3f}', flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=4)
    parser.add_argument(newer_kernel.OPTION, action='store_true',
                        help='on the emulated machine of level host-v2')
    parser.add_argument('--inside', action='store_true',
                        help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error('--rounds takes numbers from 1 on')
    return options


if __name__ == '__main__':
    sys.exit(main())
