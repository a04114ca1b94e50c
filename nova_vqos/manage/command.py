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

"""What all commands of nova-vqos-manage share."""

import argparse
from collections.abc import Mapping, Sequence
import sys
import typing as ty

from cliff import command

from nova_vqos.manage import errors
from nova_vqos.manage import fleet as fleets

# Hosts that a message names at the most.
_MOST_NAMED = 5
# Nova's limit of a host's name.
_MOST_NAME = 255


class ManageCommand(command.Command):
    """A command that asks agents, or Nova.

    To be named before cliff's Lister or ShowOne in the bases of a command.

    :ivar status: exit status when nothing is raised: 1 where somebody did
        not answer
    """

    def __init__(self, *arguments: ty.Any, **options: ty.Any) -> None:
        super().__init__(*arguments, **options)
        self.status = 0

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return int(super().run(parsed_args)) or self.status
        except (errors.ManageError, BrokenPipeError):
            raise
        except Exception as error:
            raise _told(error) from error

    def fleet(self) -> fleets.Fleet:
        """The agents of all cells.

        :raises ManageError: when the configuration cannot be used
        """
        return self.app.connections.fleet()

    def cloud(self) -> ty.Any:
        """An openstack.connection.Connection.

        :raises ManageError: when there are no credentials
        """
        return self.app.connections.cloud()

    def hosts(self, parsed_args: argparse.Namespace) -> Mapping[str, str]:
        """The hosts that are to be asked: those of --host, or all of Nova's.

        :raises ManageError: when Nova cannot be asked
        """
        return self.app.connections.hosts(parsed_args.hosts)

    def ask(self, hosts: Mapping[str, str], method: str,
            **arguments: ty.Any) -> list[fleets.Answer]:
        """Ask agents, and tell on stderr how many did not answer.

        :returns: see :meth:`nova_vqos.manage.fleet.Fleet.ask`
        :raises ManageError: when nobody can be asked
        """
        answers = self.fleet().ask(hosts, method, **arguments)
        self.tell_silent([one for one in answers if one.value is None],
                         len(answers))
        return answers

    def tell_silent(self, silent: Sequence[fleets.Answer],
                    asked: int) -> None:
        """Tell on stderr of hosts that did not answer, if there are any."""
        if silent:
            self.status = 1
            self.app.LOG.warning('%d of %d hosts gave no answer: %s',
                                 len(silent), asked, _names(silent))


    def ask_one(self, host: str, method: str,
                **arguments: ty.Any) -> dict[str, ty.Any]:
        """Ask the agent of one host, which need not be one of Nova's.

        :returns: its answer
        :raises ManageError: when there is none
        """
        (answer,) = self.fleet().ask(
            self.app.connections.hosts([host]), method, **arguments)
        if answer.value is None:
            raise errors.ManageError(f'host {host}: {answer.error}')
        return answer.value


def _told(error: Exception) -> errors.ManageError:
    """An error that no command has foreseen, in one line."""
    # Who has not imported it has not asked Nova.
    if 'openstack' in sys.modules:
        from nova_vqos.manage import nova
        if isinstance(error, nova.ERRORS):
            return nova.failure(error)
    return errors.ManageError(
        f'{type(error).__name__}: {errors.one_line(error)} (--debug shows '
        'where)')


def host_name(text: str) -> str:
    """A host's name, from the command line."""
    if not 0 < len(text) <= _MOST_NAME or not text.isprintable() or (
            set(text) & set('*#/ ')):
        raise argparse.ArgumentTypeError(f'{text[:80]!r} is no name of a host')
    return text


def add_hosts(parser: argparse.ArgumentParser, help: str = (
        'ask this host alone, and not Nova; may be given more than once')
        ) -> None:
    """Add --host, which ManageCommand.hosts() follows."""
    parser.add_argument(
        '--host', action='append', dest='hosts', default=[], metavar='HOST',
        type=host_name, help=help)


def _names(silent: Sequence[fleets.Answer]) -> str:
    named = ', '.join(f'{one.host} ({one.error})'
                      for one in silent[:_MOST_NAMED])
    left = len(silent) - _MOST_NAMED
    return f'{named} and {left} more' if left > 0 else named
