# SPDX-License-Identifier: Apache-2.0
"""How often a vCPU lost its pCPU while another of its server ran: PSP.

What it holds then, such as a lock, the other may wait for. Pure.
"""

from collections.abc import Sequence
import enum
import typing as ty


class Change(enum.Enum):
    """What became of a thread at one moment."""

    BEGAN = 'it began to run'
    ENDED = 'it ceased to run, and had nothing more to do'
    PREEMPTED = 'it ceased to run, and was ready to go on'


class Turn(ty.NamedTuple):
    """A change of a thread.

    :ivar at_ns: on a clock of all pCPUs
    """

    at_ns: int
    change: Change


class Counted(ty.NamedTuple):
    """What happened in a while.

    :ivar preemptions: of vCPUs, while another of them ran
    :ivar length_ns: of the while
    """

    preemptions: int
    length_ns: int


def count(turns: Sequence[Sequence[Turn]]) -> Counted | None:
    """Count in the time in which the state of all vCPUs is known.

    It begins with the first turn of the last of them, and ends with the last
    turn of the first.

    :param turns: of each vCPU, in their order, without gaps
    :returns: None: there is no such time
    """
    if len(turns) < 2 or not all(turns):
        return None
    from_ns = max(one[0].at_ns for one in turns)
    to_ns = min(one[-1].at_ns for one in turns)
    if from_ns >= to_ns:
        return None
    running: set[int] = set()
    preemptions = 0
    for at_ns, vcpu, change in sorted((
            (turn.at_ns, vcpu, turn.change)
            for vcpu, one in enumerate(turns) for turn in one),
            key=lambda found: found[0]):
        if change is Change.BEGAN:
            running.add(vcpu)
            continue
        running.discard(vcpu)
        if change is Change.PREEMPTED and running and from_ns < at_ns <= to_ns:
            preemptions += 1
    return Counted(preemptions, to_ns - from_ns)
