# SPDX-License-Identifier: Apache-2.0
"""Preemptions of servers that spin, from records that the tests make up.

Real ones are in tests/host/test_preemptions.py.
"""

import errno

import pytest

from nova_vqos.agent.quantum import preemptions
from nova_vqos.quantum import sibling_preemptions

VCPUS = {0: 100, 1: 101}
S_NS = 1_000_000_000
BEGAN, PREEMPTED = (sibling_preemptions.Change.BEGAN,
                    sibling_preemptions.Change.PREEMPTED)


class Recorder:
    def __init__(self, kernel, thread):
        self._kernel = kernel
        self._thread = thread
        kernel.open.append(thread)

    def read(self):
        return self._kernel.turns.pop(self._thread, [])

    def close(self):
        self._kernel.open.remove(self._thread)


class Kernel:
    def __init__(self):
        self.open = []
        self.turns = {}
        self.errors = {}

    def record(self, thread):
        if thread in self.errors:
            raise OSError(self.errors[thread], 'x')
        return Recorder(self, thread)

    def run(self, seconds=2):
        """One runs all the time, one is preempted each second."""
        self.turns = {100: [
            sibling_preemptions.Turn(round(at_s * S_NS), change)
            for at_s, change in [(0, BEGAN), *(
                one for second in range(seconds) for one in (
                    (second + 0.5, PREEMPTED), (second + 1, BEGAN)))]],
            101: [sibling_preemptions.Turn(0, BEGAN),
                  sibling_preemptions.Turn(seconds * S_NS, PREEMPTED)]}


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def reader(kernel):
    return preemptions.PreemptionReader(kernel.record)


def test_a_rate(kernel, reader):
    assert reader.read(VCPUS) is None
    kernel.run()
    assert reader.read(VCPUS) == 1.5
    assert reader.read(VCPUS) is None


def test_a_short_while_shows_nothing(kernel, reader):
    reader.read(VCPUS)
    kernel.turns = {
        100: [sibling_preemptions.Turn(0, BEGAN),
              sibling_preemptions.Turn(S_NS // 100, PREEMPTED)],
        101: [sibling_preemptions.Turn(0, BEGAN),
              sibling_preemptions.Turn(S_NS // 100, PREEMPTED)]}
    assert reader.read(VCPUS) is None


def test_all_is_closed_that_is_not_asked_for(kernel, reader):
    reader.read(VCPUS)
    assert kernel.open == [100, 101]
    reader.retain({100, 102})
    assert kernel.open == [100]
    reader.read({0: 100, 1: 102})
    assert sorted(kernel.open) == [100, 102]
    reader.close()
    reader.close()
    assert kernel.open == []


def test_one_vcpu_has_no_other(kernel, reader):
    reader.read({0: 100})
    assert kernel.open == []


@pytest.mark.parametrize('error, said', [
    (errno.EACCES, True), (errno.ENOBUFS, True), (errno.ESRCH, False)])
def test_all_vcpus_are_recorded_or_none(kernel, reader, caplog, error, said):
    caplog.set_level('INFO')
    kernel.errors[101] = error
    for _ in range(3):
        assert reader.read(VCPUS) is None
    assert kernel.open == []
    assert len(caplog.records) == said
    kernel.errors.clear()
    reader.read(VCPUS)
    kernel.run()
    assert reader.read(VCPUS) == 1.5


def test_buffers_are_bounded(kernel, reader, caplog):
    caplog.set_level('INFO')
    for _ in range(3):
        for number in range(600):
            reader.read({0: 2 * number, 1: 2 * number + 1})
    assert len(kernel.open) == 1024
    assert len(caplog.records) == 1
