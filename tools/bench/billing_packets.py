#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What a packet to a server takes from others on its host, by lost work.

Started among the clients of a host of the lab by billing.py. On two pCPUs
soakers take all the time that is left and count what they get done: on the
sender's, where the kernel moves the packet up to the tap; and on the guest's,
where the one who reads the tap is woken. Short slots in which packets go to
the guest take turns with slots in which the same packets end where they
arrive; each pair of neighbours is one sample, but for those in which others
used the pCPUs, too. Prints JSON: by rate, of

sender, guest
    what soakers lost on each pCPU, in ns a packet
process
    what the guest's process was charged for, which is measured of any server
kernel
    the first two less the third: what nobody but a model can bill
wakes
    not in ns, but how often a packet the process' main thread began to run

the median, and an interval of 95 % around it by resampling.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import random
import socket
import statistics
import sys
import time

from nova_vqos.calibration import runner
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import system
from nova_vqos.calibration.io import traffic

_SIZE = 64
_RESAMPLED = 1000
_MOST_OTHERS = 0.05
_LEAST_PAIRS = 15
# Numbers of 32 bytes, and those that are looked up for one piece of work.
_ROAMED = 65_536
_ROAMED_AT_ONCE = 128
# The discard service, which no guest has.
_PORTS = (4000, 9)


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """What was seen in one.

    :ivar packets: that were sent
    :ivar elapsed_ns: its length
    :ivar pieces: of work, by each soaker
    :ivar soaked_ns: CPU time of each soaker
    :ivar process_ns: CPU time of the guest's process
    :ivar wakes: how often its main thread began to run
    :ivar own_ns: CPU time of the sender
    """

    packets: int
    elapsed_ns: int
    pieces: tuple[int, ...]
    soaked_ns: tuple[int, ...]
    process_ns: int
    wakes: int
    own_ns: int

    @property
    def others(self) -> float:
        """Part of the pCPUs' time that was anybody else's, of the worse."""
        return 1 - min(
            used_ns + soaked_ns for used_ns, soaked_ns in zip(
                (self.own_ns, self.process_ns), self.soaked_ns, strict=True)
        ) / self.elapsed_ns


def main() -> int:
    options = parse()
    with contextlib.ExitStack() as stack:
        soakers = [stack.enter_context(contextlib.closing(
            accounts.Child(work, pcpu=pcpu, idle=True)))
            for work, pcpu in zip(
                (accounts.soak, roam if options.roam else accounts.soak),
                options.pcpus, strict=True)]
        runner.pin(0, options.pcpus[0])
        accounts.go_first()
        packets = frames(options)
        senders = {kind: functools.partial(
            system.Burst(packets[kind], 1).send,
            stack.enter_context(sending_from(name)).fileno())
            for kind, name in (('through', 'eth0'), ('lost', 'eth1'))}
        found = {}
        for rate in options.rates:
            pairs = []
            for _ in range(options.pairs):
                pair = {}
                for kind in random.sample(sorted(senders), 2):
                    pair[kind] = slot(soakers, options.pid, rate,
                                      options.slot_s, senders[kind])
                pairs.append(pair)
            found[rate] = summary(pairs)
    print(json.dumps(found))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--pid', type=int, required=True,
                        help="of the guest's process")
    parser.add_argument('--mac', required=True, help='of the guest')
    parser.add_argument('--address', required=True, help='of the guest')
    parser.add_argument('--pcpus', type=int, nargs=2, required=True,
                        help="the sender's, and the guest's")
    parser.add_argument('--rates', type=int, nargs='+', required=True,
                        help='packets a second')
    parser.add_argument('--pairs', type=int, default=60,
                        help='of slots, for each rate (default %(default)s)')
    parser.add_argument('--slot-s', type=float, default=0.1)
    parser.add_argument('--roam', action='store_true',
                        help="have the soaker on the guest's pCPU use caches, "
                        'as guests do')
    return parser.parse_args()


def roam(counts: memoryview) -> None:
    """Work for ever on some MiB of memory, here and there, counting pieces."""
    table = list(range(_ROAMED, 2 * _ROAMED))
    places = list(range(_ROAMED))
    random.shuffle(places)
    pieces = [places[start:start + _ROAMED_AT_ONCE]
              for start in range(0, _ROAMED, _ROAMED_AT_ONCE)]
    for piece in itertools.cycle(pieces):
        sum(map(table.__getitem__, piece))
        counts[0] += 1


def frames(options: argparse.Namespace) -> dict[str, bytes]:
    """Packets to the guest, and to nobody."""
    content = traffic.datagram('198.18.1.1', options.address, _PORTS, _SIZE)
    return {kind: traffic.frame(options.mac, '02:00:00:00:00:03', protocol,
                                content)
            for kind, protocol in (('through', traffic.IPV4),
                                   ('lost', traffic.UNKNOWN))}


def sending_from(name: str) -> socket.socket:
    """A socket that sends whole frames from an interface, and gets none."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.bind((name, 0))
    return made


def slot(soakers: Sequence[accounts.Child], pid: int, rate: int,
         slot_s: float, send: Callable[[], None]) -> Slot:
    """Send packets one by one, each when it is due."""
    def read() -> Slot:
        return Slot(0, time.monotonic_ns(),
                    tuple(soaker.counts[0] for soaker in soakers),
                    tuple(soaker.cpu_time_ns() for soaker in soakers),
                    accounts.cpu_time_ns(pid), wakes(pid),
                    time.thread_time_ns())

    before, sent = read(), 0
    due_s = time.monotonic()
    ends_s = due_s + slot_s
    while due_s < ends_s:
        send()
        sent += 1
        # One that is late is made up for.
        due_s += 1 / rate
        time.sleep(max(0.0, due_s - time.monotonic()))
    after = read()
    return Slot(
        sent, after.elapsed_ns - before.elapsed_ns,
        tuple(map(int.__sub__, after.pieces, before.pieces)),
        tuple(map(int.__sub__, after.soaked_ns, before.soaked_ns)),
        after.process_ns - before.process_ns, after.wakes - before.wakes,
        after.own_ns - before.own_ns)


def wakes(pid: int) -> int:
    """How often the first thread of a process began to run."""
    return int(pathlib.Path(f'/proc/{pid}/schedstat').read_text().split()[2])


def summary(pairs: Sequence[dict[str, Slot]]) -> dict[str, object]:
    """What a packet took, from all pairs that nobody disturbed."""
    total = len(pairs)
    pairs = [pair for pair in pairs if max(
        one.others for one in pair.values()) <= _MOST_OTHERS]
    if len(pairs) < _LEAST_PAIRS:
        raise SystemExit(f'others were at work in {total - len(pairs)} of '
                         f'{total} pairs of slots: measure again')
    samples: dict[str, list[float]] = {
        'sender': [], 'guest': [], 'process': [], 'kernel': [], 'wakes': []}
    for pair in pairs:
        through, lost = pair['through'], pair['lost']
        sender, guest = (taken_ns(through, lost, number)
                         for number in (0, 1))
        process = (through.process_ns / through.elapsed_ns
                   - lost.process_ns / lost.elapsed_ns
                   ) * through.elapsed_ns / through.packets
        for name, value in zip(samples, (
                sender, guest, process, sender + guest - process,
                through.wakes / through.packets), strict=True):
            samples[name].append(value)
    return {'pairs': [len(pairs), total], 'packets': statistics.median(
        pair['through'].packets / pair['through'].elapsed_ns * 1e9
        for pair in pairs), **{
            name: interval(values) for name, values in samples.items()}}


def taken_ns(through: Slot, lost: Slot, number: int) -> float:
    """What a packet took from a soaker, beyond one that got lost.

    In time that its work took where packets got lost.
    """
    pieces_less = (lost.pieces[number] / lost.elapsed_ns
                   - through.pieces[number] / through.elapsed_ns)
    piece_ns = lost.soaked_ns[number] / max(1, lost.pieces[number])
    return pieces_less * piece_ns * through.elapsed_ns / through.packets


def interval(values: Sequence[float]) -> list[float]:
    """:returns: the median, and its interval of 95 % by resampling"""
    medians = sorted(
        statistics.median(random.choices(values, k=len(values)))
        for _ in range(_RESAMPLED))
    return [statistics.median(values), medians[_RESAMPLED // 40],
            medians[-_RESAMPLED // 40]]


if __name__ == '__main__':
    sys.exit(main())
