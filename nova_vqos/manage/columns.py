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

"""Figures as people read them; JSON and YAML get them as they are."""

from collections.abc import Sequence
import typing as ty

from cliff import columns

_NOTHING = '-'
_WIDTH = 7
_UNITS_S = ((86_400, 'd'), (3600, 'h'), (60, 'min'))


class Shown(columns.FormattableColumn[ty.Any]):
    """A value, and what is shown of it to people; of None it is a dash."""

    def __init__(self, value: ty.Any, text: str) -> None:
        super().__init__(value)
        self._text = text

    def human_readable(self) -> str:
        return _NOTHING if self._value is None else self._text

    def __lt__(self, other: object) -> bool:
        """What is not known comes first."""
        if not isinstance(other, Shown):
            return NotImplemented
        if self._value is None or other._value is None:
            return self._value is None and other._value is not None
        return bool(self._value < other._value)


def number(value: float | None, digits: int = 0) -> Shown:
    """A number, its last digits below each other's."""
    text = '' if value is None else f'{value:{_WIDTH}.{digits}f}'
    return Shown(value, text)


def share(value: float | None) -> Shown:
    """A part of a whole: 0.25 is 25.0 %."""
    return Shown(value, '' if value is None else f'{value:{_WIDTH}.1%}')


def age(value_s: float | None) -> Shown:
    """A time, in the largest unit that it has two of."""
    return Shown(value_s, '' if value_s is None else _duration(value_s))


def texts(values: Sequence[str] | None) -> Shown:
    """Names, or sentences, one after the other."""
    return Shown(None if values is None else list(values),
                 ', '.join(values or ()) or _NOTHING)


def count(values: Sequence[ty.Any] | None) -> Shown:
    """How many there are; for JSON the things themselves."""
    return Shown(None if values is None else list(values),
                 '' if values is None else f'{len(values):{_WIDTH}}')


def flag(value: bool | None) -> Shown:
    return Shown(value, 'yes' if value else 'no')


def _duration(value_s: float) -> str:
    for unit_s, name in _UNITS_S:
        if value_s >= 2 * unit_s:
            return f'{value_s / unit_s:.0f} {name}'
    return f'{value_s:.0f} s'
