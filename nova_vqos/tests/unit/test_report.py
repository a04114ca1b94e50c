# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The page to look at profiles."""

import functools
from html import parser
import importlib
import itertools
import logging
import os
import re
import sys
import types

import pytest

from nova_vqos import calibration
from nova_vqos import io_profile
from nova_vqos import profile as profiles
from nova_vqos.calibration import combine
from nova_vqos.calibration import table
from nova_vqos.cmd import calibrate
from nova_vqos.cmd import report as command
from nova_vqos.tests import make_profiles

# NOTE: here, before any test: when it is imported, matplotlib looks for fonts
# by a program, and no unit test may start one.
report = command.load_library()
charts = report.charts
matplotlib = charts.matplotlib

FINGERPRINT = {'cpu_model': 'a pCPU', 'kernel': '6.1'}
VOID = {'meta', 'wbr'}
# Of the page and of what matplotlib draws; no script, no image, no link.
TAGS = {
    'html', 'head', 'meta', 'title', 'style', 'body', 'section', 'div', 'h1',
    'h2', 'h3', 'h4', 'p', 'dl', 'dt', 'dd', 'figure', 'figcaption', 'table',
    'thead', 'tbody', 'tr', 'th', 'td', 'a', 'span', 'wbr', 'svg', 'desc', 'g',
    'defs', 'path', 'use', 'text', 'clippath', 'rect', 'pattern'}
EVIL = '<script>alert(1)</script>'


class Page(parser.HTMLParser):
    """What a browser makes of a page.

    :ivar elements: (tag, attributes), in order
    :ivar texts: of these, by tag, with those of the elements in them
    :ivar rows: cells of all tables
    """

    def __init__(self, text):
        super().__init__()
        self.source = text
        self.elements = []
        self.texts = {}
        self.rows = []
        self._open = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append('')
        if tag == 'tr':
            self.rows.append([])
        elif tag in ('td', 'th'):
            self.rows[-1].append('')

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        for tag in self._open:
            self.texts[tag][-1] += data
        if 'td' in self._open or 'th' in self._open:
            self.rows[-1][-1] += data

    def attributes(self, name):
        return [attributes[name] for _tag, attributes in self.elements
                if name in attributes]

    def chart(self, title):
        """Of this title: the source, parsed by itself."""
        for source in re.findall('<svg.*?</svg>', self.source, re.DOTALL):
            chart = Page(source)
            if chart.texts['title'][0].startswith(title):
                return chart
        raise LookupError(title)


def page_of(*found):
    return report.page(found, lambda drawn, total: None)


def draw(*found):
    """The page as a user would have it made, of files."""
    return _draw(*map(profiles.dumps, found))


@functools.cache
def _draw(*files):
    return Page(page_of(*map(profiles.loads, files)))


def measure(reference, factor, samples):
    """A measurement with a coefficient for each benchmark, one further off.

    :param samples: relative to the score
    """
    return combine.measurement([
        make_profiles.make_score(
            factor * (1 + i / 10), width=0.02, benchmark=known.name,
            samples=tuple(known.score * s for s in samples))._replace(
                outliers=1)
        for i, known in enumerate(reference.benchmarks)], reference)


def make(host='compute1', *, names=('integer', 'float', 'stream'), others=(),
         factors=(1.25,), samples=(0.98, 1.0, 1.01, 1.02, 0.7),
         **changes):
    """A profile by benchmarks with a weight, and others without."""
    reference = make_profiles.make_reference('gold', *(
        make_profiles.make_benchmark(
            name, weight=weight, half_width=0.0123, score=score,
            kind=f'kind of {name[:9]}', identity=f'{name[:9]} 1.0',
            program_sha256=f'{i:064x}')
        for i, (name, weight, score) in enumerate(
            [(name, 1.5, 4321.5) for name in names]
            + [(name, 0, 87.5) for name in others])))
    return make_profiles.make_profile(
        host, *(profiles.CpuClass(
            frozenset({2 * i, 2 * i + 1}),
            measure(reference, factor * 1.1, samples),
            measure(reference, factor, samples))
            for i, factor in enumerate(factors)),
        fingerprint=FINGERPRINT, reference=reference)._replace(**changes)


def is_there(cells, page):
    return list(cells) in page.rows


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
        shown = list(table.rows(held))
        assert len(shown) == 2 * 2 * 5
        for row in shown:
            cells = dict(zip(table.COLUMNS, row, strict=True))
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
        assert 'The profile says nothing of it.' in draw(make()).texts['p']

    def test_every_benchmark_is_in_each_chart(self):
        page = draw(make(others=['chase']))
        for title in ('Coefficients', 'Samples', 'Error'):
            chart = page.chart(title)
            for name in ('integer', 'float', 'stream', 'chase'):
                assert name in chart.texts['text']
                assert name in chart.texts['desc'][0]

    def test_coefficients_are_told_to_those_who_do_not_see_them(self):
        (told,) = draw(make()).chart('Coefficients').texts['desc']
        assert ('float: alone 1.513 (1.497 to 1.528), '
                'busy 1.375 (1.361 to 1.389)') in told
        assert 'combined: alone 1.508 (1.5 to 1.517), busy' in told

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
        told = [f'{error:+.1%}'.replace('%', ' %').replace('-', '−')
                for error in found]
        assert {text[0] for text in told} == {'+', '−'}
        chart = draw(held).chart('Error')
        assert set(told) <= set(chart.texts['text'])
        # Without colour, too: what does not count is hatched.
        assert [tag for tag, _ in chart.elements].count('pattern') == 1

    def test_bars_are_as_long_as_the_errors(self):
        held = make(names=['a', 'b'])
        (low, high) = charts.error_by_benchmark(held.cpu_classes[0].busy,
                                                held.reference).values()
        bars = [
            [float(x) for x in re.findall(r'[ML] ([\d.]+) ', shape['d'])]
            for tag, shape in draw(held).chart('Error').elements
            if tag == 'path' and 'fill: var(--busy)' in shape['style']]
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
        assert marks(chart, 'var(--outlier)') == 4 + 1

    def test_samples_that_are_alike(self):
        page = draw(make(samples=(1.0,) * 5))
        assert '+0.0 % to +0.0 %' in page.chart('Samples').texts['desc'][0]

    def test_a_single_sample(self):
        assert draw(make(samples=(1.0,))).chart('Samples')

    @pytest.mark.parametrize('count', [charts.MAX_POINTS, 10_000])
    def test_thousands_of_samples(self, count):
        samples = tuple(1 + (i % 97) / 1000 for i in range(count))
        page = draw(make(names=['a'], samples=samples))
        told = ' '.join(page.texts['figcaption'])
        is_too_many = count > charts.MAX_POINTS
        assert (f'Of more than {charts.MAX_POINTS} samples' in told) is \
            is_too_many
        assert f'of {2 * count} samples' in told
        assert marks(page.chart('Samples'), 'stroke: var(--busy)') == \
            charts.MAX_POINTS + 1

    def test_one_benchmark_has_no_error(self):
        page = draw(make(names=['integer']))
        assert any('One benchmark cannot tell' in text
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
            profiles.CpuClass(frozenset({0}), measured, measured),)))
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
        for found in ([make(factors=(1, 2))], [make('a'), make('b')],
                      [make('a', names=['integer'], measured_in='guest'),
                       make('b')]):
            told = []
            report.page(found, lambda *now, told=told: told.append(now))
            drawn, totals = zip(*told, strict=True)
            assert list(drawn) == sorted(drawn)
            assert drawn[-1] == 7
            assert set(totals) == {7}


def marks(chart, style):
    return sum(tag == 'use' and style in attributes['style']
               for tag, attributes in chart.elements)


class TestSafety:

    @pytest.fixture
    def page(self):
        return draw(
            make(EVIL, names=[EVIL, '$\\frac{1}{0}$', '"><img src=x>'],
                 others=["' onload='alert(1)"], factors=(1.0, 2.0),
                 fingerprint={EVIL: EVIL}, provenance={
                     '</style>' + EVIL: '</table></svg>' + EVIL}),
            make('</title>' + EVIL))

    def test_all_is_text(self, page):
        assert {tag for tag, _ in page.elements} <= TAGS
        assert not any(name.startswith('on') for _, attributes
                       in page.elements for name in attributes)
        assert EVIL in page.texts['h2']
        assert is_there(('</style>' + EVIL, '</table></svg>' + EVIL), page)

    def test_no_formulas(self, page):
        chart = page.chart('Coefficients by')
        assert '$\\frac{1}{0}$' in chart.texts['text']

    def test_it_needs_nothing_else(self, page):
        assert 'http' not in page.source.replace('http-equiv', '')
        assert '@import' not in page.source
        assert not page.attributes('src')
        referred = page.attributes('href') + [
            f'#{name}' for name in re.findall(r'url\(#([^)]+)\)',
                                              page.source)]
        assert 'url(' not in re.sub(r'url\(#', '', page.source)
        ids = [f'#{name}' for name in page.attributes('id')]
        assert len(set(ids)) == len(ids)
        assert set(referred) <= set(ids)
        labels = ' '.join(page.attributes('aria-labelledby')).split()
        assert {f'#{label}' for label in labels} <= set(ids)
        assert len(labels) == 2 * len(page.texts['svg'])

    def test_scripts_are_forbidden(self, page):
        (policy,) = [attributes['content'] for tag, attributes in page.elements
                     if attributes.get('http-equiv')
                     == 'Content-Security-Policy']
        assert policy.startswith("default-src 'none';")
        assert 'script' not in policy

    def test_colours_are_the_pages(self, page):
        drawn = re.sub('<style>.*?</style>', '', page.source,
                       flags=re.DOTALL)
        assert not re.search('#[0-9a-fA-F]{6}', drawn)
        used = set(re.findall(r'var\((--[a-z]+)\)', page.source))
        light, dark = (set(re.findall(r'(--[a-z]+):', part)) for part
                       in report._CSS.split('prefers-color-scheme: dark'))
        assert used <= light
        assert dark == light - {'--font'}

    def test_what_does_not_print(self):
        page = draw(make('a\u202eb', names=['c\x00d\ne', '\ud800f'],
                         provenance={'g': 'h\x1bi'}))
        assert page.texts['h1'] == ['CPU calibration of a\ufffdb']
        assert {'c\ufffdd\ufffde', '\ufffdf'} <= set(
            page.chart('Coefficients').texts['text'])
        assert is_there(('g', 'h\ufffdi'), page)
        assert page.source.isascii()

    def test_long_names(self):
        name, pcpus = 'x' * 256, frozenset(range(0, 8192, 2))
        held = make(name, names=[name, 'y' * 256])
        (one,) = held.cpu_classes
        page = draw(held._replace(cpu_classes=(one._replace(pcpus=pcpus),)))
        shown = page.chart('Coefficients').texts['text']
        assert max(map(len, shown)) < 80
        assert any(row[0] == name for row in page.rows)
        assert profiles.format_pcpus(pcpus) in page.texts['dd']

    @pytest.mark.filterwarnings('error')
    def test_letters_that_matplotlib_has_no_font_with(self):
        chart = draw(make('計算', names=['整数', '小数'])).chart('Coeff')
        assert '整数' in chart.texts['text']

    def test_the_same_profile_gives_the_same_page(self):
        first = page_of(make(others=['chase']))
        page_of(make('other', names=['x', 'y']))
        assert page_of(make(others=['chase'])) == first

    def test_the_users_style_is_none_of_ours(self, monkeypatch):
        first = page_of(make())
        for key, value in (('font.size', 40), ('text.parse_math', True),
                           ('axes.labelsize', 30),
                           ('svg.fonttype', 'path'),
                           ('lines.linewidth', 9)):
            monkeypatch.setitem(matplotlib.rcParams, key, value)
        assert page_of(make()) == first
        assert matplotlib.rcParams['font.size'] == 40


class TestCommand:

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / 'compute1.yaml'
        profiles.store(make(), str(path))
        return path

    @pytest.fixture
    def run(self, capsys):
        """:returns: what runs it: to its status, and all that it said"""
        def run(*arguments):
            status = calibrate.main(['report', *map(str, arguments)])
            return status, ' '.join(capsys.readouterr().err.split())
        return run

    def test_it_writes_a_page(self, run, path, tmp_path):
        output = tmp_path / 'new' / 'report.html'
        status, said = run(path, '--output', output)
        assert status == 0
        assert f'Wrote a report on compute1 to {output}' in said
        assert output.read_text() == page_of(make())

    def test_the_hosts_own_profile(self, run, path, tmp_path, monkeypatch):
        monkeypatch.setattr(profiles, 'DEFAULT_PATH', str(path))
        assert run('--output', tmp_path / 'report.html')[0] == 0

    def test_too_many(self, run, path, tmp_path):
        status, said = run(*[path] * 51, '--output', tmp_path / 'report.html')
        assert status == 1
        assert '51 profiles are too many for one page' in said

    def test_what_is_no_profile(self, run, path, tmp_path):
        (tmp_path / 'bad.yaml').write_text('{}')
        status, said = run(path, tmp_path / 'bad.yaml', '--output',
                           tmp_path / 'report.html')
        assert status == 1
        assert f'{tmp_path}/bad.yaml: schema is missing' in said
        assert not (tmp_path / 'report.html').exists()

    def test_a_profile_is_not_replaced(self, run, path, tmp_path):
        before = path.read_bytes()
        (tmp_path / 'link').symlink_to(path)
        for output in (path, tmp_path / 'link'):
            status, said = run(path, '--output', output)
            assert status == 1
            assert 'would be replaced' in said
        assert path.read_bytes() == before

    @pytest.mark.parametrize(('output', 'message'), [
        ('', 'is a directory'),
        ('compute1.yaml/report.html', 'cannot be written')])
    def test_where_nothing_can_be_written(self, run, path, tmp_path, output,
                                          message, monkeypatch):
        monkeypatch.setattr(report, 'page', None)
        status, said = run(path, '--output', tmp_path / output)
        assert status == 1
        assert message in said

    def test_without_matplotlib(self, run, path, tmp_path, monkeypatch):
        for name in ('report', 'charts'):
            monkeypatch.delitem(sys.modules, f'nova_vqos.calibration.{name}')
            monkeypatch.delattr(calibration, name)
        monkeypatch.setitem(sys.modules, 'matplotlib', None)
        status, said = run(path, '--output', tmp_path / 'report.html')
        assert status == 1
        assert 'the package python3-matplotlib, or nova_vqos[report]' in said
        assert not (tmp_path / 'report.html').exists()
        # All other commands can do without.
        monkeypatch.delitem(sys.modules, 'nova_vqos.cmd.report')
        assert importlib.import_module('nova_vqos.cmd.report')

    @pytest.mark.parametrize('before', [None, '/somewhere'])
    def test_fonts_are_remembered_nowhere(self, monkeypatch, before):
        """The directory is matplotlib's while it is imported."""
        if before is None:
            monkeypatch.delenv('MPLCONFIGDIR', raising=False)
        else:
            monkeypatch.setenv('MPLCONFIGDIR', before)
        seen = []

        class Package(types.ModuleType):
            @property
            def report(self):
                seen.append(os.environ['MPLCONFIGDIR'])
                assert os.path.isdir(seen[0])
                return report

        monkeypatch.setitem(sys.modules, 'nova_vqos.calibration',
                            Package('nova_vqos.calibration'))
        assert command.load_library() is report
        assert not logging.getLogger('matplotlib').isEnabledFor(logging.INFO)
        assert seen[0] != before
        assert not os.path.exists(seen[0])
        assert os.environ.get('MPLCONFIGDIR') == before

    def test_progress_is_told_now_and_then(self, run, path, tmp_path, caplog,
                                           monkeypatch):
        clock = itertools.count(step=2)
        monkeypatch.setattr(command, 'time', types.SimpleNamespace(
            monotonic=lambda: next(clock)))
        run(path, '--output', tmp_path / 'report.html')
        assert [message for message in caplog.messages
                if message.startswith('Drew')] == ['Drew 2 of 3 charts']


def test_what_io_costs():
    made = make_profiles.make_profile(
        'compute1', make_profiles.make_class({0}, 1.0),
        fingerprint=FINGERPRINT, io=io_profile.document(
            make_profiles.make_io(unmeasured={'nat': EVIL})))
    page = Page(page_of(made))
    assert ['nat', 'rx', '2500', '2495', '2505'] in [
        row[:5] for row in page.rows]
    assert ['nat', EVIL] in page.rows
    assert 'What I/O costs the kernel' not in page_of(made._replace(io=None))
