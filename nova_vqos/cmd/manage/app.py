# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage: the operator's program for all hosts."""

# ruff: noqa: E402

import sys

# NOTE: as in nova_vqos.cmd.agent.
sys.modules.setdefault('eventlet', None)  # type: ignore[arg-type]

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

import argparse
import logging
import typing as ty

from oslo_config import cfg

from nova_vqos.cmd import arguments
from nova_vqos.cmd import program
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import connections
from nova_vqos.conf import default_path

# As those of the bus.
_TALKATIVE = ('openstack', 'keystoneauth', 'urllib3')


class ManageApp(program.Program):
    """The program.

    :ivar connections: to agents and Nova
    """

    NAME = 'nova-vqos-manage'
    LOG = logging.getLogger(NAME)

    connections_class = connections.Connections

    def __init__(self, conf: cfg.ConfigOpts = cfg.CONF,
                 stdout: ty.TextIO | None = None,
                 stderr: ty.TextIO | None = None) -> None:
        """
        :param conf: takes the options of the configuration file
        :param stdout: that of the process by default, as stderr
        """
        super().__init__(
            'Show CPU units on all hosts, and push policies.',
            'nova_vqos.manage', stdout=stdout, stderr=stderr)
        self._conf = conf
        self.connections: connections.Connections

    def build_option_parser(
            self, description: str | None, version: str | None,
            argparse_kwargs: dict[str, ty.Any] | None = None
            ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().build_option_parser(
            description, version, argparse_kwargs)
        parser.add_argument(
            '--config-file', metavar='FILE',
            help='file with the transport URL of the message bus, default: '
                 f'{connections.FILE_VARIABLE} of the environment, or '
                 f'{default_path.CONFIG}')
        parser.add_argument(
            '--os-cloud', metavar='NAME',
            help='cloud in clouds.yaml whose Nova is asked, default: by '
                 'OS_CLOUD or OS_* in the environment')
        parser.add_argument(
            '--timeout', type=arguments.seconds, metavar='SECONDS',
            help='how long to wait for agents, default: [vqos_manage] '
                 'timeout_s of the configuration file')
        return parser

    def initialize_app(self, argv: list[str]) -> None:
        if not self.options.debug:
            connections.quiet_bus()
            for name in _TALKATIVE:
                logging.getLogger(name).setLevel(logging.CRITICAL)
        self.connections = self.connections_class(
            self._conf, config_file=self.options.config_file,
            connect=lambda: cloud.connect(self.options.os_cloud),
            timeout_s=self.options.timeout)


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    :returns: its exit status
    """
    program.end_cleanly()
    return int(ManageApp().run(sys.argv[1:] if argv is None else argv))


if __name__ == '__main__':
    sys.exit(main())
