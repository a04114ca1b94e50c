# SPDX-License-Identifier: Apache-2.0
"""How a server pays whose limit may change at any time: pure control.

To change what is reserved for a vCPU gives no CPU time away, as each write of
a quota does. So nothing has to be forecast: each interval pays for the I/O of
the one before. What a server owes beyond that (the limit has a floor, and a
debt may be an old one) is its debt, and paid over a while.
"""

import typing as ty

from nova_vqos.billing import charge

# A shorter interval is no reason to pay sooner: the next one may be longer,
# and would pay twice.
_LEAST_PAY_S = 2.0
# Seconds of the entitlement: each interval pays so much of an old debt.
_SOON_S = 0.3


class RuntimeCharge(charge.Control):
    """The control of one server."""

    # What a reading is wrong by, between two periods.
    credit_s: ty.ClassVar[float] = 0.1

    def __init__(self, *, debt_cu_s: float = 0.0,
                 limit_share: float = 1.0) -> None:
        """See :class:`charge.Control`."""
        super().__init__(debt_cu_s=debt_cu_s, limit_share=limit_share)
        # What the next interval pays.
        self._due_cu_s = 0.0
        # Of the entitlement, on the average of a while.
        self._io_share = self._excess_share = 0.0

    @property
    def debt_cu_s(self) -> float:
        """Used above the entitlement for I/O; the next interval pays less."""
        return max(0.0, self._balance_cu_s - self._due_cu_s)

    def step(self, terms: charge.Terms, interval: charge.Interval) -> float:
        """See :meth:`charge.Control.step`."""
        if interval.length_s <= 0:
            return 0.0
        settled = self._settle(terms, interval)
        whole_cu_s = terms.entitlement_cu * interval.length_s
        received_share = interval.received_cu_s / whole_cu_s
        io_share = interval.io_cu_s / whole_cu_s
        part = min(1.0, interval.length_s / charge.WINDOW_S)
        self._io_share += (io_share - self._io_share) * part
        self._excess_share += (
            settled.excess_cu_s / whole_cu_s - self._excess_share) * part
        self.overdrawn = self._io_share > 1 or (
            self.limit_share <= terms.floor_share and self._excess_share > 0)
        owed_cu_s = max(0.0, self._balance_cu_s)
        soon_cu_s = min(owed_cu_s, interval.io_cu_s
                        + _SOON_S * terms.entitlement_cu)
        pay_s = max(_LEAST_PAY_S, interval.length_s)
        own = 1 - (soon_cu_s / pay_s + (owed_cu_s - soon_cu_s) / charge.PAY_S
                   ) / terms.entitlement_cu
        wanted = terms.less_received(own, received_share)
        if (abs(wanted - self.limit_share) >= charge.DEAD_BAND
                or (wanted == 1.0) != (self.limit_share == 1.0)):
            self.limit_share = wanted
            self._received_share = terms.less_received(own, 0.0) - wanted
        # What is not worth a change is none, either.
        self._due_cu_s = terms.entitlement_cu * pay_s * (
            1 - self.limit_share + charge.DEAD_BAND)
        return settled.written_off_cu_s
