# SPDX-License-Identifier: Apache-2.0
"""Reservations of I/O threads that follow what these use."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import guarantee
from nova_vqos.agent.guarantee import io_share
from nova_vqos.hypervisor import base

# Of one vCPU with 30 % of a pCPU: the least is 2.5 %.
ENTITLED = Fraction(30, 100)
LEAST = Fraction(25, 1000)

SHARES = st.fractions(Fraction(1, 100), Fraction(9, 10))


class Threads:
    """Two threads of I/O and one vCPU, looked at once a second."""

    def __init__(self, limited=ENTITLED):
        self.limited = limited
        self.io = io_share.IoShare()
        self._now_s = 100.0
        self._ran = {'io': [0.0, 0.0], 'vcpu': [0.0]}

    def split(self):
        return io_share.Split.make(ENTITLED, self.limited, 1, self.io.share)

    def follow(self, io, vcpu, looks=4):
        """Use so much of a pCPU for some looks.

        :param vcpu: None: that cannot be read
        :returns: what each I/O thread and the vCPU have then
        """
        for _ in range(looks):
            self._now_s += 1
            self._ran['io'][1] += io
            self._ran['vcpu'][0] += vcpu or 0
            vcpus = self._runs('vcpu') if vcpu is not None else {}
            self.io.follow(self._now_s, self.split(), self._runs('io'),
                           vcpus if self.io.needs_vcpus else {})
        found = self.split()
        return found.io, found.vcpu

    def _runs(self, kind):
        return {number: base.ThreadRun(int(ran_s * 1e9), 0, 1)
                for number, ran_s in enumerate(self._ran[kind])}


def test_it_rises_where_vcpus_leave_it():
    assert Threads().follow(io=0.016, vcpu=0.05) == (
        Fraction(48, 1000), ENTITLED - 2 * Fraction(23, 1000))


def test_one_that_has_just_come_has_it_at_the_second_look():
    assert Threads().follow(io=0.016, vcpu=0.05, looks=2)[0] > LEAST


def test_little_use_changes_nothing():
    threads = Threads()
    assert threads.follow(io=0.009, vcpu=0.05) == (LEAST, ENTITLED)
    assert not threads.io.needs_vcpus


def test_vcpus_keep_most_of_theirs():
    io, vcpu = Threads().follow(io=0.2, vcpu=0)
    assert (io, vcpu) == (LEAST + ENTITLED / 8, ENTITLED * 3 / 4)


@pytest.mark.parametrize('vcpu', [0.3, None])
def test_it_does_not_rise_where_vcpus_need_theirs(vcpu):
    """Or where what they need is not known."""
    assert Threads().follow(io=0.024, vcpu=vcpu) == (LEAST, ENTITLED)


def test_vcpus_have_theirs_back_at_the_next_look():
    threads = Threads()
    _io, kept = threads.follow(io=0.2, vcpu=0)
    # All of what they have by then.
    assert threads.follow(io=0.2, vcpu=float(kept), looks=1) == (
        LEAST, ENTITLED)


def test_it_falls_as_use_does():
    threads = Threads()
    raised, _ = threads.follow(io=0.05, vcpu=0)
    assert raised > LEAST
    # Not at once.
    assert threads.follow(io=0.015, vcpu=0)[0] == raised
    assert threads.follow(io=0.001, vcpu=0) == (LEAST, ENTITLED)
    assert not threads.io.needs_vcpus


def test_what_a_server_pays_for_its_io_is_there_for_it():
    """Also where its vCPUs use all that they have."""
    limited = ENTITLED * 9 / 10
    assert Threads(limited).follow(io=0.05, vcpu=float(limited)) == (
        LEAST + (ENTITLED - limited) / 2, limited)


def test_other_threads_after_a_restart_are_not_compared():
    one = io_share.IoShare()
    split = io_share.Split.make(ENTITLED, ENTITLED, 1, None)
    one.follow(1.0, split, {7: base.ThreadRun(0, 0, 0)}, {})
    one.follow(2.0, split, {8: base.ThreadRun(10**9, 0, 0)}, {})
    assert one.share is None


@given(SHARES, st.integers(1, 64), SHARES,
       st.lists(st.tuples(st.floats(0, 1.2), st.floats(0, 1.2)), max_size=8))
def test_a_server_never_has_more_than_it_costs(entitled, vcpus, paid, uses):
    """And its vCPUs keep three quarters, less what it pays."""
    one = io_share.IoShare()
    limited = entitled * (1 - paid / 2)
    ran_io = ran_vcpu = 0.0
    for second, (io, vcpu) in enumerate(uses, 1):
        split = io_share.Split.make(entitled, limited, vcpus, one.share)
        assert (split.vcpu * vcpus + split.io * guarantee.IO_THREADS
                <= guarantee.cost_pcpus(entitled, vcpus))
        assert min(limited, entitled * 3 / 4) <= split.vcpu <= limited
        assert split.io >= guarantee.io_share(entitled, vcpus)
        ran_io, ran_vcpu = ran_io + io, ran_vcpu + vcpu
        one.follow(float(second), split,
                   {1: base.ThreadRun(int(ran_io * 1e9), 0, 0)},
                   {0: base.ThreadRun(int(ran_vcpu * 1e9), 0, 0)})
