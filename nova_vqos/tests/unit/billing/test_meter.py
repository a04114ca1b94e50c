# SPDX-License-Identifier: Apache-2.0
"""Bills from readings: by examples, and whatever the counters do."""

import dataclasses
from fractions import Fraction
import itertools

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import costs as io_costs
from nova_vqos.billing import meter
from nova_vqos.billing import usage

BRIDGE = usage.InterfaceKind('bridge', 'qemu')
FILE = usage.DiskKind('file', buffered=False)
DEVICES = meter.Devices({'tap0': BRIDGE, 'tap1': BRIDGE}, {'vda': FILE})


def line(request_ns, byte_ns):
    """A cost on a line, from no byte on to more than there are here."""
    return io_costs.RequestCost(tuple(
        (size, request_ns + size * byte_ns) for size in (0, 2**50)))


COSTS = io_costs.IoCosts(
    {BRIDGE: io_costs.InterfaceCost(rx=line(3000.0, 0.3),
                                    tx=line(1000.0, 0.1))},
    {FILE: io_costs.DiskCost(read=line(7000.0, 0.7),
                             write=line(9000.0, 0.9))})


def reading(at_s=0.0, *, run='one', **counters):
    return usage.Usage(**{
        'run': run, 'read_at_s': at_s, 'vcpu_ns': 0, 'emulator_ns': 0,
        'iothread_ns': 0, 'vhost_ns': 0, 'migration_ns': 0, 'throttled_ns': 0,
        'interfaces': {}, 'disks': {}, **counters})


def packets(rx=0, rx_bytes=0, dropped=0, tx=0, tx_bytes=0):
    return usage.InterfaceCounters(rx, rx_bytes, dropped, tx, tx_bytes)


def bill(last, now, devices=DEVICES, costs=COSTS, **options):
    return meter.bill(last, now, devices, costs, **options)


def bills(readings, **options):
    """The bills of a sequence of readings, as the agent makes them."""
    last = readings[0]
    for now in readings[1:]:
        yield bill(last, now, **options)
        last = meter.baseline(last, now, DEVICES)


def total_ns(some):
    totals = dict.fromkeys(meter.COMPONENTS, Fraction(0))
    for one in some:
        for name, used_ns in one.used_ns.items():
            totals[name] += used_ns
    return totals


COUNTS = st.integers(0, 2**40)
# Requests, and their bytes: none without a request.
SIZED = st.tuples(COUNTS, COUNTS).map(lambda one: one if one[0] else (0, 0))
STEPS = st.fixed_dictionaries({
    'vcpu_ns': COUNTS, 'emulator_ns': COUNTS, 'iothread_ns': COUNTS,
    'vhost_ns': COUNTS,
    'tap0': st.tuples(SIZED, COUNTS, SIZED).map(
        lambda one: (*one[0], one[1], *one[2])),
    'vda': st.none() | st.tuples(SIZED, SIZED).map(
        lambda one: one[0] + one[1])})
CPU = ('vcpu_ns', 'emulator_ns', 'iothread_ns', 'vhost_ns')


def grow(steps):
    """Readings of counters that only grow; None: a disk was not read."""
    now = reading()
    net, disk = (0,) * 5, (0,) * 4
    readings = [now]
    for number, step in enumerate(steps, start=1):
        net = tuple(map(sum, zip(net, step['tap0'], strict=True)))
        disk = tuple(map(sum, zip(disk, step['vda'] or (0,) * 4, strict=True)))
        now = dataclasses.replace(
            now, read_at_s=float(number),
            interfaces={'tap0': usage.InterfaceCounters(*net)},
            disks=None if step['vda'] is None
            else {'vda': usage.DiskCounters(*disk)},
            **{name: getattr(now, name) + step[name] for name in CPU})
        readings.append(now)
    return readings, disk


class TestWhole:
    def test_bytes_that_are_counted_after_their_packet(self):
        """The packet is billed once, as a small one."""
        readings = [reading(interfaces={'tap0': packets(*counts)}, disks={
            'vda': usage.DiskCounters(*counts[:2], 0, 0)})
            for counts in [(0, 0), (1, 0), (1, 1000)]]
        billed_ns = total_ns(bills(readings))
        assert billed_ns['net_rx'] == 3000
        assert billed_ns['disk'] == 7000

    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.lists(STEPS, min_size=1, max_size=8), st.data())
    def test_a_bill_does_not_depend_on_where_time_is_cut(self, steps, data):
        """While all requests cost what one line says."""
        readings, disk = grow(steps)
        # In the end all can be read.
        readings[-1] = dataclasses.replace(
            readings[-1], disks={'vda': usage.DiskCounters(*disk)})
        kept = [number for number in range(1, len(readings) - 1)
                if data.draw(st.booleans())]
        cut = [readings[0], *(readings[number] for number in kept),
               readings[-1]]
        whole = [readings[0], readings[-1]]
        assert total_ns(bills(cut)) == total_ns(bills(whole))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.lists(st.tuples(
        st.dictionaries(st.sampled_from(['tap0', 'tap1']),
                        st.tuples(*[st.integers(0, 1000)] * 5)),
        st.none() | st.dictionaries(st.just('vda'),
                                    st.tuples(*[st.integers(0, 1000)] * 4)),
        st.integers(0, 1000)), min_size=2, max_size=12))
    def test_no_bill_is_negative_whatever_counters_do(self, steps):
        readings = [
            reading(float(number), vcpu_ns=cpu_ns, throttled_ns=cpu_ns,
                    interfaces={name: usage.InterfaceCounters(*counters)
                                for name, counters in net.items()},
                    disks=None if disks is None else {
                        name: usage.DiskCounters(*counters)
                        for name, counters in disks.items()})
            for number, (net, disks, cpu_ns) in enumerate(steps)]
        for one in bills(readings, dropped_packets=True):
            assert all(used_ns >= 0 for used_ns in one.used_ns.values())
            assert one.throttled_ns >= 0

    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.lists(st.booleans(), min_size=1, max_size=10),
                      st.lists(st.integers(0, 50), min_size=10, max_size=10))
    def test_a_device_that_comes_back_is_billed_once(self, shown, steps):
        counts = list(itertools.accumulate(steps))
        readings = [reading()] + [
            reading(interfaces={'tap0': packets(rx=count)} if there else {})
            for there, count in zip(shown, counts, strict=False)]
        billed_ns = total_ns(bills(readings))['net_rx']
        seen = [count for there, count in zip(shown, counts, strict=False)
                if there]
        assert billed_ns == 3000 * (seen[-1] if seen else 0)


class TestCost:
    def test_each_component_is_counted_by_itself(self):
        now = reading(
            2.0, vcpu_ns=10, emulator_ns=20, iothread_ns=30, vhost_ns=40,
            migration_ns=50, throttled_ns=60,
            interfaces={'tap0': packets(2, 1000, 0, 3, 2000)},
            disks={'vda': usage.DiskCounters(1, 4096, 2, 512)})
        found = bill(reading(), now)
        assert {name: float(used_ns) for name, used_ns
                in found.used_ns.items()} == pytest.approx({
                    'vcpu': 10, 'emulator': 20, 'iothread': 30, 'vhost': 40,
                    'net_rx': 2 * 3000 + 300, 'net_tx': 3 * 1000 + 200,
                    'disk': 7000 + 2867.2 + 2 * 9000 + 460.8})
        assert found.length_s == 2.0
        assert (found.disk_requests, found.disk_bytes) == (3, 4608)
        assert found.throttled_ns == 60
        assert found.unmodelled == frozenset()

    def test_a_victim_does_not_pay_for_packets_that_it_was_not_given(self):
        now = reading(interfaces={'tap0': packets(rx=1, dropped=1000)})
        assert bill(reading(), now).used_ns['net_rx'] == 3000
        assert bill(reading(), now, dropped_packets=True).used_ns[
            'net_rx'] == 3000 * 1001

    @pytest.mark.parametrize('costs', [None, io_costs.IoCosts({}, {})])
    def test_what_cannot_be_modelled_is_named_and_the_rest_billed(self, costs):
        now = reading(emulator_ns=5, interfaces={'tap0': packets(1)},
                      disks={'vda': usage.DiskCounters(1, 1, 0, 0)})
        found = bill(reading(), now, costs=costs)
        assert found.used_ns['emulator'] == 5
        assert found.used_ns['net_rx'] == found.used_ns['disk'] == 0
        assert found.unmodelled == {
            'interface, mode bridge, backend qemu',
            'disk, file, not buffered'}

    def test_a_device_of_unknown_kind_is_named(self):
        now = reading(interfaces={'tap9': packets(1)},
                      disks={'vdz': usage.DiskCounters(1, 1, 0, 0)})
        assert bill(reading(), now).unmodelled == {
            'interface of unknown kind', 'disk of unknown kind'}

    def test_a_silent_device_is_not_named(self):
        now = reading(interfaces={'tap9': packets()})
        assert bill(reading(), now).unmodelled == frozenset()

    def test_packets_are_billed_by_their_mean_size(self):
        costs = io_costs.IoCosts({BRIDGE: io_costs.InterfaceCost(
            rx=io_costs.RequestCost(((64, 1000.0), (1514, 2450.0))),
            tx=io_costs.RequestCost(((64, 500.0),)))}, {})
        now = reading(interfaces={'tap0': packets(10, 5640, 2, 3, 9000)})
        found = bill(reading(), now, costs=costs)
        assert found.used_ns['net_rx'] == 10 * 1500
        assert found.used_ns['net_tx'] == 3 * 500
        # What was dropped had a size that was not counted.
        found = bill(reading(), now, costs=costs, dropped_packets=True)
        assert found.used_ns['net_rx'] == 10 * 1500 + 2 * 1000


class TestRuns:
    def test_two_runs_are_never_compared(self):
        with pytest.raises(ValueError, match='one and two'):
            bill(reading(), reading(run='two'))

    def test_one_that_began_here_is_billed_from_its_first_moment(self):
        first = reading(vcpu_ns=7, emulator_ns=3,
                        interfaces={'tap0': packets(2)},
                        disks={'vda': usage.DiskCounters(1, 0, 0, 0)})
        found = bill(meter.from_nothing(first), first).used_ns
        assert found['vcpu'] == 7
        assert found['net_rx'] == 6000
        assert found['disk'] == 7000

    def test_of_one_that_came_nothing_from_before_is_billed(self):
        first = reading(vcpu_ns=7, emulator_ns=3,
                        interfaces={'tap0': packets(2)})
        later = reading(vcpu_ns=9, emulator_ns=4, migration_ns=1000,
                        interfaces={'tap0': packets(3),
                                    'tap1': packets(1)})
        found = bill(first, later).used_ns
        assert found['vcpu'] == 2
        assert found['emulator'] == 1
        # The second interface came later, and is billed as a whole.
        assert found['net_rx'] == 6000

    def test_disks_not_read_at_first_are_billed_from_when_they_are(self):
        first = reading(disks=None)
        second = reading(disks={'vda': usage.DiskCounters(5, 0, 0, 0)})
        third = reading(disks={'vda': usage.DiskCounters(6, 0, 0, 0)})
        assert total_ns(bills([first, second, third]))['disk'] == 7000


class TestCountersThatFall:
    def test_a_device_that_was_plugged_anew_is_billed_from_zero(self):
        before = reading(interfaces={'tap0': packets(1000, 9, 9, 1000, 9)})
        now = reading(interfaces={'tap0': packets(2, 0, 0, 1001, 10)})
        found = bill(before, now).used_ns
        assert found['net_rx'] == 2 * 3000
        assert float(found['net_tx']) == pytest.approx(1001 * 1000 + 1)

    def test_an_unplugged_vcpu_has_none_of_the_others_billed_twice(self):
        two = reading(vcpu_ns=150)
        one = reading(vcpu_ns=101)
        later = reading(vcpu_ns=111)
        assert total_ns(bills([two, one, later]))['vcpu'] == 10

    def test_a_clock_that_stands_still_has_no_negative_interval(self):
        assert bill(reading(5.0), reading(4.0)).length_s == 0

    def test_devices_that_are_gone_are_forgotten(self):
        last = reading()
        disk = usage.DiskCounters(1, 1, 1, 1)
        for number in range(500):
            now = reading(interfaces={f'tap{number}': packets(1)},
                          disks={f'vd{number}': disk})
            last = meter.baseline(last, now, DEVICES)
        assert set(last.interfaces) == {'tap0', 'tap1', 'tap499'}
        assert set(last.disks) == {'vd499'}


class TestNewReader:
    """An agent that starts anew, which knows of no thread that has ended."""

    def test_what_ended_threads_used_is_billed_once(self):
        last = reading(1.0, vcpu_ns=100, emulator_ns=50, vhost_ns=30,
                       iothread_ns=20, migration_ns=40)
        # vhost's worker and the migration have ended; so has an I/O thread.
        now = reading(2.0, vcpu_ns=100 + 7 + 20, iothread_ns=0,
                      emulator_ns=50 + 5 + 30 + 40, vhost_ns=0,
                      migration_ns=0)
        again = dataclasses.replace(now, read_at_s=3.0,
                                    emulator_ns=now.emulator_ns + 1)
        assert total_ns(bills([last, now, again])) == {
            **dict.fromkeys(meter.COMPONENTS, 0), 'vcpu': 7, 'emulator': 6}

    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.fixed_dictionaries(dict.fromkeys(
        (*CPU, 'migration_ns'), st.tuples(COUNTS, COUNTS))))
    def test_no_more_is_billed_than_was_used(self, counters):
        last, now = (reading(float(at), **{
            name: values[at] for name, values in counters.items()})
            for at in (0, 1))
        used = bill(last, now).used_ns
        for name in CPU:
            grown = getattr(now, name) - getattr(last, name)
            assert 0 <= used[name.removesuffix('_ns')] <= max(0, grown)


def test_what_servers_of_this_host_sent_is_in_their_bills():
    now = reading(1.0, interfaces={'tap0': packets(100, 6400),
                                   'tap1': packets(100, 6400, tx=5)})
    whole, less, none = (bill(reading(), now, local_shares=shares) for shares
                         in ({}, {'tap0': Fraction(1, 4)},
                             {'tap0': Fraction(1), 'tap1': Fraction(1)}))
    assert less.used_ns['net_rx'] == whole.used_ns['net_rx'] * 7 / 8
    assert none.used_ns['net_rx'] == 0
    assert none.used_ns['net_tx'] == whole.used_ns['net_tx'] > 0


def test_packets_are_counted_whether_they_are_billed_or_not():
    found = [bill(
        reading(0.0, interfaces={'tap0': packets(5, 500, 1)}),
        reading(1.0, interfaces={'tap0': packets(9, 900, 3),
                                 'tap9': packets(10, 1000, 4)}),
        costs=costs) for costs in (COSTS, None)]
    assert [(one.received, one.dropped) for one in found] == [(14, 6)] * 2
