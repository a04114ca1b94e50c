#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How well units predict work that is no part of them, on a table of CPUs.

The table has a row for each CPU and a column for each kind of work: the first
row names the columns, provider_cpu and arch are no kinds of work, and an empty
cell was not measured. More is faster, but in columns whose name says latency
(lat, latency). For each kind of work in turn, and each pair of CPUs, the other
kinds are the benchmarks of a profile, with equal weights, and the work's own
ratio of speeds is compared with what a unit promises:

vcpu
    no calibration: a vCPU is a vCPU.
host mean
    one coefficient a host, as the product combines it: the geometric mean.
median of ratios
    for comparison: the median of the ratios of the two CPUs, as no product can
    promise, and that of ratios to a third CPU, the reference, of which it can.
kind known
    the coefficient of one benchmark: the one that is most like the work on
    half of the CPUs. Pairs are of the others.
3 groups known
    three coefficients a host: the kinds make three groups by half of the CPUs
    (k-means), and the work is known to be of the group that is most like it
    there. Pairs are of the others.
learned k=3, 5, 8
    the prediction of nova_vqos.learning, with the mean of the kinds as prior:
    the work is a server that was seen on k CPUs, and comes to one more. All
    are drawn by chance, --draws times for each kind of work. A row is left out
    where no k + 1 CPUs have the same work. Kinds that all of them have count.
nearest k=3, 5, 8
    for comparison, on the same draws: the mean ratio of the three kinds whose
    ratios to the work vary least over the CPUs seen.

An error is |ln(real ratio / promised ratio)|. within_off_by is the share of
work that is no further off than the product's off_by says, for the pairs with
a coefficient. Of learned it is the share of real ratios within the
prediction's own interval of 90 %.

The ratio of learned and nearest is that of the speed on the next CPU to the
geometric mean of the speeds on those seen. last_median and last_p90 are for
the ratio to the last one seen alone, with the factors of both by the same
history: what a server sees that moved between them.

Then sets of --kinds kinds are drawn by chance: the errors of their means, by
all other kinds of work, and how much is within off_by.

It needs NumPy, of the test requirements, and nothing but this checkout:

    python tools/bench/kinds_matrix.py --data cpu_matrix.csv --json FILE
"""

import argparse
import csv
import itertools
import json
import math
import pathlib
import re
import sys
import typing as ty

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_vqos import learning
from nova_vqos import units
from nova_vqos.calibration.cpu import combine

NAMES = ('provider_cpu', 'arch')
LEAST_CPUS = 6
LEAST_KINDS = combine.LEAST_KINDS + 1
GROUPS = 3
# Divisions of the CPUs into two halves, each of which chooses for the other.
HALVES = 8
STARTS = 10
SEEN = (3, 5, 8)
NEAREST = 3
# Of a speed in the table, as a logarithm: servers of one CPU model differ.
VARIANCE = 0.01 ** 2
SEED = 17

_LATENCY = re.compile(r'(?<![a-z])lat(ency)?(?![a-z])')
_GREATEST = 1e30


class Matrix(ty.NamedTuple):
    """Speeds of CPUs by kinds of work.

    :ivar kinds: names of the columns
    :ivar logs: logarithms of speeds, CPUs by kinds; NaN: not measured
    """

    kinds: list
    logs: np.ndarray

    def without(self, names):
        """The matrix without columns that are set aside."""
        unknown = set(names) - set(self.kinds)
        if unknown:
            raise ValueError(f'{", ".join(sorted(unknown))} is no column: '
                             f'they are {", ".join(self.kinds)}')
        kept = [i for i, name in enumerate(self.kinds) if name not in names]
        return Matrix([self.kinds[i] for i in kept], self.logs[:, kept])


class Errors:
    """Of one unit.

    :ivar within: whether each is within off_by, where there is one
    """

    def __init__(self):
        self.errors, self.within = [], []

    def add(self, errors, bounds=None):
        """:param bounds: off_by of each, as a logarithm"""
        measured = ~np.isnan(errors)
        self.errors.append(errors[measured])
        if bounds is not None:
            self.within.append((errors <= bounds)[measured])

    def result(self, unit):
        errors = np.concatenate(self.errors)
        return {'unit': unit, 'median': float(np.median(errors)),
                'p90': float(np.quantile(errors, 0.9)),
                'within_off_by': (float(np.concatenate(self.within).mean())
                                  if self.within else None)}


def read(path):
    """:raises ValueError: when the file is no such table"""
    with open(path, newline='', encoding='utf-8') as file:
        rows = list(csv.reader(file))
    header = rows[0] if rows else []
    columns = [i for i, name in enumerate(header) if name not in NAMES]
    logs = []
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise ValueError(f'{path}, line {line}: {len(row)} columns, the '
                             f'first line has {len(header)}')
        logs.append([_log(path, line, header[i], row[i]) for i in columns])
    if len(logs) < LEAST_CPUS or len(columns) < LEAST_KINDS:
        raise ValueError(
            f'{path}: {len(logs)} CPUs and {len(columns)} kinds of work, '
            f'there must be {LEAST_CPUS} and {LEAST_KINDS}')
    return Matrix([header[i] for i in columns], np.array(logs))


def _log(path, line, name, text):
    if not text.strip():
        return math.nan
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < _GREATEST:
        raise ValueError(f'{path}, line {line}: {name} is {text!r}, it may be '
                         'a number above 0, or empty')
    log = math.log(speed)
    return -log if _LATENCY.search(name.lower()) else log


def pairs(hosts):
    """Of CPUs; the other order of each has the same error."""
    return np.array(list(itertools.combinations(hosts, 2))).T


def ratios(logs, of_pairs):
    """:returns: logarithms of the ratios of speeds, pairs by kinds"""
    return logs[of_pairs[0]] - logs[of_pairs[1]]


def promise(known):
    """What the product makes of the benchmarks of a profile.

    :param known: logarithms of ratios, pairs by kinds
    :returns: the coefficients, and off_by, as logarithms, by pair
    """
    made = np.empty((2, len(known)))
    for pair, row in enumerate(known):
        coefficients = np.exp(row[~np.isnan(row)]).tolist()
        weights = [1.0] * len(coefficients)
        made[0, pair] = math.log(units.mean_coefficient(
            zip(weights, coefficients, strict=True)))
        found = combine.off_by(coefficients, weights)
        made[1, pair] = math.nan if found is None else math.log1p(found)
    return made


def whole(matrix):
    """Units by all kinds of work but the one that is judged."""
    found = {unit: Errors() for unit in (
        'vcpu', 'host mean', 'median of ratios', 'median by a reference')}
    of_pairs = pairs(range(len(matrix.logs)))
    chance = np.random.default_rng(SEED)
    for judged in range(len(matrix.kinds)):
        real = ratios(matrix.logs[:, judged], of_pairs)
        known = np.delete(matrix.logs, judged, axis=1)
        apart = ratios(known, of_pairs)
        mean, bound = promise(apart)
        found['vcpu'].add(np.abs(real))
        found['host mean'].add(np.abs(real - mean), bound)
        found['median of ratios'].add(
            np.abs(real - np.nanmedian(apart, axis=1)))
        reference = chance.integers(len(known))
        found['median by a reference'].add(np.abs(real - ratios(
            np.nanmedian(known - known[reference], axis=1), of_pairs)))
    return [errors.result(unit) for unit, errors in found.items()]


def halves(matrix):
    """Units of a known kind, chosen by one half of the CPUs for the other."""
    found = {unit: Errors() for unit in ('kind known', '3 groups known')}
    chance = np.random.default_rng(SEED)
    for _ in range(HALVES):
        order = chance.permutation(len(matrix.logs))
        middle = len(order) // 2
        for chosen_by, hosts in ((order[:middle], order[middle:]),
                                 (order[middle:], order[:middle])):
            _judge_half(matrix.logs[chosen_by], matrix.logs[hosts], chance,
                        found)
    return [errors.result(unit) for unit, errors in found.items()]


def _judge_half(before, logs, chance, found):
    of_pairs = pairs(range(len(logs)))
    complete = ~np.isnan(before).any(axis=0) & ~np.isnan(logs).any(axis=0)
    for judged in range(logs.shape[1]):
        work = before[:, judged]
        others = np.flatnonzero(complete & (np.arange(logs.shape[1])
                                            != judged))
        if np.isnan(work).all():
            continue
        real = ratios(logs[:, judged], of_pairs)
        _, bound = promise(ratios(logs[:, others], of_pairs))
        kinds = [[kind] for kind in others]
        groups = [others[members] for members in _groups(
            before[:, others], chance)]
        for unit, choices in (('kind known', kinds),
                              ('3 groups known', groups)):
            best = min(choices, key=lambda one: _unlike(
                work, before[:, one].mean(axis=1)))
            coefficient = ratios(logs[:, best], of_pairs).mean(axis=1)
            found[unit].add(np.abs(real - coefficient), bound)


def _unlike(work, coefficient):
    """How much a kind of work differs from a coefficient over CPUs."""
    return np.nanvar(work - coefficient)


def _groups(logs, chance):
    """Kinds of work that are like each other, by k-means.

    :param logs: CPUs by kinds
    :returns: the places of the kinds in each group
    """
    points = (logs - logs.mean(axis=1, keepdims=True))
    points = (points - points.mean(axis=0)).T
    best = None
    for _ in range(STARTS):
        centres = points[chance.permutation(len(points))[:GROUPS]]
        nearest = None
        while True:
            apart = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
            before, nearest = nearest, apart.argmin(axis=1)
            if before is not None and (before == nearest).all():
                break
            centres = np.array([
                points[nearest == i].mean(axis=0) if (nearest == i).any()
                else centres[i] for i in range(GROUPS)])
        spread = apart.min(axis=1).sum()
        if best is None or spread < best[0]:
            best = spread, nearest
    return [members for i in range(GROUPS)
            if len(members := np.flatnonzero(best[1] == i))]


class Learned(Errors):
    """Of a server's own history.

    :ivar last: the errors of ratios to the last CPU seen
    """

    def __init__(self):
        super().__init__()
        self.last = []

    def result(self, unit):
        return super().result(unit) | {
            'last_median': float(np.median(self.last)),
            'last_p90': float(np.quantile(self.last, 0.9))}


def learned(matrix, seen, draws):
    """Units that a server corrects, seen on so many CPUs.

    :returns: none where the table has too few
    """
    own, nearest = Learned(), Errors()
    chance = np.random.default_rng(SEED)
    for judged in range(len(matrix.kinds)):
        work = matrix.logs[:, judged]
        measured = np.flatnonzero(~np.isnan(work))
        others = np.delete(np.arange(len(matrix.kinds)), judged)
        for _ in range(draws if len(measured) > seen else 0):
            hosts = chance.permutation(measured)[:seen + 1]
            kinds = chance.permutation(others)[:learning.MOST_KINDS]
            logs = matrix.logs[np.ix_(hosts, kinds)]
            logs = logs[:, ~np.isnan(logs).any(axis=0)]
            if logs.shape[1] >= combine.LEAST_KINDS:
                _judge_history(logs, work[hosts], own)
                _judge_nearest(logs, work[hosts], nearest)
    return [errors.result(f'{name} k={seen}')
            for name, errors in (('learned', own), ('nearest', nearest))
            if errors.errors]


def _judge_history(logs, speeds, found):
    """:param logs: of the kinds on the CPUs seen and, last, on the next one"""
    # As a profile has them: relative to one CPU, the reference.
    kinds = [{f'kind-{kind}': math.exp(log) for kind, log in enumerate(row)}
             for row in (logs - logs[-1]).tolist()]
    history = learning.History(tuple(
        learning.Observation(of_cpu, speed, VARIANCE)
        for of_cpu, speed in zip(kinds[:-1], speeds[:-1].tolist(),
                                 strict=True)))
    here, last = (learning.predict(history, of_cpu, dict.fromkeys(of_cpu, 1.0))
                  for of_cpu in (kinds[-1], kinds[-2]))
    # Each speed over that which the prior promises.
    own = speeds - logs.mean(axis=1)
    real = own[-1] - own[:-1].mean()
    found.add(np.abs([real - math.log(here.factor)]))
    found.within.append([math.log(here.low) <= real <= math.log(here.high)])
    found.last.append(abs(own[-1] - own[-2]
                          - math.log(here.factor / last.factor)))


def _judge_nearest(logs, speeds, found):
    unlike = np.var(speeds[:-1, None] - logs[:-1], axis=0)
    best = logs[:, np.argsort(unlike)[:NEAREST]].mean(axis=1)
    error = speeds - best
    found.add(np.abs([error[-1] - error[:-1].mean()]))


def drawn(matrix, kinds, sets):
    """Sets of so many kinds, drawn by chance, and all other work."""
    errors, by_median, bounds, moved = Errors(), Errors(), [], []
    of_pairs = pairs(range(len(matrix.logs)))
    chance = np.random.default_rng(SEED)
    complete = np.flatnonzero(~np.isnan(matrix.logs).any(axis=0))
    for _ in range(sets):
        chosen = chance.permutation(complete)[:kinds]
        mean, bound = promise(ratios(matrix.logs[:, chosen], of_pairs))
        median, other = (ratios(np.median(
            matrix.logs[:, chosen] - matrix.logs[reference, chosen], axis=1),
            of_pairs) for reference in chance.permutation(
                len(matrix.logs))[:2])
        moved.append(np.abs(median - other))
        bounds.append(bound)
        for judged in np.delete(np.arange(len(matrix.kinds)), chosen):
            real = ratios(matrix.logs[:, judged], of_pairs)
            errors.add(np.abs(real - mean), bound)
            by_median.add(np.abs(real - median))
    return errors.result(f'host mean of {kinds}') | {
        'sets': sets, 'median_off_by': float(np.median(bounds))}, \
        by_median.result(f'median of {kinds} by a reference') | {
            'moved_median': float(np.median(moved)),
            'moved_p90': float(np.quantile(moved, 0.9))}


def run(matrix, kinds, sets, draws):
    """:returns: what is written as JSON"""
    complete = (~np.isnan(matrix.logs).any(axis=0)).sum()
    if not combine.LEAST_KINDS <= kinds < complete:
        raise ValueError(
            f'--kinds is {kinds}, it may be from {combine.LEAST_KINDS} to '
            f'{complete - 1}: of the columns without an empty cell at least '
            'one must remain to be judged')
    return {'cpus': len(matrix.logs), 'kinds': len(matrix.kinds),
            'units': [*whole(matrix), *halves(matrix),
                      *itertools.chain.from_iterable(
                          learned(matrix, seen, draws) for seen in SEEN),
                      *drawn(matrix, kinds, sets)]}


def show(results):
    """Print the table."""
    print(f'{results["cpus"]} CPUs, {results["kinds"]} kinds of work')
    print(f'{"unit":28} {"median":>8} {"p90":>8} {"within off_by":>14}')
    for row in results['units']:
        within = row['within_off_by']
        print(f'{row["unit"]:28} {row["median"]:8.1%} {row["p90"]:8.1%} '
              f'{"" if within is None else format(within, ".1%"):>14}')
    for row in results['units']:
        if 'median_off_by' in row:
            print(f'{row["unit"]}: {row["sets"]} sets, off_by of half of the '
                  f'pairs is below {math.expm1(row["median_off_by"]):.0%}')
        if 'last_p90' in row:
            print(f'{row["unit"]}: against the last CPU seen '
                  f'{row["last_median"]:.1%}, at the 90th percentile '
                  f'{row["last_p90"]:.1%}')
        if 'moved_p90' in row:
            print(f'{row["unit"]}: with another reference the ratio of two '
                  f'CPUs moves by {row["moved_median"]:.1%}, at the 90th '
                  f'percentile by {row["moved_p90"]:.1%}')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
    parser.add_argument('--data', metavar='CSV', required=True,
                        help='the table')
    parser.add_argument('--json', metavar='FILE',
                        help='also write the results there')
    parser.add_argument('--aside', metavar='COLUMN', action='append',
                        default=[], help='leave a kind of work out; may be '
                        'repeated')
    parser.add_argument('--kinds', type=int, default=9,
                        help='of each set that is drawn, default: %(default)s')
    parser.add_argument('--sets', type=int, default=40,
                        help='how many are drawn, default: %(default)s')
    parser.add_argument('--draws', type=int, default=100,
                        help='of CPUs that a server was seen on, for each '
                        'kind of work, default: %(default)s')
    arguments = parser.parse_args()
    try:
        if not 1 <= arguments.draws <= 10_000:
            raise ValueError(f'--draws is {arguments.draws}, it may be from 1 '
                             'to 10000')
        if not 1 <= arguments.sets <= 10_000:
            raise ValueError(f'--sets is {arguments.sets}, it may be from 1 '
                             'to 10000')
        results = run(read(arguments.data).without(arguments.aside),
                      arguments.kinds, arguments.sets, arguments.draws)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    show(results)
    if arguments.json:
        with open(arguments.json, 'w', encoding='utf-8') as file:
            json.dump(results, file, indent=2)
            file.write('\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
