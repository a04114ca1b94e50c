# SPDX-License-Identifier: Apache-2.0
"""Faults made by hand can be made: tools/faults.py."""

import tomllib

import pytest

from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement

# Otherwise there is nothing to make tests of.
requirement.need(project.LACKING)

FAULTS = tomllib.loads(
    (project.TOP / 'tools/faults.toml').read_text(encoding='utf-8'))['fault']


@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: fault['what'])
def test_there_is_one_place_for_it(fault):
    text = (project.TOP / fault['path']).read_text(encoding='utf-8')
    assert text.count(fault['before']) == 1
    compile(text.replace(fault['before'], fault['after']), fault['path'],
            'exec')


@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: fault['what'])
def test_its_tests_are_there(fault):
    for test in fault['tests']:
        file, *parts = test.split('::')
        text = (project.TOP / file).read_text(encoding='utf-8')
        for part in parts:
            name = part.partition('[')[0]
            assert f'def {name}(' in text or f'class {name}(' in text
