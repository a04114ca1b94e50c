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

"""Options that compute driver, scheduler filter and agent share."""

from collections.abc import Mapping
import typing as ty

from oslo_config import cfg
from oslo_config import types

from nova_vqos import compute_state
from nova_vqos import profile
from nova_vqos import tuning
from nova_vqos import units
from nova_vqos import verification
from nova_vqos.quantum import classes

GROUP = cfg.OptGroup(
    name='vqos',
    title='CPU units',
    help='How CPU units are sold and enforced on a host.')


class _SlicesType(types.Dict):
    """Slices by quantum class, as libvirt's hook reads them too."""

    def __call__(self, value: str | dict[str, ty.Any]) -> dict[str, ty.Any]:
        given = classes.split(value) if isinstance(value, str) else value
        classes.slices_us(given)
        return given


OPTS = [
    cfg.StrOpt(
        'profile_path',
        default=profile.DEFAULT_PATH,
        help="""
Path of this host's profile, which ``nova-vqos-calibrate`` writes.

It must belong to root or to the user that reads it, and must not be writable
by anybody else. Without a valid profile the host takes no new servers with
units; running ones keep their caps.
"""),
    cfg.StrOpt(
        'agent_state_path',
        default='/run/nova-vqos/agent.json',
        help="""
Path of the file in which the agent leaves its signs of life.

The agent writes it, the compute driver reads it.
"""),
    cfg.StrOpt(
        'compute_state_path',
        default=compute_state.DEFAULT_PATH,
        help="""
Path of the file in which the compute service leaves what it told the
scheduler.

The compute driver writes it, each time that it reports the host's resources;
the agent reads it, so that ``nova-vqos-manage flavor check`` and ``migration
check`` go by what the scheduler does. Give it beside the ``[DEFAULT]
state_path`` of nova.conf where that is another one.
"""),
    cfg.StrOpt(
        'verification_path',
        default=verification.DEFAULT_PATH,
        help="""
Path of the file in which ``nova-vqos-calibrate verify --record`` leaves what
it found.

A host whose profile was found to be stale takes no new servers with units
until it is calibrated again, or found to hold after all. Without the file, or
with one of another profile, nothing follows from it.
"""),
    cfg.IntOpt(
        'period_us',
        default=units.DEFAULT_PERIOD_US,
        min=units.MIN_PERIOD_US,
        max=units.MAX_PERIOD_US,
        help="""
CFS period, in microseconds, of the cap of a vCPU.

Where the quota would come out below two scheduler ticks or libvirt's 1000
microseconds, the period is stretched for that server, to 1000000 at most.
libvirt's hook takes the same option from its own hook.conf.
"""),
    cfg.Opt(
        'quantum_slices',
        type=_SlicesType(),
        default={name: str(slice_us) for name, slice_us
                 in classes.DEFAULT_SLICES_US.items()},
        help=f"""
How long a vCPU of a quantum class may run before another of the same pool
does, in microseconds, from {classes.MIN_SLICE_US} to {classes.MAX_SLICE_US}.

Classes that are left out keep their default; ``neutral`` and ``default`` run
with the kernel's slice. A slice shorter than the scheduler's tick is as long
as that one. All of compute service, agent and libvirt's hook (in its own
hook.conf) need the same value.
"""),
    cfg.IntOpt(
        'cache_max_period_us',
        default=units.DEFAULT_CACHE_MAX_PERIOD_US,
        min=units.MIN_PERIOD_US,
        max=units.MAX_PERIOD_US,
        help="""
Longest CFS period, in microseconds, for the cap of a server of quantum class
``cache``.

A cap cuts long slices, so that such a server gets the shortest period, a
multiple of ``period_us``, whose quota is as long as the slice of its class;
where none up to this one is, it gets ``period_us``, as it does with a value
below that. A longer period gives more CPU time away whenever a quota is
written, and lets a server stand still for longer. All of compute service,
agent and libvirt's hook (in its own hook.conf) need the same value.
"""),
    cfg.IntOpt(
        'reserved_cu',
        default=0,
        min=0,
        max=units.MAX_UNITS,
        help="""
CPU units of this host that are kept for the host itself.

They become the ``reserved`` of the inventory of CUSTOM_VQOS_CPU_UNIT. On a
host of unlike pCPUs each class of them keeps its part, in proportion to its
capacity; the agent of such a host needs the same value.
"""),
    cfg.FloatOpt(
        'allocation_ratio',
        default=1.0,
        min=0.1,
        max=16.0,
        help="""
How many times over the CPU units of this host are sold.

With 1.0 every server gets its speed even while all others use theirs. Above
that, speed is no promise any more: servers compete in proportion to their
units. The agent of a host of unlike pCPUs needs the same value.
"""),
    cfg.StrOpt(
        'servers_without_units',
        default='refuse',
        choices=[
            ('refuse', 'hosts with units take only servers with units'),
            ('allow', 'they take both, and what servers without units use '
                      'is to be counted in reserved_cu'),
        ],
        help="""
What the scheduler filter does with a server without units on a host with
units.

Servers without units claim VCPU but no CPU units: on a host that takes both,
Placement does not see that they use the same pCPUs.
"""),
    cfg.IntOpt(
        'agent_max_age_s',
        default=300,
        min=0,
        help="""
Age, in seconds, of the agent's last sign of life above which the scheduler
filter refuses new servers with units on its host.

The age is seen through the compute node's periodic report, so that it should
be several times ``[DEFAULT] update_resources_interval`` (one minute where
that is 0). 0 switches the check off: caps are then still written when a
server starts, but nothing restores them.
"""),
    cfg.FloatOpt(
        'quantum_weight_multiplier',
        default=10.0,
        help="""
How much the scheduler prefers hosts whose pools suit a server's quantum class.

A positive value prefers hosts that have a pool with room for it, and keeps
cache-friendly servers and polluters from each other; a negative one does the
opposite; 0 switches it off. The weigher's own weights are from 0 to 1. With
the default a pool with room counts more than Nova's own weighers of CPU, RAM
and disk together, which spread servers, and more than best fit. An aggregate's
metadata of the same name, the lowest of several, wins on its hosts.
"""),
    cfg.FloatOpt(
        'units_weight_multiplier',
        default=4.0,
        help="""
How much the scheduler prefers hosts that a server leaves the fewest CPU units.

A positive value packs servers with units (best fit), which keeps other hosts
empty for large ones; a negative one spreads them; 0 switches it off. With the
default the emptiest host is the last one, whatever Nova's own weighers of CPU,
RAM and disk say, which spread servers. An aggregate's metadata of the same
name, the lowest of several, wins on its hosts.
"""),
    cfg.FloatOpt(
        'profile_max_interval',
        default=0.05,
        min=0.001,
        max=1.0,
        help="""
Width of the confidence interval of a coefficient, relative to the
coefficient, above which a profile is stale.

A host with a stale profile takes no new servers with units.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def slices_us(conf: cfg.ConfigOpts) -> Mapping[str, int]:
    """The slice of each quantum class that has one, in microseconds."""
    return classes.slices_us(conf.vqos.quantum_slices)


def periods(conf: cfg.ConfigOpts) -> tuning.Periods:
    """The CFS periods of this host's caps."""
    return tuning.Periods(conf.vqos.period_us, conf.vqos.cache_max_period_us,
                          slices_us(conf)[classes.CACHE])
