#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether a frame costs more where more taps are busy.

Sends bursts of 64 frames over a bridge, to one tap or to several by turns, and
measures the CPU time of the kernel beyond that of frames that end where they
arrive, as `nova-vqos-calibrate io` does. As root, on an idle machine::

    tools/bench/busy_taps.py --seconds 60

It touches nothing but network namespaces of its own, which have no name.
"""

import argparse
from collections.abc import Sequence
import contextlib
import ctypes
import functools
import os
import random
import sys
import time

from nova_vqos.calibration import estimate
from nova_vqos.calibration import runner
from nova_vqos.calibration import system
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import tap
from nova_vqos.calibration.io import traffic

TAPS = (1, 2, 4, 8)
SIZES = (64, 1514)
_BURSTS = 16
_PAUSE_S = 1e-4
_WAIT_S = 5


class Burst(system.Burst):
    """Unlike packets, sent by one call of the kernel."""

    def __init__(self, packets: Sequence[bytes]) -> None:
        super().__init__(packets[0], len(packets))
        self._parts = [system.Burst(packet, 1) for packet in packets]
        for message, part in zip(self._messages, self._parts, strict=True):
            message.header.vectors = ctypes.pointer(part._vector)


class Bridge:
    """Taps on a bridge, and a process that reads them."""

    def __init__(self, pcpus: Sequence[int],
                 stack: contextlib.ExitStack) -> None:
        names = [f'tap{number}' for number in range(max(TAPS))]
        with system.network_namespace():
            for path, value in (traffic.settings('bridge') | {
                    f'net/bridge/{name}': value for name, value
                    in traffic.bridge_settings().items()}).items():
                traffic._set(path, value)
            self.taps = [stack.enter_context(contextlib.closing(
                tap.Tap(name))) for name in (*names, 'tap', 'lone_tap')]
            # Those of the set-up that is calibrated, and more of its taps.
            for command in traffic.commands('bridge'):
                traffic._run(command)
            for name in names:
                for words in (['txqueuelen', '10000'], ['master', 'switch'],
                              ['up']):
                    traffic._run(['ip', 'link', 'set', name, *words])
            self.world, self.lone_world = (
                stack.enter_context(traffic._sending_from(name)).fileno()
                for name in ('world', 'lone_world'))
        receiving, self._orders = os.pipe()
        stack.callback(os.close, self._orders)
        self._reader = stack.enter_context(contextlib.closing(accounts.Child(
            functools.partial(self._serve, receiving), pcpu=pcpus[1])))
        os.close(receiving)
        self._accounts = stack.enter_context(contextlib.closing(
            accounts.Accounts(pcpus, accounts.kernel_threads(
                name='ksoftirqd/({})'.format('|'.join(map(str, pcpus)))),
                apart=False)))
        self._given = 0
        for number, one in enumerate(self.taps[:max(TAPS)]):
            # So that the bridge knows where each of them is.
            one.write(tap.HEADER + traffic.frame(
                traffic._WORLD, mac(number), traffic.IPV4, datagram(64)), 1)

    def _serve(self, orders: int, counts: memoryview) -> None:
        into = [bytearray(tap._MOST_BYTES)]
        while True:
            order = os.read(orders, 2)
            for one in self.taps[:order[0]]:
                for _ in range(order[1]):
                    os.readv(one._file, into)
            counts[0] += 1

    def sample(self, through: Burst, lone: Burst, taps: int) -> float:
        """What a frame cost more than one that ended where it arrived."""
        took = {}
        for is_through in random.sample((True, False), 2):
            burst, socket = ((through, self.world) if is_through
                             else (lone, self.lone_world))
            before, own = self._accounts.read(), 0
            for _ in range(_BURSTS):
                began = time.thread_time_ns()
                burst.send(socket)
                own += time.thread_time_ns() - began
                self._read(taps, network.BURST // taps if is_through else 0)
            took[is_through] = own + self._accounts.read().since(
                before).charged_ns
        return (took[True] - took[False]) / (_BURSTS * network.BURST)

    def _read(self, taps: int, packets: int) -> None:
        """Have so many packets read of each of some taps."""
        os.write(self._orders, bytes((taps, packets)))
        self._given += 1
        until_s = time.monotonic() + _WAIT_S
        while self._reader.counts[0] != self._given:
            if time.monotonic() > until_s:
                raise SystemExit('packets got lost on their way to the taps')
            time.sleep(_PAUSE_S)


def mac(number: int) -> str:
    return f'02:00:00:00:01:{number:02x}'


def datagram(size: int) -> bytes:
    return traffic.datagram('192.0.2.2', '198.51.100.2', traffic._PORTS, size)


def bursts(size: int, taps: int) -> tuple[Burst, Burst]:
    """:returns: to taps by turns, and to where they end"""
    return Burst([tap.HEADER + traffic.frame(
        mac(number % taps), traffic._WORLD, traffic.IPV4, datagram(size))
        for number in range(network.BURST)]), Burst(
            [traffic.packets('bridge', size).lost] * network.BURST)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=float, default=60)
    options = parser.parse_args()
    pcpus = sorted(os.sched_getaffinity(0))
    ways = {(size, taps): bursts(size, taps)
            for size in SIZES for taps in TAPS}
    found: dict[tuple[int, int], list[float]] = {way: [] for way in ways}
    with contextlib.ExitStack() as stack:
        bridge = Bridge((pcpus[0], pcpus[-1]), stack)
        runner.pin(0, pcpus[0])
        runner.go_first()
        until_s = time.monotonic() + options.seconds
        while time.monotonic() < until_s:
            for way in random.sample(sorted(ways), len(ways)):
                found[way].append(bridge.sample(*ways[way], way[1]))
    print('bytes  taps  ns a frame   95 %  to one tap')
    for (size, taps), samples in found.items():
        one = estimate.estimate(samples)
        base = estimate.estimate(found[size, 1]).mean
        print(f'{size:5}{taps:6}{one.mean:12.0f}'
              f'{(one.high - one.low) / 2:7.0f}{one.mean / base:12.3f}')
    print(f'{len(samples)} rounds of each, by turns')
    return 0


if __name__ == '__main__':
    sys.exit(main())
