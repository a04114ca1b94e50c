# SPDX-License-Identifier: Apache-2.0
"""What a measurement says of a claim: yes, no, or undecided.

A machine that is not as fast as it was when it was calibrated shows nothing
about a host's speed, neither that it is right nor that it is wrong. So a
verdict has three values: True, False, and None, which is undecided.
"""

from collections.abc import Sequence

#: Of a claim, or None where what was measured does not decide it.
Verdict = bool | None

#: In tables and progress lines.
WORDS = {True: 'yes', False: 'NO', None: 'undecided'}

# A busy machine was seen to withhold a tenth of a window. A wrong cap is
# further off: the lab's hosts differ by two.
_MOST_WITHHELD = 0.25


def of_error(error: float, tolerance: float, uncertainty: float,
             *others: float) -> Verdict:
    """Judge how far something is from what was promised.

    :param error: 0.02 is 2 % more than promised
    :param tolerance: how far it may be off, either way
    :param uncertainty: half of the error's interval of 95 %; True needs one
        that is no wider than the tolerance
    :param others: the error by other ways to measure; False needs them all
        to be too great
    """
    if all(abs(one) > tolerance + uncertainty for one in (error, *others)):
        return False
    if uncertainty <= tolerance and abs(error) <= tolerance:
        return True
    return None


def of_cpu_time(error: float, tolerance: float, quota: float, *,
                is_first: bool = False, still: float = 0.0) -> Verdict:
    """Judge the CPU time in a window of a vCPU that always wants to run.

    A cap is a token bucket, so no window may have more than its rate and one
    quota. The first one begins with a full bucket. In a later one some of that
    quota shows a turn that the machine had delayed across its beginning, and
    CPU time below the cap that the machine did not get the time itself.

    :param error: the CPU time over the cap, less 1
    :param tolerance: how far it may be off, either way
    :param quota: one quota, over the cap's CPU time in the window
    :param still: the share of the window in which the machine stood still
    """
    if not -_MOST_WITHHELD - still <= error <= tolerance + quota:
        return False
    if -tolerance <= error <= tolerance + is_first * quota:
        return True
    return None


def of_most(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Judge a claim that holds for nine of ten programs, by a few programs.

    One of two programs fails it by chance in a fifth of all runs. So a failure
    counts only where all of them fail.

    :param verdicts: of each program by itself
    :returns: likewise, with a failure that does not count as undecided
    """
    if all(verdict is False for verdict in verdicts):
        return list(verdicts)
    return [verdict or None for verdict in verdicts]


def of_all(*verdicts: Verdict) -> Verdict:
    """:returns: False if one is, else None if one is, else True"""
    if False in verdicts:
        return False
    return None if None in verdicts else True
