# SPDX-License-Identifier: Apache-2.0
"""What the kernel reserves on a host: how much, and how it counts it."""

from collections.abc import Callable
from fractions import Fraction
import functools
import logging

from nova_vqos import guarantee
from nova_vqos.agent import worker
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

#: Within which two measurements are equal: each ends at 1/1024 of a pCPU.
RESOLUTION_PCPUS = Fraction(2, 1024)
NO_SCALE = (
    'the kernel counts reserved time by the clock of the CPU: switch turbo '
    'off (intel_pstate/no_turbo) and calibrate this host again, or set '
    '[vqos_agent] least_frequency_scale')

# Between two measurements of what the kernel would still reserve, and between
# two looks at how it counts.
_PROBE_INTERVAL_S = 600.0
# As long as it would reserve nothing.
_RETRY_INTERVAL_S = 30.0
# Of what the kernel reserved once: less than that is lost, or is another's.
_LOST_PART = Fraction(2, 100)


class HostBandwidth:
    """Measures it now and then.

    :ivar total_pcpus: what can be reserved, with what already is; None: it is
        not known, or nothing can be
    :ivar is_measured: whether it is known what can be reserved, or why nothing
    :ivar problem: why nothing can be reserved; '': it can
    :ivar scale: what the kernel counts of a second at the clock of the
        calibration; None: not known
    :ivar counts_clock: whether it counts by the clock of the CPU
    """

    def __init__(self, hypervisor: base.ThreadDriver, is_on: bool,
                 guaranteed_share: float | None, least_frequency_scale: float,
                 probe: worker.PeriodicJob, clock: Callable[[], float],
                 reserved_pcpus: Callable[[], Fraction],
                 on_change: Callable[[], None]) -> None:
        """
        :param is_on: whether this host guarantees speed; where it does not,
            only how the kernel counts is looked at
        :param guaranteed_share: see the option; None: as much as the kernel
            reserves
        :param least_frequency_scale: see the option; 0: not known
        :param probe: measures what can still be reserved
        :param clock: monotonic, in seconds
        :param reserved_pcpus: what is reserved for servers
        :param on_change: called after each measurement
        """
        self.total_pcpus: Fraction | None = None
        self.is_measured = False
        self.problem = 'not measured yet'
        self.scale: Fraction | None = None
        self.counts_clock = False
        self._hypervisor = hypervisor
        self._is_on = is_on
        self._guaranteed_share = guaranteed_share
        self._least_frequency_scale = least_frequency_scale
        self._probe = probe
        self._clock = clock
        self._reserved_pcpus = reserved_pcpus
        self._on_change = on_change
        self._probe_at_s = self._scale_at_s = float('-inf')
        self._last_pcpus: Fraction | None = None
        # What the operator lets be reserved; None: no bound, or not known.
        self._bound_pcpus: Fraction | None = None
        self._most_pcpus = Fraction(0)

    def tick(self, now_s: float, may_probe: Callable[[], bool]) -> None:
        """Look, and begin to measure, where it is due.

        :param may_probe: whether no reservation is under way, and none is
            unknown
        """
        if now_s >= self._scale_at_s:
            self._scale_at_s = now_s + _PROBE_INTERVAL_S
            self.counts_clock = self._hypervisor.counts_clock()
            self.scale = Fraction(1) if not self.counts_clock else (
                Fraction(str(self._least_frequency_scale)) or None)
            if self._is_on and self.scale is None:
                self._measured(NO_SCALE)
                self._probe_at_s = float('-inf')
        if (self._is_on and self.scale is not None
                and now_s >= self._probe_at_s and not self._probe.busy
                and may_probe()):
            self._probe_at_s = now_s + _PROBE_INTERVAL_S
            self._probe.begin(
                functools.partial(_measure, self._hypervisor), self._measured)

    @property
    def is_probing(self) -> bool:
        """Whether all that is left is asked for by a measurement."""
        return self._probe.busy

    @property
    def errors(self) -> int:
        """Unexpected ones of measurements."""
        return self._probe.errors

    @property
    def sellable_pcpus(self) -> Fraction | None:
        """What of it servers may have; None: see total_pcpus."""
        return None if self.total_pcpus is None else guarantee.sellable_pcpus(
            self.total_pcpus, self._bound_pcpus)

    @property
    def lost_pcpus(self) -> float:
        """What could be reserved once, and cannot any more."""
        if (self.total_pcpus is None or self.total_pcpus
                >= self._most_pcpus * (1 - _LOST_PART)):
            return 0.0
        return float(self._most_pcpus - self.total_pcpus)

    def time_pcpus(self, vcpus: Fraction, io: Fraction,
                   reclaims: bool) -> float:
        """What reservations take of the pCPUs' time.

        :param vcpus: of all vCPUs of a server, as the kernel counts it
        :param io: likewise, of the threads that serve its I/O
        :param reclaims: whether its vCPUs may use more, as these threads may
        """
        may_not = Fraction(0) if reclaims else vcpus
        return float(guarantee.taken_pcpus(
            may_not, vcpus - may_not + io, self.scale or Fraction(1)))

    def above_bound(self, needed_pcpus: float, taken_pcpus: float) -> str:
        """Why no more is to be reserved, though the kernel might; '': it is.

        NOTE: not before the first measurement: servers that have a reservation
        by an earlier agent are found in any order.

        :param needed_pcpus: of the pCPUs' time
        :param taken_pcpus: likewise, by all servers
        """
        if self._bound_pcpus is None:
            return ''
        free_pcpus = float(self._bound_pcpus) - taken_pcpus
        if _fits(needed_pcpus, free_pcpus):
            return ''
        return (f'[vqos_agent] guaranteed_share is {self._guaranteed_share}, '
                f'which leaves {max(0.0, free_pcpus):.3f} pCPUs to reserve, '
                f'and it needs {needed_pcpus:.3f}')

    def above_kept(self, needed_pcpus: float, counted_pcpus: float) -> str:
        """Why no more is to be reserved, though the kernel would; '': it is.

        NOTE: the kernel does not know what is kept for servers that pay for
        their I/O, and would give it to any other.

        :param needed_pcpus: beyond what a server has, as the kernel counts it
        :param counted_pcpus: likewise, what all have or is kept for them
        """
        if self.total_pcpus is None:
            return ''
        free_pcpus = float(self.total_pcpus) - counted_pcpus
        if _fits(needed_pcpus, free_pcpus):
            return ''
        return ('the rest is kept for servers that pay for their I/O, and '
                f'{max(0.0, free_pcpus):.3f} pCPUs are left to reserve, of '
                f'which it needs {needed_pcpus:.3f}')

    def _measured(self, found: base.Bandwidth | str) -> None:
        if isinstance(found, str):
            if found != self.problem:
                LOG.warning('This host can guarantee no speed: %s', found)
            self.total_pcpus = self._last_pcpus = None
            self.is_measured, self.problem = True, found
            self._probe_at_s = self._clock() + _RETRY_INTERVAL_S
            self._on_change()
            return
        total, last = found.pcpus + (
            0 if found.is_total else self._reserved_pcpus()), self._last_pcpus
        self._last_pcpus = total
        if not _are_equal(total, last):
            # The kernel forgets a server that goes sooner or later than the
            # agent does: two measurements in a row have to agree.
            self._probe_at_s = float('-inf')
            return
        if self._guaranteed_share is not None:
            self._bound_pcpus = found.number * Fraction(
                str(self._guaranteed_share))
        if self.total_pcpus is None:
            LOG.info('The kernel reserves up to %.3f pCPUs for servers, of '
                     'which %.3f are sold', float(total),
                     float(guarantee.sellable_pcpus(total,
                                                    self._bound_pcpus)))
        if not _are_equal(total, self.total_pcpus):
            # What Placement sells follows from it.
            self.total_pcpus = total
        self.is_measured, self.problem = True, ''
        self._most_pcpus = max(self._most_pcpus, total)
        self._on_change()


def _fits(needed_pcpus: float, free_pcpus: float) -> bool:
    # Runtimes are rounded.
    return needed_pcpus <= free_pcpus + float(RESOLUTION_PCPUS)


def _are_equal(pcpus: Fraction, others: Fraction | None) -> bool:
    """Whether two measurements are equal, as far as they are exact."""
    return others is not None and abs(pcpus - others) <= RESOLUTION_PCPUS


def _measure(hypervisor: base.ThreadDriver) -> base.Bandwidth | str:
    """What can be reserved; or why nothing can."""
    try:
        return hypervisor.bandwidth()
    except base.ReservationRefused as error:
        return str(error)
