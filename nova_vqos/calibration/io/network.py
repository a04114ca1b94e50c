# SPDX-License-Identifier: Apache-2.0
"""The kernel's cost of a packet, beyond what its sender pays in any case.

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
from nova_vqos.calibration import system
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import tap
from nova_vqos.calibration.io import traffic

DIRECTIONS = ('rx', 'tx')
#: Of packets, in bytes with the header of Ethernet: frames, jumbo frames, and
#: large packets that stand for many frames (GSO), the largest one for 45 full
#: ones.
SIZES = (64, 256, 512, 1024, 1514, 2048, 4096, 6000, 9000, 16_384, 32_768,
         65_226)

# Of one round: short against the machine's moods, and long against a piece of
# a soaker's work.
#: Packets that arrive at once: as many as a network card is asked for.
BURST = 64
_BURSTS = 16
# Of large packets there are few in a burst: the card's frames make no more.
_LARGE_BURSTS = 128
_FULL_FRAME_BYTES = 1514
# Between bursts at least, so that neither reader nor soaker starves.
_PAUSE_S = 1e-4
_WAIT_S = 5

_random = random.SystemRandom()


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What a packet took in one pair of rounds, in ns.

    :ivar kernel: charged to no thread of a backend
    :ivar backend: charged to the reader or writer of the tap
    :ivar unaccounted: charged to no thread: lost by soakers
    """

    kernel: float
    backend: float
    unaccounted: float


class Guest:
    """A set-up, and a process that reads its tap on order.

    The order comes after the packets: so it wakes up once for each burst, as a
    reader that has more to do with each packet does, and no packet pays for
    waking it.

    :ivar mode: of :data:`traffic.MODES`
    """

    def __init__(self, mode: str, pcpu: int,
                 stack: contextlib.ExitStack) -> None:
        self.mode = mode
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
        """Order so many packets to be read, or none, and wait for that.

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
                    f'{self.mode}): see whether this host filters packets '
                    'in new namespaces')


class Bench:
    """Set-ups, and processes around them, ready to be measured."""

    def __init__(self, modes: Iterable[str], pcpus: Sequence[int], *,
                 apart: bool, sizes: Sequence[int] = SIZES) -> None:
        """
        :param pcpus: two: of the sender, and of the reader
        :param apart: see :class:`accounts.Accounts`
        :raises CalibrationError: when something cannot be set up
        """
        modes = list(modes)
        self._sizes = sizes
        with contextlib.ExitStack() as stack:
            self._guests = {mode: Guest(mode, pcpus[1], stack)
                            for mode in modes}
            names = '|'.join(map(str, pcpus))
            self._accounts = stack.enter_context(contextlib.closing(
                accounts.Accounts(pcpus, accounts.kernel_threads(
                    name=f'ksoftirqd/({names})'), apart=apart)))
            runner.pin(0, pcpus[0])
            runner.go_first()
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End it all."""
        self._stack.close()

    def sweep(self, mode: str, direction: str) -> dict[int, Sample]:
        """One sample of each size, in a random order.

        :returns: by size
        :raises CalibrationError: when packets get lost
        """
        guest = self._guests[mode]
        return {size: self._pair(guest, direction,
                                 traffic.packets(guest.mode, size),
                                 *_bursts(size))
                for size in _random.sample(self._sizes, len(self._sizes))}

    def _pair(self, guest: Guest, direction: str, packets: traffic.Packets,
              burst: int, bursts: int) -> Sample:
        setup = guest.setup
        # So that a bridge, or connection tracking, knows both ends.
        setup.tap.write(packets.tx, 1)
        system.Burst(packets.rx, 1).send(setup.world)
        guest.read(1)
        if direction == 'rx':
            through = system.Burst(packets.rx, burst)
            lone = system.Burst(packets.lost, burst)
            todo = [(lambda: through.send(setup.world), burst),
                    (lambda: lone.send(setup.lone_world), 0)]
        else:
            todo = [(lambda: setup.tap.write(packets.tx, burst), 0),
                    (lambda: setup.lone_tap.write(packets.lost, burst), 0)]
        done: dict[int, accounts.Round] = {}
        for number in _random.sample((0, 1), 2):
            done[number] = self._round(guest, *todo[number], bursts)
        path, base = done[0], done[1]
        rest = path.read.charged_ns - base.read.charged_ns
        backend = path.beside
        if direction == 'rx':
            rest += path.own - base.own
        else:
            # The writer is the backend.
            backend = path.own
        count = burst * bursts
        return Sample(rest / count, backend / count,
                      accounts.lost_ns(path.read, base.read) / count)

    def _round(self, guest: Guest, send: Callable[[], None],
               received: int, bursts: int) -> accounts.Round:
        """
        :param received: packets for the guest of each call of ``send``. It is
            woken in any case, so that rounds differ in nothing else
        :param bursts: how often to send
        """
        before = self._accounts.read()
        backend = guest.backend_ns
        own = 0
        for _ in range(bursts):
            began = time.thread_time_ns()
            send()
            own += time.thread_time_ns() - began
            guest.read(received)
        return accounts.Round(own, guest.backend_ns - backend,
                              self._accounts.read().since(before))


def _bursts(size: int) -> tuple[int, int]:
    """How packets of a size arrive.

    :returns: packets in a burst, and bursts in a round
    """
    if size <= traffic.MOST_FRAME_BYTES:
        return BURST, _BURSTS
    return max(1, BURST * _FULL_FRAME_BYTES // size), _LARGE_BURSTS
