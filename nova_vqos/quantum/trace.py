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

"""A record of what was seen of vCPUs, to be replayed.

JSON lines. The first says what it is; each other is what one vCPU did up to
one look::

    {"nova_vqos_trace": 1}
    {"at_s": 12.5, "server": "UUID", "vcpu": 0, "thread": 4711,
     "io_requests": 80.0, "spin_events": null, "references": null,
     "misses": null}

(each on one line). Rates are per second, null: no source knew. The lines of
one look stand together, and have the same time. Pure, but for
:class:`Recorder`.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import dataclasses
import errno
import functools
import json
import logging
import math
import os
import stat
import typing as ty

from nova_vqos.quantum import recognition

LOG = logging.getLogger(__name__)

VERSION = 1
_HEADER = 'nova_vqos_trace'
_BEGINNING = f'{{"{_HEADER}":'.encode()

#: Where a recorder stops.
MOST_BYTES = 64 * 1024 * 1024

_MOST_LINE = 1024
_MOST_TEXT = 64
_MOST_NUMBER = 2**31 - 1
_MOST_RATE = 1e15
_RATES = ('io_requests', 'spin_events', 'references', 'misses')


class TraceInvalid(ValueError):
    """A trace that is damaged, or none.

    :ivar line: its number, from 1
    :ivar field: of that line; '' where it is about the line as a whole
    """

    def __init__(self, line: int, field: str, problem: str) -> None:
        self.line = line
        self.field = field
        place = f'line {line}, {field}' if field else f'line {line}'
        super().__init__(f'{place}: {problem}')


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What one vCPU did up to one look.

    :ivar at_s: on the clock of the host where it was recorded
    """

    at_s: float
    server: str
    vcpu: int
    thread: int
    sample: recognition.Sample


Key = tuple[str, int]


def read(lines: Iterable[bytes]) -> Iterator[Record]:
    """The records of a trace.

    :raises TraceInvalid: at the first line that is damaged
    """
    header = False
    last_s = -math.inf
    seen: set[Key] = set()
    number = 0
    for number, line in enumerate(lines, start=1):
        found = _parse(number, line)
        if not header:
            _check_header(number, found)
            header = True
            continue
        record = _record(number, found)
        if record.at_s < last_s:
            raise TraceInvalid(number, 'at_s', f'is {record.at_s}, before '
                               f'that of the line before, {last_s}')
        if record.at_s > last_s:
            last_s, seen = record.at_s, set()
        key = record.server, record.vcpu
        if key in seen:
            raise TraceInvalid(number, 'vcpu', f'{record.vcpu} of this server '
                               'was in this look before')
        seen.add(key)
        yield record
    if not header:
        raise TraceInvalid(number + 1, '', 'the trace is empty')


def load(path: str) -> Iterator[Record]:
    """The records of a trace in a file.

    :raises OSError: when it cannot be read
    :raises TraceInvalid: at the first line that is damaged
    """
    with open(path, 'rb') as file:
        # Never more of a line than may be.
        yield from read(iter(
            functools.partial(file.readline, _MOST_LINE + 1), b''))


def looks(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records, those of each look together."""
    look: list[Record] = []
    for record in records:
        if look and record.at_s != look[0].at_s:
            yield look
            look = []
        look.append(record)
    if look:
        yield look


def _parse(number: int, line: bytes) -> dict[str, ty.Any]:
    if len(line) > _MOST_LINE or not line.endswith(b'\n'):
        raise TraceInvalid(number, '', 'it is cut off, or longer than '
                           f'{_MOST_LINE} bytes')
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
        raise ValueError('a field is there twice')
    return found


def _check_header(number: int, found: Mapping[str, ty.Any]) -> None:
    if set(found) != {_HEADER}:
        raise TraceInvalid(number, _HEADER, 'must be the only field of the '
                           'first line: this is no trace')
    version = found[_HEADER]
    if isinstance(version, bool) or version != VERSION:
        raise TraceInvalid(number, _HEADER, f'is {_shown(version)}, this '
                           f'program knows {VERSION}')


def _record(number: int, found: Mapping[str, ty.Any]) -> Record:
    wanted = ('at_s', 'server', 'vcpu', 'thread', *_RATES)
    for field in wanted:
        if field not in found:
            raise TraceInvalid(number, field, 'is missing')
    for field in found:
        if field not in wanted:
            raise TraceInvalid(number, _shown(field), 'is no field of a trace')
    server = found['server']
    if not isinstance(server, str) or not (
            0 < len(server) <= _MOST_TEXT and server.isprintable()):
        raise TraceInvalid(number, 'server', f'is {_shown(server)}, it must '
                           f'be 1 to {_MOST_TEXT} printable characters')
    for field in ('vcpu', 'thread'):
        value = found[field]
        if (not isinstance(value, int) or isinstance(value, bool)
                or not 0 <= value <= _MOST_NUMBER):
            raise TraceInvalid(number, field, f'is {_shown(value)}, it must '
                               f'be a whole number up to {_MOST_NUMBER}')
    return Record(
        at_s=_number(number, 'at_s', found['at_s']), server=server,
        vcpu=found['vcpu'], thread=found['thread'],
        sample=recognition.Sample(**{
            field: None if found[field] is None
            else _number(number, field, found[field]) for field in _RATES}))


def _number(number: int, field: str, value: object) -> float:
    # NOTE: Python's JSON takes Infinity and NaN, too.
    if (not isinstance(value, int | float) or isinstance(value, bool)
            or not 0 <= value <= _MOST_RATE):
        raise TraceInvalid(number, field, f'is {_shown(value)}, it must be a '
                           f'number from 0 to {_MOST_RATE:g}')
    return float(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:76]}...'


class Recorder:
    """Writes a trace, to a file of its own that nobody else can read.

    It stops for good where the trace is full or cannot be written: that is no
    reason to stop what is recorded.
    """

    def __init__(self, path: str, most_bytes: int = MOST_BYTES) -> None:
        """Begin a trace; one that was there before is removed.

        :raises OSError: when the file cannot be made, or something else is
            there
        """
        self._path = path
        self._most_bytes = most_bytes
        self._size = 0
        _remove(path)
        # NOTE: O_EXCL follows no link that somebody put there meanwhile.
        self._handle: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._write(_line({_HEADER: VERSION}))

    def record(self, at_s: float, threads: Mapping[Key, int],
               samples: Mapping[Key, recognition.Sample]) -> None:
        """Write down one look. Never raises.

        :param threads: of all vCPUs that were looked at
        """
        self._write(b''.join(
            _line({'at_s': at_s, 'server': server, 'vcpu': vcpu,
                   'thread': thread,
                   **dataclasses.asdict(samples[server, vcpu])})
            for (server, vcpu), thread in threads.items()))

    def close(self) -> None:
        """End the trace; again is harmless."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _write(self, content: bytes) -> None:
        if self._handle is None:
            return
        if self._size + len(content) > self._most_bytes:
            LOG.warning('The trace %s is full at %d bytes', self._path,
                        self._size)
            self.close()
            return
        try:
            written = os.write(self._handle, content)
            if written < len(content):
                raise OSError('there is no room')
        except OSError as error:
            LOG.warning('The trace %s ends here, it cannot be written: %s',
                        self._path, error)
            with contextlib.suppress(OSError):
                # Without half a line.
                os.ftruncate(self._handle, self._size)
            self.close()
            return
        self._size += written


def _remove(path: str) -> None:
    """Remove a trace, if there is one.

    :raises FileExistsError: when it is something else
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                         | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        # An empty one had no room for more.
        ours = stat.S_ISREG(os.fstat(handle).st_mode) and (
            os.read(handle, len(_BEGINNING)) in (b'', _BEGINNING))
    finally:
        os.close(handle)
    if not ours:
        raise FileExistsError(errno.EEXIST, 'what is there is no trace', path)
    os.unlink(path)


def _line(found: Mapping[str, ty.Any]) -> bytes:
    return json.dumps(found, separators=(',', ':')).encode() + b'\n'
