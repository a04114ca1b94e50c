# SPDX-License-Identifier: Apache-2.0
"""The bench of units, on tables whose answers are known.

Where NOVA_VQOS_CPU_MATRIX names a table of measured CPUs, on that as well.
"""

import csv
import json
import math
import os
import random
import runpy
import sys

import pytest

from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout

CPUS, KINDS = 16, 14


@pytest.fixture
def bench(monkeypatch):
    made = runpy.run_path(str(project.TOP / 'tools/bench/kinds_matrix.py'))

    def run(path, *arguments):
        monkeypatch.setattr(sys, 'argv', [
            'kinds_matrix.py', '--data', str(path),
            '--json', f'{path}.json', '--draws', '3', *arguments])
        assert made['main']() == 0
        with open(f'{path}.json') as file:
            results = json.load(file)
        return results, {row['unit']: row for row in results['units']}
    return run


def write(path, speeds, latency=None):
    """A table of speeds, CPUs by kinds.

    :param latency: the column that is one
    """
    with open(path, 'w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(['provider_cpu', 'arch', *(
            'mem:lat' if kind == latency else f'kind {kind}, flat'
            for kind in range(len(speeds[0])))])
        for cpu, row in enumerate(speeds):
            writer.writerow([f'cloud cpu {cpu}', 'x86_64', *(
                1 / speed if kind == latency else speed
                for kind, speed in enumerate(row))])
    return path


def write_groups(path):
    """Three groups of kinds, each with a speed of its own on each CPU."""
    chance = random.Random(1)
    groups = [[math.exp(chance.gauss(0, 0.3)) for _ in range(3)]
              for _ in range(CPUS)]
    return write(path, [
        [of_cpu[kind % 3] * math.exp(chance.gauss(0, 0.01))
         for kind in range(KINDS)] for of_cpu in groups])


def test_kinds_that_are_alike(bench, tmp_path):
    """CPU n is 1.1 ** n as fast by all of them, a latency is the shorter."""
    path = write(tmp_path / 'table', [
        [1.1 ** cpu * (kind + 1) for kind in range(KINDS)]
        for cpu in range(CPUS)], latency=5)
    results, units = bench(path, '--sets', '2')
    assert (results['cpus'], results['kinds']) == (CPUS, KINDS)
    for unit, row in units.items():
        if unit == 'vcpu':
            # Of 120 pairs 15 are one step apart, 14 two: half are below 6.
            assert row['median'] == pytest.approx(5 * math.log(1.1))
            assert row['within_off_by'] is None
        else:
            assert row['median'] == pytest.approx(0, abs=1e-9)


def test_off_by_has_90_percent_in_it(bench, tmp_path):
    chance = random.Random(1)
    path = write(tmp_path / 'table', [
        [math.exp(chance.gauss(0, 0.2)) for _ in range(KINDS)]
        for _ in range(CPUS)])
    _, units = bench(path, '--sets', '4')
    for unit in ('host mean', 'host mean of 9'):
        assert 0.9 <= units[unit]['within_off_by'] <= 0.97


def test_a_kind_that_is_known(bench, tmp_path):
    path = write_groups(tmp_path / 'table')
    _, units = bench(path, '--sets', '2')
    assert units['kind known']['p90'] < 0.05
    assert units['3 groups known']['p90'] < 0.05
    assert units['host mean']['median'] > 0.1


def test_a_server_that_was_seen(bench, tmp_path):
    """It is like other kinds of its group, which the mean is not."""
    path = write_groups(tmp_path / 'table')
    _, units = bench(path, '--sets', '2', '--draws', '20')
    for seen in (3, 5, 8):
        learned, nearest = (units[f'{name} k={seen}']
                            for name in ('learned', 'nearest'))
        assert learned['median'] < units['host mean']['median'] / 4
        assert learned['last_median'] < units['host mean']['median'] / 4
        assert learned['within_off_by'] > 0.8
        assert nearest['within_off_by'] is None
    assert (units['learned k=8']['p90'] < units['learned k=3']['p90']
            < units['host mean']['p90'])


def test_too_few_cpus_for_a_history(bench, tmp_path):
    path = write(tmp_path / 'table', [
        [1.1 ** cpu for _ in range(KINDS)] for cpu in range(8)])
    _, units = bench(path, '--sets', '2', '--draws', '2')
    assert units['learned k=5']['median'] == pytest.approx(0, abs=1e-9)
    assert not {'learned k=8', 'nearest k=8'} & units.keys()


def test_what_was_not_measured(bench, tmp_path):
    speeds = [[1.1 ** cpu for _ in range(KINDS)] for cpu in range(CPUS)]
    path = write(tmp_path / 'table', speeds)
    rows = path.read_text().splitlines()
    rows[3] = rows[3].rpartition(',')[0] + ','
    path.write_text('\n'.join(rows) + '\n')
    _, units = bench(path, '--sets', '2')
    assert units['host mean']['median'] == pytest.approx(0, abs=1e-9)
    _, units = bench(path, '--sets', '2', '--aside', 'kind 0, flat')
    assert units['host mean']['median'] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(('text', 'arguments', 'says'), [
    ('', (), '0 CPUs and 0 kinds'),
    ('provider_cpu,arch,a\n', (), '0 CPUs and 1 kinds'),
    ('provider_cpu,arch,a,b,c,d,e,f\nx,y,1,2,3,4,5\n', (),
     'line 2: 7 columns, the first line has 8'),
    ('provider_cpu,arch,a,b,c,d,e,f\nx,y,1,2,no,4,5,6\n', (),
     "line 2: c is 'no', it may be a number above 0"),
    ('provider_cpu,arch,a,b,c,d,e,f\nx,y,1,-2,3,4,5,6\n', (), "b is '-2'"),
    (None, ('--kinds', '3'), '--kinds is 3, it may be from 4 to 13'),
    (None, ('--kinds', '14'), 'from 4 to 13'),
    (None, ('--sets', '0'), '--sets is 0, it may be from 1'),
    (None, ('--draws', '0'), '--draws is 0, it may be from 1'),
    (None, ('--aside', 'nbody'), 'nbody is no column')])
def test_what_is_refused(bench, tmp_path, capsys, text, arguments, says):
    path = write(tmp_path / 'table', [[1.0] * KINDS] * CPUS)
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit):
        bench(path, *arguments)
    assert says in ' '.join(capsys.readouterr().err.split())


@pytest.mark.requires('' if 'NOVA_VQOS_CPU_MATRIX' in os.environ
                      else 'NOVA_VQOS_CPU_MATRIX names no table')
def test_measured_cpus(bench, tmp_path, capsys):
    path = tmp_path / 'table'
    path.symlink_to(os.environ['NOVA_VQOS_CPU_MATRIX'])
    _, units = bench(path, '--draws', '100')
    with capsys.disabled():
        print(f'\n{capsys.readouterr().out}')
    for unit in ('host mean', 'host mean of 9'):
        assert units[unit]['within_off_by'] >= 0.9
    assert (units['kind known']['median'] < units['host mean']['median']
            < units['vcpu']['median'])
    for seen in (3, 5, 8):
        learned = units[f'learned k={seen}']
        assert learned['median'] < units[f'nearest k={seen}']['median']
        assert learned['within_off_by'] >= 0.85
