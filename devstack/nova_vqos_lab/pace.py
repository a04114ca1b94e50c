# SPDX-License-Identifier: Apache-2.0
"""How fast a host's pCPU is at the moment.

A lab is often a virtual machine among others: what a CPU second does there
was seen to change by 40 % within a minute, with nothing else running in it.
So the guest that a host was calibrated with goes on running beside the
servers that are measured, on one pCPU, at a fiftieth of their weight. What it
does in a CPU second, against what it did when the host was calibrated, is the
machine's pace. Divided by the pace, a server's error is that of nova_vqos.

It also keeps the pCPU from idling, which a hypervisor below would give away.
"""

import contextlib
import math
import os
import statistics
import sys
import time

from nova_vqos.calibration import benchmark
from nova_vqos.calibration import estimate
from nova_vqos.calibration import guest
from nova_vqos.calibration.cpu import in_guest
from nova_vqos.calibration.cpu import reference
from nova_vqos_lab import cgroups
from nova_vqos_lab import host as hosts
from nova_vqos_lab import paths
from nova_vqos_lab import process

#: The benchmark that measures it.
BENCHMARK = 'integer'
#: Of the guests of all hosts.
GROUP = f'{paths.PREFIX}-pace'

_PROFILE = '/etc/nova-vqos/profile.yaml'
_LOG = '/run/pace'
_START_LIMIT_S = 120
# Of which the guest does many in a minute.
_ROUNDS = 10_000
_LEAST_ROUNDS = 4
# Fewer show too little of how much it changes.
_LEAST_CERTAIN = 10
_DEVSTACK = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Pace:
    """The pace of a host's pCPU, known while its guest runs.

    :ivar pid: of the process that runs its guest, once it was started
    """

    def __init__(self, host: hosts.Host, pcpu: int, score: float) -> None:
        """:param pcpu: the one that the host was calibrated on
        :param score: what that was calibrated with, events per CPU second
        """
        self._host = host
        self._pcpu = pcpu
        self._score = score
        self._log = host.path(_LOG.lstrip('/'))
        # Of each host's own, so that one can be stopped without the others.
        self._group = f'{GROUP}/{host.name}'
        self.pid = 0

    def start(self) -> None:
        """Start the guest, and wait until it works.

        :raises LabError: when it does not
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._log)
        cgroups.create_pace(self._host.hierarchy, self._group)
        running = self._host.popen(
            [sys.executable, '-m', __name__, str(self._pcpu)],
            # It is killed, see stop(), and leaves its files to the lab.
            env={'PYTHONPATH': _DEVSTACK, 'TMPDIR': paths.RUN},
            log=f'pace-{self._host.name}')
        self.pid = running.pid
        # Before it has read its modules, and so with all that it starts.
        cgroups.enter(self._host.hierarchy, self._group, running.pid)
        process.wait_until(
            lambda: len(self._rounds()) >= _LEAST_ROUNDS, _START_LIMIT_S,
            f'the pace of host {self._host.name}', log=running.log,
            alive=running.alive)

    def stop(self) -> None:
        """Kill the guest; another can be started then."""
        cgroups.remove(self._host.hierarchy, self._group)

    def between(self, began_s: float, ended_s: float) -> float:
        """The pace in a time: 1 is that of the calibration.

        Where few rounds ended within it, the last ones before count too.

        :param began_s: by the monotonic clock
        :raises LabError: when it is not known
        """
        # Each is of the same work: as that of all.
        return (statistics.harmonic_mean(self._scores(began_s, ended_s))
                / self._score)

    def uncertainty(self, began_s: float, ended_s: float) -> float:
        """How well the pace in a time is known.

        :returns: half of its interval of 95 %, relative to it; infinite where
            rounds are too few for one
        """
        scores = self._scores(began_s, ended_s)
        if len(scores) < _LEAST_CERTAIN:
            return math.inf
        return estimate.estimate(scores).width / 2

    def _scores(self, began_s: float, ended_s: float) -> list[float]:
        rounds = [one for one in self._rounds() if one[0] <= ended_s]
        within = [one for one in rounds if one[0] >= began_s]
        scores = [score for _, score in
                  max(within, rounds[-_LEAST_ROUNDS:], key=len)]
        if not scores:
            raise process.LabError(
                f'the pace of host {self._host.name} is not known')
        return scores

    def _rounds(self) -> list[tuple[float, float]]:
        """:returns: when each round ended, and its score"""
        try:
            with open(self._log, encoding='ascii') as stream:
                lines = stream.read().split('\n')[:-1]
        except FileNotFoundError:
            return []
        return [(float(at_s), float(score))
                for at_s, score in map(str.split, lines)]


def main() -> None:
    """Run the guest of a pCPU for ever, in the host."""
    pcpu = int(sys.argv[1])
    written = 0

    def note(samples: dict[int, list[float]]) -> bool:
        nonlocal written
        for score in samples[pcpu][written:]:
            stream.write(f'{time.monotonic()} {score}\n')
            written += 1
        return False

    known = reference.load(_PROFILE).reference.benchmark(BENCHMARK)
    with (open(_LOG, 'a', encoding='ascii', buffering=1) as stream,
          contextlib.closing(in_guest.GuestRunner(
              benchmark.load(BENCHMARK, {}),
              emulator=in_guest.find_emulator(),
              virt_type='qemu', kernel=guest.find_kernel(),
              max_rounds=_ROUNDS,
              round_events=known.round_events)) as runner):
        runner.measure({pcpu}, note, lambda _: '')


if __name__ == '__main__':
    main()
