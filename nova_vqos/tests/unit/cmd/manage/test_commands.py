# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage host, server, calibration, from end to end."""

import csv
import functools
import json

from keystoneauth1 import exceptions as keystone
from openstack import exceptions
import pytest

from nova_vqos.agent import rpcapi
from nova_vqos.cmd.manage import hosts
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import manage
from nova_vqos.tests.fixtures import report_pages
from nova_vqos.tests.fixtures import waits

ON = ('--host', 'a', '--host', 'b')
NOWHERE = '00000000-0000-4000-8000-000000000000'


@pytest.fixture
def agents(tmp_path):
    """Hosts a and b, with a server each; the one of b is not billed."""
    with manage.Agents(tmp_path) as world:
        for host, uuid, billing in (('a', fakes.UUID, 'account'),
                                    ('b', fakes.OTHER_UUID, 'off')):
            made = world.add(host)
            made.boot(uuid, specs=fakes.make_specs(dd_billing=billing))
            made.now_s += 2
        world.wait_for_servers()
        yield world


@pytest.fixture
def run(tmp_path):
    path = tmp_path / 'nova-vqos.conf'
    path.write_text('[DEFAULT]\ntransport_url = fake://\n'
                    '[vqos_manage]\ntimeout_s = 60\n')
    return functools.partial(manage.run, config=path)


class Server:
    def __init__(self, id, compute_host):
        self.id = id
        self.compute_host = compute_host


class Cloud:
    """A Nova that knows some hosts and servers; or raises."""

    def __init__(self, hosts=(), servers=None, error=None):
        self.compute = self
        self._hosts = hosts
        self._servers = servers or {}
        self._error = error

    def get(self, path, microversion):
        assert path == manage.SERVICES
        self._fail()
        return manage.answer(manage.services(*self._hosts))

    def find_server(self, given, all_projects):
        assert all_projects
        self._fail()
        return self._servers.get(given)

    def _fail(self):
        if self._error is not None:
            raise self._error


def test_hosts_are_listed_with_numbers(agents, run):
    ran = run('host', 'list', '-f', 'json', *ON)
    assert (ran.status, ran.err) == (0, '')
    one, other = ran.json
    assert (one['host'], other['host']) == ('a', 'b')
    assert one['agent'] == 'alive'
    assert (one['capacity_cu'], one['used_cu'], one['reserved_cu']) == (
        200, 60, 0)
    assert one['coefficient'] == 1.0
    assert one['profile'] == fakes.make_profile().id
    assert one['profile_age_s'] > 0
    assert one['servers'] == [fakes.UUID]
    assert one['wrong'] == [] == one['alarms']


def test_nova_names_the_hosts(agents, run):
    ran = run('host', 'list', '-f', 'json', '--timeout', '3',
              cloud=Cloud(['b', 'a', 'gone']))
    assert [(row['host'], row['agent']) for row in ran.json] == [
        ('a', 'alive'), ('b', 'alive'), ('gone', 'no answer')]
    assert ran.status == 1
    assert ran.err == ('1 of 3 hosts gave no answer: gone (no answer within '
                       '3 s)\n')
    assert ran.json[2]['capacity_cu'] is None


def test_many_silent_hosts_are_one_line(agents, run):
    ran = run('host', 'list', '-f', 'json', '--timeout', '0.1',
              cloud=Cloud([f'x{n}' for n in range(20)]))
    assert ran.status == 1
    assert ran.err.splitlines()[1:] == []
    assert ran.err.endswith(' and 15 more\n')


def test_an_old_agent_is_reported_as_old(agents, run, monkeypatch):
    class Old:
        """Answers as of RPC 1.1."""

        def get_host(self, _context):
            return {}

    agents.add('old', endpoint=Old())
    ran = run('host', 'list', '-f', 'json', '--host', 'old')
    assert ran.json[0]['agent'] == 'too old'
    assert ran.err == ('1 of 1 hosts gave no answer: old (the agent is older '
                       'than 1.2: upgrade it)\n')
    assert ran.status == 1


def test_an_agent_of_before_the_last_version_is_asked(agents, run):
    agents.add('older').manager.target = rpcapi.oslo_messaging.Target(
        version='1.2')
    ran = run('host', 'list', '-f', 'json', '--host', 'older')
    assert ran.json[0]['agent'] == 'alive'


@pytest.mark.parametrize('answer', [None, {}, {'host': 'odd'}, ['odd'], {
    'host': 'odd', 'version': 10**400}])
def test_an_answer_that_is_none_costs_its_host_alone(agents, run, answer):
    class Odd:
        target = rpcapi.oslo_messaging.Target(version=rpcapi.VERSION)

        def get_host(self, _context):
            return answer

    agents.add('odd', endpoint=Odd())
    ran = run('host', 'list', '-f', 'json', *ON, '--host', 'odd')
    assert [row['agent'] for row in ran.json] == [
        'alive', 'alive', 'no answer']
    assert (ran.status, ran.err.count('\n')) == (1, 1)
    assert ran.err.startswith(
        '1 of 3 hosts gave no answer: odd (its answer cannot be read: ')


def test_a_host_is_shown(agents, run):
    ran = run('host', 'show', 'a', '-f', 'json')
    assert ran.status == 0
    assert ran.json['host'] == 'a'
    assert ran.json['capacity_cu'] == 200
    assert ran.json['profile_reference'] == 'gold'
    assert ran.json['servers'] == [fakes.UUID]
    assert {'key': 'vqos:cap', 'value': 'hard', 'state': 'enforced',
            'why': ''} in ran.json['capabilities']
    table = run('host', 'show', 'a')
    assert '| alarms              | none' in table.out
    assert 'vqos:cap=hard' not in table.out
    table = run('host', 'show', 'a', '-c', 'capabilities')
    assert 'vqos:cap=hard: enforced' in table.out


def test_a_host_that_serves_servers_unlike(agents, run):
    class Uneven:
        """An agent that has compared servers."""

        target = rpcapi.oslo_messaging.Target(version=rpcapi.VERSION)

        def get_host(self, _context):
            return dict(agents.worlds['a'].manager.get_host({}), capacity={
                'total_cu': 0.0, 'servers_cu': 0.0, 'modelled_cu': 0.0,
                'own_cu': 0.0, 'unattributed_cu': 0.0, 'unpaid_cu': 0.0,
                'suggested_reserved_cu': 0, 'minutes_seen': 1,
                'fairness': {'received': {
                    'jain': 0.93, 'servers': 8,
                    'least_server': fakes.OTHER_UUID}}})

    agents.add('uneven', endpoint=Uneven())
    found = run('host', 'show', 'uneven', '-f', 'json').json['fairness']
    assert found['received'] == {'jain': 0.93, 'servers': 8,
                                 'least_server': fakes.OTHER_UUID}
    table = run('host', 'show', 'uneven').out
    assert f'0.930 of 8 servers, least {fakes.OTHER_UUID}' in table
    # No round was billed there.
    assert run('host', 'show', 'a', '-f', 'json').json['fairness'] is None


def test_a_host_that_is_unknown_is_one_line(agents, run):
    ran = run('host', 'show', 'gone', '--timeout', '0.1')
    assert (ran.status, ran.out) == (1, '')
    assert ran.err == 'host gone: no answer within 0.1 s\n'


@pytest.mark.parametrize('arguments', [
    ('host', 'show', 'a b'), ('host', 'show', 'x' * 256),
    ('host', 'show', ''), ('host', 'list', '--host', '#'),
    ('host', 'list', '--timeout', '0'), ('host', 'list', '--timeout', 'x'),
    ('server', 'top', '--interval', '0'), ('server', 'top', '-n', '0'),
    ('server', 'top', '--sort', 'name'), ('host', 'nonesuch'),
    ('host', 'show'),
])
def test_wrong_usage_is_2(run, capsys, arguments):
    assert run(*arguments).status == 2
    assert 'Traceback' not in capsys.readouterr().err


@pytest.mark.parametrize(('asked', 'shown'), [
    (['Host', 'nonesuch'], {'host'}), (['nonesuch'], set(hosts.COLUMNS))])
def test_a_column_that_there_is_not(agents, run, asked, shown):
    """The command was run: what it did is shown."""
    ran = run('host', 'list', '-f', 'json', *ON,
              *(f'--column={name}' for name in asked))
    assert ran.status == 2
    assert [set(row) for row in ran.json] == [shown, shown]
    assert all(name in ran.err for name in ('nonesuch', *hosts.COLUMNS))


def test_each_server_has_the_fields_of_a_bill(agents, run):
    for uuid in fakes.UUID, fakes.OTHER_UUID:
        ran = run('server', 'show', uuid, '-c', 'debt_cu_s', '-f', 'json', *ON)
        assert ran.status == 0
        assert set(ran.json) == {'debt_cu_s'}


def test_a_table_of_hosts_fits_80_characters(agents, run):
    short, long = run('host', 'list', *ON), run('host', 'list', '--long', *ON)
    assert max(map(len, short.out.splitlines())) <= 80
    assert 'profile_age_s' not in short.out
    assert 'profile_age_s' in long.out
    named = run('host', 'list', '-c', 'profile_age_s', *ON)
    assert 'profile_age_s' in named.out
    assert set(hosts.COLUMNS) == set(
        run('host', 'list', '-f', 'json', *ON).json[0])


def test_servers_are_listed(agents, run):
    ran = run('server', 'list', '-f', 'json', *ON)
    assert ran.status == 0
    assert [(row['server_uuid'], row['host'], row['entitled_cu'],
             row['right']) for row in ran.json] == [
        (fakes.UUID, 'a', 60, True), (fakes.OTHER_UUID, 'b', 60, True)]
    long = run('server', 'list', '--long', '-f', 'json', *ON)
    assert [row['dd_billing'] for row in long.json] == ['account', 'off']


def test_servers_are_filtered(agents, run):
    def uuids(*options):
        ran = run('server', 'list', '-f', 'json', *ON, *options)
        return [row['server_uuid'] for row in ran.json]
    assert uuids('--project', 'x') == []
    assert 'project x:' in run('server', 'list', *ON, '--project', 'x').err
    assert not run('server', 'list', *ON, '--project', 'x', '--wrong').err
    assert uuids('--wrong') == []
    host = agents.worlds['b'].host
    host.deaf.add(fakes.OTHER_UUID)
    host.set_vcpus(45_000, uuid=fakes.OTHER_UUID)
    agents.worlds['b'].now_s += 2
    waits.wait_until(lambda: uuids('--wrong') == [fakes.OTHER_UUID])


def test_a_server_is_found_by_its_name(agents, run):
    cloud = Cloud(['a', 'b'], {'web': Server(fakes.OTHER_UUID, 'b')})
    ran = run('server', 'show', 'web', '-f', 'json', cloud=cloud)
    assert ran.status == 0
    assert (ran.json['server_uuid'], ran.json['host']) == (
        fakes.OTHER_UUID, 'b')
    assert ran.json['entitled_cu'] == 60
    assert ran.json['work'] == ''
    assert ran.json['wanted']['quota_us'] == 15_000


def test_a_server_is_found_where_nova_does_not_expect_it(agents, run):
    cloud = Cloud(['a', 'b'], {fakes.UUID: Server(fakes.UUID, 'b')})
    ran = run('server', 'show', fakes.UUID, '-f', 'json', cloud=cloud)
    assert (ran.status, ran.json['host']) == (0, 'a')


def test_a_server_is_found_without_nova(agents, run):
    ran = run('server', 'show', fakes.OTHER_UUID, '-f', 'json', *ON)
    assert (ran.status, ran.json['host']) == (0, 'b')
    table = run('server', 'show', fakes.UUID, *ON)
    assert '15000 of 50000 us for each vCPU' in table.out


@pytest.mark.parametrize(('arguments', 'error'), [
    ((NOWHERE, *ON), f'server {NOWHERE} runs on none of the hosts a, b, as '
     'far as their agents answer'),
    (('web', *ON), "'web' is no UUID: without --host, Nova is asked for the "
                   'server of this name'),
    (('web',), 'there is no server web'),
])
def test_a_server_that_is_unknown_is_one_line(agents, run, arguments, error):
    ran = run('server', 'show', *arguments, cloud=Cloud(['a', 'b']))
    assert (ran.status, ran.out, ran.err.count('\n')) == (1, '', 1)
    assert ran.err.startswith(error)


@pytest.mark.parametrize(('error', 'text'), [
    (exceptions.SDKException('no\nway'), 'Nova cannot be asked: no way ('),
    (exceptions.DuplicateResource('two'),
     'several servers are called x: give the ID'),
    (keystone.ConnectFailure('down'),
     'Nova cannot be asked: down (is it running'),
    (exceptions.NotSupported('no version'),
     'Nova cannot be asked: no version (is it running'),
    (RuntimeError('odd'), 'RuntimeError: odd (--debug shows where)'),
])
def test_what_nova_raises_is_one_line(run, error, text):
    ran = run('server', 'show', 'x', cloud=Cloud(error=error))
    assert (ran.status, ran.err.count('\n')) == (1, 1)
    assert ran.err.startswith(text)


def test_a_nova_without_compute_services_is_one_line(run):
    ran = run('host', 'list', cloud=Cloud())
    assert (ran.status, ran.err.count('\n')) == (1, 1)


def test_top_prints_where_there_is_no_terminal(agents, run):
    ran = run('server', 'top', *ON)
    assert ran.status == 0
    first, second, header, *servers = ran.out.splitlines()
    assert 'hosts: 2, no answer: 0; servers: 2, wrong: 0;' in first
    assert second.startswith('promised 120 CU')
    assert header.split()[:2] == ['server_uuid', 'host']
    assert {line.split()[0] for line in servers} == {
        fakes.UUID, fakes.OTHER_UUID}
    ran = run('server', 'top', '--number', '2', '--interval', '1', *ON)
    assert ran.out.count('promised 120 CU') == 2


def test_calibrations_are_shown(agents, run):
    ran = run('calibration', 'show', '-f', 'json', *ON)
    assert ran.status == 0
    one, _other = ran.json
    assert (one['host'], one['pcpus'], one['busy'], one['cu_per_pcpu']) == (
        'a', '0-1', 1.0, 100.0)
    assert one['interval'] == pytest.approx(0.02)
    assert one['measured_on'] == 'host'


def store(agents, host, coefficient):
    document.store(fakes.make_profile(coefficient),
                   str(agents.worlds[host].profile_path))
    agents.worlds[host].now_s += 2
    waits.wait_until(
        lambda: agents.worlds[host].loop.profile_in_use()[0].cpu_classes[
            0].busy.coefficient == coefficient)


def test_calibrations_are_compared(agents, run):
    store(agents, 'b', 1.5)
    ran = run('calibration', 'report', '-f', 'json', *ON)
    assert ran.status == 0
    assert [(row['host'], row['group'], row['cu_per_pcpu'])
            for row in ran.json] == [('a', 1, 100.0), ('b', 2, 150.0)]
    assert ran.err == (
        'The fastest pCPU, of b, is 1.50 times as fast as the slowest, of a '
        '(150.0 and 100.0 CU)\n2 hosts have 2 profiles; stale: none\n')


def test_hosts_that_share_a_profile_are_equal(agents, run):
    ran = run('calibration', 'report', '-f', 'json', *ON)
    assert [(row['group'], row['difference']) for row in ran.json] == [
        (1, 0.0), (1, 0.0)]
    assert '2 hosts have 1 profiles' in ran.err


def test_calibrations_are_written_as_a_page(agents, run, tmp_path):
    store(agents, 'b', 1.5)
    page = tmp_path / 'report.html'
    ran = run('calibration', 'report', '--output', str(page), *ON)
    assert ran.status == 0, ran.err
    shown = report_pages.Page(page.read_text())
    assert {fakes.make_profile(each).id for each in (1.0, 1.5)} <= {
        cell for row in shown.rows for cell in row}
    ran = run('calibration', 'report', '--output', str(tmp_path), *ON)
    assert (ran.status, ran.err) == (
        1, f'{tmp_path} is a directory, not a file\n')


def test_formats(agents, run):
    ran = run('host', 'list', '-f', 'csv', *ON)
    assert ran.out.splitlines()[0].startswith('"host","cell","agent"')
    (first, _) = csv.DictReader(ran.out.splitlines(),
                                quoting=csv.QUOTE_NONNUMERIC)
    known = run('host', 'list', '-f', 'json', *ON).json[0]
    for name, value in known.items():
        if isinstance(value, bool | list):
            assert json.loads(first[name]) == value
        elif isinstance(value, float):
            # Times differ from one answer to the next.
            assert first[name] == round(first[name], 2)
        else:
            assert first[name] == ('' if value is None else value)
    ran = run('host', 'list', '-f', 'yaml', *ON)
    assert '- agent: alive' in ran.out
    table = run('host', 'list', *ON)
    assert json.dumps('a') not in table.out
