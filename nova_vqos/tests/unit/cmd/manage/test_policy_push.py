# SPDX-License-Identifier: Apache-2.0
"""Policy push, status and show, from flavors of Nova to servers."""

from urllib import parse

from keystoneauth1 import exceptions as keystone_exceptions
import pytest

from nova_vqos import policy_override
from nova_vqos import units
from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi
from nova_vqos.agent.overrides import store
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import policy_push
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import manage
from nova_vqos.tests.unit.agent.overrides import test_gossip

FLAVOR = {'id': 'f1', 'name': 'small', 'vcpus': 2, 'ram': 256,
          'extra_specs': {}}
# For each vCPU, and for its I/O.
RESERVED = units.CpuCap(10_000, 50_000), units.CpuCap(1_000, 50_000)


class Nova:
    """Has flavors, in pages, and compute services."""

    def __init__(self, *hosts):
        self.hosts = hosts
        self.flavors = {}
        self.page = 2
        self.asked = []
        self.answer = None

    @property
    def compute(self):
        return self

    def add(self, flavor_id, name, vcpus=2, **specs):
        self.flavors[flavor_id] = {
            'id': flavor_id, 'name': name, 'vcpus': vcpus, 'ram': 256,
            'extra_specs': {key.replace('__', ':'): value
                            for key, value in specs.items()}}

    def get(self, path, microversion):
        if path == manage.SERVICES:
            return manage.answer(manage.services(*self.hosts))
        path, _, query = path.partition('?')
        params = dict(parse.parse_qsl(query))
        assert (path, microversion) == ('/flavors/detail', '2.61')
        assert params['is_public'] == 'None'
        self.asked.append(params.get('marker'))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        ids = list(self.flavors)
        start = 0 if 'marker' not in params else (
            ids.index(params['marker']) + 1)
        return manage.answer({'flavors': [
            self.flavors[one] for one in ids[start:start + self.page]]})


@pytest.fixture
def nova():
    nova = Nova('a', 'b')
    nova.add('f1', 'small', vqos__quantum_class='io',
             resources__CUSTOM_VQOS_CPU_UNIT='60', vqos__dd_billing='charge')
    nova.add('f2', 'stock')
    nova.add('f3', 'dear', vqos__dd_billing='account')
    return nova


@pytest.fixture
def agents(tmp_path):
    with manage.Agents(tmp_path) as world:
        yield world


@pytest.fixture
def made(agents, tmp_path):
    """Agents of two hosts, by host."""
    return {host: test_gossip.Agent(agents, tmp_path, host) for host in 'ab'}


@pytest.fixture
def run(agents, tmp_path, nova):
    config = tmp_path / 'nova-vqos.conf'
    config.write_text('[DEFAULT]\ntransport_url = fake://\n'
                      '[vqos_manage]\ntimeout_s = 60\n')
    return lambda *arguments: manage.run(*arguments, config=config, cloud=nova)


def rows(ran):
    return {row['host']: row for row in ran.json}


class TestFlavors:
    def test_all_pages_are_read(self, nova):
        found = cloud.Cloud(nova).flavors()
        assert [flavor.name for flavor in found] == ['small', 'stock', 'dear']
        assert nova.asked == [None, 'f2', 'f3']

    def test_without_our_keys_it_is_the_defaults(self, nova):
        found, wrong = policy_push.overrides(cloud.Cloud(nova).flavors())
        assert wrong == []
        assert found['f2'] == policy_override.Override(
            0, 'stock', 2, None, 'default', 'off', 'off')
        assert found['f1'] == policy_override.Override(
            0, 'small', 2, 60, 'io', 'charge', 'off')

    def test_they_are_selected_by_name_or_id(self, nova):
        found = cloud.Cloud(nova).flavors()
        assert [flavor.flavor_id for flavor in cloud.select(
            found, ['dear', 'f1', 'f3'])] == ['f3', 'f1']
        with pytest.raises(errors.ManageError, match='flavor large'):
            cloud.select(found, ['small', 'large'])

    def test_hidden_extra_specs_are_not_taken_for_none(self, nova):
        del nova.flavors['f2']['extra_specs']
        with pytest.raises(errors.ManageError, match='administrator'):
            cloud.Cloud(nova).flavors()

    @pytest.mark.parametrize('given, says', [
        *((manage.answer(body), 'not what its API') for body in (
            None, {}, [], 'flavors', {'flavors': 7}, {'flavors': [7]},
            {'flavors': [{'id': 'x'}]})),
        *((failure, 'Nova cannot be asked') for failure in (
            manage.answer({}, 403), manage.answer({}, 503),
            keystone_exceptions.ConnectFailure('refused'))),
        # A list without an end.
        (manage.answer({'flavors': [FLAVOR] * 1000}), 'does not page')])
    def test_a_bad_answer_of_nova_is_an_error(self, nova, given, says):
        nova.answer = given
        with pytest.raises(errors.ManageError, match=says):
            cloud.Cloud(nova).flavors()

    def test_more_than_agents_keep(self):
        with pytest.raises(errors.ManageError, match='by --flavor'):
            policy_push.overrides([cloud.Flavor(str(number), 'x', 1, {})
                               for number in range(1501)])


class TestPush:
    def test_all_flavors_reach_all_hosts(self, run, made):
        ran = run('policy', 'push', '-f', 'json')
        assert ran.status == 0, ran.err
        assert [row['state'] for row in ran.json] == ['applied', 'applied']
        held = made['a'].store.overrides
        assert held == made['b'].store.overrides
        assert {override.name for override in held.values()} == {
            'small', 'stock', 'dear'}
        assert len({override.generation for override in held.values()}) == 1
        again = run('policy', 'status', '-f', 'json')
        assert again.status == 0
        assert rows(again)['a']['generation'] == made['a'].generation
        assert {row['state'] for row in again.json} == {'current'}

    def test_one_flavor_leaves_the_others(self, run, made, nova):
        run('policy', 'push')
        before = made['a'].store.overrides
        nova.add('f1', 'small', vqos__quantum_class='cache')
        nova.add('f3', 'dear')
        ran = run('policy', 'push', '--flavor', 'small', '-f', 'json')
        assert ran.status == 0
        after = made['a'].store.overrides
        assert after['f1'].quantum_class == 'cache'
        assert after['f1'].generation > before['f1'].generation
        assert after['f3'] == before['f3']

    def test_flavors_that_nova_does_not_have_any_more(self, run, made, nova):
        run('policy', 'push', '--host', 'a')
        del nova.flavors['f3']
        ran = run('policy', 'push', '--dry-run')
        assert 'as booted: dear' in ' '.join(ran.err.split())
        assert run('policy', 'push', '--flavor', 'f1').status == 0
        assert set(made['a'].store.overrides) == {'f1', 'f2', 'f3'}
        ran = run('policy', 'push', '--host', 'b')
        assert ran.status == 0
        ran = run('policy', 'status', '-f', 'json')
        assert rows(ran)['a']['behind'] == ['dear', 'small', 'stock']
        assert rows(ran)['b']['state'] == 'current'
        assert run('policy', 'push').status == 0
        for agent in made.values():
            assert set(agent.store.overrides) == {'f1', 'f2'}
        assert run('policy', 'status').status == 0

    def test_agents_before_full_pushes(self, run, made, nova, monkeypatch):
        monkeypatch.delattr(manager.AgentManager, 'push_flavors')
        ran = run('policy', 'push', '-f', 'json')
        assert ran.status == 0
        assert [row['state'] for row in ran.json] == ['applied'] * 2
        assert len(made['a'].store.overrides) == 3

    def test_all_but_invalid_flavors(self, run, made, nova):
        nova.add('f4', 'bad', vqos__quantum_class='fast')
        nova.add('f5', 'worse', vqos__dd_billing='charge')
        ran = run('policy', 'push')
        assert ran.status == 1
        said = ' '.join(ran.err.split())
        assert ("flavor bad (f4): vqos:quantum_class is 'fast', it must be "
                'one of default, io, spin') in said
        assert 'flavor worse (f5): vqos:dd_billing' in said
        for host in made.values():
            assert set(host.store.overrides) == {'f1', 'f2', 'f3'}
        # Servers of a flavor that became invalid keep what they have.
        nova.add('f1', 'small', vqos__quantum_class='fast')
        run('policy', 'push')
        assert made['a'].store.overrides['f1'].quantum_class == 'io'
        # Of those that are named it is none.
        assert run('policy', 'push', '--flavor', 'f2').status == 0

    def test_invalid_flavors_alone(self, run, made, nova):
        nova.add('f4', 'bad', vqos__quantum_class='fast')
        ran = run('policy', 'push', '--flavor', 'bad')
        assert ran.status == 1
        assert 'flavor bad (f4): vqos:quantum_class' in ' '.join(
            ran.err.split())
        assert made['a'].store.overrides == {}

    def test_a_dry_run_shows_changes_and_makes_none(self, run, made, nova):
        run('policy', 'push', '--host', 'a')
        nova.add('f3', 'dear', vqos__dd_billing='off')
        ran = run('policy', 'push', '--dry-run', '-f', 'json')
        assert ran.status == 0
        assert made['b'].store.overrides == {}
        assert made['a'].store.overrides['f3'].dd_billing == 'account'
        found = {row['flavor']: row for row in ran.json}
        assert found['small'] == {
            'flavor': 'small', 'id': 'f1', 'vcpus': 2, 'units_cu': 60,
            'quantum_class': 'io', 'dd_billing': 'charge',
            'guarantee': 'off', 'hosts_behind': 1}
        assert found['dear']['hosts_behind'] == 2
        assert run('policy', 'push', '--dry-run').out

    def test_a_host_that_does_not_acknowledge(self, run, made, nova):
        nova.hosts = ('a', 'b', 'dead')
        soon = ('--timeout', '3')
        ran = run('policy', 'push', '-f', 'json', *soon)
        assert ran.status == 1
        assert rows(ran)['dead']['state'] == 'no answer'
        assert rows(ran)['b']['state'] == 'applied'
        assert '1 of 3 hosts gave no answer: dead' in ran.err
        status = run('policy', 'status', '-f', 'json', *soon)
        assert status.status == 1
        assert rows(status)['dead']['state'] == 'no answer'
        # Also as people see it.
        assert 'no answer' in run('policy', 'status', *soon).out

    def test_no_push_is_lost_by_a_clock(self, run, made, nova, monkeypatch):
        run('policy', 'push')
        before = made['a'].generation
        now_us = before - 10**8
        monkeypatch.setattr(store, 'now_us', lambda: now_us)
        nova.add('f3', 'dear', vqos__dd_billing='off')
        assert run('policy', 'push').status == 0
        assert made['a'].generation == before + 1
        assert made['b'].store.overrides['f3'].dd_billing == 'off'

    def test_a_clock_that_is_too_slow_is_reported(self, run, made, nova,
                                                  monkeypatch):
        run('policy', 'push')
        before = made['a'].generation
        monkeypatch.setattr(store, 'now_us', lambda: 1000)
        nova.add('f3', 'dear', vqos__dd_billing='off')
        ran = run('policy', 'push')
        assert ran.status == 1
        assert f'a (its answer is ignored: generation {before}' in ' '.join(
            ran.err.split())
        assert made['a'].generation == before

    def test_an_overtaken_push_is_reported(self, run, made, monkeypatch):
        real = manager.AgentManager.push_flavors

        def overtake(self, context, push):
            self._receiver().push({
                **push, 'generation': push['generation'] + 5})
            return real(self, context, push=push)
        monkeypatch.setattr(manager.AgentManager, 'push_flavors', overtake)
        ran = run('policy', 'push', '-f', 'json')
        assert ran.status == 1
        assert {row['state'] for row in ran.json} == {'overtaken'}
        assert 'push again' in ran.err

    def test_a_push_that_is_not_stored_is_reported(self, run, made, tmp_path):
        (tmp_path / 'a.json').mkdir()
        ran = run('policy', 'push', '-f', 'json')
        assert ran.status == 1
        assert 'cannot be stored' in rows(ran)['a']['problem']
        assert 'lost with the next start of the agent, on a' in ' '.join(
            ran.err.split())

    def test_an_agent_that_is_too_old(self, run, made, agents, nova):
        class Old:
            target = manager.oslo_messaging.Target(version='1.1')
        agents.add('old', Old())
        nova.hosts = ('a', 'b', 'old')
        ran = run('policy', 'push', '-f', 'json')
        assert ran.status == 1
        assert rows(ran)['old']['state'] == 'too old'

    def test_servers_that_do_not_follow_are_named(self, run, made, agents):
        api = rpcapi.AgentAPI(agents.transport())
        made['a'].world.host.boot(fakes.OTHER_UUID, specs={},
                                  flavor=('small', 'f0'))
        made['a'].boot(api)
        ran = run('policy', 'push', '-f', 'json')
        assert ran.status == 0
        row = rows(ran)['a']
        assert (row['servers'], row['following']) == (1, 1)
        assert row['not_following']['unmatched'] == 1
        assert f'1 servers do not follow what was pushed: {fakes.OTHER_UUID}' \
            in ' '.join(ran.err.split())

    def test_nova_has_none(self, run, made, nova):
        nova.flavors.clear()
        ran = run('policy', 'push')
        assert ran.status == 1
        assert 'Nova has no flavors' in ran.err


class TestSigned:
    @pytest.fixture
    def path(self, tmp_path):
        """Of a private key, which the program made."""
        ran = manage.run('key', 'create', str(tmp_path / 'key'), '-f', 'json')
        assert ran.status == 0, ran.err
        assert ran.json['public'] == (tmp_path / 'key.pub').read_text()
        return tmp_path / 'key'

    @pytest.fixture
    def strict(self, agents, tmp_path, path):
        """An agent of host b that takes signed pushes alone."""
        return test_gossip.Agent(agents, tmp_path, 'b', [f'{path}.pub'])

    @pytest.fixture
    def made(self, agents, tmp_path, strict):
        return {'a': test_gossip.Agent(agents, tmp_path, 'a'), 'b': strict}

    @pytest.fixture
    def sign(self, tmp_path, path):
        with (tmp_path / 'nova-vqos.conf').open('a') as config:
            config.write(f'push_private_key = {path}\n')

    def test_they_reach_all(self, run, made, sign):
        ran = run('policy', 'push', '-f', 'json')
        assert ran.status == 0, ran.err
        assert made['a'].store.pushes == made['b'].store.pushes
        assert made['a'].store.pushes[0].signature
        ran = run('policy', 'status', '-f', 'json')
        assert [row['signed'] for row in ran.json] == [False, True]
        assert 'required' in run('policy', 'status').out
        assert run('policy', 'push', '--flavor', 'f1').status == 0
        assert len(made['b'].store.pushes) == 2

    def test_without_a_key(self, run, made):
        ran = run('policy', 'push', '-f', 'json')
        assert ran.status == 1
        assert rows(ran)['a']['state'] == 'applied'
        assert '[vqos_manage] push_private_key' in rows(ran)['b']['problem']
        assert made['b'].store.pushes == ()

    @pytest.mark.parametrize('mode', [0o640, 0o604, 0o622])
    def test_a_key_that_others_may_read(self, run, made, sign, path, mode):
        path.chmod(mode)
        ran = run('policy', 'push')
        assert ran.status == 1
        assert '[vqos_manage] push_private_key' in ' '.join(ran.err.split())
        assert made['a'].store.pushes == ()

    def test_a_key_is_never_lost(self, path):
        assert path.stat().st_mode & 0o777 == 0o600
        before = path.read_bytes()
        assert manage.run('key', 'create', str(path)).status == 1
        public = path.with_suffix('.pub')
        public.rename(path.with_suffix('.other'))
        assert manage.run('key', 'create', str(path)).status == 1
        assert path.read_bytes() == before
        assert not public.exists()
        assert manage.run('key', 'create', str(path), '--force').status == 0
        assert path.read_bytes() != before
        assert path.stat().st_mode & 0o777 == 0o600
        assert sorted(one.name for one in path.parent.glob('*key*')) == [
            'key', 'key.other', 'key.pub']

    def test_a_place_where_none_can_be(self, tmp_path):
        (tmp_path / 'file').touch()
        assert manage.run('key', 'create',
                          str(tmp_path / 'file' / 'key')).status == 1


class TestStatus:
    def test_hosts_that_lag_are_named(self, run, made, nova, agents):
        run('policy', 'push')
        nova.add('f1', 'small', vqos__quantum_class='cache')
        run('policy', 'push', '--host', 'a', '--flavor', 'f1')
        ran = run('policy', 'status', '-f', 'json')
        assert ran.status == 1
        assert rows(ran)['a']['state'] == 'current'
        assert rows(ran)['b']['state'] == 'behind'
        assert rows(ran)['b']['behind'] == ['small']
        assert 'hosts behind: b;' in ' '.join(ran.err.split())
        # Once it has asked another, it is not any more.
        made['b'].ask(rpcapi.AgentAPI(agents.transport()))
        ran = run('policy', 'status', '-f', 'json')
        assert (ran.status, ran.err) == (0, '')

    def test_nothing_was_pushed(self, run, made):
        ran = run('policy', 'status', '-f', 'json')
        assert ran.status == 0
        assert rows(ran)['a']['generation'] == 0
        assert run('policy', 'status').out


class TestDigests:
    """Most agents are asked for a digest alone."""

    @pytest.fixture
    def whole(self, monkeypatch):
        """Hosts that were asked for all flavors."""
        asked = []
        real = manager.AgentManager.get_pushed

        def get_pushed(self, context):
            asked.append(self._host)
            return real(self, context)
        monkeypatch.setattr(manager.AgentManager, 'get_pushed', get_pushed)
        return asked

    def test_one_agent_of_each_digest_is_asked_for_flavors(
            self, run, made, nova, whole):
        assert run('policy', 'push').status == 0
        assert whole == []
        assert run('policy', 'status').status == 0
        assert len(whole) == 1
        nova.add('f1', 'small', vqos__quantum_class='cache')
        run('policy', 'push', '--host', 'a')
        del whole[:]
        ran = run('policy', 'push', '--dry-run', '-f', 'json')
        assert sorted(whole) == ['a', 'b']
        assert {row['flavor']: row['hosts_behind'] for row in ran.json} == {
            'small': 1, 'stock': 0, 'dear': 0}

    def test_agents_before_digests(self, run, made, nova, monkeypatch):
        """In an upgrade some agents have none yet."""
        run('policy', 'push')
        first = made['a'].generation
        monkeypatch.delattr(manager.AgentManager, 'get_pushed_digest')
        ran = run('policy', 'status', '-f', 'json')
        assert (ran.status, ran.err) == (0, '')
        assert rows(ran)['a']['generation'] == first
        monkeypatch.setattr(store, 'now_us', lambda: first - 10**8)
        assert run('policy', 'push').status == 0
        assert made['b'].generation == first + 1

    def test_one_that_follows_a_push_meanwhile(
            self, run, made, nova, monkeypatch):
        """Between both questions: its digest is that of nothing any more."""
        run('policy', 'push')
        real = manager.AgentManager.get_pushed_digest

        def get_pushed_digest(self, context):
            found = real(self, context)
            self._receiver().push_partial(found['generation'] + 1, {'f9': {
                'name': 'new', 'vcpus': 1, 'units': None,
                'quantum_class': 'io', 'dd_billing': 'off',
                'guarantee': 'off'}})
            return found
        monkeypatch.setattr(manager.AgentManager, 'get_pushed_digest',
                            get_pushed_digest)
        ran = run('policy', 'status', '-f', 'json')
        assert {row['flavors'] for row in ran.json} == {4}
        assert ran.status == 0

    def test_one_that_ends_meanwhile(self, run, made, monkeypatch):
        run('policy', 'push')

        def get_pushed(self, context):
            raise rpcapi.AgentError('it ends')
        monkeypatch.setattr(manager.AgentManager, 'get_pushed', get_pushed)
        ran = run('policy', 'status', '-f', 'json')
        assert ran.status == 1
        assert {row['state'] for row in ran.json} == {'no answer'}


class Evil:
    """The agent of a host that was taken over."""

    target = manager.oslo_messaging.Target(version=rpcapi.VERSION)

    def __init__(self, generation, flavors=None, digest='0'):
        self._state = {
            'host': 'evil', 'generation': generation, 'pushed_at': '',
            'problem': '', 'following': 0, 'other_units': 0, 'refused': 0,
            'unmatched': 0, 'not_following': []}
        self._flavors = {} if flavors is None else flavors
        self._digest = digest

    def get_pushed(self, _context):
        return {**self._state, 'flavors': self._flavors}

    def get_pushed_digest(self, _context):
        return {**self._state, 'digest': self._digest}

    def push_flavors(self, _context, push):
        return {**self._state, 'state': 'same', 'stored': True, 'servers': 0}


TEN_YEARS_US = 10 * 365 * 86_400 * 10**6
GENERATIONS = [
    lambda: store.now_us() + TEN_YEARS_US,
    # What agents would still accept, if their clocks were all alike.
    lambda: store.now_us() + policy_override.MOST_AHEAD_US - 10**7,
    lambda: 2**53, lambda: 2**62, lambda: 10**30, lambda: -1, lambda: 'x',
    lambda: 1.5, lambda: None, lambda: True]


class TestEvil:
    """What one host answers is its own line, and no more."""

    @pytest.fixture(autouse=True)
    def hosts(self, made, nova):
        nova.hosts = ('a', 'b', 'evil')

    @pytest.mark.parametrize('generation', GENERATIONS)
    def test_generations_that_cannot_be(self, run, made, agents, generation):
        value = generation()
        agents.add('evil', Evil(value))
        before_us = store.now_us()
        ran = run('policy', 'push', '-f', 'json')
        assert [rows(ran)[host]['state'] for host in 'ab'] == ['applied'] * 2
        assert rows(ran)['evil']['state'] == 'no answer'
        for agent in made.values():
            assert before_us <= agent.generation <= store.now_us()
            assert len(agent.store.overrides) == 3
        assert ran.status == 1
        assert 'evil (its answer' in ' '.join(ran.err.split())
        ran = run('policy', 'status', '-f', 'json')
        assert [rows(ran)[host]['state'] for host in 'ab'] == ['current'] * 2
        assert rows(ran)['evil']['state'] == 'no answer'

    @pytest.mark.parametrize('flavors', [
        'flavors', {'f1': {'x': 1}}, {'f1': None}, {'': {}},
        {'f1': {**test_gossip.FLAVORS['f1'], 'generation': -1}},
        {'f1': {**test_gossip.FLAVORS['f1'], 'generation': 2**53 - 1}},
        {'f1': {**test_gossip.FLAVORS['f1'], 'generation': 1,
                'dd_billing': 'free'}},
        {'f1': {**test_gossip.FLAVORS['f1'], 'generation': 1,
                'name': 'x' * 256}},
    ])
    def test_flavors_that_cannot_be(self, run, made, agents, flavors):
        agents.add('evil', Evil(0, flavors))
        assert [row['state'] for row in run(
            'policy', 'push', '-f', 'json').json] == [
                'applied', 'applied', 'same']
        ran = run('policy', 'status', '-f', 'json')
        assert ran.status == 1
        assert [rows(ran)[host]['state'] for host in 'ab'] == ['current'] * 2
        assert rows(ran)['evil']['state'] == 'no answer'
        assert rows(ran)['evil']['problem']

    def test_the_digest_of_others(self, run, made, agents):
        """It is asked for the flavors of all, and has others."""
        run('policy', 'push', '--host', 'a', '--host', 'b')
        agents.add('evil', Evil(0, {'f1': {}}, made['a'].pushing.digest()))
        ran = run('policy', 'status', '-f', 'json')
        assert [rows(ran)[host]['state'] for host in 'ab'] == ['current'] * 2
        assert rows(ran)['evil']['state'] == 'no answer'


class TestShow:
    @pytest.fixture(autouse=True)
    def servers(self, made, agents):
        api = rpcapi.AgentAPI(agents.transport())
        made['b'].world.host.boot(
            fakes.OTHER_UUID, specs={'vqos:dd_billing': 'account'},
            flavor=('small', 'f1'))
        made['a'].boot(api)
        made['b'].boot(api)

    def test_what_holds_and_why(self, run):
        run('policy', 'push')
        ran = run('policy', 'show', '--flavor', 'small', '-f', 'json')
        assert ran.status == 0
        found = {(row['host'], row['server'], row['field']): row
                 for row in ran.json}
        assert len(found) == 3 * len(policy_override.FOLLOWED)
        row = found['a', fakes.UUID, 'dd_billing']
        assert (row['in_force'], row['source'], row['booted'],
                row['pushed']) == ('charge', 'pushed', 'off', 'charge')
        row = found['b', fakes.OTHER_UUID, 'dd_billing']
        assert (row['in_force'], row['source'], row['booted'],
                row['pushed']) == ('account', 'flavor', 'account', 'charge')
        assert 'without resources:CUSTOM_VQOS_CPU_UNIT' in row['reason']
        assert found['a', fakes.UUID, 'guarantee']['in_force'] == 'off'

    def test_one_that_keeps_its_reservation(self, run, made, nova):
        world = made['a'].world
        for guarantee in ('required', 'off'):
            nova.add('f1', 'small', resources__CUSTOM_VQOS_CPU_UNIT='60',
                     vqos__guarantee=guarantee)
            ran = run('policy', 'push', '-f', 'json')
            # It was reserved meanwhile, and the agent looks at it or not.
            world.host.reservations[fakes.UUID] = RESERVED
            world.loop._servers[fakes.UUID].record_reserved(
                world.host.reserved(fakes.UUID))
        assert [row['keep_reservation'] for row in ran.json] == [1, 0]
        ran = run('policy', 'status', '-f', 'json')
        assert [row['keep_reservation'] for row in ran.json] == [1, 0]
        ran = run('policy', 'show', '--host', 'a', '-f', 'json')
        row = next(row for row in ran.json if row['field'] == 'guarantee')
        assert (row['in_force'], row['source']) == ('off', 'pushed')
        assert 'until it stops' in row['reason']
        assert run('policy', 'show').out

    def test_of_one_server(self, run):
        ran = run('policy', 'show', '--host', 'a', '--host', 'b', '--server',
                  fakes.OTHER_UUID, '-f', 'json')
        assert {row['server'] for row in ran.json} == {fakes.OTHER_UUID}
        assert {row['source'] for row in ran.json} == {'flavor'}

    def test_of_one_that_is_nowhere(self, run):
        ran = run('policy', 'show', '--host', 'a', '--server',
                  '00000000-2222-4333-8444-555555555555')
        assert ran.status == 1
        assert '00000000-2222-4333-8444-555555555555' in ran.err
        ran = run('policy', 'show', '--host', 'a', '--server', 'web')
        assert "'web' is no UUID" in ran.err


class TestWork:
    def test_it_is_not_pushed(self, run, made, nova):
        """What it costs is checked when a server comes."""
        assert 'vqos:work' not in run('policy', 'push').err
        nova.add('f4', 'numbers', vqos__work='integer',
                 resources__CUSTOM_VQOS_CPU_UNIT='60')
        ran = run('policy', 'push')
        assert ran.status == 0
        assert 'vqos:work is not pushed' in ran.err
        assert 'numbers' in ran.err
