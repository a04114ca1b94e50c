# SPDX-License-Identifier: Apache-2.0
"""What two runs of the same tests came to, side by side."""

from collections.abc import Iterable, Mapping
import dataclasses
import xml.etree.ElementTree as etree

import subunit
import testtools

PASSED = 'passed'
FAILED = 'failed'
SKIPPED = 'skipped'
MISSING = 'not run'


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a test ended.

    :ivar verdict: PASSED, FAILED, SKIPPED, or MISSING
    :ivar reason: why, where it did not pass
    :ivar drivers: how many of our drivers sold units in it; None: not counted
    """

    verdict: str
    reason: str = ''
    drivers: int | None = None


@dataclasses.dataclass(frozen=True)
class Difference:
    """A test that ended differently.

    :ivar why: the known reason; '' where there is none
    """

    test: str
    stock: Outcome
    vqos: Outcome
    why: str = ''


def read_junit(path: str, drivers: str = '') -> dict[str, Outcome]:
    """Read the outcomes of a run from its JUnit XML.

    :param path: as written by pytest, or by subunit2junitxml
    :param drivers: name of the property that counts drivers; '': none does
    :returns: outcomes by 'class.test'; the worst where one is told twice, as
        by a test that passes and whose clean-up fails
    :raises OSError: when it cannot be read
    :raises ValueError: when it is no such file
    """
    try:
        # NOTE: our own runs' files, which no stranger writes.
        root = etree.parse(path).getroot()
    except etree.ParseError as exc:
        raise ValueError(f'{path} is no JUnit XML: {exc}') from exc
    found: dict[str, Outcome] = {}
    for case in root.iter('testcase'):
        name = f'{case.get("classname", "")}.{case.get("name", "")}'
        outcome = _outcome(case, drivers)
        if name not in found or outcome.verdict == FAILED:
            found[name] = outcome
    return found


def read_subunit(path: str) -> dict[str, Outcome]:
    """Read the outcomes of a run from its subunit stream, also half a one.

    :returns: outcomes by the test's id, without its tags
    :raises OSError: when it cannot be read
    """
    verdicts = {'success': PASSED, 'xfail': PASSED, 'skip': SKIPPED,
                'fail': FAILED, 'uxsuccess': FAILED}
    found: dict[str, Outcome] = {}

    def note(test: dict) -> None:
        verdict = verdicts.get(test['status'])
        name = test['id'].split('[')[0]
        if verdict and (name not in found or verdict == FAILED):
            found[name] = Outcome(verdict, _detail(test['details'], verdict))

    result = testtools.StreamToDict(note)
    result.startTestRun()
    with open(path, 'rb') as stream:
        subunit.ByteStreamToStreamResult(
            stream, non_subunit_name='output').run(result)
    result.stopTestRun()
    return found


def _detail(details: Mapping[str, testtools.content.Content],
            verdict: str) -> str:
    """:returns: what a test says of why it did not pass"""
    name = 'reason' if verdict == SKIPPED else 'traceback'
    texts = [one.as_text() for key, one in details.items()
             if key.startswith(name)]
    return _last_line(''.join(texts)) if verdict != PASSED else ''


def _last_line(text: str) -> str:
    """Of a traceback, the last line says what went wrong."""
    return ''.join(text.strip().splitlines()[-1:])[:300]


def _outcome(case: etree.Element, drivers: str) -> Outcome:
    count = None
    for one in case.iter('property'):
        if drivers and one.get('name') == drivers:
            count = int(one.get('value', ''))
    for tag, verdict in (('failure', FAILED), ('error', FAILED),
                         ('skipped', SKIPPED)):
        found = case.find(tag)
        if found is not None:
            text = found.get('message') or (found.text or '').strip()
            return Outcome(verdict, _last_line(text), count)
    return Outcome(PASSED, drivers=count)


def compare(stock: Mapping[str, Outcome], vqos: Mapping[str, Outcome],
            known: Mapping[str, str]) -> list[Difference]:
    """Find the tests that did not end alike.

    :param known: reasons for a difference, by the end of the test's name
    :returns: sorted by name
    """
    nothing = Outcome(MISSING)
    differences = []
    for test in sorted(stock.keys() | vqos.keys()):
        ours, theirs = vqos.get(test, nothing), stock.get(test, nothing)
        if ours.verdict != theirs.verdict:
            why = [reason for end, reason in known.items()
                   if test.endswith(end)]
            differences.append(Difference(test, theirs, ours, ''.join(why)))
    return differences


def status(stock: Mapping[str, Outcome], vqos: Mapping[str, Outcome],
           differences: Iterable[Difference]) -> int:
    """The exit status of a comparison.

    :returns: 0 when all differences are known; 1 otherwise, or when so few
        passed that it is the runs which failed, rather than tests
    """
    few = any(_count(run, PASSED) <= _count(run, FAILED)
              for run in (stock, vqos))
    return int(few or any(not one.why for one in differences))


def table(stock: Mapping[str, Outcome], vqos: Mapping[str, Outcome],
          differences: Iterable[Difference]) -> str:
    """:returns: both runs' counts, and each difference, for people"""
    lines = [f'{"":10} {"stock":>7} {"nova_vqos":>10}']
    for verdict in PASSED, FAILED, SKIPPED:
        lines.append(f'{verdict:10} {_count(stock, verdict):7} '
                     f'{_count(vqos, verdict):10}')
    lines.append(f'{"tests":10} {len(stock):7} {len(vqos):10}')
    counted = [one.drivers for one in vqos.values() if one.drivers]
    if counted:
        lines.append(f'in {len(counted)} tests {sum(counted)} drivers of '
                     'nova_vqos sold units')
    both = [test for test, one in vqos.items() if one.verdict == FAILED
            and test in stock and stock[test].verdict == FAILED]
    for test in sorted(both):
        lines.append(f'fails with both: {test}\n    {vqos[test].reason}')
    for one in differences:
        lines.append(f'DIFFERS: {one.test}\n    stock {one.stock.verdict}, '
                     f'nova_vqos {one.vqos.verdict}: '
                     f'{one.vqos.reason or one.stock.reason}\n    '
                     + (f'known: {one.why}' if one.why else 'not explained'))
    return '\n'.join(lines)


def _count(outcomes: Mapping[str, Outcome], verdict: str) -> int:
    return sum(one.verdict == verdict for one in outcomes.values())
