# SPDX-License-Identifier: Apache-2.0
"""Samples of an agent, its host and its servers, from its reports."""

from collections.abc import Collection, Iterable, Iterator, Sequence
import dataclasses
import statistics

from nova_vqos import compute_state
from nova_vqos import host_stats
from nova_vqos import units
from nova_vqos import utc
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import server_report
from nova_vqos.billing import packet_load
from nova_vqos.metrics import families
from nova_vqos.profile import validity
from nova_vqos.quantum import classes
from nova_vqos.quantum import occupancy

_US_PER_S = 1e6
_HZ_PER_MHZ = 1e6
# Ten reports of nova-compute.
_MOST_STATS_AGE_S = 600.0


def host_samples(report: host_report.LoopReport,
                 compute_alarms: Sequence[str] = ()
                 ) -> Iterator[families.Sample]:
    """All samples of the agent and its host.

    :param compute_alarms: of the compute service
    """
    yield _one(families.HYPERVISOR_CONNECTED, report.connected)
    yield _one(families.ALARMS, len(report.alarms) + len(compute_alarms))
    yield _one(families.LEDGER_STORED, 'account' in report.dd_billing)
    yield _one(families.PUSHED, report.pushed_generation / 1e6)
    yield _one(families.LAST_TICK, report.last_tick_ms / 1000)
    yield _one(families.TICKS, report.ticks)
    yield _one(families.CAP_WRITES, report.writes)
    yield _one(families.PINS, report.pins)
    yield _one(families.TAMPERINGS, report.tamperings)
    yield _one(families.POLICY_ERRORS, report.policy_errors)
    yield _one(families.ERRORS, report.errors)
    yield _one(families.BILLING_ROUNDS, report.bills)
    yield _one(families.DOMAINS, report.domains)
    yield _one(families.SERVERS, len(report.servers))
    yield _one(families.SERVERS_WRONG, len(report.wrong))
    if report.units is not None:
        yield from _units(report.units)
    profile = report.profile
    yield _one(families.PROFILE_VALID,
               profile is not None and not report.problem)
    if profile is not None:
        yield _one(families.PROFILE_INFO, 1, profile.id, profile.reference)
        yield from _when(families.PROFILE_MEASURED, profile.measured_at)
    if report.capacity is not None:
        load = report.capacity
        yield _one(families.LOAD, load.servers_cu, 'servers')
        yield _one(families.LOAD, load.modelled_cu, 'modelled_io')
        yield _one(families.LOAD, load.own_cu, 'own')
        yield _one(families.LOAD, load.unattributed_cu, 'unattributed')
        yield _one(families.UNPAID, load.unpaid_cu)
        yield _one(families.SUGGESTED_RESERVED, load.suggested_reserved_cu)
        yield _one(families.MEASURED_RESERVE, load.reserve_cu)
        if load.packets is not None:
            yield from _packets(load.packets)
        for direction, found in load.fairness.items():
            yield _one(families.IO_JAIN, found.jain, direction)
    for name in occupancy.NAMES:
        yield _one(families.CLASS_OFFERED, name in report.quantum_classes,
                   name)
    if report.quantum is not None:
        yield _one(families.SLICES_WRITTEN, report.quantum.slices_written)
        yield _one(families.SERVERS_PLACED, report.quantum.servers_placed)
        yield _one(families.POOLS_UNDONE, report.quantum.undone)
        for name, (pcpus, vcpus) in report.quantum.pools.items():
            yield _one(families.POOL_PCPUS, pcpus, name)
            yield _one(families.POOL_VCPUS, vcpus, name)
    if report.guarantee is not None:
        yield _one(families.GUARANTEE_PCPUS, report.guarantee.reserved_pcpus,
                   'reserved')
        yield _one(families.GUARANTEE_PCPUS, report.guarantee.free_pcpus,
                   'free')


def stats_samples(found: compute_state.ComputeState | None, now_s: float
                  ) -> Iterator[families.Sample]:
    """What nova-compute last reported of the host; nothing: it is too old.

    :param found: None: there is no report
    :param now_s: in seconds since 1970
    :raises ValueError: when it cannot be read
    """
    if found is None or (now_s - utc.parse(found.at).timestamp()
                         > _MOST_STATS_AGE_S):
        return
    stats = host_stats.decode(host_stats.texts_of(found.stats))
    if stats.stranded_cu is not None:
        yield _one(families.STRANDED, stats.stranded_cu)


def drift_samples(found: validity.Verification | None
                  ) -> Iterator[families.Sample]:
    """The last verification of the profile in use.

    :param found: None: there was none
    """
    if found is None:
        return
    yield _one(families.PROFILE_HOLDS, found.verdict != validity.STALE)
    yield from _when(families.VERIFIED, found.verified_at)
    for pcpus, drift in found.drifts.items():
        yield _one(families.DRIFT, drift, pcpus)
    for one in found.kinds:
        yield _one(families.KIND_DRIFT, one.drift, one.pcpus, one.kind)


@dataclasses.dataclass(slots=True)
class _Delivered:
    vcpu_s: float
    cu_s: float


class Deliveries:
    """Normalises the CPU time of servers.

    By steps, from the first sample on: a product of all CPU time and the
    coefficient of today would jump, or fall, with each new profile.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Delivered] = {}

    def forget_all_but(self, uuids: Collection[str]) -> None:
        for uuid in self._known.keys() - set(uuids):
            del self._known[uuid]

    def add(self, uuid: str, vcpu_s: float, coefficient: float) -> float:
        """Add the CPU time that a server got since the last call.

        :param vcpu_s: its CPU time; it begins anew with each run of its
            emulator
        :param coefficient: since the last call
        :returns: CU seconds since the first call
        """
        known = self._known.setdefault(uuid, _Delivered(vcpu_s, 0.0))
        grown_s = (vcpu_s if vcpu_s < known.vcpu_s
                   else vcpu_s - known.vcpu_s)
        known.vcpu_s = vcpu_s
        known.cu_s += grown_s * coefficient * units.CU_PER_REFERENCE_PCPU
        return known.cu_s


def server_samples(servers: Collection[server_report.Server],
                   deliveries: Deliveries, offered: Collection[str]
                   ) -> Iterator[families.Group]:
    """All samples of servers, a group for each.

    :param deliveries: kept between two calls
    :param offered: quantum classes that work on this host
    """
    deliveries.forget_all_but([server.server_uuid for server in servers])
    for server in servers:
        yield _server(server, deliveries, offered)


def _server(server: server_report.Server, deliveries: Deliveries,
            offered: Collection[str]) -> families.Group:
    policy, last = server.policy, server.last_recap
    delivered_cu_s = wrong_s = None
    if server.coefficient is not None and server.vcpu_s is not None:
        delivered_cu_s = deliveries.add(
            server.server_uuid, server.vcpu_s, server.coefficient)
    if last is not None and last.wrong_ms is not None:
        wrong_s = last.wrong_ms / 1000
    found: list[families.Sample] = [
        (families.SERVER_INFO, (
            server.name or '', server.flavor or '',
            '' if policy is None else policy.cap,
            server.quantum_class or '', server.dd_billing or ''), 1),
        (families.ENTITLED, (), server.entitled_cu),
        (families.VCPUS, (), None if policy is None else policy.vcpus),
        (families.SERVER_COEFFICIENT, (), server.coefficient),
        (families.VCPU_SECONDS, (), server.vcpu_s),
        (families.VCPU_CU_SECONDS, (), delivered_cu_s),
        (families.THROTTLED_SECONDS, (), server.throttled_s),
        (families.CAP_RIGHT, (), server.right),
        (families.WRONG_SECONDS, (), wrong_s)]
    # That of pCPUs is no figure of a server.
    if server.clock is not None and server.clock.is_own:
        clock = server.clock
        found += [(families.SERVER_CLOCK, (), clock.mhz * _HZ_PER_MHZ),
                  (families.CLOCK_COEFFICIENT, (), clock.coefficient)]
    if server.quantum is not None:
        found += _slices(server, server.quantum, offered)
    if server.guarantee is not None:
        guarantee = server.guarantee
        found += [
            (families.GUARANTEED, (), None if guarantee.ends
             else guarantee.since is not None),
            (families.RESERVED_PCPUS, (), guarantee.reserved_pcpus),
            (families.COUNTED, (), guarantee.counted)]
    if server.correction is not None:
        correction = server.correction
        found += [
            (families.CORRECTION, (), correction.factor),
            (families.INSTRUCTIONS, (), correction.instructions_per_cpu_s),
            (families.PREDICTED, ('low',), correction.low),
            (families.PREDICTED, ('mean',), correction.predicted),
            (families.PREDICTED, ('high',), correction.high)]
    if server.ceiling is not None:
        found += [(families.PROJECT_CEILING, (), server.ceiling.ceiling_cu),
                  (families.CEILING_LEFT, (), server.ceiling.left_cu)]
    if server.burst is not None:
        found += [(families.BURST, (), server.burst.burst_cu),
                  (families.BURST_LEFT, (), server.burst.left_cu),
                  (families.SAVED, (), server.burst.saved_cu_s)]
    if server.emulator_memory is not None:
        memory = server.emulator_memory
        found += [
            (families.EMULATOR_MEMORY, ('low',), memory.low_bytes),
            (families.EMULATOR_MEMORY, ('high',), memory.high_bytes)]
    if server.disk_limit is not None and server.disk_limit.since is not None:
        limit = server.disk_limit
        found += [
            (families.DISK_REQUESTS_LIMIT, (), limit.requests_per_s),
            (families.DISK_BYTES_LIMIT, (), limit.bytes_per_s)]
    if server.bill is not None:
        bill = server.bill
        found += [(families.BILLED, (component,), used_cu_s)
                  for component, used_cu_s in bill.used_here_cu_s.items()]
        found += [
            (families.DEBT, (), bill.debt_cu_s),
            (families.WRITTEN_OFF, (), bill.written_off_here_cu_s),
            (families.OVERDRAWN, (), bill.overdrawn),
            (families.LIMIT, (), bill.limit_cu),
            (families.ROLLING, (),
             None if bill.rolling_4h is None else bill.rolling_4h.cu)]
    return families.Group(dict(zip(
        families.SERVER_LABELS, (server.server_uuid, server.project_id or ''),
        strict=True)), found)


def _slices(server: server_report.Server, slices: enforcement.Slices,
            offered: Collection[str]) -> list[families.Sample]:
    vcpus = slices.vcpus.values()
    # Without a slice it may share its pCPUs with servers that would cut it
    # short. One of class io may work for too long at a time to have one.
    right = (server.quantum_class in offered and not slices.problem
             and not (server.quantum_class in classes.POOLED
                      and any(vcpu.slice_us is None for vcpu in vcpus)))
    waited_s = [vcpu.waited_s for vcpu in vcpus if vcpu.waited_s is not None]
    return [
        (families.CLASS_RIGHT, (), right),
        (families.SLICE, (), _mean_s(vcpu.slice_us for vcpu in vcpus)),
        (families.OBTAINABLE, (),
         _mean_s(vcpu.obtainable_us for vcpu in vcpus)),
        (families.RUN_LENGTH, (),
         _mean_s(vcpu.mean_run_us for vcpu in vcpus)),
        # The sum of some vCPUs would fall, as a counter that began anew.
        (families.WAITED_SECONDS, (), sum(waited_s)
         if waited_s and len(waited_s) == len(vcpus) else None),
        (families.RECOGNITION, (),
         max((vcpu.recognised_after_s for vcpu in vcpus
              if vcpu.recognised_after_s is not None), default=None)),
        (families.SIBLING_PREEMPTIONS, (), slices.sibling_preemptions_per_s)]


def _units(host: host_report.Units) -> Iterator[families.Sample]:
    yield _one(families.CAPACITY, host.capacity_cu)
    yield _one(families.RESERVED, host.reserved_cu)
    yield _one(families.STOCK, host.stock_cu)
    yield _one(families.WORK, host.work_cu)
    yield _one(families.ALLOCATION_RATIO, host.allocation_ratio)
    yield _one(families.USED, host.used_cu)
    for name, cu in (('slowest', host.slowest_cu),
                     ('fastest', host.fastest_cu)):
        yield _one(families.COEFFICIENT, cu / units.CU_PER_REFERENCE_PCPU,
                   name)


def _packets(found: packet_load.PacketReport) -> Iterator[families.Sample]:
    if found.softirq_share is not None:
        yield _one(families.SOFTIRQ, found.softirq_share)
    for one in found.softirqs:
        for family, time_s in (
                (families.SOFTIRQ_SECONDS, one.softirq_s),
                (families.KSOFTIRQD_SECONDS, one.ksoftirqd_s)):
            if time_s is not None:
                yield _one(family, time_s, str(one.pcpu))
    yield _one(families.DROPPED, found.dropped_packets)
    yield _one(families.SQUEEZED, found.squeezed_polls)
    yield _one(families.SATURATED, len(found.saturated_pcpus))


def _mean_s(lengths_us: Iterable[float | None]) -> float | None:
    known_us = [length for length in lengths_us if length is not None]
    return statistics.fmean(known_us) / _US_PER_S if known_us else None


def _one(family: families.Family, value: float,
         *labels: str) -> families.Sample:
    return family, labels, value


def _when(family: families.Family, text: str
          ) -> Iterator[families.Sample]:
    """A time in ISO 8601, UTC where it does not say; nothing: it is none."""
    try:
        when = utc.parse(text)
    except ValueError:
        return
    yield _one(family, when.timestamp())
