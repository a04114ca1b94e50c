# SPDX-License-Identifier: Apache-2.0
"""What the servers of the story get: CPU time and speed, each for itself.

CPU time
    What the vCPU uses, over its cap, in windows of 10 s from the first moment
    on at which it ran on this host, and in the first second after that. The
    product answers for it, so it is divided by nothing. A cap is a bucket that
    is full at first: the first window may have one quota more.
speed
    Work that the guest counts, over what the reference does in a CPU second.
    The calibration answers for it, and says how far this kind of work is from
    the mean of all. The machine's pace (pace.py) is divided out, and what is
    left has an interval: of the pace, and of the profile.
"""

from collections.abc import Mapping
import math
import time

from nova_vqos.profile import cpu
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import meter
from nova_vqos_lab import pace
from nova_vqos_lab import process
from nova_vqos_lab import results
from nova_vqos_lab import verdict
from nova_vqos_lab import visits
from nova_vqos_lab import watch

#: Of each server that the story follows.
PROMISED_CU = 60
#: The kind of the servers' work, by which the machine's pace is known, too.
CALIBRATED = 'sysbench'
#: How far the calibrated kind of work may be off.
TOLERANCE = 0.03
#: A wrong cap is further off: the lab's hosts differ by two.
COARSE_TOLERANCE = 0.1
#: The first second is short: a server's last quota in it may be cut off.
FIRST_SECOND_TOLERANCE = 0.02
WINDOWS = 2
_WINDOW_S = visits.JUDGED_WINDOW_S
_CLOCK_TOLERANCE = 0.05
# Of when a round was seen to end.
_LOOK_S = 0.5
_NAME_LIMIT_S = 60
# For the samples around the end of the last window.
_MARGIN_S = 0.1


class Gauge:
    """Measures servers, and notes what they got."""

    def __init__(self, lab: clouds.Lab, paces: Mapping[str, pace.Pace],
                 benchmarks: Mapping[str, cpu.Benchmark],
                 found: results.Results) -> None:
        """:param paces: of the hosts' pCPUs
        :param benchmarks: of each kind of work, with the reference's score
        :param found: where measurements and checks are noted
        """
        self._lab = lab
        self._paces = paces
        self._benchmarks = benchmarks
        self._found = found

    # Speed.

    def speed(self, story: str, server: client.Server, moment: str, *,
              promised_cu: int, rounds: int) -> results.Measurement:
        """Measure the speed of a server that does the calibrated work."""
        return self.speeds(story, {server: CALIBRATED}, moment,
                           promised_cu=promised_cu, rounds=rounds)[server]

    def speeds(self, story: str, servers: Mapping[client.Server, str],
               moment: str, *, promised_cu: int, rounds: int
               ) -> dict[client.Server, results.Measurement]:
        """Measure the speed of servers at the same time.

        :param story: what their flavor has
        :param servers: with the kind of work of each
        :param rounds: how many of each at least
        """
        watched = {server: (self._lab.hosts[server.host], kind)
                   for server, kind in servers.items()}
        seen = watch.measure(watched, rounds=rounds)
        return {
            server: self._note_speed(story, host.name, moment, kind,
                                     promised_cu, seen[server])
            for server, (host, kind) in watched.items()}

    def _note_speed(self, story: str, host: str, moment: str, kind: str,
                    promised_cu: int, speed: watch.Speed
                    ) -> results.Measurement:
        during = speed.began_s, speed.ended_s
        pace_then = self._paces[host].between(*during)
        raw_cu = speed.steady * 100 / self._benchmarks[kind].score
        found = results.Measurement(
            story, host, moment, kind, promised_cu,
            round(raw_cu / pace_then, 2), round(raw_cu, 2),
            round(pace_then, 4), round(math.hypot(
                self._paces[host].uncertainty(*during),
                self._lab.profiles.uncertainty(host) / 2, speed.unsteady), 4),
            0.0 if story == 'work' else round(
                self._lab.profiles.kind_error(
                    host, self._benchmarks[kind].name), 4))
        self._found.measurements.append(found)
        process.say(
            f'          {story} on {host}, {moment}, {kind}: '
            f'{found.raw_cu:.1f} CU; at the pace of the calibration '
            f'{found.delivered_cu:.1f} CU ({found.error:+.1%}, by the profile '
            f'{found.predicted_error:+.1%}, uncertainty '
            f'{results.plus_minus(found.uncertainty)}), the machine had '
            f'{found.pace:.1%} of it; {speed.rounds} rounds')
        if moment == 'migrated' and story == 'units' and kind == CALIBRATED:
            uncertain = (max(_LOOK_S, speed.late_s) / speed.clock_s
                         if speed.clock_s else math.inf)
            self._found.check(
                f'guest-clock-on-{host}', verdict.of_error(
                    speed.clock_error, _CLOCK_TOLERANCE, uncertain),
                f'the guest counts {speed.clock_error:+.1%} seconds, '
                f'{results.plus_minus(uncertain)}')
        return found

    def check_speed(self, found: results.Measurement) -> None:
        """Judge the speed of a server that has units."""
        predicted_cu = found.promised_cu * (1 + found.predicted_error)
        self._found.check(
            f'speed-on-{found.host}-{found.moment}', verdict.of_error(
                found.delivered_cu / predicted_cu - 1, TOLERANCE,
                found.uncertainty, found.raw_cu / predicted_cu - 1),
            f'{found.raw_cu:.1f} of {found.promised_cu:.0f} CU; at the pace '
            f'of the calibration {found.delivered_cu:.1f}, {found.error:+.1%} '
            f'{results.plus_minus(found.uncertainty)}; for this kind of '
            f'work the profile says {found.predicted_error:+.1%}, wanted: '
            f'within {TOLERANCE:.0%} of that')

    # CPU time.

    def meter_of(self, server: client.Server, host: str) -> meter.Meter:
        """:returns: of a server that is about to come to a host"""
        # Nova names it a moment after it was asked for it.
        domain = process.wait_until(lambda: server.domain, _NAME_LIMIT_S,
                                    f'the name of the guest of {server.name}')
        return meter.Meter(
            lambda: meter.of_uncounted(self._lab.hosts[host], domain), domain)

    def check_cpu_time(self, measured: meter.Meter, host: str, moment: str,
                       cap: tuple[int, int]) -> None:
        """Wait for the end of all windows, and judge them.

        :param measured: of a guest since before it came to the host
        :param cap: quota and period, in microseconds
        """
        series = self._wait_windows(measured, WINDOWS)
        found = cpu_time(series, host, moment, cap)
        (first_still, *_), still = (visits.still(series, length_s)
                                    for length_s in (1, _WINDOW_S))
        self._found.cpu_times.append(found)
        quota = cap[1] / 1e6
        self._found.check(
            f'first-second-on-{host}-{moment}', verdict.of_cpu_time(
                found.first_second, FIRST_SECOND_TOLERANCE, quota,
                is_first=True, still=first_still),
            f'CPU time {found.first_second:+.1%} of the cap of '
            f'{found.share:.2%}, one quota is {quota:.0%}')
        self._found.check(
            f'cpu-time-on-{host}-{moment}', verdict.of_all(*(
                verdict.of_cpu_time(error, visits.CPU_TOLERANCE,
                                    quota / _WINDOW_S, is_first=not number,
                                    still=still[number])
                for number, error in enumerate(found.windows))),
            f'{", ".join(f"{error:+.2%}" for error in found.windows)} of the '
            f'cap of {found.share:.2%} in windows of {_WINDOW_S} s, wanted: '
            f'within {visits.CPU_TOLERANCE:.1%}, one quota more in the first')

    def check_coarsely(self, measured: meter.Meter, host: str,
                       cap: tuple[int, int]) -> None:
        """Wait for the end of the first window, and judge it coarsely.

        :param measured: of a guest since before it came to the host
        :param cap: quota and period, in microseconds
        """
        series = self._wait_windows(measured, 1)
        (error, *_), (still, *_) = (
            visits.cpu_errors(series, cap[0] / cap[1], _WINDOW_S),
            visits.still(series, _WINDOW_S))
        self._found.check(
            f'coarse-cpu-time-on-{host}', verdict.of_cpu_time(
                error, COARSE_TOLERANCE, cap[1] / 1e6 / _WINDOW_S,
                is_first=True, still=still),
            f'{error:+.1%} of the cap in the first {_WINDOW_S} s, wanted: '
            f'within {COARSE_TOLERANCE:.0%}')

    @staticmethod
    def _wait_windows(measured: meter.Meter, count: int) -> meter.Series:
        """Wait until that many windows have ended since a guest first ran."""
        first_ns = int(measured.series().from_first_run().at_ns[0])
        ends_ns = first_ns + count * _WINDOW_S * 10**9
        # The length of the measurement.
        time.sleep(max(0, ends_ns - time.monotonic_ns()) / 1e9 + _MARGIN_S)
        return measured.series().from_first_run()


def cpu_time(series: meter.Series, host: str, moment: str,
             cap: tuple[int, int]) -> results.CpuTime:
    """Compare the CPU time of a vCPU with its cap.

    :param series: from before it ran on
    :param cap: quota and period, in microseconds
    :raises LabError: when it was not seen to run
    :raises ValueError: when the series does not last for all windows
    """
    running = series.from_first_run()
    share = cap[0] / cap[1]
    (first_second, *_), windows = (
        visits.cpu_errors(running, share, length_s)
        for length_s in (1, _WINDOW_S))
    if len(windows) < WINDOWS:
        raise ValueError(f'{len(windows)} windows of {_WINDOW_S} s were '
                         f'measured, {WINDOWS} are needed')
    return results.CpuTime(host, moment, share, first_second,
                           windows[:WINDOWS])
