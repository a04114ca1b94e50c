#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of its promise each server gets, by quotas and by guarantees.

A real agent, and real QEMU guests that spin, on a host that is sold out: as
much as the kernel reserves, less what is not sold and what I/O takes. Each
case is measured with quotas alone and with guarantees, alone and beside
processes of the host that spin. Prints the least and the most that a server
got, as parts of its promise; and, with two servers more, and so much less sold
to the others, how long requests of 2 ms take at a load of 20 %, and reads of a
disk. With a guarantee those two are of class io.
"""

import contextlib
import dataclasses
from fractions import Fraction
import os
import time

import lab_host
import latency_guest
import libvirt
import rom_guests

from nova_vqos import guarantee
from nova_vqos import policy
from nova_vqos.hypervisor.linux import deadline
from nova_vqos_lab import cgroups
from nova_vqos_lab import noise
from nova_vqos_lab import process

# vCPUs of each part of a pCPU, on two pCPUs. What a case sells is made smaller
# until it fits.
CASES = ('2x90', '3x60', '4x45', '5x36', '3x55+3x5', '40x4')
ENFORCEMENTS = ('quota', 'guarantee')
_LIMIT_S = 60
# Until caps, guests and noise go on evenly.
_SETTLE_S = 2.0
# Until reservations of I/O have followed what it uses.
_FOLLOW_S = 15.0
_STEP = Fraction(99, 100)
# Of the server whose requests take 20 % of a pCPU, and of that which reads its
# disk.
_SERVING_CU = _READING_CU = 30


@dataclasses.dataclass(frozen=True)
class Result:
    """What the servers of a case got.

    :ivar case: see CASES
    :ivar sold: CU of each server, on pCPUs of 100 CU
    :ivar noise: whether other processes spun beside
    :ivar least: of its promise that any server got, in any window
    :ivar most: likewise
    :ivar p99_ms: of requests, from the arrival of each to its end
    :ivar disk_p50_ms: of reads of a disk
    :ivar disk_p99_ms: likewise
    """

    case: str
    sold: list[int]
    enforcement: str
    noise: bool
    least: float
    most: float
    p99_ms: float
    disk_p50_ms: float
    disk_p99_ms: float


def sold_cu(case: str, pcpus: int, *beside_cu: int) -> list[int]:
    """CU of each server: as in the case, or as much as fits in proportion.

    :param beside_cu: of servers more
    """
    free = guarantee.sellable_pcpus(deadline.free_bandwidth(pcpus)) - sum(
        guarantee.cost_pcpus(Fraction(cu, 100), 1) for cu in beside_cu)
    parts = [int(share) for group in case.split('+')
             for count, share in [group.split('x')]
             for _ in range(int(count) * pcpus // 2)]
    scale = Fraction(1)
    while True:
        found = [max(int(part * scale), 4) for part in parts]
        if sum(guarantee.cost_pcpus(Fraction(cu, 100), 1)
               for cu in found) <= free:
            return found
        if found[-1] == max(found) == 4:
            # No smaller: fewer.
            parts.pop()
        else:
            scale *= _STEP


@contextlib.contextmanager
def guests(bench: lab_host.BenchHost, cus: list[int], enforcement: str, *,
           measuring: bool = False):
    """Guests with what they are promised in force.

    :param cus: of each that spins
    :param measuring: whether there are one that serves requests and one that
        reads its disk, too
    :returns: all; those two are the last
    """
    connection = libvirt.open(bench.host.libvirt_uri)
    specs = {} if enforcement == 'quota' else {
        policy.GUARANTEE_KEY: 'required'}
    made, latency = [], []
    try:
        if measuring:
            short = specs and {**specs, policy.QUANTUM_CLASS_KEY: 'io'}
            latency = [
                latency_guest.LatencyGuest(bench, name, cu, short, does)
                for name, cu, does in (
                    ('serving', _SERVING_CU, latency_guest.SERVES),
                    ('reading', _READING_CU, latency_guest.READS))]
            # They boot before the others use the host.
            process.wait_until(lambda: all(one.done() for one in latency),
                               _LIMIT_S, 'the first request and read')
        for number, cu in enumerate(cus):
            kind = rom_guests.Kind(busy_units=cu, has_devices=False,
                                   spins=True)
            made.append(rom_guests.RomGuest(
                connection, number, kind, is_busy=True, specs=specs))
        if enforcement == 'guarantee':
            process.wait_until(
                lambda: all(deadline.reservation(
                    bench.vcpu_thread(one.domain.name()))
                            for one in [*made, *latency]), _LIMIT_S,
                'all reservations', log=bench.agent.log)
        time.sleep(_SETTLE_S)
        yield [*made, *latency]
    finally:
        for one in [*made, *latency]:
            one.domain.destroy()
        process.wait_until(lambda: not connection.listAllDomains(), _LIMIT_S,
                           'the end of all guests')


def parts(bench: lab_host.BenchHost, made: list[rom_guests.RomGuest],
          cus: list[int], windows: int, seconds: float) -> list[float]:
    """What each got of its promise, in each window."""
    groups = [bench.host.vcpu_cgroup(one.domain.name()) for one in made]

    def used_ns():
        return [cgroups.cpu_time_ns(bench.host.hierarchy, one)
                for one in groups]
    found = []
    for _ in range(windows):
        before, began_ns = used_ns(), time.monotonic_ns()
        # The length of the measurement.
        time.sleep(seconds)
        after, wall_ns = used_ns(), time.monotonic_ns() - began_ns
        found += [(now - then) / wall_ns * 100 / cu for now, then, cu
                  in zip(after, before, cus, strict=True)]
    return found


def latencies_ms(measuring: list[latency_guest.LatencyGuest], windows: int,
                 seconds: float) -> list[list[float]]:
    """How long what each did took, in order of that."""
    found = [[] for _ in measuring]
    for _ in range(windows):
        first = [one.done() for one in measuring]
        # The length of the measurement.
        time.sleep(seconds)
        for took, one, done in zip(found, measuring, first, strict=True):
            took += one.since_ms(done)
    return [sorted(took) for took in found]


def quantile(values: list[float], part: float) -> float:
    return round(values[int(len(values) * part)], 2)


def run(bench, running, options):
    pcpus = len(bench.host.pcpus)
    for case in options.cases:
        cus = sold_cu(case, pcpus)
        less = sold_cu(case, pcpus, _SERVING_CU, _READING_CU)
        for enforcement in ENFORCEMENTS:
            lab_host.say(f'{case} by {enforcement}: '
                         f'{len(cus)} servers, {sum(cus)} CU')
            got, took = [], []
            with guests(bench, cus, enforcement) as made:
                for beside in contextlib.nullcontext, running:
                    with beside():
                        got.append(parts(bench, made, cus, options.windows,
                                         options.seconds))
            with guests(bench, less, enforcement, measuring=True) as made:
                time.sleep(_FOLLOW_S)
                for beside in contextlib.nullcontext, running:
                    with beside():
                        took.append(latencies_ms(made[-2:], options.windows,
                                                 options.seconds))
            for is_noisy in False, True:
                requests_ms, reads_ms = took[is_noisy]
                yield Result(
                    case, cus, enforcement, is_noisy,
                    round(min(got[is_noisy]), 4), round(max(got[is_noisy]), 4),
                    quantile(requests_ms, 0.99), quantile(reads_ms, 0.5),
                    quantile(reads_ms, 0.99))


def main():
    parser = lab_host.argparse.ArgumentParser(description=__doc__.split(
        '\n', 1)[0])
    parser.add_argument('--cases', nargs='+', default=CASES, metavar='NxP',
                        help=f'default: {" ".join(CASES)}')
    parser.add_argument('--seconds', type=float, default=10.0,
                        help='length of a window (default: %(default)s)')
    parser.add_argument('--windows', type=int, default=3,
                        help='of each case (default: %(default)s)')
    parser.add_argument('--noise', type=int, default=10,
                        help='processes that spin (default: %(default)s)')
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args()
    lab_host.prepare()
    found = []
    with lab_host.started() as bench:
        rom_guests.install_roms(bench)
        latency_guest.install(bench)
        # Otherwise the lab's guests go before all else.
        cgroups.weigh_equally(bench.host.hierarchy, bench.host.cgroup)
        bench.start_guaranteeing_agent()
        print(f'{len(bench.host.pcpus)} pCPUs, Linux {os.uname().release}')
        print(f'{"case":10} {"sold CU":>8} {"by":10} {"beside":>7} '
              f'{"least":>7} {"most":>7} {"p99 ms":>8} {"disk p50":>9} '
              f'{"disk p99":>9}')
        with noise.spinners(bench.host, options.noise) as running:
            for one in run(bench, running, options):
                found.append(dataclasses.asdict(one))
                print(f'{one.case:10} {sum(one.sold):8} {one.enforcement:10} '
                      f'{"noise" if one.noise else "-":>7} '
                      f'{one.least:7.3f} {one.most:7.3f} '
                      f'{one.p99_ms:8.2f} {one.disk_p50_ms:9.2f} '
                      f'{one.disk_p99_ms:9.2f}', flush=True)
        bench.stop_agent()
    lab_host.save({'kernel': os.uname().release, 'cases': found},
                  options.json)


if __name__ == '__main__':
    main()
