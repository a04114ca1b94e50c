# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that busybox runs: hashes, compression, an interpreter.

One static program, written in plain C, that a guest needs anyway, with the
same work on every CPU. Of its hash sums SHA-512 is the one that no release
uses instructions of the CPU for: SHA-1 and SHA-256 use them since 1.36, and
would compare extensions of two hosts rather than their speed.
"""

from collections.abc import Mapping
import functools
import re
import subprocess
import zlib

from nova_vqos.calibration import benchmark
from nova_vqos.calibration import guest

_TEXT = 'text'
_COMPRESSED = 'text.gz'
_TIMEOUT_S = 30


class _Busybox(benchmark.Benchmark):
    """An applet that works on the same text over and over.

    :cvar applet: its name, which the measuring guest knows the work by, and
        what precedes the files in its command line
    :cvar file: the text, or what else it works on
    """

    applet: tuple[str, ...]
    file = _TEXT

    @functools.cached_property
    def program(self) -> str:
        return benchmark.find_program('busybox', 'busybox-static')

    @functools.cached_property
    def identity(self) -> str:
        return (f'busybox {_version(self.program)} {self.applet[0]}, '
                f'{guest.TEXT_BYTES // 1024} KiB of text')

    @property
    def files(self) -> Mapping[str, bytes]:
        return {self.file: guest.workload(self.file)}

    def argv(self, events: int) -> list[str]:
        return [self.program, *self.applet, *[self.file] * events]


class Hash(_Busybox):
    """SHA-512."""

    kind = 'hashing'
    guest_kind = 'sha512'
    applet = ('sha512sum',)


class Compression(_Busybox):
    """Deflate, at its usual level."""

    kind = 'compression'
    guest_kind = 'gzip'
    applet = ('gzip', '-c')


class Decompression(_Busybox):
    """Inflates what zlib deflated, of one release like of another mostly."""

    kind = 'decompression'
    guest_kind = 'gunzip'
    applet = ('gunzip', '-c')
    file = _COMPRESSED

    @functools.cached_property
    def identity(self) -> str:
        # Other releases may find other matches: that is other work.
        checksum = zlib.crc32(guest.workload(_COMPRESSED))
        return f'{super().identity}, deflated as {checksum:08x}'


class Interpreter(_Busybox):
    """A small program that awk interprets for each line of text."""

    kind = 'interpreter'
    guest_kind = 'awk'
    applet = ('awk', guest.AWK_PROGRAM)


@functools.lru_cache
def _version(program: str) -> str:
    # NOTE: --help exits with 0 or 1, by how it was built.
    done = subprocess.run([program, '--help'], check=False, text=True,
                          capture_output=True, timeout=_TIMEOUT_S)
    found = re.match(r'BusyBox v(\S+)', done.stdout or done.stderr)
    if not found:
        raise benchmark.CalibrationError(
            f'{program} --help does not say which busybox it is')
    return found[1]
