# SPDX-License-Identifier: Apache-2.0
"""Notifications: what is in them, that they are sent, and that none waits."""

import dataclasses
import threading
import time

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import conffixture
import pytest

from nova_vqos.agent import outbox
from nova_vqos.agent import service
from nova_vqos.agent.billing import notifications
from nova_vqos.billing import account
from nova_vqos.billing import meter
from nova_vqos.billing import savings
from nova_vqos.conf import agent
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.fixtures import waits


class TestPayload:
    def test_one_interval(self, host):
        host.begin(billing='charge', limit_share=1.0)
        host.use(times=30, vcpu_ns=10**8, emulator_ns=10**7,
                 throttled_ns=10**9)
        payload, = host.sent.usages
        assert payload['payload_version'] == '1.2'
        assert payload['server_uuid'] == billing_host.UUID
        assert payload['project_id'] == 'p'
        assert payload['host'] == 'here'
        assert payload['length_s'] == 60
        assert payload['used_cu_s']['vcpu'] == pytest.approx(300)
        assert payload['used_cu_s']['emulator'] == pytest.approx(30)
        assert set(payload['used_cu_s']) == set(meter.COMPONENTS)
        assert payload['entitled_cu_s'] == 3600
        assert payload['throttled_s'] == 30
        assert payload['debt_cu_s'] == 0
        assert payload['saved_cu_s'] is None
        assert payload['total_cu_s'] == payload['used_cu_s']

    def test_what_it_saved_for_bursts(self, host):
        host.begin(burst=savings.Terms(50, 100, 60))
        host.use(times=30, vcpu_ns=4 * 10**8)
        payload, = host.sent.usages
        assert payload['saved_cu_s'] == pytest.approx(60 * (50 - 20))

    @pytest.mark.parametrize('ram_bytes, bounds', [
        (None, None), (0, {'low': 9000, 'high': 9000}),
        (5000, {'low': 4000, 'high': 9000})])
    def test_the_memory_of_its_emulator(self, host, ram_bytes, bounds):
        host.begin()
        host.subjects[billing_host.UUID] = dataclasses.replace(
            host.subjects[billing_host.UUID], private_ram_bytes=ram_bytes)
        host.hypervisor.emulator_bytes[billing_host.UUID] = 9000
        host.use(times=30, vcpu_ns=10**8)
        payload, = host.sent.usages
        assert payload['emulator_memory_bytes'] == bounds

    def test_the_peak_of_the_rolling_mean(self, host):
        host.begin()
        # Of 100 CU for a minute, and nothing since.
        host.use(times=30, vcpu_ns=2 * 10**9)
        host.use(times=9000)
        first, *others = [one['rolling_4h'] for one in host.sent.usages]
        assert first['cu'] == first['peak_cu'] == pytest.approx(
            100 * 60 / 14_400, abs=1e-3)
        assert first['covered_s'] == 60
        last = others[-1]
        assert (last['cu'], last['peak_cu']) == (0, 0)
        assert last['covered_s'] == 14_400
        # It falls within an interval.
        assert any(one['peak_cu'] > one['cu'] for one in others)
        assert all(one['peak_cu'] >= one['cu'] for one in others)

    def test_a_new_start_does_not_lower_the_rolling_mean(self, host):
        host.begin()
        host.use(times=30, vcpu_ns=2 * 10**9)
        host.leave()
        host.round()
        host.begin(run='two')
        found = host.use(times=1).report.rolling_4h
        assert found.cu == pytest.approx(100 * 60 / 14_400, abs=1e-3)

    def test_each_amount_is_sent_once_and_the_last_at_the_end(self, host):
        host.begin()
        host.use(times=100, emulator_ns=10**7)
        host.leave()
        host.round()
        usages = host.sent.usages
        assert len(usages) == 4
        assert sum(one['used_cu_s']['emulator']
                   for one in usages) == pytest.approx(100)
        assert usages[-1]['total_cu_s']['emulator'] == pytest.approx(100)
        for before, after in zip(usages, usages[1:], strict=False):
            assert before['to'] == after['from']

    def test_an_agent_that_ends_and_starts_leaves_no_gap(self, host):
        host.begin()
        host.use(times=25, emulator_ns=10**7)
        usages = host.sent.usages
        host.now_s += 1
        host.biller.close()
        host.now_s += 599
        host.start()
        host.use(times=32, emulator_ns=10**7)
        usages += host.sent.usages
        assert [one['length_s'] for one in usages] == [50, 602, 60]
        assert [one['entitled_cu_s'] for one in usages] == [3000, 36120, 3600]
        for before, after in zip(usages, usages[1:], strict=False):
            assert before['to'] == after['from']
        assert sum(one['used_cu_s']['emulator']
                   for one in usages) == pytest.approx(56)

    def test_a_server_without_units_has_no_entitlement(self, host):
        host.begin(units=None)
        host.use(times=30)
        assert host.sent.usages[0]['entitled_cu_s'] is None

    def test_none_are_made_where_none_are_wanted(self, tmp_path):
        host = billing_host.Host(tmp_path)
        host.start(usage_interval_s=0)
        host.run()
        host.use(times=100, emulator_ns=10**7)
        host.leave()
        host.round()
        assert host.sent.usages == []

    def test_overdrawn_servers_use_the_same_fields(self, host):
        host.begin(billing='charge', limit_share=1.0)
        host.use(times=40, emulator_ns=2 * 10**9)
        payload, = host.sent.events
        assert payload['overdrawn'] is True
        assert payload['payload_version'] == notifications.VERSION
        assert payload['limit_cu'] == pytest.approx(30)


@pytest.fixture
def conf():
    options = cfg.ConfigOpts()
    agent.register_opts(options)
    agent.register_host_opts(options)
    options([], default_config_files=[])
    options.set_override('host', 'host')
    bus = conffixture.ConfFixture(options, transport_url='fake://')
    bus.setUp()
    yield options
    bus.cleanUp()


class Listener:
    """Takes notifications off the bus, as Ceilometer's agent does."""

    def __init__(self, conf):
        self.seen = []
        self._listener = oslo_messaging.get_notification_listener(
            oslo_messaging.get_notification_transport(conf),
            [oslo_messaging.Target(topic='notifications')], [self],
            executor='threading')
        self._listener.start()

    def info(self, _context, publisher_id, event_type, payload, _metadata):
        self.seen.append(('info', publisher_id, event_type, payload))

    def warn(self, _context, publisher_id, event_type, payload, _metadata):
        self.seen.append(('warn', publisher_id, event_type, payload))

    def stop(self):
        self._listener.stop()
        self._listener.wait()


class TestSending:
    def test_they_reach_who_listens(self, conf):
        oslo_messaging.get_notification_transport(conf)
        conf.set_override('driver', ['messagingv2'],
                          'oslo_messaging_notifications')
        listener = Listener(conf)
        sender = outbox.Outbox('host')
        sender.use_notifier(service.make_notifier(conf))
        sender.start()
        sender.notify(outbox.USAGE, {'a': 1})
        sender.notify(outbox.OVERDRAWN, {'b': 2})
        waits.wait_until(lambda: len(listener.seen) == 2)
        listener.stop()
        sender.stop()
        assert sorted(listener.seen) == [
            ('info', 'vqos-agent.host', 'vqos.server.usage', {'a': 1}),
            ('warn', 'vqos-agent.host', 'vqos.server.overdrawn', {'b': 2})]

    def test_without_a_driver_there_are_none(self, conf):
        assert service.make_notifier(conf) is None

    def test_what_waits_at_the_end_is_sent(self, monkeypatch):
        monkeypatch.setattr(outbox, '_STOP_TIMEOUT_S', waits.LIMIT_S)
        sent = []

        def notify(*arguments):
            time.sleep(0.05)
            sent.append(arguments)
        sender = outbox.Outbox('host')
        sender.use_notifier(notify)
        sender.start()
        for _ in range(10):
            sender.notify(outbox.USAGE, {})
        sender.stop()
        assert len(sent) == 10

    def test_the_end_does_not_wait_for_a_bus_that_hangs(self, monkeypatch):
        monkeypatch.setattr(outbox, '_STOP_TIMEOUT_S', 0.1)
        going_on, sent = threading.Event(), []
        sender = outbox.Outbox('host')
        sender.use_notifier(
            lambda *_arguments: sent.append(going_on.wait(waits.LIMIT_S)))
        sender.start()
        sender.notify(outbox.USAGE, {})
        sender.stop()
        assert sent == []
        going_on.set()

    def test_a_bus_that_hangs_delays_no_caller(self):
        going_on = threading.Event()
        sender = outbox.Outbox('host')
        sender.use_notifier(lambda *_arguments: going_on.wait(waits.LIMIT_S))
        sender.start()
        for _ in range(20_000):
            sender.notify(outbox.USAGE, {})
        assert sender.dropped >= 9_000
        going_on.set()
        sender.stop()

    def test_one_that_fails_costs_the_next_ones_nothing(self, caplog):
        class Api:
            claims = []

            def claim_ledger(self, *arguments):
                self.claims.append(arguments)

            def hand_over(self, *arguments, **options):
                raise ConnectionError('the bus is down')

        sender = outbox.Outbox('host', utc=lambda: 5.0)
        sender.claim('no bus yet', billing_host.NONCE, 7, '')
        sender.use_bus(Api())
        sender.start()
        sender.hand_over('there', account.Account('x').statement(),
                         billing_host.NONCE, is_copy=False)
        sender.claim('server', billing_host.NONCE, 7, '')
        waits.wait_until(lambda: Api.claims)
        sender.stop()
        assert Api.claims == [('server', 'host', 5.0, billing_host.NONCE, 7,
                               '', 0)]
        assert sender.dropped == 1
        assert 'the bus is down' in caplog.text
