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

"""Charts of how fast pCPUs are, see :mod:`nova_vqos.calibration.drawing`."""

from collections.abc import Iterable, Mapping, Sequence
import statistics
import typing as ty

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from nova_vqos import profile as profiles
from nova_vqos.calibration import combine
from nova_vqos.calibration import drawing
from nova_vqos.calibration import estimate

#: Of each measurement at most as many samples are drawn.
MAX_POINTS = 150
#: The states of a measurement, as :class:`nova_vqos.profile.CpuClass` has
#: them.
STATES = ('alone', 'busy')

_STATE_COLOURS = {'alone': drawing.ALONE, 'busy': drawing.BUSY}
_STATE_MARKERS = {'alone': 'o', 'busy': 's'}
_DASHES = {'alone': '--', 'busy': '-'}

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


class Speed(ty.NamedTuple):
    """A row of :func:`speeds`: equal pCPUs of a host."""

    label: str
    cpu_class: profiles.CpuClass


@drawing.style()
def speeds(rows: Sequence[Speed], prefix: str, title: str) -> str:
    """Combined coefficients, alone and busy, with their intervals.

    :param prefix: of the ids in the SVG, one of its own in the page
    :returns: an SVG element
    """
    axes = drawing.row_axes(range(len(rows)), [row.label for row in rows],
                            0.45, left=drawing.LEFT_OF_HOSTS)
    for state in STATES:
        _points(axes, state, range(len(rows)),
                [getattr(row.cpu_class, state) for row in rows])
    _coefficient_axis(axes)
    drawing.legend(axes, [_state_handle(state) for state in STATES])
    return drawing.svg(axes.figure, prefix, title, '; '.join(
        f'{row.label}: {_in_words(row.cpu_class)}' for row in rows))


@drawing.style()
def coefficients(cpu_class: profiles.CpuClass, reference: profiles.Reference,
                 prefix: str, title: str) -> str:
    """Coefficients by each benchmark, around the combined ones."""
    places = _places(reference)
    axes = drawing.row_axes(places.values(), places, 0.45)
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
    drawing.legend(axes, handles)
    return drawing.svg(axes.figure, prefix, title, '; '.join([
        f'combined: {_in_words(cpu_class)}', *(
            f'{name}: ' + _in_words(_scores(cpu_class, name))
            for name in places)]))


@drawing.style()
def samples(cpu_class: profiles.CpuClass, reference: profiles.Reference,
            prefix: str, title: str) -> str:
    """How the samples of each benchmark scatter around their median."""
    places = _places(reference)
    axes = drawing.row_axes(places.values(), places, 0.62)
    _set_apart(axes, reference, places)
    lanes = [_Lane(score, state, places[score.benchmark])
             for state in STATES
             for score in getattr(cpu_class, state).scores]
    limit = _MARGIN * max(_LEAST_SPREAD, *(
        abs(sample) for lane in lanes for sample in lane.kept))
    # Room for the triangles at the edge.
    axes.set_xlim(-limit * 1.03, limit * 1.03)
    axes.axvline(0, color=drawing.MUTED, linewidth=0.8)
    for lane in lanes:
        lane.draw(axes, limit)
    drawing.percent_axis(
        axes, 'off the median of the same benchmark and state')
    drawing.legend(axes, [
        *map(_state_handle, STATES),
        Patch(facecolor='none', edgecolor=drawing.INK, label='middle half'),
        Line2D([], [], color=drawing.OUTLIER, marker='x', linestyle='none',
               label='outlier')])
    return drawing.svg(axes.figure, prefix, title, '; '.join(
        f'{lane.name}: {len(lane.kept) + len(lane.outliers)} samples, '
        f'{drawing.percent(min(lane.kept))} to '
        f'{drawing.percent(max(lane.kept))}, and '
        f'{len(lane.outliers)} outliers' for lane in lanes))


@drawing.style()
def errors(found: Mapping[str, float], reference: profiles.Reference,
           prefix: str, title: str) -> str:
    """How far servers of each kind of work are from their promise.

    :param found: of each benchmark that has one, see
        :func:`nova_vqos.calibration.combine.error`
    """
    places = _places(reference)
    axes = drawing.row_axes(places.values(), places, 0.36,
                            top=drawing.TOP_BARE)
    _set_apart(axes, reference, places)
    for name, error in found.items():
        counts = bool(reference.benchmark(name).weight)
        axes.barh(places[name], error, 0.6, linewidth=1,
                  color=drawing.BUSY if counts else drawing.PAPER,
                  edgecolor=drawing.BUSY, hatch=None if counts else '////')
        axes.annotate(
            drawing.percent(error), (error, places[name]), va='center',
            xytext=(4 if error >= 0 else -4, 0), textcoords='offset points',
            ha='left' if error >= 0 else 'right')
    axes.axvline(0, color=drawing.INK, linewidth=1)
    # Room for the numbers beside the bars.
    low, high = min(0.0, *found.values()), max(0.0, *found.values())
    room = 0.16 * max(high - low, 0.01)
    axes.set_xlim(low - room, high + room)
    drawing.percent_axis(axes,
                  'speed delivered beyond (+) or short of (−) the promise')
    return drawing.svg(axes.figure, prefix, title, '; '.join(
        f'{name}: {drawing.percent(error)}' for name, error in found.items()))


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
                      color='none', edgecolor=drawing.INK, linewidth=1,
                      zorder=3)
        is_crowded = len(self.kept) > _CROWDED
        self._mark(axes, thinned(self.kept), _STATE_MARKERS[self._state],
                   colour, markersize=2.3 if is_crowded else 3.2,
                   markerfacecolor=drawing.PAPER if self._state == 'alone'
                   else colour)
        outliers = thinned(self.outliers)
        self._mark(axes, [s for s in outliers if abs(s) <= limit], 'x',
                   drawing.OUTLIER, markersize=5)
        for marker, end, those in (
                ('<', -limit, [s for s in outliers if s < -limit]),
                ('>', limit, [s for s in outliers if s > limit])):
            self._mark(axes, [end] * len(those), marker, drawing.OUTLIER,
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


def _set_apart(axes: Axes, reference: profiles.Reference,
               places: Mapping[str, float]) -> None:
    """Make visible which rows do not count."""
    others = [places[b.name] for b in reference.benchmarks if not b.weight]
    if others:
        top = min(others) - _GAP - 0.5 + 0.1
        axes.axhspan(top, max(others) + 0.5, facecolor=drawing.APART,
                     linewidth=0, zorder=-1)
        axes.axhline(top, color=drawing.MUTED, linewidth=0.8, linestyle=':')
        axes.annotate(
            'weight 0: reported only, no part of the combined coefficient',
            (0, top), xycoords=('axes fraction', 'data'), xytext=(4, -4),
            textcoords='offset points', va='top', color=drawing.MUTED,
            fontsize=9, fontstyle='italic', bbox={
                'boxstyle': 'square,pad=0.15', 'facecolor': drawing.APART,
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
        elinewidth=1.2,
        markerfacecolor=drawing.PAPER if state == 'alone' else colour)


def _coefficient_axis(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(
        lambda value, _position: f'{value:g}'))
    axes.set_xlabel(
        'coefficient: times as fast as the reference (1 is 100 CU)')


def _state_handle(state: str) -> Line2D:
    colour = _STATE_COLOURS[state]
    return Line2D([], [], color=colour, marker=_STATE_MARKERS[state],
                  linestyle='none', label=state, markersize=5.5,
                  markerfacecolor=(drawing.PAPER if state == 'alone'
                                   else colour))


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
