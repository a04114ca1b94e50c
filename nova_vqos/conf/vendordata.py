# SPDX-License-Identifier: Apache-2.0
"""Options of nova-vqos-vendordata."""

from oslo_config import cfg
from oslo_config import types

GROUP = cfg.OptGroup(
    name='vqos_vendordata',
    title='Figures for guests',
    help="""
nova-vqos-vendordata, which Nova's metadata service asks for a server's units.

It has a file of its own, /etc/nova-vqos/vendordata.conf, which the agent's
user may not read, nor this program that of the agent. Its credentials are
those of ``[keystone_authtoken]`` in the same file, its
message buses those of ``[DEFAULT] transport_url`` and ``[vqos_manage] cells``.
""")

OPTS = [
    cfg.Opt(
        'listen_address',
        type=types.IPAddress(),
        default='127.0.0.1',
        help="""
IP address of this host on which the service listens.

It speaks HTTP without TLS: use an address that only Nova's metadata service
reaches, or a proxy with TLS before it.
"""),
    cfg.PortOpt(
        'listen_port',
        default=8797,
        min=1,
        help="""
TCP port on which the service listens.
"""),
    cfg.FloatOpt(
        'deadline_s',
        default=3.0,
        min=0.1,
        max=60.0,
        help="""
Time, in seconds, within which the service answers, whether or not Keystone,
Nova's API and the agent of the server's host do.

Must be shorter than ``[api] vendordata_dynamic_read_timeout`` of nova.conf,
which is 5 seconds by default: otherwise Nova gives up first, and the guest
reads nothing instead of the reason.
"""),
    cfg.FloatOpt(
        'keep_s',
        default=10.0,
        min=1.0,
        max=300.0,
        help="""
Time, in seconds, for which the service gives the same answer again.

Nova asks the service each time that a guest reads its vendordata. So however
often a guest reads, its host's agent is asked once in this time. An agent
samples a server's CPU time every ``[vqos_agent] sample_interval_s``. A host
that was silent is left alone for as long.
"""),
    cfg.IntOpt(
        'most_lookups',
        default=16,
        min=1,
        max=256,
        help="""
Number of servers whose figures are looked up at once. A quarter of it, but at
least one, is for the servers of one host; half of it, but at least one, for
servers whose host Nova has to be asked for.

Requests beyond that are answered with the problem ``busy`` at once.
"""),
    cfg.ListOpt(
        'caller_roles',
        default=['service'],
        help="""
Roles of Keystone, one of which the caller needs.

The user of ``[vendordata_dynamic_auth]`` in nova.conf must have it, and no
tenant may: a user with such a role can read the figures of any server.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)
