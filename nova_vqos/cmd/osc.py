# SPDX-License-Identifier: Apache-2.0
"""The plugin of openstackclient: ``openstack vqos`` has nova-vqos-manage's
commands.

They are the same classes, by other entry points. openstackclient imports this
module whatever it is asked for, so the rest is imported where it is used.
"""

import argparse
import typing as ty

#: Of the plugin, as openstackclient wants them.
API_NAME = 'vqos'
API_VERSION_OPTION = 'os_vqos_api_version'
DEFAULT_API_VERSION = '1'
API_VERSIONS = (DEFAULT_API_VERSION,)

_FILE_OPTION = '--vqos-config-file'


def build_option_parser(parser: argparse.ArgumentParser
                        ) -> argparse.ArgumentParser:
    """Add the options of all commands."""
    parser.add_argument(
        _FILE_OPTION, metavar='FILE',
        help='file with the transport URL of the message bus, over which '
             '"openstack vqos" asks agents, default: NOVA_VQOS_CONFIG_FILE of '
             'the environment, or /etc/nova-vqos/nova-vqos.conf')
    # NOTE: openstacksdk takes all that ends in _timeout for one of the APIs.
    parser.add_argument(
        '--vqos-timeout', dest='vqos_wait_s', type=_seconds, metavar='SECONDS',
        help='how long "openstack vqos" waits for agents, default: '
             '[vqos_manage] timeout_s of that file')
    return parser


def _seconds(text: str) -> str:
    # NOTE: openstacksdk wants options to be texts.
    from nova_vqos.cmd import arguments
    return str(arguments.seconds(text))


def make_client(instance: ty.Any) -> ty.Any:
    """Make what commands find as client_manager.vqos.

    :param instance: openstackclient's ClientManager
    :returns: :class:`nova_vqos.cmd.manage.connections.Connections`
    """
    from oslo_config import cfg

    from nova_vqos.cmd.manage import cloud
    from nova_vqos.cmd.manage import connections

    options = instance.get_configuration()
    wait_s = options.get('vqos_wait_s')
    connections.quiet_bus()
    return connections.Connections(
        cfg.CONF, config_file=options.get('vqos_config_file'),
        connect=lambda: cloud.Cloud(instance.sdk_connection),
        timeout_s=None if wait_s is None else float(wait_s),
        file_option=_FILE_OPTION)
