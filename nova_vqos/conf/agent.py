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

"""Options of the agent."""

import socket

from oslo_config import cfg

from nova_vqos.agent import pushed_store
from nova_vqos.billing import ledger
from nova_vqos.conf import metrics
from nova_vqos.quantum import proof
from nova_vqos.quantum.sources import loading

GROUP = cfg.OptGroup(
    name='vqos_agent',
    title='Agent',
    help='The agent that keeps the caps of the servers on its host.')

# NOTE: the same name and meaning as in nova.conf: nova-compute sends what is
# for this host there.
HOST_OPTS = [
    cfg.StrOpt(
        'host',
        default=socket.gethostname(),
        sample_default='<the host name>',
        help="""
Name of this host; must be the same as ``[DEFAULT] host`` of its nova-compute.

nova-compute and the command line reach the agent by it.
"""),
]

OPTS = [
    cfg.StrOpt(
        'hypervisor',
        default='libvirt',
        help="""
Name of the hypervisor's driver, from the entry points nova_vqos.hypervisors.
"""),
    cfg.StrOpt(
        'libvirt_uri',
        default='qemu:///system',
        help="""
libvirt's name of the local daemon whose domains are looked after.
"""),
    cfg.StrOpt(
        'libvirt_run_path',
        default='/run/libvirt/qemu',
        help="""
Directory in which libvirt leaves the process id of each domain's emulator.

The agent finds a domain's cgroup through it.
"""),
    cfg.FloatOpt(
        'tick_interval_s',
        default=1.0,
        min=0.1,
        max=60.0,
        help="""
Seconds from one look at all domains to the next.

A cap that somebody else changed is seen and restored at the next look at the
latest. Events of libvirt are followed at once, whatever this is. The cost of
the agent is nearly proportional to its inverse.
"""),
    cfg.FloatOpt(
        'sample_interval_s',
        default=10.0,
        min=1.0,
        max=60.0,
        help="""
Seconds from one reading of what all servers used to the next.

What operators are told of servers (CPU time, and the speed and the throttling
of the last minute) is as of the last reading. It is made at a tick, so never
more often than ``tick_interval_s``; bills and caps do not depend on it.
"""),
    cfg.FloatOpt(
        'heartbeat_interval_s',
        default=10.0,
        min=0.1,
        max=300.0,
        help="""
Seconds from one sign of life in ``[vqos] agent_state_path`` to the next.

Keep it well below ``[vqos] agent_max_age_s``, above which the scheduler
refuses new servers with units on this host.
"""),
    cfg.StrOpt(
        'lock_path',
        default='/run/nova-vqos/agent.lock',
        help="""
Path of the file that the running agent holds a lock on.

A second agent on the same host refuses to start.
"""),
    cfg.StrOpt(
        'exchange',
        default='nova_vqos',
        help="""
Exchange of the message bus on which the agent is asked and told.

Must be the same for agent and nova-compute.
"""),
    cfg.StrOpt(
        'topic',
        default='vqos-agent',
        help="""
Topic of the message bus on which the agent is asked and told.

Must be the same for agent and nova-compute.
"""),
    cfg.FloatOpt(
        'billing_interval_s',
        default=2.0,
        min=0.5,
        max=60.0,
        help="""
Seconds from one bill of a server's I/O to the next.

Only servers whose flavor has ``vqos:dd_billing`` are billed. With 2 a server
that pays for its I/O stays within 2 % of its entitlement in any 30 seconds
where that I/O is steady. Where after a pause it begins all at once, it is seen
an interval or two later only: in simulations the worst 30 seconds were 2.7 %
above the entitlement with modelled I/O of two tenths of it, 4.3 % with five
tenths, 9.1 % with eight tenths, and 23 % with as much as all of it. With a
longer interval it is more.
"""),
    cfg.StrOpt(
        'pushed_path',
        default=pushed_store.DEFAULT_PATH,
        help="""
Path of the file in which the agent keeps what ``nova-vqos-manage policy push``
told it of flavors.

It must belong to root or to the agent's user, and must not be writable by
anybody else: else it is ignored, with an alarm, until the next push.
"""),
    cfg.FloatOpt(
        'pushed_interval_s',
        default=300.0,
        min=1.0,
        max=86_400.0,
        help="""
Seconds, on average, from one time to the next at which the agent asks another
one of its cell whether it missed a push.

It asks for the first time within 10 seconds of its start. One that was down
while a push was made follows it after that, or after a few times, where the
other one missed it too.
"""),
    cfg.StrOpt(
        'quantum_proof_path',
        default=proof.DEFAULT_PATH,
        help="""
Path of the file in which ``nova-vqos-probe`` leaves what quantum classes this
kernel was seen to enforce.

The agent's systemd unit runs it at each start. A class that was not measured,
or is not enforced, is not offered, and its servers run with the kernel's own
slice.
"""),
    cfg.FloatOpt(
        'quantum_interval_s',
        default=5.0,
        min=1.0,
        max=600.0,
        help="""
Seconds from one look at the slices of all servers to the next.

A slice that somebody else changed is restored then at the latest; that of a
server that starts, migrates in or is given other vCPUs is set at once. Also
how long a server of class auto is watched before its kind is judged once more.
"""),
    cfg.FloatOpt(
        'pool_interval_s',
        default=30.0,
        min=0.0,
        max=3600.0,
        help="""
Seconds from one change of a server's vCPU affinity to the next, at the least.

Servers whose classes would spoil each other's slices are kept on pCPUs of
their own. 0: never; slices are set, but hold only where all that runs on a
pCPU has the same.
"""),
    cfg.StrOpt(
        'ledger_path',
        default=ledger.DEFAULT_PATH,
        help="""
Path of the file in which the agent keeps what servers used and owe.

Its directory must belong to root or to the agent's user, and must not be
writable by anybody else.
"""),
    cfg.IntOpt(
        'ledger_keep_days',
        default=90,
        min=1,
        max=3650,
        help="""
Days on which the agent ran for which the account of a server is kept that
does not run here any more.
"""),
    cfg.IntOpt(
        'ledger_most_servers',
        default=10_000,
        min=100,
        max=1_000_000,
        help="""
Accounts above which those are dropped whose servers do not run here, first
those that ran last longest ago.
"""),
    cfg.FloatOpt(
        'charge_floor',
        default=0.1,
        min=0.01,
        max=1.0,
        help="""
Part of its entitlement that the limit of a server never goes below, whatever
its I/O costs.
"""),
    cfg.FloatOpt(
        'debt_ceiling_s',
        default=300.0,
        min=0.0,
        max=86_400.0,
        help="""
Most that a server can owe, in seconds of its entitlement. What is above is
written off, and counted.
"""),
    cfg.IntOpt(
        'usage_interval_s',
        default=60,
        min=0,
        max=86_400,
        help="""
Seconds from one notification of what a billed server used to the next.

They are sent where ``[oslo_messaging_notifications] driver`` is set. 0
switches them off.
"""),
    cfg.BoolOpt(
        'bill_dropped_packets',
        default=False,
        help="""
Whether a server is billed for packets that were sent to it and that it was
not given, since it did not take them fast enough.

They cost the host nearly as much as others. But whoever floods a server would
have it pay for that.
"""),
    cfg.ListOpt(
        'quantum_sources',
        default=list(loading.NAMES),
        help="""
Names of what shows the agent which kind of work servers of
``vqos:quantum_class=auto`` do, from the entry points
nova_vqos.quantum_sources.

What is missing on this host is named in the agent's log, and kinds of work
that only it shows are not guessed.
"""),
    cfg.DictOpt(
        'quantum_limits',
        default={},
        help="""
From where on a vCPU is wholly of one kind, as NAME:NUMBER, all per second.

``io`` is requests and ``spin`` waits for another vCPU. ``references`` and
``misses`` are of the last-level cache: below ``references`` a vCPU is
neutral, beyond ``misses`` a polluter. Those that are not given have the
default: io:1000,spin:333,references:3333333,misses:5000000.
``nova-vqos-calibrate recognize`` shows what others would do.
"""),
    cfg.StrOpt(
        'quantum_trace_path',
        default='',
        help="""
Path of a file into which is written what was seen of servers of
``vqos:quantum_class=auto``, for ``nova-vqos-calibrate recognize``.

It is begun anew at each start of the agent, ends at 64 MiB, and can be read
by the agent's user alone. It must be where the agent's unit lets it write, as
below /var/lib/nova-vqos. Empty: nothing is written.
"""),
    *metrics.OPTS,
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def register_host_opts(conf: cfg.ConfigOpts) -> None:
    """For the agent's own process: in Nova's there is this option already."""
    conf.register_opts(HOST_OPTS)
