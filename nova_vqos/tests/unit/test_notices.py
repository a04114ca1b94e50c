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

"""Notifications: what is in them, that they are sent, and that none waits."""

import threading
import time

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import conffixture
import pytest

from nova_vqos.agent import messenger
from nova_vqos.agent import notices
from nova_vqos.agent import service
from nova_vqos.billing import account as accounts
from nova_vqos.billing import meter
from nova_vqos.conf import agent as agent_options
from nova_vqos.tests.unit import billing_host
from nova_vqos.tests.unit.test_agent_rpc import wait_until

LIMIT_S = 20


@pytest.fixture
def host(tmp_path):
    return billing_host.Host(tmp_path)


class TestPayload:
    def test_one_interval(self, host):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        for _ in range(30):
            host.use(vcpu_ns=10**8, emulator_ns=10**7, throttled_ns=10**9)
        payload, = host.told.usages
        assert payload['payload_version'] == '1.0'
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
        assert payload['total_cu_s'] == payload['used_cu_s']

    def test_each_amount_is_told_once_and_the_last_at_the_end(self, host):
        host.run()
        host.round()
        for _ in range(100):
            host.use(emulator_ns=10**7)
        host.leave()
        host.round()
        told = host.told.usages
        assert len(told) == 4
        assert sum(one['used_cu_s']['emulator']
                   for one in told) == pytest.approx(100)
        assert told[-1]['total_cu_s']['emulator'] == pytest.approx(100)
        for before, after in zip(told, told[1:], strict=False):
            assert before['to'] == after['from']

    def test_an_agent_that_ends_and_starts_leaves_no_gap(self, host):
        host.run()
        host.round()
        for _ in range(25):
            host.use(emulator_ns=10**7)
        told = host.told.usages
        host.now_s += 1
        host.biller.close()
        host.now_s += 599
        host.start()
        for _ in range(32):
            host.use(emulator_ns=10**7)
        told += host.told.usages
        assert [one['length_s'] for one in told] == [50, 602, 60]
        assert [one['entitled_cu_s'] for one in told] == [3000, 36120, 3600]
        for before, after in zip(told, told[1:], strict=False):
            assert before['to'] == after['from']
        assert sum(one['used_cu_s']['emulator']
                   for one in told) == pytest.approx(56)

    def test_a_server_without_units_has_no_entitlement(self, host):
        host.run(units=None)
        host.round()
        for _ in range(30):
            host.use()
        assert host.told.usages[0]['entitled_cu_s'] is None

    def test_none_are_made_where_none_are_wanted(self, tmp_path):
        host = billing_host.Host(tmp_path)
        host.start(usage_interval_s=0)
        host.run()
        for _ in range(100):
            host.use(emulator_ns=10**7)
        host.leave()
        host.round()
        assert host.told.usages == []

    def test_what_is_overdrawn_is_told_in_the_same_words(self, host):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        for _ in range(40):
            host.use(emulator_ns=2 * 10**9)
        payload, = host.told.events
        assert payload['overdrawn'] is True
        assert payload['payload_version'] == notices.VERSION
        assert payload['limit_cu'] == pytest.approx(6)


@pytest.fixture
def conf():
    options = cfg.ConfigOpts()
    agent_options.register_opts(options)
    agent_options.register_host_opts(options)
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
        told = messenger.Messenger('host')
        told.use_notifier(service.make_notifier(conf))
        told.start()
        told.usage({'a': 1})
        told.overdrawn({'b': 2})
        wait_until(lambda: len(listener.seen) == 2)
        listener.stop()
        told.stop()
        assert sorted(listener.seen) == [
            ('info', 'vqos-agent.host', 'vqos.server.usage', {'a': 1}),
            ('warn', 'vqos-agent.host', 'vqos.server.overdrawn', {'b': 2})]

    def test_without_a_driver_there_are_none(self, conf):
        assert service.make_notifier(conf) is None

    def test_what_waits_at_the_end_is_sent(self):
        sent = []

        def notify(*arguments):
            time.sleep(0.05)
            sent.append(arguments)
        told = messenger.Messenger('host')
        told.use_notifier(notify)
        told.start()
        for _ in range(10):
            told.usage({})
        told.stop()
        assert len(sent) == 10

    def test_the_end_does_not_wait_for_a_bus_that_hangs(self, monkeypatch):
        monkeypatch.setattr(messenger, '_STOP_TIMEOUT_S', 0.1)
        going_on = threading.Event()
        told = messenger.Messenger('host')
        told.use_notifier(lambda *_arguments: going_on.wait(LIMIT_S))
        told.start()
        told.usage({})
        began_s = time.monotonic()
        told.stop()
        assert time.monotonic() - began_s < LIMIT_S / 2
        going_on.set()

    def test_a_bus_that_hangs_keeps_nobody_waiting(self):
        going_on = threading.Event()
        told = messenger.Messenger('host')
        told.use_notifier(lambda *_arguments: going_on.wait(LIMIT_S))
        told.start()
        for _ in range(20_000):
            told.usage({})
        assert told.dropped >= 9_000
        going_on.set()
        told.stop()

    def test_one_that_fails_costs_the_next_ones_nothing(self, caplog):
        class Api:
            claims = []

            def claim_ledger(self, *arguments):
                self.claims.append(arguments)

            def hand_over(self, *arguments):
                raise ConnectionError('the bus is down')

        told = messenger.Messenger('host', utc=lambda: 5.0)
        told.claim('nobody is there yet')
        told.use_bus(Api())
        told.start()
        told.hand_over('there', accounts.Account('x').statement())
        told.claim('server')
        wait_until(lambda: Api.claims)
        told.stop()
        assert Api.claims == [('server', 'host', 5.0)]
        assert told.dropped == 1
        assert 'the bus is down' in caplog.text
