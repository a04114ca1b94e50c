# SPDX-License-Identifier: Apache-2.0
"""What the story found: measurements and checks, as a table and as JSON."""

import dataclasses
import json
import typing as ty

import prettytable

from nova_vqos_lab import process

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
    """

    story: str
    host: str
    moment: str
    work: str
    promised_cu: float
    delivered_cu: float
    raw_cu: float
    pace: float

    @property
    def error(self) -> float:
        """Delivered against promised: 0.02 is 2 % too fast."""
        return self.delivered_cu / self.promised_cu - 1


@dataclasses.dataclass(frozen=True)
class Check:
    """Something that had to be so.

    :ivar name: unique, lasting
    :ivar detail: what was seen
    """

    name: str
    passed: bool
    detail: str


class Results:
    """All that was found, in the order of the story."""

    def __init__(self) -> None:
        self.measurements: list[Measurement] = []
        self.checks: list[Check] = []

    def check(self, name: str, passed: bool, detail: str) -> None:
        """Note a check, and say how it ended."""
        self.checks.append(Check(name, passed, detail))
        process.say(f'   {"ok" if passed else "FAILED":6} {name}: {detail}')

    @property
    def passed(self) -> bool:
        """Whether every check passed, and there were any."""
        return bool(self.checks) and all(one.passed for one in self.checks)

    @property
    def ended(self) -> bool:
        """Whether the story came to its end, with whatever results."""
        return any(one.name == TOLD and one.passed for one in self.checks)

    def to_dict(self) -> dict[str, ty.Any]:
        """:returns: all of it, as JSON has it."""
        return {
            'measurements': [dataclasses.asdict(one)
                             for one in self.measurements],
            'checks': [dataclasses.asdict(one) for one in self.checks],
        }

    def write(self, path: str) -> None:
        """Write all of it to a JSON file."""
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump(self.to_dict(), stream, indent=1)
            stream.write('\n')

    def table(self) -> str:
        """:returns: all of it, for people."""
        speeds = prettytable.PrettyTable(
            ['story', 'host', 'moment', 'work', 'promised CU', 'delivered CU',
             'error', 'raw CU', "machine's pace"])
        speeds.align = 'l'
        for one in self.measurements:
            speeds.add_row([one.story, one.host, one.moment, one.work,
                            f'{one.promised_cu:.0f}',
                            f'{one.delivered_cu:.1f}', f'{one.error:+.1%}',
                            f'{one.raw_cu:.1f}', f'{one.pace:.1%}'])
        checks = prettytable.PrettyTable(['check', 'passed', 'what was seen'])
        checks.align = 'l'
        checks.max_width['what was seen'] = 76
        for one in self.checks:
            checks.add_row([one.name, 'yes' if one.passed else 'NO',
                            one.detail])
        return f'{speeds}\n{checks}'
