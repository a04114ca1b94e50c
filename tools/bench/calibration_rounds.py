#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many rounds a calibration takes, and how often it is right.

Simulated scores of one pCPU: independent ones, and such that drift (AR(1): a
score has so much of the one before it), of a true mean that is known. The
intervals are nova_vqos' own, and those that take rounds for independent, both
looked at after each round as a calibration does. Nothing is timed: the output
is the same on each machine.
"""

import argparse
import math
import random
import statistics

from nova_vqos.calibration import estimate
from nova_vqos.calibration import run
from nova_vqos.calibration.cpu import measure
from nova_vqos.calibration.cpu import steps

LEAST_ROUNDS = 8
SCATTERS = (0.005, 0.01, 0.02, 0.03, 0.05)
ALIKE = (0.0, 0.5, 0.9)


def scores(chance, rounds, alike, scatter):
    """Of rounds with a true mean of 1."""
    found = [chance.gauss(0, 1)]
    for _ in range(rounds - 1):
        found.append(alike * found[-1]
                     + math.sqrt(1 - alike ** 2) * chance.gauss(0, 1))
    return [1 + scatter * one for one in found]


def as_if_independent(samples):
    """:returns: the mean, and half the interval"""
    kept = estimate.without_outliers(samples)
    return statistics.fmean(kept), (
        estimate.student_t(len(kept) - 1) * statistics.stdev(kept)
        / math.sqrt(len(kept)))


def before(samples, effort):
    """:returns: rounds, the mean, half the interval"""
    for rounds in range(LEAST_ROUNDS, len(samples) + 1):
        mean, half = as_if_independent(samples[:rounds])
        if 2 * half <= effort.max_interval * mean:
            break
    return rounds, mean, half


def now(samples, effort):
    """:returns: rounds, the mean, half the interval"""
    rounds = next(
        rounds for rounds in range(1, len(samples) + 1)
        if steps.is_enough(effort, [[samples[:rounds]]], 0, math.inf))
    found = estimate.estimate(samples[:rounds])
    return rounds, found.mean, found.high - found.mean


def judge(ended):
    """Rounds, and the shares that were right and that are refused."""
    return (statistics.fmean(rounds for rounds, _mean, _half in ended),
            statistics.fmean(abs(mean - 1) <= half
                             for _rounds, mean, half in ended),
            statistics.fmean(2 * half > measure.WIDEST_INTERVAL * mean
                             for _rounds, mean, half in ended))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
    parser.add_argument('--series', type=int, default=500,
                        help='calibrations of each sort, default: %(default)s')
    arguments = parser.parse_args()
    effort = run.Effort(measure.EFFORT.max_rounds)
    print('                as if independent         honest\n'
          'alike scatter  rounds  right refused   rounds  right refused')
    for alike in ALIKE:
        for scatter in SCATTERS:
            chance = random.Random(1)
            made = [scores(chance, effort.max_rounds, alike, scatter)
                    for _ in range(arguments.series)]
            print(f'{alike:5.1f} {scatter:7.1%}', *(
                '{:8.1f} {:6.0%} {:7.0%}'.format(*judge(
                    [end(one, effort) for one in made]))
                for end in (before, now)), flush=True)


if __name__ == '__main__':
    main()
