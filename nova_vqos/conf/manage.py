# SPDX-License-Identifier: Apache-2.0
"""Options of nova-vqos-manage."""

from oslo_config import cfg

GROUP = cfg.OptGroup(
    name='vqos_manage',
    title='Command line for operators',
    help='How nova-vqos-manage reaches the agents.')

OPTS = [
    cfg.FloatOpt(
        'timeout_s',
        default=3.0,
        min=0.1,
        max=300.0,
        help="""
Time, in seconds, within which an agent must answer.

Commands ask all agents at once, so agents that do not answer cost this time
once, however many they are. ``--timeout`` overrides this option.
"""),
    cfg.StrOpt(
        'push_private_key',
        default='',
        help="""
Path of the private key with which ``policy push`` signs.

``nova-vqos-manage key create`` makes it. It must belong to root or to the user
who pushes, and no other user may read it. Agents with ``[vqos_agent]
push_public_keys`` refuse a push without a signature. Empty: pushes are not
signed.
"""),
    cfg.MultiStrOpt(
        'cells',
        default=[],
        secret=True,
        help="""
Message bus of another cell, as NAME=URL; may be repeated.

Commands reach the agents of a cell over the message bus of that cell's compute
services. The bus of ``[DEFAULT] transport_url`` need not be given: it is the
cell ``default``. Example: north=rabbit://user:password@192.0.2.7:5672/
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)
