# SPDX-License-Identifier: Apache-2.0
"""Dataclasses and named tuples to primitives for a message, and back.

The types of the fields are the schema. A message comes from another process,
which may be of another version, or broken: :func:`parse` ignores fields that
it does not know, gives those that are missing their defaults, and raises
:class:`MessageInvalid` for anything else. Pure: standard library only.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import types
import typing as ty

from nova_vqos import plain_text

#: Bounds of what is read: a host's profile, the largest text, has 4 MiB.
MOST_CHARACTERS = 8 * 2**20
MOST_ITEMS = 100_000
MOST_NUMBER = 2.0**63

#: Metadata of a field that a message lacks where it is None.
OMIT: ty.Final = types.MappingProxyType({'omit': True})

#: A text of many lines. All other texts are one.
Lines = ty.NewType('Lines', str)

_Type = ty.TypeVar('_Type')
_Read = Callable[[object], ty.Any]


class MessageInvalid(ValueError):
    """A message is not what it has to be; the text says which field."""


class _Field(ty.NamedTuple):
    """A field of a record.

    :ivar key: in a message: without the underscore that ``class_`` needs
    :ivar default: makes its value where it is missing; None: it is required
    """

    name: str
    key: str
    default: Callable[[], ty.Any] | None
    omit: bool = False


def to_primitives(value: ty.Any) -> ty.Any:
    """What oslo.messaging and JSON can carry."""
    kind: ty.Any = type(value)
    if _is_record(kind):
        return {
            field.key: to_primitives(found) for field in _fields(kind)
            if (found := getattr(value, field.name)) is not None
            or not field.omit}
    if isinstance(value, Mapping):
        return {key: to_primitives(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_primitives(one) for one in value]
    return value


def parse(kind: type[_Type], data: object) -> _Type:
    """The inverse of :func:`to_primitives`, of input that is not trusted.

    :param kind: a dataclass or a named tuple. Its fields are such, ``str``,
        ``bool``, ``int``, ``float``, :data:`Lines`, tuples and Mappings by
        ``str`` of these, or None; ``object`` is not looked at
    :raises MessageInvalid: when it is no message of this kind
    """
    schema: ty.Any = kind
    found: _Type = _reader(schema)(data)
    return found


def extended(kind: type[_Type], base: object, **more: ty.Any) -> _Type:
    """A record with the fields of another one, of a base class, and more."""
    schema: ty.Any = type(base)
    return kind(**{field.name: getattr(base, field.name)
                   for field in _fields(schema)}, **more)


def _is_record(kind: ty.Any) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, '_fields')


@functools.cache
def _fields(kind: ty.Any) -> tuple[_Field, ...]:
    if not dataclasses.is_dataclass(kind):
        defaults = kind._field_defaults
        return tuple(_Field(
            name, name, functools.partial(defaults.get, name)
            if name in defaults else None) for name in kind._fields)
    found = []
    for field in dataclasses.fields(kind):
        default: Callable[[], ty.Any] | None = None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        elif field.default is not dataclasses.MISSING:
            default = functools.partial(lambda value: value, field.default)
        found.append(_Field(field.name, field.name.rstrip('_'), default,
                            'omit' in field.metadata))
    return tuple(found)


@functools.cache
def _reader(kind: ty.Any) -> _Read:
    """What reads a value of a type."""
    origin, arguments = ty.get_origin(kind), ty.get_args(kind)
    if kind is object:
        return lambda value: value
    if origin in (types.UnionType, ty.Union):
        (inner,) = (_reader(one) for one in arguments
                    if one is not types.NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        if arguments[-1] is ...:
            return functools.partial(_read_items, _reader(arguments[0]))
        return functools.partial(_read_pair, tuple(map(_reader, arguments)))
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_read_mapping, _reader(arguments[1]))
    if _is_record(kind):
        hints = ty.get_type_hints(kind)
        return functools.partial(_read_record, kind, tuple(
            (field, _reader(hints[field.name])) for field in _fields(kind)))
    return {bool: _read_flag, int: _read_integer, float: _read_number,
            str: _read_text, Lines: _read_lines}[kind]


def _read_record(kind: type, fields: Iterable[tuple[_Field, _Read]],
                 data: object) -> ty.Any:
    if not isinstance(data, Mapping):
        raise MessageInvalid('must be a mapping')
    found = {}
    for field, read in fields:
        if field.key in data:
            found[field.name] = _at(field.key, read, data[field.key])
        elif field.default is None:
            raise MessageInvalid(f'{field.key} is missing')
        else:
            found[field.name] = field.default()
    return kind(**found)


def _read_mapping(read: _Read, data: object) -> dict[str, ty.Any]:
    if not isinstance(data, Mapping) or len(data) > MOST_ITEMS:
        raise MessageInvalid(f'must be a mapping of {MOST_ITEMS} at the most')
    return {_read_text(key): _at(key, read, value)
            for key, value in data.items()}


def _read_items(read: _Read, data: object) -> tuple[ty.Any, ...]:
    if not isinstance(data, list | tuple) or len(data) > MOST_ITEMS:
        raise MessageInvalid(f'must be a list of {MOST_ITEMS} at the most')
    return tuple(_at(number, read, one) for number, one in enumerate(data))


def _read_pair(reads: tuple[_Read, ...], data: object) -> tuple[ty.Any, ...]:
    if not isinstance(data, list | tuple) or len(data) != len(reads):
        raise MessageInvalid(f'must be a list of {len(reads)}')
    return tuple(_at(number, read, one) for number, (read, one)
                 in enumerate(zip(reads, data, strict=True)))


def _at(place: object, read: _Read, value: object) -> ty.Any:
    try:
        return read(value)
    except MessageInvalid as error:
        raise MessageInvalid(f'{ascii(place)[:80]}: {error}') from None


def _read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise MessageInvalid('must be true or false')
    return value


def _read_integer(value: object) -> int:
    if (isinstance(value, bool) or not isinstance(value, int)
            or abs(value) > MOST_NUMBER):
        # NOTE: Python refuses to print an integer of thousands of digits.
        raise MessageInvalid('must be a whole number of 64 bits, not '
                             + (f'of {value.bit_length()}'
                                if isinstance(value, int)
                                else ascii(value)[:40]))
    return value


def _read_number(value: object) -> float:
    # NOTE: NaN is not below anything.
    if (isinstance(value, bool) or not isinstance(value, int | float)
            or not abs(value) <= MOST_NUMBER):
        raise MessageInvalid(f'must be a number up to {MOST_NUMBER:g}')
    return value


def _read_text(value: object) -> str:
    # It goes to logs and terminals.
    return plain_text.one_line(_checked_text(value))


def _read_lines(value: object) -> Lines:
    return Lines(plain_text.document(_checked_text(value)))


def _checked_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        raise MessageInvalid(
            f'must be a text of {MOST_CHARACTERS} characters at the most')
    return value
