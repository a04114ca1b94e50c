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

"""nova-vqos-manage: what operators look at and turn, for all hosts."""

# ruff: noqa: E402

import sys

# NOTE: as in nova_vqos.cmd.agent.
sys.modules.setdefault('eventlet', None)  # type: ignore[arg-type]

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

import argparse
import logging
import signal
import typing as ty

from cliff import app
from cliff import commandmanager
from oslo_config import cfg

from nova_vqos.cmd import arguments
from nova_vqos.manage import connections

# They tell of what a command says in its own words, at times with a secret.
_TALKATIVE = ('oslo', 'oslo_messaging', 'amqp', 'kombu', 'openstack',
              'keystoneauth', 'urllib3', 'stevedore')


class ManageApp(app.App):
    """The program.

    :ivar connections: what commands reach agents and Nova by
    """

    NAME = 'nova-vqos-manage'
    LOG = logging.getLogger(NAME)

    connections_class = connections.Connections

    def __init__(self, conf: cfg.ConfigOpts = cfg.CONF,
                 **streams: ty.TextIO) -> None:
        """
        :param conf: takes the options of the configuration file
        :param streams: stdout and stderr, those of the process by default
        """
        super().__init__(
            description='Look at CPU units on all hosts, and turn them.',
            version='1',
            command_manager=commandmanager.CommandManager('nova_vqos.manage'),
            deferred_help=True, **streams)
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
            help='with the transport URL of the message bus, default: '
                 f'{connections.DEFAULT_CONFIG}')
        parser.add_argument(
            '--os-cloud', metavar='NAME',
            help='cloud of clouds.yaml whose Nova is asked, default: what '
                 'OS_CLOUD or OS_* of the environment say')
        parser.add_argument(
            '--timeout', type=arguments.seconds, metavar='SECONDS',
            help='within which an agent has to answer, default: [vqos_manage] '
                 'timeout_s of the configuration file')
        return parser

    def initialize_app(self, argv: list[str]) -> None:
        if not self.options.debug:
            for name in _TALKATIVE:
                logging.getLogger(name).setLevel(logging.CRITICAL)
        self.connections = self.connections_class(
            self._conf, config_file=self.options.config_file,
            os_cloud=self.options.os_cloud, timeout_s=self.options.timeout)


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    :returns: its exit status
    """
    signal.signal(signal.SIGTERM, _exit)
    return int(ManageApp().run(sys.argv[1:] if argv is None else argv))


def _exit(signal_number: int, _frame: object) -> ty.NoReturn:
    raise SystemExit(128 + signal_number)


if __name__ == '__main__':
    sys.exit(main())
