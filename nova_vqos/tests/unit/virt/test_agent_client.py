# SPDX-License-Identifier: Apache-2.0
"""The driver notifies the agent of guests that it made or that came."""

import fixtures
import oslo_messaging

from nova import rpc
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver
from nova_vqos.tests.fixtures import nova_case

UUID = driver.UUID


class WakeTestCase(driver.DriverTestCase):

    def setUp(self):
        super().setUp()
        self.casts = []
        self.address = ('nova_vqos', 'vqos-agent')
        this = self

        class Client:
            def prepare(self, **kwargs):
                self.server = kwargs['server']
                return self

            def cast(self, ctxt, method, **kwargs):
                this.casts.append((self.server, ctxt, method, kwargs))

        def get_client(transport, target, **kwargs):
            self.assertIs(rpc.TRANSPORT, transport)
            self.assertEqual(0, kwargs['retry'])
            self.assertEqual(self.address, (target.exchange, target.topic))
            return Client()

        self.stub_out('oslo_messaging.get_rpc_client', get_client)
        self.instance = self.make_instance({policy.UNITS_KEY: '60'})

    def assert_woken(self, times=1):
        self.assertEqual([(
            nova_case.CONF.host, {}, 'apply_policy',
            {'server_uuid': UUID, 'policy': {
                'vcpus': 1, 'units': 60, 'cap': 'hard',
                'quantum_class': 'default', 'dd_billing': 'off',
                'guarantee': 'off'}},
        )] * times, self.casts)

    def create(self, instance):
        xml = ('<domain type="qemu"><name>vm</name><uuid>%s</uuid>'
               '<memory>1024</memory><vcpu>1</vcpu><os><type>hvm</type></os>'
               '<devices/></domain>' % instance.uuid)
        return self.driver._create_guest(self.context, xml, instance)

    def test_after_a_guest_was_made(self):
        guest = self.create(self.instance)
        self.assertEqual(UUID, guest.uuid)
        self.assert_woken()

    def test_not_for_servers_of_stock_nova(self):
        self.create(self.make_instance())
        self.assertEqual([], self.casts)

    def test_after_a_live_migration(self):
        passed = []
        self.stub_driver('post_live_migration_at_destination',
                         lambda this, *args: passed.append(args))
        self.driver.post_live_migration_at_destination(
            self.context, self.instance, [], True, {'block': 'devices'})
        self.assertEqual([(self.context, self.instance, [], True,
                           {'block': 'devices'})], passed)
        self.assert_woken()

    def test_at_the_address_that_the_agent_was_given(self):
        self.address = ('other', 'agents')
        self.flags(exchange='other', topic='agents', group='vqos_agent')
        self.create(self.instance)
        self.assert_woken()

    def test_the_transport_is_read_at_call_time(self):
        other = oslo_messaging.get_rpc_transport(nova_case.CONF, 'fake:/')
        self.stub_out('nova.rpc.TRANSPORT', other)
        self.create(self.instance)
        self.assert_woken()

    def test_a_boot_goes_on_whatever_fails(self):
        for name, broken in (
                ('nova.rpc.TRANSPORT', None),
                ('oslo_messaging.get_rpc_client', lambda *a, **k: 1 / 0),
                ('nova_vqos.policy.parse', lambda *a: 1 / 0),
                ('nova_vqos.agent.rpcapi.AgentAPI', None)):
            with fixtures.MonkeyPatch(name, broken):
                self.assertEqual(UUID, self.create(self.instance).uuid)
            self.driver._host.get_connection()._domains = {}
            self.driver._host.get_connection()._running_vms = {}

    def test_a_bus_in_trouble_is_left_alone_for_a_while(self):
        now_s = [1000.0]
        self.stub_out('nova_vqos.virt.agent_client.time.monotonic',
                      lambda: now_s[0])
        for takes_s, answer in ((5.0, True), (0.0, False)):
            tried = []

            def wake(api, host, uuid, policy, *, takes_s=takes_s,
                     answer=answer, tried=tried):
                tried.append(uuid)
                now_s[0] += takes_s
                return answer

            with fixtures.MonkeyPatch(
                    'nova_vqos.agent.rpcapi.AgentAPI.wake', wake):
                self.driver._vqos_agent.wake(self.instance)
                now_s[0] += 59
                self.driver._vqos_agent.wake(self.instance)
                self.assertEqual([UUID], tried)
                now_s[0] += 2
                self.driver._vqos_agent.wake(self.instance)
                self.assertEqual([UUID] * 2, tried)
            now_s[0] += 61
        self.driver._vqos_agent.wake(self.instance)
        self.assert_woken()

    def test_another_agent_is_not_asked_by_a_bus_in_trouble(self):
        asked = []
        self.stub_out(
            'nova_vqos.agent.rpcapi.AgentAPI.check_server',
            lambda api, host, uuid: asked.append((host, uuid)) or 'no')
        client = self.driver._vqos_agent
        self.assertEqual('no', client.refusal('there', UUID))
        with fixtures.MonkeyPatch('nova_vqos.agent.rpcapi.AgentAPI.wake',
                                  lambda *args: False):
            client.wake(self.instance)
        self.assertEqual('', client.refusal('there', UUID))
        self.assertEqual([('there', UUID)], asked)

    def test_a_migration_waits_for_the_limit_to_go(self):
        calls = []
        self.stub_out(
            'nova_vqos.agent.rpcapi.AgentAPI.lift_limits',
            lambda api, host, uuid: calls.append(uuid))
        self.stub_driver('live_migration',
                         lambda *args: calls.append('migrate'))
        units = {'resources:CUSTOM_VQOS_CPU_UNIT': '60'}
        for specs, expected in (
                ({**units, 'vqos:dd_billing': 'charge'}, [UUID, 'migrate']),
                # It may have been pushed that it pays.
                (units, [UUID, 'migrate']),
                ({**units, 'vqos:cap': 'floor'}, ['migrate']),
                ({'vqos:dd_billing': 'account'}, ['migrate']),
                ({}, ['migrate'])):
            self.instance.flavor.extra_specs = specs
            calls.clear()
            self.driver.live_migration(None, self.instance, 'there', None,
                                       None)
            self.assertEqual(expected, calls)

    def test_and_goes_on_whatever_fails(self):
        calls = []
        self.stub_driver('live_migration',
                         lambda *args: calls.append('migrate'))
        self.instance.flavor.extra_specs['vqos:dd_billing'] = 'charge'
        for name, broken in (
                ('nova.rpc.TRANSPORT', None),
                ('nova_vqos.policy.parse', lambda *a: 1 / 0),
                ('nova_vqos.agent.rpcapi.AgentAPI', None)):
            with fixtures.MonkeyPatch(name, broken):
                self.driver.live_migration(None, self.instance, 'there',
                                           None, None)
        self.assertEqual(['migrate'] * 3, calls)

    def test_a_guest_that_failed_to_start_wakes_no_agent(self):
        self.stub_out('nova.virt.libvirt.guest.Guest.launch',
                      lambda *args, **kwargs: 1 / 0)
        self.assertRaises(ZeroDivisionError, self.create, self.instance)
        self.assertEqual([], self.casts)
