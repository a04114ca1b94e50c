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
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def register_host_opts(conf: cfg.ConfigOpts) -> None:
    """For the agent's own process: in Nova's there is this option already."""
    conf.register_opts(HOST_OPTS)
