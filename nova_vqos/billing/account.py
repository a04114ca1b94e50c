# SPDX-License-Identifier: Apache-2.0
"""The account of a server: its usage and its debt. Pure.

Amounts are in CU microseconds: one CPU unit for a microsecond, the same on
each host. They are whole numbers, so that adding a small amount to a large one
is exact.
"""

from collections.abc import Mapping
import dataclasses
from fractions import Fraction
import functools
import re
import typing as ty

from nova_vqos import units
from nova_vqos.billing import meter
from nova_vqos.billing import usage

_CU_US_PER_CU_S = 1_000_000

#: Largest amount and largest number. SQLite stores it exactly, and it is more
#: than 140 000 years of 1000 CU.
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
    """The account of a server, sent to the host that it migrated to.

    :ivar sequence: of two statements of a server the one with the higher
        sequence is later, and includes the other
    :ivar total_cu_us: usage by component, on all hosts
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
        """The inverse of :meth:`to_dict`, for untrusted input.

        :raises StatementInvalid: when the input is invalid
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
    """An amount of zero for each component."""
    return dict.fromkeys(meter.COMPONENTS, 0)


_NO_STATEMENT = Statement('', 0, nothing(), 0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """The usage and the debt of a server.

    :ivar own_cu_us: usage on this host by component, not yet transferred
    :ivar debt_cu_us: to be paid out of the server's entitlement
    :ivar written_off_cu_us: debt that will not be paid
    :ivar inherited: statement of the previous host; included in all totals but
        own_cu_us
    :ivar sequence: of the last statement that was sent or received
    :ivar handed_to: host that the account was transferred to last; empty: the
        account is on this host
    :ivar baseline: reading that the next one is compared with; None: there
        was no reading yet
    """

    server_uuid: str
    own_cu_us: Mapping[str, int] = dataclasses.field(default_factory=nothing)
    debt_cu_us: int = 0
    written_off_cu_us: int = 0
    inherited: Statement = _NO_STATEMENT
    sequence: int = 0
    handed_to: str = ''
    baseline: usage.Usage | None = None

    @property
    def total_cu_us(self) -> dict[str, int]:
        """The usage by component, on all hosts."""
        return {name: min(MOST, self.own_cu_us[name]
                          + self.inherited.total_cu_us[name])
                for name in meter.COMPONENTS}

    @property
    def awaits_statement(self) -> bool:
        """Whether this host waits for the statement of another host.

        True where the account was transferred, and of an adopted account
        until the statement arrives.
        """
        return bool(self.handed_to) or (
            self.sequence > 0 and not self.inherited.server_uuid)

    def billed(self, used_cu_us: Mapping[str, int],
               baseline: usage.Usage) -> 'Account':
        """The account with the usage of an interval; the debt is unchanged.

        :param baseline: reading that the next one is compared with
        """
        return dataclasses.replace(
            self, baseline=baseline, own_cu_us={
                name: min(MOST, self.own_cu_us[name] + used_cu_us[name])
                for name in meter.COMPONENTS})

    def adopted(self) -> 'Account':
        """The account of a server that starts on this host.

        After a transfer only the other host has the amounts, so that they do
        not count twice: the account begins at zero.
        """
        if not self.handed_to:
            return self
        return Account(self.server_uuid, sequence=self.sequence)

    def followed_by(self, later: 'Account') -> 'Account':
        """The account with the bills made while it could not be read.

        :param later: began at zero, while this account was not readable
        """
        inherited = later.inherited
        return dataclasses.replace(
            self, baseline=later.baseline,
            own_cu_us={
                name: min(MOST, self.own_cu_us[name] + later.own_cu_us[name])
                for name in meter.COMPONENTS},
            debt_cu_us=_moved(self.debt_cu_us, inherited.debt_cu_us,
                              later.debt_cu_us),
            written_off_cu_us=_moved(
                self.written_off_cu_us, inherited.written_off_cu_us,
                later.written_off_cu_us)).with_statement(inherited)

    def with_statement(self, statement: Statement) -> 'Account':
        """The account with the statement of the previous host.

        A later statement replaces an earlier one. The same or an earlier one
        changes nothing: any may arrive again.
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
        """The account after its transfer to a host, see :meth:`statement`.

        An account that was transferred before does not change: the host of
        that transfer has it.

        :param now_s: UTC in seconds. So the sequences of two hosts without
            contact are in the right order; those of one account always grow,
            even where the clock goes back
        """
        if self.handed_to:
            return self
        return dataclasses.replace(
            self, handed_to=host, baseline=None,
            sequence=min(MOST, max(self.sequence + 1, int(now_s))))

    def statement(self) -> Statement:
        """The account as sent to another host."""
        return Statement(self.server_uuid, self.sequence, self.total_cu_us,
                         self.debt_cu_us, self.written_off_cu_us)


def amounts(data: object) -> dict[str, int]:
    """Amounts by component, from untrusted input.

    :raises StatementInvalid: when the input is invalid
    """
    if not isinstance(data, Mapping) or set(data) != set(meter.COMPONENTS):
        raise StatementInvalid(
            f'amounts must be of {", ".join(meter.COMPONENTS)}')
    return {name: _amount(data, name) for name in meter.COMPONENTS}


def check_host(name: object) -> str:
    """The name of a host, from untrusted input.

    :raises StatementInvalid: when the input is invalid
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
