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
"""What servers use, read by a worker, and told by the loop."""

import pytest

from nova_vqos.agent import snapshot
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import fake_hypervisor as fakes

S_NS = 1_000_000_000


class Meter:
    """Has vCPUs of a host use CPU time, at half of a pCPU's speed."""

    def __init__(self, world):
        self._world = world

    def tick(self, times=1):
        for _ in range(times):
            now_s = self._world.now_s + 1.0
            for uuid, run_id in self._world.host.runs.items():
                self._world.host.vcpu_used[uuid] = usage.VcpuTime(
                    f'run-{run_id}', now_s, round(now_s * S_NS / 2),
                    round(now_s * S_NS / 10), 2)
            self._world.tick()


@pytest.fixture
def world(tmp_path):
    made = agent_world.World(tmp_path)
    made.host.boot(specs=fakes.make_specs())
    made.host.boot(fakes.OTHER_UUID, run_id=2)
    made.start()
    return made


@pytest.fixture
def meter(world):
    return Meter(world)


def servers_of(world):
    return {server['server_uuid']: server
            for server in world.ask(world.loop.servers_report)}


class TestSampling:
    def test_all_that_run_are_read_also_without_units(self, world):
        assert world.host.sampled == [{fakes.UUID: 1, fakes.OTHER_UUID: 2}]

    def test_they_are_read_at_their_interval(self, world):
        world.tick(8)
        assert len(world.host.sampled) == 1
        world.tick(22)
        assert len(world.host.sampled) == 4

    def test_counters_and_rates_are_told(self, world, meter):
        meter.tick(100)
        for server in servers_of(world).values():
            assert server['vcpu_s'] == pytest.approx(world.now_s / 2, abs=6)
            assert server['rates'] == {
                'over_s': 60.0, 'delivered_cu': pytest.approx(50.0),
                'throttled': pytest.approx(0.05)}

    def test_a_round_that_is_under_way_is_waited_for(self, world):
        world.executor.held = True
        world.tick(35)
        world.executor.held = False
        world.settle()
        assert len(world.host.sampled) == 2
        world.tick(10)
        assert len(world.host.sampled) == 3

    def test_a_server_that_goes_is_read_no_more(self, world, meter):
        meter.tick(20)
        del world.host.runs[fakes.OTHER_UUID]
        meter.tick(20)
        assert set(servers_of(world)) == {fakes.UUID}
        assert world.host.sampled[-1] == {fakes.UUID: 1}

    def test_one_that_is_started_anew_counts_anew(self, world, meter):
        meter.tick(30)
        world.host.boot(fakes.OTHER_UUID, run_id=9)
        world.host.vcpu_used[fakes.OTHER_UUID] = usage.VcpuTime(
            'run-9', world.now_s, 5, 0, 2)
        world.tick()
        server = servers_of(world)[fakes.OTHER_UUID]
        assert (server['vcpu_s'], server['rates']) == (None, None)
        world.tick(10)
        assert servers_of(world)[fakes.OTHER_UUID]['vcpu_s'] == 5e-9

    def test_what_was_read_of_a_run_is_not_told_of_the_next(self, world,
                                                            meter):
        meter.tick(9)
        world.executor.held = True
        meter.tick(3)
        world.host.boot(fakes.OTHER_UUID, run_id=9)
        world.loop.on_event(base.Event(
            base.EventKind.STARTED, fakes.OTHER_UUID, 9, 'booted', 0.0))
        world.loop.step()
        # The worker read it before.
        world.executor.held = False
        world.settle()
        assert servers_of(world)[fakes.OTHER_UUID]['vcpu_s'] is None
        assert servers_of(world)[fakes.UUID]['vcpu_s'] is not None

    def test_it_goes_on_while_the_hypervisor_is_lost(self, world, meter):
        meter.tick(20)
        world.host.up = False
        meter.tick(100)
        assert world.host_report()['connected'] is False
        rates = servers_of(world)[fakes.UUID]['rates']
        assert rates['over_s'] == 60.0
        before_s = servers_of(world)[fakes.UUID]['vcpu_s']
        world.host.up = True
        meter.tick(40)
        assert world.host_report()['connected'] is True
        assert servers_of(world)[fakes.UUID]['vcpu_s'] > before_s


class TestFailures:
    def test_one_that_cannot_be_read_costs_no_other(self, world, meter,
                                                    caplog):
        meter.tick(20)
        before_s = servers_of(world)[fakes.UUID]['vcpu_s']
        world.host.vcpu_used[fakes.UUID] = None
        for _ in range(200):
            world.tick()
        told = servers_of(world)
        # What was counted stays; of what is old there is no rate.
        assert told[fakes.UUID]['vcpu_s'] == before_s
        assert told[fakes.UUID]['rates'] is None
        assert told[fakes.OTHER_UUID]['vcpu_s'] is not None
        assert world.host_report()['alarms'] == [
            'what the vCPUs of 1 servers use cannot be read']
        assert caplog.text.count('vCPUs use cannot be read') == 1
        meter.tick(10)
        assert world.host_report()['alarms'] == []
        assert servers_of(world)[fakes.UUID]['vcpu_s'] > before_s

    @pytest.mark.parametrize('error', [
        ZeroDivisionError('oops'), base.HypervisorError('it is not there')])
    def test_a_round_that_fails_is_told_once_and_made_again(
            self, world, meter, monkeypatch, caplog, error):
        meter.tick(20)

        def fail(_run_ids):
            raise error
        with monkeypatch.context() as patch:
            patch.setattr(fakes.FakeHypervisor, 'vcpu_times',
                          lambda _self, run_ids: fail(run_ids))
            world.tick(50)
        assert world.host_report()['errors'] == 5
        assert caplog.text.count('cannot be read now') == 1
        meter.tick(10)
        assert servers_of(world)[fakes.UUID]['rates'] is not None

    def test_a_driver_that_cannot_tell_is_not_asked(self, tmp_path,
                                                    monkeypatch):
        monkeypatch.delattr(fakes.FakeHypervisor, 'vcpu_times')
        world = agent_world.World(tmp_path)
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.tick(100)
        assert servers_of(world)[fakes.UUID]['vcpu_s'] is None
        assert world.host_report()['alarms'] == []


class TestTelling:
    def test_one_server_that_is_broken_does_not_cost_the_answer(
            self, world, monkeypatch, caplog):
        def fail(_history, _coefficient, _now_s):
            raise ZeroDivisionError
        monkeypatch.setattr(type(world.loop._known[fakes.UUID].history),
                            'rates', fail)
        world.loop._known[fakes.UUID].bill = {'used': 1}
        server = servers_of(world)[fakes.UUID]
        assert server['rates'] is None
        assert server['bill'] == {'used': 1}
        assert set(server) == set(snapshot._FIELDS)
        assert 'Field rates of server' in caplog.text
