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


"""The fields of a document: checked, with errors that name them."""

import math
import typing as ty

from nova_vqos.profile import errors
from nova_vqos.profile import pcpus as lists

_MAX_TEXT = 256
_MAX_TEXTS = 100


class Fields:
    """Checked access to a mapping of the document; errors name the field."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise errors.ProfileInvalid(
                f'{where or "the document"} is no mapping of fields')
        self._fields = value
        self._where = where

    def _get(self, key: str, kind: type | tuple[type, ...],
             expected: str) -> ty.Any:
        value = self._fields.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(key, expected)
        return value

    def _name(self, key: str) -> str:
        return f'{self._where}.{key}'.lstrip('.')

    def error(self, key: str, expected: str) -> errors.ProfileInvalid:
        name = self._name(key)
        if key not in self._fields:
            return errors.ProfileInvalid(
                f'{name} is missing, it must be {expected}')
        shown = repr(self._fields[key])
        if len(shown) > 80:
            shown = f'{shown[:76]}...'
        return errors.ProfileInvalid(
            f'{name} is {shown}, it must be {expected}')

    def text(self, key: str) -> str:
        expected = f'a text of 1 to {_MAX_TEXT} characters'
        value: str = self._get(key, str, expected)
        if not 0 < len(value) <= _MAX_TEXT:
            raise self.error(key, expected)
        return value

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
        # NOTE: to _get a bool is no number, and so nothing.
        if not isinstance(self._fields.get(key), bool):
            raise self.error(key, 'true or false')
        return bool(self._fields[key])

    def numbers(self, key: str, least: int, most: int) -> tuple[float, ...]:
        count = least if least == most else f'{least} to {most}'
        expected = f'a list of {count} positive numbers'
        values = self._get(key, list, expected)
        # NOTE: no Python for each number: the hook waits for thousands. A sum
        # is as finite as its parts.
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

    def pcpus(self, key: str) -> frozenset[int]:
        expected = 'a list of pCPUs such as 0-3,8'
        value = self._fields.get(key)
        try:
            # NOTE: YAML reads a list of one pCPU as a number.
            return lists.parse_pcpus(
                str(value) if isinstance(value, int)
                else self._get(key, str, expected))
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

    def mapping(self, key: str) -> dict[str, ty.Any] | None:
        """One that is not looked at; None: there is none."""
        value = self._fields.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, 'a mapping of fields')
        return value

    def without(self, key: str) -> dict[str, object]:
        return {k: v for k, v in self._fields.items() if k != key}
