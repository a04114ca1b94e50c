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

"""Charts of slices, as the research draws them, for all kinds of work.

See :mod:`nova_vqos.calibration.drawing`.
"""

import math

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nova_vqos import quantum_profile
from nova_vqos.calibration import drawing

_COLUMNS = 3
# Inches.
_ROW = 2.5
_TOP = 0.75
_BOTTOM = 0.65
_BETWEEN = 0.75
_LEFT = 0.65
# Numbers of vCPUs on a pCPU, by rank: colour, marker, dashes. More than that
# repeat them.
_LOOKS = ((drawing.ALONE, 'o', '--'), (drawing.BUSY, 's', '-'),
          (drawing.OUTLIER, '^', ':'))
# Where most is so many times as much as least, equal factors are equally far.
_LOGARITHMIC = 4
# At least so much of the axis, that noise does not look like a mountain.
_LEAST_RANGE = 0.3


@drawing.style()
def curves(shown: quantum_profile.QuantumProfile, prefix: str,
           title: str) -> str:
    """What each kind of work cost by slice, relative to the default.

    :param prefix: of the ids in the SVG, one of its own in the page
    :returns: an SVG element
    """
    rows = math.ceil(len(shown.curves) / _COLUMNS)
    height = _TOP + rows * _ROW
    figure = Figure(figsize=(drawing.WIDTH, height))
    width = (drawing.WIDTH - _LEFT) / _COLUMNS
    runnables = sorted({runnable for curve in shown.curves
                        for runnable in curve.runnables})
    looks = {runnable: _LOOKS[rank % len(_LOOKS)]
             for rank, runnable in enumerate(runnables)}
    for number, curve in enumerate(shown.curves):
        row, column = divmod(number, _COLUMNS)
        axes = figure.add_axes((
            (_LEFT + column * width) / drawing.WIDTH,
            (height - _TOP - (row + 1) * _ROW + _BOTTOM) / height,
            (width - _BETWEEN) / drawing.WIDTH, (_ROW - _BETWEEN) / height))
        _draw(axes, curve, looks)
    figure.legend(
        handles=[Line2D([], [], color=colour, marker=marker, linestyle=dashes,
                        label=f'{runnable} vCPUs on a pCPU')
                 for runnable, (colour, marker, dashes) in looks.items()],
        loc='upper left', bbox_to_anchor=(0, 1), ncol=len(looks))
    return drawing.svg(figure, prefix, title, '; '.join(
        _in_words(curve, runnable) for curve in shown.curves
        for runnable in curve.runnables))


def _draw(axes: Axes, curve: quantum_profile.Curve,
          looks: dict[int, tuple[str, str, str]]) -> None:
    # With each number of vCPUs the same, the default's first.
    slices = [point.slice_us for point in curve.of(curve.runnables[0])]
    lowest = highest = 1.0
    for rank, runnable in enumerate(curve.runnables):
        points = curve.of(runnable)
        colour, marker, dashes = looks[runnable]
        costs = [curve.normalised(point) for point in points]
        least, most = ([
            cost * end(point.values_ns) / point.value_ns
            for cost, point in zip(costs, points, strict=True)]
            for end in (min, max))
        # Beside each other, not over each other.
        shift = 0.08 * (2 * rank - len(curve.runnables) + 1)
        axes.errorbar(
            [place + shift for place in range(len(points))], costs,
            # What is rounded may be below zero.
            yerr=([max(0.0, cost - low) for cost, low in zip(
                       costs, least, strict=True)],
                  [max(0.0, high - cost) for cost, high in zip(
                      costs, most, strict=True)]),
            color=colour, marker=marker, linestyle='none', markersize=4.5,
            capsize=2.5, elinewidth=1)
        # The default is no slice among others.
        axes.plot([place + shift for place in range(1, len(points))],
                  costs[1:], color=colour, linestyle=dashes, linewidth=1.3)
        lowest, highest = min(lowest, *least), max(highest, *most)
    axes.axhline(1, color=drawing.MUTED, linewidth=0.8)
    axes.grid(visible=True, axis='y')
    axes.grid(visible=False, axis='x')
    axes.set_xlim(-0.5, len(slices) - 0.5)
    axes.set_xticks(range(len(slices)), [
        'stock' if slice_us is None else f'{slice_us / 1000:g}'
        for slice_us in slices])
    axes.set_xlabel('slice in ms')
    axes.set_title(curve.kind, loc='left', fontsize=10, fontweight='bold')
    if curve.best_us is not None:
        axes.annotate('best', (slices.index(curve.best_us), 1),
                      xycoords=('data', 'axes fraction'), ha='center',
                      va='bottom', xytext=(0, 1), textcoords='offset points',
                      color=drawing.INK, fontsize=9)
    _scale(axes, lowest, highest)


def _scale(axes: Axes, lowest: float, highest: float) -> None:
    if highest / lowest > _LOGARITHMIC:
        axes.set_yscale('log')
        axes.set_ylim(lowest / 1.2, highest * 1.2)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        room = max(0.0, _LEAST_RANGE - (highest - lowest)) / 2 + 0.05
        axes.set_ylim(lowest - room, highest + room)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(
        lambda value, _position: f'{value:g}'))


def _in_words(curve: quantum_profile.Curve, runnable: int) -> str:
    """For those who do not see the chart."""
    return f'{curve.kind}, {runnable} vCPUs: ' + ', '.join(
        ('default' if point.slice_us is None
         else f'{point.slice_us / 1000:g} ms')
        + f' {curve.normalised(point):.3g}' for point in curve.of(runnable))
