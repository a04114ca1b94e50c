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

"""How charts are drawn, as SVG that is part of a page.

Colours are the page's: each one here stands for a custom property of its
style sheet, so that the page has them follow the browser, light or dark. None
carries a meaning alone: markers, hatches and signs say the same.

Importing this needs matplotlib, which is optional.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
import contextlib
import io
import itertools
import re
import warnings
from xml.etree import ElementTree  # nosec B405

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

ALONE = '#a85a00'
BUSY = '#0b5cad'
OUTLIER = '#b0005a'
INK = '#1c2128'
MUTED = '#59636e'
_GRID = '#d5dae0'
APART = '#f2efe8'
PAPER = '#fffffe'
_VARIABLES = {
    ALONE: 'var(--alone)', BUSY: 'var(--busy)',
    OUTLIER: 'var(--outlier)', INK: 'var(--ink)', MUTED: 'var(--muted)',
    _GRID: 'var(--grid)', APART: 'var(--apart)', PAPER: 'var(--paper)'}

_STYLE = {
    # Text stays text: to be found, read aloud, and in the reader's own font.
    'svg.fonttype': 'none',
    'svg.hashsalt': 'nova_vqos',
    # Names are no formulas.
    'text.parse_math': False,
    'font.size': 10,
    'axes.facecolor': 'none',
    'axes.edgecolor': MUTED,
    'axes.labelcolor': INK,
    'axes.spines.left': False,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'axes.grid': True,
    'axes.grid.axis': 'x',
    'axes.axisbelow': True,
    'figure.facecolor': 'none',
    'grid.color': _GRID,
    'hatch.linewidth': 0.8,
    'legend.frameon': False,
    'text.color': INK,
    'xtick.color': MUTED,
    'xtick.labelcolor': INK,
    'ytick.color': MUTED,
    'ytick.labelcolor': INK,
    'ytick.major.size': 0,
}

# Inches, of 72 units of the SVG each.
WIDTH = 9.0
_LEFT = 1.8
LEFT_OF_HOSTS = 2.8
_RIGHT = 0.25
_TOP = 0.4
TOP_BARE = 0.1
_BOTTOM = 0.6
# Characters that fit into an inch.
_CHARACTERS = 11.5

_NAMESPACE = re.compile(r'^\{[^}]*\}')
_COLOUR = re.compile(r'#[0-9a-f]{6}\b')
_REFERENCE = re.compile(r'url\(#([^)]+)\)')
# Both ways in which releases of matplotlib name the font.
_FONT = re.compile(r"font-family: [^;]*;? ?|(?<=px) '[^;]*")


def printable(text: str) -> str:
    """Text without what moves, hides or breaks its surroundings."""
    return ''.join(c if c.isprintable() else '\N{REPLACEMENT CHARACTER}'
                   for c in text)


def short(text: str, length: int) -> str:
    """Text of at most so many characters, by leaving out its middle."""
    text = printable(text)
    if len(text) <= length:
        return text
    end = length // 3
    return f'{text[:length - end - 1]}…{text[-end:]}'


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in our style, whatever the user's own one is."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        # The browser has fonts with them.
        warnings.filterwarnings('ignore', 'Glyph .* missing from')
        yield


def row_axes(places: Collection[float], names: Iterable[str],
             row_inches: float, *, top: float = _TOP,
             left: float = _LEFT) -> Axes:
    """Axes of as many rows as there is need of, with their names.

    :param places: of the rows, the first of which is at 0
    :param top: inches above, for a legend
    :param left: inches for the names
    """
    extent = max(places) + 1
    height = extent * row_inches
    total = top + height + _BOTTOM
    axes = Figure(figsize=(WIDTH, total)).add_axes((
        left / WIDTH, _BOTTOM / total, (WIDTH - left - _RIGHT) / WIDTH,
        height / total))
    axes.set_ylim(extent - 0.5, -0.5)
    length = int(left * _CHARACTERS)
    axes.set_yticks(list(places), [short(name, length) for name in names])
    return axes


def legend(axes: Axes, handles: Sequence[Line2D | Patch]) -> None:
    axes.legend(handles=handles, loc='lower left', bbox_to_anchor=(0, 1),
                ncol=len(handles), borderaxespad=0.2, handletextpad=0.5,
                columnspacing=1.6, borderpad=0.2)


def percent(share: float) -> str:
    """A share with its sign, in per cent; to a tenth unless it is large."""
    text = f'{share:+.0%}' if abs(share) >= 10 else f'{share:+.1%}'
    return f'{text[:-1]} %'.replace('-', '−')


def percent_axis(axes: Axes, label: str) -> None:
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(
        lambda share, _position: (
            f'{round(100 * share, 6):+g} %'.replace('-', '−')
            if share else '0')))
    axes.set_xlabel(label)


def svg(figure: Figure, prefix: str, title: str, description: str) -> str:
    """What was drawn, as an element of an HTML page.

    Ids are the page's own, and only those that something refers to.
    """
    written = io.BytesIO()
    figure.savefig(written, format='svg', metadata={'Date': None})
    # What matplotlib wrote just now, with all texts escaped.
    root = ElementTree.fromstring(  # noqa: S314
        written.getvalue())  # nosec B314
    for parent in list(root.iter()):
        for child in list(parent):
            if _NAMESPACE.sub('', child.tag) in ('metadata', 'style'):
                parent.remove(child)
    names: dict[str, str] = {}
    numbers = itertools.count(1)
    for element in root.iter():
        _adopt(element, names, prefix, numbers)
    for element in root.iter():
        if 'id' in element.attrib:
            known = names.get(element.attrib.pop('id'))
            if known:
                element.set('id', known)
    root.attrib = {
        'class': 'chart', 'role': 'img', 'viewBox': root.attrib['viewBox'],
        'aria-labelledby': f'{prefix}-title {prefix}-desc'}
    for tag, text in (('desc', description), ('title', title)):
        told = ElementTree.Element(tag, id=f'{prefix}-{tag}')
        told.text = printable(text)
        root.insert(0, told)
    return ElementTree.tostring(root, encoding='unicode')


def _adopt(element: ElementTree.Element, names: dict[str, str], prefix: str,
           numbers: Iterator[int]) -> None:
    """Make one of matplotlib's elements one of the page.

    :param names: new ids by old ones, for those that are referred to
    """
    def renamed(old: str) -> str:
        if old not in names:
            names[old] = f'{prefix}-{next(numbers)}'
        return names[old]

    element.tag = _NAMESPACE.sub('', element.tag)
    attributes = {}
    for key, value in element.attrib.items():
        name = _NAMESPACE.sub('', key)
        if name == 'href':
            value = f'#{renamed(value[1:])}'
        elif name != 'id':
            value = _REFERENCE.sub(
                lambda found: f'url(#{renamed(found[1])})',
                ' '.join(value.split()))
            value = _COLOUR.sub(
                lambda found: _VARIABLES.get(found[0], found[0]), value)
        if name == 'style':
            value = _FONT.sub(' var(--font)', value) \
                if 'font:' in value else _FONT.sub('', value)
        if name != 'transform' or not value.startswith('rotate(-0'):
            attributes[name] = value
    element.attrib.clear()
    element.attrib.update(attributes)
    if element.tag != 'text':
        element.text = None
    element.tail = None
