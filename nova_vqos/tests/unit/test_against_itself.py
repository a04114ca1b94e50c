# SPDX-License-Identifier: Apache-2.0
"""What the benches say of their own noise."""

import runpy

import pytest

from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout


@pytest.fixture(scope='module')
def bench():
    return runpy.run_path(str(project.TOP / 'tools/bench/against_itself.py'))


def test_each_round_is_compared_with_the_one_before(bench):
    found = bench['noise']([10.0, 8.0, 12.0, 12.0])
    assert found == (0.8, 1.5)
    assert str(found) == f'{found}' == '(0.80, 1.50)'
    assert bench['line']('stock', [10.0, 8.0, 12.0]) == (
        'stock against itself, one round later: (0.80, 1.50)')


def test_a_single_round_shows_no_noise(bench):
    assert bench['noise']([10.0]) is None
    assert bench['line']('stock', [10.0]) == (
        'stock against itself: not known, by a single round')
