# SPDX-License-Identifier: Apache-2.0
"""The work of a measuring guest, and its command line."""

from collections.abc import Iterable, Iterator, Mapping
import functools
import importlib.resources
import re
import struct
import zlib

# sysbench links against two database clients: 20 MiB of libraries, which are
# in memory twice while the kernel unpacks them.
MEMORY_MIB = 128

#: Events in a round of each kind of work, by default: 0.5 to 1 s under TCG on
#: a CPU of 2021, uncapped. An event of sysbench is one search for the primes
#: up to :data:`SYSBENCH_MAX_PRIME`; of scripts of sysbench, theirs; of
#: stream, one pass over 64 MiB; of the others, one over :data:`TEXT_BYTES` of
#: text. Work that is none of these is a script in the guest, /kinds/KIND,
#: which is called with the number of events.
EVENTS_PER_ROUND: Mapping[str, int] = {
    'sysbench': 200, 'nbody': 20, 'html': 30, 'image': 30, 'sha512': 16,
    'gzip': 6, 'gunzip': 16, 'awk': 4, 'stream': 1, 'chase': 60}

#: sysbench's own default. Scores of different limits cannot be compared.
SYSBENCH_MAX_PRIME = 10_000

#: What busybox works on, and how awk does.
TEXT_BYTES = 256 * 1024
AWK_PROGRAM = '{ n[$1 % 97] += length($2) } END { print n[7] }'

_KIND = re.compile('[a-z0-9]{1,32}')


def command_line(kinds: Iterable[str] = ('sysbench',), rounds: int = 0,
                 events: Mapping[str, int] | None = None,
                 spinners: int = 0) -> str:
    """The kernel command line of a measuring guest.

    :param kinds: kinds of work to cycle through, a round each
    :param rounds: how many rounds in all; 0: for ever
    :param events: events per round of a kind, where not the default, or of
        one that is a script
    :param spinners: processes that spin beside, for the other vCPUs
    :raises ValueError: when a kind is unknown or a number is out of range
    """
    kinds = tuple(kinds)
    events = dict(events or {})
    for kind in (*kinds, *events):
        if kind not in EVENTS_PER_ROUND and not (
                kind in events and _KIND.fullmatch(kind)):
            raise ValueError(
                f'kind of work is {kind!r}, it may be one of '
                f'{", ".join(EVENTS_PER_ROUND)}, or another one of a-z and '
                '0-9 with its number of events')
    if (not kinds or min(rounds, spinners) < 0
            or any(n < 1 for n in events.values())):
        raise ValueError(
            'a guest needs a kind of work, rounds and spinners that are not '
            f'negative and events of at least 1: {kinds}, {rounds}, '
            f'{spinners}, {events}')
    # NOTE: the TSC's speed is measured while the guest boots, and comes out
    # tens of times wrong where a cap stops the vCPU in the midst of it. That
    # of ACPI's timer is known. Reading it is dear under emulation, and the
    # tick does so each time it sets the next one: a periodic tick need not.
    # What ticks cost is paid per second of wall time, and so out of a capped
    # guest's work.
    # A guest that is starved while it boots, by its cap or by a busy host,
    # sees too few timer interrupts and would panic.
    words = ['console=ttyS0', 'quiet', 'panic=-1', 'no_timer_check',
             'tsc=reliable',
             'clocksource=acpi_pm', 'highres=off', 'nohz=off',
             f'vqos.kinds={",".join(kinds)}', f'vqos.rounds={rounds}',
             f'vqos.spinners={spinners}']
    words += [f'vqos.events.{kind}={n}' for kind, n in events.items()]
    return ' '.join(words)


def measuring_init() -> str:
    """The init script of a measuring guest."""
    text = importlib.resources.files(__package__).joinpath(
        'init.sh').read_text()
    values = {'max_prime': SYSBENCH_MAX_PRIME, 'awk_program': AWK_PROGRAM,
              'defaults': ' '.join(f'{kind}={events}' for kind, events
                                   in EVENTS_PER_ROUND.items())}
    return re.sub('@([a-z0-9_]+)@', lambda name: str(values[name[1]]), text)


@functools.cache
def workload(name: str) -> bytes:
    """A file that benchmarks and measuring guests work with.

    :param name: text, text.gz, or a script for sysbench
    """
    if name == 'text':
        return b''.join(_text_lines())[:TEXT_BYTES]
    if name == 'text.gz':
        return _gzip(workload('text'))
    return (importlib.resources.files(__package__) / 'workload' / name
            ).read_bytes()


def _gzip(content: bytes) -> bytes:
    """Compress (RFC 1952), with nothing in the header that differs."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return (b'\x1f\x8b\x08' + bytes(6) + b'\xff'
            + compressor.compress(content) + compressor.flush()
            + struct.pack('<LL', zlib.crc32(content), len(content)))


def _text_lines() -> Iterator[bytes]:
    """Numbered lines of pseudo-random words, the same ones always."""
    seed = 1
    for number in range(1, TEXT_BYTES // 16):
        # The C standard's own example of rand().
        seed = (seed * 1_103_515_245 + 12_345) % 2**31
        yield b'%d %x word%d\n' % (number, seed, seed % 997)
