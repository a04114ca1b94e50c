# SPDX-License-Identifier: Apache-2.0
"""Rounds of measurements, in an order that favours no slice.

A machine's speed drifts while it is measured, and more so where others share
it. So each round measures everything once, in an order of chance.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import logging
import random
import statistics
import time

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import bench
from nova_vqos.calibration.run import Effort
from nova_vqos.profile import quantum

LOG = logging.getLogger(__name__)

#: Fewer rounds do not show their scatter.
LEAST_ROUNDS = 3
#: Where the servers together got less of the pCPU, others disturbed them.
LEAST_SHARE = 0.9

# What a cell takes beside its window: to settle, and for late answers.
_AROUND_S = 0.3
_LONGEST_WINDOW_S = 1.0
_LEAST_WINDOW_S = 0.3
# In a window there are so many turns of all vCPUs at the longest slice.
_TURNS = 1.5
_PROGRESS_S = 10

_random = random.SystemRandom()

Measure = Callable[[bench.Cell, float], bench.Sample | None]
Samples = Mapping[bench.Cell, Sequence[bench.Sample]]


def cells(kinds: Collection[str], slices_us: Collection[int],
          ) -> list[bench.Cell]:
    """All cells to measure, with the kernel's default."""
    return [bench.Cell(kind, runnable, slice_us)
            for kind in kinds for runnable in bench.RUNNABLE
            for slice_us in (None, *slices_us)]


def check_time(todo: Sequence[bench.Cell], max_s: float) -> None:
    """
    :raises CalibrationError: when there is no time for the least rounds
    """
    needed_s = LEAST_ROUNDS * len(todo) * (_least_window_s(todo) + _AROUND_S)
    if max_s < needed_s:
        raise CalibrationError(
            f'--max-seconds {max_s:g} is too little for {LEAST_ROUNDS} '
            f'rounds of {len(todo)} measurements: give {needed_s:.0f}, or '
            'fewer --kind or --slice')


def window_s(todo: Sequence[bench.Cell], max_s: float) -> float:
    """How long to measure each cell.

    :param max_s: for all of them; the window is never shorter than it has to
        be
    """
    fits_s = max_s / LEAST_ROUNDS / len(todo) - _AROUND_S
    return max(_least_window_s(todo), min(fits_s, _LONGEST_WINDOW_S))


def _least_window_s(todo: Sequence[bench.Cell]) -> float:
    return max(_LEAST_WINDOW_S, _TURNS / 1e6 * max(
        cell.runnable * (cell.slice_us or 0) for cell in todo))


def run(todo: Sequence[bench.Cell], measure: Measure,
        effort: Effort) -> dict[bench.Cell, list[bench.Sample]]:
    """Measure all cells by turns, until the time is up.

    After the least rounds, those come again that others disturbed too often.

    :raises CalibrationError: when one cannot be measured
    """
    length_s = window_s(todo, effort.max_s)
    began_s = logged_s = time.monotonic()
    taken: dict[bench.Cell, list[bench.Sample]] = {cell: [] for cell in todo}
    measured = 0
    for number in range(1, effort.max_rounds + 1):
        cells = list(todo)
        if number > LEAST_ROUNDS:
            each_s = (time.monotonic() - began_s) / measured
            left_s = began_s + effort.max_s - time.monotonic()
            cells = _more(taken, int(left_s / each_s))
        if not cells:
            break
        for done, cell in enumerate(_random.sample(cells, len(cells)), 1):
            sample = measure(cell, length_s)
            if sample is not None:
                taken[cell].append(sample)
            measured += 1
            if time.monotonic() - logged_s > _PROGRESS_S:
                logged_s = time.monotonic()
                LOG.info('  round %d, %d of %d; %s', number, done,
                         len(cells), _so_far(taken))
    return taken


def _more(taken: Samples, most: int) -> list[bench.Cell]:
    """The cells of one more round.

    :param most: how many there is time for
    :returns: those that were disturbed too often, as many as possible; else
        all or, where there is no time for these, none
    """
    lacking = [cell for cell, samples in taken.items()
               if len(quiet(samples)) < LEAST_ROUNDS]
    if lacking:
        return _random.sample(lacking, max(0, min(most, len(lacking))))
    return list(taken) if most >= len(taken) else []


def quiet(samples: Sequence[bench.Sample]) -> list[bench.Sample]:
    """The samples that others did not disturb."""
    return [one for one in samples if one.share >= LEAST_SHARE]


def points(kind: str, taken: Samples) -> list[quantum.Point]:
    """The points of a kind.

    Where some rounds of a cell were disturbed and others were not, only the
    latter count.

    :returns: none for numbers of vCPUs of which a cell has no sample
    """
    found = []
    for cell, samples in taken.items():
        if cell.kind != kind or not all(
                others for other, others in taken.items()
                if other[:2] == cell[:2]):
            continue
        undisturbed = quiet(samples)
        kept = undisturbed or samples
        runs = [one.mean_run_us for one in kept if one.mean_run_us]
        found.append(quantum.Point(
            cell.slice_us, cell.runnable,
            tuple(float(f'{one.value_ns:.6g}') for one in kept),
            tuple(float(f'{one.median_ns:.6g}') for one in kept
                  if one.median_ns),
            round(statistics.median(runs), 1) if runs else None,
            len(samples) - len(undisturbed)))
    return found


def _so_far(taken: Samples) -> str:
    """The least and most of each kind, relative to the kernel's default."""
    best = []
    for kind in dict.fromkeys(cell.kind for cell in taken):
        found = points(kind, {cell: samples for cell, samples in taken.items()
                              if samples})
        defaults = {point.runnable for point in found
                    if point.slice_us is None}
        known = [point for point in found if point.runnable in defaults]
        if known:
            costs = quantum.relative_costs(known)
            slice_us = min(costs, key=lambda one: costs[one])
            best.append(f'{kind} best at {slice_text(slice_us)}: '
                        f'{costs[slice_us]:.2f}')
    return ', '.join(best) or 'nothing yet'


def slice_text(slice_us: int | None) -> str:
    return 'default' if slice_us is None else f'{slice_us / 1000:g} ms'
