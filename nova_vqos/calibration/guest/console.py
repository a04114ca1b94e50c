# SPDX-License-Identifier: Apache-2.0
"""What a measuring guest prints on its serial console."""

from collections.abc import Iterable, Mapping
import dataclasses
import re


@dataclasses.dataclass(frozen=True, slots=True)
class RoundStart:
    """The guest begins a round of work."""

    kind: str
    uptime_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class RoundStop:
    """The guest has done a round of work, and has yet to report it."""

    kind: str
    uptime_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A round of work that the guest has done.

    :ivar uptime_s: the guest's uptime when it was done
    :ivar events: units of work done
    :ivar elapsed_s: wall time that they took, by the guest's clock
    """

    kind: str
    uptime_s: float
    events: int
    elapsed_s: float


_MOMENT_LINE = re.compile(r'vqos-(start|stop) (\w+) (\d+(?:\.\d+)?)\s*$')
_MOMENTS: Mapping[str, type[RoundStart | RoundStop]] = {
    'start': RoundStart, 'stop': RoundStop}
_ROUND_LINE = re.compile(
    r'vqos (\w+) (\d+(?:\.\d+)?) (\d+) (\d+(?:\.\d+)?)\s*$')


def parse_line(line: str) -> Round | RoundStart | RoundStop | None:
    """Read a line of the guest's serial console.

    :returns: None where the line is none of ours, or cut short
    """
    found = _ROUND_LINE.match(line)
    if found:
        return Round(found[1], float(found[2]), int(found[3]),
                     float(found[4]))
    found = _MOMENT_LINE.match(line)
    return _MOMENTS[found[1]](found[2], float(found[3])) if found else None


def rounds(lines: Iterable[str], kind: str = 'sysbench') -> list[Round]:
    """Rounds of work in what a guest printed.

    :returns: those that began and ended there: on the console of a guest
        that was migrated, one that spans the migration is of two hosts. Their
        time is that between the same two lines as in the calibration
    """
    found = []
    began_s = elapsed_s = 0.0
    for line in lines:
        seen = parse_line(line)
        if seen is None or seen.kind != kind:
            continue
        if isinstance(seen, RoundStart):
            began_s, elapsed_s = seen.uptime_s, 0.0
        elif isinstance(seen, RoundStop) and began_s:
            began_s, elapsed_s = 0.0, seen.uptime_s - began_s
        elif isinstance(seen, Round) and elapsed_s:
            found.append(dataclasses.replace(seen, elapsed_s=elapsed_s))
            elapsed_s = 0.0
    return found
