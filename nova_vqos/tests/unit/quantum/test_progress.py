# SPDX-License-Identifier: Apache-2.0
"""The judge tries servers without their pools, and decides where they go."""

import random

import pytest

from nova_vqos.quantum import progress

INTERVAL_S = 5.0
HOUR_LOOKS = 720
POOL, OTHER_POOL = 'pool', 'other pool'
Phase = progress.Phase


class Host:
    """Servers that go where the judge lets them.

    :ivar pools: of each server
    :ivar found: of each server, its progress by pool; None: without one
    """

    def __init__(self, *found, deviation=0.0, seed=0):
        self.judge = progress.Judge()
        self.uuids = [f'server-{number}' for number in range(len(found))]
        self.found = dict(zip(self.uuids, found, strict=True))
        self.pools = dict.fromkeys(self.uuids, POOL)
        self.threads = {uuid: {number}
                        for number, uuid in enumerate(self.uuids)}
        self.now_s = 0.0
        self._deviation = deviation
        self._random = random.Random(seed)

    def place_of(self, uuid):
        return None if self.judge.phase(uuid).floats else self.pools[uuid]

    def look(self, times=1):
        for _ in range(times):
            for uuid in self.uuids:
                self.judge.place(uuid, self.threads[uuid], self.pools[uuid],
                                 is_there=True)
            self.now_s += INTERVAL_S
            self.judge.look({
                uuid: min(1.0, max(0.0, found + self._random.gauss(
                    0, self._deviation)))
                for uuid in self.uuids
                if (found := self.progress_of(uuid)) is not None}, self.now_s)

    def progress_of(self, uuid):
        found = self.found[uuid][self.place_of(uuid)]
        return found(self) if callable(found) else found

    def phases(self):
        return [self.judge.phase(uuid) for uuid in self.uuids]


def server(pool, without):
    return {POOL: pool, None: without}


def test_a_pool_that_is_worse_is_undone():
    host = Host(server(0.5, 0.9))
    host.look(60)
    assert host.phases() == [Phase.OUT]
    verdict = host.judge.verdict(host.uuids[0])
    assert (verdict.pool, verdict.without) == pytest.approx((0.5, 0.9))
    assert host.judge.undone == 1


@pytest.mark.parametrize('pool, without', [
    (0.5, 0.5), (0.5, 0.51), (0.9, 0.5), (0.0, 0.0)])
def test_a_pool_that_is_as_good_is_not(pool, without):
    host = Host(server(pool, without))
    host.look(60)
    assert host.phases() == [Phase.POOL]
    assert not host.judge.verdict(host.uuids[0]).is_worse
    assert host.judge.undone == 0


def test_one_that_does_not_wait_is_not_tried():
    host = Host(server(0.98, 1.0))
    host.look(HOUR_LOOKS)
    assert host.judge.verdict(host.uuids[0]) is None


def test_nor_is_one_that_is_in_no_pool():
    host = Host({None: 0.5})
    host.pools[host.uuids[0]] = None
    host.look(HOUR_LOOKS)
    assert host.judge.verdict(host.uuids[0]) is None


def trials(host, looks):
    """:returns: when each begins, in looks"""
    found, before = [], host.phases()
    for number in range(looks):
        host.look()
        now = host.phases()
        if now != before and Phase.TRIAL in now:
            found.append(number)
        before = now
    return found


@pytest.mark.parametrize('without', [0.5, 0.9])
def test_it_is_tried_again_less_and_less(without):
    host = Host(server(0.5, without))
    begun = trials(host, 16 * HOUR_LOOKS)
    hours = [round((after - before) / HOUR_LOOKS, 1)
             for before, after in zip(begun, begun[1:], strict=False)]
    assert hours[:3] == pytest.approx([1, 2, 4], abs=0.1)


def test_another_result_holds_for_an_hour_again():
    host = Host(server(0.5, 0.9))
    host.look(4 * HOUR_LOOKS)
    host.found[host.uuids[0]] = server(0.5, 0.5)
    while host.judge.verdict(host.uuids[0]).is_worse:
        host.look()
    assert host.judge.hold_s(host.uuids[0]) == 3600


def test_few_are_tried_at_a_time():
    host = Host(*(server(0.5 + number / 200, 0.9) for number in range(30)))
    most = 0
    for _ in range(HOUR_LOOKS - 60):
        host.look()
        most = max(most, host.phases().count(Phase.TRIAL))
    assert most == 3
    assert Phase.POOL not in host.phases()


def test_the_one_that_waits_most_is_first():
    host = Host(server(0.8, 0.9), server(0.2, 0.9))
    host.look(14)
    assert host.phases() == [Phase.POOL, Phase.TRIAL]


def test_one_that_moves_all_the_time_is_not_tried():
    host = Host({POOL: 0.5, OTHER_POOL: 0.5, None: 0.9})
    for number in range(100):
        host.pools[host.uuids[0]] = (POOL, OTHER_POOL)[number % 2]
        host.look(6)
    assert host.judge.verdict(host.uuids[0]) is None


@pytest.mark.parametrize('ends', [0, 3])
def test_one_that_ends_its_work_in_a_trial_goes_back(ends):
    host = Host(server(0.5, 0.9))
    while host.phases() != [Phase.TRIAL]:
        host.look()
    host.look(ends)
    host.found[host.uuids[0]] = server(None, None)
    host.look(40)
    assert host.phases() == [Phase.POOL]


def test_a_verdict_ends_while_a_server_is_idle():
    host = Host(server(0.5, 0.9))
    host.look(60)
    assert host.phases() == [Phase.OUT]
    host.found[host.uuids[0]] = server(None, None)
    host.look(HOUR_LOOKS)
    assert host.phases() == [Phase.POOL]


def test_another_run_begins_anew():
    host = Host(server(0.5, 0.9))
    host.look(60)
    host.threads[host.uuids[0]] = {99}
    host.look()
    assert host.phases() == [Phase.POOL]
    host.look(60)
    assert host.phases() == [Phase.OUT]


def test_one_that_is_not_where_it_is_to_be_is_not_judged():
    host = Host(server(0.5, 0.9))
    while host.phases() != [Phase.TRIAL]:
        host.look()
    for _ in range(40):
        host.judge.place(host.uuids[0], {0}, POOL, is_there=False)
        host.judge.look({host.uuids[0]: 0.9}, host.now_s)
    # It was not seen anywhere, so nothing was found.
    assert host.phases() == [Phase.POOL]
    assert host.judge.verdict(host.uuids[0]) is None
    host.now_s += 600
    host.look(60)
    assert host.phases() == [Phase.OUT]


def test_a_vcpu_that_is_plugged_in_changes_nothing():
    host = Host(server(0.5, 0.9))
    host.look(60)
    host.threads[host.uuids[0]] = {0, 99}
    host.look(60)
    assert host.phases() == [Phase.OUT]


def test_another_pool_is_tried_anew():
    host = Host({POOL: 0.5, OTHER_POOL: 0.5, None: 0.9})
    host.look(60)
    assert host.phases() == [Phase.OUT]
    host.pools[host.uuids[0]] = OTHER_POOL
    host.look()
    assert host.phases() == [Phase.POOL]
    host.look(60)
    assert host.phases() == [Phase.OUT]


def test_others_that_end_their_work_in_a_trial_are_not_the_pool():
    host = Host(server(0.5, 0.5))
    while host.phases() != [Phase.TRIAL]:
        host.look()
    host.found[host.uuids[0]] = server(1.0, 1.0)
    host.look(60)
    assert host.phases() == [Phase.POOL]
    assert host.judge.undone == 0


def test_of_two_in_a_narrow_pool_one_stays_there():
    """As soon as the other one is out it has enough."""
    def in_pool(host):
        return 1 / max(1, sum(host.place_of(uuid) == POOL
                              for uuid in host.uuids))
    host = Host(server(in_pool, 0.9), server(in_pool, 0.9))
    host.look(300)
    assert sorted(phase.value for phase in host.phases()) == ['out', 'pool']
    assert host.judge.undone == 1


def test_one_that_gets_on_no_better_outside_any_more_goes_back():
    host = Host(server(0.5, 0.9))
    host.look(60)
    assert host.phases() == [Phase.OUT]
    host.found[host.uuids[0]] = server(0.5, 0.3)
    for _ in range(30):
        host.look()
        if host.phases() == [Phase.POOL]:
            break
    assert host.phases() == [Phase.POOL]


def test_one_whose_looks_are_of_long_ago_is_not_tried():
    host = Host(server(0.5, 0.9))
    host.look(10)
    host.found[host.uuids[0]] = server(None, None)
    host.look(20)
    host.found[host.uuids[0]] = server(0.5, 0.9)
    host.look(10)
    assert host.phases() == [Phase.POOL]


def test_what_was_found_holds_after_a_suspension():
    host = Host(server(0.5, 0.5))
    host.look(60)
    verdict = host.judge.verdict(host.uuids[0])
    assert verdict is not None
    host.judge.suspend(host.uuids[0])
    host.look(60)
    assert host.judge.verdict(host.uuids[0]) is verdict


def test_who_is_gone_is_forgotten():
    host = Host(server(0.5, 0.9))
    host.look(60)
    host.judge.retain(())
    assert host.phases() == [Phase.POOL]
    assert host.judge.verdict(host.uuids[0]) is None


@pytest.mark.parametrize('pool, without, least, most', [
    # Of a hundred: what chance undoes, and what is found.
    (0.6, 0.6, 0, 2), (0.6, 0.7, 50, 100), (0.6, 0.8, 98, 100)])
def test_how_often_a_pool_is_undone(pool, without, least, most):
    """Where progress varies by 5 % of a pCPU from one look to the next."""
    undone = 0
    for seed in range(100):
        host = Host(server(pool, without), deviation=0.05, seed=seed)
        host.look(60)
        undone += host.judge.undone
    print(f'{pool} in a pool, {without} without: {undone} of 100 undone')
    assert least <= undone <= most
