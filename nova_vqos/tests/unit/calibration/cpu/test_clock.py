# SPDX-License-Identifier: Apache-2.0
"""The clock at which a host was calibrated."""

import pathlib

import pytest

from nova_vqos.hypervisor.linux import perf
from nova_vqos.tests.unit.hypervisor.linux import test_clock

# Of pCPU 9 all is half.
MHZ = {0: 2900, 1: 3000, 9: 1450}
MS_NS = 1_000_000


class Group:
    """Counters of a pCPU, which runs 100 ms between two readings."""

    opened = 0

    def __init__(self, _events, thread, pcpu):
        assert thread == perf.ALL_THREADS
        self._mhz = MHZ[pcpu]
        self._ran_ms = 0
        Group.opened += 1

    def read(self):
        self._ran_ms += 100
        return perf.Counts(self._ran_ms * MS_NS, self._ran_ms * MS_NS, (
            self._ran_ms * self._mhz * 1000, self._ran_ms * 2_000_000,
            self._ran_ms * 2_000_000))

    def close(self):
        Group.opened -= 1


@pytest.fixture
def counters(sysroot, monkeypatch):
    test_clock.write_pmu(pathlib.Path(sysroot))
    monkeypatch.setattr(perf, 'Group', Group)


def test_each_class_has_its_own(calibrate, counters):
    made = calibrate([0, 1, 9]).measured
    assert {one.pcpus: one.clock_mhz for one in made.cpu_classes} == {
        frozenset({0, 1}): 2950.0, frozenset({9}): 1450.0}
    assert not Group.opened


def test_a_host_that_does_not_show_it(calibrate):
    made = calibrate([0, 1, 9]).measured
    assert {one.clock_mhz for one in made.cpu_classes} == {None}
