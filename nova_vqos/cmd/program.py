# SPDX-License-Identifier: Apache-2.0
"""What the programs with commands have in common."""

import signal
import typing as ty

from cliff import app
from cliff import commandmanager

from nova_vqos import version


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

    def interact(self) -> None:
        """Without a command, show all: cliff's shell answers no question."""
        self.run_subcommand(['help'])


def end_cleanly() -> None:
    """Have SIGTERM raise: an exception ends all programs on its way out."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(signal_number: int, _frame: object) -> ty.NoReturn:
    raise SystemExit(128 + signal_number)
