# SPDX-License-Identifier: Apache-2.0
"""A report holds nothing that a browser would run, or fetch."""

import re

import pytest

from nova_vqos import cpuset
from nova_vqos.tests.fixtures.report_pages import EVIL
from nova_vqos.tests.fixtures.report_pages import TAGS
from nova_vqos.tests.fixtures.report_pages import charts
from nova_vqos.tests.fixtures.report_pages import draw
from nova_vqos.tests.fixtures.report_pages import is_there
from nova_vqos.tests.fixtures.report_pages import make
from nova_vqos.tests.fixtures.report_pages import page_of


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
        referred = page.references() + [
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

    def test_it_follows_the_browser_into_dark_mode(self, page):
        (style,) = [text for text in page.texts['style'] if ':root' in text]
        light, dark = (set(re.findall(r'(--[a-z]+):', part)) for part
                       in style.split('prefers-color-scheme: dark'))
        assert set(re.findall(r'var\((--[a-z]+)\)', style)) <= light
        assert dark == light - {'--font'}
        # Colours of charts are their own.
        assert re.search(r'dark\).*\.chart {[^}]*invert', style)

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
        assert cpuset.format_pcpus(pcpus) in page.texts['dd']

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
            monkeypatch.setitem(charts.matplotlib.rcParams, key, value)
        assert page_of(make()) == first
        assert charts.matplotlib.rcParams['font.size'] == 40
