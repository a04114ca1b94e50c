# SPDX-License-Identifier: Apache-2.0
"""A proof that a server has its speed, on either host, from its first moment.

A server of 60 CU moves between the hosts, again and again. Two equalities are
looked at, each for itself:

CPU time
    What its vCPU uses is its cap, in windows of 1, 10 and 60 s from the first
    instruction on each host on. That is what nova_vqos controls. It is divided
    by nothing. A cap is a bucket that is full at first: in the first window a
    vCPU may use one quota more.
work
    A second of its CPU time does as much, by the instructions that it retires,
    as a second of the calibration's guest, which runs beside it, on both hosts
    alike. That is what a calibration assumes: it is shown to be so, or not, by
    the test in equivalence.py.

The speed of the server on fast over that on slow follows from both and from
the profiles. It is shown as it is, with the drift of the machine since it was
calibrated in it; and so is that drift, by the calibration's guest.

What was decided before the first run: blocks of ten periods, the first two
seconds on a host not among them; eight cycles of fast, slow, slow, fast, of 13
blocks a visit; a margin of 1 %, intervals of 95 %. The first second on a host
is that after its first instruction there, against the blocks that follow; at
the boot it is the control.

What was changed since: after the first run the first quota is allowed for, CPU
time of the first second is shown beside its work, and means of blocks are
arithmetic; after the second, slow is slow by its clock; after the third, the
calibration's guest is a new one for each stay, as the server's QEMU is: no two
processes are equally fast.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import statistics
import time

import numpy as np
import prettytable

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import equivalence
from nova_vqos_lab import gauge
from nova_vqos_lab import meter
from nova_vqos_lab import pace
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import visits

CYCLES = 8
_WINDOWS_S = (1, 10, 60)
_CALIBRATION_S = 150
_GUEST_LIMIT_S = 180
# After the last block, for the samples around its end.
_MARGIN_S = 0.2
_HOSTS = ('fast', 'slow')


@dataclasses.dataclass(frozen=True)
class Visit:
    """Half of what is between two moves, or what is before or after all.

    :ivar speeds: of each block, instructions of the server per second
    :ivar works: of each block, the same per second of CPU time
    :ivar paces: of each block, that of the calibration's guest
    :ivar rounds: work per CPU second of the calibration's guest by its own
        rounds, over what it was when it was calibrated
    """

    speeds: tuple[float, ...]
    works: tuple[float, ...]
    paces: tuple[float, ...]
    rounds: float

    @property
    def speed(self) -> float:
        """Instructions of the server per second."""
        return statistics.fmean(self.speeds)

    @property
    def work(self) -> float:
        """Of the server, over that of the calibration's guest."""
        return statistics.fmean(self.works) / statistics.fmean(self.paces)


@dataclasses.dataclass(frozen=True)
class Stay:
    """A server's time on a host, from when it came until it left.

    :ivar boot: whether it booted there
    :ivar visits: one or two
    :ivar cpu_errors: by the length of windows in seconds, the CPU time in each
        of them over the cap, less 1
    :ivar first_second: instructions in the first second over those in a second
        of the blocks, less 1
    :ivar share: of a pCPU, by its cap
    :ivar quota_s: of its cap
    :ivar longest_gap_s: between two samples
    """

    host: str
    boot: bool
    visits: tuple[Visit, ...]
    cpu_errors: Mapping[int, tuple[float, ...]]
    first_second: float
    share: float
    quota_s: float
    longest_gap_s: float

    @property
    def is_cpu_time_exact(self) -> bool:
        """Whether CPU time is the cap in each window of 10 s."""
        return visits.is_cpu_time_exact(
            self.cpu_errors[visits.JUDGED_WINDOW_S], self.share, self.quota_s)


@dataclasses.dataclass(frozen=True)
class Proof:
    """What was found.

    :ivar stays: in their order
    :ivar pcpu_cu: by host, the speed of its pCPU by its profile
    """

    stays: tuple[Stay, ...]
    pcpu_cu: Mapping[str, float]

    @property
    def is_cpu_time_exact(self) -> bool:
        """Whether it is in each stay."""
        return all(stay.is_cpu_time_exact for stay in self.stays)

    @property
    def is_shown(self) -> bool:
        """Whether both equalities are."""
        return self.is_cpu_time_exact and self.work().is_shown_equal

    def work(self) -> equivalence.Difference:
        """:returns: of work per CPU second on fast, over that of the
            calibration's guest, from the same on slow
        """
        return self._compare(lambda visit: visit.work)

    def differences(self) -> dict[str, equivalence.Difference]:
        """:returns: of fast from slow, by what is compared"""
        return {
            "work per CPU second, over that of the calibration's guest":
                self.work(),
            'speed of the server': self._compare(lambda visit: visit.speed),
            "hosts, by the calibration's guest, over the profiles":
                self._compare(lambda visit: visit.rounds),
        }

    def _compare(self, of: Callable[[Visit], float]
                 ) -> equivalence.Difference:
        return equivalence.compare(visits.in_cycles([
            of(visit) for stay in self.stays for visit in stay.visits]))

    def table(self) -> str:
        """:returns: all of it, for people"""
        caps = prettytable.PrettyTable(
            ['windows', 'host', 'first', 'CPU time of the first over the cap',
             'later', 'CPU time of later ones over the cap'], align='r')
        for length_s, host in itertools.product(_WINDOWS_S, _HOSTS):
            stays = [stay.cpu_errors[length_s] for stay in self.stays
                     if stay.host == host and stay.cpu_errors[length_s]]
            first = [errors[0] for errors in stays]
            later = [error for errors in stays for error in errors[1:]]
            caps.add_row([f'{length_s} s', host, len(first), _range(first),
                          len(later), _range(later)])
        firsts = prettytable.PrettyTable(
            ['first second', 'host', 'times', 'CPU time over the cap',
             'instructions over a later second'], align='r')
        for boot, host in itertools.product((True, False), _HOSTS):
            stays = [stay for stay in self.stays
                     if (stay.boot, stay.host) == (boot, host)]
            if stays:
                firsts.add_row([
                    'boot' if boot else 'migrated', host, len(stays),
                    _range([stay.cpu_errors[1][0] for stay in stays]),
                    _range([stay.first_second for stay in stays])])
        blocks = {host: sum(len(visit.works) for stay in self.stays
                            for visit in stay.visits if stay.host == host)
                  for host in _HOSTS}
        lines = [str(caps), str(firsts)]
        lines += [f'{what}, fast against slow: {found}'
                  for what, found in self.differences().items()]
        gap_s = max(stay.longest_gap_s for stay in self.stays)
        lines.append(
            f'{blocks["fast"]} blocks on fast, {blocks["slow"]} on slow, of '
            f'{visits.BLOCK_PERIODS} periods; by the profiles fast is '
            f'{self.pcpu_cu["fast"] / self.pcpu_cu["slow"]:.3f} times slow; '
            f'samples are {gap_s * 1e3:.0f} ms apart at most')
        return '\n'.join(lines)

    def write(self, path: str) -> None:
        """Write all of it as JSON."""
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump(dataclasses.asdict(self) | {
                'differences': {
                    what: dataclasses.asdict(found) | {
                        'is_shown_equal': found.is_shown_equal}
                    for what, found in self.differences().items()}},
                stream, indent=1)
            stream.write('\n')


def run(lab: clouds.Lab, cycles: int = CYCLES) -> Proof:
    """Make the cloud anew, calibrate it, and measure.

    :raises LabError: when something of it fails
    """
    lab.down()
    benchmarks = (pace.BENCHMARK,)
    lab.up()
    lab.profiles.calibrate(benchmarks, _CALIBRATION_S)
    with lab.profiles.paces() as paces:
        profiles.start_paces(paces)
        lab.deploy()
        with lab.cloud() as cloud:
            stays = tuple(_stays(lab, cloud, paces, cycles))
    return Proof(stays, {name: lab.profiles.pcpu_cu(name)
                         for name in lab.hosts})


def _stays(lab: clouds.Lab, cloud: client.Cloud,
           paces: Mapping[str, pace.Pace], cycles: int) -> Iterator[Stay]:
    kind = gauge.CALIBRATED
    image = cloud.make_image(
        'proof', guest.find_kernel(), clouds.initramfs(), guest.command_line(
            [kind], events={kind: lab.profiles.benchmark().round_events}))
    cloud.make_flavor('proof', {
        policy.UNITS_KEY: str(gauge.PROMISED_CU)})
    server = cloud.boot('proof', 'proof', image, 'fast')
    domain = process.wait_until(lambda: server.domain, _GUEST_LIMIT_S,
                                'the name of the guest')
    counts = visits.counts(cycles)
    for number, (name, count) in enumerate(zip(
            itertools.cycle(_HOSTS), counts)):
        host = lab.hosts[name]
        if number:
            paces[name].stop()
            paces[name].start()
        vcpu = meter.of_child(host, paces[name].pid)
        with (meter.Meter(lambda vcpu=vcpu: vcpu,
                          f"the calibration's guest on {name}") as beside,
              meter.Meter(lambda host=host: meter.of_server(host, domain),
                          domain) as measured):
            if number:
                server.migrate(name)
            else:
                server.wait_active()
                process.wait_until(
                    lambda: guest.rounds(server.console().splitlines()),
                    _GUEST_LIMIT_S, 'the first work of the server')
            first_ns = int(measured.series().from_first_instruction().at_ns[0])
            began_ns = (first_ns + visits.SETTLED_NS if number
                        else time.monotonic_ns())
            visit_ns = visits.VISIT_BLOCKS * _block_ns()
            # The first stay on each host has windows of all lengths.
            longest_s = (max(_WINDOWS_S) if number < len(_HOSTS)
                         else visits.JUDGED_WINDOW_S)
            ends_ns = max(began_ns + count * visit_ns,
                          first_ns + longest_s * 10**9)
            process.say(f'   [{number + 1} of {len(counts)}] on {name}, '
                        f'{(ends_ns - first_ns) / 1e9:.0f} s')
            # The length of the measurement.
            time.sleep(max(0, ends_ns - time.monotonic_ns()) / 1e9
                       + _MARGIN_S)
            quota_us, period_us = host.vcpu_cap(domain) or (-1, 1)
            if quota_us <= 0:
                raise process.LabError(f'{domain} has no cap on {name}')
            series = measured.series().from_first_instruction()
            found = tuple(
                _visit(series, beside.series(), paces[name],
                       began_ns + half * visit_ns) for half in range(count))
            yield _stay(name, not number, series, found,
                        quota_us / 1e6, period_us / 1e6)
    server.delete()


def _block_ns() -> int:
    return visits.block_ns(config.period_us())


def _visit(server: meter.Series, beside: meter.Series, one: pace.Pace,
           began_ns: int) -> Visit:
    edges_ns = visits.block_edges_ns(began_ns, config.period_us())
    done = server.work_between(edges_ns)
    return Visit(
        visits.listed(done / _block_ns() * 1e9),
        visits.listed(done / server.cpu_between_ns(edges_ns) * 1e9),
        visits.listed(beside.work_between(edges_ns)
                      / beside.cpu_between_ns(edges_ns) * 1e9),
        one.between(int(edges_ns[0]) / 1e9, int(edges_ns[-1]) / 1e9))


def _stay(host: str, boot: bool, server: meter.Series,
          seen: tuple[Visit, ...], quota_s: float, period_s: float) -> Stay:
    share = quota_s / period_s
    errors = {length_s: visits.cpu_errors(server, share, length_s)
              for length_s in _WINDOWS_S}
    (first,) = server.work_between(server.edges_ns(10**9)[:2])
    later = statistics.fmean(visit.speed for visit in seen)
    return Stay(host, boot, seen, errors, float(first) / later - 1, share,
                quota_s, float(np.diff(server.at_ns).max() / 1e9))


def _range(errors: Sequence[float]) -> str:
    """:returns: for people: the median, the least and the greatest"""
    if not errors:
        return '-'
    return (f'{statistics.median(errors):+.2%} ({min(errors):+.2%} to '
            f'{max(errors):+.2%})')
