# SPDX-License-Identifier: Apache-2.0
"""The tests that the guides name are there.

They are named by the role ``test``: level, module, and a part of it, such as
``functional test_boot.BootTestCase.test_caps``, or the level alone.
"""

import ast
import re

import pytest

from nova_vqos.tests.fixtures import doc_examples
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement

# Otherwise there is nothing to make tests of.
requirement.need(project.LACKING)

PAGES = doc_examples.pages()
LEVELS = {level: f'nova_vqos/tests/{level}'
          for level in ('unit', 'functional', 'package', 'host', 'cloud')}
LEVELS['tempest'] = 'tempest_plugin/nova_vqos_tempest_plugin/tests'
# Modules that another change brings along.
TO_COME: set[str] = set()

_NAMED = re.compile(r':test:`([^`]+)`')


def named(page):
    return [' '.join(name.split())
            for name in _NAMED.findall((project.TOP / page).read_text())]


def parts(path):
    """The names of a module's tests, and of the classes that have them."""
    return set(_parts(ast.parse(path.read_text()), ''))


def _parts(node, before):
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield before + child.name
            yield from _parts(child, f'{before}{child.name}.')
        elif (isinstance(child, ast.FunctionDef)
                and child.name.startswith('test_')):
            yield before + child.name


def is_there(name):
    """
    :raises KeyError: when there is no such level
    """
    level, _, test = name.partition(' ')
    folder = project.TOP / LEVELS[level]
    module, _, part = test.partition('.')
    return not test or any(
        not part or part in parts(path)
        for path in folder.rglob(f'{module}.py'))


@pytest.mark.parametrize('page', [page for page in PAGES if named(page)])
def test_are_there(page):
    assert [name for name in named(page)
            if name not in TO_COME and not is_there(name)] == []


def rows(page):
    """The rows of a page's tables, without those of their heads."""
    for table in re.findall(r'^\.\. list-table::\n((?:   .*\n|\n)+)',
                            (project.TOP / page).read_text(), re.MULTILINE):
        yield from re.split(r'^   \* - ', table, flags=re.MULTILINE)[2:]


def test_each_row_of_the_threat_model_names_one():
    found = list(rows('doc/source/admin/security.rst'))
    assert len(found) > 20
    # Where nothing stops them, there is nothing to test.
    assert [row for row in found
            if not _NAMED.search(row) and 'Nothing' not in row] == []


@pytest.mark.parametrize(('name', 'expected'), [
    ('unit', True),
    ('unit test_named_tests', True),
    ('unit test_named_tests.test_what_is_found', True),
    ('package test_wheel', True),
    ('functional test_boot.BootTestCase', True),
    ('functional test_boot.BootTestCase.test_caps', True),
    ('tempest test_allocations.ResizeTest', True),
    ('unit test_nonesuch', False),
    ('functional test_named_tests', False),
    ('functional test_boot.BootTestCase.setUp', False),
    ('functional test_boot.test_caps', False),
    ('unit test_named_tests.PAGES', False)])
def test_what_is_found(name, expected):
    assert is_there(name) is expected


def test_a_level_that_there_is_not():
    with pytest.raises(KeyError):
        is_there('lab test_ways')
