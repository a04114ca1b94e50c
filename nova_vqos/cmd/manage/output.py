# SPDX-License-Identifier: Apache-2.0
"""Figures for people; JSON and YAML get them as they are."""

from collections.abc import Sequence
import typing as ty

from cliff import columns

from nova_vqos import primitives

_NOTHING = '-'
_WIDTH = 7
_MOST_NAMED = 5
_UNITS_S = ((86_400, 'd'), (3600, 'h'), (60, 'min'))


class Shown(columns.FormattableColumn[ty.Any]):
    """A value, and its text for people; a dash stands for None."""

    def __init__(self, value: ty.Any, text: str) -> None:
        super().__init__(value)
        self._text = text

    def machine_readable(self) -> ty.Any:
        return primitives.to_primitives(self._value)

    def human_readable(self) -> str:
        return _NOTHING if self._value is None else self._text

    def __lt__(self, other: object) -> bool:
        """None comes first."""
        if not isinstance(other, Shown):
            return NotImplemented
        if self._value is None or other._value is None:
            return self._value is None and other._value is not None
        return bool(self._value < other._value)


def number(value: float | None, digits: int = 0) -> Shown:
    """A number, its last digits below each other's."""
    return Shown(value,
                 '' if value is None else f'{value:{_WIDTH}.{digits}f}')


def text(value: str | None) -> Shown:
    return Shown(value, value or '')


def share(value: float | None) -> Shown:
    """A part of a whole: 0.25 is 25.0 %."""
    return Shown(value, '' if value is None else f'{value:{_WIDTH}.1%}')


def age(value_s: float | None) -> Shown:
    """A duration, in the largest unit of which it has two."""
    return Shown(value_s, '' if value_s is None else _duration(value_s))


def texts(values: Sequence[str] | None) -> Shown:
    """Texts in one line."""
    return Shown(values, ', '.join(values or ()) or _NOTHING)


def some(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    left = len(names) - _MOST_NAMED
    return ', '.join(names[:_MOST_NAMED]) + (
        f' and {left} more' if left > 0 else '')


def count(values: Sequence[ty.Any] | None) -> Shown:
    """A count; for JSON the things themselves."""
    return Shown(values,
                 '' if values is None else f'{len(values):{_WIDTH}}')


def flag(value: bool | None) -> Shown:
    return Shown(value, 'yes' if value else 'no')


def _duration(value_s: float) -> str:
    for unit_s, name in _UNITS_S:
        if value_s >= 2 * unit_s:
            return f'{value_s / unit_s:.0f} {name}'
    return f'{value_s:.0f} s'
