# SPDX-License-Identifier: Apache-2.0
"""The base class of commands with options."""

import abc
import argparse
from collections.abc import Iterable, Sequence
import json
import typing as ty

from cliff import columns
from cliff import command

_CSV = 'csv'
_CSV_DIGITS = 2
# Exit status, as argparse's.
_WRONG_USAGE = 2


class OptionsCommand(command.Command):
    """A command with options; in its bases it comes before cliff's own."""

    _unknown_columns: Sequence[str] = ()

    @abc.abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        self.add_options(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        return int(super().run(parsed_args)) or (
            _WRONG_USAGE if self._unknown_columns else 0)

    def _generate_columns_and_selector(
            self, parsed_args: argparse.Namespace,
            column_names: Sequence[str]) -> ty.Any:
        """As in cliff, which ignores columns that there are not.

        What the command did is shown all the same: by the other columns, or by
        all, if there are no others.
        """
        asked = {name.lower() for name in parsed_args.columns}
        self._unknown_columns = sorted(asked.difference(column_names))
        if self._unknown_columns:
            self.app.LOG.error('there is no column %s, choose from: %s',
                               ', '.join(self._unknown_columns),
                               ', '.join(column_names))
            if not asked.intersection(column_names):
                parsed_args.columns = []
        return super()._generate_columns_and_selector(  # type: ignore[misc]
            parsed_args, column_names)

    def produce_output(self, parsed_args: argparse.Namespace,
                       column_names: Sequence[str],
                       data: Iterable[Sequence[ty.Any]]) -> int:
        """As in cliff, whose CSV is of Python's own texts of all values."""
        if getattr(parsed_args, 'formatter', None) == _CSV:
            data = [[csv_value(value) for value in row] for row in data]
        produced: int = super().produce_output(  # type: ignore[misc]
            parsed_args, column_names, data)
        return produced


def csv_value(value: ty.Any) -> str | float | None:
    """A value as a cell of CSV.

    :returns: numbers, to two decimals, and texts as they are; JSON of lists
        and of true and false; None: an empty cell
    """
    if isinstance(value, columns.FormattableColumn):
        value = value.machine_readable()
    if isinstance(value, float):
        return round(value, _CSV_DIGITS)
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    found: str | float | None = value
    return found
