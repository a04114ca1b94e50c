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

"""What pages are made of: one HTML file that needs nothing else.

It has no script, loads nothing, and forbids the browser both. All text is
escaped: who wrote it is not known. It is ASCII, so that it is right in
whatever encoding a file is written.
"""

from collections.abc import Iterable, Mapping, Sequence
import html

from nova_vqos.calibration import drawing

CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2128; --muted: #59636e; --grid: #d5dae0;
  --apart: #f4f1ea; --alone: #a85a00; --busy: #0b5cad; --outlier: #b0005a;
  --font: system-ui, "Liberation Sans", "DejaVu Sans", sans-serif;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14181d; --ink: #e4e8ec; --muted: #9ba6b1; --grid: #353d46;
    --apart: #1f252c; --alone: #f0a04b; --busy: #6cb4ff; --outlier: #ff7fb8;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 62rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.5 var(--font); overflow-wrap: anywhere;
}
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 0.75rem; }
h2 {
  font-size: 1.4rem; margin: 3.5rem 0 0.75rem; padding-top: 1rem;
  border-top: 2px solid var(--ink);
}
h3 { font-size: 1.15rem; margin: 2.25rem 0 0.5rem; }
h4 { font-size: 1rem; margin: 1.75rem 0 0.5rem; }
p, figcaption { max-width: 46rem; }
a { color: var(--busy); }
figure { margin: 0 0 1rem; }
figcaption, .note { color: var(--muted); font-size: 0.9rem; }
.chart { display: block; width: 100%; min-width: 36rem; height: auto; }
.chart * { stroke-linejoin: round; stroke-linecap: butt; }
.facts {
  display: grid; grid-template-columns: max-content 1fr;
  gap: 0.2rem 1.25rem; margin: 1rem 0;
}
.facts dt { color: var(--muted); }
.facts dd { margin: 0; }
.scroll { overflow-x: auto; }
table {
  border-collapse: collapse; font-size: 0.875rem;
  font-variant-numeric: tabular-nums; overflow-wrap: normal;
}
th, td {
  padding: 0.25rem 0.7rem 0.25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--grid);
}
thead th { border-bottom: 1.5px solid var(--muted); }
tbody th { font-weight: normal; }
.number { text-align: right; }
td.number { white-space: nowrap; }
.combined > * { font-weight: 600; border-top: 1.5px solid var(--muted); }
.apart > * { color: var(--muted); font-style: italic; }
.hash { display: block; font-family: monospace; font-size: 0.75rem; }
.pair {
  display: grid; gap: 0 2.5rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr));
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  section + section { break-before: page; }
  figure, tr { break-inside: avoid; }
  h2, h3, h4 { break-after: avoid; }
  .scroll { overflow: visible; }
  .chart { min-width: 0; }
}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

# Words in tables that are longer may be broken: half a SHA-256.
_UNBROKEN = 32


def document(title: str, body: str) -> str:
    """A whole page.

    :param title: as text
    :param body: as HTML
    """
    made = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, '
        'initial-scale=1">\n'
        f'<title>{text(title)}</title>\n'
        f'<style>{CSS}</style>\n</head>\n<body>\n{body}</body>\n</html>\n')
    return made.encode('ascii', 'xmlcharrefreplace').decode()


def mapping(meaning: str, texts: Mapping[str, str]) -> str:
    """A table of some texts by their names, under a line that says what."""
    if not texts:
        return '<p class="note">The profile says nothing of it.</p>\n'
    return f'<p class="note">{text(meaning)}</p>\n' + table(
        ('what', 'was'),
        [(None, [cell(key), cell(value)]) for key, value in texts.items()])


def table(head: Iterable[str],
          rows: Iterable[tuple[str | None, Sequence[str]]], *,
          numbers_from: int | None = None) -> str:
    """A table, whose first column names its rows.

    :param rows: a class of the style sheet, and cells as HTML
    :param numbers_from: the first column of numbers; those after it are, too
    """
    def element(tag: str, index: int, content: str, more: str = '') -> str:
        is_number = numbers_from is not None and index >= numbers_from
        look = ' class="number"' if is_number else ''
        return f'<{tag}{more}{look}>{content}</{tag}>'

    lines = ['<div class="scroll"><table>']
    lines.append('<thead><tr>' + ''.join(
        element('th', i, text(name), ' scope="col"')
        for i, name in enumerate(head)) + '</tr></thead>')
    lines.append('<tbody>')
    for look, cells in rows:
        lines.append(
            (f'<tr class="{look}">' if look else '<tr>') + ''.join(
                element('td', i, content) if i else
                element('th', i, content, ' scope="row"')
                for i, content in enumerate(cells)) + '</tr>')
    lines.append('</tbody></table></div>\n')
    return '\n'.join(lines)


def cell(content: str) -> str:
    """Text of a table, whose columns are as wide as their longest word."""
    return ' '.join(
        '<wbr>'.join(text(word[start:start + _UNBROKEN])
                     for start in range(0, len(word), _UNBROKEN))
        for word in content.split(' '))


def text(content: str) -> str:
    """Text as HTML, whatever is in it."""
    return html.escape(drawing.printable(content))
