# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What a check of ``nova-vqos-status`` finds."""

from collections.abc import Iterable
import typing as ty

from oslo_upgradecheck import upgradecheck

Code = upgradecheck.Code


class Finding(ty.NamedTuple):
    """One thing that a check has to say.

    :ivar text: whole sentences; of what is wrong: that, and what to do
    """

    code: Code
    text: str


def fact(text: str) -> Finding:
    """Nothing is wrong, and this is why."""
    return Finding(Code.SUCCESS, _sentence(text))


def skipped(reason: str) -> Finding:
    """The check says nothing of this machine, and this is why."""
    return fact(f'Does not apply: {reason}')


def warning(problem: str, remedy: str) -> Finding:
    """Something works less well than it could."""
    return Finding(Code.WARNING, f'{_sentence(problem)} {_sentence(remedy)}')


def failure(problem: str, remedy: str) -> Finding:
    """A promise is not kept, or a host takes no new servers."""
    return Finding(Code.FAILURE, f'{_sentence(problem)} {_sentence(remedy)}')


def result_of(findings: Iterable[Finding]) -> upgradecheck.Result:
    """All that a check found as one result, the worst first.

    What is right is told only where nothing is wrong, and nothing twice.
    """
    ordered = sorted(dict.fromkeys(findings),
                     key=lambda finding: -finding.code)
    worst = ordered[0].code
    return upgradecheck.Result(worst, ' '.join(
        finding.text for finding in ordered
        if finding.code or not worst))


def _sentence(text: str) -> str:
    """One line with a capital and a full stop, whatever it is made of."""
    # NOTE: texts of exceptions are in it, which may have lines.
    words = text.rstrip('.').split()
    if words[0].isalpha():
        # No path, option or program.
        words[0] = words[0][0].upper() + words[0][1:]
    return f'{" ".join(words)}.'
