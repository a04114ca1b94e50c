# SPDX-License-Identifier: Apache-2.0
"""Judgements of pools by the progress of servers there."""

import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import progress

UUID = '11111111-2222-4333-8444-555555555555'
POOL, OTHER_POOL = 'pool', 'other pool'
INTERVAL_S = 5.0
HOUR_LOOKS = 720


class Server:
    """A server that goes where the judge lets it.

    :ivar pool: that it is to be in
    """

    def __init__(self, by_place, deviation=0.0, seed=0):
        """
        :param by_place: its progress, by pool; None: where it floats
        """
        self.judge = progress.Judge()
        self.pool = None
        self.by_place = by_place
        self._deviation = deviation
        self._random = random.Random(seed)
        self._now_s = 0.0

    @property
    def place(self):
        return None if self.judge.undone(UUID) else self.pool

    def look(self, times=1):
        for _ in range(times):
            self.judge.place(UUID, self.place)
            self._now_s += INTERVAL_S
            found = self.by_place[self.place] + self._random.gauss(
                0, self._deviation)
            self.judge.look(UUID, min(1.0, max(0.0, found)), self._now_s)

    def come(self, pool=POOL):
        self.pool = pool
        self.look()


def test_a_worse_pool_is_undone():
    server = Server({None: 0.9, POOL: 0.8})
    server.look(10)
    server.come()
    server.look(30)
    assert server.place is None
    undone = server.judge.undone(UUID)
    assert (undone.before, undone.there) == pytest.approx((0.9, 0.8))
    assert server.judge.undone_count == 1


def test_it_is_tried_again_less_and_less():
    server = Server({None: 0.9, POOL: 0.8})
    server.look(10)
    server.come()
    server.look(11 * HOUR_LOOKS)
    # After one hour, two more, and four more.
    assert server.judge.undone_count == 4


def test_load_of_others_is_not_the_pool():
    server = Server({None: 0.9, POOL: 0.9})
    server.look(10)
    server.come()
    server.by_place = {None: 0.5, POOL: 0.5}
    server.look(40)
    assert server.place is POOL
    assert server.judge.undone_count == 1
    server.look(100)
    assert server.judge.undone_count == 1


@pytest.mark.parametrize('before, there', [
    (0.9, 0.9), (0.9, 0.88), (0.5, 0.9), (0.9, 1.0), (0.0, 0.0)])
def test_what_is_not_worse_stays(before, there):
    server = Server({None: before, POOL: there})
    server.look(10)
    server.come()
    server.look(HOUR_LOOKS)
    assert server.place is POOL
    assert server.judge.undone_count == 0


def test_without_a_time_before_there_is_no_judgement():
    """A server that came into its pool at once, or was hardly seen before."""
    server = Server({None: 0.9, POOL: 0.1})
    server.look(3)
    server.come()
    server.look(100)
    assert server.place is POOL


def test_a_pool_is_compared_with_the_one_before():
    server = Server({None: 0.9, POOL: 0.9, OTHER_POOL: 0.7})
    server.look(10)
    server.come()
    server.look(50)
    server.come(OTHER_POOL)
    server.look(50)
    assert server.place is None


def test_later_changes_are_not_those_of_the_pool():
    server = Server({None: 0.9, POOL: 0.9})
    server.look(10)
    server.come()
    server.look(50)
    server.by_place[POOL] = 0.3
    server.look(50)
    assert server.place is POOL


def test_who_is_gone_is_forgotten():
    server = Server({None: 0.9, POOL: 0.5})
    server.look(10)
    server.come()
    server.look(30)
    server.judge.retain(())
    assert server.place is POOL


@given(st.floats(0.2, 0.9), st.floats(0.0, 0.1), st.integers(0, 10**6))
def test_a_pool_that_changes_nothing_is_hardly_ever_undone(
        level, deviation, seed):
    """By chance it may be; then the server goes back."""
    server = Server({None: level, POOL: level}, deviation, seed)
    server.look(20)
    server.come()
    server.look(HOUR_LOOKS // 2)
    assert server.judge.undone_count <= 1
    assert server.place is POOL or server.judge.undone_count


def test_how_often_chance_undoes_a_pool():
    undone = 0
    for seed in range(500):
        server = Server({None: 0.6, POOL: 0.6}, 0.05, seed)
        server.look(24)
        server.come()
        server.look(30)
        undone += server.judge.undone_count
    assert undone <= 10


@given(st.floats(0.3, 0.9), st.integers(0, 10**6))
def test_a_pool_that_costs_a_third_is_undone(level, seed):
    server = Server({None: level, POOL: level * 2 / 3}, 0.05, seed)
    server.look(24)
    server.come()
    server.look(30)
    assert server.judge.undone_count == 1
