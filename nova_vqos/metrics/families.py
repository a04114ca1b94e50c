# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The names of all metrics: what they count, in what, and by which labels.

Prometheus' conventions: base units in the name, ``_total`` for what only ever
grows, ``_info`` for texts. A CPU unit is one of ours, see
:mod:`nova_vqos.units`: an amount is in CPU units, work in CPU unit seconds.
The reference of the documentation is made from this table.
"""

import typing as ty

GAUGE, COUNTER = 'gauge', 'counter'

#: Of each metric of a server. Names are in ``nova_vqos_server_info`` alone:
#: they would make series of a server anew whenever it is renamed.
SERVER_LABELS = ('server_uuid', 'project_id')


class Family(ty.NamedTuple):
    """A metric.

    :ivar name: in full
    :ivar kind: GAUGE or COUNTER
    :ivar help: what it is, one line
    :ivar labels: their names
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


class Sample(ty.NamedTuple):
    """A value of a metric.

    :ivar labels: values, in the order of the family's names
    """

    family: Family
    labels: tuple[str, ...]
    value: float


# The agent.

AGENT_UP = Family(
    'nova_vqos_agent_up', GAUGE,
    'Whether the loop of the agent answered. 0: it is held up, and nothing '
    'is told of host and servers')
AGENT_INFO = Family(
    'nova_vqos_agent_info', GAUGE,
    'Always 1: the name of the host in Nova, and the version of the agent',
    ('host', 'version'))
HYPERVISOR_CONNECTED = Family(
    'nova_vqos_agent_hypervisor_connected', GAUGE,
    'Whether the agent reaches the hypervisor')
ALARMS = Family(
    'nova_vqos_agent_alarms', GAUGE,
    'What an operator should look at: how many texts get_host has in alarms')
LEDGER_STORED = Family(
    'nova_vqos_agent_ledger_stored', GAUGE,
    'Whether accounts of servers can be kept on disk; 0: the host offers no '
    'billing')
PUSHED = Family(
    'nova_vqos_agent_pushed_timestamp_seconds', GAUGE,
    'Of the newest push of flavors that the agent holds, by the clock of who '
    'pushed; 0: nothing was pushed')
LAST_TICK = Family(
    'nova_vqos_agent_last_tick_seconds', GAUGE,
    'How long the last look at all servers took')
TICKS = Family(
    'nova_vqos_agent_ticks_total', COUNTER, 'Looks at all servers')
CAP_WRITES = Family(
    'nova_vqos_agent_cap_writes_total', COUNTER,
    'Writes of caps; each gives a little CPU time away')
PINS = Family(
    'nova_vqos_agent_pins_total', COUNTER,
    'Servers that were pinned to one class of pCPUs')
TAMPERINGS = Family(
    'nova_vqos_agent_tamperings_total', COUNTER,
    'Caps that somebody else had changed, and that were restored')
POLICY_ERRORS = Family(
    'nova_vqos_agent_policy_errors_total', COUNTER,
    'Flavors of running servers that could not be honoured')
ERRORS = Family(
    'nova_vqos_agent_errors_total', COUNTER,
    'What else went wrong: of caps, bills and slices')
BILLING_ROUNDS = Family(
    'nova_vqos_agent_billing_rounds_total', COUNTER,
    'Rounds in which servers were billed')
SLICES_WRITTEN = Family(
    'nova_vqos_agent_slices_written_total', COUNTER,
    'Threads of servers that were given another slice')
SERVERS_PLACED = Family(
    'nova_vqos_agent_servers_placed_total', COUNTER,
    'Times that a server was given another set of pCPUs for its class')

# The host.

DOMAINS = Family(
    'nova_vqos_host_domains', GAUGE, 'All that run on the host')
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
    'Kept for the host itself')
ALLOCATION_RATIO = Family(
    'nova_vqos_host_allocation_ratio', GAUGE,
    'How many times over what is left is sold')
USED = Family(
    'nova_vqos_host_used_cpu_units', GAUGE,
    'Entitlements of the servers that run on the host, together')
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
PROFILE_HOLDS = Family(
    'nova_vqos_host_profile_holds', GAUGE,
    'Whether the profile in use was found to hold when it was last verified')
VERIFIED = Family(
    'nova_vqos_host_verified_timestamp_seconds', GAUGE,
    'When the profile in use was last verified, in seconds since 1970')
LOAD = Family(
    'nova_vqos_host_load_cpu_units', GAUGE,
    'What ran in the last minute: servers, modelled_io (of the kernel for '
    'them), own (of the host), unattributed (the rest, negative where the '
    'model says too much)', ('part',))
UNPAID = Family(
    'nova_vqos_host_unpaid_cpu_units', GAUGE,
    'Of what ran, I/O of servers that nobody pays for')
SUGGESTED_RESERVED = Family(
    'nova_vqos_host_suggested_reserved_cpu_units', GAUGE,
    'What to reserve for the host, by the last day')
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

# Servers.

SERVER_INFO = Family(
    'nova_vqos_server_info', GAUGE,
    'Always 1: what is text about a server',
    (*SERVER_LABELS, 'name', 'flavor', 'cap', 'quantum_class', 'dd_billing'))
ENTITLED = Family(
    'nova_vqos_server_entitled_cpu_units', GAUGE,
    'What its flavor promises', SERVER_LABELS)
VCPUS = Family(
    'nova_vqos_server_vcpus', GAUGE, 'vCPUs of its flavor', SERVER_LABELS)
SERVER_COEFFICIENT = Family(
    'nova_vqos_server_coefficient', GAUGE,
    'Speed of the slowest pCPU that it may run on, where the reference has 1',
    SERVER_LABELS)
VCPU_SECONDS = Family(
    'nova_vqos_server_vcpu_seconds_total', COUNTER,
    'CPU time of its vCPUs since it began to run here', SERVER_LABELS)
VCPU_CU_SECONDS = Family(
    'nova_vqos_server_vcpu_cpu_unit_seconds_total', COUNTER,
    'The same, normalised: what was delivered since the agent first saw it',
    SERVER_LABELS)
THROTTLED_SECONDS = Family(
    'nova_vqos_server_throttled_seconds_total', COUNTER,
    'For how long its limits held it back, of all vCPUs together',
    SERVER_LABELS)
WAITED_SECONDS = Family(
    'nova_vqos_server_waited_seconds_total', COUNTER,
    'For how long its vCPUs were ready and did not run, since a limit or '
    'somebody else kept them from it', SERVER_LABELS)
CAP_RIGHT = Family(
    'nova_vqos_server_cap_right', GAUGE,
    'Whether the cap in force is the wanted one', SERVER_LABELS)
WRONG_SECONDS = Family(
    'nova_vqos_server_cap_wrong_seconds', GAUGE,
    'For how long it ran with a wrong cap before the last re-cap',
    SERVER_LABELS)
CLASS_RIGHT = Family(
    'nova_vqos_server_class_right', GAUGE,
    'Whether it gets the slices of its quantum class', SERVER_LABELS)
SLICE = Family(
    'nova_vqos_server_slice_seconds', GAUGE,
    'Slice that it is to have, mean of its vCPUs', SERVER_LABELS)
OBTAINABLE = Family(
    'nova_vqos_server_obtainable_slice_seconds', GAUGE,
    'How much of that can be had under its cap, mean of its vCPUs',
    SERVER_LABELS)
RUN_LENGTH = Family(
    'nova_vqos_server_run_length_seconds', GAUGE,
    'For how long it really runs at a time, mean of its vCPUs', SERVER_LABELS)
BILLED = Family(
    'nova_vqos_server_billed_cpu_unit_seconds_total', COUNTER,
    'What it was billed for on this host', (*SERVER_LABELS, 'component'))
DEBT = Family(
    'nova_vqos_server_debt_cpu_unit_seconds', GAUGE,
    'What it owes for its I/O', SERVER_LABELS)
WRITTEN_OFF = Family(
    'nova_vqos_server_written_off_cpu_unit_seconds_total', COUNTER,
    'What it owed above the ceiling on this host, and need not pay',
    SERVER_LABELS)
LIMIT = Family(
    'nova_vqos_server_limit_cpu_units', GAUGE,
    'What it is left of its units while it pays for its I/O', SERVER_LABELS)
OVERDRAWN = Family(
    'nova_vqos_server_overdrawn', GAUGE,
    'Whether its I/O alone is more than its units', SERVER_LABELS)

#: In the order in which they are told.
ALL: ty.Final = tuple(
    found for found in list(globals().values()) if isinstance(found, Family))
