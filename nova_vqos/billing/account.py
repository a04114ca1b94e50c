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

"""What a server used so far, and owes: pure.

Kept in CU microseconds: what one CPU unit of the reference is in a
microsecond, so that an amount means the same on every host. Whole numbers, so
that nothing is lost by adding a little to much.
"""

from collections.abc import Mapping
import dataclasses
from fractions import Fraction
import functools
import re
import typing as ty

from nova_vqos import units
from nova_vqos.billing import meter
from nova_vqos.billing import usage as usages

_CU_US_PER_CU_S = 1_000_000

#: No amount and no number is larger: what SQLite keeps exactly, and more than
#: 140 000 years of 1000 CU.
MOST = 2**62

_HOST_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._@:-]{0,254}')
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


class StatementInvalid(ValueError):
    """Not a statement of an account."""


def to_cu_us(used_ns: Fraction | int, coefficient: float) -> int:
    """CPU time of a host in CU microseconds.

    :param coefficient: of the pCPU that it was spent on
    """
    return round(used_ns * _cu_us_per_ns(coefficient))


@functools.lru_cache(maxsize=64)
def _cu_us_per_ns(coefficient: float) -> Fraction:
    return units.pcpu_cu(coefficient) / 1000


def cu_s(amount_cu_us: int) -> float:
    """An amount in CU seconds."""
    return amount_cu_us / _CU_US_PER_CU_S


def cu_us(amount_cu_s: float) -> int:
    """The inverse of :func:`cu_s`, to the nearest CU microsecond."""
    return round(amount_cu_s * _CU_US_PER_CU_S)


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """What one host tells another of a server that left for it.

    :ivar sequence: of two statements of a server the higher one is the later
        one, and holds all that is in the other
    :ivar total_cu_us: used so far by component, on all hosts
    """

    server_uuid: str
    sequence: int
    total_cu_us: Mapping[str, int]
    debt_cu_us: int
    written_off_cu_us: int

    def to_dict(self) -> dict[str, ty.Any]:
        """Primitives only, fit for a message."""
        return {**{field.name: getattr(self, field.name)
                   for field in dataclasses.fields(self)},
                'total_cu_us': dict(self.total_cu_us)}

    @classmethod
    def from_dict(cls, data: object) -> 'Statement':
        """The inverse of :meth:`to_dict`, of input that is not trusted.

        :raises StatementInvalid: when it is not what to_dict gives
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(data, Mapping) or set(data) != names:
            raise StatementInvalid(
                f'it must be a mapping with {", ".join(sorted(names))}')
        uuid = data['server_uuid']
        if not isinstance(uuid, str) or not _UUID.fullmatch(uuid):
            raise StatementInvalid('server_uuid must be a UUID')
        return cls(
            server_uuid=uuid,
            sequence=_amount(data, 'sequence'),
            total_cu_us=amounts(data['total_cu_us']),
            debt_cu_us=_amount(data, 'debt_cu_us'),
            written_off_cu_us=_amount(data, 'written_off_cu_us'))


def nothing() -> dict[str, int]:
    """No amount of any component."""
    return dict.fromkeys(meter.COMPONENTS, 0)


_NO_STATEMENT = Statement('', 0, nothing(), 0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """What a server used so far and owes, as far as this host knows.

    :ivar own_cu_us: used on this host by component, and not yet handed over
    :ivar debt_cu_us: what it has to pay out of its entitlement
    :ivar written_off_cu_us: what of the debt nobody will pay
    :ivar inherited: what the host that it came from told; it is in own_cu_us
        not, in the others it is
    :ivar sequence: of the last statement that was made or taken
    :ivar handed_to: the host that was told last; empty: the account is here
    :ivar baseline: what the next reading is compared with; None: there was
        no reading yet
    """

    server_uuid: str
    own_cu_us: Mapping[str, int] = dataclasses.field(default_factory=nothing)
    debt_cu_us: int = 0
    written_off_cu_us: int = 0
    inherited: Statement = _NO_STATEMENT
    sequence: int = 0
    handed_to: str = ''
    baseline: usages.Usage | None = None

    @property
    def total_cu_us(self) -> dict[str, int]:
        """Used so far by component, on all hosts."""
        return {name: min(MOST, self.own_cu_us[name]
                          + self.inherited.total_cu_us[name])
                for name in meter.COMPONENTS}

    @property
    def awaits_statement(self) -> bool:
        """Whether another host was told what this one knew, and is to tell.

        It is still so of an account that was adopted, until that happens.
        """
        return bool(self.handed_to) or (
            self.sequence > 0 and not self.inherited.server_uuid)

    def billed(self, used_cu_us: Mapping[str, int],
               baseline: usages.Usage) -> 'Account':
        """With what an interval cost; the debt is another matter.

        :param baseline: what the next reading is to be compared with
        """
        return dataclasses.replace(
            self, baseline=baseline, own_cu_us={
                name: min(MOST, self.own_cu_us[name] + used_cu_us[name])
                for name in meter.COMPONENTS})

    def adopted(self) -> 'Account':
        """As a server that begins to run here finds it.

        What another host was told is that host's to tell, so that it is not
        counted here as well.
        """
        if not self.handed_to:
            return self
        return Account(self.server_uuid, sequence=self.sequence)

    def followed_by(self, later: 'Account') -> 'Account':
        """With what was billed while this account could not be read.

        :param later: began with nothing, by a host that did not know of
            this one
        """
        told = later.inherited
        return dataclasses.replace(
            self, baseline=later.baseline,
            own_cu_us={
                name: min(MOST, self.own_cu_us[name] + later.own_cu_us[name])
                for name in meter.COMPONENTS},
            debt_cu_us=_moved(self.debt_cu_us, told.debt_cu_us,
                              later.debt_cu_us),
            written_off_cu_us=_moved(
                self.written_off_cu_us, told.written_off_cu_us,
                later.written_off_cu_us)).with_statement(told)

    def with_statement(self, statement: Statement) -> 'Account':
        """With what the host that the server came from tells.

        A later statement takes the place of an earlier one, and the same or
        an earlier one changes nothing: any may come again.
        """
        if statement.sequence <= self.sequence:
            return self
        before = self.inherited
        return dataclasses.replace(
            self, inherited=statement, sequence=statement.sequence,
            debt_cu_us=_moved(self.debt_cu_us, before.debt_cu_us,
                              statement.debt_cu_us),
            written_off_cu_us=_moved(
                self.written_off_cu_us, before.written_off_cu_us,
                statement.written_off_cu_us))

    def handed_over(self, host: str, now_s: float) -> 'Account':
        """As it is once a host was told, see :meth:`statement`.

        One that another host was told of already stays as it is: that is
        the host to ask.

        :param now_s: UTC in seconds, so that the numbers of two hosts that
            know nothing of each other are in the right order; those of one
            account are so whatever the clock does
        """
        if self.handed_to:
            return self
        return dataclasses.replace(
            self, handed_to=host, baseline=None,
            sequence=min(MOST, max(self.sequence + 1, int(now_s))))

    def statement(self) -> Statement:
        """What another host is to know."""
        return Statement(self.server_uuid, self.sequence, self.total_cu_us,
                         self.debt_cu_us, self.written_off_cu_us)


def amounts(data: object) -> dict[str, int]:
    """Amounts by component, of input that is not trusted.

    :raises StatementInvalid: when it is something else
    """
    if not isinstance(data, Mapping) or set(data) != set(meter.COMPONENTS):
        raise StatementInvalid(
            f'amounts must be of {", ".join(meter.COMPONENTS)}')
    return {name: _amount(data, name) for name in meter.COMPONENTS}


def check_host(name: object) -> str:
    """The name of a host, of input that is not trusted.

    :raises StatementInvalid: when it is none
    """
    if not isinstance(name, str) or not _HOST_NAME.fullmatch(name):
        raise StatementInvalid('host must be the name of a host')
    return name


def _moved(now: int, before: int, after: int) -> int:
    return min(MOST, max(0, now - before + after))


def _amount(data: Mapping[str, ty.Any], name: str) -> int:
    value = data[name]
    if (isinstance(value, bool) or not isinstance(value, int)
            or not 0 <= value <= MOST):
        raise StatementInvalid(
            f'{name} must be a whole number from 0 to {MOST}')
    return value
