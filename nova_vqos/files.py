# SPDX-License-Identifier: Apache-2.0
"""Documents on disk: read safely, written whole, checked field by field.

Imported by libvirt's hook: rare imports are late (tools/bench/hook.py).
"""

from collections.abc import Callable, Collection
import math
import os
import stat

from nova_vqos import light_typing

if light_typing.TYPE_CHECKING:
    import typing as ty

    _Parsed = ty.TypeVar('_Parsed')

MAX_FILE_BYTES = 4 * 1024 * 1024

_MAX_TEXT = 256
_MAX_TEXTS = 100


class FileError(Exception):
    """A file that cannot be used."""


class FileMissing(FileError):
    """There is no file at this path."""


class FileUnsafe(FileError):
    """Others than root and the reader could have written the file."""


class FileInvalid(FileError):
    """The file cannot be read, or its content is not what it must be."""


def read(path: str, *, secret: bool = False) -> bytes:
    """Read a file that others than root and the reader must not write.

    :param secret: whether others must not read it either
    :raises FileMissing: when there is none
    :raises FileUnsafe: when others may write it, or read it where secret
    :raises FileInvalid: when it cannot be read, or is too large
    """
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            _check_safe(path, status)
            if secret and status.st_mode & 0o077:
                raise FileUnsafe(
                    f'{path} has mode {stat.S_IMODE(status.st_mode):04o}, '
                    'others than its owner may read it: chmod 600')
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise FileMissing(f'{path} does not exist') from error
    except OSError as error:
        raise FileInvalid(f'{path} cannot be read: {error}') from error
    if len(content) > MAX_FILE_BYTES:
        raise FileInvalid(f'{path} has more than {MAX_FILE_BYTES} bytes')
    return content


def open_regular(path: str, *, follow: bool = True) -> 'ty.BinaryIO':
    """Open a regular file for reading, without blocking on a FIFO.

    :param follow: whether to follow a symbolic link; False for a path that a
        less privileged user can create
    :raises FileUnsafe: when it is no regular file
    :raises OSError: when it cannot be opened
    """
    # NOTE: without O_NONBLOCK a FIFO is not open before it has a writer.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
                     | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileUnsafe(f'{path} is not a regular file')
    return os.fdopen(handle, 'rb')


def identity(path: str) -> tuple[int, ...] | None:
    """What is another once a file was written again; None: there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns,
            status.st_size)


def write(content: str | bytes, path: str, *,
          check: Callable[[str], None] | None = None,
          durable: bool = True, mode: int = 0o644,
          replace: bool = True) -> None:
    """Write a file, whole or not at all.

    :param check: is given the path of the file before it gets its name, and
        keeps it from that by raising
    :param durable: whether it must outlive a crash of the host
    :param mode: its permissions; by default all may read it
    :param replace: whether an old one may be replaced
    :raises FileExistsError: when there is one that may not be replaced
    :raises OSError: when it cannot be written; an old one is then untouched
    """
    import tempfile
    directory, name = os.path.split(os.path.abspath(path))
    os.makedirs(directory, mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=f'.{name}-')
    try:
        with os.fdopen(handle, 'wb') as file:
            file.write(content.encode() if isinstance(content, str)
                       else content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        if check is not None:
            check(temporary)
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
            os.unlink(temporary)
    except BaseException:
        os.unlink(temporary)
        raise


class Fields:
    """Checked access to a mapping of the document; errors name the field."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise FileInvalid(
                f'{where or "the document"} is no mapping of fields')
        self._fields = value
        self._where = where

    def _get(self, key: str, kind: type | tuple[type, ...],
             expected: str) -> 'ty.Any':
        value = self._fields.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(key, expected)
        return value

    def _name(self, key: str) -> str:
        return f'{self._where}.{key}'.lstrip('.')

    def error(self, key: str, expected: str) -> FileInvalid:
        name = self._name(key)
        if key not in self._fields:
            return FileInvalid(
                f'{name} is missing, it must be {expected}')
        shown = repr(self._fields[key])
        if len(shown) > 80:
            shown = f'{shown[:76]}...'
        return FileInvalid(
            f'{name} is {shown}, it must be {expected}')

    def text(self, key: str) -> str:
        expected = f'a text of 1 to {_MAX_TEXT} characters'
        value: str = self._get(key, str, expected)
        if not 0 < len(value) <= _MAX_TEXT:
            raise self.error(key, expected)
        return value

    def choice(self, key: str, choices: Collection[str]) -> str:
        found = self.text(key)
        if found not in choices:
            raise self.error(key, f'one of {", ".join(choices)}')
        return found

    def texts(self, key: str) -> dict[str, str]:
        fields = self.child(key)
        if len(fields._fields) > _MAX_TEXTS:
            raise self.error(key, f'at most {_MAX_TEXTS} texts')
        return {name: fields.text(name) for name in fields._fields}

    def number(self, key: str, low: float, high: float) -> float:
        expected = f'a number from {low:g} to {high:g}'
        value = float(self._get(key, (int, float), expected))
        if not low <= value <= high:
            raise self.error(key, expected)
        return value

    def truth(self, key: str) -> bool:
        # NOTE: _get refuses a bool, which is an int to Python.
        if not isinstance(self._fields.get(key), bool):
            raise self.error(key, 'true or false')
        return bool(self._fields[key])

    def numbers(self, key: str, least: int, most: int) -> tuple[float, ...]:
        count = least if least == most else f'{least} to {most}'
        expected = f'a list of {count} positive numbers'
        values = self._get(key, list, expected)
        # NOTE: no loop in Python: the hook waits for thousands of numbers. A
        # sum is as finite as its parts.
        if (not least <= len(values) <= most
                or not {int, float}.issuperset(map(type, values))
                or not math.isfinite(math.fsum(values)) or min(values) <= 0):
            raise self.error(key, expected)
        return tuple(map(float, values))

    def signed_numbers(self, key: str, count: int,
                       most: float) -> tuple[float, ...]:
        expected = f'a list of {count} numbers from {-most:g} to {most:g}'
        values = self._get(key, list, expected)
        if len(values) != count or not all(
                type(value) in (int, float) and -most <= value <= most
                for value in values):
            raise self.error(key, expected)
        return tuple(map(float, values))

    def parsed(self, key: str, parse: 'Callable[[str], _Parsed]',
               expected: str) -> '_Parsed':
        """A text of any length, parsed.

        :param parse: raises ValueError when the text is not as expected
        """
        try:
            return parse(self._get(key, str, expected))
        except ValueError as error:
            raise self.error(key, expected) from error

    def children(self, key: str, most: int) -> list['Fields']:
        expected = f'a list of 1 to {most} mappings'
        values = self._get(key, list, expected)
        if not 0 < len(values) <= most:
            raise self.error(key, expected)
        return [Fields(value, f'{self._name(key)}[{i}]')
                for i, value in enumerate(values)]

    def child(self, key: str) -> 'Fields':
        return Fields(self._fields.get(key), self._name(key))

    def has(self, key: str) -> bool:
        return key in self._fields

    def is_filled(self, key: str) -> bool:
        return self._fields.get(key) != []

    def mapping(self, key: str) -> 'dict[str, ty.Any] | None':
        """A mapping with any content; None: there is none."""
        value = self._fields.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, 'a mapping of fields')
        return value

    def without(self, key: str) -> dict[str, object]:
        return {k: v for k, v in self._fields.items() if k != key}


def _check_safe(path: str, status: os.stat_result) -> None:
    if status.st_mode & 0o022:
        raise FileUnsafe(
            f'{path} has mode {stat.S_IMODE(status.st_mode):04o}, others '
            'than its owner may write it: chmod go-w')
    if status.st_uid not in (0, os.geteuid()):
        raise FileUnsafe(
            f'{path} belongs to user {status.st_uid}, it must belong to root '
            f'or to its reader, {os.geteuid()}')
