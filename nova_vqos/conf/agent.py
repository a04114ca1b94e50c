# SPDX-License-Identifier: Apache-2.0
"""Options of the agent."""

import socket
import typing as ty

from oslo_config import cfg
from oslo_config import types

from nova_vqos.conf import default_path

GROUP = cfg.OptGroup(
    name='vqos_agent',
    title='Agent',
    help='The agent, which enforces the caps of the servers on its host.')

#: Of [vqos_agent] guaranteed_share: as much as the kernel reserves.
AUTO: ty.Final = 'auto'
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.95


class _ShareType(types.ConfigType):  # type: ignore[misc]
    """A part of the pCPUs' time, or 'auto'."""

    def __init__(self) -> None:
        super().__init__(type_name=f'{AUTO} or number')

    def __call__(self, value: str | float) -> str | float:
        if value == AUTO:
            return AUTO
        try:
            if _LEAST_SHARE <= (number := float(value)) <= _MOST_SHARE:
                return number
        except ValueError:
            pass
        raise ValueError(f'{value!r} must be {AUTO}, or a number from '
                         f'{_LEAST_SHARE} to {_MOST_SHARE}')

    def _formatter(self, value: str | float) -> str:
        return str(value)


class _Address(types.IPAddress):  # type: ignore[misc]
    """An IP address, or none."""

    def __call__(self, value: str) -> str:
        return str(super().__call__(value)) if value else ''


# NOTE: the same name and meaning as in nova.conf: nova-compute sends what is
# for this host there.
HOST_OPTS = [
    cfg.StrOpt(
        'host',
        default=socket.gethostname(),
        sample_default='<the host name>',
        help="""
Name of this host.

Must be the same as ``[DEFAULT] host`` of its nova-compute: nova-compute and
the command line address the agent by it.
"""),
]

OPTS = [
    cfg.StrOpt(
        'hypervisor',
        default='libvirt',
        help="""
Name of the hypervisor driver, an entry point of nova_vqos.hypervisors.
"""),
    cfg.StrOpt(
        'libvirt_uri',
        default='qemu:///system',
        help="""
URI of the local libvirt daemon.
"""),
    cfg.StrOpt(
        'libvirt_run_path',
        default='/run/libvirt/qemu',
        help="""
Directory of libvirt's files with the process ids of emulators.

The agent and nova-vqos-helper find the cgroup of a domain through them.
"""),
    cfg.StrOpt(
        'helper_path',
        default=default_path.HELPER,
        help="""
Socket of nova-vqos-helper, which writes to libvirt for the agent.

An agent that is not root reads from libvirt by read-only connections, and has
nova-vqos-helper write caps, weights and pins. An agent that is root writes by
itself, and ignores this option. Empty: the agent writes by itself as any user.
libvirt must allow that, and the agent is then as powerful as root.
"""),
    cfg.StrOpt(
        'instructions_path',
        default=default_path.INSTRUCTIONS,
        help="""
Directory of files in which QEMU counts the instructions of its guests.

A file has the process id of its QEMU as its name; a plugin of QEMU that counts
writes it. The agent reads the file of a server whose instructions it counts.
Without one it counts by performance events of the server's vCPUs, which KVM
and ``CAP_PERFMON`` are needed for.
"""),
    cfg.FloatOpt(
        'tick_interval_s',
        default=1.0,
        min=0.1,
        max=60.0,
        help="""
Interval, in seconds, at which the agent looks at servers that are not as they
should be, and at a ninth of all others.

What libvirt and the kernel report is handled at once, whatever the interval
is: a server that comes or goes, or whose cap another program changes. What
they do not report is found within ten intervals, and a server that came or
went within ten seconds. The CPU time that the agent uses grows with the
inverse of the interval.
"""),
    cfg.FloatOpt(
        'sample_interval_s',
        default=10.0,
        min=1.0,
        max=60.0,
        help="""
Interval, in seconds, at which the agent samples the CPU time of all servers.

Commands and metrics show CPU time, speed and throttling as of the last
sample. If none of them asked for five minutes, a sample is taken once a
minute, until one does. It is taken at a tick, so never more often than
``tick_interval_s``. Bills and caps do not depend on it. Above 20 seconds
``nova-vqos-manage server show`` has no speed over the last 10 seconds.
"""),
    cfg.FloatOpt(
        'heartbeat_interval_s',
        default=10.0,
        min=0.1,
        max=300.0,
        help="""
Interval, in seconds, at which the agent writes its heartbeat to
``[vqos] agent_state_path``.

Keep it well below ``[vqos] agent_max_age_s``: the scheduler refuses new
servers with units on a host whose heartbeat is older than that.
"""),
    cfg.StrOpt(
        'lock_path',
        default=default_path.AGENT_LOCK,
        help="""
Path of the file that the running agent locks.

A second agent on the same host refuses to start.
"""),
    cfg.StrOpt(
        'exchange',
        default='nova_vqos',
        help="""
Exchange of the message bus on which the agent receives messages.

Must be the same for agent and nova-compute.
"""),
    cfg.StrOpt(
        'topic',
        default='vqos-agent',
        help="""
Topic of the message bus on which the agent receives messages.

Must be the same for agent and nova-compute.
"""),
    cfg.FloatOpt(
        'billing_interval_s',
        default=2.0,
        min=0.5,
        max=60.0,
        help="""
Interval, in seconds, at which the agent bills the I/O of servers.

Servers whose flavor has ``vqos:dd_billing`` are billed; see account_all for
others. With an interval of 2, a server that pays for steady I/O stays within 2
% of its entitlement in any 30 seconds. I/O that starts suddenly is billed one
or two intervals later:
in simulations the worst 30 seconds were 2.6 % above the entitlement with
modelled I/O of two tenths of it, 9.3 % with five tenths, 34 % with eight
tenths, and 54 % with I/O as large as the entitlement; see charge_floor and
throttle_overdrawn. A longer interval increases these figures.

A server that uses less than 2 % of a pCPU, and of its entitlement less than
1 % if it pays, is billed once in 30 seconds.
"""),
    cfg.BoolOpt(
        'account_all',
        default=True,
        help="""
Whether the agent keeps an account of all servers with units, as for figures.

Without it, only servers whose flavor has ``vqos:dd_billing`` have one. An
account costs its server nothing, and shows what its I/O costs the host. It
is updated once in half a minute, and once in two minutes where the server
uses less than 2 % of a pCPU. The agent sends no notifications of such a
server, and the account stays behind when the server leaves the host. It
needs the costs of I/O in the profile (``nova-vqos-calibrate io``). A flavor
with ``vqos:dd_billing=off`` has its servers left out.
"""),
    cfg.StrOpt(
        'pushed_path',
        default=default_path.PUSHED,
        help="""
Path of the file in which the agent stores the flavors that ``nova-vqos-manage
policy push`` sent.

The file must belong to root or to the agent's user, and no other user may
write it. Otherwise the agent ignores it, with an alarm, until the next push.
"""),
    cfg.ListOpt(
        'push_public_keys',
        default=[],
        help="""
Paths of public keys, one of which must have signed a policy push.

``nova-vqos-manage key create`` makes a key. With this option the agent takes
only signed pushes, from operators and from other agents, and ignores stored
ones without a valid signature at its start. List the old key and the new one
while you replace a key. A key must belong to root or to the agent's user, and
no other user may write it; the agent raises an alarm for one that it cannot
use, and refuses all pushes where it can use none. Empty: pushes need no
signature.
"""),
    cfg.StrOpt(
        'speeds_path',
        default=default_path.SPEEDS,
        help="""
Path of the file in which the agent stores what it measured of servers with
``vqos:work=auto``, here and on the hosts that they came from.

The file must belong to root or to the agent's user, and no other user may
write it. Otherwise the agent ignores it, with an alarm, and measures anew.
"""),
    cfg.FloatOpt(
        'pushed_interval_s',
        default=300.0,
        min=1.0,
        max=86_400.0,
        help="""
Mean interval, in seconds, at which the agent asks another agent of its cell
for pushes that it missed.

The first request follows within 10 seconds of the start. An agent that was
down during a push catches up then, or some intervals later where the other
agent missed the push too.
"""),
    cfg.StrOpt(
        'quantum_proof_path',
        default=default_path.PROBE_RESULT,
        help="""
Path of the file with the result of ``nova-vqos-probe``: which quantum classes
the kernel enforces.

The agent's systemd unit runs the probe at each start. The agent does not offer
a class that was not measured or is not enforced: its servers run with the
kernel's own slice.
"""),
    cfg.FloatOpt(
        'quantum_interval_s',
        default=5.0,
        min=1.0,
        max=600.0,
        help="""
Interval, in seconds, at which the agent checks the slices of all servers.

The agent restores a slice that another program changed at the next check. It
sets the slice of a server that starts, migrates in or gets other vCPUs at
once. Servers whose slices are to be the kernel's own, as those without a
class, are checked every ten minutes. Also the length of the observations by
which the agent recognises the kind of work of a server of class auto.
"""),
    cfg.FloatOpt(
        'pool_interval_s',
        default=30.0,
        min=0.0,
        max=3600.0,
        help="""
Shortest interval, in seconds, between two changes of the vCPU affinity of a
server.

The agent places servers whose classes disturb each other's slices on
different pCPUs, and each vCPU of a server that spins on locks on pCPUs of its
own. 0: it changes no affinity, and the host does not offer class spin. It
still sets slices; that of class cache then holds only where all threads on a
pCPU have it.
"""),
    cfg.BoolOpt(
        'guarantees_speed',
        default=False,
        help="""
Whether the host guarantees the speed of servers whose flavor says
vqos:guarantee.

The agent reserves CPU time for the threads of these servers: the kernel's
policy SCHED_DEADLINE. It needs CAP_SYS_NICE. The kernel reserves nothing for a
thread that may not run on all pCPUs of its cpuset partition: on such a host,
[compute] cpu_shared_set is unset or names all pCPUs, or those of [vqos]
guaranteed_pcpus. A server that runs keeps its reservation to its end, also
where this is switched off.
"""),
    cfg.Opt(
        'guaranteed_share',
        type=_ShareType(),
        default=AUTO,
        help=f"""
How much of the time of the pCPUs may be reserved for servers: ``auto``, or a
number from {_LEAST_SHARE} to {_MOST_SHARE}.

With ``auto`` it is what the kernel was seen to reserve, less 3 %. A number
bounds it further, as a part of the time of the pCPUs that servers run on. So
more is left to the host's own programs and to servers without a reservation.
Placement then sells no more units of this host than that, be they guaranteed
or not. The agent reserves nothing for a server that would go above it; those
that have a reservation keep it.
"""),
    cfg.StrOpt(
        'partition_path',
        default=default_path.PARTITION,
        help="""
Path of the file to which ``nova-vqos-partition --record`` writes what the
kernel reserves in the partition of [vqos] guaranteed_pcpus.

Without a measurement of the last hour the host guarantees no speed.
"""),
    cfg.FloatOpt(
        'least_frequency_scale',
        default=0.0,
        min=0.0,
        max=1.0,
        help="""
Ratio of the clock of this host's pCPUs while all of them are busy, as they
were when it was calibrated, to the clock that the kernel takes as full.

Needed where the CPU reports its frequency (the flag aperfmperf in
/proc/cpuinfo) and intel_pstate/no_turbo is not 1: there the kernel counts
reserved time in seconds at full clock. It has no effect on other hosts. With
too high a value the host promises more time than it has, with too low a value
guaranteed servers get less than their units, in proportion. 0: it is not
known, and a host that needs it guarantees no speed.
"""),
    cfg.StrOpt(
        'ledger_path',
        default=default_path.LEDGER,
        help="""
Path of the file in which the agent stores the accounts of billed servers.

The directory of the file must belong to root or to the agent's user, and no
other user may write it.
"""),
    cfg.IntOpt(
        'ledger_keep_days',
        default=90,
        min=1,
        max=3650,
        help="""
Days to keep the account of a server that left this host.

Only days on which the agent ran count.
"""),
    cfg.IntOpt(
        'ledger_most_servers',
        default=10_000,
        min=100,
        max=1_000_000,
        help="""
Maximum number of accounts.

Beyond it, the agent drops accounts of servers that are not on this host,
oldest first.
"""),
    cfg.FloatOpt(
        'charge_floor',
        default=0.5,
        min=0.01,
        max=1.0,
        help="""
Smallest share of its entitlement that a charged server keeps, whatever it
owes.

No limit on a server holds the kernel's work for its I/O. So a server whose
work of this kind exceeds the rest of its entitlement gets more than its
entitlement, with its debt growing, unless throttle_overdrawn is set. A lower
floor leaves more of the entitlement to pay with, and a server that owes less
to run on.
"""),
    cfg.BoolOpt(
        'throttle_overdrawn',
        default=False,
        help="""
Whether the agent holds back the disks of a charged server whose limit stands
at charge_floor while its debt still grows.

The disks then get a limit on requests and bytes per second, as Nova's
``quota:disk_total_iops_sec`` and ``quota:disk_total_bytes_sec`` do: as much as
the rest of the entitlement pays for, by the costs in the host's profile. A
disk that has a limit of another writer is left alone. The limit ends once the
debt is paid and it has held nothing back for a minute.
"""),
    cfg.FloatOpt(
        'debt_ceiling_s',
        default=300.0,
        min=0.0,
        max=86_400.0,
        help="""
Largest debt of a server, in seconds of its entitlement.

The agent writes off what exceeds it, and counts that.
"""),
    cfg.IntOpt(
        'usage_interval_s',
        default=60,
        min=0,
        max=86_400,
        help="""
Interval, in seconds, at which the agent sends notifications of the usage of
billed servers.

It sends them where ``[oslo_messaging_notifications] driver`` is set. 0: it
sends none.
"""),
    cfg.BoolOpt(
        'bill_dropped_packets',
        default=False,
        help="""
Whether the agent bills a server for packets that the host dropped because the
server did not receive them fast enough.

A dropped packet costs the host nearly as much as a delivered one. But with
this option anyone who floods a server makes that server pay.
"""),
    cfg.BoolOpt(
        'charge_received_packets',
        default=False,
        help="""
Whether a charged server pays for the kernel's work to deliver packets to it,
too.

That work is billed in any case. But a server does not choose what it receives:
with this option, others who send it many packets take its CPU time. What the
server's own threads do with received packets is always charged. With this
option, received packets lower the limit while they come, down to
charge_received_floor, and leave no debt: the server has its units again within
ten seconds of their end.
"""),
    cfg.FloatOpt(
        'charge_received_floor',
        default=0.5,
        min=0.01,
        max=1.0,
        help="""
Smallest share of its entitlement that received packets leave a charged server,
where charge_received_packets is set.

What the server itself does still lowers the limit, down to charge_floor: with
a higher value here a server pays for its own I/O down to that, and others
cannot take as much from it. A value below charge_floor has no effect. The
share is that of the whole server: its threads that receive the packets need
some of it.
"""),
    cfg.ListOpt(
        'quantum_sources',
        default=['io', 'spin', 'cache'],
        help="""
Names of the sources by which the agent recognises the kind of work of servers
of ``vqos:quantum_class=auto``, entry points of nova_vqos.quantum_sources.

The agent logs a source that is not available on this host, and does not
recognise the kinds of work that only this source shows. Of two that show the
same the first counts: ``pause`` before ``spin`` counts pause loops, too, on
x86, where the agent has CAP_PERFMON.
"""),
    cfg.DictOpt(
        'quantum_limits',
        default={},
        help="""
Rates per second of CPU time at which a vCPU counts fully as one kind, as
NAME:RATE.

``io`` counts requests, ``spin`` waits for another vCPU. ``references`` and
``misses`` are those of the last-level cache: a vCPU below ``references`` is
neutral, one above ``misses`` a polluter. Defaults:
io:1000,spin:333,references:3333333,misses:5000000.
``nova-vqos-calibrate recognize`` shows the effect of other rates.
"""),
    cfg.StrOpt(
        'quantum_trace_path',
        default='',
        help="""
Path of the file to which the agent writes what it observes of servers of
``vqos:quantum_class=auto``, for ``nova-vqos-calibrate recognize``.

The agent overwrites the file at each start and writes at most 64 MiB. Only
the agent's user can read the file. The agent's systemd unit must permit
writing there, as below /var/lib/nova-vqos. Empty: no file is written.
"""),
    # NOTE: Prometheus' list of ports for exporters, 9100 to 9999, is nearly
    # full. This one is beyond it, and below those that Linux hands out.
    cfg.PortOpt(
        'metrics_port',
        default=19177,
        min=1,
        help="""
Port on which the agent serves its metrics to Prometheus, below ``/metrics``.

Where another program uses the port, the agent logs that and tries again every
30 seconds.
"""),
    cfg.Opt(
        'metrics_address',
        type=_Address(),
        default='',
        help="""
Address on which the agent serves its metrics to Prometheus. Empty: it serves
none.

The metrics show the names and the usage of all servers, without encryption
and without a password: use an address that only Prometheus can reach. All
users of this host can reach its loopback address.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def register_host_opts(conf: cfg.ConfigOpts) -> None:
    """For the agent's own process: in Nova's there is this option already."""
    conf.register_opts(HOST_OPTS)
