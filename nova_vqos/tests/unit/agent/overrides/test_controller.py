# SPDX-License-Identifier: Apache-2.0
"""Running servers follow what is pushed of their flavors."""

import pytest

from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import primitives
from nova_vqos.agent.overrides import receiver
from nova_vqos.agent.overrides import store as override_store
from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import quantum_world

KIND = base.EventKind
NOW_US = 1_800_000_000_000_000


class World(billing.World):
    """A host to which is pushed."""

    def __init__(self, directory):
        self.store = override_store.OverrideStore(
            str(directory / 'pushed.json'))
        self.store.load()
        super().__init__(directory, store=self.store)
        self.pushing = receiver.Receiver(
            self.store, self.loop.follow_pushed, self.loop.pushed_report,
            'here', now_us=lambda: NOW_US)
        self.generation = NOW_US

    def push(self, flavor_id='f1', *, generation=None, name='small', vcpus=2,
             units=60, quantum_class='default', dd_billing='off',
             guarantee='off'):
        if generation is None:
            self.generation = generation = self.generation + 1
        flavors = {flavor_id: {
            'name': name, 'vcpus': vcpus, 'units': units,
            'quantum_class': quantum_class, 'dd_billing': dd_billing,
            'guarantee': guarantee}}
        answer = self.ask(
            lambda: self.pushing.push_partial(generation, flavors))
        self.settle()
        return primitives.to_primitives(answer)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class TestBilling:
    def test_it_is_switched_on_and_off_at_once(self, world):
        world.run(dd_billing='off')
        world.use(2000, emulator_ns=2 * 10**8)
        answer = world.push(dd_billing='charge')
        assert answer['state'] == 'applied'
        assert (answer['servers'], answer['following']) == (1, 1)
        world.busy(60)
        bill = world.report()['bill']
        # Its earlier usage does not matter here.
        assert bill['limit_cu'] < 60
        assert world.used_cu_s() < 60 * 20.5
        assert world.domain().quota_us < billing.WHOLE.quota_us
        world.push(dd_billing='off')
        world.tick(3)
        assert world.report()['bill'] is None
        assert world.domain().quota_us is None
        assert world.limits() == {agent.RIGHT}
        world.use(1000, emulator_ns=2 * 10**8)
        # It begins with all that it is entitled to; what it owed it owes.
        before = bill['used_cu_s']['emulator']
        world.push(dd_billing='charge')
        assert world.domain() == billing.WHOLE
        world.busy(10)
        assert before < world.used_cu_s() <= before + 10 * 20.5
        report = world.report()
        assert report['tamperings'] == []
        assert report['policy_source'] == {
            'units': 'flavor', 'cap': 'flavor', 'work': 'flavor',
            'project_ceiling_cu': 'flavor', 'burst_cu': 'flavor',
            'burst_seconds': 'flavor', 'guarantee': 'pushed',
            'quantum_class': 'pushed', 'dd_billing': 'pushed'}
        assert report['booted']['dd_billing'] == 'off'
        assert report['pushed']['dd_billing'] == 'charge'
        assert report['pushed']['pushed_at'] == '2027-01-15T08:00:00+00:00'

    def test_off_ends_what_the_flavor_was_booted_with(self, world):
        world.run(dd_billing='charge')
        world.busy(30)
        assert world.report()['bill']['limit_cu'] < 60
        world.push(dd_billing='off')
        world.tick(3)
        assert world.domain().quota_us is None
        assert world.report()['bill'] is None

    def test_a_restart_goes_on_where_it_was(self, world, tmp_path):
        world.run(dd_billing='off')
        world.push(dd_billing='charge')
        world.busy(60)
        used, limit = world.used_cu_s(), world.domain()
        again = world.restarted(tmp_path)
        again.start()
        assert again.domain() == limit
        again.busy(4)
        assert used < again.used_cu_s() < used + 5 * 20.5
        assert again.report()['tamperings'] == []

    def test_a_hard_reboot_changes_nothing(self, world):
        world.run(dd_billing='off')
        world.push(dd_billing='charge')
        world.busy(30)
        debt = world.report()['bill']['debt_cu_s']
        del world.host.runs[fakes.UUID]
        world.tick()
        world.boot(dd_billing='off', run_id=2)
        world.host.event(KIND.STARTED, detail='booted', at_s=world.now_s)
        world.settle()
        world.busy(4)
        assert world.report()['bill']['debt_cu_s'] > debt / 2
        assert world.report()['policy_source']['dd_billing'] == 'pushed'

    def test_one_that_comes_follows_what_its_new_host_knows(self, world):
        world.start()
        world.push(dd_billing='account')
        world.boot(dd_billing='off')
        world.host.event(KIND.STARTED, detail='migrated', at_s=world.now_s)
        world.tick(2)
        world.host.event(KIND.RESUMED, detail='migrated', at_s=world.now_s)
        world.use(10, emulator_ns=10**8)
        assert world.used_cu_s() > 0


class TestClass:
    @pytest.fixture
    def world(self, tmp_path, monkeypatch):
        store = override_store.OverrideStore(str(tmp_path / 'pushed.json'))
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch, store)
        world.store = store
        return world

    def push(self, world, quantum_class):
        world.store.merge(policy_push.of_overrides({
            'f1': policy_override.Override(
                policy_override.generation_of(world.store.overrides) + 1,
                'small', 2, 60, quantum_class, 'off', 'off')}))
        world.ask(world.loop.follow_pushed)

    def test_slices_follow(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert set(world.host.slices[fakes.UUID].values()) == {None}
        cache_us = quantum_world.CACHE_US
        self.push(world, 'cache')
        world.tick()
        assert world.host.slices[fakes.UUID] == {
            0: cache_us, 1: cache_us, -1: cache_us}
        assert world.report()['quantum']['class'] == 'cache'
        self.push(world, 'default')
        world.tick()
        assert set(world.host.slices[fakes.UUID].values()) == {None}

    def test_also_of_a_server_without_units(self, world):
        world.host.boot(specs={'vqos:quantum_class': 'cache'})
        world.start()
        assert quantum_world.CACHE_US in world.host.slices[fakes.UUID].values()
        self.push(world, 'default')
        world.tick()
        assert set(world.host.slices[fakes.UUID].values()) == {None}

    def test_and_of_one_that_had_nothing_of_ours(self, world):
        world.host.boot(specs={})
        world.start()
        self.push(world, 'cache')
        world.tick()
        assert quantum_world.CACHE_US in world.host.slices[fakes.UUID].values()


class TestWhoFollows:
    def test_units_and_cap_are_never_changed(self, world):
        world.run(dd_billing='off')
        world.host.written.clear()
        answer = world.push(units=200, dd_billing='account')
        world.tick(5)
        assert world.host.written == []
        assert world.limits() == {agent.RIGHT}
        assert world.report()['policy']['units'] == 60
        assert answer['other_units'] == 1

    @pytest.mark.parametrize('flavor, reason', [
        (('small', 'f0'), 'another flavor named'),
        (('tiny', 'f1'), 'is now that of small'),
        (('small', ''), 'hard reboot'),
    ])
    def test_a_flavor_made_anew_is_another(self, world, flavor, reason):
        world.run(dd_billing='off', flavor=flavor)
        answer = world.push(dd_billing='account')
        assert (answer['servers'], answer['following']) == (0, 0)
        assert answer['unmatched'] == 1
        (named,) = answer['not_following']
        assert named['server_uuid'] == fakes.UUID
        assert reason in named['reason']
        assert reason in world.report()['push_error']
        assert world.report()['policy_source']['dd_billing'] == 'flavor'

    def test_a_domain_of_others_follows_nothing(self, world):
        world.run(dd_billing='off')
        world.boot(fakes.OTHER_UUID, specs=None, flavor=('', ''))
        world.tick(2)
        assert world.push(dd_billing='account')['following'] == 1
        assert world.report(fakes.OTHER_UUID)['pushed'] is None

    def test_a_contradiction_changes_nothing(self, world, tmp_path, caplog):
        world.run(specs={'vqos:dd_billing': 'account'})
        world.push(dd_billing='off', quantum_class='io')
        answer = world.push(dd_billing='charge', quantum_class='cache')
        world.tick(3)
        assert answer['servers'] == 0
        assert answer['refused'] == 1
        (named,) = answer['not_following']
        assert named == {'server_uuid': fakes.UUID, 'flavor': 'small',
                         'reason': named['reason']}
        assert 'vqos:dd_billing' in named['reason']
        report = world.report()
        assert report['push_error'] == named['reason']
        assert report['pushed']['dd_billing'] == 'charge'
        server = world.loop._servers[fakes.UUID]
        assert (server.dd_billing, server.quantum_class) == ('off', 'io')
        # It is said once, however often it is described.
        world.loop.refresh()
        world.tick(3)
        assert sum(record.levelname == 'ERROR'
                   for record in caplog.records) == 1
        assert world.host_report()['policy_errors'] == 1
        # An agent that starts knows no last one.
        again = world.restarted(tmp_path)
        again.start()
        assert again.report()['policy_source']['dd_billing'] == 'flavor'
        assert again.loop._servers[fakes.UUID].dd_billing == 'account'
        assert again.host_report()['policy_errors'] == 1
        # And what fits again is followed again.
        again.push(dd_billing='off', generation=world.generation + 1)
        assert again.loop._servers[fakes.UUID].dd_billing == 'off'
        assert again.report()['push_error'] == ''

    def test_a_flavor_that_was_bad_as_booted_can_become_good(self, world):
        world.run(specs=fakes.make_specs(dd_billing='free'))
        assert 'vqos:dd_billing' in world.report()['policy_error']
        world.push(dd_billing='account')
        world.tick()
        assert world.reported('policy_error', 'right') == ('', True)

    def test_servers_that_are_not_known_yet_follow_once_they_are(self, world):
        world.host.up = False
        world.run(dd_billing='off')
        assert world.push(dd_billing='account')['servers'] == 0
        world.host.up = True
        world.tick(40)
        world.use(5, emulator_ns=10**8)
        assert world.report()['bill'] is not None

    def test_so_many_are_named_and_no_more(self, world):
        for number in range(150):
            world.host.boot(f'{number:08}-2222-4333-8444-555555555555',
                            specs={}, flavor=('small', 'f0'))
        world.start()
        answer = world.push()
        assert answer['unmatched'] == 150
        assert len(answer['not_following']) == 100


class TestGenerations:
    def test_older_ones_are_ignored(self, world):
        world.run(dd_billing='off')
        world.push(dd_billing='account')
        newest = world.generation
        answer = world.push(dd_billing='charge', generation=NOW_US - 5)
        assert answer['state'] == 'older'
        assert answer['generation'] == newest
        assert world.loop._servers[fakes.UUID].dd_billing == 'account'

    def test_the_same_again_is_no_harm(self, world):
        world.run(dd_billing='off')
        world.push(dd_billing='account')
        world.host.written.clear()
        answer = world.push(dd_billing='account', generation=world.generation)
        assert answer['state'] == 'same'
        assert answer['servers'] == 0
        assert world.host.written == []

    def test_one_that_cannot_be_stored_reports_it(self, world, tmp_path):
        world.run(dd_billing='off')
        (tmp_path / 'pushed.json').mkdir()
        answer = world.push(dd_billing='account')
        assert answer['stored'] is False
        assert 'cannot be stored' in answer['problem']
        assert world.loop._servers[fakes.UUID].dd_billing == 'account'
        (alarm,) = world.host_report()['alarms']
        assert 'cannot be stored' in alarm

    def test_a_file_that_is_damaged_is_an_alarm_and_no_end(self, tmp_path):
        (tmp_path / 'pushed.json').write_text('{')
        world = World(tmp_path)
        world.run(dd_billing='account')
        (alarm,) = world.host_report()['alarms']
        assert 'is ignored' in alarm
        assert world.loop._servers[fakes.UUID].dd_billing == 'account'

    def test_the_held_overrides_are_reported(self, world):
        world.start()
        assert primitives.to_primitives(world.ask(world.pushing.report)) == {
            'host': 'here', 'generation': 0, 'full_generation': 0,
            'requires_signature': False,
            'pushed_at': '', 'flavors': {}, 'problem': '', 'following': 0,
            'other_units': 0, 'refused': 0, 'unmatched': 0,
            'not_following': [], 'keep_reservation': 0}
        world.push(quantum_class='io')
        report = primitives.to_primitives(world.ask(world.pushing.report))
        assert report['generation'] == world.generation
        assert report['flavors'] == {'f1': {
            'generation': world.generation, 'name': 'small', 'vcpus': 2,
            'units': 60, 'quantum_class': 'io', 'dd_billing': 'off',
            'guarantee': 'off'}}
