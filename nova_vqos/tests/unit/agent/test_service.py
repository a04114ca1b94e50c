# SPDX-License-Identifier: Apache-2.0
"""The agent as a service, all of it but a host: libvirt's driver for tests."""

from concurrent import futures
import json
import os
import re
import signal
import threading

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import conffixture
import pytest

from nova_vqos import agent_state
from nova_vqos import compute_state
from nova_vqos import files
from nova_vqos import push_keys
from nova_vqos.agent import loop
from nova_vqos.agent import outbox
from nova_vqos.agent import process
from nova_vqos.agent import rpcapi
from nova_vqos.agent import service
from nova_vqos.agent.billing import disk_limits
from nova_vqos.agent.caps import controller
from nova_vqos.agent.guarantee import controller as guarantees
from nova_vqos.agent.overrides import gossip
from nova_vqos.conf import agent as agent_options
from nova_vqos.conf import vqos
from nova_vqos.profile import document
from nova_vqos.quantum import probe_result
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import waits

# Unit tests may not touch the host, which an agent does.
pytestmark = pytest.mark.causes_faults


def test_what_ends_with_the_agent_has_the_time():
    """A limit that is not ended stays until there is an agent again."""
    ends_s = (loop._SETTLE_TIMEOUT_S + controller._GIVE_BACK_TIMEOUT_S
              + disk_limits._GIVE_BACK_TIMEOUT_S
              + guarantees._GIVE_BACK_TIMEOUT_S)
    assert ends_s < service._STOP_TIMEOUT_S
    (unit_s,) = re.findall(r'^TimeoutStopSec=(\d+)$', project.sample(
        'etc/systemd/nova-vqos-agent.service').read_text(), re.M)
    # RPC takes a second or two to end; systemd kills what takes longer.
    assert int(unit_s) >= (gossip._STOP_TIMEOUT_S + service._STOP_TIMEOUT_S
                           + outbox._STOP_TIMEOUT_S + 10)


@pytest.fixture
def conf(tmp_path):
    options = cfg.ConfigOpts()
    vqos.register_opts(options)
    agent_options.register_opts(options)
    agent_options.register_host_opts(options)
    options([], default_config_files=[])
    options.set_override('host', 'host')
    options.set_override('profile_path', str(tmp_path / 'profile'), 'vqos')
    options.set_override('agent_state_path', str(tmp_path / 'agent.json'),
                         'vqos')
    options.set_override('compute_state_path', str(tmp_path / 'vqos.json'),
                         'vqos')
    for name, value in (('lock_path', str(tmp_path / 'agent.lock')),
                        ('ledger_path', str(tmp_path / 'ledger.sqlite')),
                        ('pushed_path', str(tmp_path / 'pushed.json')),
                        ('speeds_path', str(tmp_path / 'speeds.json')),
                        ('quantum_proof_path', str(tmp_path / 'probe.json')),
                        ('libvirt_uri', 'test:///default'),
                        ('libvirt_run_path', str(tmp_path)),
                        ('tick_interval_s', 0.1),
                        ('heartbeat_interval_s', 0.1)):
        options.set_override(name, value, 'vqos_agent')
    bus = conffixture.ConfFixture(options, transport_url='fake://')
    bus.setUp()
    handler = signal.getsignal(signal.SIGHUP)
    yield options
    signal.signal(signal.SIGHUP, handler)
    bus.cleanUp()


@pytest.fixture
def agent(conf):
    started = service.AgentService(conf)
    started.start()
    yield started
    started.stop()


def read_state(conf):
    try:
        with open(conf.vqos.agent_state_path) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def test_the_floors_of_charging(conf):
    conf.set_override('charge_floor', 0.2, 'vqos_agent')
    conf.set_override('charge_received_floor', 0.7, 'vqos_agent')
    options = service.make_biller(conf, fakes.FakeHypervisor(), None).options
    assert (options.floor_share, options.received_floor_share) == (0.2, 0.7)
    for share in (0.0, 1.01):
        with pytest.raises(ValueError, match='Should be'):
            conf.set_override('charge_received_floor', share, 'vqos_agent')


class TestGuaranteedShare:
    def read(self, path, text):
        path.write_text(f'[vqos_agent]\nguaranteed_share = {text}\n')
        options = cfg.ConfigOpts()
        agent_options.register_opts(options)
        options([], default_config_files=[str(path)])
        return options.vqos_agent.guaranteed_share

    @pytest.mark.parametrize(('text', 'share'), [
        ('auto', agent_options.AUTO), ('0.1', 0.1), ('0.95', 0.95),
        ('.5', 0.5)])
    def test_what_it_may_be(self, tmp_path, text, share):
        assert self.read(tmp_path / 'agent.conf', text) == share

    @pytest.mark.parametrize('text', [
        '', 'most', 'Auto', '0.09', '0.951', '1', '80', '-0.5', 'nan', 'inf',
        '80 %'])
    def test_what_it_may_not_be(self, tmp_path, text):
        with pytest.raises(cfg.ConfigFileValueError) as caught:
            self.read(tmp_path / 'agent.conf', text)
        for part in ('guaranteed_share', repr(text), 'auto', '0.1 to 0.95'):
            assert part in str(caught.value)

    def test_its_default(self, conf):
        assert conf.vqos_agent.guaranteed_share == agent_options.AUTO


class TestService:
    def test_it_connects_and_leaves_signs_of_life(self, conf, agent):
        waits.wait_until(lambda: read_state(conf).get('hypervisor_connected'))
        assert read_state(conf)['pid'] == os.getpid()

    def test_it_counts_what_nova_compute_counted(self, conf):
        document.store(fakes.make_profile(), conf.vqos.profile_path)
        compute_state.Writer(conf.vqos.compute_state_path).write(
            {}, {}, (1, 70))
        started = service.AgentService(conf)
        started.start()
        try:
            waits.wait_until(lambda: (
                started._loop.host_report().units.reserved_cu == 70))
        finally:
            started.stop()

    def test_it_goes_on_with_the_reserve_of_the_one_before(self, conf):
        document.store(fakes.make_profile(), conf.vqos.profile_path)
        conf.set_override('dd_reserve', 'measured', 'vqos')
        files.write(agent_state.to_text(
            agent_state.AgentState(reserve_cu=90), host='host', pid=1),
            conf.vqos.agent_state_path)
        started = service.AgentService(conf)
        started.start()
        try:
            waits.wait_until(
                lambda: read_state(conf)['pid'] == os.getpid())
            assert read_state(conf)['reserve_cu'] == 90
            assert started._loop.host_report().units.reserved_cu == 90
        finally:
            started.stop()

    @pytest.mark.parametrize('limited', [True, False])
    def test_it_knows_whether_limits_hold_vhost(self, conf, limited):
        probe_result.store(probe_result.ProbeResult(
            'Linux', probe_result.boot_id(), 4000, '2026-11-26', {},
            probe_result.Vhost(0.5, limited=limited)),
            conf.vqos_agent.quantum_proof_path)
        started = service.AgentService(conf)
        started.start()
        try:
            assert started._loop._terms().limits_vhost is limited
        finally:
            started.stop()

    def test_a_second_one_refuses_to_start(self, conf, agent):
        with pytest.raises(process.AlreadyRunning,
                           match='another nova-vqos-agent runs on this host'):
            service.AgentService(conf).start()

    def test_it_stops_and_another_starts(self, conf, agent):
        agent.stop()
        waiting = threading.Thread(target=agent.wait)
        waiting.start()
        waiting.join(waits.LIMIT_S)
        assert not waiting.is_alive()
        another = service.AgentService(conf)
        another.start()
        another.stop()

    def test_a_hangup_reads_everything_again(self, conf, agent):
        waiting = threading.Thread(target=agent.wait)
        waiting.start()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        agent.stop()
        waiting.join(waits.LIMIT_S)
        assert not waiting.is_alive()

    def test_a_signal_that_another_thread_got(self, conf):
        """Its handler runs in the main thread, which has to wake up."""
        waiting = service.AgentService(conf)
        handled = []

        def handle(number, _frame):
            handled.append(number)
            waiting.stop()

        handler = signal.signal(signal.SIGUSR1, handle)
        sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        # Only the sender's thread is left for the kernel to choose.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        try:
            waiting.wait()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.signal(signal.SIGUSR1, handler)
        assert handled == [signal.SIGUSR1]

    def test_nothing_wakes_it_up_without_an_order(self, conf, monkeypatch):
        timeouts = []

        def look(*lists_and_timeout):
            timeouts.append(lists_and_timeout[3:])
            agent.stop()
            return [], [], []
        agent = service.AgentService(conf)
        monkeypatch.setattr(service.select, 'select', look)
        agent.wait()
        assert timeouts == [()]

    def test_calls_are_answered_by_threads_that_sleep(self, conf, agent):
        """Those of futurist wake up once a second."""
        rpc = service.RpcServer(conf, agent)
        rpc.start()
        assert rpc._started.wait(waits.LIMIT_S)
        try:
            assert isinstance(rpc._server._work_executor._executor,
                              futures.ThreadPoolExecutor)
        finally:
            rpc.stop()

    def test_its_keys_say_whose_pushes_it_takes(self, conf, tmp_path):
        _private, public = push_keys.make_key()
        files.write(public, str(tmp_path / 'push.key.pub'))
        conf.set_override('push_public_keys',
                          [str(tmp_path / 'push.key.pub')], 'vqos_agent')
        started = service.AgentService(conf)
        started.start()
        try:
            api = rpcapi.AgentAPI(oslo_messaging.get_rpc_transport(
                conf, allowed_remote_exmods=[rpcapi.__name__]))
            waits.wait_until(lambda: started._rpc._started.is_set())
            held = api.call(conf.host, rpcapi.GET_PUSHED_DIGEST,
                            timeout=waits.LIMIT_S)
            assert held.requires_signature is True
            assert held.problem == ''
        finally:
            started.stop()

    def test_an_unknown_hypervisor_is_named(self, conf):
        conf.set_override('hypervisor', 'abacus', 'vqos_agent')
        with pytest.raises(RuntimeError, match='abacus'):
            service.load_hypervisor(conf)
