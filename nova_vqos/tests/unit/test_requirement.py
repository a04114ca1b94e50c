# SPDX-License-Identifier: Apache-2.0
"""Which tests may be skipped."""

import pathlib

import pytest

from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement

TESTS = pathlib.Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def expected(tmp_path, monkeypatch):
    path = tmp_path / 'expected'
    path.write_text('# Why.\n\nunit/test_a.py::test_b?*  no b  is here\n'
                    'host/test_c.py no c\ninstalled:unit/test_d.py::* no d\n')
    monkeypatch.setattr(requirement, '_EXPECTED', path)
    monkeypatch.setattr(project, 'IS_CHECKOUT', True)
    monkeypatch.setenv('CI', 'true')


def outcome(name, outcome='skipped', when='setup', **more):
    report = pytest.TestReport(
        f'/above/nova_vqos/tests/{name}', ('a', 1, 'a'), {}, outcome,
        ('a.py', 7, 'Skipped: no x'), when, **more)
    return requirement.judge(report).outcome


@pytest.mark.parametrize('name', ['unit/test_a.py::test_b[1]',
                                  'host/test_c.py'])
def test_expected(name):
    assert outcome(name) == 'skipped'


@pytest.mark.parametrize('name', [
    'unit/test_a.py::test_b', 'host/test_c.py::test_c', 'unit/test_e.py::f',
    'functional/unit/test_a.py::test_b[1]', 'unit/test_d.py::test_d'])
def test_unexpected(name, monkeypatch):
    assert outcome(name) == 'failed'
    assert outcome(name, wasxfail='a reason') == 'skipped'
    assert outcome(name, outcome='passed') == 'passed'
    monkeypatch.setenv('CI', '')
    assert outcome(name) == 'skipped'


def test_expected_of_a_package(monkeypatch):
    monkeypatch.setattr(project, 'IS_CHECKOUT', False)
    assert outcome('unit/test_d.py::test_d') == 'skipped'
    assert outcome('host/test_c.py') == 'skipped'


def test_what_lacks_is_skipped():
    requirement.need('')
    with pytest.raises(pytest.skip.Exception):
        requirement.need('it')


def test_each_line_names_tests(monkeypatch):
    monkeypatch.undo()
    for pattern, reason in requirement.expected().items():
        file = pattern.removeprefix('installed:').partition('::')[0]
        assert any(TESTS.glob(file)), pattern
        assert reason
