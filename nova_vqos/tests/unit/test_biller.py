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

"""The rounds of billing, with a real ledger on a real file."""

import dataclasses

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import billing_host
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import test_meter

UUID = billing_host.UUID


@pytest.fixture
def host(tmp_path):
    return billing_host.Host(tmp_path)


class TestBills:
    def test_it_is_on_disk_after_each_round(self, host):
        host.run()
        host.round()
        billed = host.use(emulator_ns=10**9, vcpu_ns=2 * 10**9)
        assert host.used_cu_s('emulator') == 100
        assert host.used_cu_s('vcpu') == 200
        assert billed.limit_share is None
        assert billed.report['used_cu_s']['vcpu'] == 200
        assert billed.report['used_lately_cu']['vcpu'] == 100
        assert billed.report['debt_cu_s'] == 0

    def test_one_that_started_here_pays_from_its_first_moment(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        assert host.used_cu_s() == 100

    @pytest.mark.parametrize('origin', ['found', 'migrated', 'restored'])
    def test_one_that_came_pays_from_now_on(self, host, origin):
        host.run(origin=origin, emulator_ns=10**9)
        host.round()
        assert host.used_cu_s() == 0
        host.use(emulator_ns=10**8)
        assert host.used_cu_s() == 10

    def test_an_agent_that_is_killed_loses_and_repeats_nothing(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        for _ in range(3):
            # Killed before it could do any more: no close.
            host.start()
            host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 400

    def test_stop_and_start_clear_nothing(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.leave()
        host.round()
        host.run(run='two', emulator_ns=5 * 10**8)
        host.round()
        assert host.used_cu_s() == 150

    def test_also_while_the_agent_was_away(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.leave()
        host.start()
        host.run(run='two', origin='found', emulator_ns=5 * 10**8)
        host.round()
        assert host.used_cu_s() == 150

    def test_a_server_that_cannot_be_read_is_billed_the_next_time(self, host):
        host.run()
        host.round()
        reading = host.hypervisor.used.pop(UUID)
        assert host.round() == {}
        host.hypervisor.used[UUID] = reading
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 100

    def test_one_that_is_not_understood_costs_only_itself(self, host, caplog):
        host.run(fakes.OTHER_UUID)
        host.run()
        host.round()
        good = host.subjects[UUID]
        host.subjects[UUID] = dataclasses.replace(good, devices=None)
        for _ in range(3):
            host.hypervisor.used[UUID] = test_meter.reading(
                host.now_s, interfaces={'tap0': test_meter.packets(1)})
            host.use(fakes.OTHER_UUID, emulator_ns=10**9)
        assert host.used_cu_s(uuid=fakes.OTHER_UUID) == 300
        assert host.biller.errors == 3
        assert caplog.text.count('cannot be billed') == 1
        host.subjects[UUID] = good
        assert host.use(emulator_ns=10**9) is not None
        assert host.used_cu_s() == 100

    def test_a_hypervisor_that_is_down_costs_nothing(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.hypervisor.up = False
        with pytest.raises(base.Unavailable):
            host.round()
        host.hypervisor.up = True
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 200

    def test_what_is_not_modelled_is_told_once(self, host, caplog):
        host.costs = None
        host.run(interfaces={'tap0': test_meter.packets(1)})
        host.round()
        host.run(interfaces={'tap0': test_meter.packets(2)})
        billed = host.round()[UUID]
        assert billed.report['not_modelled'] == [
            'interface, mode bridge, backend qemu']
        assert caplog.text.count('the profile knows no costs of I/O') == 1

    def test_a_driver_that_counts_nothing_offers_nothing(self, tmp_path):
        class Old(fakes.FakeHypervisor):
            usages = base.Hypervisor.usages

        host = billing_host.Host(tmp_path)
        host.hypervisor = Old()
        host.start()
        host.round()
        assert host.biller.offers == ('off',)
        assert not host.biller.can_read


class TestCharge:
    def test_debt_outlives_the_agent(self, host):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        debt = host.account().debt_cu_us
        assert debt == 100 * 10**6
        host.start()
        billed = host.use(length_s=0.0)
        assert billed.report['debt_cu_s'] == 100

    def test_the_limit_falls_while_there_is_debt(self, host):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        for _ in range(20):
            billed = host.use(vcpu_ns=12 * 10**8, emulator_ns=3 * 10**8)
        assert billed.limit_share < 0.9
        assert billed.report['limit_cu'] == pytest.approx(
            60 * billed.limit_share)

    def test_an_account_alone_limits_nothing(self, host):
        host.run()
        host.round()
        for _ in range(20):
            billed = host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        assert billed.limit_share is None
        assert billed.report['debt_cu_s'] == 0

    def test_io_above_the_entitlement_is_told_once(self, host, caplog):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        for _ in range(40):
            host.use(emulator_ns=2 * 10**9)
        assert len(host.told.events) == 1
        assert host.told.events[0]['overdrawn'] is True
        assert caplog.text.count('alone costs more than its 60 CU') == 1

    def test_nobody_is_overdrawn_who_pays_for_nothing(self, host):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        for _ in range(40):
            billed = host.use(emulator_ns=2 * 10**9)
        assert billed.report['overdrawn'] is True
        host.subjects[UUID] = dataclasses.replace(
            host.subjects[UUID], billing='account', limit_share=None)
        assert host.use().report['overdrawn'] is False


class TestDue:
    def test_a_host_without_servers_is_left_in_peace(self, host):
        due = [second for second in range(300)
               if host.biller.is_due(float(second), ())]
        assert len(due) <= 6

    def test_servers_are_billed_each_interval(self, host):
        host.run()
        subjects = list(host.subjects.values())
        due = [tenth for tenth in range(0, 600, 5)
               if host.biller.is_due(tenth / 10, subjects)]
        assert due == list(range(0, 600, 20))

    def test_claims_are_answered_on_such_a_host_too(self, host):
        assert host.biller.is_due(0.0, ())
        host.take_claim('there')
        assert host.biller.is_due(2.5, ())
