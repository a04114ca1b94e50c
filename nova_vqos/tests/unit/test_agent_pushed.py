# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Running servers follow what is pushed of their flavors."""

import pytest

from nova_vqos import pushed
from nova_vqos.agent import pushed_store
from nova_vqos.agent import pushing
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import billing_world
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import test_agent_quanta

KIND = base.EventKind
NOW_US = 1_800_000_000_000_000


class World(billing_world.World):
    """A host to which is pushed."""

    def __init__(self, directory):
        self.store = pushed_store.PushedStore(str(directory / 'pushed.json'))
        self.store.load()
        super().__init__(directory, store=self.store)
        self.pushing = pushing.Pushing(self.store, self.loop,
                                       now_us=lambda: NOW_US)
        self.generation = NOW_US

    def push(self, flavor_id='f1', *, generation=None, name='small', vcpus=2,
             units=60, quantum_class='default', dd_billing='off'):
        if generation is None:
            self.generation = generation = self.generation + 1
        flavors = {flavor_id: {
            'name': name, 'vcpus': vcpus, 'units': units,
            'quantum_class': quantum_class, 'dd_billing': dd_billing}}
        answer = self.ask(lambda: self.pushing.push(generation, flavors))
        self.settle()
        return answer

    def restarted(self, directory):
        """The agent starts anew, on the same host."""
        again = World(directory)
        again.now_s, again.host.runs = self.now_s, self.host.runs
        again.host.domains, again.host.tunes, again.host.used = (
            self.host.domains, self.host.tunes, self.host.used)
        again.start()
        return again


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class TestBilling:
    def test_it_is_switched_on_and_off_at_once(self, world):
        world.boot(dd_billing='off')
        world.start()
        world.use(2000, emulator_ns=2 * 10**8)
        answer = world.push(dd_billing='charge')
        assert answer['state'] == 'applied'
        assert (answer['servers'], answer['following']) == (1, 1)
        world.busy(60)
        bill = world.report()['bill']
        # What it used before is nobody's business.
        assert bill['limit_cu'] < 60
        assert world.used_cu_s() < 60 * 20.5
        assert world.domain().quota_us < billing_world.WHOLE.quota_us
        world.push(dd_billing='off')
        world.tick(3)
        assert world.report()['bill'] is None
        assert world.domain().quota_us is None
        assert world.limits() == {agent_world.RIGHT}
        world.use(1000, emulator_ns=2 * 10**8)
        # It begins with all that it is entitled to; what it owed it owes.
        before = bill['used_cu_s']['emulator']
        world.push(dd_billing='charge')
        assert world.domain() == billing_world.WHOLE
        world.busy(10)
        assert before < world.used_cu_s() <= before + 10 * 20.5
        report = world.report()
        assert report['tamperings'] == []
        assert report['policy_source'] == {
            'units': 'flavor', 'cap': 'flavor', 'quantum_class': 'pushed',
            'dd_billing': 'pushed'}
        assert report['booted']['dd_billing'] == 'off'
        assert report['pushed']['dd_billing'] == 'charge'
        assert report['pushed']['pushed_at'] == '2027-01-15T08:00:00+00:00'

    def test_off_ends_what_the_flavor_was_booted_with(self, world):
        world.boot(dd_billing='charge')
        world.start()
        world.busy(30)
        assert world.report()['bill']['limit_cu'] < 60
        world.push(dd_billing='off')
        world.tick(3)
        assert world.domain().quota_us is None
        assert world.report()['bill'] is None

    def test_a_restart_goes_on_where_it_was(self, world, tmp_path):
        world.boot(dd_billing='off')
        world.start()
        world.push(dd_billing='charge')
        world.busy(60)
        used, limit = world.used_cu_s(), world.domain()
        again = world.restarted(tmp_path)
        assert again.domain() == limit
        again.busy(4)
        assert used < again.used_cu_s() < used + 5 * 20.5
        assert again.report()['tamperings'] == []

    def test_a_hard_reboot_changes_nothing(self, world):
        world.boot(dd_billing='off')
        world.start()
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
        store = pushed_store.PushedStore(str(tmp_path / 'pushed.json'))
        world = test_agent_quanta.make_world(
            tmp_path, test_agent_quanta.FakeWatch(), monkeypatch, store=store)
        world.store = store
        return world

    def push(self, world, quantum_class):
        world.store.take({'f1': pushed.Override(
            pushed.generation_of(world.store.overrides) + 1, 'small', 2, 60,
            quantum_class, 'off')})
        world.ask(world.loop.follow_pushed)

    def test_slices_follow(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert set(world.host.slices[fakes.UUID].values()) == {None}
        cache_us = test_agent_quanta.CACHE_US
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
        assert test_agent_quanta.CACHE_US in world.host.slices[
            fakes.UUID].values()
        self.push(world, 'default')
        world.tick()
        assert set(world.host.slices[fakes.UUID].values()) == {None}

    def test_and_of_one_that_had_nothing_of_ours(self, world):
        world.host.boot(specs={})
        world.start()
        self.push(world, 'cache')
        world.tick()
        assert test_agent_quanta.CACHE_US in world.host.slices[
            fakes.UUID].values()


class TestWhoFollows:
    def test_units_and_cap_are_never_changed(self, world):
        world.boot(dd_billing='off')
        world.start()
        world.host.written.clear()
        answer = world.push(units=200, dd_billing='account')
        world.tick(5)
        assert world.host.written == []
        assert world.limits() == {agent_world.RIGHT}
        assert world.report()['policy']['units'] == 60
        assert answer['other_units'] == 1

    @pytest.mark.parametrize('flavor, reason', [
        (('small', 'f0'), 'another flavor of the name'),
        (('tiny', 'f1'), 'is now that of small'),
        (('small', ''), 'hard reboot'),
    ])
    def test_a_flavor_that_was_made_anew_is_another_one(self, world, flavor,
                                                        reason):
        world.boot(dd_billing='off', flavor=flavor)
        world.start()
        answer = world.push(dd_billing='account')
        assert (answer['servers'], answer['following']) == (0, 0)
        assert answer['unmatched'] == 1
        (named,) = answer['not_following']
        assert named['server_uuid'] == fakes.UUID
        assert reason in named['reason']
        assert reason in world.report()['push_error']
        assert world.report()['policy_source']['dd_billing'] == 'flavor'

    def test_a_domain_of_others_follows_nothing(self, world):
        world.boot(dd_billing='off')
        world.start()
        world.host.boot(fakes.OTHER_UUID, specs=None, flavor=('', ''))
        world.tick(2)
        assert world.push(dd_billing='account')['following'] == 1
        assert world.report(fakes.OTHER_UUID)['pushed'] is None

    def test_a_contradiction_leaves_the_last_good_policy(
            self, world, tmp_path, caplog):
        world.boot(specs={'vqos:dd_billing': 'account'})
        world.start()
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
        server = world.loop._known[fakes.UUID]
        assert (server.dd_billing, server.quantum_class) == ('off', 'io')
        # It is said once, however often it is described.
        world.loop.refresh()
        world.tick(3)
        assert caplog.text.count('cannot follow what was pushed') == 1
        assert world.host_report()['policy_errors'] == 1
        # An agent that starts knows no last one.
        again = world.restarted(tmp_path)
        assert again.report()['policy_source']['dd_billing'] == 'flavor'
        assert again.loop._known[fakes.UUID].dd_billing == 'account'
        assert again.host_report()['policy_errors'] == 1
        # And what fits again is followed again.
        again.push(dd_billing='off', generation=world.generation + 1)
        assert again.loop._known[fakes.UUID].dd_billing == 'off'
        assert again.report()['push_error'] == ''

    def test_a_flavor_that_was_bad_as_booted_can_become_good(self, world):
        world.boot(specs=fakes.make_specs(dd_billing='free'))
        world.start()
        assert 'vqos:dd_billing' in world.report()['policy_error']
        world.push(dd_billing='account')
        world.tick()
        report = world.report()
        assert report['policy_error'] == ''
        assert report['right'] is True

    def test_servers_that_are_not_known_yet_follow_once_they_are(self, world):
        world.host.up = False
        world.boot(dd_billing='off')
        world.start()
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
        world.boot(dd_billing='off')
        world.start()
        world.push(dd_billing='account')
        newest = world.generation
        answer = world.push(dd_billing='charge', generation=NOW_US - 5)
        assert answer['state'] == 'older'
        assert answer['generation'] == newest
        assert world.loop._known[fakes.UUID].dd_billing == 'account'

    def test_the_same_again_is_no_harm(self, world):
        world.boot(dd_billing='off')
        world.start()
        world.push(dd_billing='account')
        world.host.written.clear()
        answer = world.push(dd_billing='account', generation=world.generation)
        assert answer['state'] == 'same'
        assert answer['servers'] == 0
        assert world.host.written == []

    def test_one_that_cannot_be_kept_says_so(self, world, tmp_path):
        world.boot(dd_billing='off')
        world.start()
        (tmp_path / 'pushed.json').mkdir()
        answer = world.push(dd_billing='account')
        assert answer['stored'] is False
        assert 'cannot be kept' in answer['problem']
        assert world.loop._known[fakes.UUID].dd_billing == 'account'
        (alarm,) = world.host_report()['alarms']
        assert 'cannot be kept' in alarm

    def test_a_file_that_is_damaged_is_an_alarm_and_no_end(self, tmp_path):
        (tmp_path / 'pushed.json').write_text('{')
        world = World(tmp_path)
        world.boot(dd_billing='account')
        world.start()
        (alarm,) = world.host_report()['alarms']
        assert 'is ignored' in alarm
        assert world.loop._known[fakes.UUID].dd_billing == 'account'

    def test_what_is_held_is_told(self, world):
        world.start()
        assert world.ask(world.pushing.report) == {
            'generation': 0, 'pushed_at': '', 'flavors': {}, 'problem': '',
            'following': 0, 'other_units': 0, 'refused': 0, 'unmatched': 0,
            'not_following': []}
        world.push(quantum_class='io')
        report = world.ask(world.pushing.report)
        assert report['generation'] == world.generation
        assert report['flavors'] == {'f1': {
            'generation': world.generation, 'name': 'small', 'vcpus': 2,
            'units': 60, 'quantum_class': 'io', 'dd_billing': 'off'}}
