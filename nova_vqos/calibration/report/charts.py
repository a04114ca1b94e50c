# SPDX-License-Identifier: Apache-2.0
"""The charts of a report, which matplotlib draws as SVG.

No colour carries a meaning alone: markers, hatches and signs repeat it.

Importing this needs matplotlib, which is optional.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import io
import math
import re
import statistics
import typing as ty
import warnings

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nova_vqos.calibration import estimate
from nova_vqos.calibration import modes
from nova_vqos.profile import cpu
from nova_vqos.profile import quantum

#: At most so many samples of a benchmark and state are drawn.
MAX_POINTS = 150

_ALONE, _BUSY, _OUTLIER = '#a85a00', '#0b5cad', '#b0005a'
_INK, _MUTED, _GRID, _APART = '#1c2128', '#59636e', '#d5dae0', '#f2efe8'
_STYLE = {
    # Text stays text: to be found, read aloud, and in the reader's own font.
    'svg.fonttype': 'none', 'font.sans-serif': ['DejaVu Sans'],
    # Names are no formulas.
    'text.parse_math': False,
    'figure.constrained_layout.use': True, 'figure.facecolor': 'none',
    'axes.facecolor': 'none', 'axes.edgecolor': _MUTED,
    'axes.spines.left': False, 'axes.spines.right': False,
    'axes.spines.top': False, 'axes.grid': True, 'axes.grid.axis': 'x',
    'axes.axisbelow': True, 'grid.color': _GRID, 'hatch.linewidth': 0.8,
    'legend.frameon': False, 'legend.columnspacing': 1.6,
    'legend.handletextpad': 0.5, 'xtick.color': _MUTED, 'ytick.color': _MUTED,
    'ytick.major.size': 0, 'xtick.labelcolor': _INK,
    'ytick.labelcolor': _INK, 'axes.labelcolor': _INK, 'text.color': _INK}
# Inches.
_WIDTH = 9
_LABEL_CHARACTERS = 32
_CURVES_A_ROW = 3
# Where the most is so many times the least, equal factors are equally far.
_LOGARITHMIC = 4

# Between the rows that count and those that are only reported, in rows.
_GAP = 0.7
# Samples are spread over this part of a row by the golden ratio: evenly,
# without chance.
_LANE, _GOLDEN = 0.3, 0.618034

_Look = dict[str, ty.Any]
_STATES: Mapping[str, _Look] = {
    'alone': {'color': _ALONE, 'marker': 'o', 'markerfacecolor': 'white'},
    'busy': {'color': _BUSY, 'marker': 's'}}
# Numbers of vCPUs on a pCPU, by rank; more than these repeat them.
_RANKS = (_STATES['alone'] | {'linestyle': '--'},
          _STATES['busy'] | {'linestyle': '-'},
          {'color': _OUTLIER, 'marker': '^', 'linestyle': ':'})


class Chart(ty.NamedTuple):
    """A chart for the page's template.

    :ivar content: of its svg element; matplotlib escaped the texts in it
    :ivar description: for readers who do not see it
    """

    view_box: str
    content: str
    description: str


class Row(ty.NamedTuple):
    """Two coefficients and their name; rows that count come first."""

    name: str
    alone: cpu.Measurement | cpu.Score
    busy: cpu.Measurement | cpu.Score
    counts: bool = True


class _Lane(ty.NamedTuple):
    """The samples of a benchmark in one state, relative to their median.

    :ivar y: where they are drawn
    :ivar kept: in use
    :ivar two: their modes, where there are two
    :ivar parts: what a box shows the middle half of: those in use, or all of
        the slower mode and of the faster one
    """

    name: str
    state: str
    y: float
    kept: list[float]
    outliers: list[float]
    two: modes.Modes | None
    parts: list[list[float]]


def draw(salt: str, chart: Callable[..., tuple[Figure, str]],
         *what: object) -> Chart:
    """Draw a chart in the page's style, whatever the user's own one is.

    :param salt: makes the ids of its parts unique within the page
    :param chart: a function of this module, which is called with ``what``
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE | {'svg.hashsalt': salt})
        # The browser has fonts with them.
        warnings.filterwarnings('ignore', 'Glyph .* missing from')
        figure, description = chart(*what)
        written = io.StringIO()
        figure.savefig(written, format='svg', metadata=dict.fromkeys(
            ('Creator', 'Date', 'Format', 'Type')))
    _, element, content = re.split('(<svg[^>]*>)', written.getvalue(),
                                   maxsplit=1)
    # Ids of groups are those of any other chart, and nothing refers to them.
    content = re.sub('<g id="[^"]*"', '<g', content)
    return Chart(re.findall('viewBox="([^"]*)"', element)[0],
                 content.rpartition('</svg>')[0], description)


def printable(text: str) -> str:
    """Text without what moves, hides or breaks its surroundings."""
    return ''.join(c if c.isprintable() else '\N{REPLACEMENT CHARACTER}'
                   for c in text)


def short(text: str, length: int) -> str:
    """Printable text, without its middle where it is longer."""
    text = printable(text)
    end = length // 3
    return (text if len(text) <= length
            else f'{text[:length - end - 1]}…{text[-end:]}')


def coefficients(rows: Sequence[Row], combined: Row | None = None,
                 ) -> tuple[Figure, str]:
    """Coefficients with their intervals.

    :param combined: whose coefficients are drawn behind those of all rows
    """
    axes, places = _row_axes(rows, 0.45)
    for state, look in _STATES.items():
        found = [getattr(row, state) for row in rows]
        axes.errorbar(
            [one.coefficient for one in found],
            [y + (0.14 if state == 'busy' else -0.14) for y in places],
            xerr=([one.coefficient - one.interval_low for one in found],
                  [one.interval_high - one.coefficient for one in found]),
            linestyle='none', markersize=5.5, capsize=3, elinewidth=1.2,
            label=state, **look)
        if combined is not None:
            one = getattr(combined, state)
            axes.axvspan(one.interval_low, one.interval_high, alpha=0.13,
                         facecolor=look['color'], linewidth=0)
            axes.axvline(one.coefficient, color=look['color'], linewidth=1.3,
                         linestyle='-' if state == 'busy' else '--',
                         label=f'combined, {state}')
    axes.xaxis.set_major_formatter('{x:g}')
    axes.set_xlabel(
        'coefficient: times as fast as the reference (1 is 100 CU)')
    _legend(axes)
    return axes.figure, '; '.join(
        f'{row.name}: ' + ', '.join(
            f'{state} {one.coefficient:.4g} ({one.interval_low:.4g} to '
            f'{one.interval_high:.4g})'
            for state, one in (('alone', row.alone), ('busy', row.busy)))
        for row in ((combined, *rows) if combined else rows))


def samples(rows: Sequence[Row]) -> tuple[Figure, str]:
    """How the samples of each benchmark scatter around their median."""
    axes, places = _row_axes(rows, 0.62)
    lanes = [_lane(row.name, state, y + (0.19 if state == 'busy' else -0.19),
                   getattr(row, state).samples)
             for state in _STATES
             for row, y in zip(rows, places, strict=True)]
    limit = 1.15 * max(0.002, *(
        abs(x) for lane in lanes for part in lane.parts
        for x in estimate.without_outliers(part)))
    axes.set_xlim(-limit * 1.03, limit * 1.03)
    axes.axvline(0, color=_MUTED, linewidth=0.8)
    for state, look in _STATES.items():
        _scatter(axes, [(lane.y, lane.kept) for lane in lanes
                        if lane.state == state],
                 label=state, markersize=2.8, **look)
    quartiles = [
        (lane.y, *statistics.quantiles(part, n=4, method='inclusive')[::2])
        for lane in lanes for part in lane.parts if len(part) > 1]
    # Over the marks, which would hide them.
    axes.barh([y for y, _, _ in quartiles],
              [third - first for _, first, third in quartiles], _LANE,
              left=[first for _, first, _ in quartiles], color='none',
              edgecolor=_INK, linewidth=1, zorder=3, label='middle half')
    _scatter(axes, [(lane.y, [max(-limit, min(limit, x))
                              for x in lane.outliers]) for lane in lanes],
             label='outlier', markersize=5, marker='x', color=_OUTLIER)
    for lane in lanes:
        _annotate_modes(axes, lane, limit)
    _percent_axis(axes, 'off the median of the same benchmark and state')
    _legend(axes)
    return axes.figure, '; '.join(
        f'{lane.name}, {lane.state}: {len(lane.kept) + len(lane.outliers)} '
        f'samples, {_percent(min(lane.kept))} to {_percent(max(lane.kept))}, '
        f'and {len(lane.outliers)} outliers'
        + ('' if lane.two is None else f'; two speeds, {lane.two}')
        for lane in lanes)


def errors(rows: Sequence[Row], found: Mapping[str, float],
           bound: float | None) -> tuple[Figure, str]:
    """How far servers of each kind of work are from their promise.

    :param found: by benchmark, of those that have one
    :param bound: of most other work, which is a band; None: unknown
    """
    axes, places = _row_axes(rows, 0.36)
    if bound is not None:
        axes.axvspan(1 / (1 + bound) - 1, bound, alpha=0.13, facecolor=_BUSY,
                     linewidth=0)
    for row, y in zip(rows, places, strict=True):
        error = found.get(row.name)
        if error is not None:
            bar = axes.barh(y, error, 0.6, edgecolor=_BUSY, linewidth=1,
                            color=_BUSY if row.counts else 'white',
                            hatch=None if row.counts else '////')
            axes.bar_label(bar, [_percent(error)], padding=4)
    axes.axvline(0, color=_INK, linewidth=1)
    # Room for the numbers beside the bars.
    axes.margins(x=0.16)
    _percent_axis(axes,
                  'speed delivered beyond (+) or short of (−) the promise')
    return axes.figure, '; '.join([
        *(f'{name}: {_percent(error)}' for name, error in found.items()),
        *([] if bound is None else [
            f'90 % of other work: {_percent(1 / (1 + bound) - 1)} to '
            f'{_percent(bound)}'])])


def curves(shown: quantum.QuantumProfile) -> tuple[Figure, str]:
    """What each kind of work cost by slice, relative to the default."""
    rows = math.ceil(len(shown.curves) / _CURVES_A_ROW)
    height = 0.4 + 2.4 * rows
    figure = Figure(figsize=(_WIDTH, height))
    runnables = sorted({runnable for curve in shown.curves
                        for runnable in curve.runnables})
    looks = {runnable: _RANKS[rank % len(_RANKS)]
             for rank, runnable in enumerate(runnables)}
    for number, curve in enumerate(shown.curves, 1):
        _draw_curve(figure.add_subplot(rows, _CURVES_A_ROW, number), curve,
                    looks)
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.4 / height),
                                   wspace=0.08)
    figure.legend(
        handles=[Line2D([], [], label=f'{runnable} vCPUs on a pCPU', **look)
                 for runnable, look in looks.items()],
        loc='upper left', ncol=len(looks))
    return figure, '; '.join(
        f'{curve.kind}, {runnable} vCPUs: ' + ', '.join(
            f'{_slice(point, "default", " ms")} {curve.normalised(point):.3g}'
            for point in curve.points_of(runnable))
        for curve in shown.curves for runnable in curve.runnables)


def _draw_curve(axes: Axes, curve: quantum.Curve,
                looks: Mapping[int, _Look]) -> None:
    lowest = highest = 1.0
    for rank, runnable in enumerate(curve.runnables):
        # With each number of vCPUs the same slices, the default first.
        points = curve.points_of(runnable)
        costs = [curve.normalised(point) for point in points]
        ends = [[cost * end(point.values_ns) / point.value_ns
                 for cost, point in zip(costs, points, strict=True)]
                for end in (min, max)]
        lowest, highest = min(lowest, *ends[0]), max(highest, *ends[1])
        # Beside each other, not over each other.
        xs = [x + 0.08 * (2 * rank - len(curve.runnables) + 1)
              for x in range(len(points))]
        axes.errorbar(
            xs, costs, [[abs(cost - end) for cost, end in zip(
                costs, one, strict=True)] for one in ends],
            markersize=4.5, capsize=2.5, elinewidth=1,
            **looks[runnable] | {'linestyle': 'none'})
        # The default is no slice among others.
        axes.plot(xs[1:], costs[1:], linewidth=1.3,
                  **looks[runnable] | {'marker': ''})
    axes.axhline(1, color=_MUTED, linewidth=0.8)
    axes.grid(visible=True, axis='y')
    axes.grid(visible=False, axis='x')
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_xticks(range(len(points)),
                    [_slice(point, 'stock') for point in points])
    axes.set_xlabel('slice in ms')
    axes.set_title(curve.kind, loc='left', fontsize=10, fontweight='bold')
    for x, point in enumerate(points):
        if curve.best_us is not None and point.slice_us == curve.best_us:
            axes.annotate('best', (x, 1.02), ha='center', fontsize=9,
                          xycoords=('data', 'axes fraction'))
    if highest / lowest > _LOGARITHMIC:
        axes.set_yscale('log')
        axes.set_ylim(lowest / 1.2, highest * 1.2)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        # Noise must not look like a mountain.
        room = max(0.0, 0.3 - (highest - lowest)) / 2 + 0.05
        axes.set_ylim(lowest - room, highest + room)
    axes.yaxis.set_major_formatter('{x:g}')


def _slice(point: quantum.Point, default: str, unit: str = '') -> str:
    return (default if point.slice_us is None
            else f'{point.slice_us / 1000:g}{unit}')


def _row_axes(rows: Sequence[Row], row_inches: float,
              ) -> tuple[Axes, list[float]]:
    """Axes with named rows, those that do not count set apart.

    :returns: them, and where the rows are
    """
    counting = sum(row.counts for row in rows)
    places = [place + (0 if row.counts else _GAP)
              for place, row in enumerate(rows)]
    end = places[-1] + 0.5
    axes = Figure(figsize=(
        _WIDTH, 1 + (end + 0.5) * row_inches)).add_subplot()
    axes.set_ylim(end, -0.5)
    axes.set_yticks(places, [short(row.name, _LABEL_CHARACTERS)
                             for row in rows])
    if counting < len(rows):
        first = counting - 0.4
        axes.axhspan(first, end, facecolor=_APART, linewidth=0, zorder=-1)
        axes.annotate(
            'weight 0: reported only, no part of the combined coefficient',
            (0, first), (4, -4), xycoords=('axes fraction', 'data'),
            textcoords='offset points', va='top', color=_MUTED, fontsize=9,
            bbox={'pad': 2, 'facecolor': _APART, 'linewidth': 0})
    return axes, places


def _lane(name: str, state: str, y: float, scores: Sequence[float]) -> _Lane:
    kept = estimate.without_outliers(scores)
    middle = statistics.median(scores)
    low, high = min(kept), max(kept)
    two = modes.find(scores)
    parts = [kept] if two is None else [
        [score for score in scores if (score < two.boundary) is is_slow]
        for is_slow in (True, False)]
    return _Lane(name, state, y, [sample / middle - 1 for sample in kept],
                 [sample / middle - 1 for sample in scores
                  if not low <= sample <= high],
                 two, [[sample / middle - 1 for sample in part]
                       for part in parts])


def _annotate_modes(axes: Axes, lane: _Lane, limit: float) -> None:
    """Say what two modes are, where there is the most room beside them.

    :param limit: of the axis, in either direction
    """
    if lane.two is None:
        return
    slow, fast = map(estimate.without_outliers, lane.parts)
    ends = (-limit, min(slow), max(slow), min(fast), max(fast), limit)
    left, right = max(((ends[i], ends[i + 1]) for i in (0, 2, 4)),
                      key=lambda room: room[1] - room[0])
    axes.annotate(f'{lane.two.share:.0%}: {lane.two.difference}',
                  ((left + right) / 2, lane.y), ha='center', va='center',
                  color=_OUTLIER, fontsize=9)


def _scatter(axes: Axes, lanes: Iterable[tuple[float, Sequence[float]]],
             **look: ty.Any) -> None:
    """Mark at most :data:`MAX_POINTS` of each lane, evenly chosen."""
    marks = [(xs[i * len(xs) // count],
              y + _LANE * ((i * _GOLDEN + 0.5) % 1 - 0.5))
             for y, xs in lanes
             for count in [min(len(xs), MAX_POINTS)] for i in range(count)]
    axes.plot([x for x, _ in marks], [y for _, y in marks],
              linestyle='none', markeredgewidth=0.9, **look)


def _legend(axes: Axes) -> None:
    axes.legend(loc='lower left', bbox_to_anchor=(0, 1), ncol=4,
                borderaxespad=0.2)


def _percent(share: float) -> str:
    """A share with its sign, in per cent; to a tenth unless it is large."""
    text = f'{share:+.0%}' if abs(share) >= 10 else f'{share:+.1%}'
    return f'{text[:-1]} %'.replace('-', '−')


def _percent_axis(axes: Axes, label: str) -> None:
    axes.xaxis.set_major_formatter(
        lambda share, _position: f'{round(100 * share, 6):+g} %'.replace(
            '-', '−') if share else '0')
    axes.set_xlabel(label)
