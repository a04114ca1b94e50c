#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether BPF finds a packet's softirq time better than the model does.

Sends packets through the set-ups of `nova-vqos-calibrate io`, alone and mixed,
and compares for each: the CPU time that the kernel really spent, the bill by
the calibrated table, and what softirq.bpf.c attributes to the tap. Rounds with
and without tracing take turns, which gives the cost of tracing. As root, with
clang and the headers of libbpf, on an idle machine::

    tools/bench/softirq_tracing.py --seconds 100

It traces the whole machine's softirqs during half of its rounds, and changes
nothing else outside of network namespaces of its own.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
import contextlib
import ctypes
import dataclasses
import fcntl
import math
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import busy_taps

from nova_vqos.calibration import estimate
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import measure
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import tap
from nova_vqos.calibration.io import traffic
from nova_vqos.profile import io

CASES = (('rx', (64,)), ('rx', (1514,)), ('rx', (65_226,)),
         ('rx', (64, 1514)), ('rx', (64, 65_226)), ('rx', (1514, 65_226)),
         ('tx', (64,)), ('tx', (65_226,)))

_SOURCE = pathlib.Path(__file__).with_name('softirq.bpf.c')
# From include/uapi/linux/sockios.h.
_SIOCGIFINDEX, _SIOCGSKNS = 0x8933, 0x894c

# Mode, direction, and sizes of packets that take turns.
Case = tuple[str, str, tuple[int, ...]]
# Network namespace (its inode) and index of an interface.
Interface = tuple[int, int]


class Tracer:
    """The BPF program, loaded by libbpf."""

    def __init__(self, clang: str) -> None:
        self._lib = ctypes.CDLL('libbpf.so.1', use_errno=True)
        for name in ('bpf_object__open_file', 'bpf_object__next_program',
                     'bpf_program__attach', 'bpf_object__find_map_by_name'):
            getattr(self._lib, name).restype = ctypes.c_void_p
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, 'softirq.bpf.o')
            subprocess.run(
                [*clang.split(), '-target', 'bpf', '-O2', '-g',
                 # Debian has the kernel's asm/ below that.
                 f'-I/usr/include/{os.uname().machine}-linux-gnu',
                 '-c', _SOURCE, '-o', path],
                check=True)
            self._object = self._found(self._lib.bpf_object__open_file(
                path.encode(), None))
        if self._lib.bpf_object__load(self._object):
            raise SystemExit('the kernel refuses the program: see above')
        self._caused, self._cpus = (self._lib.bpf_map__fd(self._found(
            self._lib.bpf_object__find_map_by_name(self._object, name)))
            for name in (b'caused', b'cpus'))
        self._cpu_count = self._lib.libbpf_num_possible_cpus()

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Trace."""
        links, program = [], None
        try:
            while program := self._lib.bpf_object__next_program(
                    self._object, program):
                program = ctypes.c_void_p(program)
                links.append(self._found(
                    self._lib.bpf_program__attach(program)))
            yield
        finally:
            for link in links:
                self._lib.bpf_link__destroy(link)

    def caused(self, interface: Interface) -> tuple[int, int]:
        """:returns: ns, and packets that were handed to it"""
        values = (ctypes.c_uint64 * (2 * self._cpu_count))()
        # It has no entry before its first packet.
        self._lib.bpf_map_lookup_elem(
            self._caused, (ctypes.c_uint32 * 2)(*interface), values)
        return sum(values[0::2]), sum(values[1::2])

    def softirq_ns(self, pcpu: int) -> int:
        """Time of all softirqs of the network."""
        values = (ctypes.c_uint64 * (3 * self._cpu_count))()
        self._lib.bpf_map_lookup_elem(
            self._cpus, ctypes.byref(ctypes.c_uint32(0)), values)
        return values[3 * pcpu + 2]

    @staticmethod
    def _found(pointer: int | None) -> ctypes.c_void_p:
        if not pointer:
            number = ctypes.get_errno()
            raise SystemExit(f'libbpf: {os.strerror(number)}')
        return ctypes.c_void_p(pointer)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What a packet of a case took, in ns of CPU time.

    :ivar kernel: that no thread of a backend was charged for
    :ivar whole: with the sender and the reader, as tracing makes it dearer
    :ivar traced: what tracing added to that
    :ivar lone_traced: what it added to a packet that ends where it arrives
    :ivar caused: what BPF attributes to the tap
    :ivar elsewhere: what was spent outside of softirqs, with tracing: by the
        sender, likely for memory that the reader freed on another pCPU
    :ivar unseen: part of the packets that BPF did not see
    """

    kernel: float
    whole: float
    traced: float
    lone_traced: float
    caused: float
    elsewhere: float
    unseen: float


class Bench(network.Bench):
    """The set-ups of the calibration, with a tracer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._tracer = Tracer(options.clang)
        pcpus = sorted(os.sched_getaffinity(0))
        self._sender_pcpu = pcpus[0]
        super().__init__(
            options.modes,
            (pcpus[0], pcpus[0 if options.one_pcpu else -1]),
            apart=options.apart)
        self._taps = {mode: interface(guest.setup.world, 'tap')
                      for mode, guest in self._guests.items()}

    def sample(self, mode: str, direction: str,
               sizes: tuple[int, ...]) -> Sample:
        """Four rounds in a random order: both ways, traced and not."""
        guest = self._guests[mode]
        setup = guest.setup
        kinds = [traffic.packets(mode, size) for size in sizes]
        burst, bursts = network._bursts(int(statistics.fmean(sizes)))
        turns = math.ceil(burst / len(kinds))
        # So that a bridge, or connection tracking, knows both ends.
        setup.tap.write(kinds[0].tx, 1)
        busy_taps.Burst([kinds[0].rx]).send(setup.world)
        guest.read(1)
        ways = _ways(setup, direction, kinds, turns)
        took: dict[tuple[bool, bool], accounts.Round] = {}
        traced: dict[bool, list[int]] = {}
        for is_path, traces in random.sample(
                [(a, b) for a in (True, False) for b in (True, False)], 4):
            with (self._tracer.attached() if traces
                  else contextlib.nullcontext()):
                before = self._traced(mode)
                took[is_path, traces] = self._round(
                    guest, *ways[is_path], bursts)
                if traces:
                    traced[is_path] = [
                        now - then for now, then in zip(
                            self._traced(mode), before, strict=True)]
        count = turns * len(kinds) * bursts

        def whole(is_path: bool, traces: bool) -> int:
            one = took[is_path, traces]
            return one.own + one.beside + one.read.charged_ns

        def kernel(traces: bool) -> int:
            path, base = took[True, traces], took[False, traces]
            charged = path.read.charged_ns - base.read.charged_ns
            # The sender of packets from the guest is the backend.
            return charged + (path.own - base.own if direction == 'rx' else 0)

        caused_ns, seen, softirqs_ns = traced[True]
        softirqs_ns -= traced[False][2]
        return Sample(
            kernel(False) / count, whole(True, False) / count,
            (whole(True, True) - whole(True, False)) / count,
            (whole(False, True) - whole(False, False)) / count,
            caused_ns / count, (kernel(True) - softirqs_ns) / count,
            1 - seen / count)

    def _traced(self, mode: str) -> tuple[int, int, int]:
        return (*self._tracer.caused(self._taps[mode]),
                self._tracer.softirq_ns(self._sender_pcpu))


def _ways(setup: traffic.Setup, direction: str,
          kinds: Sequence[traffic.Packets], turns: int
          ) -> dict[bool, tuple[Callable[[], None], int]]:
    """How packets are sent, and how many of them the guest is to read.

    :param kinds: of packets, each to be sent so many times
    :returns: by whether they go through the set-up
    """
    if direction == 'rx':
        through = busy_taps.Burst([one.rx for one in kinds] * turns)
        lone = busy_taps.Burst([one.lost for one in kinds] * turns)
        return {True: (lambda: through.send(setup.world),
                       turns * len(kinds)),
                False: (lambda: lone.send(setup.lone_world), 0)}

    def write(device: tap.Tap, packets: Sequence[bytes]) -> None:
        for packet in packets:
            device.write(packet, turns)

    return {True: (lambda: write(
                setup.tap, [one.tx for one in kinds]), 0),
            False: (lambda: write(
                setup.lone_tap, [one.lost for one in kinds]), 0)}


def interface(descriptor: int, name: str) -> Interface:
    """An interface in the network namespace of a socket."""
    request = fcntl.ioctl(descriptor, _SIOCGIFINDEX,
                          struct.pack('16si20x', name.encode(), 0))
    space = fcntl.ioctl(descriptor, _SIOCGSKNS)
    try:
        return os.fstat(space).st_ino, struct.unpack('16xi20x', request)[0]
    finally:
        os.close(space)


def main() -> int:
    options = parse()
    ways = [(mode, direction) for mode in options.modes
            for direction in network.DIRECTIONS]
    table: dict[measure.Way, measure.Samples] = {way: {} for way in ways}
    found: dict[Case, list[Sample]] = {
        (mode, *case): [] for mode in options.modes for case in CASES}
    until_s = time.monotonic() + options.seconds
    with contextlib.closing(Bench(options)) as bench:
        rounds = 0
        while (rounds < estimate.LEAST_SAMPLES
               or time.monotonic() < until_s):
            rounds += 1
            for way in ways:
                for size, one in bench.sweep(*way).items():
                    table[way].setdefault(size, []).append(one)
            for case in random.sample(sorted(found), len(found)):
                found[case].append(bench.sample(*case))
    show({way: measure.summary(samples) for way, samples in table.items()},
         found)
    return 0


def show(table: dict[measure.Way, io.Measured],
         found: dict[Case, list[Sample]]) -> None:
    """Print both tables: of errors, and of the cost of tracing."""
    print(f'{len(next(iter(found.values())))} samples of each; ns a packet')
    means = {case: {field.name: estimate.estimate(
        [getattr(one, field.name) for one in samples])
        for field in dataclasses.fields(Sample)}
        for case, samples in found.items()}
    print(f'{"":23} really  95 %  model  off by    BPF  off by  elsewhere')
    for case, mean in means.items():
        mode, direction, sizes = case
        really = mean['kernel'].mean
        billed = float(table[mode, direction].cost.total_ns(
            len(sizes), sum(sizes)) / len(sizes))
        print(f'{text(case)}{really:7.0f}{half(mean["kernel"]):6.0f}', *(
            f'{claimed:7.0f}{off_by(claimed, really)}'
            for claimed in (billed, mean['caused'].mean)),
            # In what the guest sends, softirqs are the writer's own time.
            f'{mean["elsewhere"].mean:11.0f}' if direction == 'rx' else '',
            sep='')
    print(f'{"":23} in all  tracing adds  95 %  where it ends  unseen')
    for case, mean in means.items():
        print(f'{text(case)}{mean["whole"].mean:7.0f}'
              f'{mean["traced"].mean:+14.0f}{half(mean["traced"]):6.0f}'
              f'{mean["lone_traced"].mean:+15.0f}',
              f'{mean["unseen"].mean:8.1%}' if case[1] == 'rx' else '', sep='')


def text(case: Case) -> str:
    mode, direction, sizes = case
    return f'{mode:6} {direction} {" ".join(map(str, sizes)):>13}'


def half(one: estimate.Estimate) -> float:
    """Of a 95 % interval."""
    return (one.high - one.low) / 2


def off_by(claimed: float, really: float) -> str:
    # Where nothing was spent there is no ratio.
    return f'{claimed / really - 1:+8.1%}' if really > 100 else f'{"-":>8}'


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=float, default=100)
    parser.add_argument('--modes', nargs='+', choices=traffic.MODES,
                        default=['bridge'])
    parser.add_argument('--clang', default='clang', metavar='COMMAND')
    parser.add_argument('--one-pcpu', action='store_true',
                        help="read the tap on the sender's pCPU")
    parser.add_argument('--apart', action='store_true',
                        help='this kernel has CONFIG_IRQ_TIME_ACCOUNTING')
    options = parser.parse_args()
    if options.one_pcpu and options.apart:
        parser.error('--one-pcpu would count interrupts twice')
    return options


if __name__ == '__main__':
    sys.exit(main())
