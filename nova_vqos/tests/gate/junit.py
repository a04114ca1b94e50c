# SPDX-License-Identifier: Apache-2.0
"""JUnit's reports of levels: what pytest wrote, read and put together.

A report in build/reports has one test suite, of the name of its level, and
for each test a case with the properties of plugin.py. What passed only when
it was repeated has elements ``flakyFailure``, what never did
``rerunFailure``, as Maven's Surefire writes them.
"""

import dataclasses
import pathlib
from xml.etree import ElementTree

PASSED, FAILED, SKIPPED, UNDECIDED = (
    'passed', 'failed', 'skipped', 'undecided')


@dataclasses.dataclass
class Case:
    """A test, as it ended.

    :ivar element: of the report
    :ivar properties: by name
    """

    element: ElementTree.Element

    def __post_init__(self):
        self.properties = {one.get('name'): one.get('value')
                           for one in self.element.iter('property')}

    @property
    def nodeid(self):
        """By which pytest runs it; of what cannot be run, what it is."""
        return self.properties.get('nodeid') or ' '.join(
            filter(None, (self.element.get('classname'),
                          self.element.get('name'))))

    @property
    def file(self):
        """:returns: its path"""
        return self.nodeid.partition('::')[0]

    @property
    def machine(self):
        """What it did meanwhile that explains a failure, None: nothing."""
        return self.properties.get('machine')

    @property
    def outcome(self):
        if self._failures():
            return FAILED
        skipped = self.element.find('skipped')
        if skipped is None:
            return PASSED
        # Of a whole module it has no type.
        return (UNDECIDED if skipped.get('type') == 'pytest.xfail'
                else SKIPPED)

    @property
    def is_flaky(self):
        return self.element.find('flakyFailure') is not None

    @property
    def message(self):
        """Of a failure, or why it is skipped or undecided; its first line."""
        for name in ('failure', 'error', 'skipped', 'flakyFailure'):
            found = self.element.find(name)
            if found is not None:
                return (found.get('message') or '').partition('\n')[0]
        return ''

    @property
    def failed_set_up(self):
        """Where it failed in a fixture: what that raised, None otherwise."""
        found = self.element.find('error')
        return None if found is None else found.get('message')

    def cost(self, name):
        """:param name: cpu_s or waited_s"""
        return float(self.properties.get(name, 0))

    def repeated(self, again):
        """This test when it was run again, with how it had failed here.

        :param again: Case; one that was skipped says nothing
        :returns: Case, which is flaky, or failed as before
        """
        result, name = ((again, 'flakyFailure')
                        if again.outcome in (PASSED, UNDECIDED)
                        else (self, 'rerunFailure'))
        other = again if result is self else self
        for one in other._failures():
            made = ElementTree.SubElement(result.element, name, {
                'message': one.get('message') or '',
                'type': 'machine'})
            made.text = f'{one.text or ""}\nthe machine: {other.machine}\n'
        # Of the tries before.
        for one in other.element.findall('rerunFailure'):
            one.tag = name
            result.element.append(one)
        return result

    def _failures(self):
        return [*self.element.findall('failure'),
                *self.element.findall('error')]


@dataclasses.dataclass
class Report:
    """All cases of a level."""

    level: str
    cases: list[Case] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, path):
        """:raises OSError: or ParseError, where pytest was killed"""
        root = ElementTree.parse(path).getroot()
        # pytest makes two of a test that fails, and whose fixture then fails
        # to end: properties are of the second one alone.
        cases = {}
        for case in map(Case, root.iter('testcase')):
            key = case.element.get('classname'), case.element.get('name')
            before = cases.get(key)
            if (before and 'nodeid' in case.properties
                    and 'nodeid' not in before.properties):
                case.element.extend(before._failures())
            elif before:
                key = *key, len(cases)
            cases[key] = case
        return cls(pathlib.Path(path).stem, list(cases.values()))

    def write(self, path):
        suite = ElementTree.Element('testsuite', {
            'name': self.level, 'tests': str(len(self.cases)),
            'failures': str(len(self.of(FAILED))), 'errors': '0',
            'skipped': str(len(self.cases) - len(self.of(FAILED))
                           - len(self.of(PASSED))),
            'time': str(round(sum(float(one.element.get('time') or 0)
                                  for one in self.cases), 3))})
        suite.extend(one.element for one in self.cases)
        root = ElementTree.Element('testsuites')
        root.append(suite)
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(root).write(path, encoding='utf-8',
                                            xml_declaration=True)

    def of(self, outcome):
        return [one for one in self.cases if one.outcome == outcome]

    @property
    def flaky(self):
        return [one for one in self.cases if one.is_flaky]

    def summary(self):
        """What the table at the end and the record have of it.

        :returns: {name: a number, or names of tests}
        """
        return {
            'tests': len(self.cases), 'failed': _names(self.of(FAILED)),
            'flaky': _names(self.flaky),
            'undecided': _names(self.of(UNDECIDED)),
            'skipped': _names(self.of(SKIPPED)),
            'cpu_s': round(sum(one.cost('cpu_s') for one in self.cases), 1),
            'waited_s': round(sum(one.cost('waited_s')
                                  for one in self.cases), 1)}


def _names(cases):
    # Both parts of a level skip a module that is skipped.
    return sorted({short(one.nodeid) for one in cases})


def short(nodeid):
    """:returns: a node id as of the directory of all tests"""
    return nodeid.removeprefix('nova_vqos/tests/')
