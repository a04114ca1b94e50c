# SPDX-License-Identifier: Apache-2.0
"""Each move is judged by what those before leave of a host.

Nova, Placement and agents are values here; tests/functional has the real ones.
"""

import datetime
from decimal import Decimal
import types

import hypothesis
from hypothesis import strategies as some
import pytest

from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.agent import fanout
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.manage import cloud as clouds
from nova_vqos.cmd.manage import demand as demands
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import migration
from nova_vqos.watcher import balance
from nova_vqos.watcher import proposals

CLASS = policy.RESOURCE_CLASS


def now():
    return datetime.datetime.now(datetime.UTC)


def make_stats(**changes):
    """:returns: of a host whose agent was just seen"""
    return host_stats.HostStats(
        profile=host_stats.VALID, slowest_cu=Decimal(80),
        fastest_cu=Decimal(80), least_cu=Decimal(1), room_cu=320,
        agent_seen_at=now(), quantum_classes=('default',),
        dd_billing=('off',), sells_units=True)._replace(**changes)


def inventory(total):
    return {'total': total, 'reserved': 0, 'allocation_ratio': 1.0,
            'min_unit': 1, 'max_unit': 2**31 - 1, 'step_size': 1}


class Cloud:
    """Nova and Placement with the servers of one host, and room on others."""

    def __init__(self):
        self.placement = self
        self.servers = {}
        self.hosts = {}
        self.asked = []
        self.providers_asked = []

    def add_host(self, name, cu=320, memory_mb=8192, traits=()):
        self.hosts[name] = demands.Provider(
            {CLASS: inventory(cu), 'MEMORY_MB': inventory(memory_mb)}, {},
            frozenset(traits))

    def add_server(self, uuid, cu=60, vcpus=1, memory_mb=1024, *,
                   topology=False, **specs):
        self.servers[uuid] = clouds.Server(
            uuid, uuid, types.SimpleNamespace(
                vcpus=vcpus, ram=memory_mb, disk=0, ephemeral=0, swap=0,
                extra_specs={policy.UNITS_KEY: str(cu), **{
                    f'vqos:{key}': value for key, value in specs.items()}}),
            'here', {CLASS: cu, 'MEMORY_MB': memory_mb}, topology, ())

    def server(self, uuid):
        self.asked.append(uuid)
        if uuid not in self.servers:
            raise errors.ManageError(f'there is no server {uuid}')
        return self.servers[uuid]

    def offers(self, demand):
        return {name: one for name, one in self.hosts.items()
                if not one.lacks(demand)}

    def providers(self, uuids):
        self.providers_asked += uuids
        return {uuid: self.hosts[uuid] for uuid in uuids}


def answer(host, stats):
    return fanout.Answer(host, 'cell', host_report.Host(
        host=host, version='1', connected=True, cgroup_version=2, alarms=(),
        domains=0, servers=(), wrong=(), last_tick_ms=0.0, dd_billing=(),
        quantum_classes=(), ticks=1, writes=0, restored=0, errors=0,
        stats=None if stats is None else host_stats.encode(stats),
        stats_at=now().isoformat()), '')


@pytest.fixture
def cloud():
    found = Cloud()
    found.add_host('here')
    found.add_host('there')
    return found


def make(cloud, *answers, **stats):
    """:param stats: of the host there"""
    given = (answer('here', make_stats()),
             answer('there', make_stats(**stats)),
             *answers)
    return proposals.Proposals(
        cloud, [clouds.Compute(name, name, False, ())
                for name in cloud.hosts],
        {one.host: one for one in given}, dict(cloud.hosts),
        agent_max_age_s=300, servers_without_units='refuse')


def propose(proposed, *uuids):
    """Propose moves there until one is refused.

    :returns: how many were not, and why the next one was
    """
    for number, uuid in enumerate(uuids):
        reasons = proposed.refusals(uuid, 'there')
        if reasons:
            return number, reasons
        proposed.propose(uuid, 'there')
    return len(uuids), ()


def add_many(cloud, number, **fields):
    for one in range(number):
        cloud.add_server(str(one), **fields)
    return map(str, range(number))


def test_units_that_moves_before_take(cloud):
    number, reasons = propose(make(cloud), *add_many(cloud, 8))
    assert number == 320 // 60
    assert reasons == ('it has 20 CU left, 60 are asked for',)


def test_memory_that_moves_before_take(cloud):
    number, reasons = propose(make(cloud), *add_many(
        cloud, 8, memory_mb=3000))
    assert number == 2
    assert reasons == ('it has 2192 MEMORY_MB left, 3000 are asked for',)


def test_a_core_type_that_moves_before_take(cloud):
    """None of the slow one is fast enough, and the fast one has room for 2."""
    number, reasons = propose(make(cloud, slowest_cu=Decimal(50), core_types=(
        host_stats.CoreTypeRoom(Decimal(50), 200, Decimal(1)),
        host_stats.CoreTypeRoom(Decimal(90), 120, Decimal(1)))),
        *add_many(cloud, 4))
    assert number == 2
    assert '0 CU left on pCPUs of 90 CU' in reasons[0]


def test_what_a_kind_of_work_takes_beyond_its_units(cloud):
    """60 CU of hash take 120 of the host, where it is half as fast."""
    number, reasons = propose(make(cloud, work=(host_stats.WorkSpeeds(
        Decimal(160), {'hash': 0.8}),), slowest_cu=Decimal(160)),
        *add_many(cloud, 4, work='hash'))
    assert number == 2
    assert 'take 120 CU of it, and its servers leave 80' in reasons[0]


def test_a_guarantee_that_moves_before_take(cloud):
    """Each takes 60 CU, and at least 5 for two threads of its I/O."""
    cloud.add_host('there', traits=[host_stats.TRAIT_GUARANTEE])
    number, reasons = propose(
        make(cloud, guarantee_cu=200), *add_many(
            cloud, 4, guarantee='required'))
    assert number == 2
    assert 'it can guarantee' in reasons[0]


def test_where_vcpus_have_to_pack_one_move_is_all(cloud):
    number, reasons = propose(
        make(cloud, largest_vcpu_cu=Decimal(80),
             pieces=(host_stats.Piece(80, 4),)), *add_many(cloud, 2))
    assert number == 1
    assert 'no vCPU of more than 0 CU packs' in reasons[0]


@pytest.mark.parametrize(('pieces', 'fits'), [
    (((80, 2),), True), (((61, 1), (60, 3)), False), (((61, 2),), True),
    (((60, 2),), False), (((122, 1),), True), (((121, 1),), True),
    (((120, 1),), False)])
def test_each_vcpu_has_to_have_a_piece(cloud, pieces, fits):
    """Stats have pieces rounded up: one of 60 CU may have 59.1."""
    cloud.add_server('two', cu=120, vcpus=2)
    found = make(cloud, slowest_cu=Decimal(150),
                 largest_vcpu_cu=Decimal(150), pieces=tuple(
                     host_stats.Piece(*one) for one in pieces)).refusals(
                         'two', 'there')
    assert bool(found) != fits, found


@pytest.mark.parametrize(('specs', 'stats', 'reason'), [
    ({}, {'slowest_cu': Decimal(50)}, 'its slowest pCPU has 50 CU'),
    ({}, {'profile': 'the profile is stale'}, 'the profile is stale'),
    ({}, {'agent_seen_at': None}, 'its agent was never seen'),
    ({'quantum_class': 'io'}, {}, 'it offers vqos:quantum_class default'),
    ({'dd_billing': 'charge'}, {}, 'it offers vqos:dd_billing off'),
    ({'guarantee': 'required'}, {}, 'it guarantees no speed')])
def test_what_the_filter_refuses_at_once(cloud, specs, stats, reason):
    cloud.add_server('one', **specs)
    (found,) = make(cloud, **stats).refusals('one', 'there')
    assert reason in found


def test_a_host_that_is_not_known_well_is_none(cloud):
    cloud.add_server('one')
    proposed = make(cloud, answer('there', None))
    (reason,) = proposed.refusals('one', 'there')
    assert 'are unknown' in reason


def test_placement_is_not_asked_again_for_what_was_read(cloud):
    """However many unlike servers there are, and whatever it offers."""
    proposed = make(cloud)
    for number in range(3):
        cloud.add_server(str(number), cu=400 + number)
        reasons = proposed.refusals(str(number), 'there')
        assert 'it has 320 CU left' in reasons[-1]
    assert cloud.providers_asked == []


def test_a_server_that_is_gone_is_asked_for_once(cloud):
    proposed = make(cloud)
    for _ in range(2):
        assert proposed.refusals('gone', 'there') == (
            'there is no server gone',)
    assert cloud.asked == ['gone']


def test_nova_is_not_asked_for_all_servers_of_a_cloud(cloud, monkeypatch):
    monkeypatch.setattr(proposals, '_MOST_SERVERS', 3)
    proposed = make(cloud, slowest_cu=Decimal(50))
    for uuid in add_many(cloud, 5):
        assert proposed.refusals(uuid, 'there')
    assert len(cloud.asked) == 3


def moving(*uuids):
    return [balance.Server(uuid, 'here', 60, 1024) for uuid in uuids]


@pytest.mark.parametrize('stats', [
    None, {'profile': 'the profile is stale'}, {'agent_seen_at': None}])
def test_a_host_that_takes_no_server_is_asked_about_once(cloud, stats):
    """And Nova is not asked about any server for it."""
    there = answer('there', stats if stats is None
                   else make_stats(**stats))
    proposed = make(cloud, there)
    for one in moving(*add_many(cloud, 4)):
        assert proposed.accept(one, 'there') is balance.Reply.NO_HOST
    assert cloud.asked == []
    (line,) = proposed.summary()
    assert 'there' in line


@pytest.mark.parametrize('specs', [
    {'cu': 100}, {'quantum_class': 'io'}, {'guarantee': 'required'}])
def test_a_host_that_refuses_one_server_may_take_others(cloud, specs):
    cloud.add_server('one', **specs)
    cloud.add_server('two')
    proposed = make(cloud)
    one, two = moving('one', 'two')
    assert proposed.accept(one, 'there') is balance.Reply.NO
    assert proposed.accept(two, 'there') is balance.Reply.YES
    (line,) = proposed.summary()
    assert 'one' in line


def test_a_server_that_no_host_takes_is_asked_about_once(cloud):
    cloud.add_server('busy')
    cloud.servers['busy'] = cloud.servers['busy']._replace(
        obstacles=('the server is busy',))
    proposed = make(cloud)
    for one in moving('busy', 'gone'):
        assert proposed.accept(one, 'there') is balance.Reply.NO_SERVER
    assert len(list(proposed.summary())) == 2


def test_a_server_has_one_line_however_many_hosts_refuse_it(cloud):
    for number in range(5):
        cloud.add_host(f'slow{number}')
    cloud.add_server('one')
    proposed = make(cloud, *(
        answer(f'slow{number}', make_stats(slowest_cu=Decimal(50)))
        for number in range(5)))
    (one,) = moving('one')
    for number in range(5):
        assert proposed.accept(
            one, f'slow{number}') is balance.Reply.NO
    (line,) = proposed.summary()
    assert '5 of 5' in line
    assert proposed.accept(one, 'there') is balance.Reply.YES
    assert list(proposed.summary()) == []


def test_servers_alike_are_refused_alike(cloud, monkeypatch):
    judged = []
    verdict = migration.Migration.verdict

    def counted(self, *arguments):
        judged.append(self)
        return verdict(self, *arguments)
    monkeypatch.setattr(migration.Migration, 'verdict', counted)
    proposed = make(cloud, slowest_cu=Decimal(50))
    for one in moving(*add_many(cloud, 4)):
        assert proposed.accept(one, 'there') is balance.Reply.NO
    assert len(judged) == 1


def test_the_search_ends_after_some_servers(cloud, monkeypatch):
    monkeypatch.setattr(proposals, '_MOST_SERVERS', 3)
    proposed = make(cloud, slowest_cu=Decimal(50))
    replies = [proposed.accept(one, 'there')
               for one in moving(*add_many(cloud, 4))]
    assert replies == [balance.Reply.NO] * 3 + [balance.Reply.END]
    assert len(list(proposed.summary())) == 4


@hypothesis.given(some.lists(some.tuples(
    some.integers(1, 200), some.integers(1, 4), some.integers(1, 4000),
    some.booleans()), max_size=12), some.lists(
        some.integers(0, 400), min_size=2, max_size=2))
def test_accepted_moves_fit_together(servers, rooms):
    """In units, memory, and the units of a core type each.

    Whatever order: the sizes of those that were accepted have to pack into
    the two types, each on one that is fast enough.
    """
    cloud = Cloud()
    cloud.add_host('here')
    cloud.add_host('there', cu=max(1, sum(rooms)), memory_mb=8000)
    slow_cu, fast_cu = 50, 100
    proposed = make(cloud, slowest_cu=Decimal(slow_cu), core_types=tuple(
        host_stats.CoreTypeRoom(Decimal(speed_cu), room_cu, Decimal(1))
        for speed_cu, room_cu in zip((slow_cu, fast_cu), rooms, strict=True)))
    accepted = []
    for number, (cu, vcpus, memory_mb, pinned) in enumerate(servers):
        if cu < vcpus:
            continue
        uuid = str(number)
        cloud.add_server(uuid, cu=cu, vcpus=vcpus, memory_mb=memory_mb,
                         topology=pinned)
        if not proposed.refusals(uuid, 'there'):
            proposed.propose(uuid, 'there')
            accepted.append((cu, vcpus, memory_mb))
    assert sum(cu for cu, _vcpus, _memory in accepted) <= sum(rooms)
    assert sum(memory_mb for *_rest, memory_mb in accepted) <= 8000
    assert sum(cu for cu, vcpus, _memory in accepted
               if cu > slow_cu * vcpus) <= rooms[1]
    assert all(cu <= fast_cu * vcpus for cu, vcpus, _memory in accepted)
