# SPDX-License-Identifier: Apache-2.0
"""What differs between Nova, Placement and agents, and what does not."""

import datetime

import hypothesis
from hypothesis import strategies
import pytest

from nova_vqos import policy
from nova_vqos.cmd.manage import differences

NOW = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.UTC)
LONG_AGO = NOW - datetime.timedelta(hours=2)
STATES = ('ACTIVE', 'PAUSED', 'SHUTOFF', 'SUSPENDED', 'ERROR', 'RESCUE',
          'SHELVED', 'SOFT_DELETED')


def server(uuid='s', host='a', status='ACTIVE', task_state='', units_cu=60,
           updated_at=LONG_AGO):
    return differences.Server(uuid, host, status, task_state, units_cu,
                              updated_at)


def held(**cu_by_consumer):
    return {consumer: {'VCPU': 1, **({policy.RESOURCE_CLASS: cu} if cu
                                     else {})}
            for consumer, cu in cu_by_consumer.items()}


def inventory(total=200, reserved=0, ratio=1.0):
    return differences.Inventory(total, reserved, ratio)


def host(name='a', answers=True, **fields):
    return differences.Host(name=name, provider=f'rp-{name}', answers=answers,
                            **{'inventory': inventory(), **fields})


def guest(server_uuid='s', name='a', units_cu=60, is_arriving=False):
    return differences.Guest(server_uuid, name, 'instance-1', units_cu,
                             is_arriving)


def view(servers=(), hosts=(), migrations=(), guests=()):
    return differences.View(
        servers={one.uuid: one for one in servers},
        hosts={one.name: one for one in hosts},
        migrations=tuple(migrations), guests=tuple(guests), now=NOW)


def kinds(*args, **kwargs):
    return [one.kind for one in differences.compare(view(*args, **kwargs))]


def only(*args, **kwargs):
    (found,) = differences.compare(view(*args, **kwargs))
    return found


class TestClaims:
    def test_one_that_differs(self):
        found = only([server()], [host(held=held(s=30))], guests=[guest()])
        assert found[:5] == ('claim-differs', 's', 'a', 30, 60)
        assert found.is_certain
        assert found.command == 'nova-vqos-manage audit --host a --repair'

    @pytest.mark.parametrize('guests', [
        [guest(units_cu=30)], [guest(name='b')], [guest(), guest(name='b')]])
    def test_one_that_agents_contradict(self, guests):
        found = differences.compare(view(
            [server()], [host(held=held(s=30)), host('b')], guests=guests))
        assert [one.is_certain for one in found
                if one.kind == 'claim-differs'] == [False]

    def test_units_of_a_server_whose_flavor_has_none(self):
        found = only([server(units_cu=0)], [host(held=held(s=30))])
        assert found[:5] == ('claim-differs', 's', 'a', 30, 0)

    def test_none_at_all(self):
        found = only([server()], [host()], guests=[guest()])
        assert not found.is_certain
        assert found.command == ('nova-manage placement heal_allocations '
                                 '--instance s --verbose')

    def test_all_of_it_is_on_another_host(self):
        found = differences.compare(view(
            [server()], [host(), host('b', held=held(s=60))],
            guests=[guest()]))
        assert [one.kind for one in found] == [
            'claim-differs', 'claim-elsewhere']
        # Nova heals no server that holds anything at all, unless forced to.
        assert found[0].command.endswith(' --force')
        assert '--resource_provider rp-b' in found[1].command

    def test_of_a_server_on_no_host(self):
        found = only([server(host='', status='SHELVED_OFFLOADED')],
                     [host(held=held(s=60))])
        assert found[:5] == ('claim-elsewhere', 's', 'a', 60, 0)

    def test_one_that_only_we_see(self):
        found = only(hosts=[host(held={'x': {policy.RESOURCE_CLASS: 5}})])
        assert found[:5] == ('claim-leaked', 'x', 'a', 5, 0)
        assert found.command == (
            'openstack resource provider allocation delete x')

    @pytest.mark.parametrize('needed, guests', [
        (server('n', 'b', task_state='migrating'), []),
        (server('n', 'b'), [guest('n')])])
    def test_nova_would_delete_what_is_needed(self, needed, guests):
        """That of a server that arrives here, or runs here in fact."""
        found = differences.compare(view(
            [needed, server('o', 'b')],
            [host(held=held(x=5, n=10, o=20)), host('b', answers=False)],
            guests=guests))
        commands = {one.server_uuid: one.command for one in found
                    if one.kind.startswith('claim') and one.host == 'a'}
        commands.pop('n', None)
        assert commands == {
            'x': 'openstack resource provider allocation delete x', 'o': ''}

    def test_consumers_of_other_resources(self):
        assert kinds(hosts=[host(held=held(x=0))]) == []

    @pytest.mark.parametrize('age, expected', [
        (datetime.timedelta(minutes=1), []),
        (datetime.timedelta(hours=1), ['claim-stuck'])])
    def test_migrations(self, age, expected):
        """Of a server at rest: about to be closed, or forgotten."""
        for of_server, of_migration in ((age, LONG_AGO), (LONG_AGO, age)):
            times = [NOW - at if isinstance(at, datetime.timedelta) else at
                     for at in (of_server, of_migration)]
            found = kinds(
                [server(updated_at=times[0])],
                [host(held=held(s=60)), host('b', held=held(m=60))],
                [differences.Migration('m', 's', times[1])], [guest()])
            assert found == expected

    def test_a_forgotten_migration_leaves_no_certainty(self):
        found = differences.compare(view(
            [server()], [host(held=held(s=20, m=100))],
            [differences.Migration('m', 's', LONG_AGO)]))
        assert [(one.kind, one.is_certain) for one in found
                if one.kind != 'runs-nowhere'] == [
            ('claim-differs', False), ('claim-stuck', False)]


class TestGuests:
    def test_twice(self):
        found = only([server()], [host(held=held(s=60)), host('b')],
                     guests=[guest(), guest(name='b')])
        assert found[:5] == ('runs-twice', 's', 'b', 60, 0)
        assert found.command == 'virsh destroy instance-1'

    def test_elsewhere(self):
        found = differences.compare(view(
            [server()], [host(held=held(s=60)),
                         host('b', held=held(s=60))],
            guests=[guest(name='b')]))
        assert [(one.kind, one.host, bool(one.command)) for one in found] == [
            ('claim-elsewhere', 'b', False), ('runs-elsewhere', 'b', True)]

    def test_one_that_arrives(self):
        assert kinds([server()], [host(held=held(s=60)), host('b')],
                     guests=[guest(), guest(name='b', is_arriving=True)]) == []

    def test_other_units(self):
        found = only([server()], [host(held=held(s=60))],
                     guests=[guest(units_cu=100)])
        assert found[:5] == ('runs-otherwise', 's', 'a', 100, 60)

    @pytest.mark.parametrize('units_cu, expected', [
        (None, []), (60, ['runs-unknown'])])
    def test_that_nova_does_not_know(self, units_cu, expected):
        assert kinds(hosts=[host()],
                     guests=[guest(units_cu=units_cu)]) == expected

    @pytest.mark.parametrize('status, answers, expected', [
        ('ACTIVE', True, ['runs-nowhere']), ('ACTIVE', False, []),
        ('SHUTOFF', True, []), ('SUSPENDED', True, [])])
    def test_nowhere(self, status, answers, expected):
        assert kinds([server(status=status)],
                     [host(answers=answers, held=held(s=60))]) == expected


class TestHosts:
    @pytest.mark.parametrize('held_cu, left, expected', [
        (60, inventory(60), []), (61, inventory(60), ['host-oversold']),
        (90, inventory(60, ratio=1.5), []),
        (60, inventory(70, reserved=20), ['host-oversold']),
        # Closed, since it has no valid profile.
        (60, inventory(60, reserved=60), []),
        (61, inventory(60, reserved=60), ['host-oversold'])])
    def test_oversold(self, held_cu, left, expected):
        assert kinds([server(units_cu=held_cu)],
                     [host(held=held(s=held_cu), inventory=left)],
                     guests=[guest(units_cu=held_cu)]) == expected

    def test_overloaded(self):
        found = only(hosts=[host(running_cu=130, capacity_cu=100)])
        assert found[:5] == ('host-overloaded', '', 'a', 130, 100)
        assert found.command == ''

    @pytest.mark.parametrize('total, leaver', [
        (95, 'small'), (85, 'middle'), (40, 'large')])
    def test_the_server_to_migrate(self, total, leaver):
        sizes = {'small': 10, 'middle': 30, 'large': 60}
        found = only([server(uuid, units_cu=cu)
                      for uuid, cu in sizes.items()],
                     [host(held=held(**sizes), inventory=inventory(total))],
                     guests=[guest(uuid, units_cu=cu)
                             for uuid, cu in sizes.items()])
        assert found.command == (
            f'openstack server migrate --live-migration {leaver}')

    def test_wrong_claims_come_first(self):
        found = differences.compare(view(hosts=[
            host(held=held(x=300))]))
        assert [(one.kind, one.command != '') for one in found] == [
            ('claim-leaked', True), ('host-oversold', False)]


@pytest.mark.parametrize('moving', [
    {'task_state': 'migrating'}, {'status': 'VERIFY_RESIZE'},
    {'status': 'BUILD'}, {'status': 'UNKNOWN', 'units_cu': None},
    {'units_cu': None}])
def test_what_is_not_judged(moving):
    seen = view([server(**moving)],
                [host(held=held(s=30)), host('b', held=held(s=60))],
                guests=[guest(), guest(name='b')])
    assert differences.compare(seen) == []
    assert list(differences.unjudged(seen)) == ['s']


@strategies.composite
def clouds(draw):
    """A cloud at rest in which nothing differs."""
    names = ('a', 'b', 'c')
    servers = [
        server(f's{number}', *draw(strategies.tuples(
            strategies.sampled_from(names), strategies.sampled_from(STATES),
            strategies.just(''), strategies.integers(0, 90))))
        for number in range(draw(strategies.integers(0, 6)))]
    return view(
        servers,
        [host(name, inventory=inventory(600), capacity_cu=600, held=held(**{
            one.uuid: one.units_cu for one in servers if one.host == name}))
         for name in names],
        guests=[guest(one.uuid, one.host, one.units_cu) for one in servers
                if one.status in ('ACTIVE', 'PAUSED')])


@hypothesis.given(clouds())
def test_where_nothing_differs(cloud):
    assert differences.compare(cloud) == []
    assert differences.unjudged(cloud) == {}


@hypothesis.given(clouds(), strategies.data())
def test_one_wrong_claim_is_one_difference(cloud, data):
    where = data.draw(strategies.sampled_from(sorted(cloud.hosts)))
    wrong_cu = data.draw(strategies.integers(1, 60))
    hosts = dict(cloud.hosts)
    hosts[where] = host(
        where, inventory=inventory(600), capacity_cu=600,
        held={**hosts[where].held, **held(x=wrong_cu)})
    found = differences.compare(view(
        cloud.servers.values(), hosts.values(), guests=cloud.guests))
    assert [one[:5] for one in found] == [
        ('claim-leaked', 'x', where, wrong_cu, 0)]


@hypothesis.given(clouds(), strategies.data())
def test_what_is_certain_mends_what_differs(cloud, data):
    wrong = {uuid: data.draw(strategies.integers(1, 90))
             for uuid in cloud.servers}
    hosts = {name: host(name, inventory=inventory(600), held=held(**{
        uuid: wrong[uuid] for uuid in one.held}))
        for name, one in cloud.hosts.items()}
    found = differences.compare(view(
        cloud.servers.values(), hosts.values(), guests=cloud.guests))
    assert {one.server_uuid for one in found} == {
        uuid for uuid, one in cloud.servers.items()
        if one.units_cu != wrong[uuid]}
    assert all(one.is_certain for one in found)
    wrong.update((one.server_uuid, one.expected_cu) for one in found)
    mended = {name: host(name, inventory=inventory(600), held=held(**{
        uuid: wrong[uuid] for uuid in one.held}))
        for name, one in cloud.hosts.items()}
    assert kinds(cloud.servers.values(), mended.values(),
                 guests=cloud.guests) == []
