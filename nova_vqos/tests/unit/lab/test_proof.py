# SPDX-License-Identifier: Apache-2.0
"""What the proof makes of what it measured."""

import itertools
import json

import numpy as np
import pytest

from nova_vqos_lab import meter
from nova_vqos_lab import proof
from nova_vqos_lab import visits

CYCLES = 4
BLOCKS = visits.VISIT_BLOCKS
MS = 10**6


def make_proof(*, work=(1.0, 1.0), share=(0.3, 0.6), rounds=(1.0, 1.0),
               first=0.0, later=0.0):
    """A server of a host that is two times as fast, and one that is not.

    :param work: per CPU second, over that of the calibration's guest, on both
    :param share: of a pCPU that it uses, on both
    :param rounds: of the calibration's guest, over its calibration
    :param first: error of CPU time in a first window of 10 s
    :param later: and in another
    """
    stays = []
    for number, count in enumerate([1, *[2] * (2 * CYCLES - 1), 1]):
        host = number % 2
        pace = tuple((2e9, 1e9)[host] * (1 + 0.1 * (block % 2))
                     for block in range(BLOCKS))
        works = tuple(one * work[host] for one in pace)
        visit = proof.Visit(tuple(one * share[host] for one in works), works,
                            pace, rounds[host])
        stays.append(proof.Stay(
            ('fast', 'slow')[host], not number, (visit,) * count,
            {1: (0.01, -0.01), 60: (), 10: (
                first, later) if number == 3 else (0.0, 0.0)},
            0.02, share[host], share[host] / 10, 0.004))
    return proof.Proof(tuple(stays), {'fast': 200.0, 'slow': 100.0})


def test_a_server_that_is_as_promised():
    found = make_proof()
    assert found.is_shown
    for difference in found.differences().values():
        assert difference.mean == pytest.approx(0, abs=1e-9)


def test_work_that_differs_by_host():
    found = make_proof(work=(1.0, 0.97))
    assert found.work().mean == pytest.approx(1 / 0.97 - 1)
    assert not found.is_shown


@pytest.mark.parametrize(('first', 'later', 'is_exact'), [
    # One quota in 10 s is 1 %.
    (0.0, 0.0, True), (0.01, 0.0, True), (0.014, 0.0, False),
    (-0.004, 0.0, False), (0.0, 0.004, False), (0.0, -0.004, False)])
def test_cpu_time_is_not_excused_by_work(first, later, is_exact):
    found = make_proof(first=first, later=later)
    assert found.is_cpu_time_exact is is_exact
    assert found.work().is_shown_equal
    assert found.is_shown is is_exact


def test_a_wrong_profile_shows():
    """Hosts by their profiles differ more than they do."""
    made = make_proof(share=(0.3 / 1.05, 0.6), rounds=(1 / 1.05, 1.0))
    speed, hosts = list(made.differences().values())[1:]
    assert speed.mean == pytest.approx(1 / 1.05 - 1)
    assert hosts.mean == pytest.approx(1 / 1.05 - 1)


def test_it_is_written(tmp_path):
    found = make_proof()
    found.write(str(tmp_path / 'found.json'))
    written = json.loads((tmp_path / 'found.json').read_text())
    assert len(written['stays']) == 2 * CYCLES + 1
    assert {one['is_shown_equal']
            for one in written['differences'].values()} == {True}
    assert sum(len(visit['works']) for one in written['stays']
               for visit in one['visits']) == 4 * CYCLES * BLOCKS


class SteadyPace:
    """As fast as it was calibrated."""

    def between(self, began_s, ended_s):
        assert ended_s - began_s == pytest.approx(BLOCKS)
        return 1.0


def test_a_stay_by_its_samples():
    """Of a server that retires 2 a nanosecond, in 30 of each 100 ms."""
    at_ms = np.arange(0, 16_000, 2)
    used_ms = at_ms // 100 * 30 + np.minimum(at_ms % 100, 30)
    server = meter.Series(at_ms * MS, used_ms * MS, used_ms * 2 * MS)
    beside = meter.Series(at_ms * MS, at_ms * MS // 2, at_ms * MS)
    visit = proof._visit(server, beside, SteadyPace(), 2_000 * MS)
    assert visit.speeds == pytest.approx([0.6e9] * BLOCKS)
    assert visit.works == pytest.approx([2e9] * BLOCKS)
    assert visit.paces == pytest.approx([2e9] * BLOCKS)
    assert visit.work == pytest.approx(1)
    stay = proof._stay('fast', True, server, (visit,), 0.03, 0.1)
    assert len(stay.cpu_errors[1]) == 15
    assert len(stay.cpu_errors[10]) == 1
    assert stay.cpu_errors[60] == ()
    for error in itertools.chain(*stay.cpu_errors.values()):
        assert error == pytest.approx(0, abs=1e-6)
    assert stay.first_second == pytest.approx(0, abs=1e-6)
    assert stay.longest_gap_s == pytest.approx(0.002)
