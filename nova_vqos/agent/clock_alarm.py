# SPDX-License-Identifier: Apache-2.0
"""The alarm that servers ran at a lower clock than the host was calibrated at.

A cap is a time: at a lower clock it is less work. Only CPU time of servers
counts, in which their CPU was not idle. Pure.
"""

from collections.abc import Iterable
import logging

from nova_vqos import units
from nova_vqos.billing import usage

LOG = logging.getLogger(__name__)

#: It begins where the mean clock of a minute is below so much of that of the
#: calibration, and ends where it is above so much.
BEGINS_BELOW = 0.90
ENDS_ABOVE = 0.93
#: Of all servers together, in that minute; less CPU time says nothing.
LEAST_RAN_NS = 1_000_000_000


class ClockAlarm:
    """The alarm of one host.

    :ivar text: for an operator; '': it is off
    """

    def __init__(self) -> None:
        self.text = ''

    def update(self, ran: Iterable[tuple[usage.ClockTime, float]]) -> None:
        """Let it begin or end.

        :param ran: what each server ran in the last minute, and the clock of
            its pCPUs in the calibration, in MHz
        """
        ran = tuple(ran)
        total = usage.total_clock(time for time, _mhz in ran)
        if total.ran_ns < LEAST_RAN_NS:
            self._end()
            return
        calibrated_mhz = sum(time.ran_ns * mhz for time, mhz in ran
                             ) / total.ran_ns
        scale = units.clock_scale(total.mhz, calibrated_mhz)
        if scale > ENDS_ABOVE:
            self._end()
        elif self.text or scale < BEGINS_BELOW:
            self._begin(
                f'the clock of servers with a cap is {total.mhz:.0f} MHz, '
                f'{1 - scale:.0%} below that of the calibration, '
                f'{calibrated_mhz:.0f} MHz: they get less work done than '
                'their units say. See to governor, cooling and turbo')

    def _begin(self, text: str) -> None:
        if not self.text:
            LOG.warning('An alarm begins: %s', text)
        self.text = text

    def _end(self) -> None:
        if self.text:
            LOG.info('The clock of servers is as in the calibration again, '
                     'or they are idle')
        self.text = ''
