# SPDX-License-Identifier: Apache-2.0
"""The base class of commands with options."""

import abc
import argparse

from cliff import command


class OptionsCommand(command.Command):
    """A command with options; in its bases it comes before cliff's own."""

    @abc.abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        self.add_options(parser)
        return parser
