# SPDX-License-Identifier: Apache-2.0
"""What is known of the guarantee of one server."""

from fractions import Fraction
import typing as ty

from nova_vqos import guarantee
from nova_vqos import utc
from nova_vqos.agent import server as servers
from nova_vqos.agent.caps import desired
from nova_vqos.agent.guarantee import io_share
from nova_vqos.agent.guarantee import wanted
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import server_report
from nova_vqos.hypervisor import base


class Seen(ty.NamedTuple):
    """What that follows from.

    :ivar revision: of the server: its threads may be others
    :ivar scale: of the host
    :ivar io_share: see :class:`io_share.IoShare`
    """

    cap: desired.Desired | None
    in_force: base.InForce | None
    revision: int
    scale: Fraction | None
    io_share: Fraction | None


class GuaranteeState:
    """What the guarantee controller knows of one server.

    :ivar seen: at the last try; None: there was none
    :ivar wanted: likewise
    :ivar taken_pcpus: what its reservation takes of the pCPUs' time, with what
        is kept for it; or will take while the first try is under way
    :ivar counted_pcpus: the same as the kernel counts it
    :ivar is_kept_some: whether anything is kept for it
    :ivar held_share: of a pCPU, as the kernel counts it: what each vCPU was to
        have when all of it was reserved last; None: not known
    :ivar held: what follows from that, while it is to have more; None: it is
        not
    :ivar withheld: why it is not asked for more than that; '': it is
    :ivar since_s: since when all is reserved, in seconds since 1970; None: it
        is not
    :ivar problem: why not all is reserved; '': it is
    :ivar said_kept: whether it was logged that it keeps its reservation
    :ivar reserving: whether a try is under way
    :ivar pending: whether another is to follow soon
    :ivar check_at_s: when it is looked at again, on the monotonic clock
    :ivar io: what its threads of I/O are to have
    :ivar counted_part: what the kernel counts of a second of its vCPUs at the
        clock of the calibration; None: all of it, at any clock, or not known
    """

    def __init__(self, _server: servers.Server) -> None:
        self.seen: Seen | None = None
        self.wanted: wanted.Wanted | None = None
        self.taken_pcpus = self.counted_pcpus = 0.0
        self.is_kept_some = False
        self.held_share: Fraction | None = None
        self.held: wanted.Wanted | None = None
        self.withheld = ''
        self.since_s: float | None = None
        self.problem = ''
        self.said_kept = False
        self.reserving = self.pending = False
        self.check_at_s = float('-inf')
        self.io = io_share.IoShare()
        self.counted_part: Fraction | None = None

    def message(self, server: servers.Server, clock: server_report.Clock | None
                ) -> enforcement.Guarantee | None:
        """What of it others are to know; None: there is nothing.

        :param clock: that the server runs at; None: not known
        """
        if not server.is_guaranteed:
            return None
        has = () if server.reserved is None else server.reserved.vcpus.values()
        least = min(has, key=lambda one: one.share, default=None)
        return enforcement.Guarantee(
            since=None if self.since_s is None else utc.text(self.since_s),
            vcpus=len(has),
            runtime_us=None if least is None else least.quota_us,
            period_us=None if least is None else least.period_us,
            reserved_pcpus=self.taken_pcpus,
            problem=self.problem,
            ends=server.keeps_reservation,
            counted=self._counted(clock))

    def _counted(self, clock: server_report.Clock | None) -> float | None:
        if (self.counted_part is None or clock is None or not clock.is_own
                or clock.calibrated_mhz is None):
            return None
        return guarantee.counted_part(self.counted_part, clock.mhz,
                                      clock.calibrated_mhz)
