# SPDX-License-Identifier: Apache-2.0
"""The names of all metrics, with units, help texts and labels.

Prometheus' conventions: base units in the name, ``_total`` for what only ever
grows, ``_info`` for texts. A CPU unit is one of ours, see
:mod:`nova_vqos.units`: an amount is in CPU units, work in CPU unit seconds.
The reference of the documentation is made from this table.
"""

from collections.abc import Mapping, Sequence
import typing as ty

GAUGE, COUNTER = 'gauge', 'counter'

#: Of each metric of a server. Names are in ``nova_vqos_server_info`` alone:
#: they would make series of a server anew whenever it is renamed.
SERVER_LABELS = ('server_uuid', 'project_id')


class Family(ty.NamedTuple):
    """A metric.

    :ivar name: in full
    :ivar kind: GAUGE or COUNTER
    :ivar help: one line
    :ivar labels: their names
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


#: A metric, the values of its labels after those of the group, and its value;
#: None: it is not known. NOTE: a plain tuple, since a page may have 38 000.
Sample = tuple[Family, tuple[str, ...], float | None]


class Group(ty.NamedTuple):
    """Samples whose first labels are the same: of a server, or the host.

    :ivar labels: the first labels of all its samples, by name
    :ivar samples: of families whose names of labels begin with these
    """

    labels: Mapping[str, str]
    samples: Sequence[Sample]


# The agent.

AGENT_UP = Family(
    'nova_vqos_agent_up', GAUGE,
    'Whether the loop of the agent answered; 0: it is held up, and there are '
    'no metrics of host and servers')
AGENT_INFO = Family(
    'nova_vqos_agent_info', GAUGE,
    'Always 1: the name of the host in Nova, and the version of the agent',
    ('host', 'version'))
HYPERVISOR_CONNECTED = Family(
    'nova_vqos_agent_hypervisor_connected', GAUGE,
    'Whether the agent reaches the hypervisor')
ALARMS = Family(
    'nova_vqos_agent_alarms', GAUGE,
    'Alarms of the agent, see alarms of get_host')
LEDGER_STORED = Family(
    'nova_vqos_agent_ledger_stored', GAUGE,
    'Whether accounts of servers can be written to disk; 0: the host offers '
    'no billing')
PUSHED = Family(
    'nova_vqos_agent_pushed_timestamp_seconds', GAUGE,
    'Time of the newest push of flavors that the agent holds, by the clock of '
    'the pushing machine; 0: there was no push')
LAST_TICK = Family(
    'nova_vqos_agent_last_tick_seconds', GAUGE,
    'Duration of the last tick, a look at all servers')
TICKS = Family(
    'nova_vqos_agent_ticks_total', COUNTER, 'Ticks, looks at all servers')
CAP_WRITES = Family(
    'nova_vqos_agent_cap_writes_total', COUNTER,
    'Writes of caps; each gives a little CPU time away')
PINS = Family(
    'nova_vqos_agent_pins_total', COUNTER,
    'Servers that were pinned to pCPUs of one core type')
TAMPERINGS = Family(
    'nova_vqos_agent_tamperings_total', COUNTER,
    'Changes of caps by another writer, restored or not; of several between '
    'two readings one is counted')
POLICY_ERRORS = Family(
    'nova_vqos_agent_policy_errors_total', COUNTER,
    'Flavors of running servers that could not be honoured')
ERRORS = Family(
    'nova_vqos_agent_errors_total', COUNTER,
    'Unexpected errors in caps, billing and slices')
BILLING_ROUNDS = Family(
    'nova_vqos_agent_billing_rounds_total', COUNTER,
    'Rounds in which servers were billed')
SLICES_WRITTEN = Family(
    'nova_vqos_agent_slices_written_total', COUNTER,
    'Threads of servers that got another slice')
SERVERS_PLACED = Family(
    'nova_vqos_agent_servers_placed_total', COUNTER,
    'Times that a server got another set of pCPUs for its class')
POOLS_UNDONE = Family(
    'nova_vqos_agent_pools_undone_total', COUNTER,
    'Times that a server of class auto left its pool, since it got on better '
    'without')

# The host.

DOMAINS = Family(
    'nova_vqos_host_domains', GAUGE, 'Domains that run on the host')
SERVERS = Family(
    'nova_vqos_host_servers', GAUGE, 'Servers with CPU units')
SERVERS_WRONG = Family(
    'nova_vqos_host_servers_wrong', GAUGE,
    'Servers with CPU units whose cap is not as wanted')
CAPACITY = Family(
    'nova_vqos_host_capacity_cpu_units', GAUGE,
    'Speed of the pCPUs that servers share, all of them busy')
RESERVED = Family(
    'nova_vqos_host_reserved_cpu_units', GAUGE,
    'CPU units that the host does not sell')
STOCK = Family(
    'nova_vqos_host_stock_cpu_units', GAUGE,
    'What of these servers without units can use')
WORK = Family(
    'nova_vqos_host_work_cpu_units', GAUGE,
    'What of these servers take beyond their units, by vqos:work')
ALLOCATION_RATIO = Family(
    'nova_vqos_host_allocation_ratio', GAUGE,
    'How many times over the units that are left can be sold')
USED = Family(
    'nova_vqos_host_used_cpu_units', GAUGE,
    'Entitlements of the servers that run on the host, together')
STRANDED = Family(
    'nova_vqos_host_stranded_cpu_units', GAUGE,
    'CPU units that are free, but in pieces of pCPUs that are smaller than '
    'the largest vCPU of the host; a host whose vCPUs need not pack has none '
    'of these series')
COEFFICIENT = Family(
    'nova_vqos_host_coefficient', GAUGE,
    'Speed of a pCPU that servers share, where the reference has 1: of the '
    'slowest and the fastest', ('pcpu',))
PROFILE_INFO = Family(
    'nova_vqos_host_profile_info', GAUGE,
    'Always 1: the profile in use, and what it is relative to',
    ('profile_id', 'reference'))
PROFILE_VALID = Family(
    'nova_vqos_host_profile_valid', GAUGE,
    'Whether there is a profile in use that fits the host; 0: no new servers '
    'with units')
PROFILE_MEASURED = Family(
    'nova_vqos_host_profile_measured_timestamp_seconds', GAUGE,
    'When the profile in use was measured, in seconds since 1970')
DRIFT = Family(
    'nova_vqos_host_drift_ratio', GAUGE,
    'By how much the coefficient of a class of pCPUs was off when the profile '
    'was last verified; -0.02: 2 % slower than it says', ('pcpus',))
KIND_DRIFT = Family(
    'nova_vqos_host_kind_drift_ratio', GAUGE,
    'By how much the coefficient of a kind of work that memory bounds was off '
    'when it was last verified', ('pcpus', 'kind'))
PROFILE_HOLDS = Family(
    'nova_vqos_host_profile_holds', GAUGE,
    'Whether the profile in use was found to hold when it was last verified')
VERIFIED = Family(
    'nova_vqos_host_verified_timestamp_seconds', GAUGE,
    'When the profile in use was last verified, in seconds since 1970')
LOAD = Family(
    'nova_vqos_host_load_cpu_units', GAUGE,
    'CPU units used in the last minute: by servers, modelled_io (by the '
    'kernel for them), own (by the host), unattributed (the rest, negative '
    'where the model is too high)', ('part',))
UNPAID = Family(
    'nova_vqos_host_unpaid_cpu_units', GAUGE,
    'CPU units used in the last minute by I/O that no server pays for')
SOFTIRQ = Family(
    'nova_vqos_host_softirq_ratio', GAUGE,
    'Part of its time that the busiest pCPU spent on packets and timers in '
    'the last minute; a kernel that does not count it has none of these '
    'series')
SOFTIRQ_SECONDS = Family(
    'nova_vqos_host_softirq_seconds_total', COUNTER,
    'CPU time of a pCPU on packets, timers and other softirqs since the host '
    'booted, ksoftirqd included, as of the last minute; a kernel that does '
    'not count it has none of these series', ('pcpu',))
KSOFTIRQD_SECONDS = Family(
    'nova_vqos_host_ksoftirqd_seconds_total', COUNTER,
    'CPU time of the ksoftirqd of a pCPU, which does softirqs that are too '
    'many to be done at once, as of the last minute', ('pcpu',))
DROPPED = Family(
    'nova_vqos_host_backlog_dropped_packets_total', COUNTER,
    'Packets that were dropped since the backlog of a pCPU was full')
SQUEEZED = Family(
    'nova_vqos_host_squeezed_polls_total', COUNTER,
    'Polls for packets that ended before all were delivered, since their time '
    'or budget was over')
SATURATED = Family(
    'nova_vqos_host_saturated_pcpus', GAUGE,
    'pCPUs without time for more packets, which drop some')
IO_JAIN = Family(
    'nova_vqos_host_io_jain', GAUGE,
    "Jain's index of what servers with the same units and like offers got in "
    'the last minute, 1: all the same; the lowest of several groups. A host '
    'without two such servers has none of these series', ('direction',))
SUGGESTED_RESERVED = Family(
    'nova_vqos_host_suggested_reserved_cpu_units', GAUGE,
    'Suggested reserve for the host, from the last day')
MEASURED_RESERVE = Family(
    'nova_vqos_host_measured_reserve_cpu_units', GAUGE,
    'Reserve for the host that follows its load, see [vqos] dd_reserve')
CLASS_OFFERED = Family(
    'nova_vqos_host_class_offered', GAUGE,
    'Whether the kernel was seen to enforce a quantum class, so that it is '
    'offered', ('quantum_class',))
POOL_PCPUS = Family(
    'nova_vqos_host_pool_pcpus', GAUGE,
    'pCPUs that serve the quantum of a class', ('quantum_class',))
POOL_VCPUS = Family(
    'nova_vqos_host_pool_vcpus', GAUGE,
    'vCPUs that run there', ('quantum_class',))

GUARANTEE_PCPUS = Family(
    'nova_vqos_host_guarantee_pcpus', GAUGE,
    'pCPUs whose time is reserved for servers, or free to be; a host that '
    'guarantees no speed has none of these series', ('part',))

# Servers.

SERVER_INFO = Family(
    'nova_vqos_server_info', GAUGE,
    'Always 1: the texts about a server',
    (*SERVER_LABELS, 'name', 'flavor', 'cap', 'quantum_class', 'dd_billing'))
ENTITLED = Family(
    'nova_vqos_server_entitled_cpu_units', GAUGE,
    'CPU units of its flavor', SERVER_LABELS)
VCPUS = Family(
    'nova_vqos_server_vcpus', GAUGE, 'vCPUs of its flavor', SERVER_LABELS)
SERVER_COEFFICIENT = Family(
    'nova_vqos_server_coefficient', GAUGE,
    'Speed of the slowest pCPU that it may run on, where the reference has 1',
    SERVER_LABELS)
SERVER_CLOCK = Family(
    'nova_vqos_server_clock_hertz', GAUGE,
    'Mean clock of the CPU in the CPU time of its vCPUs in about the last '
    'minute', SERVER_LABELS)
CLOCK_COEFFICIENT = Family(
    'nova_vqos_server_clock_coefficient', GAUGE,
    'Its coefficient at that clock', SERVER_LABELS)
VCPU_SECONDS = Family(
    'nova_vqos_server_vcpu_seconds_total', COUNTER,
    'CPU time of its vCPUs since it began to run here', SERVER_LABELS)
VCPU_CU_SECONDS = Family(
    'nova_vqos_server_vcpu_cpu_unit_seconds_total', COUNTER,
    'The same in CPU units, since the agent first saw it',
    SERVER_LABELS)
THROTTLED_SECONDS = Family(
    'nova_vqos_server_throttled_seconds_total', COUNTER,
    'For how long its limits held it back, of all vCPUs together',
    SERVER_LABELS)
WAITED_SECONDS = Family(
    'nova_vqos_server_waited_seconds_total', COUNTER,
    'For how long its vCPUs were ready and did not run, because of a limit '
    'or of other threads', SERVER_LABELS)
CAP_RIGHT = Family(
    'nova_vqos_server_cap_right', GAUGE,
    'Whether the cap in force is the wanted one', SERVER_LABELS)
WRONG_SECONDS = Family(
    'nova_vqos_server_cap_wrong_seconds', GAUGE,
    'For how long it ran with a wrong cap before the last re-cap',
    SERVER_LABELS)
CLASS_RIGHT = Family(
    'nova_vqos_server_class_right', GAUGE,
    'Whether its quantum class is in force', SERVER_LABELS)
SLICE = Family(
    'nova_vqos_server_slice_seconds', GAUGE,
    'Wanted slice, mean of its vCPUs', SERVER_LABELS)
OBTAINABLE = Family(
    'nova_vqos_server_obtainable_slice_seconds', GAUGE,
    'Longest run that its cap allows of that slice, mean of its vCPUs',
    SERVER_LABELS)
RUN_LENGTH = Family(
    'nova_vqos_server_run_length_seconds', GAUGE,
    'For how long it runs at a time, mean of its vCPUs', SERVER_LABELS)
RECOGNITION = Family(
    'nova_vqos_server_recognition_seconds', GAUGE,
    'For how long its work had been of its kind before that was recognised, '
    'by the slowest of its vCPUs; a server of no recognised kind has none',
    SERVER_LABELS)
SIBLING_PREEMPTIONS = Family(
    'nova_vqos_server_sibling_preemptions_per_second', GAUGE,
    'How often its vCPUs, all together, lost their pCPU while another of them '
    'ran; only of servers that spin, where the agent has CAP_PERFMON',
    SERVER_LABELS)
BILLED = Family(
    'nova_vqos_server_billed_cpu_unit_seconds_total', COUNTER,
    'CPU unit seconds that it was billed for on this host',
    (*SERVER_LABELS, 'component'))
DEBT = Family(
    'nova_vqos_server_debt_cpu_unit_seconds', GAUGE,
    'Debt of its I/O', SERVER_LABELS)
WRITTEN_OFF = Family(
    'nova_vqos_server_written_off_cpu_unit_seconds_total', COUNTER,
    'Debt above the ceiling that was written off on this host',
    SERVER_LABELS)
LIMIT = Family(
    'nova_vqos_server_limit_cpu_units', GAUGE,
    'Units that it may use while it pays for its I/O', SERVER_LABELS)
PROJECT_CEILING = Family(
    'nova_vqos_server_project_ceiling_cpu_units', GAUGE,
    'Units that servers of its project share on this host', SERVER_LABELS)
CEILING_LEFT = Family(
    'nova_vqos_server_ceiling_left_cpu_units', GAUGE,
    'Units that this ceiling leaves it', SERVER_LABELS)
BURST = Family(
    'nova_vqos_server_burst_cpu_units', GAUGE,
    'Units that it may have while it bursts', SERVER_LABELS)
BURST_LEFT = Family(
    'nova_vqos_server_burst_left_cpu_units', GAUGE,
    'Units that it may use now, by what it saved and the host has room for',
    SERVER_LABELS)
SAVED = Family(
    'nova_vqos_server_saved_cpu_unit_seconds', GAUGE,
    'What it saved of its units for bursts; below 0: it overspent',
    SERVER_LABELS)
OVERDRAWN = Family(
    'nova_vqos_server_overdrawn', GAUGE,
    'Whether its I/O costs more than its units can pay for', SERVER_LABELS)
DISK_REQUESTS_LIMIT = Family(
    'nova_vqos_server_disk_limit_requests_per_second', GAUGE,
    'Requests to which all its disks together are held back while it is '
    'overdrawn', SERVER_LABELS)
DISK_BYTES_LIMIT = Family(
    'nova_vqos_server_disk_limit_bytes_per_second', GAUGE,
    'Bytes to which they are held back', SERVER_LABELS)

ROLLING = Family(
    'nova_vqos_server_rolling_4h_cpu_units', GAUGE,
    'Mean use on this host in the last four hours, I/O included; what was '
    'before its first bill here counts as nothing', SERVER_LABELS)
EMULATOR_MEMORY = Family(
    'nova_vqos_server_emulator_memory_bytes', GAUGE,
    "Private memory of its emulator beyond the guest's RAM, at least and at "
    'most; the same where the RAM is shared memory or huge pages',
    (*SERVER_LABELS, 'bound'))

GUARANTEED = Family(
    'nova_vqos_server_guaranteed', GAUGE,
    'Whether all CPU time that its flavor guarantees is reserved for it',
    SERVER_LABELS)
RESERVED_PCPUS = Family(
    'nova_vqos_server_reserved_pcpus', GAUGE,
    'pCPUs whose time is reserved for it, its I/O included, or kept for it '
    'while it pays for its I/O', SERVER_LABELS)
COUNTED = Family(
    'nova_vqos_server_guarantee_counted_ratio', GAUGE,
    'What of a reserved second of its vCPUs the kernel counts at that clock',
    SERVER_LABELS)
CORRECTION = Family(
    'nova_vqos_server_correction', GAUGE,
    'How many times as fast as by the mean of all kinds of work this host is '
    'for its own work, as its cap follows it', SERVER_LABELS)
PREDICTED = Family(
    'nova_vqos_server_correction_predicted', GAUGE,
    'The same as predicted by what was measured of it, and the bounds of the '
    'interval that has it with 90 %', (*SERVER_LABELS, 'bound'))
INSTRUCTIONS = Family(
    'nova_vqos_server_instructions_per_cpu_second', GAUGE,
    'Instructions that its guest executes in each CPU second of its vCPUs',
    SERVER_LABELS)

#: In the order in which they are exported.
ALL: ty.Final = tuple(
    found for found in list(globals().values()) if isinstance(found, Family))
