# SPDX-License-Identifier: Apache-2.0
"""Options that compute driver, scheduler filter and agent share."""

from collections.abc import Mapping
import typing as ty

from oslo_config import cfg
from oslo_config import types

from nova_vqos import cpuset
from nova_vqos import cputune
from nova_vqos import units
from nova_vqos.conf import default_path
from nova_vqos.quantum import classes

GROUP = cfg.OptGroup(
    name='vqos',
    title='CPU units',
    help='The CPU units of a host: their sale and their enforcement.')


class _PcpusType(types.ConfigType):  # type: ignore[misc]
    """A set of pCPUs, such as 4-63; it may be empty."""

    def __init__(self) -> None:
        super().__init__(type_name='set of pCPUs')

    def __call__(self, value: str | frozenset[int]) -> frozenset[int]:
        if not isinstance(value, str):
            return value
        return cpuset.parse_pcpus(value) if value.strip() else frozenset()

    def _formatter(self, value: frozenset[int]) -> str:
        return cpuset.format_pcpus(value)


class _SlicesType(types.Dict):
    """Slices by quantum class, as libvirt's hook reads them too."""

    def __call__(self, value: str | dict[str, ty.Any]) -> dict[str, ty.Any]:
        given = classes.split(value) if isinstance(value, str) else value
        classes.slices_us(given)
        return given


OPTS = [
    cfg.StrOpt(
        'profile_path',
        default=default_path.PROFILE,
        help="""
Path of this host's profile, which ``nova-vqos-calibrate`` writes.

The file must belong to root or to the user that reads it, and no other user
may write it. A host without a valid profile takes no new servers with units;
running servers keep their caps.
"""),
    cfg.StrOpt(
        'agent_state_path',
        default=default_path.AGENT_STATE,
        help="""
Path of the agent's heartbeat file.

The agent writes it, the compute driver reads it.
"""),
    cfg.StrOpt(
        'compute_state_path',
        default=default_path.COMPUTE_STATE,
        help="""
Path of the file with the stats that the compute service last reported to the
scheduler.

The compute driver writes it with each report of the host's resources, the
agent reads it. So ``nova-vqos-manage flavor check`` and ``migration check``
decide by the same stats as the scheduler. Where ``[DEFAULT] state_path`` of
nova.conf is not its default, choose a path below that directory.
"""),
    cfg.StrOpt(
        'verification_path',
        default=default_path.VERIFICATION,
        help="""
Path of the file to which ``nova-vqos-calibrate verify --record`` writes its
verdict.

A host whose profile is stale by this file takes no new servers with units
until it is calibrated again, or until a later verification finds that the
profile holds. A file that is missing, or is of another profile, has no effect.
"""),
    cfg.IntOpt(
        'period_us',
        default=units.DEFAULT_PERIOD_US,
        min=units.MIN_PERIOD_US,
        max=units.MAX_PERIOD_US,
        help="""
CFS period, in microseconds, of the cap of a vCPU.

A server whose quota would be shorter than two scheduler ticks, or than the
1000 microseconds that libvirt requires, gets a longer period, up to 1000000.
libvirt's hook reads the same option from its own hook.conf.
"""),
    cfg.Opt(
        'quantum_slices',
        type=_SlicesType(),
        default={name: str(slice_us) for name, slice_us
                 in classes.DEFAULT_SLICES_US.items()},
        help=f"""
Slices of the quantum classes ``io`` and ``cache`` in microseconds, from
{classes.MIN_SLICE_US} to {classes.MAX_SLICE_US}.

That of ``cache`` is the time that a vCPU may run before another vCPU of the
same pool runs, {classes.DEFAULT_SLICES_US[classes.CACHE]} if it is not given.
A vCPU of class ``io``, with a shorter slice than others, gets its pCPU as it
wakes, and keeps it for the slice. Which one suits depends on the kernel: if it
is not given, ``nova-vqos-probe`` finds it on each host, at each boot. The
other classes have the kernel's slice. One for ``spin``, which had a slice in
earlier versions, has no effect.
Compute service, agent and libvirt's hook (in its own hook.conf) need the same
value.
"""),
    cfg.IntOpt(
        'cache_max_period_us',
        default=units.DEFAULT_CACHE_MAX_PERIOD_US,
        min=units.MIN_PERIOD_US,
        max=units.MAX_PERIOD_US,
        help="""
Longest CFS period, in microseconds, for the cap of a server of quantum class
``cache``.

A quota shorter than the slice cuts the slice. So such a server gets the
shortest multiple of ``period_us`` whose quota is as long as the slice of its
class. Where this multiple would exceed ``cache_max_period_us``, the server
gets ``period_us``. With a longer period each write of a quota gives more CPU
time away, and a server without quota left waits longer. Compute service, agent
and libvirt's hook (in its own hook.conf) need the same value.
"""),
    cfg.IntOpt(
        'reserved_cu',
        default=0,
        min=0,
        max=units.MAX_UNITS,
        help="""
CPU units of this host that are reserved for the host itself.

They are the ``reserved`` of the inventory of CUSTOM_VQOS_CPU_UNIT. A host
that guarantees speed reserves at least what its kernel cannot reserve for
servers. On a host with several core types each type reserves a part, in
proportion to its capacity, and the agent needs the same value.
"""),
    cfg.StrOpt(
        'dd_reserve',
        default='fixed',
        choices=[
            ('fixed', 'it reserves ``reserved_cu``'),
            ('measured', 'it reserves what its own work takes, the I/O that '
                         'no server pays for included, and ``reserved_cu`` at '
                         'least'),
        ],
        help="""
How many CPU units this host reserves for itself.

What is measured needs the agent and its billing. It is raised once two minutes
in a row have needed more, and lowered by a tenth of a pCPU for each hour that
needed less, not below what nineteen of twenty minutes of the last day needed.
No server has to leave: the host sells fewer units from then on. The agent
needs the same value.
"""),
    cfg.IntOpt(
        'correction_reserve_cu',
        default=0,
        min=0,
        max=units.MAX_UNITS,
        help="""
CPU units of this host that are not sold, for servers with ``vqos:work=auto``
whose work is slower here than the mean of all kinds.

Such a server needs more CPU time than its units are. The agent gives it no
more than this reserve has left, so that it takes nothing from other servers;
with 0 it corrects servers down only. The reserve adds to ``reserved_cu``.
Compute service and agent need the same value.
"""),
    cfg.FloatOpt(
        'allocation_ratio',
        default=1.0,
        min=0.1,
        max=16.0,
        help="""
Ratio of sold CPU units to the CPU units of this host.

With 1.0 each server gets its speed even while all others use theirs. With a
higher ratio the speed is no longer guaranteed: servers compete in proportion
to their units. On a host with several core types the agent needs the same
value.
"""),
    cfg.StrOpt(
        'packing',
        default='sum',
        choices=[
            ('sum', 'as many servers as their CPU units add up to, as '
                    'Placement counts'),
            ('exact', 'of these, only servers whose vCPUs can be assigned to '
                      'pCPUs beside those of all other servers, each vCPU to '
                      'one pCPU'),
        ],
        help="""
Which new servers with units the compute driver of this host accepts.

A server whose vCPUs do not pack would not get its speed while all others use
theirs: three vCPUs of 60 CU on two pCPUs of 100 CU, for instance. The driver
refuses it with ``exact``, and the scheduler tries another host. Servers that
are on this host already stay, and start again; while these do not pack, the
host accepts no new servers with units. An ``allocation_ratio`` above 1
enlarges each pCPU.
"""),
    cfg.StrOpt(
        'servers_without_units',
        default='refuse',
        choices=[
            ('refuse', 'hosts with units take only servers with units, and '
                       'reserve units for the others that they have'),
            ('allow', 'they take both and reserve nothing; count the usage '
                      'of servers without units in reserved_cu'),
        ],
        help="""
Whether the scheduler filter accepts hosts with units for a server without
units, and whether the compute driver reserves units for those on its host.

Servers without units claim VCPU but no CPU units: on a host that takes both,
Placement does not see that they use the same pCPUs. With ``refuse`` the driver
adds what they can use to ``reserved_cu``: a whole pCPU for each vCPU, or the
part that its ``quota:cpu_quota`` allows, stopped servers included. Set it to
the same value for the scheduler and all compute hosts.
"""),
    cfg.BoolOpt(
        'placement_prefilter',
        default=True,
        help="""
Whether nova-scheduler asks Placement only for hosts whose traits suit a
server.

Placement returns at most ``[scheduler] max_placement_results`` hosts. Without
these traits a request fails where all of them are hosts that the scheduler
filter refuses: hosts with units for a server without units, or hosts that are
too slow, although others fit. With them Placement leaves such hosts out. Has
no effect without the filter, and on requests that name a host in the
availability zone. If you switch it off, ``nova-vqos-manage flavor sync``
writes the same into flavors.
"""),
    cfg.IntOpt(
        'agent_max_age_s',
        default=300,
        min=0,
        help="""
Maximum age, in seconds, of the agent's heartbeat.

The scheduler filter refuses new servers with units on a host whose heartbeat
is older. It knows the age from the periodic report of the compute node, so
choose several times ``[DEFAULT] update_resources_interval`` (one minute where
that is 0). 0: no check; a server then still starts with its cap where no agent
runs, but nothing restores the cap.
"""),
    cfg.FloatOpt(
        'quantum_weight_multiplier',
        default=10.0,
        help="""
Multiplier of the weigher that prefers hosts whose pools suit the quantum class
of a server.

A positive value prefers hosts with a pool that has room for the server, and
separates cache-friendly servers from polluters; a negative value does the
opposite; 0 switches the weigher off. The weights before multiplication are
from 0 to 1. With the default a pool with room outweighs best fit, and Nova's
own weighers of CPU, RAM and disk together, which spread servers. Metadata of
the same name of a host's aggregate overrides the option; of several
aggregates the lowest value counts.
"""),
    cfg.FloatOpt(
        'units_weight_multiplier',
        default=4.0,
        help="""
Multiplier of the weigher that prefers hosts with the fewest CPU units left
beside a server.

A positive value packs servers with units (best fit), which keeps other hosts
empty for large servers; a negative value spreads them; 0 switches the weigher
off. With the default the emptiest host comes last, whatever Nova's own
weighers of CPU, RAM and disk prefer, which spread servers. Metadata of the
same name of a host's aggregate overrides the option; of several aggregates
the lowest value counts.
"""),
    cfg.FloatOpt(
        'packing_weight_multiplier',
        default=8.0,
        help="""
Multiplier of the weigher that prefers hosts on which a server strands the
fewest CPU units.

It weighs only hosts with ``packing = exact``, by the free pieces of their
pCPUs. A positive value prefers the host on which the least is left of the
pieces that the vCPUs of the server take, which keeps large pieces for large
vCPUs; a negative value does the opposite; 0 switches the weigher off. With the
default it outweighs ``units_weight_multiplier``. Metadata of the same name of
a host's aggregate overrides the option; of several aggregates the lowest value
counts.
"""),
    cfg.Opt(
        'guaranteed_pcpus',
        type=_PcpusType(),
        default=frozenset(),
        help="""
pCPUs that servers have to themselves, such as 4-63, in a cpuset partition of
cgroup v2.

``nova-vqos-partition.service`` makes the partition. A host that guarantees
speed by ``[vqos_agent] guarantees_speed`` then reserves time on these pCPUs,
and the services of the host keep the others. Set ``[compute] cpu_shared_set``
to the same pCPUs: a host on which they differ guarantees nothing. Without this
option time is reserved on all pCPUs of the host.
"""),
    cfg.FloatOpt(
        'profile_max_interval',
        default=0.05,
        min=0.001,
        max=10.0,
        help="""
Maximum width of the confidence interval of a coefficient, relative to the
coefficient.

A profile with a wider interval is stale: its host takes no new servers with
units. Where that of one kind of work is wider, its host takes no new servers
with that kind in ``vqos:work``.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def reserved_cu(conf: cfg.ConfigOpts, measured_cu: int | None) -> int:
    """CU of this host that are reserved for itself and for corrections.

    :param measured_cu: what the agent measured that it needs; None: nothing
    """
    host_cu = conf.vqos.reserved_cu
    if conf.vqos.dd_reserve == 'measured':
        host_cu = max(host_cu, measured_cu or 0)
    return int(host_cu + conf.vqos.correction_reserve_cu)


def slices_us(conf: cfg.ConfigOpts) -> Mapping[str, int]:
    """The slice of each quantum class that has one, in microseconds."""
    return classes.slices_us(conf.vqos.quantum_slices)


def periods(conf: cfg.ConfigOpts) -> cputune.Periods:
    """The CFS periods of this host's caps."""
    return cputune.Periods(conf.vqos.period_us, conf.vqos.cache_max_period_us,
                           slices_us(conf)[classes.CACHE])
