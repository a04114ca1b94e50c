# SPDX-License-Identifier: Apache-2.0
"""What the bench of KVM makes of what it measured."""

import json
import runpy

import pytest

from nova_vqos.tests.fixtures import project
from nova_vqos_lab import equivalence
from nova_vqos_lab import process
from nova_vqos_lab import visits

CAPS = {'fast': (20_000, 50_000), 'slow': (40_000, 50_000)}


@pytest.fixture(scope='module')
def results():
    return runpy.run_path(
        str(project.TOP / 'tools/bench/work_equivalence.py'))


@pytest.fixture
def found(results):
    def make(*, cycles=8, server=(1.0, 1.0), beside=(1.0, 1.0), later=0.0):
        """:param server: rounds per CPU second, on both hosts
        :param beside: of the calibration's guest
        :param later: CPU time over the cap in a later window of 10 s
        """
        stays = []
        for number, count in enumerate(visits.counts(cycles)):
            at = number % 2
            visit = results['Visit'](*(results['Blocks'](
                (7e4 * rounds[at],) * visits.VISIT_BLOCKS,
                (1e8,) * visits.VISIT_BLOCKS)
                for rounds in (server, beside)))
            host = results['HOSTS'][at]
            stays.append(results['Stay'](
                host, (visit,) * count,
                {1: (0.05, -0.01), 10: (0.005, later)}, CAPS[host], 0.003))
        return results['Found']({'cycles': cycles}, tuple(stays))
    return make


def test_equal_hosts(found):
    made = found()
    assert made.is_shown
    assert {one.mean for one in made.differences().values()} == {0}
    assert made.blocks() == {'fast': 208, 'slow': 208}
    assert made.work().verdict == 'equal'
    assert ' NOT ' not in made.table()


def test_what_both_guests_lose_is_no_difference(found):
    made = found(server=(0.9, 1.0), beside=(0.9, 1.0))
    assert made.work().mean == pytest.approx(0)
    assert made.is_shown
    server, beside = list(made.differences().values())[1:3]
    assert server.mean == beside.mean == pytest.approx(-0.1)


def test_a_server_that_does_less_on_fast(found):
    made = found(server=(0.96, 1.0))
    assert made.work().verdict == 'unequal'
    assert not made.is_shown
    # Each host is as it was.
    *_, fast, slow = made.differences().values()
    assert fast.mean == slow.mean == pytest.approx(0)


def test_cpu_time_is_judged_for_itself(found):
    made = found(later=-0.004)
    assert made.work().is_shown_equal
    assert not made.is_shown
    assert 'CPU time is NOT the cap' in made.table()


def test_a_block_without_cpu_time_counts_nothing(results):
    blocks = results['Blocks']((70.0, 0.0, 7.0), (10.0, 0.0, 1.0))
    assert blocks.work == 7e9


def test_a_visit_without_cpu_time_is_refused(results):
    with pytest.raises(process.LabError, match='others use its pCPU'):
        results['Blocks']((0.0, 0.0), (0.0, 0.0))


def test_few_cycles_have_no_control(found):
    made = found(cycles=equivalence.LEAST_CYCLES)
    assert made.is_shown
    assert len(made.differences()) == 3


def test_a_report_is_json(found):
    read = json.loads(json.dumps(found().report()))
    assert read['is_shown'] is True
    assert len(read['stays']) == 17
    assert {one['verdict'] for one in read['differences'].values()} == {
        'equal'}
