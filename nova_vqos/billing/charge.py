# SPDX-License-Identifier: Apache-2.0
"""How a server pays for its I/O out of its entitlement: pure control.

This one is for limits by a quota, :mod:`nova_vqos.billing.runtime_charge` for
those by what is reserved for a server.

The limit on a server is to be such that all it uses, its I/O included, stays
within its entitlement. What the limit itself bounds (vCPUs, emulator, I/O
threads and vhost together), the kernel does exactly. The rest, which is
modelled, is used beside the limit, and is left to this control. Where the
kernel does not hold vhost to a limit, the vCPUs alone are limited, and all
other threads are part of the rest. The limit is the entitlement,
less what the rest was on the average lately, less a part of the debt. Debt is
the sum of what was used above the entitlement, so that the control is right in
the long run whatever its forecast is worth, and whatever a write of a quota
gives away (TRAPS, Linux 1). A server pays for its I/O only, never for what its
vCPUs got by themselves.

I/O in bursts is forecast from what was seen in the last minute. As long as no
window has more of it than one had before, it comes and goes as it did, and
the limit stays. If one has more, the I/O may be here to stay: where the window
is about to hold more than it may, the limit is lowered at once, and raised at
once when that turns out to be a burst. Where the memory of bursts costs a
server more of its units than it is worth, it is dropped.

What others send a server lowers the limit while it comes, where the operator
wants that, and leaves no debt: the server did not ask for it.

Few writes: in steady state none within ten seconds of another, nor any for
less than the dead band.
"""

import abc
import collections
from collections.abc import Iterator
import dataclasses
import typing as ty

#: In which the entitlement may be exceeded by ALLOWED_EXCESS at most.
WINDOW_S = 30.0
ALLOWED_EXCESS = 0.02

WRITE_INTERVAL_S = 10.0
# How long I/O is remembered.
_MEMORY_S = 60.0
# In which I/O that may be here to stay is seen.
_RECENT_S = 10.0
# Of the entitlement: what a window with as much I/O as the most that is
# remembered may exceed it by.
_MARGIN = ALLOWED_EXCESS / 4
# In seconds of the entitlement: a window with so much more I/O has more.
_MORE_S = 0.01
# Units that a server did not get, since its limit was lower than what it paid
# for: of all of them this part is tolerated, and so many seconds of them once.
# Then I/O that has ended for so long is forgotten.
_LOSS_SHARE = 0.02
_MOST_LOST_S = 4.0
_QUIET_S = 15.0
#: Of the entitlement: a change of the limit by less is none.
DEAD_BAND = 0.01
#: A limit above this is none: no I/O that is worth a write.
WHOLE = 0.995
#: In which a debt would be paid, were there no other.
PAY_S = 30.0
# In which an excess is paid of which a window is about to hold too much.
_PAY_SOON_S = 10.0
# Seconds of the entitlement: what was not used is kept for later up to this,
# so that what only comes and goes leaves no debt. Half of what a window may
# hold too much.
_CREDIT_S = 0.3
# Debt that is not worth a first write.
_NOISE_S = 0.15
# The part of what a window may hold too much at which it has to be acted on:
# until the next interval nothing can be done.
_ALARM = 0.75
# A server that has used less than this of its limit for a whole window needs
# no limit.
_BUSY = 0.9
# Of the limit: what is used above this was not held by it.
_OVERRUN = 1.05
# Writes that come sooner than WRITE_INTERVAL_S: two at once, and another one
# in each window.
_SOON_AT_ONCE = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """What a server has to pay from.

    :ivar entitlement_cu: of the whole server
    :ivar floor_share: part of the entitlement that its limit never goes below
    :ivar ceiling_s: debt above the entitlement of so many seconds is written
        off
    :ivar received_floor_share: part of the entitlement that its limit never
        goes below for what others sent it
    """

    entitlement_cu: float
    floor_share: float = 0.5
    ceiling_s: float = 300.0
    received_floor_share: float = 0.5

    def less_received(self, limit_share: float,
                      received_share: float) -> float:
        """A limit, lowered by what others sent the server, above all floors.

        :param limit_share: by what the server itself did
        :param received_share: of the entitlement
        """
        least = min(limit_share, self.received_floor_share)
        limit_share = max(least, limit_share - received_share)
        return 1.0 if limit_share >= WHOLE else max(
            self.floor_share, limit_share)


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """What a server used in a while, in CU seconds.

    :ivar vcpu_cu_s: its own work
    :ivar threads_cu_s: of emulator, I/O threads and vhost
    :ivar modelled_cu_s: of the kernel, for its requests
    :ivar limits_threads: whether the limit is one on the threads as well
    :ivar received_cu_s: of the kernel, for what others sent it
    """

    length_s: float
    vcpu_cu_s: float
    threads_cu_s: float
    modelled_cu_s: float
    limits_threads: bool = True
    received_cu_s: float = 0.0

    @property
    def rest_cu_s(self) -> float:
        """Used beside the limit, but for what others sent."""
        return (self.modelled_cu_s if self.limits_threads
                else self.io_cu_s)

    @property
    def io_cu_s(self) -> float:
        return self.threads_cu_s + self.modelled_cu_s

    @property
    def limited_cu_s(self) -> float:
        """What the limit is to hold."""
        return self.vcpu_cu_s + self.io_cu_s - self.rest_cu_s

    @property
    def used_cu_s(self) -> float:
        return self.vcpu_cu_s + self.io_cu_s + self.received_cu_s

    def at_most(self, length_s: float) -> 'Interval':
        """The same use in each second, for so long at most."""
        if self.length_s <= length_s:
            return self
        part = length_s / self.length_s
        return Interval(length_s, self.vcpu_cu_s * part,
                        self.threads_cu_s * part, self.modelled_cu_s * part,
                        self.limits_threads, self.received_cu_s * part)


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """An interval, in seconds of the entitlement.

    :ivar used_s: in all
    :ivar io_s: for its own I/O
    :ivar rest_s: beside the limit, or in spite of it
    :ivar excess_s: used above the entitlement, and for I/O; negative: unused
    :ivar balance_s: see Charge, at its end
    :ivar received_s: for what others sent it
    :ivar recent_rest_s: beside the limit in the last _RECENT_S
    :ivar window_rest_s: likewise, in the last WINDOW_S
    """

    length_s: float
    used_s: float
    io_s: float
    rest_s: float
    excess_s: float
    balance_s: float
    received_s: float
    recent_rest_s: float = 0.0
    window_rest_s: float = 0.0


class Settled(ty.NamedTuple):
    """What an interval changed, in CU seconds.

    :ivar excess_cu_s: used above the entitlement for I/O; negative: unused
    :ivar lost_cu_s: unused, and not kept for later
    :ivar written_off_cu_s: of the debt
    """

    excess_cu_s: float
    lost_cu_s: float
    written_off_cu_s: float


class Control(abc.ABC):
    """What decides the limit of one server, and holds its debt.

    :ivar limit_share: the limit wanted, as a part of the entitlement
    :ivar overdrawn: whether its own I/O is more than it can pay for: than its
        entitlement, or, with its limit at the floor and its debt growing, than
        the floor leaves
    :cvar credit_s: seconds of the entitlement up to which what was not used is
        kept for later
    """

    credit_s: ty.ClassVar[float]

    def __init__(self, *, debt_cu_s: float = 0.0,
                 limit_share: float = 1.0) -> None:
        """
        :param limit_share: that is in force
        """
        self.limit_share = limit_share
        self.overdrawn = False
        # Debt, or, below zero, what is kept for later.
        self._balance_cu_s = debt_cu_s
        # What of the limit is left out for what others send.
        self._received_share = 0.0

    @property
    def debt_cu_s(self) -> float:
        """Used above the entitlement for I/O, and not yet paid."""
        return max(0.0, self._balance_cu_s)

    @abc.abstractmethod
    def step(self, terms: Terms, interval: Interval) -> float:
        """Take in what was used, and set the limit wanted.

        :returns: what of the debt was written off, in CU seconds
        """

    def add_debt(self, debt_cu_s: float) -> None:
        """Add what another host says is owed, or take it back.

        What is kept for later stays, and taking back adds nothing to it.
        """
        self._balance_cu_s = max(min(0.0, self._balance_cu_s),
                                 self._balance_cu_s + debt_cu_s)

    def _settle(self, terms: Terms, interval: Interval) -> Settled:
        """Add what was used to the debt, or what was not to what is kept."""
        whole_cu_s = terms.entitlement_cu * interval.length_s
        own_cu_s = interval.vcpu_cu_s + interval.io_cu_s - whole_cu_s
        # What others sent leaves it less to pay with, and no debt.
        received_cu_s = min(interval.received_cu_s,
                            self._received_share * whole_cu_s)
        excess_cu_s = (own_cu_s if own_cu_s > 0
                       else min(0.0, own_cu_s + received_cu_s))
        # Above it by its vCPUs alone is nothing that it has to pay for.
        excess_cu_s = min(excess_cu_s, interval.io_cu_s)
        paid_cu_s = self._balance_cu_s + excess_cu_s
        balance_cu_s = max(-self.credit_s * terms.entitlement_cu, paid_cu_s)
        self._balance_cu_s = min(
            balance_cu_s, terms.ceiling_s * terms.entitlement_cu)
        return Settled(excess_cu_s, balance_cu_s - paid_cu_s,
                       balance_cu_s - self._balance_cu_s)


class Charge(Control):
    """The control of one server that is limited by a quota."""

    credit_s = _CREDIT_S

    def __init__(self, *, debt_cu_s: float = 0.0,
                 limit_share: float = 1.0) -> None:
        """See :class:`Control`."""
        super().__init__(debt_cu_s=debt_cu_s, limit_share=limit_share)
        self._seen: collections.deque[_Seen] = collections.deque()
        self._seen_s = 0.0
        self._since_write_s = WRITE_INTERVAL_S
        self._soon_left = _SOON_AT_ONCE
        # The limit before this one, which may have been in force for a while.
        self._share_before = limit_share
        # Whether the limit is that of I/O that may be here to stay.
        self._expects_more = False
        self._lost_s = 0.0

    def step(self, terms: Terms, interval: Interval) -> float:
        """See :meth:`Control.step`."""
        if interval.length_s <= 0:
            return 0.0
        written_off_cu_s = self._take(terms, interval)
        self._since_write_s += interval.length_s
        self._soon_left = min(_SOON_AT_ONCE, self._soon_left
                              + interval.length_s / WINDOW_S)
        self.overdrawn = self._mean('io_s', WINDOW_S) > 1 or (
            self.limit_share <= terms.floor_share
            and self._mean('excess_s', WINDOW_S) > 0
            and self._mean('rest_s', WINDOW_S) > 1 - terms.floor_share)
        # When the limit can be lowered and raised at once, as I/O is unknown.
        if (self._lost_s > _MOST_LOST_S and self._soon_left >= _SOON_AT_ONCE
                and self._sum('rest_s', _QUIET_S) <= _MORE_S):
            self._forget_io()
        own, has_more = 1.0, False
        alarm = self._is_about_to_exceed()
        received_share = self._forecast_received()
        if alarm or not self._keeps_within_by_itself():
            has_more = self._has_more_io()
            own = self._wanted(alarm=alarm, has_more=has_more)
        wanted = terms.less_received(own, received_share)
        change = wanted - self.limit_share
        if (abs(change) < DEAD_BAND
                and (wanted == 1.0) == (self.limit_share == 1.0)):
            return written_off_cu_s
        if self._since_write_s < WRITE_INTERVAL_S:
            lower = alarm and change <= -2 * DEAD_BAND
            ended = change >= 2 * DEAD_BAND and (
                self._expects_more and not has_more
                or received_share == 0 < self._received_share)
            if self._soon_left < 1 or not (lower or ended):
                return written_off_cu_s
            self._soon_left -= 1
        self._expects_more = alarm and has_more
        self._received_share = terms.less_received(own, 0.0) - wanted
        self.limit_share = wanted
        self._since_write_s = 0.0
        return written_off_cu_s

    def _take(self, terms: Terms, interval: Interval) -> float:
        settled = self._settle(terms, interval)
        self._count_lost(terms, interval, settled.lost_cu_s)
        rest_cu_s = interval.rest_cu_s + self._overrun_cu_s(terms, interval)
        self._share_before = self.limit_share
        self._seen.append(_Seen(interval.length_s, *(
            amount / terms.entitlement_cu for amount in (
                interval.used_cu_s, interval.io_cu_s, rest_cu_s,
                settled.excess_cu_s, self._balance_cu_s,
                interval.received_cu_s))))
        # Their sums include it.
        self._seen[-1] = dataclasses.replace(
            self._seen[-1], recent_rest_s=self._sum('rest_s', _RECENT_S),
            window_rest_s=self._sum('rest_s', WINDOW_S))
        self._seen_s += interval.length_s
        while self._seen_s - self._seen[0].length_s >= _MEMORY_S:
            self._seen_s -= self._seen.popleft().length_s
        return settled.written_off_cu_s

    def _overrun_cu_s(self, terms: Terms, interval: Interval) -> float:
        """What its threads used in spite of the limit: it did not hold them.

        A write of the limit gives some time away, and is made a while later:
        the first one after the emulator has started, which takes more than
        that.
        """
        if not self._seen:
            return 0.0
        limit_cu_s = (max(self.limit_share, self._share_before)
                      * terms.entitlement_cu * interval.length_s)
        return min(interval.io_cu_s - interval.rest_cu_s, max(
            0.0, interval.limited_cu_s - _OVERRUN * limit_cu_s))

    def _count_lost(self, terms: Terms, interval: Interval,
                    unused_cu_s: float) -> None:
        """
        :param unused_cu_s: that is not kept for later
        """
        self._lost_s = max(0.0, self._lost_s
                           - _LOSS_SHARE * interval.length_s)
        limit_cu_s = (self.limit_share * terms.entitlement_cu
                      * interval.length_s)
        if (interval.limited_cu_s >= _BUSY * limit_cu_s
                and not self._expects_more):
            self._lost_s += min(
                unused_cu_s / terms.entitlement_cu,
                (1 - self.limit_share) * interval.length_s)

    def _forget_io(self) -> None:
        """Forget what was used beside the limit; debts stay."""
        self._lost_s = 0.0
        self._seen = collections.deque(
            dataclasses.replace(one, rest_s=0.0, recent_rest_s=0.0,
                                window_rest_s=0.0) for one in self._seen)

    def _has_more_io(self) -> bool:
        """Whether there is more I/O now than there was at any time."""
        *before, last = self._seen
        return any(getattr(last, field) > _MORE_S + max(
            (getattr(one, field) for one in before), default=0.0)
            for field in ('recent_rest_s', 'window_rest_s'))

    def _forecast_received(self) -> float:
        """What of the entitlement others use; 0: they have ended."""
        last = self._seen[-1]
        if last.received_s < DEAD_BAND * last.length_s:
            return 0.0
        return max(last.received_s / last.length_s,
                   self._mean('received_s', _RECENT_S))

    def _wanted(self, *, alarm: bool, has_more: bool) -> float:
        """The limit by what the server itself did; it may be below a floor."""
        rest_share = max(
            self._mean('rest_s', _MEMORY_S),
            max(one.window_rest_s for one in self._seen) / WINDOW_S - _MARGIN)
        if has_more:
            rest_share = max(rest_share, self._mean('rest_s', _RECENT_S))
        # What was paid within the window had only come and gone.
        lasting_s = max(0.0, min(one.balance_s for one in self._window()))
        wanted = 1 - rest_share - lasting_s / PAY_S
        if alarm and has_more:
            last = self._seen[-1]
            wanted = min(wanted, 1 - max(
                rest_share, last.rest_s / last.length_s)
                - max(0.0, self._most_excess_s()) / _PAY_SOON_S)
        return wanted

    def _keeps_within_by_itself(self) -> bool:
        last = self._seen[-1]
        if self.limit_share == 1.0:
            return last.balance_s <= _NOISE_S
        return (last.balance_s <= 0
                and self._seen_s >= WINDOW_S
                and all(one.used_s < _BUSY * self.limit_share * one.length_s
                        for one in self._window()))

    def _window(self) -> Iterator[_Seen]:
        """The intervals of the last WINDOW_S, the last first."""
        left_s = WINDOW_S
        for one in reversed(self._seen):
            if left_s <= 0:
                return
            yield one
            left_s -= one.length_s

    def _is_about_to_exceed(self) -> bool:
        """Whether the window may hold too much before anything can be done."""
        last = self._seen[-1]
        if last.excess_s <= 0:
            return False
        ahead_s = last.length_s
        growing = max(0.0, self._mean('excess_s', _RECENT_S))
        return (self._most_excess_s(ahead_s) + growing * ahead_s
                > _ALARM * ALLOWED_EXCESS * WINDOW_S)

    def _most_excess_s(self, ahead_s: float = 0.0) -> float:
        """The most that any window may have had of the last seconds.

        A window begins anywhere, and may have begun with what is wrong now.

        :param ahead_s: what of a window is still to come
        """
        return max(self._sum('excess_s', length_s) for length_s in (
            _RECENT_S, 2 * _RECENT_S, WINDOW_S - ahead_s))

    def _mean(self, field: str, length_s: float) -> float:
        """Of the last seconds, of which those not seen had nothing."""
        return self._sum(field, length_s) / length_s

    def _sum(self, field: str, length_s: float) -> float:
        """Of the last seconds."""
        total = 0.0
        for one in reversed(self._seen):
            if length_s <= 0:
                break
            total += getattr(one, field) * min(1.0, length_s / one.length_s)
            length_s -= one.length_s
        return total
