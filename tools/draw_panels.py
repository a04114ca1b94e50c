#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Draws the panels of the dashboards, by a Prometheus that is asked.

For machines without Grafana, and to preview it: one picture for each
dashboard, of the same queries. Where Prometheus is in a network namespace
of the lab, run it there (devstack/lab shell, or nsenter --net):

  tools/draw_panels.py --prometheus http://127.0.0.1:9090 --minutes 5 \
      --host 198.18.0.11:19177 --server UUID --directory build/panels
"""

import argparse
import json
import math
import pathlib
import sys
import time
import typing as ty
import urllib.parse
import urllib.request

import matplotlib
import matplotlib.axes
import matplotlib.figure

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from nova_vqos.tests.fixtures import dashboards

_STEPS = 120
_COLUMNS = 3
_LONGEST_LEGEND = 40

Series = list[dict[str, ty.Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=(
        argparse.RawDescriptionHelpFormatter))
    parser.add_argument('--prometheus', default='http://127.0.0.1:9090')
    parser.add_argument('--minutes', type=float, default=60)
    parser.add_argument('--host', default='', help='of the host dashboard')
    parser.add_argument('--server', default='', help='of the server dashboard')
    parser.add_argument('--directory', type=pathlib.Path,
                        default=pathlib.Path('build/panels'))
    options = parser.parse_args()
    matplotlib.use('Agg')
    options.directory.mkdir(parents=True, exist_ok=True)
    for name in dashboards.DASHBOARDS:
        path = options.directory / f'{name}.png'
        draw(name, options).savefig(path, dpi=70)
        print(path)
    return 0


def draw(name: str, options: argparse.Namespace
         ) -> matplotlib.figure.Figure:
    """:returns: all panels of a dashboard."""
    panels = dashboards.panels(name)
    rows = math.ceil(len(panels) / _COLUMNS)
    figure = matplotlib.figure.Figure(figsize=(18, 3.4 * rows),
                                      layout='constrained')
    axes = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    for panel, ax in zip(panels, axes, strict=False):
        draw_panel(panel, ax, options)
    for ax in axes[len(panels):]:
        ax.axis('off')
    figure.suptitle(f'nova_vqos: {name}')
    return figure


def draw_panel(panel: tuple[str, str, list[tuple[str, str]]],
               ax: matplotlib.axes.Axes,
               options: argparse.Namespace) -> None:
    title, unit, queries = panel
    ax.set_title(f'{title} [{unit.removeprefix("suffix: ")}]', fontsize=10)
    for query, legend in queries:
        for one in ask(dashboards.with_values(
                query, host=options.host, server=options.server), options):
            points = [(float(at_s), float(value))
                      for at_s, value in one['values']]
            ax.plot([(at_s - time.time()) / 60 for at_s, _ in points],
                    [value for _, value in points],
                    label=legend_of(legend, one['metric']))
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    ax.set_xlabel('minutes', fontsize=8)
    ax.grid(visible=True, alpha=0.3)
    if ax.lines:
        ax.legend(fontsize=7)
    else:
        ax.text(0.5, 0.5, 'no data', transform=ax.transAxes, ha='center')


def legend_of(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace(f'{{{{{name}}}}}', value)
    return legend[:_LONGEST_LEGEND] or '-'


def ask(query: str, options: argparse.Namespace) -> Series:
    """:returns: what Prometheus answers for the time that is drawn."""
    now_s = time.time()
    parameters = urllib.parse.urlencode({
        'query': query, 'start': now_s - options.minutes * 60, 'end': now_s,
        'step': max(1, options.minutes * 60 / _STEPS)})
    # The address is an argument of the one who runs this.
    with urllib.request.urlopen(  # nosec B310
            f'{options.prometheus}/api/v1/query_range?{parameters}',
            timeout=60) as answer:
        found: Series = json.load(answer)['data']['result']
    return found


if __name__ == '__main__':
    sys.exit(main())
