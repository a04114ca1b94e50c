# SPDX-License-Identifier: Apache-2.0
"""What is on the page that a report is."""

import re

import pytest

from nova_vqos.calibration.cpu import combine
from nova_vqos.calibration.report import table
from nova_vqos.profile import cpu
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.fixtures import report_pages
from nova_vqos.tests.fixtures.report_pages import BUSY
from nova_vqos.tests.fixtures.report_pages import EVIL
from nova_vqos.tests.fixtures.report_pages import FINGERPRINT
from nova_vqos.tests.fixtures.report_pages import Page
from nova_vqos.tests.fixtures.report_pages import charts
from nova_vqos.tests.fixtures.report_pages import draw
from nova_vqos.tests.fixtures.report_pages import is_there
from nova_vqos.tests.fixtures.report_pages import make
from nova_vqos.tests.fixtures.report_pages import marks
from nova_vqos.tests.fixtures.report_pages import page_of
from nova_vqos.tests.fixtures.report_pages import report


class TestContent:

    def test_heading(self):
        held = make(measured_in='guest')
        page = draw(held)
        assert page.texts['h1'] == ['CPU calibration of compute1']
        facts = dict(zip(page.texts['dt'], page.texts['dd'], strict=True))
        assert facts == {
            'Profile': held.id, 'Made': make_profiles.NOW,
            'Reference': f'gold, measured {make_profiles.NOW}',
            'Measured in': 'the guest', 'pCPUs': '0-1',
            'Capacity': f'{table.capacity_cu(held)} CU'}
        assert '100 CU (CPU units) are the speed of one pCPU' in \
            page.texts['p'][0]

    def test_numbers_are_those_of_show(self):
        held = make(factors=(1.25, 0.75), others=['chase'])
        page = draw(held)
        shown = list(table.cpu_rows(held))
        assert len(shown) == 2 * 2 * 5
        for row in shown:
            cells = dict(zip(table.CPU_COLUMNS, row, strict=True))
            for column, form in (('coefficient', '.5f'), ('low', '.5f'),
                                 ('high', '.5f'), ('cu_per_pcpu', '.2f')):
                cells[column] = format(cells[column], form)
            assert is_there(map(str, cells.values()), page)

    def test_benchmarks_and_their_builds(self):
        page = draw(make(others=['chase']))
        assert is_there([
            'chase', 'kind of chase', f'chase 1.0 {3:064x}',
            'events per CPU second', '0', '87.5', '±1.23%'], page)

    def test_fingerprint_and_provenance(self):
        page = draw(make(provenance={'busy_before': '0.042'}))
        for cells in (*FINGERPRINT.items(), ('busy_before', '0.042')):
            assert is_there(cells, page)

    def test_no_provenance(self):
        assert 'The profile says nothing about it.' in draw(make()).texts['p']

    def test_every_benchmark_is_in_each_chart(self):
        page = draw(make(others=['chase']))
        for title in ('Coefficients', 'Samples', 'Error'):
            chart = page.chart(title)
            for name in ('integer', 'float', 'stream', 'chase'):
                assert name in chart.texts['text']
                assert name in chart.texts['desc'][0]

    def test_a_screen_reader_gets_the_coefficients(self):
        (shown,) = draw(make()).chart('Coefficients').texts['desc']
        assert ('float: alone 1.513 (1.497 to 1.528), '
                'busy 1.375 (1.361 to 1.389)') in shown
        assert 'combined: alone 1.508 (1.5 to 1.517), busy' in shown

    @pytest.mark.parametrize('title', ['Coefficients', 'Samples', 'Error'])
    def test_what_has_no_weight_is_set_apart(self, title):
        apart = 'weight 0: reported only, no part of the combined coefficient'
        with_others = draw(make(others=['chase'])).chart(title)
        assert apart in with_others.texts['text']
        assert apart not in draw(make()).chart(title).texts['text']

    def test_errors_are_those_of_combine(self):
        held = make(others=['chase'])
        (measured,) = (one.busy for one in held.cpu_classes)
        found = [combine.error(score, measured, held.reference)
                 for score in measured.scores]
        shown = [f'{error:+.1%}'.replace('%', ' %').replace('-', '−')
                for error in found]
        assert {text[0] for text in shown} == {'+', '−'}
        chart = draw(held).chart('Error')
        assert set(shown) <= set(chart.texts['text'])
        # Without colour, too: what does not count is hatched.
        assert [tag for tag, _ in chart.elements].count('pattern') == 1

    def test_the_band_is_of_most_other_work(self):
        held = make(names=list('abcd'), others=['chase'])
        bound = combine.error_bound(held.cpu_classes[0].busy, held.reference)
        page = draw(held)
        shown, low = (f'{share:+.1%}'.replace('%', ' %').replace('-', '−')
                      for share in (bound, 1 / (1 + bound) - 1))
        assert page.chart('Error').texts['desc'][0].endswith(
            f'90 % of other work: {low} to {shown}')
        assert f'{1 + bound:.2f} times that' in ' '.join(
            page.texts['figcaption'])
        assert ['0-1', 'busy', 'combined'] in [row[:3] for row in page.rows
                                               if row[-1] == f'±{bound:.1%}']
        # Three kinds are too few to show how much kinds differ.
        few = draw(make())
        assert 'of other work' not in few.chart('Error').texts['desc'][0]
        assert 'are expected within the band' not in ' '.join(
            few.texts['figcaption'])

    def test_bars_are_as_long_as_the_errors(self):
        held = make(names=['a', 'b'])
        busy = held.cpu_classes[0].busy
        low, high = (combine.error(score, busy, held.reference)
                     for score in busy.scores)
        bars = [
            [float(x) for x in re.findall(r'[ML] ([\d.]+) ', shape['d'])]
            for tag, shape in draw(held).chart('Error').elements
            if tag == 'path' and f'fill: {BUSY}' in shape['style']]
        assert len(bars) == 2
        zero = bars[0][0]
        left, right = (max(bar, key=lambda x: abs(x - zero)) - zero
                       for bar in bars)
        assert left < 0 < right
        assert right / left == pytest.approx(high / low)

    def test_samples_and_outliers(self):
        chart = draw(make(names=['a', 'b'])).chart('Samples')
        assert 'a, busy: 4 samples' not in chart.texts['desc'][0]
        assert ('a, busy: 5 samples, −2.0 % to +2.0 %, and 1 outliers'
                in chart.texts['desc'][0])
        # At the edge, of two benchmarks in two states; and in the legend.
        assert marks(chart, report_pages.OUTLIER) == 4 + 1

    def test_two_speeds(self):
        """Both are drawn, and none of them at the edge."""
        two = tuple([1.0, 1.01, 0.99, 1.0, 0.72] * 8)
        chart = draw(make(names=['a', 'b'], samples=two)).chart('Samples')
        said = '20% of the rounds ran 1.39 times slower than the others'
        assert f'and 8 outliers; two speeds, {said}' in \
            chart.texts['desc'][0]
        assert chart.texts['text'].count('20%: 1.39 times slower') == 4
        places = {float(shape['x']) for tag, shape in chart.elements
                  if tag == 'use' and report_pages.OUTLIER in shape['style']}
        edges = {float(shape['x']) for tag, shape in draw(make(
            names=['a', 'b'], samples=two[:5])).chart('Samples').elements
            if tag == 'use' and report_pages.OUTLIER in shape['style']}
        # Of four lanes, and in the legend.
        assert len(places) == len(edges) == 2
        assert min(places) > min(edges)
        assert 'such a calibration is refused' in ' '.join(
            draw(make(names=['a', 'b'], samples=two)).texts['figcaption'])

    def test_samples_that_are_alike(self):
        page = draw(make(samples=(1.0,) * 5))
        assert '+0.0 % to +0.0 %' in page.chart('Samples').texts['desc'][0]

    def test_a_single_sample(self):
        assert draw(make(samples=(1.0,))).chart('Samples')

    @pytest.mark.parametrize('count', [charts.MAX_POINTS, 10_000])
    def test_thousands_of_samples(self, count):
        samples = tuple(1 + (i % 97) / 1000 for i in range(count))
        page = draw(make(names=['a'], samples=samples))
        shown = ' '.join(page.texts['figcaption'])
        is_too_many = count > charts.MAX_POINTS
        assert (f'Of more than {charts.MAX_POINTS} samples' in shown) is \
            is_too_many
        assert f'of {2 * count} samples' in shown
        assert marks(page.chart('Samples'), f'stroke: {BUSY}') == \
            charts.MAX_POINTS + 1

    def test_one_benchmark_has_no_error(self):
        page = draw(make(names=['integer']))
        assert any('One benchmark has no error' in text
                   for text in page.texts['p'])
        assert len(page.texts['svg']) == 2

    def test_only_one_that_counts(self):
        page = draw(make(names=['integer'], others=['chase']))
        assert 'The only benchmark that counts has none.' in \
            ' '.join(page.texts['figcaption'])
        assert 'integer' not in page.chart('Error').texts['desc'][0]

    def test_the_reference_has_no_error(self):
        held = make()
        measured = combine.measurement(
            [make_profiles.make_score(1.0, benchmark=b.name)
             for b in held.reference.benchmarks], held.reference)
        page = draw(held._replace(is_reference=True, cpu_classes=(
            cpu.CpuClass(frozenset({0}), measured, measured),)))
        assert any('these pCPUs are the reference' in text
                   for text in page.texts['p'])
        assert any('both are one measurement' in text
                   for text in page.texts['figcaption'])

    def test_several_classes(self):
        page = draw(make(factors=(1.25, 0.5)))
        assert len(page.texts['svg']) == 1 + 2 * 3
        chart = page.chart('Coefficients of the kinds')
        assert {'pCPUs 0-1', 'pCPUs 2-3'} <= set(chart.texts['text'])
        for pcpus in ('0-1', '2-3'):
            assert page.chart(f'Error by benchmark, pCPUs {pcpus}')
        assert 'pCPUs 2-3: 54.85 CU each' in page.texts['h3']

    def test_several_hosts(self):
        page = draw(make('a'), make('b', factors=(1.0, 2.0)))
        assert page.texts['h1'] == ['CPU calibration of 2 hosts']
        chart = page.chart('Coefficients of the hosts')
        assert {'a', 'b 0-1', 'b 2-3'} <= set(chart.texts['text'])
        assert page.texts['h2'] == ['The hosts', 'a', 'b']
        assert set(page.attributes('href')) >= {'#host1', '#host2'}
        assert len(page.texts['svg']) == 1 + 3 + 1 + 2 * 3

    def test_hosts_of_one_name(self):
        found = [make(), make(factors=(1.5,))]
        chart = draw(*found).chart('Coefficients of the hosts')
        for held in found:
            assert f'compute1 {held.id[:6]}' in chart.texts['text']

    def test_hosts_that_were_not_measured_alike(self):
        page = draw(make('a'), make('b', measured_in='guest'))
        assert any('a was measured in the host, b in the guest' in text
                   for text in page.texts['p'])
        with pytest.raises(LookupError):
            page.chart('Coefficients of the hosts')

    def test_progress(self):
        for found, total in (
                ([make(factors=(1, 2))], 7), ([make('a'), make('b')], 7),
                ([make('a', names=['integer'], measured_in='guest'),
                  make('b')], 5)):
            shown = []
            report.render(found, lambda *now, shown=shown: shown.append(now))
            assert shown == [(drawn, total) for drawn in range(1, total + 1)]


def test_what_io_costs():
    made = make_profiles.make_profile(
        'compute1', make_profiles.make_class({0}, 1.0),
        fingerprint=FINGERPRINT, io=io.document(
            make_profiles.make_io(unmeasured={'nat': EVIL})))
    page = Page(page_of(made))
    assert ['nat', 'rx', '64', '2508', '2503', '2513'] in [
        row[:6] for row in page.rows]
    assert ['nat', EVIL] in page.rows
    assert 'What I/O costs the kernel' not in page_of(made._replace(io=None))
