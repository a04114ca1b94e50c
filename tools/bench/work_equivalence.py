# SPDX-License-Identifier: Apache-2.0
"""What kvm_equivalence.py found: pure arithmetic, and tables of it."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import statistics
import typing as ty

import prettytable

from nova_vqos_lab import equivalence
from nova_vqos_lab import process
from nova_vqos_lab import visits

HOSTS = ('fast', 'slow')
WINDOWS_S = (1, visits.JUDGED_WINDOW_S)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """What a guest had and did in each block of a visit.

    :ivar rounds: of its loop
    :ivar cpu_ns: CPU time; none in a block where others left it none
    """

    rounds: tuple[float, ...]
    cpu_ns: tuple[float, ...]

    def __post_init__(self) -> None:
        """:raises LabError: when it did nothing in all of them"""
        if not sum(self.cpu_ns) or not sum(self.rounds):
            raise process.LabError(
                'a guest did nothing during a visit: others use its pCPU')

    @property
    def work(self) -> float:
        """Rounds per second of CPU time, of all blocks."""
        return sum(self.rounds) / sum(self.cpu_ns) * 1e9


@dataclasses.dataclass(frozen=True)
class Visit:
    """Half of a stay, or all of the first or of the last one.

    :ivar server: what the server did
    :ivar beside: what the calibration's guest did
    """

    server: Blocks
    beside: Blocks

    @property
    def work(self) -> float:
        """Of the server, over that of the calibration's guest."""
        return self.server.work / self.beside.work


@dataclasses.dataclass(frozen=True)
class Stay:
    """A server's time on a host.

    :ivar visits: one or two
    :ivar cpu_errors: by the length of windows in seconds, the CPU time in each
        of them over the cap, less 1
    :ivar cap: quota and period in microseconds
    :ivar longest_gap_s: between two samples
    """

    host: str
    visits: tuple[Visit, ...]
    cpu_errors: Mapping[int, tuple[float, ...]]
    cap: tuple[int, int]
    longest_gap_s: float

    @property
    def share(self) -> float:
        """Of a pCPU, by the cap."""
        return self.cap[0] / self.cap[1]

    @property
    def is_cpu_time_exact(self) -> bool:
        """Whether CPU time is the cap in each window that is judged."""
        return visits.is_cpu_time_exact(
            self.cpu_errors[visits.JUDGED_WINDOW_S], self.share,
            self.cap[0] / 1e6)


@dataclasses.dataclass(frozen=True)
class Found:
    """All of a run.

    :ivar settings: of the run, by name
    :ivar stays: in their order
    """

    settings: Mapping[str, ty.Any]
    stays: Sequence[Stay]

    @property
    def is_cpu_time_exact(self) -> bool:
        """Whether it is in each stay."""
        return all(stay.is_cpu_time_exact for stay in self.stays)

    @property
    def is_shown(self) -> bool:
        """Whether both equalities are."""
        return self.is_cpu_time_exact and self.work().is_shown_equal

    def work(self) -> equivalence.Difference:
        """:returns: of what is judged: work on fast from work on slow"""
        return self._compare(lambda visit: visit.work)

    def differences(self) -> dict[str, equivalence.Difference]:
        """:returns: by what is compared; without the hosts against
            themselves, where these are too few visits
        """
        found = {
            "server over the calibration's guest, fast against slow":
                self.work(),
            'server alone, fast against slow':
                self._compare(lambda visit: visit.server.work),
            "calibration's guest alone, fast against slow":
                self._compare(lambda visit: visit.beside.work)}
        for host in HOSTS:
            cycles = visits.in_cycles([
                visit.work for stay in self.stays if stay.host == host
                for visit in stay.visits])
            if len(cycles) >= equivalence.LEAST_CYCLES:
                found["server over the calibration's guest, "
                      f'{host} against itself'] = equivalence.compare(cycles)
        return found

    def _compare(self, of: Callable[[Visit], float]
                 ) -> equivalence.Difference:
        return equivalence.compare(visits.in_cycles([
            of(visit) for stay in self.stays for visit in stay.visits]))

    def blocks(self) -> dict[str, int]:
        """:returns: how many there are, by host"""
        return {host: sum(len(visit.server.rounds) for stay in self.stays
                          for visit in stay.visits if stay.host == host)
                for host in HOSTS}

    def table(self) -> str:
        """:returns: all of it, for people"""
        work = prettytable.PrettyTable(
            ['work per CPU second', 'mean', 'low, 95 %', 'high, 95 %', ''],
            align='r')
        work.align['work per CPU second'] = 'l'
        for what, one in self.differences().items():
            work.add_row([what, *(f'{number:+.3%}' for number in (
                one.mean, one.low, one.high)), one.verdict])
        caps = prettytable.PrettyTable(
            ['CPU time over the cap', 'host', 'cap', 'first windows',
             'later windows', 'later ones'], align='r')
        for length_s, host in itertools.product(WINDOWS_S, HOSTS):
            stays = [stay for stay in self.stays if stay.host == host]
            errors = [stay.cpu_errors[length_s] for stay in stays]
            later = [error for one in errors for error in one[1:]]
            caps.add_row([
                f'windows of {length_s} s', host,
                '{}/{}'.format(*stays[0].cap),
                _range([one[0] for one in errors]), _range(later),
                len(later)])
        gap_s = max(stay.longest_gap_s for stay in self.stays)
        return '\n'.join([
            str(work), str(caps),
            f'{self.blocks()["fast"]} blocks on fast, '
            f'{self.blocks()["slow"]} on slow, of {visits.BLOCK_PERIODS} '
            f'periods; samples are {gap_s * 1e3:.0f} ms apart at most',
            'CPU time is '
            f'{"" if self.is_cpu_time_exact else "NOT "}the cap within '
            f'{visits.CPU_TOLERANCE:.1%} in each window of '
            f'{visits.JUDGED_WINDOW_S} s',
            f'work per CPU second: {self.work().verdict}, by a margin of '
            f'{equivalence.MARGIN:.0%}'])

    def report(self) -> dict[str, ty.Any]:
        """:returns: all of it, for JSON"""
        return dataclasses.asdict(self) | {
            'is_cpu_time_exact': self.is_cpu_time_exact,
            'is_shown': self.is_shown,
            'blocks': self.blocks(),
            'differences': {
                what: dataclasses.asdict(one) | {'verdict': one.verdict}
                for what, one in self.differences().items()}}


def _range(errors: Sequence[float]) -> str:
    """:returns: the median, the least and the greatest"""
    if not errors:
        return '-'
    return (f'{statistics.median(errors):+.2%} ({min(errors):+.2%} to '
            f'{max(errors):+.2%})')
