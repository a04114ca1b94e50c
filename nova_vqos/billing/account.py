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
#: than 140 years of 1000 CU.
MOST = 2**62

#: Largest server, its I/O included: 1000 pCPUs of the reference. A server may
#: come from a host of any size, so that of the receiving host is no bound.
MOST_SERVER_CU = 100_000
#: Largest use of a component that another host may state. The rest of MOST is
#: left to count on: nine years of 1000 CU.
MOST_STATED_CU_US = MOST - MOST // 16
# No account is older than the project: 2026-01-01, in seconds since 1970.
_FIRST_S = 1_767_225_600
# How far the clock of another host may be ahead.
_MOST_AHEAD_S = 86_400
# Debt comes from use alone, but it is kept as a float meanwhile.
_ROUNDING_CU_US = _CU_US_PER_CU_S

# A field of a statement that need not be there.
_SAVED = 'saved_cu_us'

_HOST_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._@:-]{0,254}')
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


class StatementInvalid(ValueError):
    """Not a statement of an account."""


def to_cu_us(used_ns: Fraction | int, coefficient: float) -> int:
    """CPU time of a host in CU microseconds, to the nearest.

    :param coefficient: of the pCPU that it was spent on
    """
    factor = _cu_us_per_ns(coefficient)
    # NOTE: not round() of a product of fractions: that was the most expensive
    # part of a bill.
    divisor = used_ns.denominator * factor.denominator
    return (2 * used_ns.numerator * factor.numerator + divisor) // (
        2 * divisor)


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
    :ivar saved_cu_us: see :class:`Account`
    """

    server_uuid: str
    sequence: int
    total_cu_us: Mapping[str, int]
    debt_cu_us: int
    written_off_cu_us: int
    saved_cu_us: int = 0

    def to_dict(self) -> dict[str, ty.Any]:
        """Primitives only, fit for a message."""
        found = {**{field.name: getattr(self, field.name)
                    for field in dataclasses.fields(self)},
                 'total_cu_us': dict(self.total_cu_us)}
        # NOTE: an agent before 1.7 refuses a field that it does not know, and
        # asks for no savings.
        if not self.saved_cu_us:
            del found[_SAVED]
        return found

    @classmethod
    def from_dict(cls, data: object) -> 'Statement':
        """The inverse of :meth:`to_dict`, for untrusted input.

        :raises StatementInvalid: when the input is invalid
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(data, Mapping) or (
                set(data) | {_SAVED}) != names:
            raise StatementInvalid(
                f'it must be a mapping with {", ".join(sorted(names))}')
        uuid = data['server_uuid']
        if not isinstance(uuid, str) or not _UUID.fullmatch(uuid):
            raise StatementInvalid('server_uuid must be a UUID')
        return cls(
            server_uuid=uuid,
            total_cu_us=amounts(data['total_cu_us']),
            saved_cu_us=check_balance(data.get(_SAVED, 0), _SAVED),
            **{name: check_amount(data[name], name) for name in (
                'sequence', 'debt_cu_us', 'written_off_cu_us')})


def nothing() -> dict[str, int]:
    """An amount of zero for each component."""
    return dict.fromkeys(meter.COMPONENTS, 0)


_NO_STATEMENT = Statement('', 0, nothing(), 0, 0)


def can_be_use(used_cu_us: Mapping[str, int], now_s: float) -> bool:
    """Whether a server can have used so much by now, on hosts of any size.

    :param used_cu_us: by component
    :param now_s: UTC in seconds
    """
    age_s = max(0, int(now_s) - _FIRST_S)
    return (max(used_cu_us.values()) <= MOST_STATED_CU_US
            and sum(used_cu_us.values())
            <= age_s * MOST_SERVER_CU * _CU_US_PER_CU_S)


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """The usage and the debt of a server.

    :ivar own_cu_us: usage on this host by component, not yet transferred
    :ivar debt_cu_us: to be paid out of the server's entitlement
    :ivar written_off_cu_us: debt that will not be paid
    :ivar saved_cu_us: what it used less than its units, for bursts; below 0:
        it overspent
    :ivar inherited: statement of the previous host; included in all totals but
        own_cu_us
    :ivar sequence: of the last statement that was sent or received, or one
        more where a later one is awaited
    :ivar handed_to: host that the account was transferred to last, so that it
        is a copy; empty: the account is on this host
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
    saved_cu_us: int = 0

    @property
    def total_cu_us(self) -> dict[str, int]:
        """The usage by component, on all hosts."""
        return {name: (self.own_cu_us[name]
                       + self.inherited.total_cu_us[name])
                for name in meter.COMPONENTS}

    @property
    def awaits_statement(self) -> bool:
        """Whether another host has, or had, an account that is later.

        True where this account was transferred.
        """
        return self.sequence > self.inherited.sequence

    def billed(self, used_cu_us: Mapping[str, int],
               baseline: usage.Usage) -> 'Account':
        """The account with the usage of an interval; the debt is unchanged.

        :param baseline: reading that the next one is compared with
        """
        return dataclasses.replace(
            self, baseline=baseline, own_cu_us={
                name: self.own_cu_us[name] + used_cu_us[name]
                for name in meter.COMPONENTS})

    def with_savings(self, saved_cu_us: int, least_cu_us: int = 0,
                     most_cu_us: int = 0) -> 'Account':
        """The account with another balance, bounded by what its flavor allows.

        While a statement is awaited, what is above the bound is cut from the
        balance of the one before it. So the next one, which replaces that,
        takes nothing of what was saved here.
        """
        bounded_cu_us = max(least_cu_us, min(most_cu_us, saved_cu_us))
        stated = self.inherited
        cut_cu_us = min(saved_cu_us - bounded_cu_us, stated.saved_cu_us)
        if cut_cu_us > 0 and self.awaits_statement:
            stated = dataclasses.replace(
                stated, saved_cu_us=stated.saved_cu_us - cut_cu_us)
        elif bounded_cu_us == self.saved_cu_us:
            # NOTE: each bill of a server that saves nothing.
            return self
        return dataclasses.replace(self, saved_cu_us=bounded_cu_us,
                                   inherited=stated)

    def adopted(self) -> 'Account':
        """The account of a server that starts on this host.

        After a transfer it begins with the copy that stayed here, as if that
        were the statement of another host: the statement of the host that has
        the account includes it, and replaces it. Until that has come it is
        awaited.
        """
        if not self.handed_to:
            return self
        return Account(
            self.server_uuid, debt_cu_us=self.debt_cu_us,
            written_off_cu_us=self.written_off_cu_us,
            inherited=self.statement(), sequence=self.sequence,
            saved_cu_us=self.saved_cu_us).awaiting()

    def awaiting(self) -> 'Account':
        """The account while a later one of another host is awaited."""
        return dataclasses.replace(self, sequence=max(
            self.sequence, self.inherited.sequence + 1))

    def unanswered(self) -> 'Account':
        """The account once none is awaited that may not exist.

        That of a server that came from another host, or is new.
        """
        return (dataclasses.replace(self, sequence=0) if self.sequence == 1
                else self)

    def followed_by(self, later: 'Account') -> 'Account':
        """The account with the bills made while it could not be read.

        :param later: began at zero, while this account was not readable
        """
        inherited = later.inherited
        return dataclasses.replace(
            self, baseline=later.baseline,
            own_cu_us={
                name: self.own_cu_us[name] + later.own_cu_us[name]
                for name in meter.COMPONENTS},
            debt_cu_us=_moved(self.debt_cu_us, inherited.debt_cu_us,
                              later.debt_cu_us),
            written_off_cu_us=_moved(
                self.written_off_cu_us, inherited.written_off_cu_us,
                later.written_off_cu_us),
            saved_cu_us=self.saved_cu_us - inherited.saved_cu_us
            + later.saved_cu_us).with_statement(inherited)

    def objection(self, statement: Statement, most_debt_cu_us: int,
                  now_s: float, most_saved_cu_us: int = 0) -> str:
        """Why a statement cannot be true; '': it can.

        :param most_debt_cu_us: above which this host writes debt off
        :param now_s: UTC in seconds
        :param most_saved_cu_us: that its flavor allows
        """
        used_cu_us, before = statement.total_cu_us, self.inherited
        if statement.sequence > now_s + _MOST_AHEAD_S:
            return f'its sequence {statement.sequence} lies ahead of the clock'
        if not can_be_use(used_cu_us, now_s):
            return 'it has more use than any server can have had since 2026'
        if statement.debt_cu_us > most_debt_cu_us:
            return (f'its debt of {cu_s(statement.debt_cu_us):.0f} CU seconds '
                    f'is above the ceiling of {cu_s(most_debt_cu_us):.0f}')
        if statement.saved_cu_us > most_saved_cu_us:
            return (f'its savings of {cu_s(statement.saved_cu_us):.0f} CU '
                    'seconds are above the bound of '
                    f'{cu_s(most_saved_cu_us):.0f}')
        if (statement.debt_cu_us + statement.written_off_cu_us
                > sum(used_cu_us.values()) + _ROUNDING_CU_US):
            return 'it has more debt than use'
        if statement.sequence > before.sequence and any(
                used_cu_us[name] < before.total_cu_us[name]
                for name in used_cu_us):
            return 'it has less use than an earlier one'
        return ''

    def with_statement(self, statement: Statement, *,
                       is_copy: bool = False) -> 'Account':
        """The account with the statement of another host.

        A later statement replaces an earlier one. The same or an earlier one
        changes nothing: any may arrive again.

        :param is_copy: whether that host had handed the account over before,
            so that a later statement is still awaited
        """
        before = self.inherited
        if statement.sequence <= before.sequence:
            return self
        return dataclasses.replace(
            self, inherited=statement,
            sequence=max(self.sequence, statement.sequence + is_copy),
            debt_cu_us=_moved(self.debt_cu_us, before.debt_cu_us,
                              statement.debt_cu_us),
            written_off_cu_us=_moved(
                self.written_off_cu_us, before.written_off_cu_us,
                statement.written_off_cu_us),
            saved_cu_us=self.saved_cu_us - before.saved_cu_us
            + statement.saved_cu_us)

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
            sequence=max(self.sequence + 1, int(now_s)))

    def statement(self, most_debt_cu_us: int = MOST,
                  most_saved_cu_us: int = MOST) -> Statement:
        """The account as sent to another host.

        :param most_debt_cu_us: above which that host writes debt off, as
            where the server has fewer units there: the rest is written off
        :param most_saved_cu_us: that the server may save there; 0: it does
            not burst there, or that host does not know of it
        """
        debt_cu_us = min(self.debt_cu_us, most_debt_cu_us)
        return Statement(
            self.server_uuid, self.sequence, self.total_cu_us, debt_cu_us,
            self.written_off_cu_us + self.debt_cu_us - debt_cu_us,
            min(self.saved_cu_us, most_saved_cu_us) if most_saved_cu_us else 0)


def amounts(data: object) -> dict[str, int]:
    """Amounts by component, from untrusted input.

    :raises StatementInvalid: when the input is invalid
    """
    if not isinstance(data, Mapping) or set(data) != set(meter.COMPONENTS):
        raise StatementInvalid(
            f'amounts must be of {", ".join(meter.COMPONENTS)}')
    return {name: check_amount(data[name], name) for name in meter.COMPONENTS}


def check_host(name: object) -> str:
    """The name of a host, from untrusted input.

    :raises StatementInvalid: when the input is invalid
    """
    if not isinstance(name, str) or not _HOST_NAME.fullmatch(name):
        raise StatementInvalid('host must be the name of a host')
    return name


def _moved(now: int, before: int, after: int) -> int:
    # What was paid meanwhile may have been more than the rest.
    return max(0, now - before + after)


def check_amount(value: object, name: str) -> int:
    """An amount or a number, from untrusted input.

    :raises StatementInvalid: when the input is invalid
    """
    if (isinstance(value, bool) or not isinstance(value, int)
            or not 0 <= value <= MOST):
        raise StatementInvalid(
            f'{name} must be a whole number from 0 to {MOST}')
    return value


def check_balance(value: object, name: str) -> int:
    """An amount that may be below 0, from untrusted input.

    :raises StatementInvalid: when the input is invalid
    """
    if (isinstance(value, bool) or not isinstance(value, int)
            or not -MOST <= value <= MOST):
        raise StatementInvalid(
            f'{name} must be a whole number from {-MOST} to {MOST}')
    return value
