# SPDX-License-Identifier: Apache-2.0
"""Makes answers of what the loop knows at that moment; reads nothing."""

from collections.abc import Callable, Iterable, Mapping
import datetime
import logging
import time
import typing as ty

from nova_vqos import cpuset
from nova_vqos import guarantee
from nova_vqos import primitives
from nova_vqos import room
from nova_vqos import units
from nova_vqos import utc
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.agent import usage_history
from nova_vqos.agent.billing import controller as billing
from nova_vqos.agent.billing import disk_limits
from nova_vqos.agent.caps import state
from nova_vqos.agent.guarantee import state as guarantees
from nova_vqos.agent.messages import calibration
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.messages import server_report
from nova_vqos.agent.quantum import controller as quantum
from nova_vqos.hypervisor import base
from nova_vqos.profile import model
from nova_vqos.quantum import probe_result

LOG = logging.getLogger(__name__)


class ServerView(ty.NamedTuple):
    """What the loop knows of a server.

    :ivar clocks: of all servers and the host
    :ivar profile: of the host; None: it has none
    :ivar now_s: on the monotonic clock
    :ivar failed: names of fields that failed before
    """

    server: servers.Server
    cap: state.CapState
    billing: billing.BillState
    disk_limit: disk_limits.DiskLimitState
    quantum: quantum.QuantumState
    guarantee: guarantees.GuaranteeState
    correction: enforcement.Correction | None
    ceiling: enforcement.ServerCeiling | None
    burst: enforcement.Burst | None
    history: usage_history.History
    clocks: base.Clocks
    profile: model.Profile | None
    now_s: float
    failed: set[str]

    @property
    def coefficient(self) -> float | None:
        """Of the slowest pCPU that it may run on; None: not known."""
        if self.server.domain is None or self.profile is None:
            return None
        return self.server.coefficient(self.profile)


_Field = Callable[[ServerView], ty.Any]


def of_server(view: ServerView) -> server_report.Server:
    """A server.

    A field that cannot be read is None, whatever the reason: one server that
    is not understood must not cost the answer.
    """
    return server_report.Server(**_read_all(_FIELDS, view))


def in_detail(view: ServerView) -> server_report.ServerDetail:
    """The same, and what is of interest for one server only."""
    return server_report.ServerDetail(
        **_read_all({**_FIELDS, **_DETAILS}, view))


def of_units(terms: controller.HostTerms, known: Iterable[servers.Server],
             guarantee_total_pcpus: float = 0.0) -> host_report.Units | None:
    """Where the CPU units of the host are; None: it has none.

    :param guarantee_total_pcpus: see :class:`agent_state.AgentState`
    """
    profile = terms.profile
    if profile is None:
        return None
    capacity_cu = units.capacity_cu(map(profile.coefficient, profile.pcpus))
    slowest_cu = units.pcpu_cu(profile.slowest(profile.pcpus))
    return host_report.Units(
        capacity_cu=capacity_cu,
        reserved_cu=room.reserved_cu(
            capacity_cu, host_cu=terms.reserved_cu, stock_cu=terms.stock_cu,
            unsold_cu=guarantee.unsold_cu(
                capacity_cu, guarantee_total_pcpus, slowest_cu),
            work_cu=terms.work_cu),
        stock_cu=terms.stock_cu,
        work_cu=terms.work_cu,
        allocation_ratio=terms.allocation_ratio,
        used_cu=sum(server.policy.units or 0 for server in known
                    if server.policy is not None),
        slowest_cu=float(slowest_cu),
        fastest_cu=float(units.pcpu_cu(profile.fastest(profile.pcpus))))


def oversold(known: host_report.Units | None) -> tuple[str, ...]:
    """The alarm that servers were promised more than the host sells."""
    if known is None or known.used_cu <= known.sellable_cu:
        return ()
    return (f'its servers have {known.used_cu} CU, more than the '
            f'{known.sellable_cu} CU that it sells: nova-vqos-manage audit '
            'shows whether their claims are right',)


def of_profile(profile: model.Profile | None,
               now: datetime.datetime) -> calibration.Profile | None:
    """The profile in use; None: there is none.

    :param now: UTC
    """
    if profile is None:
        return None
    return calibration.Profile(
        id=profile.id, reference=profile.reference.name,
        measured_at=profile.created_at,
        age_s=_age_s(profile.created_at, now))


def of_calibration(profile: model.Profile | None, now: datetime.datetime
                   ) -> calibration.CalibratedProfile | None:
    """The profile in use with its figures; None: there is none.

    :param now: UTC
    """
    if profile is None:
        return None
    return primitives.extended(
        calibration.CalibratedProfile, of_profile(profile, now),
        measured_on=profile.host, is_reference=profile.is_reference,
        cpu_classes=tuple(
            calibration.CpuClass(cpuset.format_pcpus(one.pcpus), *(
                calibration.Coefficient(found.coefficient, found.interval_low,
                                        found.interval_high)
                for found in (one.alone, one.busy)))
            for one in profile.cpu_classes))


def of_proof(proof: probe_result.ProbeResult | None
             ) -> host_report.Proof | None:
    """Which slices the kernel was seen to enforce; None: not probed."""
    if proof is None:
        return None
    return host_report.Proof(
        kernel=proof.kernel, measured_at=proof.measured_at,
        classes=proof.outcomes)


def _read_all(fields: Mapping[str, _Field],
              view: ServerView) -> dict[str, ty.Any]:
    found = {}
    for name, read in fields.items():
        try:
            found[name] = read(view)
        except Exception:
            found[name] = None
            # Once: it is asked for again and again.
            if name not in view.failed:
                view.failed.add(name)
                LOG.exception('Field %s of server %s cannot be read', name,
                              view.server.uuid)
    return found


def _counter_s(view: ServerView, name: str) -> float | None:
    last = view.history.last
    return None if last is None else getattr(last, name) / 1e9


def _sampled_at(view: ServerView) -> str | None:
    last = view.history.last
    return None if last is None else utc.text(
        time.time() - (view.now_s - last.read_at_s), 'milliseconds')


def _full_rates(view: ServerView, window_s: float
                ) -> server_report.Rates | None:
    return view.history.full_rates(window_s, view.coefficient, view.now_s)


def _clock(view: ServerView) -> server_report.Clock | None:
    own = view.history.clock(view.now_s)
    mhz = (own.mhz if own.ran_ns
           else view.server.mean_mhz(view.clocks.pcpus_mhz))
    if mhz is None:
        return None
    calibrated_mhz = coefficient = None
    if view.profile is not None:
        calibrated_mhz = view.server.calibrated_mhz(view.profile)
    if calibrated_mhz is not None and view.coefficient is not None:
        coefficient = view.coefficient * units.clock_scale(
            mhz, calibrated_mhz)
    return server_report.Clock(
        mhz=mhz, is_own=bool(own.ran_ns), calibrated_mhz=calibrated_mhz,
        coefficient=coefficient)


def _pushed(view: ServerView) -> pushes.PushedFlavor | None:
    pushed = view.server.pushed
    return None if pushed is None else pushes.PushedFlavor(
        **pushed.to_dict(),
        pushed_at=utc.text(pushed.generation / 1e6))


def _last_recap(view: ServerView) -> enforcement.Recap | None:
    last = view.cap.last_change
    return None if last is None else enforcement.Recap(
        utc.text(last.at_s), last.reason, last.wrong_ms)


def _wanted(view: ServerView) -> enforcement.Wanted | None:
    if view.cap.desired is None:
        return None
    cap, shares, domain = view.cap.desired.tune
    return enforcement.Wanted(
        quota_us=None if cap is None else cap.quota_us,
        period_us=None if cap is None else cap.period_us, shares=shares,
        domain=None if domain is None else enforcement.Limit(*domain))


def _in_force(view: ServerView) -> enforcement.InForce | None:
    in_force = view.cap.in_force
    if in_force is None:
        return None
    domain = in_force.domain
    return enforcement.InForce(
        vcpus={str(number): enforcement.Limit(limit.quota_us, limit.period_us)
               for number, limit in in_force.vcpus.items()},
        shares=in_force.shares,
        domain=enforcement.Limit(domain.quota_us, domain.period_us))


def _domain(view: ServerView, name: str) -> str:
    return '' if view.server.domain is None else getattr(
        view.server.domain, name)


def _age_s(created_at: str, now: datetime.datetime) -> float | None:
    """How long ago a profile was made; None: it does not say when."""
    try:
        created = utc.parse(created_at)
    except ValueError:
        return None
    return max(0.0, (now - created).total_seconds())


#: Fields of server_report.Server.
_FIELDS: Mapping[str, _Field] = {
    'server_uuid': lambda view: view.server.uuid,
    'name': lambda view: view.server.name,
    'project_id': lambda view: _domain(view, 'project_id'),
    'origin': lambda view: view.server.origin,
    'arriving': lambda view: view.server.is_arriving,
    'flavor': lambda view: _domain(view, 'flavor_name'),
    'flavor_id': lambda view: _domain(view, 'flavor_id'),
    'policy': lambda view: view.server.policy,
    'policy_source': lambda view: view.server.policy_sources(),
    'booted': lambda view: view.server.booted(),
    'pushed': _pushed,
    'push_error': lambda view: view.server.push_error or view.server.unmatched,
    'entitled_cu': lambda view: (None if view.server.policy is None
                                 else view.server.policy.units),
    'quantum_class': lambda view: view.server.quantum_class,
    'dd_billing': lambda view: view.server.dd_billing,
    'right': lambda view: (None if view.server.policy is None
                           else view.cap.right),
    'problem': lambda view: view.server.problem or view.billing.unread,
    'coefficient': lambda view: view.coefficient,
    'vcpu_s': lambda view: _counter_s(view, 'vcpu_ns'),
    'throttled_s': lambda view: _counter_s(view, 'throttled_ns'),
    'rates': lambda view: view.history.rates(view.coefficient, view.now_s),
    'clock': _clock,
    'bill': lambda view: view.billing.bill,
    'disk_limit': lambda view: view.disk_limit.message(view.server),
    'quantum': lambda view: view.quantum.slices,
    'guarantee': lambda view: view.guarantee.message(view.server,
                                                     _clock(view)),
    'correction': lambda view: view.correction,
    'ceiling': lambda view: view.ceiling,
    'burst': lambda view: view.burst,
    'last_recap': _last_recap,
}

#: What server_report.ServerDetail has besides.
_DETAILS: Mapping[str, _Field] = {
    'sampled_at': _sampled_at,
    'rates_10s': lambda view: _full_rates(view, 10.0),
    'rates_5min': lambda view: _full_rates(view, 300.0),
    'clock_problem': lambda view: view.clocks.problems.get(
        view.server.uuid, ''),
    'policy_error': lambda view: view.server.policy_error,
    'wanted': _wanted,
    'in_force': _in_force,
    'right_at_first_sight': lambda view: view.cap.right_at_first_sight,
    'wrong_ms': lambda view: view.cap.wrong_ms,
    'writes': lambda view: view.cap.writes,
    'tamperings': lambda view: tuple(view.cap.tampering.past),
    'tampering_count': lambda view: view.cap.tampering.count,
}
