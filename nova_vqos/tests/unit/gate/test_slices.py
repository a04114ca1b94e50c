# SPDX-License-Identifier: Apache-2.0
"""Which slices a gate runs, and that each test has one."""

import dataclasses
import re

import hypothesis
from hypothesis import strategies
import pytest

from nova_vqos.tests.fixtures import project
from nova_vqos.tests.gate import slices

SLICES = {name: slices.Slice(name, 'host', minutes, (f'{name}/*',))
          for name, minutes in (('a', 3), ('b', 5), ('c', 2), ('d', 4))}
AGES = {'a': 3, 'b': 9, 'c': 1, 'd': 9}


def choose(*paths, ages=AGES):
    """:param paths: of what has changed since any of them was green"""
    return slices.choose(SLICES, dict.fromkeys(SLICES, paths), ages)


def test_the_oldest_runs_where_none_is_touched():
    assert choose() == (['b'], [])


def test_what_is_touched_runs_besides():
    assert choose('c/x.py') == (['b', 'c'], [])


def test_the_oldest_of_many_that_are_touched_run():
    assert choose('a/x', 'b/y', 'c/z', 'd/x') == (['b', 'd', 'a'], ['c'])


def test_what_there_is_no_time_for_is_left_out():
    long = SLICES | {'d': dataclasses.replace(
        SLICES['d'], minutes=slices.MOST_MINUTES - 4)}
    changed = dict.fromkeys(long, ['a/x', 'd/x'])
    assert slices.choose(long, changed, AGES) == (['b', 'a'], ['d'])


def test_the_oldest_runs_however_long_it_takes():
    long = SLICES | {'b': dataclasses.replace(
        SLICES['b'], minutes=slices.MOST_MINUTES + 1)}
    assert slices.choose(long, dict.fromkeys(long, ['c/x']), AGES) == (
        ['b'], ['c'])


def test_what_was_green_since_a_change_is_not_touched_by_it():
    changed = {'a': ['a/x', 'c/y'], 'b': [], 'c': [], 'd': ['c/y']}
    assert slices.choose(SLICES, changed, AGES) == (['b', 'a'], [])


@pytest.mark.parametrize('name, is_about', [
    ('test_caps.py', True), ('test_ways.py', False),
    # It names the first one, and not the second.
    ('guests.py', True), ('newer_machine.py', False), ('conftest.py', True)])
def test_a_slice_is_about_its_own_tests(name, is_about):
    one = slices.Slice('a', 'host', 1, (), ('test_caps.py',))
    assert one.is_about([f'nova_vqos/tests/host/{name}']) is is_about


@hypothesis.given(strategies.lists(strategies.sets(
    strategies.sampled_from(sorted(SLICES))), min_size=4))
def test_all_have_run_after_as_many_gates_as_there_are_slices(changes):
    """Whatever the changes are about, when each gate is recorded."""
    ages = dict.fromkeys(SLICES, 0)
    ran = set()
    for touched in changes[:len(SLICES)]:
        chosen, _left = choose(*(f'{name}/x' for name in touched), ages=ages)
        assert 1 <= len(chosen) <= slices.MOST_TOUCHED + 1
        ran.update(chosen)
        ages = {name: 0 if name in chosen else age + 1
                for name, age in ages.items()}
    assert ran == set(SLICES)


@project.needs_checkout
def test_each_file_that_measures_is_in_one_slice():
    tests = project.TOP / 'nova_vqos/tests'
    for level in ('host', 'cloud'):
        marked = {path.name for path in (tests / level).glob('test_*.py')
                  if re.search(r'pytest\.mark\.(measured|rotation)',
                               path.read_text(encoding='utf-8'))}
        listed = [test for one in slices.load().values()
                  if one.level == level for test in one.tests]
        assert sorted(listed) == sorted(marked)
