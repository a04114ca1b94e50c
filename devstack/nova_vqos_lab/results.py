# SPDX-License-Identifier: Apache-2.0
"""What the story found: measurements and checks, as a table and as JSON."""

import dataclasses
import json
import math
import typing as ty

import prettytable

from nova_vqos_lab import process
from nova_vqos_lab import verdict

#: The last check: the story came to its end.
TOLD = 'told-to-its-end'


@dataclasses.dataclass(frozen=True)
class Measurement:
    """How fast a server was, measured inside of it.

    :ivar story: ``stock``, ``units``, ``work`` or ``guarantee``: what the
        server's flavor has
    :ivar host: where it ran
    :ivar moment: ``boot``: since it booted there; ``migrated``: since it was
        migrated there live; ``sold out`` and ``noise``: while the host was
        sold out, and other processes spun besides
    :ivar work: kind of work, or ``CPU time``
    :ivar promised_cu: what its flavor promises, or was meant to
    :ivar delivered_cu: work per wall second, in terms of the reference's,
        had the machine been as fast as when it was calibrated
    :ivar raw_cu: the same, as fast as the machine was
    :ivar pace: how fast that was, 1 is as fast as when it was calibrated
    :ivar uncertainty: half of the interval of 95 % of what was delivered,
        relative to it; None where nothing was divided out
    :ivar predicted_error: of this kind of work, by the profile
    """

    story: str
    host: str
    moment: str
    work: str
    promised_cu: float
    delivered_cu: float
    raw_cu: float
    pace: float
    uncertainty: float | None = None
    predicted_error: float = 0.0

    @property
    def error(self) -> float:
        """Delivered against promised: 0.02 is 2 % too fast."""
        return self.delivered_cu / self.promised_cu - 1

    @property
    def raw_error(self) -> float:
        """The same, as fast as the machine was."""
        return self.raw_cu / self.promised_cu - 1


@dataclasses.dataclass(frozen=True)
class CpuTime:
    """The CPU time of a server's vCPU over its cap, divided by nothing else.

    Each is that over the cap, less 1.

    :ivar host: where it ran
    :ivar moment: ``boot`` or ``migrated``
    :ivar share: of a pCPU, by the cap
    :ivar first_second: from the first moment on this host at which it ran
    :ivar windows: of ten seconds each, from the same moment on
    """

    host: str
    moment: str
    share: float
    first_second: float
    windows: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Check:
    """Something that has to be so.

    :ivar name: unique, lasting
    :ivar passed: None: what was measured does not decide it
    :ivar detail: what was seen
    """

    name: str
    passed: verdict.Verdict
    detail: str


class Results:
    """All that was found, in the order of the story."""

    def __init__(self) -> None:
        self.measurements: list[Measurement] = []
        self.cpu_times: list[CpuTime] = []
        self.checks: list[Check] = []

    def check(self, name: str, passed: verdict.Verdict, detail: str) -> None:
        """Note a check, and say how it ended."""
        self.checks.append(Check(name, passed, detail))
        process.say(f'   {verdict.WORDS[passed]:9} {name}: {detail}')

    @property
    def passed(self) -> bool:
        """Whether no check failed, and there were any.

        One that is undecided did neither.
        """
        return bool(self.checks) and not any(
            one.passed is False for one in self.checks)

    @property
    def ended(self) -> bool:
        """Whether the story came to its end, with whatever results."""
        return any(one.name == TOLD and one.passed for one in self.checks)

    def to_dict(self) -> dict[str, ty.Any]:
        """:returns: all of it, as JSON has it."""
        return {
            'measurements': [dataclasses.asdict(one)
                             for one in self.measurements],
            'cpu_times': [dataclasses.asdict(one) for one in self.cpu_times],
            'checks': [dataclasses.asdict(one) for one in self.checks],
        }

    def write(self, path: str) -> None:
        """Write all of it to a JSON file."""
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump(self.to_dict(), stream, indent=1)
            stream.write('\n')

    def table(self) -> str:
        """:returns: all of it, for people."""
        speeds = _table('story', 'host', 'moment', 'work', 'promised CU',
                        'delivered CU', 'error', 'by profile', 'raw CU',
                        "machine's pace")
        for one in self.measurements:
            error = f'{one.error:+.1%}'
            if one.uncertainty is not None:
                error += f' {plus_minus(one.uncertainty)}'
            speeds.add_row([one.story, one.host, one.moment, one.work,
                            f'{one.promised_cu:.0f}',
                            f'{one.delivered_cu:.1f}', error,
                            f'{one.predicted_error:+.1%}',
                            f'{one.raw_cu:.1f}', f'{one.pace:.1%}'])
        times = _table('host', 'moment', 'cap, of a pCPU',
                       'CPU time over the cap: first second',
                       'first 10 s', 'next 10 s')
        for time in self.cpu_times:
            times.add_row([time.host, time.moment, f'{time.share:.2%}',
                           f'{time.first_second:+.1%}',
                           *(f'{error:+.2%}' for error in time.windows)])
        checks = _table('check', 'passed', 'what was seen')
        checks.max_width['what was seen'] = 76
        for check in self.checks:
            checks.add_row([check.name, verdict.WORDS[check.passed],
                            check.detail])
        return f'{speeds}\n{times}\n{checks}\n{self._summary()}'

    def _summary(self) -> str:
        verdicts = [one.passed for one in self.checks]
        counts = ', '.join(f'{verdicts.count(value)} {word}'
                           for value, word in verdict.WORDS.items())
        return f'{len(verdicts)} checks: {counts}'


def read_measurements(path: str) -> list[Measurement]:
    """:param path: of a file that Results.write wrote

    :raises LabError: where it is no such file
    """
    try:
        with open(path, encoding='utf-8') as stream:
            return [Measurement(**one)
                    for one in json.load(stream)['measurements']]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise process.LabError(f'{path}: not what demo --json writes: '
                               f'{error}') from error


def plus_minus(uncertainty: float) -> str:
    """:param uncertainty: half of an interval, relative; infinite: too little
        was measured for one
    """
    shown = ('unknown' if math.isinf(uncertainty) else f'{uncertainty:.1%}')
    return f'\N{PLUS-MINUS SIGN} {shown}'


def _table(*columns: str) -> prettytable.PrettyTable:
    table = prettytable.PrettyTable(columns)
    table.align = 'l'
    return table
