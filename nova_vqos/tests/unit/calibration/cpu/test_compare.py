# SPDX-License-Identifier: Apache-2.0
"""Which hosts are equal, from their profiles."""

import itertools
import json
import random

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import compare
from nova_vqos.cmd.calibrate import app
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.functional import host_files

coefficients = st.floats(min_value=0.5, max_value=2)


def make(coefficient, *, width=0.01, reference_half_width=0.0, **changes):
    """The profile of a host with two pCPUs, whose interval is so wide."""
    return host_files.make_profile(
        'compute1', {'0-1': coefficient}, relative_width=width, **{
            'reference': make_profiles.make_reference(
                'reference', make_profiles.make_benchmark(
                    half_width=reference_half_width)), **changes})


def groups(found):
    return [[member.path for member in members] for _, members in
            itertools.groupby(found, key=lambda member: member.group)]


@pytest.mark.parametrize(('other', 'equal'), [
    # Intervals of 1 % have half widths of 0.5 %: together 0.707 %.
    (1.2, True), (1.2 * 1.007, True), (1.2 * 1.0075, False),
    (1.2 / 1.007, True), (1.2 / 1.0075, False), (2.4, False)])
def test_equal_within_both_intervals(other, equal):
    assert compare.are_equal(make(1.2), make(other)) is equal


def test_the_references_uncertainty_is_no_difference():
    """It is in both alike: 0.8 of the 1 % of each are the reference's."""
    known = make(1.2, width=0.02, reference_half_width=0.008)
    # What is left is 0.6 % of each, 0.849 % together.
    for factor, equal in ((1.008, True), (1.009, False)):
        other = make(1.2 * factor, width=0.02, reference_half_width=0.008)
        assert compare.are_equal(known, other) is equal


def test_alone_counts_too():
    (one,) = make(1.2).cpu_classes
    turbo = make(1.2)._replace(cpu_classes=(one._replace(
        alone=make(1.5).cpu_classes[0].busy),))
    assert not compare.are_equal(make(1.2), turbo)


def test_hosts_of_other_classes_are_others():
    (one,) = make(1.2).cpu_classes
    hybrid = make(1.2)._replace(cpu_classes=(
        one, one._replace(pcpus=frozenset({2, 3}))))
    assert not compare.are_equal(make(1.2), hybrid)


def test_groups():
    found = compare.compare({
        'b': make(1.203), 'slow': make(0.7), 'a': make(1.2)}, tolerance=1e-9)
    assert groups(found) == [['slow'], ['a', 'b']]
    assert [member.shared for member in found] == [False, True, False]
    assert found[0].difference == 0
    assert found[1].difference == pytest.approx(1.2 / 1.2015 - 1)


def test_a_host_between_two_groups():
    """Equal to both, which differ: a chain is no group."""
    found = compare.compare({
        'low': make(1.2), 'between': make(1.211), 'high': make(1.222)},
        tolerance=1e-9)
    assert groups(found) == [['low', 'between'], ['high']]


@pytest.mark.parametrize(('other', 'group'), [
    (1.2 * 1.018, 1), (1.2 * 1.021, 2)])
def test_what_is_tolerated(other, group):
    """1 %, beyond what intervals of 1 % leave open for two comparisons."""
    found = compare.compare({'a': make(1.2), 'b': make(other)})
    assert found[1].group == group


def test_equal_hosts_stay_together_however_many():
    """In 95 % of all comparisons, without any tolerance."""
    scatter = random.Random(1)
    together = 0
    for _ in range(200):
        members = compare.compare({
            # An interval of 95 % is 3.92 standard deviations wide.
            str(host): make(1 + scatter.gauss(0, 0.02 / 3.92), width=0.02)
            for host in range(10)}, tolerance=1e-9)
        together += members[-1].group == 1
    assert together >= 185


def test_the_most_certain_profile_is_shared():
    found = compare.compare({
        'a': make(1.2, width=0.02), 'b': make(1.201, width=0.01)})
    assert [member.shared for member in found] == [False, True]


def test_reasons_against_sharing():
    other = dict(host_files.FINGERPRINT, microcode='0x2')
    found = compare.compare({
        'a': make(1.2), 'b': make(1.2),
        'c': make(1.2, width=0.001, fingerprint=other)})
    by_path = {member.path: member for member in found}
    assert by_path['a'].shared
    assert by_path['b'].obstacles == ()
    assert by_path['c'].obstacles == ('microcode',)


def test_no_pcpus_can_share():
    found = compare.compare({
        name: make(1.2, fingerprint=dict(host_files.FINGERPRINT, kernel=name))
        for name in ('a', 'b')})
    assert [(member.group, member.shared, member.obstacles)
            for member in found] == [(1, False, ())] * 2


def test_a_profile_that_is_equal_to_anything():
    with pytest.raises(CalibrationError,
                       match='interval of b is 6.0% wide, more than 5.0%'):
        compare.compare({'a': make(1.2), 'b': make(1.2, width=0.06)})


@pytest.mark.parametrize(('change', 'message'), [
    ({'measured_in': 'guest'},
     'a was measured in the host, b in the guest'),
    ({'reference': make_profiles.make_reference('gold')},
     'a was measured against reference of 2026-11-21.*, b against gold'),
    ({'reference': make_profiles.make_reference(
        'reference', make_profiles.make_benchmark(score=1.0))}, 'against')])
def test_what_was_not_measured_alike(change, message):
    with pytest.raises(CalibrationError, match=message):
        compare.compare({'a': make(1.2), 'b': make(1.2, **change)})


def test_one_alone():
    with pytest.raises(CalibrationError, match='two or more'):
        compare.compare({'a': make(1.2)})


@settings(deadline=None)
@given(st.lists(coefficients, min_size=2, max_size=12),
       st.floats(min_value=0.001, max_value=0.05))
def test_every_host_is_in_one_group_of_equal_ones(speeds, width):
    found = {str(i): make(speed, width=width)
             for i, speed in enumerate(speeds)}
    members = compare.compare(found, tolerance=1e-9, max_interval=0.06)
    comparisons = len(found) * (len(found) - 1)
    assert sorted(member.path for member in members) == sorted(found)
    for group in groups(members):
        for one, other in itertools.combinations(group, 2):
            assert compare.are_equal(found[one], found[other], tolerance=1e-9,
                                     comparisons=comparisons)
        assert sum(member.shared for member in members
                   if member.path in group) == (len(group) > 1)


def test_the_command(tmp_path, capsys):
    paths = []
    for name, speed in (('a', 1.2), ('b', 1.201), ('c', 0.7)):
        paths.append(str(tmp_path / f'{name}.yaml'))
        document.store(make(speed), paths[-1])
    assert app.main(['compare', '-f', 'json', *paths]) == 0
    printed = capsys.readouterr()
    assert [(row['group'], row['profile'], row['share'])
            for row in json.loads(printed.out)] == [
        (1, paths[2], False), (2, paths[0], True), (2, paths[1], False)]
    assert (f'are compute1, compute1: they may share {paths[0]}'
            in ' '.join(printed.err.split()))


def test_the_command_with_what_is_no_profile(tmp_path, capsys):
    (tmp_path / 'a').write_text('{}')
    assert app.main(['compare', str(tmp_path / 'a'), 'none']) == 1
    assert f'{tmp_path}/a' in capsys.readouterr().err
