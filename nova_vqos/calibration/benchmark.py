# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: their contract, and the set to measure with.

Benchmarks are plugins: entry points of :data:`NAMESPACE`, subclasses of
:class:`Benchmark`; or a command of the operator's
(:mod:`nova_vqos.calibration.cpu.command`). One does a number of equal events
on one thread, and is run natively as a program, or in a guest as a kind of
work that the measuring guest knows (:mod:`nova_vqos.calibration.guest`).
"""

import abc
from collections.abc import Iterable, Mapping
import functools
import hashlib
import re
import shutil
import typing as ty

import stevedore
from stevedore import exception

from nova_vqos import work
from nova_vqos.profile import cpu

NAMESPACE = 'nova_vqos.benchmarks'
#: What a server's work may be made of. Memory-bound work is measured as well,
#: and reported: no coefficient of a CPU can promise its speed.
DEFAULT_SET = ('integer', 'float', 'hash', 'compression', 'decompression',
               'interpreter', 'parsing', 'image', 'vector', 'memory-stream',
               'memory-chase')

_MOST = 20
_NAME = re.compile(r'[a-z0-9][a-z0-9-]{0,31}')


class CalibrationError(Exception):
    """A host that cannot be calibrated; the message says what to do."""


class Benchmark(abc.ABC):
    """A piece of real work that can be repeated at will."""

    #: what the score counts
    unit = 'events per CPU second'
    #: what it is an example of, for people
    kind: str
    #: the kind of work of the measuring guest that is this benchmark
    guest_kind: str
    #: reported, but no part of the coefficient unless the operator says so
    memory_bound = False
    #: what it needs in a guest, beside what any guest has
    memory_mib = 0
    #: how many times slower it is in a guest that is emulated, roughly: sets
    #: how many events a round there has
    emulated_slowdown = 12

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """Names what the score depends on: program, version, parameters.

        Scores of different identities are never compared.

        :raises CalibrationError: when the program is missing
        """

    @property
    @abc.abstractmethod
    def program(self) -> str:
        """The path of the program, which a guest gets a copy of.

        :raises CalibrationError: when it is missing, naming its package
        """

    @functools.cached_property
    def program_sha256(self) -> str:
        """Names the program's build."""
        return sha256(self.program)

    @property
    def files(self) -> Mapping[str, bytes]:
        """What it needs in its directory, by name; in a guest, in /."""
        return {}

    @abc.abstractmethod
    def argv(self, events: int) -> list[str]:
        """The command that does this many events on one thread.

        Ends with status 0 when it has done them all.
        """


class Member(ty.NamedTuple):
    """A benchmark of a set.

    :ivar weight: in the coefficient, relative to that of others; 0: reported
    """

    name: str
    benchmark: Benchmark
    weight: float


def choose(wanted: Iterable[str], commands: Mapping[str, Benchmark],
           ) -> tuple[Member, ...]:
    """The set of benchmarks that an operator wants.

    :param wanted: NAME or NAME=WEIGHT; none: the default set, and commands
    :param commands: the operator's own, by name
    :raises CalibrationError: when one does not exist, or a weight is none
    """
    wanted = tuple(wanted) or (*DEFAULT_SET, *commands)
    members = []
    for text in wanted:
        name, equals, weight = text.partition('=')
        benchmark = load(name, commands)
        members.append(Member(name, benchmark, (
            parse_weight(weight, text) if equals
            else 0.0 if benchmark.memory_bound else 1.0)))
    _check_set(members)
    unused = commands.keys() - {member.name for member in members}
    if unused:
        raise CalibrationError(
            f'command {", ".join(sorted(unused))} is given, but is none of '
            'the benchmarks to run: name it in --benchmark, too')
    return tuple(members)


def choose_as(reference: cpu.Reference,
              commands: Mapping[str, Benchmark]) -> tuple[Member, ...]:
    """The set of benchmarks that a reference was measured with.

    :raises CalibrationError: when this host cannot be compared with it
    """
    return tuple(Member(known.name, load_as(known, commands), known.weight)
                 for known in reference.benchmarks)


def load_as(known: cpu.Benchmark,
            commands: Mapping[str, Benchmark]) -> Benchmark:
    """A benchmark of a reference.

    :raises CalibrationError: when this host cannot be compared with it
    """
    benchmark = load(known.name, commands)
    if benchmark.identity != known.identity:
        raise CalibrationError(
            f'benchmark {known.name} of the reference is '
            f'{known.identity!r}, this host has {benchmark.identity!r}: '
            'scores of the two cannot be compared')
    return benchmark


def find_program(name: str, package: str) -> str:
    """The path of a benchmark's program.

    :raises CalibrationError: when it is missing, naming its package
    """
    found = shutil.which(name)
    if found is None:
        raise CalibrationError(
            f'{name} is not installed: install the package {package}')
    return found


def sha256(path: str) -> str:
    """The hash of a file's content."""
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def load(name: str, commands: Mapping[str, Benchmark]) -> Benchmark:
    """A benchmark by its name.

    :raises CalibrationError: when there is none of this name
    """
    if name in commands:
        return commands[name]
    try:
        manager: stevedore.DriverManager[ty.Any] = stevedore.DriverManager(
            NAMESPACE, name)
    except exception.NoMatches as error:
        raise CalibrationError(
            f'there is no benchmark {name!r}: it may be one of '
            f'{", ".join(names())}, or one that --command defines'
        ) from error
    return ty.cast(type[Benchmark], manager.driver)()


def names() -> list[str]:
    """The benchmarks that are installed."""
    return sorted(stevedore.ExtensionManager(NAMESPACE).entry_points_names())


def check_name(name: str) -> None:
    """See that a benchmark may be called so.

    :raises CalibrationError: when it may not
    """
    if not _NAME.fullmatch(name):
        raise CalibrationError(
            f'{name!r} is no name of a benchmark: 1 to 32 of a-z, 0-9 and -, '
            'beginning with a letter or digit')
    if name == work.AUTO:
        raise CalibrationError(
            f'{name!r} is no name of a benchmark: vqos:work={name} has '
            'another meaning')
    if name in names():
        raise CalibrationError(
            f'{name!r} is a benchmark that is installed: call the command '
            'something else')


def parse_weight(weight: str, where: str) -> float:
    """A weight from its text.

    :param where: the text is, for the error
    :raises CalibrationError: when it is none
    """
    try:
        found = float(weight)
    except ValueError:
        found = -1.0
    if not 0 <= found <= cpu.MAX_WEIGHT:
        raise CalibrationError(
            f'the weight in {where!r} must be a number from 0 to '
            f'{cpu.MAX_WEIGHT:g}')
    return found


def _check_set(members: list[Member]) -> None:
    names = [member.name for member in members]
    for name in names:
        if names.count(name) > 1:
            raise CalibrationError(f'benchmark {name!r} is given twice')
    if len(members) > _MOST:
        raise CalibrationError(
            f'{len(members)} benchmarks are given, there may be {_MOST}')
    if not any(member.weight for member in members):
        raise CalibrationError(
            f'none of {", ".join(names)} has a weight above 0: there would '
            'be no coefficient')
