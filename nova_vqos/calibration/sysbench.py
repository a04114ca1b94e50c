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

"""The calibrated kind of work: ``sysbench cpu``.

It counts primes by trial division: 64 bit integer division, conversion and
comparison in a loop that fits into any cache, compiled once by the
distribution and without paths that depend on the CPU's extensions. The same
program does the same instructions on every x86 host, it ends after a number
of events that the caller chooses, and its 1.0 releases have not changed the
work since 2017.

Not stress-ng: its manual says that bogo operations are no benchmark, and they
change from one release to the next. Not ``openssl speed``: it measures
assembler that is chosen by CPU extensions, so two hosts run different
programs, and one instruction more or less in silicon makes a factor of five
that no other work sees.

What it leaves out is memory: doc/source/admin/calibration.rst.
"""

import functools
import re
import shutil
import subprocess

from nova_vqos.calibration import benchmark
from nova_vqos.guest import SYSBENCH_MAX_PRIME

_TIMEOUT_S = 30


class SysbenchCpu(benchmark.Benchmark):
    """Searches for the primes up to a limit, one thread."""

    unit = 'events per CPU second'
    guest_kind = 'sysbench'

    @functools.cached_property
    def program(self) -> str:
        found = shutil.which('sysbench')
        if found is None:
            raise benchmark.CalibrationError(
                'sysbench is not installed: install the package sysbench')
        return found

    @functools.cached_property
    def identity(self) -> str:
        done = subprocess.run([self.program, '--version'], check=False,
                              capture_output=True, text=True,
                              timeout=_TIMEOUT_S)
        found = re.match(r'sysbench (\S+)', done.stdout)
        if done.returncode or not found:
            raise benchmark.CalibrationError(
                f'{self.program} --version fails: {done.stderr.strip()}')
        return f'sysbench cpu {found[1]}, primes to {SYSBENCH_MAX_PRIME}'

    def argv(self, events: int) -> list[str]:
        return [self.program, 'cpu', '--threads=1', '--time=0',
                f'--events={events}', f'--cpu-max-prime={SYSBENCH_MAX_PRIME}',
                'run']

    def events_done(self, output: str) -> int:
        found = re.search(r'^\s*total number of events:\s+(\d+)\s*$', output,
                          re.MULTILINE)
        if not found:
            raise benchmark.CalibrationError(
                'sysbench did not say how many events it did: '
                f'{output.strip()[-200:]!r}')
        return int(found[1])
