# SPDX-License-Identifier: Apache-2.0
"""Plans keep within rooms, bounds and thresholds, whatever servers there are.

Figures are computed here from the definitions, another way than the planner's
running sums.
"""

from fractions import Fraction
import statistics
from unittest import mock

import hypothesis
from hypothesis import strategies as some
import pytest

from nova_vqos.watcher import balance

# Of figures, by sums in another order.
CLOSE = 1e-7


def goals(spread=0.0, stranded=0.0, max_moves=100):
    return balance.Goals(spread, stranded, max_moves)


def always(_server, _destination):
    return balance.Reply.YES


def refusing(refused):
    def accept(server, destination):
        return (balance.Reply.NO if (server.uuid, destination) in refused
                else balance.Reply.YES)
    return accept


def hosts_of(servers, capacities):
    """:param capacities: units and memory, by host"""
    return [balance.Host(
        name, capacity_cu,
        sum(one.cu for one in servers if one.host == name), capacity_mb,
        sum(one.memory_mb for one in servers if one.host == name))
        for name, (capacity_cu, capacity_mb) in capacities.items()]


def moved(servers, moves):
    to = {one.server.uuid: one.destination for one in moves}
    return [one._replace(host=to.get(one.uuid, one.host)) for one in servers]


def spread(hosts):
    return statistics.pstdev(Fraction(one.used_cu, one.capacity_cu)
                             for one in hosts)


def stranded(hosts, servers):
    """Exact."""
    mb_per_cu = Fraction(sum(one.memory_mb for one in servers),
                         sum(one.cu for one in servers))
    left = [(max(0, one.capacity_cu - one.used_cu),
             max(0, one.capacity_mb - one.used_mb) / mb_per_cu)
            for one in hosts]
    best_cu = min(map(sum, zip(*left, strict=True)))
    return ((best_cu - sum(map(min, left)))
            / sum(one.capacity_cu for one in hosts))


def above(hosts, servers, wanted):
    """What of both figures is above its threshold."""
    return (max(0, spread(hosts) - wanted.spread),
            max(0, stranded(hosts, servers) - Fraction(wanted.stranded)))


@some.composite
def clusters(draw):
    """Capacities, servers that mostly fit, and what each host refuses."""
    names = [f'h{number}' for number in range(draw(some.integers(1, 6)))]
    capacities = {name: (draw(some.integers(1, 2000)),
                         draw(some.integers(1, 8000))) for name in names}
    sizes = draw(some.lists(some.tuples(
        some.integers(1, 400), some.integers(1, 1600)), min_size=1,
        max_size=4))
    servers = [
        balance.Server(f's{number:02}', draw(some.sampled_from(names)), *size,
                       may_move)
        for number, (size, may_move) in enumerate(draw(some.lists(
            some.tuples(some.sampled_from(sizes), some.booleans()),
            min_size=1, max_size=24)))]
    refused = draw(some.sets(some.tuples(
        some.sampled_from([one.uuid for one in servers]),
        some.sampled_from(names))))
    return capacities, servers, refused


fractions = some.floats(0, 1)


@hypothesis.given(clusters(), fractions, fractions, some.integers(1, 8))
def test_any_plan(cluster, most_spread, most_stranded, max_moves):
    capacities, servers, refused = cluster
    hosts = hosts_of(servers, capacities)
    accepted = []

    def accept(server, destination):
        reply = refusing(refused)(server, destination)
        if reply is balance.Reply.YES:
            accepted.append((server.uuid, destination))
        return reply
    wanted = goals(most_spread, most_stranded, max_moves)
    found = balance.plan(hosts, servers, wanted, accept)

    assert len(found.moves) <= max_moves
    # All that was accepted is proposed, and nothing else.
    assert accepted == [(one.server.uuid, one.destination)
                        for one in found.moves]
    assert len({uuid for uuid, _host in accepted}) == len(accepted)
    for one in found.moves:
        assert one.server in servers
        assert one.server.may_move
        assert one.server.host != one.destination

    # No host is overfilled, even where no move frees anything in time.
    for host in hosts:
        arrivals = [one.server for one in found.moves
                    if one.destination == host.name]
        if arrivals:
            assert host.used_cu + sum(
                one.cu for one in arrivals) <= host.capacity_cu
            assert host.used_mb + sum(
                one.memory_mb for one in arrivals) <= host.capacity_mb

    # What is above its threshold never grows, and each plan is worth it.
    after = hosts_of(moved(servers, found.moves), capacities)
    figures = ((spread(hosts), spread(after), most_spread),
               (stranded(hosts, servers), stranded(after, servers),
                most_stranded))
    for before, then, threshold in figures:
        assert then <= max(before, threshold) + CLOSE
    if found.moves:
        excess = [[max(0, one - threshold) for one in pair]
                  for *pair, threshold in figures]
        assert sum(then for _before, then in excess) < sum(
            before for before, _then in excess)
    assert found.before == pytest.approx(
        [before for before, _then, _threshold in figures], abs=CLOSE)
    assert found.after == pytest.approx(
        [then for _before, then, _threshold in figures], abs=CLOSE)


@hypothesis.given(clusters(), fractions, fractions)
def test_no_move_that_gains_is_left(cluster, most_spread, most_stranded):
    """One that lowers a figure, and leaves the other as it is, gains."""
    capacities, servers, _refused = cluster
    hosts = hosts_of(servers, capacities)
    wanted = goals(most_spread, most_stranded)
    moves = balance.plan(hosts, servers, wanted, always).moves
    then = moved(servers, moves)
    now = above(hosts_of(then, capacities), servers, wanted)
    room = {one.name: (one.capacity_cu - one.used_cu,
                       one.capacity_mb - one.used_mb) for one in hosts}
    for one in moves:
        cu, memory_mb = room[one.destination]
        room[one.destination] = (cu - one.server.cu,
                                 memory_mb - one.server.memory_mb)
    for one in {one.server for one in moves} ^ set(servers):
        for name, (cu, memory_mb) in room.items():
            if not one.may_move or one.cu > cu or one.memory_mb > memory_mb:
                continue
            after = above(hosts_of(moved(then, [balance.Move(one, name)]),
                                   capacities), servers, wanted)
            assert (sum(after) > sum(now) - 2e-6
                    or any(new > old for old, new in zip(
                        now, after, strict=True)))


def test_a_figure_that_stays_refuses_no_move():
    """By sums of floats it grows: in the last digit."""
    servers = equal(2, 'h1', cu=50, memory_mb=900)
    found = balance.plan(
        [balance.Host('h0', 400, 0, 20000, 0),
         balance.Host('h1', 300, 100, 3000, 1800)], servers,
        goals(spread=0.1, stranded=0.05), always)
    assert len(found.moves) == 1
    assert found.after.stranded == pytest.approx(found.before.stranded)
    assert found.after.spread == pytest.approx(0.021, abs=0.001)


@hypothesis.given(clusters())
def test_a_plan_depends_on_no_order(cluster):
    capacities, servers, _refused = cluster
    hosts = hosts_of(servers, capacities)
    assert balance.plan(hosts, servers, goals(), always) == balance.plan(
        hosts[::-1], servers[::-1], goals(), always)


@hypothesis.given(clusters())
def test_a_plan_depends_on_no_bound_of_memory(cluster):
    capacities, servers, refused = cluster
    hosts = hosts_of(servers, capacities)
    accept = refusing(refused)
    found = balance.plan(hosts, servers, goals(), accept)
    with mock.patch.multiple(balance, _PAIRS_AT_ONCE=1, _MOST_CANDIDATES=1):
        assert balance.plan(hosts, servers, goals(), accept) == found


def equal(number, host, first=0, cu=60, memory_mb=1024):
    return [balance.Server(f's{first + one:02}', host, cu, memory_mb)
            for one in range(number)]


CAPACITIES = {'a': (600, 10240), 'b': (600, 10240)}


def test_units_are_levelled():
    servers = equal(8, 'a')
    found = balance.plan(hosts_of(servers, CAPACITIES), servers, goals(),
                         always)
    assert [one.destination for one in found.moves] == ['b'] * 4
    assert found.before.spread == pytest.approx(0.4)
    assert found.after.spread == pytest.approx(0)


def test_no_move_within_the_thresholds():
    servers = equal(8, 'a')
    found = balance.plan(hosts_of(servers, CAPACITIES), servers,
                         goals(spread=0.4), always)
    assert found.moves == ()


def test_it_stops_at_the_threshold_or_the_bound():
    servers = equal(8, 'a')
    hosts = hosts_of(servers, CAPACITIES)
    assert len(balance.plan(hosts, servers, goals(spread=0.2), always)
               .moves) == 2
    assert len(balance.plan(hosts, servers, goals(max_moves=3), always)
               .moves) == 3


def test_unequal_hosts_are_level_by_their_parts():
    servers = equal(8, 'a')
    hosts = hosts_of(servers, {'a': (600, 10240), 'b': (1800, 30720)})
    found = balance.plan(hosts, servers, goals(), always)
    assert len(found.moves) == 6


def test_one_that_is_refused_leaves_its_place_to_another():
    """And is not asked about again: Nova answers some questions for each."""
    servers = equal(4, 'a')
    asked = []

    def accept(server, destination):
        asked.append((server.uuid, destination))
        return refusing({('s00', 'b'), ('s01', 'b')})(server, destination)
    found = balance.plan(hosts_of(servers, CAPACITIES), servers, goals(),
                         accept)
    assert [one.server.uuid for one in found.moves] == ['s02', 's03']
    assert len(set(asked)) == len(asked) == 4


@pytest.mark.parametrize(('reply', 'asked'), [
    # Of four servers and three hosts that would be level with them.
    (balance.Reply.NO, 4 * 3),
    (balance.Reply.NO_SERVER, 4),
    (balance.Reply.NO_HOST, 3),
    (balance.Reply.END, 1)])
def test_what_a_reply_refuses_is_not_asked_again(reply, asked):
    servers = equal(4, 'a')
    hosts = hosts_of(servers, dict.fromkeys('abcd', (600, 10240)))
    questions = []

    def accept(server, destination):
        questions.append((server.uuid, destination))
        return reply
    found = balance.plan(hosts, servers, goals(), accept)
    assert found.moves == ()
    assert len(set(questions)) == len(questions) == asked


def test_stranded_capacity_is_freed():
    """One host has memory left without units, the other the reverse.

    Both have sold the same part of their units, and still have after it.
    """
    servers = [*equal(4, 'a', cu=150, memory_mb=1024),
               *equal(4, 'b', first=10, cu=150, memory_mb=2048)]
    hosts = hosts_of(servers, {'a': (900, 8192), 'b': (900, 8192)})
    found = balance.plan(hosts, servers, goals(spread=0.2), always)
    # For 300 and 300 CU there is memory for 400 and 0: what could be sold is
    # 400, what can be is 300. After the move there is some for 200 and 200 of
    # 150 and 450.
    (move,) = found.moves
    assert (move.server.host, move.destination) == ('b', 'a')
    assert found.before.stranded == pytest.approx(100 / 1800)
    assert found.after.stranded == pytest.approx(50 / 1800)


def test_nothing_to_plan():
    assert balance.plan([], [], goals(), always) == (
        (), (0, 0), (0, 0))
    hosts = hosts_of([], CAPACITIES)
    assert balance.plan(hosts, [], goals(), always).moves == ()
