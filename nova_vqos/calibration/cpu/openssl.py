# SPDX-License-Identifier: Apache-2.0
"""A benchmark that openssl runs: vector code.

AES in counter mode by SSSE3, bit-sliced: shifts, permutations and logic on
vectors of 16 bytes, and no table. OPENSSL_ia32cap hides the instructions that
do AES by themselves, and the wider vectors: all CPUs since 2006 run the same
instructions, and their widths and speeds for vectors are compared, not what
else is in their silicon. A CPU without SSSE3, as QEMU emulates it by default,
does the same work without vectors: compare it with its like only.
"""

from collections.abc import Mapping
import functools
import re
import subprocess

from nova_vqos.calibration import benchmark

_SCRIPT = 'kinds/vector'
_TIMEOUT_S = 30
# Of the CPU's features these are hidden, by their bits in EDX and ECX of leaf
# 1: PCLMULQDQ, XOP, AES and AVX; and all of leaf 7.
_HIDDEN = f'~{sum(1 << 32 + bit for bit in (1, 11, 25, 28)):#x}:0'
_KEY, _IV = '00' * 32, '00' * 16


class Vector(benchmark.Benchmark):
    """Encrypts zeros; an event is a MiB of them."""

    kind = 'vector code'
    guest_kind = 'vector'
    emulated_slowdown = 40

    @functools.cached_property
    def program(self) -> str:
        return benchmark.find_program('openssl', 'openssl')

    @functools.cached_property
    def identity(self) -> str:
        return f'openssl {_version(self.program)} aes-256-ctr by SSSE3, MiB'

    @property
    def files(self) -> Mapping[str, bytes]:
        """The script that it is run by; the guest calls it likewise."""
        return {_SCRIPT: (
            'head -c "$(($1 * 1048576))" /dev/zero | '
            f'OPENSSL_ia32cap={_HIDDEN} openssl enc -aes-256-ctr '
            f'-K {_KEY} -iv {_IV} -out /dev/null\n'
        ).encode()}

    def argv(self, events: int) -> list[str]:
        # Whoever lacks it learns the package.
        _ = self.program
        return ['sh', _SCRIPT, str(events)]


@functools.lru_cache
def _version(program: str) -> str:
    done = subprocess.run([program, 'version'], check=False, text=True,
                          capture_output=True, timeout=_TIMEOUT_S)
    found = re.match(r'OpenSSL (\S+)', done.stdout)
    if done.returncode or not found:
        raise benchmark.CalibrationError(
            f'{program} version fails: {done.stderr.strip()}')
    return found[1]
