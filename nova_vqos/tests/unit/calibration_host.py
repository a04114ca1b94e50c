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


"""A host whose scores, when it is calibrated, are known beforehand."""

import itertools

import pytest

from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import conditions
from nova_vqos.calibration import cpu
from nova_vqos.calibration import disturbances
from nova_vqos.calibration import runner

CPUINFO = 'processor\t: {}\ncpu family\t: 6\nmodel\t\t: 1\nstepping\t: 2\n'


class ScriptedRunner(runner.Runner):
    """Reports scores that are known beforehand, over and over."""

    def __init__(self, benchmark, alone, busy, round_events=None):
        super().__init__(benchmark)
        self.round_events = round_events or 120
        self.scores = {False: alone, True: busy}
        self.measured = []

    def close(self):
        pass

    def measure(self, pcpus, enough, progress):
        self.measured.append(frozenset(pcpus))
        return super().measure(pcpus, enough, progress)

    def work(self, pcpu, report, stop):
        for score in itertools.cycle(self.scores[len(self.measured[-1]) > 1]):
            if stop.wait(0.001):
                return
            report(score * (0.5 if pcpu == 9 else 1))


class FakeBenchmark(benchmarks.Benchmark):
    kind = 'integer arithmetic'
    guest_kind = 'sysbench'
    program = identity = None

    def __init__(self, program, identity='sysbench cpu 1.0.20'):
        self.program = str(program)
        self.identity = identity

    def argv(self, events):
        return [self.program, str(events)]


@pytest.fixture
def sysroot(tmp_path):
    """A machine of pCPUs 0, 1 and 9, of which 9 has a smaller cache."""
    proc = tmp_path / 'proc'
    proc.mkdir()
    (proc / 'stat').write_text('cpu  0 0 0 0\ncpu0 1 0 1 90 0 0 0 0 0 0\n'
                               'cpu1 1 0 1 90 0 0 0 0 0 0\n')
    (proc / 'cpuinfo').write_text(
        '\n'.join(CPUINFO.format(pcpu) for pcpu in (0, 1, 9)))
    for pcpu, size in ((0, '1024K'), (1, '1024K'), (9, '512K')):
        cache = (tmp_path / 'sys/devices/system/cpu' / f'cpu{pcpu}'
                 / 'cache/index2')
        cache.mkdir(parents=True)
        (cache / 'size').write_text(f'{size}\n')
    return str(tmp_path)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / 'benchmark'
    path.write_bytes(b'this build')
    return path


@pytest.fixture
def calibrate(program, sysroot, monkeypatch):
    monkeypatch.setattr(disturbances, '_LOAD_CHECK_S', 0)

    def run(pcpus, *, alone=(110.0,), busy=(100.0,), weights=None,
            measured_in='host', beside_guests=False, opened=None,
            guest_kernel=None, **options):
        """Calibrate with benchmarks of these weights.

        Each next one has half the score of the one before.

        :param opened: a list of the runners, in their order
        """
        members = [
            benchmarks.Member(name, FakeBenchmark(program), weight)
            for name, weight in (weights or {'integer': 1.0}).items()]

        def open_runner(member, round_events):
            factor = 0.5 ** members.index(member)
            made = ScriptedRunner(
                member.benchmark, [score * factor for score in alone],
                [score * factor for score in busy], round_events)
            if opened is not None:
                opened.append(made)
            return made

        setting = conditions.Setting(
            frozenset(pcpus), measured_in, open_runner,
            beside_guests=beside_guests, guest_kernel=guest_kernel,
            sysroot=sysroot)
        options.setdefault('effort', conditions.Effort(12, 0.02))
        return cpu.Calibration(members, setting, **options).run()
    return run
