# SPDX-License-Identifier: Apache-2.0
"""What the programs with commands have in common."""

import argparse
import signal
import typing as ty

from cliff import app
from cliff import commandmanager
from cliff import help as cliff_help

from nova_vqos import version

# Commands of cliff: how to show help is in the options, and complete is for
# shells.
_NOT_LISTED = ('complete', 'help')


class _HelpCommand(cliff_help.HelpCommand):
    """Show the help of a command, or of the program."""

    app: 'Program'

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if parsed_args.cmd:
            return int(super().take_action(parsed_args))
        self.app.print_help()
        return 0


class Program(app.App):
    """A program whose commands are entry points."""

    def __init__(self, description: str, group: str,
                 **kwargs: ty.Any) -> None:
        """
        :param group: of the entry points
        :param kwargs: see cliff
        """
        super().__init__(
            description=description, version=version.version(),
            command_manager=commandmanager.CommandManager(group),
            deferred_help=True, **kwargs)
        self.command_manager.add_command('help', _HelpCommand)

    def print_help_if_requested(self) -> None:
        if self.options.deferred_help:
            self.print_help()
            raise cliff_help.HelpExit

    def print_help(self) -> None:
        """Print the options, and all commands in one column.

        As cliff does, whose column is too narrow for two words.
        """
        self.parser.print_help(self.stdout)
        found = {}
        for name in sorted(name for name, _ in self.command_manager):
            if name not in _NOT_LISTED:
                factory, _, _ = self.command_manager.find_command(name.split())
                text = factory(self, None).get_description()
                found[name] = text.partition('\n')[0].rstrip('.')
        width = max(map(len, found))
        self.stdout.write('\nCommands:\n')
        for name, text in found.items():
            self.stdout.write(f'  {name:<{width}}  {text}\n')

    def interact(self) -> None:
        """Without a command, show all: cliff's shell answers no question."""
        self.run_subcommand(['help'])


def end_cleanly() -> None:
    """Have SIGTERM raise: an exception ends all programs on its way out."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(signal_number: int, _frame: object) -> ty.NoReturn:
    raise SystemExit(128 + signal_number)
