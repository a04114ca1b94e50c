# SPDX-License-Identifier: Apache-2.0
"""Where a host's CPU time goes, and what is to be kept for itself."""

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import host_load
from nova_vqos.billing import usage
from nova_vqos.tests.fixtures import billing_host

SECONDS = st.floats(0, 1000)


def host_usage(at_s, total_s=0.0, domains_s=0.0, own_s=0.0):
    return usage.HostUsage(at_s, *(
        round(one * 1e9) for one in (total_s, domains_s, own_s)))


class TestShares:
    def test_nothing_is_hidden(self):
        book = host_load.HostLoad()
        assert book.report() is None
        book.add_host(host_usage(0.0), 100)
        assert book.report() is None
        book.add_server(300 * 10**6, unpaid_cu_us=0)
        book.add_host(host_usage(60.0, 60, 30, 6), 100)
        report = book.report()
        assert report.total_cu == 100
        assert report.servers_cu == 50
        assert report.own_cu == 10
        assert report.modelled_cu == 5
        assert report.unattributed_cu == 35
        assert report.suggested_reserved_cu == 45

    def test_unpaid_io_needs_reserved_room(self):
        book = host_load.HostLoad()
        book.add_host(host_usage(0.0), 100)
        book.add_server(300 * 10**6, unpaid_cu_us=360 * 10**6)
        book.add_host(host_usage(60.0, 60, 30, 6), 100)
        assert book.report().suggested_reserved_cu == 45 + 6

    @hypothesis.given(SECONDS, SECONDS, SECONDS, st.integers(0, 10**12),
                      st.floats(1, 500))
    def test_parts_sum_up(self, domains_s, own_s, rest_s, modelled, pcpu_cu):
        book = host_load.HostLoad()
        book.add_host(host_usage(0.0), pcpu_cu)
        book.add_server(modelled, unpaid_cu_us=0)
        book.add_host(host_usage(60.0, domains_s + own_s + rest_s, domains_s,
                                 own_s), pcpu_cu)
        report = book.report()
        assert report.total_cu == pytest.approx(sum((
            report.servers_cu, report.own_cu, report.modelled_cu,
            report.unattributed_cu)), abs=0.01)
        assert report.suggested_reserved_cu >= 0

    def test_rare_peaks_are_not_suggested(self):
        book = host_load.HostLoad()
        own_s = 0.0
        for minute in range(101):
            own_s += 60.0 if minute % 50 == 1 else 3.0
            book.add_host(host_usage(60.0 * minute, own_s, 0, own_s), 100)
        assert book.report().suggested_reserved_cu == 5
        assert book.report().minutes_seen == 100

    def test_a_day_is_remembered(self):
        book = host_load.HostLoad()
        for minute in range(3000):
            book.add_host(host_usage(60.0 * minute), 100)
        assert book.report().minutes_seen == 1440

    def test_a_host_that_was_started_anew_is_no_negative_use(self):
        book = host_load.HostLoad()
        book.add_host(host_usage(1000.0, 500, 100, 100), 100)
        book.add_host(host_usage(1060.0, 1, 1, 0), 100)
        assert book.report().total_cu == 0


    def test_the_reserve_follows(self):
        book = host_load.HostLoad(reserve_cu=20)
        assert book.reserve_cu == 20
        own_s = 0.0
        for minute in range(4):
            book.add_host(host_usage(60.0 * minute, own_s, 0, own_s), 100)
            own_s += 33.0
        assert book.reserve_cu == book.report().reserve_cu == 60


class TestBiller:
    def test_the_host_is_looked_at_each_minute(self, tmp_path):
        host = billing_host.Host(tmp_path)
        host.hypervisor.host_used = host_usage(host.now_s)
        host.biller.bill_all((), None, (), 100)
        assert host.biller.capacity is None
        host.now_s += 60
        host.hypervisor.host_used = host_usage(host.now_s, 60, 0, 30)
        host.biller.bill_all((), None, (), 100)
        assert host.biller.capacity.unattributed_cu == 50

    def test_an_uncounted_one_is_logged_once(self, tmp_path, caplog):
        host = billing_host.Host(tmp_path)
        for _ in range(3):
            host.now_s += 60
            host.biller.bill_all((), None, (), 100)
        assert host.biller.capacity is None
        assert caplog.text.count('it is not counted') == 1
