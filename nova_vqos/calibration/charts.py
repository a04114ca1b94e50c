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

"""Charts of profiles, as SVG that is part of a page.

Colours are the page's: each one here stands for a custom property of its
style sheet, so that the page has them follow the browser, light or dark. None
carries a meaning alone: markers, hatches and signs say the same.

Importing this needs matplotlib, which is optional.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import io
import itertools
import re
import statistics
import typing as ty
import warnings
from xml.etree import ElementTree  # nosec B405

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from nova_vqos import profile as profiles
from nova_vqos.calibration import combine
from nova_vqos.calibration import estimate

#: Of each measurement at most as many samples are drawn.
MAX_POINTS = 150
#: The states of a measurement, as :class:`nova_vqos.profile.CpuClass` has
#: them.
STATES = ('alone', 'busy')

_ALONE = '#a85a00'
_BUSY = '#0b5cad'
_OUTLIER = '#b0005a'
_INK = '#1c2128'
_MUTED = '#59636e'
_GRID = '#d5dae0'
_APART = '#f2efe8'
_PAPER = '#fffffe'
_VARIABLES = {
    _ALONE: 'var(--alone)', _BUSY: 'var(--busy)',
    _OUTLIER: 'var(--outlier)', _INK: 'var(--ink)', _MUTED: 'var(--muted)',
    _GRID: 'var(--grid)', _APART: 'var(--apart)', _PAPER: 'var(--paper)'}
_STATE_COLOURS = {'alone': _ALONE, 'busy': _BUSY}
_STATE_MARKERS = {'alone': 'o', 'busy': 's'}
_DASHES = {'alone': '--', 'busy': '-'}

_STYLE = {
    # Text stays text: to be found, read aloud, and in the reader's own font.
    'svg.fonttype': 'none',
    'svg.hashsalt': 'nova_vqos',
    # Names are no formulas.
    'text.parse_math': False,
    'font.size': 10,
    'axes.facecolor': 'none',
    'axes.edgecolor': _MUTED,
    'axes.labelcolor': _INK,
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
    'text.color': _INK,
    'xtick.color': _MUTED,
    'xtick.labelcolor': _INK,
    'ytick.color': _MUTED,
    'ytick.labelcolor': _INK,
    'ytick.major.size': 0,
}

# Inches, of 72 units of the SVG each.
_WIDTH = 9.0
_LEFT = 1.8
_LEFT_OF_HOSTS = 2.8
_RIGHT = 0.25
_TOP = 0.4
_TOP_BARE = 0.1
_BOTTOM = 0.6
# Characters that fit into an inch.
_CHARACTERS = 11.5
# Between what counts and what is only reported, in rows.
_GAP = 0.7
# Samples are spread over this part of a row, by the golden ratio: evenly,
# without chance.
_LANE = 0.3
_GOLDEN = 0.618034
# More marks in a row are smaller.
_CROWDED = 50
# How far the axis goes beyond the samples that are no outliers.
_MARGIN = 1.15
_LEAST_SPREAD = 0.002

_NAMESPACE = re.compile(r'^\{[^}]*\}')
_COLOUR = re.compile(r'#[0-9a-f]{6}\b')
_REFERENCE = re.compile(r'url\(#([^)]+)\)')
# Both ways in which releases of matplotlib name the font.
_FONT = re.compile(r"font-family: [^;]*;? ?|(?<=px) '[^;]*")


class Speed(ty.NamedTuple):
    """A row of :func:`speeds`: equal pCPUs of a host."""

    label: str
    cpu_class: profiles.CpuClass


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
def _style() -> Iterator[None]:
    """Draw in our style, whatever the user's own one is."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        # The browser has fonts with them.
        warnings.filterwarnings('ignore', 'Glyph .* missing from')
        yield


@_style()
def speeds(rows: Sequence[Speed], prefix: str, title: str) -> str:
    """Combined coefficients, alone and busy, with their intervals.

    :param prefix: of the ids in the SVG, one of its own in the page
    :returns: an SVG element
    """
    axes = _axes(range(len(rows)), [row.label for row in rows], 0.45,
                 left=_LEFT_OF_HOSTS)
    for state in STATES:
        _points(axes, state, range(len(rows)),
                [getattr(row.cpu_class, state) for row in rows])
    _coefficient_axis(axes)
    _legend(axes, [_state_handle(state) for state in STATES])
    return _svg(axes, prefix, title, '; '.join(
        f'{row.label}: {_in_words(row.cpu_class)}' for row in rows))


@_style()
def coefficients(cpu_class: profiles.CpuClass, reference: profiles.Reference,
                 prefix: str, title: str) -> str:
    """Coefficients by each benchmark, around the combined ones."""
    places = _places(reference)
    axes = _axes(places.values(), places, 0.45)
    _set_apart(axes, reference, places)
    handles = [_state_handle(state) for state in STATES]
    for state in STATES:
        measured: profiles.Measurement = getattr(cpu_class, state)
        colour, dashes = _STATE_COLOURS[state], _DASHES[state]
        axes.axvspan(measured.interval_low, measured.interval_high,
                     facecolor=colour, alpha=0.13, linewidth=0)
        axes.axvline(measured.coefficient, color=colour, linestyle=dashes,
                     linewidth=1.3)
        handles.append(Line2D([], [], color=colour, linestyle=dashes,
                              linewidth=1.3, label=f'combined, {state}'))
        _points(axes, state, [places[s.benchmark] for s in measured.scores],
                measured.scores)
    _coefficient_axis(axes)
    _legend(axes, handles)
    return _svg(axes, prefix, title, '; '.join([
        f'combined: {_in_words(cpu_class)}', *(
            f'{name}: ' + _in_words(_scores(cpu_class, name))
            for name in places)]))


@_style()
def samples(cpu_class: profiles.CpuClass, reference: profiles.Reference,
            prefix: str, title: str) -> str:
    """How the samples of each benchmark scatter around their median."""
    places = _places(reference)
    axes = _axes(places.values(), places, 0.62)
    _set_apart(axes, reference, places)
    lanes = [_Lane(score, state, places[score.benchmark])
             for state in STATES
             for score in getattr(cpu_class, state).scores]
    limit = _MARGIN * max(_LEAST_SPREAD, *(
        abs(sample) for lane in lanes for sample in lane.kept))
    # Room for the triangles at the edge.
    axes.set_xlim(-limit * 1.03, limit * 1.03)
    axes.axvline(0, color=_MUTED, linewidth=0.8)
    for lane in lanes:
        lane.draw(axes, limit)
    _percent_axis(axes, 'off the median of the same benchmark and state')
    _legend(axes, [
        *map(_state_handle, STATES),
        Patch(facecolor='none', edgecolor=_INK, label='middle half'),
        Line2D([], [], color=_OUTLIER, marker='x', linestyle='none',
               label='outlier')])
    return _svg(axes, prefix, title, '; '.join(
        f'{lane.name}: {len(lane.kept) + len(lane.outliers)} samples, '
        f'{_percent(min(lane.kept))} to {_percent(max(lane.kept))}, and '
        f'{len(lane.outliers)} outliers' for lane in lanes))


@_style()
def errors(found: Mapping[str, float], reference: profiles.Reference,
           prefix: str, title: str) -> str:
    """How far servers of each kind of work are from their promise.

    :param found: of each benchmark that has one, see
        :func:`nova_vqos.calibration.combine.error`
    """
    places = _places(reference)
    axes = _axes(places.values(), places, 0.36, top=_TOP_BARE)
    _set_apart(axes, reference, places)
    for name, error in found.items():
        counts = bool(reference.benchmark(name).weight)
        axes.barh(places[name], error, 0.6, linewidth=1,
                  color=_BUSY if counts else _PAPER, edgecolor=_BUSY,
                  hatch=None if counts else '////')
        axes.annotate(
            _percent(error), (error, places[name]), va='center',
            xytext=(4 if error >= 0 else -4, 0), textcoords='offset points',
            ha='left' if error >= 0 else 'right')
    axes.axvline(0, color=_INK, linewidth=1)
    # Room for the numbers beside the bars.
    low, high = min(0.0, *found.values()), max(0.0, *found.values())
    room = 0.16 * max(high - low, 0.01)
    axes.set_xlim(low - room, high + room)
    _percent_axis(axes,
                  'speed delivered beyond (+) or short of (−) the promise')
    return _svg(axes, prefix, title, '; '.join(
        f'{name}: {_percent(error)}' for name, error in found.items()))


def error_by_benchmark(measured: profiles.Measurement,
                       reference: profiles.Reference) -> dict[str, float]:
    """Of the benchmarks that there are others to compare with."""
    found = {score.benchmark: combine.error(score, measured, reference)
             for score in measured.scores}
    return {name: error for name, error in found.items() if error is not None}


class _Lane:
    """The samples of one benchmark in one state, relative to their median.

    :ivar kept: those that are no outliers
    """

    def __init__(self, score: profiles.Score, state: str,
                 place: float) -> None:
        self.name = f'{score.benchmark}, {state}'
        self._state = state
        self._y = place + (-0.19 if state == 'alone' else 0.19)
        kept = estimate.without_outliers(score.samples)
        middle = statistics.median(score.samples)
        low, high = min(kept), max(kept)
        self.kept = [sample / middle - 1 for sample in kept]
        self.outliers = [sample / middle - 1 for sample in score.samples
                         if not low <= sample <= high]

    def draw(self, axes: Axes, limit: float) -> None:
        """:param limit: of the axis: what is further off is at its end"""
        colour = _STATE_COLOURS[self._state]
        if len(self.kept) > 1:
            first, _, third = statistics.quantiles(self.kept, n=4,
                                                   method='inclusive')
            # Over the marks, which would hide it.
            axes.barh(self._y, third - first, _LANE, left=first,
                      color='none', edgecolor=_INK, linewidth=1, zorder=3)
        is_crowded = len(self.kept) > _CROWDED
        self._mark(axes, thinned(self.kept), _STATE_MARKERS[self._state],
                   colour, markersize=2.3 if is_crowded else 3.2,
                   markerfacecolor=_PAPER if self._state == 'alone'
                   else colour)
        outliers = thinned(self.outliers)
        self._mark(axes, [s for s in outliers if abs(s) <= limit], 'x',
                   _OUTLIER, markersize=5)
        for marker, end, those in (
                ('<', -limit, [s for s in outliers if s < -limit]),
                ('>', limit, [s for s in outliers if s > limit])):
            self._mark(axes, [end] * len(those), marker, _OUTLIER,
                       markersize=6)

    def _mark(self, axes: Axes, xs: Sequence[float], marker: str,
              colour: str, **how: ty.Any) -> None:
        ys = [self._y + _LANE * ((i * _GOLDEN + 0.5) % 1 - 0.5)
              for i in range(len(xs))]
        axes.plot(xs, ys, linestyle='none', marker=marker, color=colour,
                  markeredgewidth=0.9, **how)


def thinned(found: Sequence[float]) -> list[float]:
    """At most :data:`MAX_POINTS` of these, evenly chosen, in their order."""
    if len(found) <= MAX_POINTS:
        return list(found)
    return [found[i * len(found) // MAX_POINTS] for i in range(MAX_POINTS)]


def _places(reference: profiles.Reference) -> dict[str, float]:
    """In which row a benchmark is: the weighted ones first."""
    counting = [b.name for b in reference.benchmarks if b.weight]
    others = [b.name for b in reference.benchmarks if not b.weight]
    return {name: float(i) for i, name in enumerate(counting)} | {
        name: len(counting) + _GAP + i for i, name in enumerate(others)}


def _axes(places: Collection[float], names: Iterable[str],
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
    axes = Figure(figsize=(_WIDTH, total)).add_axes((
        left / _WIDTH, _BOTTOM / total, (_WIDTH - left - _RIGHT) / _WIDTH,
        height / total))
    axes.set_ylim(extent - 0.5, -0.5)
    length = int(left * _CHARACTERS)
    axes.set_yticks(list(places), [short(name, length) for name in names])
    return axes


def _set_apart(axes: Axes, reference: profiles.Reference,
               places: Mapping[str, float]) -> None:
    """Make visible which rows do not count."""
    others = [places[b.name] for b in reference.benchmarks if not b.weight]
    if others:
        top = min(others) - _GAP - 0.5 + 0.1
        axes.axhspan(top, max(others) + 0.5, facecolor=_APART, linewidth=0,
                     zorder=-1)
        axes.axhline(top, color=_MUTED, linewidth=0.8, linestyle=':')
        axes.annotate(
            'weight 0: reported only, no part of the combined coefficient',
            (0, top), xycoords=('axes fraction', 'data'), xytext=(4, -4),
            textcoords='offset points', va='top', color=_MUTED, fontsize=9,
            fontstyle='italic', bbox={
                'boxstyle': 'square,pad=0.15', 'facecolor': _APART,
                'linewidth': 0})


def _points(axes: Axes, state: str, places: Iterable[float],
            found: Sequence[profiles.Measurement | profiles.Score]) -> None:
    shift = -0.14 if state == 'alone' else 0.14
    colour = _STATE_COLOURS[state]
    centres = [one.coefficient for one in found]
    axes.errorbar(
        centres, [place + shift for place in places],
        xerr=([one.coefficient - one.interval_low for one in found],
              [one.interval_high - one.coefficient for one in found]),
        fmt=_STATE_MARKERS[state], color=colour, markersize=5.5, capsize=3,
        elinewidth=1.2, markerfacecolor=_PAPER if state == 'alone' else colour)


def _coefficient_axis(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(
        lambda value, _position: f'{value:g}'))
    axes.set_xlabel(
        'coefficient: times as fast as the reference (1 is 100 CU)')


def _state_handle(state: str) -> Line2D:
    colour = _STATE_COLOURS[state]
    return Line2D([], [], color=colour, marker=_STATE_MARKERS[state],
                  linestyle='none', label=state, markersize=5.5,
                  markerfacecolor=_PAPER if state == 'alone' else colour)


def _legend(axes: Axes, handles: Sequence[Line2D | Patch]) -> None:
    axes.legend(handles=handles, loc='lower left', bbox_to_anchor=(0, 1),
                ncol=len(handles), borderaxespad=0.2, handletextpad=0.5,
                columnspacing=1.6, borderpad=0.2)


def _percent(share: float) -> str:
    """A share with its sign, in per cent; to a tenth unless it is large."""
    text = f'{share:+.0%}' if abs(share) >= 10 else f'{share:+.1%}'
    return f'{text[:-1]} %'.replace('-', '−')


def _percent_axis(axes: Axes, label: str) -> None:
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(
        lambda share, _position: (
            f'{round(100 * share, 6):+g} %'.replace('-', '−')
            if share else '0')))
    axes.set_xlabel(label)


def _scores(cpu_class: profiles.CpuClass, name: str,
            ) -> Mapping[str, profiles.Score]:
    return {state: next(s for s in getattr(cpu_class, state).scores
                        if s.benchmark == name) for state in STATES}


def _in_words(found: profiles.CpuClass | Mapping[str, profiles.Score]) -> str:
    """Alone and busy, for those who do not see the chart."""
    by_state = (found if isinstance(found, Mapping)
                else {state: getattr(found, state) for state in STATES})
    return ', '.join(
        f'{state} {one.coefficient:.4g} ({one.interval_low:.4g} to '
        f'{one.interval_high:.4g})' for state, one in by_state.items())


def _svg(axes: Axes, prefix: str, title: str, description: str) -> str:
    """What was drawn, as an element of an HTML page.

    Ids are the page's own, and only those that something refers to.
    """
    written = io.BytesIO()
    axes.figure.savefig(written, format='svg', metadata={'Date': None})
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
