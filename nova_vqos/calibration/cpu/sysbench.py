# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that sysbench runs: arithmetic, parsing, images, memory.

sysbench does a number of events that the caller chooses on one thread, is
compiled once by the distribution, takes no path that depends on the CPU's
extensions, and its 1.0 releases have not changed the work since 2017. Where
its own tests have no such work it runs ours, in Lua, by LuaJIT.

Not stress-ng: its manual says that bogo operations are no benchmark, and they
change from one release to the next. Not ``openssl speed``: it measures
assembler that is chosen by CPU extensions, so two hosts run different
programs, and one instruction more or less in silicon makes a factor of five
that no other work sees.
"""

from collections.abc import Mapping
import functools
import re
import subprocess

from nova_vqos.calibration import benchmark
from nova_vqos.calibration import guest

_TIMEOUT_S = 30


class _Sysbench(benchmark.Benchmark):
    """A test of sysbench's, or a script that it runs.

    :cvar test: name of the test, or of the script
    :cvar options: of the test, but for the number of events
    :cvar parameters: what of them the score depends on, for people
    """

    test: str
    options: tuple[str, ...] = ()
    parameters: str

    @functools.cached_property
    def program(self) -> str:
        return benchmark.find_program('sysbench', 'sysbench')

    @functools.cached_property
    def identity(self) -> str:
        return (f'sysbench {_version(self.program)} '
                f'{self.test.removesuffix(".lua")}, {self.parameters}')

    def argv(self, events: int) -> list[str]:
        return [self.program, self.test, '--threads=1', '--time=0',
                *self.options, f'--events={events}', 'run']


class Integer(_Sysbench):
    """Searches for primes: 64 bit division, conversion, comparison."""

    kind = 'integer arithmetic'
    guest_kind = 'sysbench'
    test = 'cpu'
    options = (f'--cpu-max-prime={guest.SYSBENCH_MAX_PRIME}',)
    parameters = f'primes to {guest.SYSBENCH_MAX_PRIME}'


class _Script(_Sysbench):

    @property
    def files(self) -> Mapping[str, bytes]:
        return {self.test: guest.workload(self.test)}


class Float(_Script):
    """Bodies that attract each other, in doubles."""

    kind = 'floating point'
    guest_kind = 'nbody'
    emulated_slowdown = 30
    test = 'nbody.lua'
    parameters = '5 bodies, 2000 steps'


class Parsing(_Script):
    """Reads a page of HTML into tags, attributes and text."""

    kind = 'parsing'
    guest_kind = 'html'
    emulated_slowdown = 20
    test = 'html.lua'
    parameters = '400 rows'


class Image(_Script):
    """Blurs a picture, and finds its edges."""

    kind = 'image filter'
    guest_kind = 'image'
    emulated_slowdown = 20
    test = 'image.lua'
    parameters = '256 x 256 pixels'


class MemoryChase(_Script):
    """Walks a linked list that is larger than the caches: latency."""

    kind = 'memory latency'
    guest_kind = 'chase'
    memory_bound = True
    memory_mib = 96
    test = 'chase.lua'
    parameters = '64 MiB, 10000 steps'


class MemoryStream(_Sysbench):
    """Reads memory from one end to the other: bandwidth."""

    kind = 'memory bandwidth'
    guest_kind = 'stream'
    memory_bound = True
    memory_mib = 96
    test = 'memory'
    options = ('--memory-block-size=64M', '--memory-oper=read',
               '--memory-access-mode=seq')
    parameters = 'reads 64 MiB'

    def argv(self, events: int) -> list[str]:
        # NOTE: its events are blocks, of which it counts bytes.
        return [*super().argv(events)[:-1],
                f'--memory-total-size={64 * events}M', 'run']


@functools.lru_cache
def _version(program: str) -> str:
    done = subprocess.run([program, '--version'], check=False,
                          capture_output=True, text=True, timeout=_TIMEOUT_S)
    found = re.match(r'sysbench (\S+)', done.stdout)
    if done.returncode or not found:
        raise benchmark.CalibrationError(
            f'{program} --version fails: {done.stderr.strip()}')
    return found[1]
