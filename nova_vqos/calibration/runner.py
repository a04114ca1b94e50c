# SPDX-License-Identifier: Apache-2.0
"""Running a benchmark on some pCPUs at once, until enough is known.

The score is work per second of CPU time, not of wall time: time that went to
others does not count, so that a neighbour makes a score scatter but does not
lower it by its share.
"""

import abc
from collections.abc import Callable, Collection, Mapping
import dataclasses
import hashlib
import logging
import os
import pathlib
import queue
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import typing as ty

from nova_vqos.calibration.benchmark import Benchmark
from nova_vqos.calibration.benchmark import CalibrationError

LOG = logging.getLogger(__name__)

#: CPU time of a round: long against a tick and the start of a program, and
#: short enough for many.
ROUND_S = 0.5

# Of one round, and of the first one, which a guest has to boot for; a host may
# be very busy.
_ROUND_TIMEOUT_S = 60
_SILENCE_TIMEOUT_S = 180
_PROGRESS_INTERVAL_S = 3
# Of a program's argument list the kernel takes megabytes.
_MAX_EVENTS = 200_000

Samples = Mapping[int, list[float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The score of one round on a pCPU; or what broke its worker."""

    pcpu: int
    score: float = 0.0
    error: Exception | None = None


class Runner(abc.ABC):
    """Keeps pCPUs busy with a benchmark and scores its rounds.

    :ivar round_events: of a round; None: it depends on the pCPU
    """

    def __init__(self, benchmark: Benchmark) -> None:
        self._benchmark = benchmark
        self.round_events: int | None = None

    @abc.abstractmethod
    def close(self) -> None:
        """Remove what was made to run the benchmark."""

    @abc.abstractmethod
    def work(self, pcpu: int, report: Callable[[float], None],
             stop: threading.Event) -> None:
        """Work on a pCPU until ``stop`` is set, reporting each round's score.

        The first rounds, in which the CPU and caches warm up, are not
        reported. Called in a thread of its own.

        :raises CalibrationError: when the benchmark cannot be run
        """

    def measure(self, pcpus: Collection[int],
                enough: Callable[[Samples], bool],
                progress: Callable[[Samples], str]) -> Samples:
        """Keep these pCPUs busy, all at once, until enough is known.

        :param enough: asked after each round
        :param progress: a line about the samples, for people
        :returns: the scores of each pCPU, taken while all were busy
        :raises CalibrationError: when the benchmark cannot be run, or no
            round ends for minutes
        """
        results: queue.SimpleQueue[Sample] = queue.SimpleQueue()
        stop = threading.Event()
        workers = [threading.Thread(target=self._guarded_work,
                                    args=(pcpu, results, stop))
                   for pcpu in sorted(pcpus)]
        try:
            for worker in workers:
                worker.start()
            return self._collect(pcpus, results, enough, progress)
        finally:
            stop.set()
            for worker in workers:
                # One that was never started cannot be waited for.
                if worker.ident is not None:
                    worker.join()

    def _collect(self, pcpus: Collection[int],
                 results: 'queue.SimpleQueue[Sample]',
                 enough: Callable[[Samples], bool],
                 progress: Callable[[Samples], str]) -> Samples:
        samples: dict[int, list[float]] = {pcpu: [] for pcpu in pcpus}
        waiting = set(pcpus)
        logged_at = time.monotonic()
        while not enough(samples):
            try:
                result = results.get(timeout=_SILENCE_TIMEOUT_S)
            except queue.Empty:
                raise CalibrationError(
                    f'no round of the benchmark ended within '
                    f'{_SILENCE_TIMEOUT_S} s') from None
            if result.error is not None:
                raise result.error
            # A round counts only when all the pCPUs were busy by then.
            if waiting:
                waiting.discard(result.pcpu)
            else:
                samples[result.pcpu].append(result.score)
            if time.monotonic() - logged_at > _PROGRESS_INTERVAL_S:
                logged_at = time.monotonic()
                LOG.info('  %s', progress(samples))
        return samples

    def _guarded_work(self, pcpu: int, results: 'queue.SimpleQueue[Sample]',
                      stop: threading.Event) -> None:
        try:
            self.work(pcpu, lambda score: results.put(Sample(pcpu, score)),
                      stop)
        except Exception as error:
            # It is raised again in the thread that collects.
            results.put(Sample(pcpu, error=error))


class NativeRunner(Runner):
    """Runs the benchmark's program on the host itself."""

    def __init__(self, benchmark: Benchmark) -> None:
        """
        :raises OSError: when what it works with cannot be written
        """
        super().__init__(benchmark)
        self._directory = tempfile.TemporaryDirectory(prefix='vqos-')
        for name, content in benchmark.files.items():
            path = pathlib.Path(self._directory.name, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)

    def close(self) -> None:
        """Remove what the program worked with."""
        self._directory.cleanup()

    def output_sha256(self, events: int) -> str:
        """The hash of what the program writes to its standard output.

        :raises CalibrationError: when it fails, or hangs
        """
        with tempfile.TemporaryFile() as output:
            self._run(events, output)
            output.seek(0)
            return hashlib.file_digest(output, 'sha256').hexdigest()

    def work(self, pcpu: int, report: Callable[[float], None],
             stop: threading.Event) -> None:
        pin(0, pcpu)
        # What starting the program costs is no part of the work; with it goes
        # one event, since none does without.
        first_s = min(self._run(1) for _ in range(3))
        more, work_s = self._find_events(first_s, stop)
        while not stop.is_set():
            more = max(1, min(_MAX_EVENTS, round(more * ROUND_S / work_s)))
            spent_s = self._run(1 + more) - first_s
            # A round that was disturbed so much that it came out shorter than
            # its start is no measurement.
            if spent_s > 0 and not stop.is_set():
                work_s = spent_s
                report(more / work_s)

    def _find_events(self, first_s: float,
                     stop: threading.Event) -> tuple[int, float]:
        """Find events that take clearly longer than the first one.

        :returns: how many beside that one, and the CPU time that they took
        :raises CalibrationError: when they take no more, however many
        """
        more = 1
        while not stop.is_set():
            work_s = self._run(1 + more) - first_s
            if work_s > ROUND_S / 10:
                return more, work_s
            if more > _MAX_EVENTS:
                raise CalibrationError(
                    f'{self._argv(1 + more)} ended after {work_s:.3f} s of '
                    'CPU time beyond its start: it does not do what it was '
                    'asked for')
            more *= 2
        return more, ROUND_S

    def _argv(self, events: int) -> str:
        line = shlex.join(self._benchmark.argv(events))
        return line if len(line) <= 200 else f'{line[:197]}...'

    def _run(self, events: int,
             output: ty.IO[bytes] | int = subprocess.DEVNULL) -> float:
        """Run the program once; the CPU time that it took."""
        with (tempfile.TemporaryFile() as errors,
              subprocess.Popen(self._benchmark.argv(events),
                               cwd=self._directory.name,
                               stdin=subprocess.DEVNULL,
                               stdout=output,
                               stderr=errors) as process):
            watchdog = threading.Timer(_ROUND_TIMEOUT_S, process.kill)
            watchdog.start()
            try:
                # Popen knows no rusage of a single child.
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            finally:
                watchdog.cancel()
            if process.returncode == -signal.SIGKILL:
                raise CalibrationError(
                    f'{self._argv(events)} was killed, as it is after '
                    f'{_ROUND_TIMEOUT_S} s: it hangs, an event takes too '
                    'long, or memory ran out')
            if process.returncode:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - 200))
                said = errors.read().decode(errors='replace').strip()
                raise CalibrationError(
                    f'{self._argv(events)} ended with {process.returncode}: '
                    f'{said}')
        return usage.ru_utime + usage.ru_stime


def go_first() -> None:
    """Let the calling thread run before others, where it may."""
    # NOTE: with cgroup v1 a group may have no time for that, not even root's:
    # rounds scatter more then, their mean is the same.
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK,
                              os.sched_param(1))
    except OSError as error:
        LOG.debug('Measuring without real-time priority: %s', error)


def pin(thread_id: int, pcpu: int) -> None:
    """Let a thread run on one pCPU only.

    :param thread_id: 0: the caller
    :raises CalibrationError: when it may not
    """
    try:
        os.sched_setaffinity(thread_id, {pcpu})
    except OSError as error:
        raise CalibrationError(
            f'cannot run on pCPU {pcpu}: {error.strerror}') from error
