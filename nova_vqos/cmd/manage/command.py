# SPDX-License-Identifier: Apache-2.0
"""The base class of all commands of nova-vqos-manage."""

import argparse
from collections.abc import Mapping, Sequence
import typing as ty

from nova_vqos import plain_text
from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.cmd import options
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import output

if ty.TYPE_CHECKING:
    from nova_vqos.cmd.manage import connections
    from nova_vqos.cmd.manage.app import ManageApp

_Reply = ty.TypeVar('_Reply')

# Nova's limit of a host's name.
_MOST_NAME = 255


class ManageCommand(options.OptionsCommand):
    """A command that asks agents, or Nova.

    In the bases of a command it comes before cliff's Lister or ShowOne.

    :ivar status: exit status when nothing is raised: 1 where a host did not
        answer
    """

    app: 'ManageApp'

    def __init__(self, *arguments: ty.Any, **options: ty.Any) -> None:
        super().__init__(*arguments, **options)
        self.status = 0

    @property
    def connections(self) -> 'connections.Connections':
        """Those of nova-vqos-manage, or of openstackclient (cmd/osc.py)."""
        manager = getattr(self.app, 'client_manager', None)
        found: connections.Connections = (
            self.app.connections if manager is None else manager.vqos)
        return found

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_hosts(parser)

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return int(super().run(parsed_args)) or self.status
        except (errors.ManageError, BrokenPipeError):
            raise
        except Exception as error:
            raise errors.ManageError(
                f'{type(error).__name__}: {fanout.one_line(error)} (--debug '
                'shows where)') from error

    def say(self, text: str) -> None:
        """Tell the operator what is no fault, in one line on stderr.

        Not by the log, of which openstackclient shows only warnings.
        """
        if self.app.options.verbose_level:
            self.app.stderr.write(f'{plain_text.one_line(text)}\n')

    def hosts(self, parsed_args: argparse.Namespace) -> Mapping[str, str]:
        """The hosts to ask: those of --host, or all of Nova's.

        :raises ManageError: when Nova cannot be asked
        """
        return self.connections.hosts(parsed_args.hosts)

    def ask(self, hosts: Mapping[str, str], method: rpcapi.Method[_Reply],
            **arguments: ty.Any) -> list[fanout.Answer[_Reply]]:
        """Ask agents, and warn of those that do not answer.

        :param hosts: cell by host
        :raises ManageError: when no agent can be asked
        """
        answers = self.ask_quietly(hosts, method, **arguments)
        self.warn([one for one in answers if one.value is None],
                  len(answers))
        return answers

    def ask_quietly(self, hosts: Mapping[str, str],
                    method: rpcapi.Method[_Reply], **arguments: ty.Any
                    ) -> list[fanout.Answer[_Reply]]:
        """The same without a warning."""
        fleet = self.connections.fleet()
        try:
            return fleet.ask(hosts, method, **arguments)
        except fanout.BusError as error:
            raise errors.ManageError(str(error)) from error

    def warn(self, silent: Sequence[fanout.Answer[_Reply]],
             asked: int) -> None:
        """Warn of hosts that did not answer, if there are any."""
        if silent:
            self.status = 1
            self.app.LOG.warning('%d of %d hosts gave no answer: %s',
                                 len(silent), asked, output.some([
                                     f'{one.host} ({one.error})'
                                     for one in silent]))

    def ask_one(self, host: str, method: rpcapi.Method[_Reply],
                **arguments: ty.Any) -> _Reply:
        """Ask the agent of one host, which need not be one of Nova's.

        :raises ManageError: when there is no answer
        """
        (answer,) = self.ask_quietly(
            self.connections.hosts([host]), method, **arguments)
        if answer.value is None:
            raise errors.ManageError(f'host {host}: {answer.error}')
        return answer.value


def host_name(text: str) -> str:
    """A host's name, from the command line."""
    if not 0 < len(text) <= _MOST_NAME or not text.isprintable() or (
            set(text) & set('*#/ ')):
        raise argparse.ArgumentTypeError(f'{text[:80]!r} is no host name')
    return text


def add_hosts(parser: argparse.ArgumentParser, help: str = (
        'ask this host alone, without asking Nova; may be repeated')
        ) -> None:
    """Add --host, which ManageCommand.hosts() follows."""
    parser.add_argument(
        '--host', action='append', dest='hosts', default=[], metavar='HOST',
        type=host_name, help=help)
