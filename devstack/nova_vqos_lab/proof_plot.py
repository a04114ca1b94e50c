# SPDX-License-Identifier: Apache-2.0
"""A picture of equalities: CPU time over the cap, and work by host.

Importing this needs matplotlib, which the lab's packages do not bring.
"""

from collections.abc import Sequence
import itertools
import typing as ty

from matplotlib.axes import Axes

from nova_vqos_lab import plotting
from nova_vqos_lab import visits

_HOSTS = ('fast', 'slow')
_MARKERS = {'fast': 'o', 'slow': 's'}
_WIDTH_IN, _HEIGHT_IN = 9, 4
# Points of a row are spread over this part of it, evenly.
_LANE, _GOLDEN = 0.5, 0.618034
_LENGTHS_S = (1, 10)
_PERCENT = 100


class Found(ty.Protocol):
    """What was found: a proof, or what tools/bench/kvm_equivalence.py found.

    :ivar stays: of a server on a host, with cpu_errors and visits
    """

    stays: Sequence[ty.Any]


def write(found: Found, path: str) -> None:
    """Draw what was found.

    :param path: of an SVG file
    """
    with plotting.svg(path, _WIDTH_IN, _HEIGHT_IN, 'proof') as figure:
        times, works = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_cpu_time(times, found)
        _draw_work(works, found)


def _draw_cpu_time(axes: Axes, found: Found) -> None:
    """Each later window, and each first one, which may have a quota more."""
    rows = []
    for length_s, host in itertools.product(_LENGTHS_S, _HOSTS):
        stays = [stay.cpu_errors[length_s] for stay in found.stays
                 if stay.host == host and stay.cpu_errors[length_s]]
        rows.append((f'{length_s} s on {host}, first', host,
                     [errors[0] for errors in stays]))
        rows.append((f'{length_s} s on {host}, later', host,
                     [error for errors in stays for error in errors[1:]]))
    tolerance = visits.CPU_TOLERANCE * _PERCENT
    axes.axvspan(-tolerance, tolerance, color='#d8ead8')
    _draw_rows(axes, rows)
    axes.set_xlabel('CPU time over the cap, %')


def _draw_work(axes: Axes, found: Found) -> None:
    """Work per CPU second of each visit, around the mean of all."""
    seen = [(stay.host, visit) for stay in found.stays
            for visit in stay.visits]
    mean = sum(visit.work for _, visit in seen) / len(seen)
    rows = [(host, host, [visit.work / mean - 1 for on, visit in seen
                          if on == host]) for host in _HOSTS]
    _draw_rows(axes, rows)
    axes.set_xlabel("work per CPU second\nover the calibration's guest's,\n"
                    'from the mean of both, %')


def _draw_rows(axes: Axes,
               rows: Sequence[tuple[str, str, Sequence[float]]]) -> None:
    """:param rows: name, host, and relative errors, from the top down"""
    for row, (_, host, errors) in enumerate(rows):
        heights = [row + _LANE * ((number * _GOLDEN) % 1 - 0.5)
                   for number in range(len(errors))]
        axes.plot([error * _PERCENT for error in errors], heights,
                  _MARKERS[host], color=plotting.COLOURS[host], markersize=3,
                  alpha=0.6, linestyle='none')
    axes.set_yticks(range(len(rows)),
                    [f'{name} ({len(errors)})' for name, _, errors in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axvline(0, color='#59636e', linewidth=0.8)
