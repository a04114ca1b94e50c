# SPDX-License-Identifier: Apache-2.0
"""The usage of servers, read by a worker, and reported by the loop."""

import pytest

from nova_vqos import primitives
from nova_vqos.agent import usage_history
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes

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
    made = agent.World(tmp_path)
    made.host.boot(specs=fakes.make_specs())
    made.host.boot(fakes.OTHER_UUID, run_id=2)
    made.start()
    return made


@pytest.fixture
def meter(world):
    return Meter(world)


def servers_of(world):
    return {server['server_uuid']: server for server in
            primitives.to_primitives(world.ask(world.loop.servers_report))}


class TestSampling:
    def test_all_that_run_are_read_also_without_units(self, world):
        assert world.host.sampled == [{fakes.UUID: 1, fakes.OTHER_UUID: 2}]

    def test_they_are_read_at_their_interval(self, world):
        world.tick(8)
        assert len(world.host.sampled) == 1
        world.tick(22)
        assert len(world.host.sampled) == 4

    def test_they_are_read_seldom_while_nobody_asks(self, world):
        world.tick(300)
        before = len(world.host.sampled)
        world.tick(300)
        assert len(world.host.sampled) == before + 5
        world.tick(30)
        before = len(world.host.sampled)
        world.report()
        world.tick(10)
        assert len(world.host.sampled) == before + 1
        world.tick(20)
        assert len(world.host.sampled) == before + 3

    def test_what_it_used_is_known_though_nobody_asked(self, world, meter):
        meter.tick(500)
        (rates,) = world.reported('rates')
        assert rates == {'over_s': 60.0, 'delivered_cu': pytest.approx(50.0),
                         'throttled': pytest.approx(0.05)}

    def test_counters_and_rates_are_reported(self, world, meter):
        meter.tick(100)
        for server in servers_of(world).values():
            assert server['vcpu_s'] == pytest.approx(world.now_s / 2, abs=6)
            assert server['rates'] == {
                'over_s': 60.0, 'delivered_cu': pytest.approx(50.0),
                'throttled': pytest.approx(0.05)}

    def test_a_window_is_reported_once_it_is_full(self, world, meter):
        for after_s, full in ((5, []), (20, ['rates_10s']),
                              (290, ['rates_10s', 'rates_5min'])):
            meter.tick(after_s)
            found = world.reported('rates_10s', 'rates_5min')
            assert [name for name, rates in zip(
                ('rates_10s', 'rates_5min'), found, strict=True)
                if rates is not None] == full

    def test_a_paused_server_is_delivered_nothing(self, world, meter):
        meter.tick(330)
        world.report()
        # Its counters stay as they are.
        paused = world.host.vcpu_used[fakes.UUID]
        for _ in range(30):
            world.host.vcpu_used[fakes.UUID] = paused._replace(
                read_at_s=world.now_s + 1.0)
            world.tick()
        short, long = world.reported('rates_10s', 'rates_5min')
        assert short['delivered_cu'] == 0
        assert 40 < long['delivered_cu'] < 50

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

    def test_the_usage_of_a_run_is_not_that_of_the_next(self, world, meter):
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
        assert rates['over_s'] == pytest.approx(60, abs=1)
        before_s = servers_of(world)[fakes.UUID]['vcpu_s']
        world.host.up = True
        meter.tick(40)
        assert world.host_report()['connected'] is True
        assert servers_of(world)[fakes.UUID]['vcpu_s'] > before_s


class TestFailures:
    def test_an_unread_server_costs_no_other(self, world, meter, caplog):
        meter.tick(20)
        before_s = servers_of(world)[fakes.UUID]['vcpu_s']
        world.host.vcpu_used[fakes.UUID] = None
        for _ in range(200):
            world.tick()
        answers = servers_of(world)
        # What was counted stays; of what is old there is no rate.
        assert answers[fakes.UUID]['vcpu_s'] == before_s
        assert answers[fakes.UUID]['rates'] is None
        assert answers[fakes.OTHER_UUID]['vcpu_s'] is not None
        assert world.host_report()['alarms'] == [
            'what the vCPUs of 1 servers use cannot be read']
        assert caplog.text.count('vCPUs use cannot be read') == 1
        meter.tick(10)
        assert world.host_report()['alarms'] == []
        assert servers_of(world)[fakes.UUID]['vcpu_s'] > before_s

    @pytest.mark.causes_faults
    @pytest.mark.parametrize('error', [
        ZeroDivisionError('oops'), base.HypervisorError('it is not there')])
    def test_a_round_that_fails_is_logged_once_and_repeated(
            self, world, meter, monkeypatch, caplog, error):
        meter.tick(20)

        def fail(_run_ids):
            raise error
        with monkeypatch.context() as patch:
            patch.setattr(fakes.FakeHypervisor, 'vcpu_times',
                          lambda _self, run_ids: fail(run_ids))
            world.tick(50)
        assert world.host_report()['errors'] == 5
        assert sum(record.levelname == 'ERROR'
                   for record in caplog.records) == 1
        meter.tick(10)
        assert servers_of(world)[fakes.UUID]['rates'] is not None


class TestTelling:
    @pytest.mark.causes_faults
    def test_a_broken_server_costs_no_other(self, world, monkeypatch, caplog):
        def fail(_history, _coefficient, _now_s):
            raise ZeroDivisionError
        monkeypatch.setattr(usage_history.History, 'rates', fail)
        server = servers_of(world)[fakes.UUID]
        assert server['rates'] is None
        assert server['vcpu_s'] is not None
        assert 'Field rates of server' in caplog.text


class TestClock:
    @pytest.fixture(autouse=True)
    def calibrated(self, world):
        profile = fakes.make_profile()
        document.store(profile._replace(cpu_classes=tuple(
            one._replace(clock_mhz=3000.0) for one in profile.cpu_classes)),
            str(world.profile_path))
        world.host.mhz.update({fakes.UUID: 3000, fakes.OTHER_UUID: 900})

    def test_that_of_each_server_is_reported(self, world, meter):
        meter.tick(30)
        found = servers_of(world)
        assert found[fakes.UUID]['clock'] == {
            'mhz': pytest.approx(3000), 'is_own': True,
            'calibrated_mhz': 3000.0, 'coefficient': pytest.approx(1.0)}
        assert found[fakes.OTHER_UUID]['clock']['mhz'] == pytest.approx(900)

    def test_a_clock_that_falls_is_an_alarm(self, world, meter):
        meter.tick(90)
        # One without units has no promise that could break.
        assert world.host_report()['alarms'] == []
        world.host.mhz[fakes.UUID] = 2400
        meter.tick(20)
        assert world.host_report()['alarms'] == []
        meter.tick(60)
        alarm, = world.host_report()['alarms']
        assert '2400 MHz' in alarm
        world.host.mhz[fakes.UUID] = 3000
        meter.tick(70)
        assert world.host_report()['alarms'] == []

    def test_a_new_agent_looks_for_a_minute(self, world, meter):
        world.host.mhz[fakes.UUID] = 1000
        meter.tick(50)
        assert world.host_report()['alarms'] == []
        meter.tick(40)
        assert len(world.host_report()['alarms']) == 1

    def test_one_that_may_use_more_breaks_no_promise(self, world, meter):
        world.host.mhz[fakes.UUID] = 1000
        world.host.describe_as(extra_specs=fakes.make_specs(cap='floor'))
        world.loop.refresh()
        meter.tick(100)
        assert world.host_report()['alarms'] == []

    def test_an_older_profile_has_no_clock(self, world, meter):
        document.store(fakes.make_profile(), str(world.profile_path))
        world.host.mhz[fakes.UUID] = 1000
        meter.tick(100)
        clock, = world.reported('clock')
        assert clock['mhz'] == pytest.approx(1000)
        assert (clock['calibrated_mhz'], clock['coefficient']) == (None, None)
        assert world.host_report()['alarms'] == []

    def test_figures_of_pcpus_are_no_alarm(self, world, meter):
        world.host.mhz.clear()
        world.host.pcpus_mhz = {0: 1200.0, 1: 1800.0}
        world.host.clock_problem = 'it has no counters'
        meter.tick(100)
        clock, problem = world.reported('clock', 'clock_problem')
        assert clock == {'mhz': 1500.0, 'is_own': False,
                         'calibrated_mhz': 3000.0, 'coefficient': 0.5}
        assert problem == 'it has no counters'
        assert world.host_report()['alarms'] == []

    def test_without_any_there_is_the_reason(self, world, meter):
        world.host.mhz.clear()
        world.host.clock_problem = 'it has no counters'
        meter.tick(30)
        assert world.reported('clock', 'clock_problem') == (
            None, 'it has no counters')
