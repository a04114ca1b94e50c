# SPDX-License-Identifier: Apache-2.0
"""Whether pCPUs have time for the packets that arrive."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import host_load
from nova_vqos.billing import packet_load
from nova_vqos.billing import usage
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.unit.billing import test_host_load

COUNTS = st.integers(0, (1 << 32) - 1)
WORK = st.builds(usage.PacketWork, COUNTS, COUNTS, COUNTS,
                 st.integers(0, 10**18), st.integers(0, 10**18),
                 st.none() | st.integers(0, 10**18))


class Host:
    """A host with one pCPU, or more, that are read each minute."""

    def __init__(self, pcpus=1):
        self.load = packet_load.PacketLoad()
        self.now_s = 1000.0
        self.work = {pcpu: usage.PacketWork(0, 0, 0, 0, 0)
                     for pcpu in range(pcpus)}
        self.load.add(self.now_s, self.work)

    def minute(self, *, pcpu=0, processed=0, dropped=0, squeezed=0, share=0.0,
               idle=0.0):
        """:returns: the report"""
        self.now_s += 60
        last = self.work[pcpu]
        self.work = {**self.work, pcpu: usage.PacketWork(
            (last.processed + processed) % (1 << 32),
            (last.dropped + dropped) % (1 << 32), last.squeezed + squeezed,
            last.softirq_ns + round(share * 60e9),
            last.idle_ns + round(idle * 60e9))}
        self.load.add(self.now_s, self.work)
        return self.load.report


def reported(found):
    return (found.softirq_share, found.dropped_packets, found.squeezed_polls,
            found.saturated_pcpus)


class TestSaturated:
    def test_more_packets_and_no_more_delivered(self):
        host = Host()
        assert reported(host.minute(processed=10**6, share=0.95)) == (
            0.95, 0, 0, ())
        found = host.minute(processed=10**6, dropped=5, squeezed=7, share=0.97)
        assert reported(found) == (0.97, 5, 7, (0,))
        # It ends as soon as there is time again.
        assert reported(host.minute(processed=10**5, share=0.1)) == (
            0.1, 5, 7, ())

    @pytest.mark.parametrize('change', [
        # Some time is left.
        {'idle': 0.11},
        # All that came were delivered.
        {'dropped': 0},
        # More is delivered than before.
        {'processed': 1_060_000}])
    def test_each_sign_alone_is_none(self, change):
        host = Host()
        host.minute(processed=10**6, share=0.95)
        found = host.minute(**{'processed': 10**6, 'dropped': 5,
                               'share': 0.97, **change})
        assert found.saturated_pcpus == ()

    def test_it_lasts_while_what_is_delivered_varies(self):
        host = Host()
        host.minute(processed=10**6, dropped=1)
        for packets in (980_000, 1_010_000, 930_000, 990_000, 950_000):
            found = host.minute(processed=packets, dropped=1)
            assert found.saturated_pcpus == (0,)

    def test_a_first_minute_is_compared_with_none(self):
        found = Host().minute(processed=10**6, dropped=5, share=1.0)
        assert found.saturated_pcpus == ()

    def test_one_of_many_pcpus(self):
        host = Host(pcpus=4)
        for _ in range(2):
            found = host.minute(pcpu=2, processed=10**6, dropped=1, share=1.0)
        assert found.saturated_pcpus == (2,)
        assert found.softirq_share == 1.0

    def test_ksoftirqd_may_have_half_of_a_pcpu(self):
        host = Host()
        for _ in range(2):
            found = host.minute(processed=10**6, dropped=1, share=0.5,
                                idle=0.09)
        assert found.saturated_pcpus == (0,)

    def test_a_kernel_that_counts_no_time_is_not_idle(self):
        """Time of interrupts that reads 0 says nothing."""
        host = Host()
        host.minute(processed=10**6)
        found = host.minute(processed=10**6, dropped=5)
        assert found.softirq_share is None
        assert found.softirqs == (packet_load.PcpuSoftirqs(0, None, None),)
        assert found.saturated_pcpus == (0,)


class TestReadings:
    def test_counters_have_32_bits(self):
        host = Host()
        host.minute(processed=(1 << 32) - 10, dropped=(1 << 32) - 1)
        found = host.minute(processed=20, dropped=3, share=1.0)
        assert found.dropped_packets == (1 << 32) + 2

    def test_a_pcpu_that_comes_is_compared_the_next_time(self):
        host = Host()
        host.work = {**host.work,
                     1: usage.PacketWork(10**6, 10**6, 0, 10**15, 0)}
        assert host.minute().dropped_packets == 0
        assert host.minute(pcpu=1, dropped=2).dropped_packets == 2

    def test_the_time_of_each_pcpu(self):
        host = Host(pcpus=2)
        host.work[1] = dataclasses.replace(host.work[1], ksoftirqd_ns=0)
        found = host.minute(share=0.5)
        assert found.softirqs == (packet_load.PcpuSoftirqs(0, 30.0, None),
                                  packet_load.PcpuSoftirqs(1, 0.0, 0.0))

    def test_nothing_is_known_where_nothing_is_shown(self):
        host = Host()
        host.minute(processed=1)
        host.load.add(host.now_s + 60, {})
        assert host.load.report is None

    @hypothesis.given(st.lists(st.dictionaries(
        st.integers(0, 3), WORK, max_size=3), max_size=6))
    def test_whatever_is_read(self, readings):
        load, dropped = packet_load.PacketLoad(), 0
        for number, work in enumerate(readings):
            load.add(60.0 * number, work)
            found = load.report
            if found is None:
                dropped = 0
                continue
            assert found.softirq_share is None or found.softirq_share >= 0
            assert found.dropped_packets >= dropped
            assert set(found.saturated_pcpus) <= work.keys()
            assert [one.pcpu for one in found.softirqs] == sorted(work)
            assert {one.softirq_s is None for one in found.softirqs} == {
                found.softirq_share is None}
            dropped = found.dropped_packets


def test_a_saturated_pcpu_is_an_alarm(tmp_path):
    host = billing_host.Host(tmp_path)
    for number in range(3):
        host.hypervisor.host_used = dataclasses.replace(
            test_host_load.host_usage(host.now_s), packets={
                pcpu: usage.PacketWork(number * 10**6, number, 0,
                                       round(number * 60e9), 0)
                for pcpu in (2, 3)})
        host.biller.bill_all((), None, (), 100)
        host.now_s += 60
    assert host.biller.capacity.packets.saturated_pcpus == (2, 3)
    (alarm,) = host.biller.alarms
    assert 'pCPUs 2-3 ' in alarm


def test_a_host_that_shows_nothing_has_no_report():
    load = host_load.HostLoad()
    for minute in range(3):
        load.add_host(test_host_load.host_usage(60.0 * minute), 100)
    assert load.report().packets is None
    assert load.alarms == ()
