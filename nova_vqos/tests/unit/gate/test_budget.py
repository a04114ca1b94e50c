# SPDX-License-Identifier: Apache-2.0
"""Levels and tests that cost more than they may."""

from xml.etree import ElementTree

import pytest

from nova_vqos.tests.gate import budget
from nova_vqos.tests.gate import junit


def case(nodeid, cpu_s=0.0, waited_s=0.0):
    element = ElementTree.Element('testcase')
    properties = ElementTree.SubElement(element, 'properties')
    for name, value in (('nodeid', nodeid), ('cpu_s', cpu_s),
                        ('waited_s', waited_s)):
        ElementTree.SubElement(properties, 'property', name=name,
                               value=str(value))
    return junit.Case(element)


def report(level, *cases):
    return junit.Report(level, list(cases))


BEFORE = report('host', case('nova_vqos/tests/host/test_a.py::one', 100, 50),
                case('nova_vqos/tests/host/test_b.py::two', 2.4))


def test_a_level_may_cost_what_it_did():
    own = budget.of_report(BEFORE)
    assert (own['cpu_s'], own['waited_s']) == (102, 50)
    assert own['files'] == {'host/test_a.py': 100, 'host/test_b.py': 2.4}
    assert list(own['tests']) == ['host/test_a.py::one']
    assert not list(budget.faults(BEFORE, own))


@pytest.mark.parametrize(('more', 'count'), [
    ({'cpu_s': 30}, 0), ({'cpu_s': 32, 'waited_s': 9}, 1),
    ({'waited_s': 21}, 1), ({'cpu_s': 32, 'waited_s': 21}, 2)])
def test_a_level_that_grew(more, count):
    own = budget.of_report(BEFORE)
    grown = [case(f'nova_vqos/tests/host/test_c.py::{number}',
                  more.get('cpu_s', 0) / 8, more.get('waited_s', 0) / 8)
             for number in range(8)]
    now = report('host', *BEFORE.cases, *grown)
    assert len(list(budget.faults(now, own))) == count
    assert budget.grew_most(now, own)[0] == (
        more.get('cpu_s', 0), 'host/test_c.py')


@pytest.mark.parametrize(('level', 'cpu_s', 'fails'), [
    ('unit', 2.6, False), ('unit', 2.8, True), ('host', 7.4, False),
    ('host', 7.6, True)])
def test_a_new_test_that_costs_too_much(level, cpu_s, fails):
    empty = {'cpu_s': 0, 'waited_s': 0, 'tests': {}, 'files': {}}
    now = report(level, case(f'nova_vqos/tests/{level}/test_a.py::one',
                             cpu_s))
    assert bool(list(budget.faults(now, empty))) is fails


def test_a_known_test_scatters():
    # Two runs of one commit: 4.5 and 11.6 CPU seconds.
    before = report('host', case('nova_vqos/tests/host/test_a.py::one', 4.5))
    now = report('host', case('nova_vqos/tests/host/test_a.py::one', 11.6))
    assert not list(budget.faults(now, budget.of_report(before)))
