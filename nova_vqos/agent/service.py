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

"""The agent as a service: its parts, how they start and how they stop."""

import logging
import queue
import resource
import signal
import threading
import typing as ty

from oslo_config import cfg
import oslo_messaging
from oslo_service import service
import stevedore

from nova_vqos.agent import biller as billers
from nova_vqos.agent import manager
from nova_vqos.agent import messenger
from nova_vqos.agent import peers
from nova_vqos.agent import profile_watch
from nova_vqos.agent import pushed_store
from nova_vqos.agent import pushing
from nova_vqos.agent import quantum_keeper
from nova_vqos.agent import reconciler
from nova_vqos.agent import reports
from nova_vqos.agent import rpcapi
from nova_vqos.agent import state
from nova_vqos.agent import watching
from nova_vqos.billing import ledger
from nova_vqos.conf import vqos as vqos_conf
from nova_vqos.hypervisor import base
from nova_vqos.metrics import collector
from nova_vqos.metrics import exporter

LOG = logging.getLogger(__name__)

HYPERVISORS = 'nova_vqos.hypervisors'

_STOP_TIMEOUT_S = 10.0
# NOTE: Python runs signal handlers in the main thread alone, but the kernel
# may hand a signal to any: then nothing wakes the main thread up.
_SIGNAL_CHECK_S = 1.0


def load_hypervisor(conf: cfg.ConfigOpts) -> base.Hypervisor:
    """The driver that the configuration names.

    :raises RuntimeError: when there is none of this name
    """
    options = conf.vqos_agent
    found: ty.Any = stevedore.DriverManager(
        HYPERVISORS, options.hypervisor, invoke_on_load=True,
        invoke_args=(options.libvirt_uri,),
        invoke_kwds={'run_path': options.libvirt_run_path})
    hypervisor: base.Hypervisor = found.driver
    return hypervisor


def make_notifier(conf: cfg.ConfigOpts) -> ty.Callable[
        [str, ty.Mapping[str, ty.Any]], None] | None:
    """What sends notifications; None where nobody wants any."""
    # NOTE: this registers the options of [oslo_messaging_notifications].
    transport = oslo_messaging.get_notification_transport(conf)
    if not any(conf.oslo_messaging_notifications.driver):
        return None
    notifier = oslo_messaging.Notifier(
        transport, publisher_id=f'vqos-agent.{conf.host}', retry=0)

    def notify(event_type: str, payload: ty.Mapping[str, ty.Any]) -> None:
        send = (notifier.warn if event_type == messenger.OVERDRAWN
                else notifier.info)
        send({}, event_type, dict(payload))
    return notify


def make_biller(conf: cfg.ConfigOpts, hypervisor: base.Hypervisor,
                told: billers.Messenger) -> billers.Biller:
    """The one who bills servers, as the configuration says."""
    options = conf.vqos_agent
    return billers.Biller(
        hypervisor,
        ledger.Ledger(options.ledger_path,
                      keep_days=options.ledger_keep_days,
                      most_rows=options.ledger_most_servers),
        told,
        billers.Options(
            interval_s=options.billing_interval_s,
            floor_share=options.charge_floor,
            ceiling_s=options.debt_ceiling_s,
            dropped_packets=options.bill_dropped_packets,
            usage_interval_s=options.usage_interval_s),
        host=conf.host)


def make_keeper(conf: cfg.ConfigOpts, hypervisor: base.Hypervisor
                ) -> quantum_keeper.QuantumKeeper:
    """The one who gives servers their slices, as the configuration says.

    :raises nova_vqos.quantum.recognition.LimitInvalid: when a limit cannot be
    """
    options = conf.vqos_agent
    return quantum_keeper.QuantumKeeper(
        hypervisor, watching.make_watch(options, hypervisor),
        quantum_keeper.Options(
            slices_us=vqos_conf.slices_us(conf),
            proof_path=options.quantum_proof_path,
            interval_s=options.quantum_interval_s,
            pool_interval_s=options.pool_interval_s or None))


def make_exporter(conf: cfg.ConfigOpts, endpoint: manager.AgentManager
                  ) -> exporter.Exporter | None:
    """What tells Prometheus of the agent; None where that is not wanted."""
    if not conf.vqos_agent.metrics_port:
        return None

    def question() -> collector.Snapshot:
        try:
            return collector.Snapshot(endpoint.get_host({}),
                                      endpoint.list_servers({}))
        except oslo_messaging.ExpectedException as error:
            # What RPC would answer.
            raise error.exc_info[1] from error
    return exporter.Exporter(conf, question)


class AgentService(service.Service):
    """One per host. Everything is made in start(), nothing before."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Prepare; nothing is opened yet."""
        super().__init__(threads=1)
        self._conf = conf
        # NOTE: a SimpleQueue, since signal handlers put into it: its put()
        # may interrupt its get() in the same thread, an Event's set() not.
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock: state.HostLock | None = None
        self._loop: reconciler.Reconciler | None = None
        self._loop_thread: threading.Thread | None = None
        self._rpc: RpcServer | None = None
        self._exporter: exporter.Exporter | None = None
        self._messenger: messenger.Messenger | None = None
        self._peers: peers.Peers | None = None
        self._reports: reports.Reports | None = None
        self._manager = state.ServiceManager()

    def start(self) -> None:
        """Start everything; blocks on neither libvirt nor the message bus.

        :raises nova_vqos.agent.state.AlreadyRunning: on a second agent
        """
        conf = self._conf
        options = conf.vqos_agent
        self._lock = state.HostLock(options.lock_path)
        _raise_file_limit()
        hypervisor = load_hypervisor(conf)
        self._messenger = messenger.Messenger(conf.host)
        self._start_notifications(self._messenger)
        self._messenger.start()
        biller = make_biller(conf, hypervisor, self._messenger)
        store = pushed_store.PushedStore(options.pushed_path)
        store.load()
        self._loop = reconciler.Reconciler(
            hypervisor,
            profile_watch.ProfileWatch(conf.vqos.profile_path,
                                       conf.vqos.profile_max_interval),
            state.Heartbeat(conf.vqos.agent_state_path, conf.host),
            self._manager,
            periods=vqos_conf.periods(conf),
            reserved_cu=conf.vqos.reserved_cu,
            allocation_ratio=conf.vqos.allocation_ratio,
            biller=biller,
            keeper=make_keeper(conf, hypervisor),
            store=store,
            tick_interval_s=options.tick_interval_s,
            sample_interval_s=options.sample_interval_s,
            heartbeat_interval_s=options.heartbeat_interval_s)
        self._loop_thread = threading.Thread(
            target=self._loop.run, name='reconciler', daemon=True)
        self._loop_thread.start()
        taker = pushing.Pushing(store, self._loop)
        self._peers = peers.Peers(taker, conf.host, options.pushed_interval_s)
        endpoint = manager.AgentManager(
            self._loop, conf.host, biller.hand_over, taker,
            conf.vqos.compute_state_path)
        self._rpc = RpcServer(conf, endpoint, self._messenger, self._peers)
        self._rpc.start()
        self._exporter = make_exporter(conf, endpoint)
        if self._exporter is not None:
            self._exporter.start()
        self._reports = reports.Reports(conf, {
            'Host': self._loop.host_report,
            'Servers': self._loop.servers_report})
        self._reports.start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, lambda _number, _frame: self.reset())
        self._manager.ready()
        LOG.info('The agent of host %s has started', conf.host)

    def _start_notifications(self, told: messenger.Messenger) -> None:
        try:
            notify = make_notifier(self._conf)
        except Exception:
            # Caps are more important than any bill.
            LOG.exception('No notifications are sent')
            return
        if notify is not None:
            told.use_notifier(notify)

    def reset(self) -> None:
        """Read configuration, profile and domains again (SIGHUP)."""
        self._orders.put('reload')

    def stop(self, graceful: bool = True) -> None:
        """Stop everything; caps stay as they are.

        A server that paid for its I/O gets its whole entitlement back.
        """
        self._manager.stopping()
        if self._peers is not None:
            self._peers.stop()
        if self._rpc is not None:
            self._rpc.stop()
        if self._exporter is not None:
            self._exporter.stop()
        if self._loop is not None and self._loop_thread is not None:
            self._loop.stop()
            self._loop_thread.join(_STOP_TIMEOUT_S)
        if self._messenger is not None:
            self._messenger.stop()
        if self._reports is not None:
            self._reports.stop()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        LOG.info('The agent of host %s has stopped, caps stay as they are',
                 self._conf.host)
        self._orders.put('stop')

    def wait(self) -> None:
        """Return when stopped."""
        while (order := self._next_order()) != 'stop':
            if order is None:
                continue
            LOG.info('Reading everything again')
            self._conf.mutate_config_files()
            if self._loop is not None:
                self._loop.refresh()

    def _next_order(self) -> str | None:
        try:
            return self._orders.get(timeout=_SIGNAL_CHECK_S)
        except queue.Empty:
            return None


class BusUser(ty.Protocol):
    """Who reaches other agents."""

    def use_bus(self, api: rpcapi.AgentAPI) -> None:
        """Reach them from now on."""


class RpcServer:
    """Answers RPC as soon as, and as long as, there is a message bus."""

    def __init__(self, conf: cfg.ConfigOpts, endpoint: ty.Any,
                 *told: BusUser) -> None:
        """Prepare; nothing is connected yet.

        :param told: reach other agents as soon as there is a bus
        """
        self._conf = conf
        self._told = told
        self._endpoint = endpoint
        self._server: ty.Any = None
        self._started = threading.Event()
        self._stopped = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin in the background: the driver waits for its bus for ever."""
        threading.Thread(
            target=self._start, name='rpc-start', daemon=True).start()

    def stop(self) -> None:
        """Answer no more, or do not begin to."""
        with self._lock:
            self._stopped = True
            server = self._server
        if server is not None:
            server.stop()

    def _start(self) -> None:
        options = self._conf.vqos_agent
        try:
            transport = oslo_messaging.get_rpc_transport(self._conf)
            for told in self._told:
                told.use_bus(rpcapi.AgentAPI(
                    transport, exchange=options.exchange,
                    topic=options.topic))
            server = oslo_messaging.get_rpc_server(
                transport,
                oslo_messaging.Target(
                    exchange=options.exchange, topic=options.topic,
                    server=self._conf.host),
                [self._endpoint],
                serializer=oslo_messaging.NoOpSerializer(),
                access_policy=oslo_messaging.DefaultRPCAccessPolicy)
            server.start()
            # It may have been stopped while there was no bus.
            with self._lock:
                stopped = self._stopped
                self._server = server
            if stopped:
                server.stop()
                return
        except Exception:
            # Enforcement goes on without: it follows libvirt's events.
            LOG.exception('The agent cannot be reached over RPC')
            return
        LOG.info('Answering RPC on exchange %s, topic %s, as %s',
                 options.exchange, options.topic, self._conf.host)
        self._started.set()


def _raise_file_limit() -> None:
    # A server's cgroup takes two files, and up to two for each vCPU.
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
