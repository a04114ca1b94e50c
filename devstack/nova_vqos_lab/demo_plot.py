# SPDX-License-Identifier: Apache-2.0
"""A picture of the demo: promised and delivered speed, before and after moves.

Importing this needs matplotlib, which the lab's packages do not bring.
"""

from collections.abc import Iterable
import math

from matplotlib.axes import Axes

from nova_vqos_lab import gauge
from nova_vqos_lab import plotting
from nova_vqos_lab import process
from nova_vqos_lab import results

_WIDTH_IN, _HEIGHT_IN = 9, 3.4
_INK = '#1c2128'
# A server each: where it boots, and where it is after its live migration.
_SERVERS = (('stock', 'fast', 'slow'), ('units', 'fast', 'slow'),
            ('units', 'slow', 'fast'))
_NAMES = {'stock': 'stock Nova', 'units': 'nova_vqos'}
_MOMENTS = {'boot': 'booted on {host}', 'migrated': 'moved to {host}'}
# Between servers, in rows.
_GAP = 0.6


def write(measurements: Iterable[results.Measurement], path: str) -> None:
    """Draw the speed of the servers that the demo follows, on each host.

    :param measurements: in any order; others are left out
    :param path: of an SVG file
    :raises LabError: where there is no such measurement
    """
    by_moment = {(one.story, one.host, one.moment): one
                 for one in measurements
                 if one.work == gauge.CALIBRATED
                 and one.promised_cu == gauge.PROMISED_CU}
    rows = [(number * (2 + _GAP) + step, by_moment[key])
            for number, (story, first, then) in enumerate(_SERVERS)
            for step, key in enumerate(((story, first, 'boot'),
                                        (story, then, 'migrated')))
            if key in by_moment]
    if not rows:
        raise process.LabError('there is nothing to draw: no speed of a '
                               'server was measured')
    with plotting.svg(path, _WIDTH_IN, _HEIGHT_IN, 'demo') as figure:
        axes = figure.subplots()
        for row, one in rows:
            _draw(axes, row, one)
        axes.plot([one.raw_cu for _, one in rows], [row for row, _ in rows],
                  'D', color='white', markeredgecolor=_INK, markersize=5,
                  linestyle='none',
                  label='at the speed that the machine had then')
        axes.axvline(gauge.PROMISED_CU, color=_INK, linewidth=1.5,
                     linestyle='--', label='promised')
        axes.set_yticks([row for row, _ in rows],
                        [_label(one) for _, one in rows])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel('delivered CU (bars: at the speed that the machine '
                        'had in the calibration, with 95 % intervals)')
        figure.legend(loc='outside upper center', ncols=2, frameon=False)


def _draw(axes: Axes, row: float, one: results.Measurement) -> None:
    axes.barh(row, one.delivered_cu, color=plotting.COLOURS[one.host])
    if one.uncertainty is not None and math.isfinite(one.uncertainty):
        axes.errorbar(one.delivered_cu, row,
                      xerr=one.delivered_cu * one.uncertainty,
                      color=_INK, capsize=3, linewidth=1)
    axes.annotate(f'{one.delivered_cu:.1f}', (0, row), (6, 0),
                  textcoords='offset points', color='white', va='center',
                  weight='bold')


def _label(one: results.Measurement) -> str:
    return f'{_NAMES[one.story]}, {_MOMENTS[one.moment].format(host=one.host)}'
