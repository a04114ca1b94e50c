# SPDX-License-Identifier: Apache-2.0
"""What visits are divided into."""

import numpy as np
import pytest

from nova_vqos_lab import meter
from nova_vqos_lab import visits


def test_stays_are_whole_cycles():
    assert visits.counts(1) == [1, 2, 1]
    assert visits.counts(4) == [1, 2, 2, 2, 2, 2, 2, 2, 1]
    hosts = [host for stay, count in enumerate(visits.counts(4))
             for host in 'AB'[stay % 2] * count]
    assert [''.join(cycle) for cycle in visits.in_cycles(hosts)] == [
        'ABBA'] * 4


def test_a_cycle_that_is_not_whole_is_left_out():
    assert visits.in_cycles(range(7)) == [(0, 1, 2, 3)]
    assert visits.in_cycles(range(3)) == []


def test_blocks_are_of_ten_periods():
    edges_ns = visits.block_edges_ns(7, period_us=50_000)
    assert len(edges_ns) == visits.VISIT_BLOCKS + 1
    assert edges_ns[0] == 7
    assert set(np.diff(edges_ns)) == {500_000_000}


@pytest.mark.parametrize(('errors', 'is_exact'), [
    # A quota of 20 ms is 0.5 % of 4 s.
    ((0.0,), True), ((0.0079,), True), ((0.0081,), False),
    ((-0.0031,), False), ((0.005, 0.0029, -0.0029), True),
    ((0.005, 0.0031), False), ((0.005, -0.0031), False)])
def test_a_first_window_may_have_one_quota_more(errors, is_exact):
    assert visits.is_cpu_time_exact(errors, share=0.4,
                                    quota_s=0.02) is is_exact


def test_how_long_the_machine_stood_still():
    at_ms = np.delete(np.arange(0, 3001, 2), slice(600, 750))
    server = meter.Series(at_ms * 10**6, at_ms * 10**6, at_ms)
    assert visits.still(server, 1) == pytest.approx((0, 0.302, 0))
