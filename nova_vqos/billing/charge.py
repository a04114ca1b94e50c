# SPDX-License-Identifier: Apache-2.0
"""How a server pays for its I/O out of its entitlement: pure control.

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

Few writes: in steady state none within ten seconds of another, nor any for
less than the dead band. What comes and goes within the window is no reason
for one: its average is what counts. Only where the window is about to hold
more than it may, the limit is lowered at once.
"""

import collections
import dataclasses

#: In which the entitlement may be exceeded by ALLOWED_EXCESS at most.
WINDOW_S = 30.0
ALLOWED_EXCESS = 0.02

WRITE_INTERVAL_S = 10.0
# What was used beside the limit is what it was in this time, or in the whole
# window: the higher of the two.
_RECENT_S = 10.0
# Of the entitlement: a change of the limit by less is none.
_DEAD_BAND = 0.01
# A limit above this is none: no I/O that is worth a write.
_WHOLE = 0.995
# In which a debt would be paid, were there no other.
_PAY_S = 30.0
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
    """

    entitlement_cu: float
    floor_share: float = 0.1
    ceiling_s: float = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """What a server used in a while, in CU seconds.

    :ivar vcpu_cu_s: its own work
    :ivar threads_cu_s: of emulator, I/O threads and vhost
    :ivar modelled_cu_s: of the kernel, for its requests
    :ivar limits_threads: whether the limit is one on the threads as well
    """

    length_s: float
    vcpu_cu_s: float
    threads_cu_s: float
    modelled_cu_s: float
    limits_threads: bool = True

    @property
    def rest_cu_s(self) -> float:
        """Used beside the limit."""
        return (self.modelled_cu_s if self.limits_threads
                else self.io_cu_s)

    @property
    def io_cu_s(self) -> float:
        return self.threads_cu_s + self.modelled_cu_s

    @property
    def used_cu_s(self) -> float:
        return self.vcpu_cu_s + self.io_cu_s

    def at_most(self, length_s: float) -> 'Interval':
        """The same use in each second, for so long at most."""
        if self.length_s <= length_s:
            return self
        part = length_s / self.length_s
        return Interval(length_s, self.vcpu_cu_s * part,
                        self.threads_cu_s * part, self.modelled_cu_s * part,
                        self.limits_threads)


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """An interval, in seconds of the entitlement.

    :ivar used_s: in all
    :ivar io_s: for I/O
    :ivar rest_s: beside the limit
    :ivar excess_s: used above the entitlement, and for I/O; negative: unused
    :ivar balance_s: see Charge, at its end
    """

    length_s: float
    used_s: float
    io_s: float
    rest_s: float
    excess_s: float
    balance_s: float


class Charge:
    """The control of one server.

    :ivar limit_share: the limit wanted, as a part of the entitlement
    :ivar overdrawn: whether its I/O alone is more than its entitlement
    """

    def __init__(self, *, debt_cu_s: float = 0.0,
                 limit_share: float = 1.0) -> None:
        """
        :param limit_share: that is in force
        """
        self.limit_share = limit_share
        self.overdrawn = False
        # Debt, or, below zero, what is kept for later.
        self._balance_cu_s = debt_cu_s
        self._seen: collections.deque[_Seen] = collections.deque()
        self._since_write_s = WRITE_INTERVAL_S
        self._soon_left = _SOON_AT_ONCE

    @property
    def debt_cu_s(self) -> float:
        """Used above the entitlement for I/O, and not yet paid."""
        return max(0.0, self._balance_cu_s)

    def step(self, terms: Terms, interval: Interval) -> float:
        """Take in what was used, and set the limit wanted.

        :returns: what of the debt was written off, in CU seconds
        """
        if interval.length_s <= 0:
            return 0.0
        written_off_cu_s = self._take(terms, interval)
        self._since_write_s += interval.length_s
        self._soon_left = min(_SOON_AT_ONCE, self._soon_left
                              + interval.length_s / WINDOW_S)
        self.overdrawn = self._mean('io_s', WINDOW_S) > 1
        alarm = self._is_about_to_exceed()
        wanted = self._wanted(terms, alarm=alarm)
        if (abs(wanted - self.limit_share) < _DEAD_BAND
                and (wanted == 1.0) == (self.limit_share == 1.0)):
            return written_off_cu_s
        if self._since_write_s < WRITE_INTERVAL_S:
            if (not alarm or self._soon_left < 1
                    or wanted > self.limit_share - 2 * _DEAD_BAND):
                return written_off_cu_s
            self._soon_left -= 1
        self.limit_share = wanted
        self._since_write_s = 0.0
        return written_off_cu_s

    def add_debt(self, debt_cu_s: float) -> None:
        """Add what another host says is owed, or take it back.

        What is kept for later stays, and taking back adds nothing to it.
        """
        self._balance_cu_s = max(min(0.0, self._balance_cu_s),
                                 self._balance_cu_s + debt_cu_s)

    def _take(self, terms: Terms, interval: Interval) -> float:
        excess_cu_s = (interval.used_cu_s
                       - terms.entitlement_cu * interval.length_s)
        # Above it by its vCPUs alone is nothing that it has to pay for.
        excess_cu_s = min(excess_cu_s, interval.io_cu_s)
        ceiling_cu_s = terms.ceiling_s * terms.entitlement_cu
        balance_cu_s = max(-_CREDIT_S * terms.entitlement_cu,
                           self._balance_cu_s + excess_cu_s)
        self._balance_cu_s = min(balance_cu_s, ceiling_cu_s)
        self._seen.append(_Seen(interval.length_s, *(
            amount / terms.entitlement_cu for amount in (
                interval.used_cu_s, interval.io_cu_s, interval.rest_cu_s,
                excess_cu_s, self._balance_cu_s))))
        while (sum(one.length_s for one in self._seen)
               - self._seen[0].length_s >= WINDOW_S):
            self._seen.popleft()
        return balance_cu_s - self._balance_cu_s

    def _wanted(self, terms: Terms, *, alarm: bool) -> float:
        if not alarm and self._keeps_within_by_itself():
            return 1.0
        rest_share = max(self._mean('rest_s', _RECENT_S),
                         self._mean('rest_s', WINDOW_S))
        # What was paid within the window had only come and gone.
        lasting_s = max(0.0, min(one.balance_s for one in self._seen))
        wanted = 1 - rest_share - lasting_s / _PAY_S
        if alarm:
            last = self._seen[-1]
            wanted = min(wanted, 1 - max(
                rest_share, last.rest_s / last.length_s)
                - max(0.0, self._most_excess_s()) / _PAY_SOON_S)
        return 1.0 if wanted >= _WHOLE else max(terms.floor_share, wanted)

    def _keeps_within_by_itself(self) -> bool:
        last = self._seen[-1]
        if self.limit_share == 1.0:
            return last.balance_s <= _NOISE_S
        return (last.balance_s <= 0
                and sum(one.length_s for one in self._seen) >= WINDOW_S
                and all(one.used_s < _BUSY * self.limit_share * one.length_s
                        for one in self._seen))

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
