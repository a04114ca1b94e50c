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

"""What a packet costs the kernel, beyond what its sender would pay anyway.

Rounds in which packets go through a set-up to the tap, or from it, take turns
with rounds in which the same packets end where they arrive: each pair of
neighbours is one sample, since a machine's speed drifts from second to second.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import dataclasses
import functools
import os
import random
import time

from nova_vqos.calibration import runner
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import system
from nova_vqos.calibration.io import tap
from nova_vqos.calibration.io import traffic

DIRECTIONS = ('rx', 'tx')
#: Of packets, in bytes with the header of Ethernet.
SIZES = (64, 256, 512, 1024, 1514, 4096, 9000)

# Of one round: short against the machine's moods, and long against a piece of
# a soaker's work.
#: Packets that arrive at once: as many as a network card is asked for.
BURST = 64
_BURSTS = 16
_PACKETS = BURST * _BURSTS
# Between bursts at least, so that neither reader nor soaker starves.
_PAUSE_S = 1e-4
#: A way of its own: single packets, for each of which the reader is woken.
WOKEN = 'woken'
# Of one round, 5000 a second: who reads has long gone to sleep by then.
_SINGLES = 256
_SINGLE_PAUSE_S = 2e-4
_WAIT_S = 5

_random = random.SystemRandom()


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What a packet took in one pair of rounds, in ns.

    :ivar kernel: that no thread of a backend was charged for; of single
        packets with what soakers lost
    :ivar backend: that the reader or writer of the tap was charged for
    :ivar unaccounted: that was charged to nobody: lost by soakers
    """

    kernel: float
    backend: float
    unaccounted: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Round:
    """One round; times in ns, of all its packets."""

    own: int
    backend: int
    read: accounts.Reading


class _Guest:
    """A set-up, and a process that reads its tap when it is told to.

    It is told after packets were sent: so it wakes up once for each burst, as
    a reader that has more to do with each packet does, and no packet pays for
    waking it.
    """

    def __init__(self, mode: str, pcpu: int,
                 stack: contextlib.ExitStack) -> None:
        self._mode = mode
        self.setup = traffic.Setup(mode, stack)
        receiving, self._orders = os.pipe()
        stack.callback(os.close, self._orders)
        try:
            self._reader = stack.enter_context(contextlib.closing(
                accounts.Child(functools.partial(
                    self.setup.tap.serve, receiving), pcpu=pcpu)))
        finally:
            os.close(receiving)
        self._orders_given = 0

    @property
    def backend_ns(self) -> int:
        """CPU time of reading so far."""
        return self._reader.counts[1]

    def read(self, count: int) -> None:
        """Have so many packets read, or none, and wait until they are.

        :raises CalibrationError: when they do not come
        """
        tap.order(self._orders, count)
        self._orders_given += 1
        until = time.monotonic() + _WAIT_S
        while True:
            time.sleep(_PAUSE_S)
            if self._reader.counts[0] == self._orders_given:
                return
            if time.monotonic() > until:
                raise CalibrationError(
                    'packets got lost on their way to the tap (mode '
                    f'{self._mode}): see whether this host filters packets '
                    'in new namespaces')


class _WaitingGuest:
    """A set-up, and a process that waits for each packet.

    As one that has nothing else to do, where packets come one by one: to wake
    it is part of what a packet costs. It is on another pCPU than the sender,
    as a guest and who receives for it nearly always are: that one is
    interrupted.
    """

    def __init__(self, mode: str, pcpu: int,
                 stack: contextlib.ExitStack) -> None:
        self.setup = traffic.Setup(mode, stack)
        self.packets = traffic.packets(mode, min(SIZES))
        self.reader = stack.enter_context(contextlib.closing(
            accounts.Child(self.setup.tap.serve_each, pcpu=pcpu)))
        self._expected = 0

    def expect(self, count: int) -> None:
        """Wait until so many more packets were read.

        :raises CalibrationError: when they do not come
        """
        self._expected += count
        until = time.monotonic() + _WAIT_S
        while self.reader.counts[0] < self._expected:
            if time.monotonic() > until:
                raise CalibrationError('packets got lost on their way to a '
                                       'tap that is waited at')
            time.sleep(_PAUSE_S)


class Bench:
    """Set-ups, and processes around them, ready to be measured."""

    def __init__(self, modes: Iterable[str], pcpus: Sequence[int], *,
                 apart: bool) -> None:
        """
        :param pcpus: two: of the sender, and of the reader
        :param apart: see :class:`accounts.Accounts`
        :raises CalibrationError: when something cannot be set up
        """
        self._stack = contextlib.ExitStack()
        self._guests: dict[str, _Guest] = {}
        try:
            modes = list(modes)
            for mode in modes:
                self._guests[mode] = _Guest(mode, pcpus[1], self._stack)
            self._waiting = _WaitingGuest(modes[0], pcpus[1], self._stack)
            names = '|'.join(map(str, pcpus))
            self._accounts = self._stack.enter_context(contextlib.closing(
                accounts.Accounts(pcpus, accounts.kernel_threads(
                    name=f'ksoftirqd/({names})'), apart=apart)))
            runner.pin(0, pcpus[0])
            accounts.go_first()
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """End it all."""
        self._stack.close()

    def sweep(self, mode: str, direction: str) -> dict[int, Sample]:
        """One sample of each size, in a random order.

        :param mode: or WOKEN, of which there is one size
        :returns: by size
        :raises CalibrationError: when packets get lost
        """
        if mode == WOKEN:
            return {min(SIZES): self._woken_pair()}
        return {size: self._pair(self._guests[mode], direction,
                                 traffic.packets(mode, size))
                for size in _random.sample(SIZES, len(SIZES))}

    def _pair(self, guest: _Guest, direction: str,
              packets: traffic.Packets) -> Sample:
        setup = guest.setup
        # So that a bridge, or who tracks connections, knows both ends.
        setup.tap.write(packets.tx, 1)
        system.Burst(packets.rx, 1).send(setup.world)
        guest.read(1)
        if direction == 'rx':
            through = system.Burst(packets.rx, BURST)
            lone = system.Burst(packets.lost, BURST)
            todo = [(lambda: through.send(setup.world), BURST),
                    (lambda: lone.send(setup.lone_world), 0)]
        else:
            todo = [(lambda: setup.tap.write(packets.tx, BURST), 0),
                    (lambda: setup.lone_tap.write(packets.lost, BURST), 0)]
        done: dict[int, _Round] = {}
        for number in _random.sample((0, 1), 2):
            done[number] = self._round(guest, *todo[number])
        path, base = done[0], done[1]
        rest = path.read.charged_ns - base.read.charged_ns
        backend = path.backend
        if direction == 'rx':
            rest += path.own - base.own
        else:
            # Who writes is the backend.
            backend = path.own
        return Sample(rest / _PACKETS, backend / _PACKETS,
                      accounts.lost_ns(path.read, base.read) / _PACKETS)

    def _woken_pair(self) -> Sample:
        guest = self._waiting
        setup, packets = guest.setup, guest.packets
        # So that a bridge, or who tracks connections, knows both ends.
        setup.tap.write(packets.tx, 1)
        system.Burst(packets.rx, 1).send(setup.world)
        guest.expect(1)
        todo = [(packets.rx, setup.world, _SINGLES),
                (packets.lost, setup.lone_world, 0)]
        done: dict[int, _Round] = {}
        for number in _random.sample((0, 1), 2):
            done[number] = self._singles(*todo[number])
        path, base = done[0], done[1]
        # Whoever runs is interrupted so often that it gets less done in its
        # time: that is taken from it, too.
        lost = accounts.lost_ns(path.read, base.read)
        return Sample(
            (path.read.charged_ns - base.read.charged_ns
             + path.own - base.own + lost) / _SINGLES,
            (path.backend - base.backend) / _SINGLES, lost / _SINGLES)

    def _singles(self, packet: bytes, sender: int, received: int) -> _Round:
        """Send packets one by one, each when it is due."""
        single = system.Burst(packet, 1)
        before = self._accounts.read()
        backend = self._waiting.reader.cpu_time_ns()
        own, due = 0, time.monotonic()
        for _ in range(_SINGLES):
            began = time.thread_time_ns()
            single.send(sender)
            own += time.thread_time_ns() - began
            due += _SINGLE_PAUSE_S
            time.sleep(max(0.0, due - time.monotonic()))
        self._waiting.expect(received)
        return _Round(own, self._waiting.reader.cpu_time_ns() - backend,
                      self._accounts.read().since(before))

    def _round(self, guest: _Guest, send: Callable[[], None],
               received: int) -> _Round:
        """
        :param received: by the guest, each time that is sent. It is woken in
            any case, so that rounds differ in nothing else
        """
        before = self._accounts.read()
        backend = guest.backend_ns
        own = 0
        for _ in range(_BURSTS):
            began = time.thread_time_ns()
            send()
            own += time.thread_time_ns() - began
            guest.read(received)
        return _Round(own, guest.backend_ns - backend,
                      self._accounts.read().since(before))
