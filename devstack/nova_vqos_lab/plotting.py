# SPDX-License-Identifier: Apache-2.0
"""The look of the lab's pictures.

Importing this needs matplotlib, which the lab's packages do not bring.
"""

from collections.abc import Iterator
import contextlib

import matplotlib
from matplotlib.figure import Figure

#: Of the two hosts. None carries a meaning alone: a marker or a name does.
COLOURS = {'fast': '#0b5cad', 'slow': '#a85a00'}


@contextlib.contextmanager
def svg(path: str, width_in: float, height_in: float,
        salt: str) -> Iterator[Figure]:
    """Give a figure to draw on, and write it to an SVG file at the end.

    :param salt: of its ids, so that the same data make the same file
    """
    with matplotlib.rc_context({
            'svg.fonttype': 'none', 'svg.hashsalt': salt,
            'axes.spines.top': False, 'axes.spines.right': False,
            'axes.grid': True, 'axes.grid.axis': 'x', 'axes.axisbelow': True,
            'grid.color': '#d5dae0', 'figure.constrained_layout.use': True}):
        figure = Figure((width_in, height_in))
        yield figure
        # Dated by what it is committed with.
        figure.savefig(path, format='svg', metadata={'Date': None})
