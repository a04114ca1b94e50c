# SPDX-License-Identifier: Apache-2.0
"""Findings of a check: what is right or wrong, and the remedy."""

from collections.abc import Iterable
import typing as ty

from oslo_upgradecheck import upgradecheck

Code = upgradecheck.Code


class Finding(ty.NamedTuple):
    """One finding.

    :ivar text: whole sentences: a fact, or a problem and its remedy
    """

    code: Code
    text: str


def fact(text: str) -> Finding:
    """Make a finding without a problem."""
    return Finding(Code.SUCCESS, _sentence(text))


def skipped(reason: str) -> Finding:
    """Make the finding of a check that does not apply to this machine."""
    return fact(f'Does not apply: {reason}')


def warning(problem: str, remedy: str) -> Finding:
    """Make a finding: something works less well than it could."""
    return Finding(Code.WARNING, f'{_sentence(problem)} {_sentence(remedy)}')


def failure(problem: str, remedy: str) -> Finding:
    """Make a finding: a promise is broken, or a host refuses new servers."""
    return Finding(Code.FAILURE, f'{_sentence(problem)} {_sentence(remedy)}')


def result_of(findings: Iterable[Finding]) -> upgradecheck.Result:
    """Merge the findings of a check into one result, the worst first.

    Equal findings appear once, facts only where there is no problem.
    """
    ordered = sorted(dict.fromkeys(findings),
                     key=lambda finding: -finding.code)
    worst = ordered[0].code
    return upgradecheck.Result(worst, ' '.join(
        finding.text for finding in ordered
        if finding.code or not worst))


def _sentence(text: str) -> str:
    """Format a text as one line with a capital and a full stop."""
    # NOTE: the text of an exception in it may have several lines.
    words = text.rstrip('.').split()
    if words[0].isalpha():
        # No path, option or program.
        words[0] = words[0][0].upper() + words[0][1:]
    return f'{" ".join(words)}.'
