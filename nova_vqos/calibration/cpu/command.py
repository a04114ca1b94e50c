# SPDX-License-Identifier: Apache-2.0
"""A benchmark of the operator's own: a command with a number in it."""

from collections.abc import Mapping
import functools
import os
import shlex
import shutil

from nova_vqos.calibration import benchmark

EVENTS = '{events}'
_MAX_CHARACTERS = 200


class Command(benchmark.Benchmark):
    """Runs a program that does so many events on one thread, and ends.

    :ivar command: its words, of which at least one has {events} in it
    """

    kind = "operator's command"
    guest_kind = 'command'

    def __init__(self, command: list[str]) -> None:
        self.command = command

    @functools.cached_property
    def program(self) -> str:
        found = shutil.which(self.command[0])
        if found is None:
            raise benchmark.CalibrationError(
                f'{self.command[0]!r}, of {shlex.join(self.command)!r}, '
                'cannot be run: give the path of a program')
        return os.path.abspath(found)

    @property
    def identity(self) -> str:
        return f'command {shlex.join(self.command)}'

    @property
    def files(self) -> Mapping[str, bytes]:
        """The script that a guest runs it by, with the number of events."""
        words = ['"$1"'.join(map(shlex.quote, word.split(EVENTS)))
                 for word in self.command[1:]]
        program = shlex.quote(f'/bin/{os.path.basename(self.program)}')
        line = f'exec {" ".join((program, *words))}\n'
        return {'kinds/command': line.encode()}

    def argv(self, events: int) -> list[str]:
        return [self.program, *(word.replace(EVENTS, str(events))
                                for word in self.command[1:])]


def parse(text: str) -> tuple[str, Command]:
    """A command from NAME=PROGRAM ARGUMENT..., as a shell reads words.

    No shell runs it.

    :returns: its name, and the benchmark
    :raises CalibrationError: when it is something else
    """
    name, equals, line = text.partition('=')
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise benchmark.CalibrationError(
            f'{line!r} is no command: {error}') from error
    if not equals or not any(EVENTS in word for word in words[1:]):
        raise benchmark.CalibrationError(
            f'{text!r} must be NAME=PROGRAM ARGUMENT..., with {EVENTS} where '
            'the number of events belongs')
    if len(line) > _MAX_CHARACTERS or not line.isprintable():
        raise benchmark.CalibrationError(
            f'the command of {name!r} must be at most {_MAX_CHARACTERS} '
            'printable characters')
    benchmark.check_name(name)
    return name, Command(words)
