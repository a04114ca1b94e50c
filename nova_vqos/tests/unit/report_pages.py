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


"""Reports, as a browser reads them."""

import functools
from html import parser
import re

from nova_vqos import profile as profiles
from nova_vqos.calibration import combine
from nova_vqos.cmd import report as command
from nova_vqos.tests import make_profiles

# NOTE: here, before any test: when it is imported, matplotlib looks for fonts
# by a program, and no unit test may start one.
report = command.load_library()
charts = report.charts
matplotlib = charts.drawing.matplotlib

FINGERPRINT = {'cpu_model': 'a pCPU', 'kernel': '6.1'}
VOID = {'meta', 'wbr'}
# Of the page and of what matplotlib draws; no script, no image, no link.
TAGS = {
    'html', 'head', 'meta', 'title', 'style', 'body', 'section', 'div', 'h1',
    'h2', 'h3', 'h4', 'p', 'dl', 'dt', 'dd', 'figure', 'figcaption', 'table',
    'thead', 'tbody', 'tr', 'th', 'td', 'a', 'span', 'wbr', 'svg', 'desc', 'g',
    'defs', 'path', 'use', 'text', 'clippath', 'rect', 'pattern', 'code'}
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


def marks(chart, style):
    return sum(tag == 'use' and style in attributes['style']
               for tag, attributes in chart.elements)
