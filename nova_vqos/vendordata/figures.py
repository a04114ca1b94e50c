# SPDX-License-Identifier: Apache-2.0
"""What a tenant may know of his server, of what its host's agent knows.

Nothing of other servers, and of the host only how fast one pCPU is for this
server, which a tenant can measure.
"""

from collections.abc import Mapping
import dataclasses
import enum

from nova_vqos import primitives
from nova_vqos import units
from nova_vqos import utc
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import server_report

#: Of the form of the figures: a new field makes a new minor version.
VERSION = '1.1'

# The component of a bill that is no I/O, see nova_vqos.billing.meter.
_VCPU = 'vcpu'


class Problem(enum.StrEnum):
    """Why there are no figures."""

    #: Nova's API did not say where the server runs.
    NOVA_SILENT = 'nova_silent'
    #: The agent of its host did not answer.
    HOST_SILENT = 'host_silent'
    #: It runs on no host, as far as Nova and the agent know.
    NOT_RUNNING = 'not_running'
    #: Too many other servers are being looked up.
    BUSY = 'busy'


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Io:
    """The host's work for a server's I/O, and what it pays for it.

    :ivar charged: whether it pays out of its units
    :ivar used_cu_s: by component, since it was first billed, on all hosts
    :ivar debt_cu_s: what it has yet to pay
    :ivar written_off_cu_s: what it need not pay, on all hosts
    :ivar limit_cu: what it may use now, after paying; None: it does not pay
    """

    charged: bool
    used_cu_s: Mapping[str, float]
    debt_cu_s: float
    written_off_cu_s: float
    limit_cu: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What a server saved of its units, and may use beyond them.

    :ivar burst_cu: that it may use at the most, while it bursts
    :ivar left_cu: that it may use now
    :ivar saved_cu_s: below 0: it overspent; None: not known
    :ivar most_saved_cu_s: that it may save
    """

    burst_cu: int
    left_cu: float
    saved_cu_s: float | None
    most_saved_cu_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a guest reads.

    :ivar at: when it was answered
    :ivar available: whether there are figures
    :ivar problem: why there are none; '': there are
    :ivar promised_cu: None: its flavor has no units
    :ivar guaranteed: whether they are reserved for it; None: its flavor asks
        for no guarantee
    :ivar cu_per_pcpu: speed of a pCPU that it may run on; None: not known
    :ivar sampled_at: when the next two were read; None: not yet
    :ivar cpu_s: CPU time of all its vCPUs since it started on this host
    :ivar withheld_s: for how long limits held its vCPUs back, together
    :ivar over_s: length of the window of the next two, up to sampled_at;
        None: there is none yet
    :ivar delivered_cu: mean speed of all its vCPUs in that window
    :ivar withheld_share: share of that window for which limits held them
        back, mean of all vCPUs
    :ivar delivered_cu_s: what its vCPUs had since it was first billed, on all
        hosts; None: it has no account
    :ivar io: None: it has no account
    :ivar burst: None: its flavor has no bursts
    """

    version: str = VERSION
    at: str
    available: bool
    problem: str = ''
    promised_cu: int | None = None
    guaranteed: bool | None = None
    cu_per_pcpu: float | None = None
    sampled_at: str | None = None
    cpu_s: float | None = None
    withheld_s: float | None = None
    over_s: float | None = None
    delivered_cu: float | None = None
    withheld_share: float | None = None
    delivered_cu_s: float | None = None
    io: Io | None = None
    burst: Burst | None = None

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        found: dict[str, object] = primitives.to_primitives(self)
        return found


def missing(problem: Problem) -> Figures:
    """The answer where there are no figures."""
    return Figures(at=_now(), available=False, problem=problem.value)


def of(server: server_report.ServerDetail) -> Figures:
    """The figures of a server, of its agent's answer."""
    guarantee, rates, bill = server.guarantee, server.rates, server.bill
    return Figures(
        at=_now(), available=True, promised_cu=server.entitled_cu,
        guaranteed=None if guarantee is None or guarantee.ends
        else guarantee.since is not None,
        cu_per_pcpu=None if server.coefficient is None
        else units.CU_PER_REFERENCE_PCPU * server.coefficient,
        sampled_at=server.sampled_at, cpu_s=server.vcpu_s,
        withheld_s=server.throttled_s,
        over_s=rates.over_s if rates else None,
        delivered_cu=rates.delivered_cu if rates else None,
        withheld_share=rates.throttled if rates else None,
        delivered_cu_s=bill.used_cu_s.get(_VCPU) if bill else None,
        io=_io(bill) if bill else None,
        burst=_burst(server.burst) if server.burst else None)


def _now() -> str:
    return utc.text(timespec='milliseconds')


def _io(bill: server_report.Bill) -> Io:
    return Io(
        charged=bill.limit_cu is not None,
        used_cu_s={name: used for name, used in bill.used_cu_s.items()
                   if name != _VCPU},
        debt_cu_s=bill.debt_cu_s, written_off_cu_s=bill.written_off_cu_s,
        limit_cu=bill.limit_cu)


def _burst(burst: enforcement.Burst) -> Burst:
    return Burst(burst_cu=burst.burst_cu, left_cu=burst.left_cu,
                 saved_cu_s=burst.saved_cu_s,
                 most_saved_cu_s=burst.most_saved_cu_s)
