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


"""Limits end where nobody can work out what is to be paid."""

import dataclasses

import pytest

from nova_vqos import profile as profiles
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import billing_world
from nova_vqos.tests.unit import fake_hypervisor as fakes

KIND = base.EventKind


@pytest.fixture
def world(tmp_path):
    return billing_world.World(tmp_path)


class TestNobodyWorksItOut:
    """A limit that nobody could end any more."""

    @staticmethod
    def limited(directory, **options):
        world = billing_world.World(directory, **options)
        world.boot()
        world.start()
        world.use(90, vcpu_ns=6 * 10**8, emulator_ns=5 * 10**8)
        assert world.limits() != {agent_world.RIGHT}
        return world

    @staticmethod
    def specs(world, specs):
        world.host.domains[fakes.UUID] = dataclasses.replace(
            world.host.domains[fakes.UUID], extra_specs=specs)
        world.host.event(KIND.CHANGED)
        world.settle()

    def test_units_that_the_host_cannot_give_any_more(self, tmp_path):
        world = self.limited(tmp_path)
        profiles.store(fakes.make_profile(0.25), str(world.profile_path))
        world.host.written.clear()
        world.tick(60)
        assert world.domain().quota_us is None
        # The cap is what it was before the change of profile.
        assert world.limits() == {agent_world.RIGHT}
        assert len(world.host.written) == 1
        assert 'its cap is left as it is' in world.report()['problem']
        # And it is charged again when the host can.
        profiles.store(fakes.make_profile(), str(world.profile_path))
        world.tick(10)
        world.use(20, vcpu_ns=10**7)
        report = world.report()
        assert report['right'] is True
        assert report['bill']['limit_cu'] is not None
        assert report['tamperings'] == []

    def test_a_cap_that_somebody_else_set_meanwhile_stays(self, tmp_path):
        world = self.limited(tmp_path)
        world.host.set_vcpus(2_000)
        world.host.domains[fakes.UUID] = dataclasses.replace(
            world.host.domains[fakes.UUID], extra_specs={})
        world.host.event(KIND.CHANGED)
        world.settle()
        world.tick(3)
        assert world.domain().quota_us is None
        assert world.limits() == {base.Limit(2_000, 50_000)}

    @pytest.mark.parametrize('specs', [
        None, {}, {'vqos:dd_billing': 'account'}])
    def test_units_that_are_gone(self, tmp_path, specs):
        world = self.limited(tmp_path)
        world.host.written.clear()
        self.specs(world, specs)
        world.tick(60)
        assert world.domain().quota_us is None
        assert world.limits() == {agent_world.RIGHT}
        assert len(world.host.written) == 1
        self.specs(world, fakes.make_specs(dd_billing='charge'))
        world.tick(3)
        assert world.domain().quota_us is not None
        assert world.report()['right'] is True
        assert world.report()['tamperings'] == []

    def test_use_that_cannot_be_read(self, tmp_path, caplog):
        world = self.limited(tmp_path)
        reading = world.host.used.pop(fakes.UUID)
        limit = world.domain()
        world.tick(50)
        assert world.domain() == limit
        assert world.report()['problem'] == ''
        world.tick(900)
        assert world.domain() == billing_world.WHOLE
        assert world.limits() == {agent_world.RIGHT}
        report = world.report()
        assert 'could not be read' in report['problem']
        assert report['right'] is True
        assert report['tamperings'] == []
        alarm, = world.host_report()['alarms']
        assert '1 servers are not billed' in alarm
        assert caplog.text.count('could not be read for 60 s') == 1
        # What it owed is not forgiven.
        world.host.used[fakes.UUID] = dataclasses.replace(
            reading, read_at_s=world.now_s)
        world.busy(20)
        report = world.report()
        assert report['problem'] == ''
        assert report['bill']['debt_cu_s'] > 0
        assert world.domain() != billing_world.WHOLE
        assert world.host_report()['alarms'] == []

    def test_a_round_that_hangs(self, tmp_path):
        world = self.limited(tmp_path)
        world.loop._rounds._working = True
        world.tick(70)
        assert world.domain() == billing_world.WHOLE
        assert 'could not be read' in world.report()['problem']

    def test_a_connection_that_is_lost_is_no_server_that_is(self, tmp_path):
        world = self.limited(tmp_path)
        limit = world.domain()
        reading = world.host.used.pop(fakes.UUID)
        world.host.up = False
        world.tick(300)
        world.host.up = True
        world.tick(12)
        assert world.host_report()['connected'] is True
        assert world.domain() == limit
        world.host.used[fakes.UUID] = reading
        assert world.report()['problem'] == ''

    def test_a_write_that_fails_is_repeated_with_pauses(self, tmp_path):
        world = self.limited(tmp_path)
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        self.specs(world, {})
        world.tick(20)
        world.host.refuse.clear()
        world.tick(60)
        assert world.domain().quota_us is None

    def test_a_write_without_effect_is_no_endless_one(self, tmp_path):
        world = self.limited(tmp_path)
        world.host.deaf.add(fakes.UUID)
        world.host.written.clear()
        self.specs(world, {})
        world.tick(100)
        assert 1 <= len(world.host.written) <= 16
