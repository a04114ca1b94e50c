# SPDX-License-Identifier: Apache-2.0
"""How long vCPUs work at a time, and when that is too long."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos.agent.quantum import awake_times
from nova_vqos.hypervisor import base

LIMIT_US = 800


class Vcpus:
    """Counters of vCPUs, of which a test says what they do."""

    def __init__(self, *numbers):
        self.runs = dict.fromkeys(numbers, base.ThreadRun(10**9, 0, 100))
        self.sleeps = dict.fromkeys(numbers, 50)
        self.found = awake_times.AwakeTimes()
        self.read()

    def work(self, number, work_us, times=1000, sleeps=True):
        """Wake, work for so long, and sleep, so many times."""
        before = self.runs[number]
        self.runs[number] = before._replace(
            run_ns=before.run_ns + int(work_us * 1000) * times)
        if sleeps:
            self.sleeps[number] += times

    def read(self):
        self.found.update(self.runs, self.sleeps, LIMIT_US)


@pytest.fixture
def vcpus():
    return Vcpus(0, 1)


def test_each_vcpu(vcpus):
    assert vcpus.found.us == {}
    vcpus.work(0, 500)
    vcpus.work(1, 1500)
    vcpus.read()
    assert vcpus.found.us == {0: 500.0, 1: 1500.0}
    assert [number for number in (0, 1)
            if vcpus.found.is_too_long(number)] == [1]


def test_nothing_is_known_at_first(vcpus):
    assert not vcpus.found.is_too_long(0)
    assert not vcpus.found.is_too_long(7)


def test_one_that_never_sleeps(vcpus):
    vcpus.work(0, 5_000_000, times=1, sleeps=False)
    vcpus.read()
    assert vcpus.found.us == {0: 5_000_000.0}
    assert vcpus.found.is_too_long(0)


def test_little_work_counts_with_the_next(vcpus):
    for _ in range(3):
        vcpus.work(0, 1000, times=15)
        vcpus.read()
    assert vcpus.found.us == {0: 1000.0}
    vcpus.work(0, 100, times=10)
    vcpus.read()
    assert vcpus.found.us == {0: 1000.0}


def test_about_as_long_changes_nothing(vcpus):
    for part, is_too_long in (
            (1.15, False), (1.25, True), (1.15, True), (1.05, False)):
        for _ in range(3):
            vcpus.work(0, part * LIMIT_US)
            vcpus.read()
        assert vcpus.found.is_too_long(0) is is_too_long


def test_one_reading_alone_changes_nothing(vcpus):
    for work_us in (300, 300, 9000, 300, 300, 9000):
        vcpus.work(0, work_us)
        vcpus.read()
        assert not vcpus.found.is_too_long(0)
        assert vcpus.found.us == {0: 300.0}
    vcpus.work(0, 9000)
    vcpus.read()
    assert vcpus.found.is_too_long(0)


def test_others_are_forgotten(vcpus):
    for number in 0, 1:
        vcpus.work(number, 1500)
    vcpus.read()
    vcpus.found.retain({1})
    assert vcpus.found.us == {1: 1500.0}
    assert not vcpus.found.is_too_long(0)
    assert vcpus.found.is_too_long(1)
    # What it did meanwhile was other work.
    vcpus.work(0, 5000)
    vcpus.read()
    assert vcpus.found.us == {1: 1500.0}


@pytest.mark.parametrize('counters', ['runs', 'sleeps'])
def test_one_that_is_not_read(vcpus, counters):
    vcpus.work(0, 1500)
    vcpus.read()
    before = getattr(vcpus, counters).pop(0)
    vcpus.read()
    assert vcpus.found.us == {}
    assert not vcpus.found.is_too_long(0)
    getattr(vcpus, counters)[0] = before
    vcpus.read()
    assert vcpus.found.us == {}


def test_another_thread_is_another_one(vcpus):
    vcpus.work(0, 1500)
    vcpus.read()
    vcpus.runs[0] = base.ThreadRun(10**9, 0, 1)
    vcpus.read()
    assert vcpus.found.us == {}
    vcpus.work(0, 300)
    vcpus.read()
    assert vcpus.found.us == {0: 300.0}


@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 5000)),
                min_size=1, max_size=20))
def test_between_the_shortest_and_the_longest(work):
    vcpus = Vcpus(0)
    for work_us, times in work:
        vcpus.work(0, work_us, times)
        vcpus.read()
        if 0 in vcpus.found.us:
            assert (min(one for one, _times in work) - 0.1
                    <= vcpus.found.us[0]
                    <= max(one for one, _times in work) + 0.1)
