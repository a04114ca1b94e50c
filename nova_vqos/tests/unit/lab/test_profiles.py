# SPDX-License-Identifier: Apache-2.0
"""The reference that the lab's hosts are measured against."""

from nova_vqos.calibration import benchmark
from nova_vqos_lab import profiles


def test_each_benchmark_has_rounds_of_equal_work():
    assert set(profiles.ROUND_EVENTS) == set(benchmark.DEFAULT_SET)
