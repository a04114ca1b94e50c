# SPDX-License-Identifier: Apache-2.0
"""Record the samples of vCPUs in a trace, and replay it.

A trace is JSON lines. The first is a header; each other one is one sample of
one vCPU::

    {"nova_vqos_trace": 2}
    {"at_s": 12.5, "server": "UUID", "vcpu": 0, "thread": 4711,
     "io_requests": 80.0, "spin_events": null, "references": null,
     "misses": null, "ran": 0.25, "ready": 0.5}

(each on one line). Rates are per second of time, null: no source provided it.
``ran`` is the part of the time in which it ran, ``ready`` the part in which it
did or wanted to. All vCPUs of one reading stand together, and have the same
time. Pure, but for :class:`Recorder`.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import logging
import math
import os
import stat
import typing as ty

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

LOG = logging.getLogger(__name__)

VERSION = 2
_HEADER = 'nova_vqos_trace'
_BEGINNING = f'{{"{_HEADER}":'.encode()

#: Where a recorder stops.
MAX_BYTES = 64 * 1024 * 1024

_MAX_LINE = 1024
_MAX_TEXT = 64
_MAX_NUMBER = 2**31 - 1
_MAX_RATE = 1e15
_RATES = ('io_requests', 'spin_events', 'references', 'misses', 'ran',
          'ready')
_FIELDS = ('at_s', 'server', 'vcpu', 'thread', *_RATES)


class TraceInvalid(ValueError):
    """A damaged trace, or another file."""

    def __init__(self, line: int, field: str, problem: str) -> None:
        """
        :param line: its number, from 1
        :param field: of that line; '' where the line as a whole is damaged
        """
        place = f'line {line}, {field}' if field else f'line {line}'
        super().__init__(f'{place}: {problem}')


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One sample of one vCPU.

    :ivar at_s: on the clock of the host that recorded it
    """

    at_s: float
    server: str
    vcpu: int
    thread: int
    sample: recognition.Sample

    @property
    def key(self) -> model.Key:
        return (self.server, self.vcpu)


@dataclasses.dataclass(slots=True)
class Phase:
    """A vCPU from one change of what is recognised to the next.

    :ivar from_s: its first sample, since the trace began
    :ivar to_s: its last sample before the next change
    :ivar kind: None: not recognised
    :ivar pollutes: whether it evicts the cache lines of others
    :ivar is_sensitive: whether long slices of others would hurt it
    :ivar cursors: their means at the first sample
    """

    server: str
    vcpu: int
    from_s: float
    to_s: float
    kind: model.Kind | None
    pollutes: bool
    is_sensitive: bool
    cursors: recognition.Cursors

    @property
    def recognised(self) -> tuple[model.Kind | None, bool, bool]:
        """What is the same in all of it."""
        return self.kind, self.pollutes, self.is_sensitive


def replay(records: Iterable[Record],
           limits: recognition.Limits) -> list[Phase]:
    """Recognise the vCPUs of a trace as the agent does.

    :returns: sorted by server, vCPU and time
    :raises TraceInvalid: when the trace is damaged
    """
    recognizer = recognition.Recognizer(limits)
    began_s: float | None = None
    latest: dict[model.Key, Phase] = {}
    phases: list[Phase] = []
    for reading in readings(records):
        began_s = reading[0].at_s if began_s is None else began_s
        now_s = reading[0].at_s - began_s
        recognizer.retain({record.key for record in reading})
        for record in reading:
            key = record.key
            recognizer.add(key, record.sample, record.thread)
            now = Phase(
                *key, now_s, now_s, recognizer.kind(key),
                recognizer.pollutes(key), recognizer.is_sensitive(key),
                recognizer.means(key))
            phase = latest.get(key)
            if phase is None or phase.recognised != now.recognised:
                phase = latest[key] = now
                phases.append(phase)
            phase.to_s = now_s
    return sorted(phases, key=lambda phase: (phase.server, phase.vcpu,
                                             phase.from_s))


def read(lines: Iterable[bytes]) -> Iterator[Record]:
    """The records of a trace.

    :raises TraceInvalid: at the first damaged line
    """
    last_s = -math.inf
    seen: set[model.Key] = set()
    number = 0
    for number, line in enumerate(lines, start=1):
        found = _parse(number, line)
        if number == 1:
            _check_header(found)
            continue
        record = _record(number, found)
        if record.at_s < last_s:
            raise TraceInvalid(number, 'at_s', f'is {record.at_s}, before '
                               f'that of the line before, {last_s}')
        if record.at_s > last_s:
            last_s, seen = record.at_s, set()
        if record.key in seen:
            raise TraceInvalid(number, 'vcpu', f'{record.vcpu} of this server '
                               'has another line with this time')
        seen.add(record.key)
        yield record
    if not number:
        raise TraceInvalid(1, '', 'the trace is empty')


def load(path: str) -> Iterator[Record]:
    """The records of a trace in a file.

    :raises OSError: when it cannot be read
    :raises TraceInvalid: at the first damaged line
    """
    with open(path, 'rb') as file:
        # Never reads more of a line than a trace may have.
        yield from read(iter(
            functools.partial(file.readline, _MAX_LINE + 1), b''))


def readings(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records, grouped by their time."""
    for _, group in itertools.groupby(records, lambda record: record.at_s):
        yield list(group)


def _parse(number: int, line: bytes) -> dict[str, ty.Any]:
    if len(line) > _MAX_LINE or not line.endswith(b'\n'):
        raise TraceInvalid(number, '', 'it is cut off, or longer than '
                           f'{_MAX_LINE} bytes')
    try:
        found = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise TraceInvalid(number, '', f'it is no JSON: {error}') from None
    if not isinstance(found, dict):
        raise TraceInvalid(number, '', 'it is no JSON object')
    return found


def _unique(pairs: list[tuple[str, ty.Any]]) -> dict[str, ty.Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError('a field is given twice')
    return found


def _check_header(found: Mapping[str, ty.Any]) -> None:
    if set(found) != {_HEADER}:
        raise TraceInvalid(1, _HEADER, 'must be the only field of the '
                           'first line: this is no trace')
    version = found[_HEADER]
    if isinstance(version, bool) or version != VERSION:
        raise TraceInvalid(1, _HEADER, f'is {classes.quoted(version)}, this '
                           f'program reads {VERSION}')


def _record(number: int, found: Mapping[str, ty.Any]) -> Record:
    for field in _FIELDS:
        if field not in found:
            raise TraceInvalid(number, field, 'is missing')
    for field in found:
        if field not in _FIELDS:
            raise TraceInvalid(number, classes.quoted(field),
                               'is no field of a trace')
    server = found['server']
    if not isinstance(server, str) or not (
            0 < len(server) <= _MAX_TEXT and server.isprintable()):
        raise _invalid(number, 'server', server,
                       f'1 to {_MAX_TEXT} printable characters')
    for field in ('vcpu', 'thread'):
        value = found[field]
        if (not isinstance(value, int) or isinstance(value, bool)
                or not 0 <= value <= _MAX_NUMBER):
            raise _invalid(number, field, value,
                           f'a whole number up to {_MAX_NUMBER}')
    return Record(
        at_s=_number(number, 'at_s', found['at_s']), server=server,
        vcpu=found['vcpu'], thread=found['thread'],
        sample=recognition.Sample(**{
            field: None if found[field] is None
            else _number(number, field, found[field]) for field in _RATES}))


def _number(number: int, field: str, value: object) -> float:
    # NOTE: Python's JSON parser accepts Infinity and NaN.
    if (not isinstance(value, int | float) or isinstance(value, bool)
            or not 0 <= value <= _MAX_RATE):
        raise _invalid(number, field, value,
                       f'a number from 0 to {_MAX_RATE:g}')
    return float(value)


def _invalid(number: int, field: str, value: object,
             expected: str) -> TraceInvalid:
    return TraceInvalid(number, field, f'is {classes.quoted(value)}, it must '
                        f'be {expected}')


class Recorder:
    """Writes a trace to a file that only the agent's user can read.

    Stops for good where the trace is full or cannot be written; never
    disturbs the caller.
    """

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        """Begin a trace; removes an earlier one.

        :raises OSError: when the file cannot be made, or another file is
            there
        """
        self._path = path
        self._max_bytes = max_bytes
        self._size = 0
        _remove(path)
        # NOTE: O_EXCL follows no link that was put there meanwhile.
        self._handle: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._write(_line({_HEADER: VERSION}))

    def record(self, at_s: float, threads: Mapping[model.Key, int],
               samples: Mapping[model.Key, recognition.Sample]) -> None:
        """Write one reading. Never raises.

        :param threads: of all vCPUs that were read
        """
        self._write(b''.join(
            _line({'at_s': at_s, 'server': server, 'vcpu': vcpu,
                   'thread': thread,
                   **dataclasses.asdict(samples[server, vcpu])})
            for (server, vcpu), thread in threads.items()))

    def close(self) -> None:
        """End the trace; harmless when repeated."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _write(self, content: bytes) -> None:
        if self._handle is None:
            return
        if self._size + len(content) > self._max_bytes:
            LOG.warning('Trace %s is full at %d bytes, recording stops',
                        self._path, self._size)
            self.close()
            return
        try:
            written = os.write(self._handle, content)
            if written < len(content):
                raise OSError('no space left')
        except OSError as error:
            LOG.warning('Trace %s cannot be written, recording stops: %s',
                        self._path, error)
            with contextlib.suppress(OSError):
                # Ends with a whole line.
                os.ftruncate(self._handle, self._size)
            self.close()
            return
        self._size += written


def _remove(path: str) -> None:
    """Remove an earlier trace.

    :raises FileExistsError: when the file is no trace
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                         | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        # An empty file is a trace that had no space for its header.
        is_trace = stat.S_ISREG(os.fstat(handle).st_mode) and (
            os.read(handle, len(_BEGINNING)) in (b'', _BEGINNING))
    finally:
        os.close(handle)
    if not is_trace:
        raise FileExistsError(errno.EEXIST, 'the file is no trace', path)
    os.unlink(path)


def _line(found: Mapping[str, ty.Any]) -> bytes:
    return json.dumps(found, separators=(',', ':')).encode() + b'\n'
