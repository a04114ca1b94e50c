# SPDX-License-Identifier: Apache-2.0
"""The profiles of the lab's hosts: how they are made, and what they say."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import os

from nova_vqos import files
from nova_vqos import units
from nova_vqos import utc
from nova_vqos import work
from nova_vqos.calibration import benchmark
from nova_vqos.calibration import runner
from nova_vqos.calibration.cpu import combine
from nova_vqos.calibration.cpu import reference
from nova_vqos.profile import cpu
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import model
from nova_vqos_lab import cgroups
from nova_vqos_lab import config
from nova_vqos_lab import host as hosts
from nova_vqos_lab import openstack
from nova_vqos_lab import pace
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import services
from nova_vqos_lab import slowcpu

# 100 CU are the speed of this host's CPU: what fits on it fits everywhere,
# and the other host has a speed that only it can give.
REFERENCE = 'slow'

_CALIBRATION_LIMIT_S = 600
# A quiet machine needs eight rounds; one among others has its moods, and the
# mean of many is wanted.
_CALIBRATION_ROUNDS = 200
_CALIBRATION_S = 60
# By default, nova_vqos has no use for a profile that is less certain.
WIDEST_INTERVAL = 0.05
# On a machine whose speed drifts the lab makes do with what can be measured.
_ANY_INTERVAL = 10
# Of what is not measured: one that all programs accept.
_GIVEN_WIDTH = 0.02
_PROFILE = 'etc/nova-vqos/profile.yaml'
_MEASURED = 'run/measured/profile.yaml'
#: How much of each benchmark a round is: some tenths of a second in an
#: emulated guest, where this was written.
ROUND_EVENTS = {
    'integer': 190, 'float': 31, 'hash': 60, 'compression': 5,
    'decompression': 19, 'interpreter': 3, 'parsing': 34, 'image': 25,
    'vector': 4, 'memory-stream': 16, 'memory-chase': 26,
}
#: Work of several kinds, without what waits for memory, which no coefficient
#: counts: a demonstration is to be soon over.
BENCHMARKS = (pace.BENCHMARK, 'float', 'hash', 'compression', 'interpreter',
              'parsing')
#: For a cloud that is removed after the demonstration. Each benchmark takes a
#: quarter of a minute on the slow host.
FEWER_BENCHMARKS = (pace.BENCHMARK, 'hash', 'compression', 'interpreter')


class Profiles:
    """Makes and reads the profile of each host."""

    def __init__(self, of_hosts: Mapping[str, hosts.Host],
                 calibrated_pcpu: Mapping[str, int]) -> None:
        """:param calibrated_pcpu: of each host, what it is calibrated on and
            its pace is known of
        """
        self._hosts = of_hosts
        self._calibrated_pcpu = calibrated_pcpu

    def calibrate(self, benchmarks: Sequence[str] = BENCHMARKS,
                  max_s: int = _CALIBRATION_S) -> None:
        """Measure both hosts' CPUs, in a guest on each, and write profiles.

        :param benchmarks: none: all that nova-vqos-calibrate has, which
            takes minutes more
        :param max_s: for each host
        """
        measured = {name: host.path(_MEASURED)
                    for name, host in self._hosts.items()}
        with process.stage('calibration of both hosts, in a guest on each'):
            for path in measured.values():
                os.makedirs(os.path.dirname(path), exist_ok=True)
            yardstick = os.path.join(paths.RUN, 'yardstick.json')
            files.write(_yardstick(benchmarks), yardstick)
            try:
                self._calibrate_hosts(max_s, yardstick, measured)
            except process.LabError as error:
                # As the refusal of rounds with two speeds advises.
                reason = (str(error).splitlines() or [''])[-1]
                process.say(f'   tried once more, since it failed: {reason}')
                self._calibrate_hosts(max_s, yardstick, measured)
            openstack.together(*(
                lambda name=name, host=host: self._run_calibrate(name, [
                    'rescale', '--onto', measured[REFERENCE],
                    '--name', REFERENCE, '--output-dir',
                    os.path.dirname(host.path(_PROFILE)), measured[name]])
                for name, host in self._hosts.items()))
            for name, host in self._hosts.items():
                self.give_pcpus(name, host.pcpus)
        for name in self._hosts:
            found = self.of(name)
            process.say(f'   {name}: {self.pcpu_cu(name):.1f} CU per pCPU, '
                        f'interval {self.uncertainty(name):.1%}, profile '
                        f'{found.id}')

    def _calibrate_hosts(self, max_s: int, yardstick: str,
                         measured: Mapping[str, str]) -> None:
        openstack.together(*(
            lambda name=name: self._calibrate_host(
                name, max_s, yardstick, measured[name])
            for name in self._hosts))

    def _calibrate_host(self, name: str, max_s: int, yardstick: str,
                        output: str) -> None:
        """Measure a host, for longer where the machine is restless."""
        self._run_calibrate(name, [
            'cpu', '--in-guest', '--virt-type', 'qemu',
            '--rounds', str(_CALIBRATION_ROUNDS), '--max-seconds', str(max_s),
            # What was refused is not gone on with.
            '--restart',
            # Whatever it is: the story shows it.
            '--widest-interval', str(_ANY_INTERVAL),
            '--pcpus', str(self._calibrated_pcpu[name]),
            '--against', yardstick, '--output', output])

    def _run_calibrate(self, name: str, arguments: list[str]) -> None:
        done = self._hosts[name].run(
            [f'{services.BIN}/nova-vqos-calibrate', *arguments],
            limit_s=_CALIBRATION_LIMIT_S)
        with open(paths.log(f'calibrate-{name}'), 'a',
                  encoding='utf-8') as log:
            log.write(done.stdout + done.stderr)

    def give(self, benchmarks: Sequence[str] = FEWER_BENCHMARKS) -> None:
        """Store profiles of both hosts that were not measured.

        They say what a host is made to be: slow has that share of fast's
        speed. The machine's own speed they do not know.
        """
        compared = _unmeasured(REFERENCE, benchmarks)
        for name, host in self._hosts.items():
            is_reference = name == REFERENCE
            coefficient = 1.0 if is_reference else 100 / slowcpu.SHARE
            measured = combine.measurement([cpu.Score(
                one.name, coefficient,
                *cpu.interval(coefficient, coefficient * _GIVEN_WIDTH / 2),
                outliers=0, samples=(one.score * coefficient,))
                for one in compared.benchmarks], compared)
            self.store(name, model.Profile(
                utc.text(), name, compared, 'guest', fingerprint.of_host(),
                (cpu.CpuClass(host.pcpus, measured, measured),),
                is_reference=is_reference))

    def of(self, name: str) -> model.Profile:
        """:returns: the profile of a host."""
        return document.load(self._hosts[name].path(_PROFILE))

    def pcpu_cu(self, name: str) -> float:
        """:returns: the speed of a host's pCPU, in CU."""
        return 100 * self.of(name).slowest(self._hosts[name].pcpus)

    def uncertainty(self, name: str) -> float:
        """:returns: the width of the 95 % interval of a host's coefficient,
            relative to it
        """
        return max(one.busy.interval_width
                   for one in self.of(name).cpu_classes)

    def cap(self, name: str, cu: int, vcpus: int = 1,
            mix: work.Mix | None = None) -> tuple[int, int]:
        """:param mix: of its work, where its flavor says so
        :returns: quota and period of each vCPU of a server on a host, in
            microseconds, by the profile
        """
        profile = self.of(name)
        cap = units.cap(cu, vcpus,
                        profile.slowest(self._hosts[name].pcpus, mix),
                        tick_us=profile.tick_us, period_us=config.period_us())
        return cap.quota_us, cap.period_us

    def kind_error(self, name: str, benchmark: str) -> float:
        """:returns: how far from its promise work like a benchmark is on a
            host, by the profile, where the flavor does not say its kind
        """
        busy = self.of(name).cpu_classes[0].busy
        return busy.score(benchmark).coefficient / busy.coefficient - 1

    def widest_interval(self, name: str) -> float:
        """:returns: what a host's services have to allow to use its profile"""
        profile = self.of(name)
        return max(WIDEST_INTERVAL, self.uncertainty(name) * 1.01, *(
            width * 1.01 for width
            in profile.wide_kinds(profile.pcpus, 0.0).values()))

    def benchmark(self, name: str = pace.BENCHMARK) -> cpu.Benchmark:
        """:param name: of the benchmark; default: what servers are measured by
        :returns: with the reference's score
        """
        return self.of(REFERENCE).reference.benchmark(name)

    def store(self, name: str, profile: model.Profile) -> None:
        """Replace the profile of a host."""
        document.store(profile, self._hosts[name].path(_PROFILE))

    def give_pcpus(self, name: str, pcpus: Iterable[int]) -> None:
        """Let a host have pCPUs, all as fast as the one that was measured."""
        host = self._hosts[name]
        host.pcpus = frozenset(pcpus)
        profile = self.of(name)
        (cpu_class,) = profile.cpu_classes
        self.store(name, profile._replace(cpu_classes=(
            cpu_class._replace(pcpus=host.pcpus),)))

    @contextlib.contextmanager
    def paces(self) -> Iterator[dict[str, pace.Pace]]:
        """The pace of each host's pCPU, by its calibration.

        It is known once its guest was started.
        """
        made = {}
        try:
            for name, host in self._hosts.items():
                (cpu_class,) = self.of(name).cpu_classes
                (score,) = (one for one in cpu_class.busy.scores
                            if one.benchmark == pace.BENCHMARK)
                made[name] = pace.Pace(
                    host, self._calibrated_pcpu[name],
                    self.benchmark().score * score.coefficient)
            yield made
        finally:
            cgroups.remove(cgroups.detect(), pace.GROUP)


def start_paces(paces: Mapping[str, pace.Pace]) -> None:
    """Start the guest of each host that measures its pCPU's pace.

    :raises LabError: when one does not work
    """
    openstack.together(*(one.start for one in paces.values()))


def _yardstick(benchmarks: Sequence[str]) -> str:
    """The reference that both hosts are measured against.

    They are measured at the same time, since a shared machine has another
    speed a minute later. For that they need a reference that is there already.
    Any will do, as the coefficient is a geometric mean: this one was never
    measured, and gives way to one of the hosts.

    :param benchmarks: none: all that nova-vqos-calibrate has
    :returns: its document
    """
    return reference.dumps(reference.Yardstick(
        _unmeasured('yardstick', benchmarks), 'guest'), 'nova_vqos_lab', {})


def _unmeasured(name: str, benchmarks: Sequence[str]) -> cpu.Reference:
    """:returns: a reference that does each round in the time it is meant for
    """
    return cpu.Reference(name, utc.text(), tuple(
        cpu.Benchmark(
            one.name, one.benchmark.kind, one.benchmark.identity,
            one.benchmark.unit, one.benchmark.program_sha256, one.weight,
            score=ROUND_EVENTS[one.name] / runner.ROUND_S,
            half_width=0.0, round_events=ROUND_EVENTS[one.name])
        for one in benchmark.choose(benchmarks, {})))
