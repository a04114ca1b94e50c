# SPDX-License-Identifier: Apache-2.0
"""What the page shows of slices."""

import re

import pytest

from nova_vqos import files
from nova_vqos.calibration.report import table
from nova_vqos.profile import quantum
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.fixtures import report_pages

FLAT = {None: 100.0, 1000: 100.0, 90_000: 100.0}


def page_of(shown):
    return report_pages.draw(report_pages.make()._replace(
        quantum=quantum.document(shown)))


@pytest.fixture(scope='module')
def shown():
    return make_profiles.make_quantum()


@pytest.fixture(scope='module')
def page(shown):
    return page_of(shown)


def test_each_kind_has_a_curve(page):
    chart = page.chart('Cost by slice, compute1')
    for text in ('io', 'cache', 'neutral', 'stock', '1', '30', '90',
                 'slice in ms', '2 vCPUs on a pCPU', '4 vCPUs on a pCPU'):
        assert text in chart.texts['text']
    # Of io and cache; there is nothing to set for neutral.
    assert chart.texts['text'].count('best') == 2


def test_a_screen_reader_gets_the_values(page):
    (desc,) = page.chart('Cost by slice').texts['desc']
    assert 'io, 4 vCPUs: default 1, 1 ms 0.25, 30 ms 7.5, 90 ms 22.5' in desc
    assert 'neutral, 2 vCPUs: default 1, 1 ms 1, 30 ms 1, 90 ms 1' in desc


def test_numbers_are_those_of_show(page, shown):
    for row in table.quantum_rows(shown):
        assert report_pages.is_there(map(str, row), page)


def test_what_is_to_be_set(page):
    assert page.texts['code'] == ['quantum_slices = cache:90000']
    assert report_pages.is_there(
        ['io', 'better, 1 ms costs 0.25 of the default', '3.0%'], page)
    none = page_of(make_profiles.make_quantum(
        curves=(make_profiles.make_curve('neutral', FLAT),)))
    assert 'code' not in none.texts
    assert any('Nothing to set' in text for text in none.texts['p'])


def test_it_is_as_safe_as_the_rest(page):
    assert {tag for tag, _ in page.elements} <= report_pages.TAGS
    evil = page_of(make_profiles.make_quantum(
        created_at=report_pages.EVIL, unmeasured={'io': report_pages.EVIL},
        provenance={report_pages.EVIL: 'x'}))
    assert report_pages.EVIL not in evil.source
    assert report_pages.is_there(['io', report_pages.EVIL], evil)


def test_missing_measurements(page):
    assert report_pages.is_there(['polluter', 'not wanted'], page)
    assert report_pages.is_there(['kernel', '6.18'], page)


def test_a_profile_without_it(page):
    without = report_pages.draw(report_pages.make())
    assert 'Which slice is best' not in without.texts['h3']
    with pytest.raises(LookupError):
        without.chart('Cost by slice')
    assert 'Which slice is best' in page.texts['h3']


def places(curve):
    """Where marks are, from the left and from above; last the legend's."""
    (chart,) = re.findall('<svg.*?</svg>', page_of(
        make_profiles.make_quantum(curves=(curve,))).source, re.DOTALL)[-1:]
    return [tuple(map(float, place)) for place in re.findall(
        r'<use xlink:href="#[^"]+" x="([\d.]+)" y="([\d.]+)" style="fill: '
        f'{report_pages.BUSY}', chart)]


@pytest.mark.parametrize('slow_ns', [150.0, 5000.0])
def test_marks_are_where_the_numbers_are(slow_ns):
    """Of four vCPUs, on either kind of axis."""
    curve = make_profiles.make_curve('cache', FLAT | {90_000: slow_ns})
    cost = slow_ns / 100
    first, second, third = places(curve)[-4:-1]
    assert first[0] < second[0] < third[0]
    assert first[1] == pytest.approx(second[1])
    assert third[1] < first[1]
    # Twice as far where it costs the square, or as much again.
    other = make_profiles.make_curve('cache', FLAT | {
        90_000: slow_ns, 1000: 100 * (cost ** 0.5 if slow_ns > 400
                                      else (1 + cost) / 2)})
    first, second, third = places(other)[-4:-1]
    assert second[1] - third[1] == pytest.approx(first[1] - second[1],
                                                 rel=0.01)


def test_one_kind_at_one_number_of_vcpus():
    points = (make_profiles.make_point(None, 100.0),
              make_profiles.make_point(1000, 99.0, values_ns=(99.0,)))
    chart = page_of(make_profiles.make_quantum(curves=(
        quantum.Curve('spin', None, 'no difference', 0.03, points),))
        ).chart('Cost by slice')
    assert '2 vCPUs on a pCPU' in chart.texts['text']
    assert '4 vCPUs on a pCPU' not in chart.texts['text']


def test_nonsense_in_it_is_refused():
    held = report_pages.make()._replace(quantum={'curves': 1})
    with pytest.raises(files.FileInvalid):
        report_pages.page_of(held)
