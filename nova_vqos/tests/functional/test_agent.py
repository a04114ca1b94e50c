# SPDX-License-Identifier: Apache-2.0
"""The driver's side of the agent: woken for servers, never waited for."""

import time

import fixtures
import oslo_messaging
import pytest

from nova import rpc
from nova_vqos.agent import rpcapi
from nova_vqos.tests.functional import base

# A boot takes about a second; one that waits for an answer takes a minute.
_BOOT_S = 30


class Recorder:
    """The calls that an agent gets."""

    target = oslo_messaging.Target(version=rpcapi.VERSION)

    def __init__(self):
        self.calls = []

    def apply_policy(self, context, server_uuid, policy):
        self.calls.append((context, server_uuid, policy))


@pytest.mark.smoke
class WakeTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        # Alone: of several hosts in one process CONF.host is the last one's.
        self.start_host('fast', 2.0)

    def _start_agent(self):
        recorder = Recorder()
        server = oslo_messaging.get_rpc_server(
            rpc.TRANSPORT,
            oslo_messaging.Target(exchange=rpcapi.EXCHANGE,
                                  topic=rpcapi.TOPIC, server='fast'),
            [recorder], executor='threading',
            serializer=oslo_messaging.NoOpSerializer())
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        return recorder

    def _wait_for_calls(self, recorder, number):
        self.wait_for(lambda: len(recorder.calls) >= number,
                      lambda: 'calls: %s' % recorder.calls)

    def test_woken_for_new_guests(self):
        agent = self._start_agent()
        server = self.boot(self.make_flavor(60), 'fast')
        self._wait_for_calls(agent, 1)
        context, uuid, policy = agent.calls[0]
        # No token, no catalogue: the agent needs none.
        self.assertEqual({}, context)
        self.assertEqual(server['id'], uuid)
        self.assertEqual(60, policy['units'])
        self.assertEqual(1, policy['vcpus'])

        self._reboot_server(server, hard=True)
        self._wait_for_calls(agent, 2)
        self.assertEqual(agent.calls[0], agent.calls[1])

    def test_not_woken_for_servers_without_units(self):
        self.flags(servers_without_units='allow', group='vqos')
        agent = self._start_agent()
        self.boot(self.make_flavor(), 'fast')
        server = self.boot(self.make_flavor(60), 'fast')
        self._wait_for_calls(agent, 1)
        self.assertEqual([server['id']], [call[1] for call in agent.calls])

    def test_nobody_answers(self):
        started = time.monotonic()
        server = self.boot(self.make_flavor(60), 'fast')
        self.assertLess(time.monotonic() - started, _BOOT_S)
        self.assertEqual((15000, 50000, 614), self.tunables(server))

    def test_the_bus_takes_no_messages(self):
        send = oslo_messaging._drivers.impl_fake.FakeDriver.send

        def fail(driver, target, *args, **kwargs):
            if target.exchange == rpcapi.EXCHANGE:
                raise oslo_messaging.MessageDeliveryFailure('no bus')
            return send(driver, target, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(
            'oslo_messaging._drivers.impl_fake.FakeDriver.send', fail))
        server = self.boot(self.make_flavor(60), 'fast')
        self.assertEqual((15000, 50000, 614), self.tunables(server))
        self.assertIn('no bus', self.log())


class SignOfLifeTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.files = self.start_host('fast', 2.0)
        self.flavor = self.make_flavor(60)

    def _refused(self):
        self._run_periodics()
        refused = self.boot(self.flavor, 'fast', expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])

    def test_dead_for_too_long(self):
        self.flags(agent_max_age_s=300, group='vqos')
        self.files.agent_lives(age_s=200)
        self._run_periodics()
        server = self.boot(self.flavor, 'fast')

        self.files.agent_lives(age_s=400)
        self._refused()
        self.assertIn('its agent was last seen at', self.log())
        # Who runs there is left alone.
        self.assertEqual((15000, 50000, 614), self.tunables(server))

        self.files.agent_lives()
        self._run_periodics()
        self.boot(self.flavor, 'fast')

    def test_never_seen(self):
        with open(self.files.agent_state_path, 'w') as file:
            file.write('{"seen_at": [1, 2')
        self._refused()
        self.files.agent_was_never_there()
        self._refused()
        self.assertIn('its agent was never seen', self.log())
        # Where its age does not count.
        self.flags(agent_max_age_s=0, group='vqos')
        self._run_periodics()
        self.boot(self.flavor, 'fast')

    def test_what_it_offers_is_advertised(self):
        asks = self.make_flavor(60, specs={'vqos:quantum_class': 'cache',
                                           'vqos:dd_billing': 'account'})
        self.boot(asks, 'fast', expected_state='ERROR')
        self.files.agent_lives(classes=['default', 'cache'],
                               dd_billing=['off', 'account'])
        self._run_periodics()
        self.boot(asks, 'fast')
