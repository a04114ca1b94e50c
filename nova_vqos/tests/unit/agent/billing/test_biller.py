# SPDX-License-Identifier: Apache-2.0
"""The rounds of billing, with a real ledger on a real file."""

import dataclasses
import types

import pytest

from nova_vqos.billing import account
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.billing import test_host_load
from nova_vqos.tests.unit.billing import test_meter

UUID = billing_host.UUID


class TestBills:
    def test_it_is_on_disk_after_each_round(self, host):
        host.begin()
        billed = host.use(emulator_ns=10**9, vcpu_ns=2 * 10**9)
        assert host.used_cu_s('emulator') == 100
        assert host.used_cu_s('vcpu') == 200
        assert billed.limit_share is None
        assert billed.report.used_cu_s['vcpu'] == 200
        assert billed.report.used_lately_cu['vcpu'] == 100
        assert billed.report.debt_cu_s == 0

    def test_one_that_started_here_pays_from_its_first_moment(self, host):
        host.begin(emulator_ns=10**9)
        assert host.used_cu_s() == 100

    @pytest.mark.parametrize('origin', ['found', 'migrated', 'restored'])
    def test_one_that_came_pays_from_now_on(self, host, origin):
        host.begin(origin=origin, emulator_ns=10**9)
        assert host.used_cu_s() == 0
        host.use(emulator_ns=10**8)
        assert host.used_cu_s() == 10

    def test_an_agent_that_is_killed_loses_and_repeats_nothing(self, host):
        host.begin(emulator_ns=10**9)
        for _ in range(3):
            # Killed before it could do any more: no close.
            host.start()
            host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 400

    @pytest.mark.parametrize('origin', ['booted', 'found'])
    def test_stop_and_start_clear_nothing(self, host, origin):
        host.begin(emulator_ns=10**9)
        host.leave()
        if origin == 'found':
            # The agent was away meanwhile.
            host.start()
        else:
            host.round()
        host.begin(run='two', origin=origin, emulator_ns=5 * 10**8)
        assert host.used_cu_s() == 150

    def test_a_server_that_cannot_be_read_is_billed_the_next_time(self, host):
        host.begin()
        reading = host.hypervisor.used.pop(UUID)
        assert host.round() == {}
        host.hypervisor.used[UUID] = reading
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 100

    @pytest.mark.causes_faults
    def test_one_that_is_not_understood_costs_only_itself(self, host, caplog):
        host.run(fakes.OTHER_UUID)
        host.begin()
        good = host.subjects[UUID]
        host.subjects[UUID] = dataclasses.replace(good, devices=None)
        for _ in range(3):
            host.hypervisor.used[UUID] = test_meter.reading(
                host.now_s, interfaces={'tap0': test_meter.packets(1)})
            host.use(fakes.OTHER_UUID, emulator_ns=10**9)
        assert host.used_cu_s(uuid=fakes.OTHER_UUID) == 300
        assert host.biller.errors == 3
        alarm, = host.biller.alarms
        assert UUID in alarm
        assert [record.exc_info is not None for record in caplog.records
                if UUID in record.getMessage()] == [True]
        host.subjects[UUID] = good
        # It is left alone for a while.
        assert host.use(emulator_ns=10**9) is None
        assert host.use(emulator_ns=10**9) is not None
        assert host.used_cu_s() == 200
        assert host.biller.alarms == ()

    @pytest.mark.parametrize('counters', [
        {'vcpu_ns': 2**63}, {'emulator_ns': 2**70}, {'vhost_ns': 10**15},
        {'disks': {'vda': usage.DiskCounters(2**63 - 1, 0, 0, 0)}},
        {'interfaces': {'tap0': test_meter.packets(tx=10**15)}}])
    @pytest.mark.parametrize('origin', ['booted', 'migrated'])
    def test_what_no_server_can_use_is_not_billed(self, host, counters,
                                                  origin):
        """A QEMU that was taken over says any number; once, or each time."""
        host.begin(fakes.OTHER_UUID)
        host.begin(origin=origin)
        for times in 1, 2, 3:
            host.run(origin=origin, **{
                name: value if isinstance(value, dict) else times * value
                for name, value in counters.items()})
            host.use(fakes.OTHER_UUID, emulator_ns=10**9)
        assert sum(host.account().total_cu_us.values()) == 0
        assert host.used_cu_s(uuid=fakes.OTHER_UUID) == 300
        assert host.biller.errors == 0
        alarm, = host.biller.alarms
        assert UUID in alarm
        # It is billed for what it does from now on.
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 100
        host.leave()
        host.use(fakes.OTHER_UUID)
        assert host.biller.alarms == ()

    def test_an_account_that_cannot_be_stored_costs_no_other(self, host):
        host.begin(fakes.OTHER_UUID)
        host.begin()
        book = host.biller._books.running[UUID]
        book.account = dataclasses.replace(
            book.account, own_cu_us=dict.fromkeys(
                book.account.own_cu_us, account.MOST))
        host.use(emulator_ns=10**9)
        host.use(fakes.OTHER_UUID, emulator_ns=10**9)
        assert host.used_cu_s(uuid=fakes.OTHER_UUID) == 100
        assert host.used_cu_s() == 0
        alarm, = host.biller.alarms
        assert UUID in alarm
        assert 'charge' in host.biller.offers
        host.biller.close()

    def test_a_hypervisor_that_is_down_costs_nothing(self, host):
        host.begin(emulator_ns=10**9)
        host.hypervisor.up = False
        with pytest.raises(base.Unavailable):
            host.round()
        host.hypervisor.up = True
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 200

    def test_unmodelled_io_is_logged_once(self, host, caplog):
        host.costs = None
        host.begin(interfaces={'tap0': test_meter.packets(1)})
        host.run(interfaces={'tap0': test_meter.packets(2)})
        billed = host.round()[UUID]
        assert billed.report.not_modelled == (
            'interface, mode bridge, backend qemu',)
        assert caplog.text.count('no I/O costs') == 1


class TestCharge:
    def test_debt_outlives_the_agent(self, host):
        host.begin(billing='charge', limit_share=1.0)
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        debt = host.account().debt_cu_us
        assert debt == 100 * 10**6
        host.start()
        billed = host.use(length_s=0.0)
        assert billed.report.debt_cu_s == 100

    def test_the_limit_falls_while_there_is_debt(self, host):
        host.begin(billing='charge', limit_share=1.0)
        billed = host.use(times=20, vcpu_ns=12 * 10**8, emulator_ns=3 * 10**8)
        assert billed.limit_share < 0.9
        assert billed.report.limit_cu == pytest.approx(60 * billed.limit_share)

    def test_an_account_alone_limits_nothing(self, host):
        host.begin()
        billed = host.use(times=20, vcpu_ns=12 * 10**8, emulator_ns=10**9)
        assert billed.limit_share is None
        assert billed.report.debt_cu_s == 0

    def test_io_above_the_entitlement_is_logged_once(self, host, caplog):
        host.begin(billing='charge', limit_share=1.0)
        host.use(times=40, emulator_ns=2 * 10**9)
        assert len(host.sent.events) == 1
        assert host.sent.events[0]['overdrawn'] is True
        assert caplog.text.count('exceeds what its 60 CU can pay for') == 1

    def test_a_server_that_pays_nothing_is_not_overdrawn(self, host):
        host.begin(billing='charge', limit_share=1.0)
        billed = host.use(times=40, emulator_ns=2 * 10**9)
        assert billed.report.overdrawn is True
        host.subjects[UUID] = dataclasses.replace(
            host.subjects[UUID], billing='account', limit_share=None)
        assert host.use().report.overdrawn is False


class TestReceived:
    """A server did not ask for what others send it."""

    def receive(self, host, packets, used_ns=12 * 10**8, emulator_ns=0):
        """Let it use all its units, and receive packets for two seconds.

        :param emulator_ns: of what it uses
        :returns: the bill
        """
        reading = host.hypervisor.used[UUID]
        self.packets += packets
        host.hypervisor.used[UUID] = dataclasses.replace(
            reading, interfaces={'tap0': test_meter.packets(self.packets)})
        return host.use(vcpu_ns=used_ns - emulator_ns,
                        emulator_ns=emulator_ns)

    def test_what_comes_from_the_same_host_is_billed_there(self, charged):
        """From the second bill on: of the first it is not known."""
        host = charged()
        ports = frozenset({'tap0', 'tap9', 'eth0'})
        billed_cu = []
        for number in range(1, 5):
            # A quarter is from outside.
            host.hypervisor.bridges = {'tap0': usage.BridgeTraffic(
                ports, sent=450_000 * number, received=600_000 * number,
                left=0, arrived=150_000 * number)}
            billed_cu.append(self.receive(
                host, 600_000).report.used_lately_cu['net_rx'])
        assert billed_cu[1:] == pytest.approx([billed_cu[0] / 4] * 3)
        host.hypervisor.bridges = {}
        again_cu = self.receive(host, 600_000).report.used_lately_cu['net_rx']
        assert again_cu == pytest.approx(billed_cu[0])

    @pytest.fixture
    def charged(self, host):
        def begin(**options):
            host.start(**options)
            host.begin(billing='charge', limit_share=1.0,
                       interfaces={'tap0': test_meter.packets(0)})
            self.packets = 0
            return host
        return begin

    def test_a_flood_is_billed_and_not_charged(self, charged):
        host = charged()
        for _ in range(60):
            billed = self.receive(host, 600_000)
        assert host.account().total_cu_us['net_rx'] > 0
        assert billed.report.used_lately_cu['net_rx'] > 60
        assert billed.limit_share == 1.0
        assert billed.report.debt_cu_s == 0
        assert billed.report.overdrawn is False

    def test_it_is_charged_where_the_operator_says_so(self, charged):
        host = charged(charge_received=True)
        for _ in range(60):
            billed = self.receive(host, 600_000)
        assert billed.limit_share == 0.5
        # It is not its own I/O that is too much.
        assert billed.report.overdrawn is False

    def test_it_has_a_floor_of_its_own(self, charged):
        host = charged(charge_received=True, received_floor_share=0.8)
        for _ in range(60):
            billed = self.receive(host, 600_000)
        assert billed.limit_share == 0.8

    @pytest.mark.parametrize('flood_s', [2, 8, 30, 120])
    def test_it_ends_with_the_flood(self, charged, flood_s):
        """300 000 packets a second that it did not ask for leave no debt."""
        host = charged(charge_received=True)
        used_ns = 12 * 10**8
        for _ in range(flood_s // 2):
            # Half of it to receive them.
            billed = self.receive(host, 600_000, used_ns, used_ns // 2)
            used_ns = round(12 * 10**8 * billed.limit_share)
            assert billed.limit_share >= 0.5
        assert billed.limit_share == 0.5
        for _ in range(10 // 2):
            billed = self.receive(host, 0)
        assert billed.limit_share == 1.0
        assert billed.report.debt_cu_s == 0

    @pytest.mark.parametrize('received, unpaid', [(False, True),
                                                  (True, False)])
    def test_what_nobody_pays_for_needs_room_on_the_host(
            self, charged, received, unpaid):
        host = charged(charge_received=received)
        host.hypervisor.host_used = test_host_load.host_usage(host.now_s)
        host.biller.bill_all((), None, (), 100)
        for _ in range(31):
            self.receive(host, 600_000)
        host.hypervisor.host_used = test_host_load.host_usage(
            host.now_s, 60)
        host.biller.bill_all((), None, (), 100)
        assert (host.biller.capacity.unpaid_cu > 0) is unpaid
        assert host.biller.capacity.modelled_cu > 0


class TestGap:
    """While no agent ran, or none could read, servers had all their units."""

    #: In a second, above the entitlement by 15 CU seconds.
    BUSY = types.MappingProxyType(
        {'vcpu_ns': 6 * 10**8, 'emulator_ns': 15 * 10**7})

    def use(self, host, length_s, **options):
        return host.use(length_s=length_s, **options, **{
            name: round(value * length_s)
            for name, value in self.BUSY.items()})

    @pytest.mark.parametrize('gap_s', [30.0, 600.0, 3600.0, 86_400.0])
    def test_a_start_bills_all_and_charges_three_intervals(self, host, gap_s):
        host.begin(billing='charge', limit_share=1.0)
        host.biller.close()
        host.start()
        billed = self.use(host, gap_s)
        assert host.used_cu_s() == 15 * gap_s
        assert billed.report.debt_cu_s == pytest.approx(15 * 6)
        assert billed.report.overdrawn is False
        # As any server whose I/O has just begun.
        assert billed.limit_share >= 0.5

    def test_so_does_a_host_that_could_not_be_read(self, host):
        host.begin(billing='charge', limit_share=1.0)
        billed = self.use(host, 600.0)
        assert host.used_cu_s() == 15 * 600
        assert billed.report.debt_cu_s == pytest.approx(15 * 6)

    def test_a_server_that_could_not_be_read_is_charged_all(self, host):
        """Only it lacks a reading, and may be the cause itself."""
        host.run(fakes.OTHER_UUID)
        host.begin(billing='charge', limit_share=1.0)
        reading = host.hypervisor.used.pop(UUID)
        host.use(fakes.OTHER_UUID, times=9)
        host.hypervisor.used[UUID] = reading
        billed = host.use(**{name: round(value * 20)
                             for name, value in self.BUSY.items()})
        assert billed.report.debt_cu_s == pytest.approx(15 * 20)

    def test_intervals_that_are_a_little_late_are_charged_whole(self, host):
        host.begin(billing='charge', limit_share=1.0)
        assert self.use(host, 5.0).report.debt_cu_s == pytest.approx(15 * 5)


class TestDue:
    def test_a_host_without_servers_is_left_in_peace(self, host):
        due = [second for second in range(300)
               if host.biller.begin_interval(float(second), ())]
        assert len(due) <= 6

    def test_servers_are_billed_each_interval(self, host):
        host.run()
        subjects = list(host.subjects.values())
        due = [tenth for tenth in range(0, 600, 5)
               if host.biller.begin_interval(tenth / 10, subjects)]
        assert due == list(range(0, 600, 20))

    def test_claims_are_answered_on_such_a_host_too(self, host):
        assert host.biller.begin_interval(0.0, ())
        host.receive_claim('there')
        assert host.biller.begin_interval(2.5, ())


class TestIdle:
    """What a server may use before it has to be billed."""

    def test_a_new_one_is_billed_at_once(self, host):
        host.begin()
        assert host.hypervisor.idle == {}
        host.round()
        assert host.hypervisor.idle == {UUID: base.Idle(0.02, 30.0)}

    @pytest.mark.parametrize('units, most_share', [
        (60, 0.006), (5, 0.0005), (800, 0.02)])
    def test_one_that_is_charged_uses_a_hundredth(self, host, units,
                                                  most_share):
        host.begin(billing='charge', units=units, limit_share=1.0)
        host.round()
        assert host.hypervisor.idle[UUID].share == pytest.approx(most_share)

    def test_one_that_pays_is_always_billed(self, host):
        host.begin(billing='charge', limit_share=1.0)
        host.use(emulator_ns=4 * 10**9)
        assert host.account().debt_cu_us
        host.round()
        assert host.hypervisor.idle == {}

    def test_one_with_a_limit_is_always_billed(self, host):
        host.begin(billing='charge', limit_share=0.5)
        host.round()
        assert host.hypervisor.idle == {}

    def test_an_account_by_default_has_a_turn(self, host):
        """The same moment of each two minutes, whenever it was read."""
        host.run()
        host.subjects[UUID] = dataclasses.replace(host.subjects[UUID],
                                                  is_default=True)
        host.round()
        turns_s = set()
        for _ in range(14):
            read_at_s = host.now_s
            host.use(length_s=10.0)
            most_s = host.hypervisor.idle[UUID].most_s
            assert 0 < most_s <= 120
            turns_s.add((read_at_s + most_s) % 120)
        assert len(turns_s) == 1

    def test_what_it_used_meanwhile_is_on_its_next_bill(self, host):
        host.begin()
        read = host.hypervisor.usages
        host.hypervisor.usages = lambda _uuids, _shares: {}
        host.use(times=10, emulator_ns=10**7)
        assert host.used_cu_s() == 0
        host.hypervisor.usages = read
        billed = host.use(emulator_ns=10**7)
        assert host.used_cu_s() == 11
        assert billed.report.used_lately_cu['emulator'] == pytest.approx(0.5)


class TestWork:
    def test_bills_are_in_units_of_the_servers_work(self, host):
        """But the load of the host is in units of the host."""
        host.begin()
        host.subjects[UUID] = dataclasses.replace(
            host.subjects[UUID], coefficient=0.5)
        for used_s in 0, 60:
            host.now_s += 60
            host.hypervisor.host_used = usage.HostUsage(
                host.now_s, total_ns=used_s * 10**9,
                domains_ns=used_s * 10**9, own_ns=0)
            host.hypervisor.used[UUID] = dataclasses.replace(
                host.hypervisor.used[UUID], read_at_s=host.now_s,
                emulator_ns=used_s * 10**9)
            host.biller.bill_all(list(host.subjects.values()), host.costs,
                                 {UUID}, 100.0)
        assert host.used_cu_s() == 60 * 50
        load = host.biller.capacity
        assert (load.total_cu, load.servers_cu, load.unpaid_cu) == (
            100, 100, 100)
