# SPDX-License-Identifier: Apache-2.0
"""The agent as a service: its parts, how they start and how they stop."""

import contextlib
import functools
import logging
import os
import queue
import resource
import select
import signal
import socket
import threading
import typing as ty

from oslo_config import cfg
import oslo_messaging
from oslo_messaging.rpc import server as rpc_server
from oslo_service import service
import stevedore

from nova_vqos import agent_state
from nova_vqos import push_signature
from nova_vqos.agent import diagnostics
from nova_vqos.agent import heartbeat
from nova_vqos.agent import loop
from nova_vqos.agent import manager
from nova_vqos.agent import outbox
from nova_vqos.agent import process
from nova_vqos.agent import profile_watch
from nova_vqos.agent import rpc_budget
from nova_vqos.agent import rpcapi
from nova_vqos.agent.billing import biller as billers
from nova_vqos.agent.correction import store as speed_store
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import server_report
from nova_vqos.agent.overrides import gossip
from nova_vqos.agent.overrides import receiver
from nova_vqos.agent.overrides import store as override_store
from nova_vqos.agent.quantum import enforcer
from nova_vqos.agent.quantum import preemptions
from nova_vqos.agent.quantum import watcher
from nova_vqos.billing import ledger
from nova_vqos.conf import agent
from nova_vqos.conf import vqos
from nova_vqos.hypervisor import base
from nova_vqos.quantum import probe_result

LOG = logging.getLogger(__name__)

HYPERVISORS = 'nova_vqos.hypervisors'

# More than the loop may take to end all that ends with the agent; and less,
# with all else, than TimeoutStopSec of the unit.
_STOP_TIMEOUT_S = 16.0
_WAKEUP_BYTES = 4096
_FEW_LINES = rpc_budget.FewLines()


def load_hypervisor(conf: cfg.ConfigOpts) -> base.Hypervisor:
    """The driver that the configuration names.

    :raises RuntimeError: when there is none of this name
    """
    options = conf.vqos_agent
    found: ty.Any = stevedore.DriverManager(
        HYPERVISORS, options.hypervisor, invoke_on_load=True,
        invoke_args=(options.libvirt_uri,),
        invoke_kwds={'run_path': options.libvirt_run_path,
                     'guaranteed_pcpus': conf.vqos.guaranteed_pcpus,
                     'partition_path': options.partition_path,
                     'instructions_path': options.instructions_path,
                     # Root needs no help.
                     'helper_path': (options.helper_path if os.geteuid()
                                     else '')})
    hypervisor: base.Hypervisor = found.driver
    return hypervisor


def make_notifier(conf: cfg.ConfigOpts) -> ty.Callable[
        [str, ty.Mapping[str, ty.Any]], None] | None:
    """Make a function that sends notifications; None: they are off."""
    # NOTE: this registers the options of [oslo_messaging_notifications].
    transport = oslo_messaging.get_notification_transport(conf)
    if not any(conf.oslo_messaging_notifications.driver):
        return None
    notifier = oslo_messaging.Notifier(
        transport, publisher_id=f'vqos-agent.{conf.host}', retry=0)

    def notify(event_type: str, payload: ty.Mapping[str, ty.Any]) -> None:
        send = (notifier.warn if event_type == outbox.OVERDRAWN
                else notifier.info)
        send({}, event_type, dict(payload))
    return notify


def make_biller(conf: cfg.ConfigOpts, hypervisor: base.Hypervisor,
                sender: outbox.Outbox) -> billers.Biller:
    """Make the biller by the configuration."""
    options = conf.vqos_agent
    return billers.Biller(
        hypervisor,
        ledger.Ledger(options.ledger_path,
                      keep_days=options.ledger_keep_days,
                      most_rows=options.ledger_most_servers),
        sender,
        billers.Options(
            interval_s=options.billing_interval_s,
            floor_share=options.charge_floor,
            received_floor_share=options.charge_received_floor,
            ceiling_s=options.debt_ceiling_s,
            dropped_packets=options.bill_dropped_packets,
            charge_received=options.charge_received_packets,
            throttles=options.throttle_overdrawn,
            usage_interval_s=options.usage_interval_s,
            accounts_all=options.account_all),
        host=conf.host,
        reserve_cu=agent_state.read(conf.vqos.agent_state_path).reserve_cu
        or 0)


def make_enforcer(conf: cfg.ConfigOpts, hypervisor: base.Hypervisor
                  ) -> enforcer.Enforcer:
    """An enforcer of slices by the configuration.

    :raises nova_vqos.quantum.recognition.LimitInvalid: when a limit is
        invalid
    """
    options = conf.vqos_agent
    return enforcer.Enforcer(
        hypervisor, watcher.make_watcher(options, hypervisor),
        enforcer.Options(
            slices_us=vqos.slices_us(conf),
            probe_result_path=options.quantum_proof_path,
            interval_s=options.quantum_interval_s,
            pool_interval_s=options.pool_interval_s or None),
        preempted=preemptions.PreemptionReader())


class AgentService(service.Service):  # type: ignore[misc]
    """One per host. Everything is made in start(), nothing before."""

    def __init__(self, conf: cfg.ConfigOpts, start_exporter: ty.Callable[
            [cfg.ConfigOpts, ty.Callable[[], tuple[
                host_report.LoopReport, list[server_report.Server]]]],
            ty.Callable[[], None] | None] = lambda _conf, _ask: None) -> None:
        """Prepare; nothing is opened yet.

        :param start_exporter: takes a function that asks the loop, and
            returns what ends the export; None: metrics are off
        """
        super().__init__(threads=1)
        self._conf = conf
        self._start_exporter = start_exporter
        self._orders = _Orders()
        self._lock: process.HostLock | None = None
        self._loop: loop.Loop | None = None
        self._loop_thread: threading.Thread | None = None
        self._rpc: RpcServer | None = None
        self._stop_exporter: ty.Callable[[], None] | None = None
        self._outbox: outbox.Outbox | None = None
        self._gossip: gossip.Gossip | None = None
        self._reports: diagnostics.Reports | None = None
        self._manager = process.ServiceManager()

    def start(self) -> None:
        """Start everything; blocks on neither libvirt nor the message bus.

        :raises nova_vqos.agent.process.AlreadyRunning: on a second agent
        """
        conf = self._conf
        options = conf.vqos_agent
        self._lock = process.HostLock(options.lock_path)
        _raise_file_limit()
        hypervisor = load_hypervisor(conf)
        self._outbox = outbox.Outbox(conf.host)
        self._start_notifications(self._outbox)
        self._outbox.start()
        biller = make_biller(conf, hypervisor, self._outbox)
        store = override_store.OverrideStore(
            options.pushed_path,
            push_signature.Verifier(options.push_public_keys))
        store.load()
        speeds = speed_store.Store(options.speeds_path)
        speeds.load()
        self._loop = loop.Loop(
            hypervisor,
            profile_watch.ProfileWatch(conf.vqos.profile_path,
                                       conf.vqos.profile_max_interval),
            heartbeat.Heartbeat(conf.vqos.agent_state_path, conf.host,
                                options.heartbeat_interval_s),
            self._manager,
            periods=vqos.periods(conf),
            reserved_cu=functools.partial(vqos.reserved_cu, conf),
            allocation_ratio=conf.vqos.allocation_ratio,
            biller=biller,
            limits_vhost=probe_result.limits_vhost(
                probe_result.load(options.quantum_proof_path)),
            enforcer=make_enforcer(conf, hypervisor),
            store=store,
            speeds=speeds,
            sender=self._outbox,
            correction_reserve_cu=conf.vqos.correction_reserve_cu,
            compute_state_path=conf.vqos.compute_state_path,
            guarantees_speed=options.guarantees_speed,
            guaranteed_share=(
                None if options.guaranteed_share == agent.AUTO
                else options.guaranteed_share),
            least_frequency_scale=options.least_frequency_scale,
            tick_interval_s=options.tick_interval_s,
            sample_interval_s=options.sample_interval_s)
        self._loop_thread = threading.Thread(
            target=self._loop.run, name='loop', daemon=True)
        self._loop_thread.start()
        push_receiver = receiver.Receiver(
            store, self._loop.follow_pushed, self._loop.pushed_report,
            conf.host)
        self._gossip = gossip.Gossip(push_receiver, conf.host,
                                     options.pushed_interval_s)
        endpoint = manager.AgentManager(
            self._loop, conf.host, biller.transfer, push_receiver,
            conf.vqos.compute_state_path)
        self._rpc = RpcServer(conf, endpoint, self._outbox.use_bus,
                              self._gossip.use_bus)
        self._rpc.start()
        running = self._loop
        self._stop_exporter = self._start_exporter(conf, lambda: (
            running.host_report(), running.servers_report(memory=True)))
        self._reports = diagnostics.Reports(conf, {
            'Host': self._loop.host_report,
            'Servers': self._loop.servers_report})
        self._reports.start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, lambda _number, _frame: self.reset())
        self._manager.ready()
        LOG.info('The agent of host %s has started', conf.host)

    def _start_notifications(self, sender: outbox.Outbox) -> None:
        try:
            notify = make_notifier(self._conf)
        except Exception:
            # Caps must work without notifications.
            LOG.exception('No notifications are sent')
            return
        if notify is not None:
            sender.use_notifier(notify)

    def reset(self) -> None:
        """Read configuration, profile and domains again (SIGHUP)."""
        self._orders.put('reload')

    def stop(self, graceful: bool = True) -> None:
        """Stop everything; caps stay as they are.

        A server that paid for its I/O gets its whole entitlement back.
        """
        self._manager.stopping()
        if self._gossip is not None:
            self._gossip.stop()
        if self._rpc is not None:
            self._rpc.stop()
        if self._stop_exporter is not None:
            self._stop_exporter()
        if self._loop is not None and self._loop_thread is not None:
            self._loop.stop()
            self._loop_thread.join(_STOP_TIMEOUT_S)
        if self._outbox is not None:
            self._outbox.stop()
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
        with self._orders.woken_by_signals():
            while self._orders.next() != 'stop':
                LOG.info('Reading everything again')
                self._conf.mutate_config_files()
                if self._loop is not None:
                    self._loop.refresh()


class _Orders:
    """What signals, or other threads, ask the main thread to do.

    NOTE: Python runs signal handlers in the main thread alone, but the kernel
    may hand a signal to any: then nothing but a descriptor wakes the main
    thread up.
    """

    def __init__(self) -> None:
        # NOTE: a SimpleQueue, since signal handlers put into it.
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    @contextlib.contextmanager
    def woken_by_signals(self) -> ty.Iterator[None]:
        """Have handlers of signals run at once while :meth:`next` waits."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.set_wakeup_fd(self._sender.fileno(),
                                      warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def put(self, order: str) -> None:
        """Any thread, and any handler of a signal, may call it."""
        self._waiting.put(order)
        # Full: then the main thread is woken up all the same.
        with contextlib.suppress(BlockingIOError):
            self._sender.send(b'\0')

    def next(self) -> str:
        """Wait for an order."""
        while True:
            try:
                return self._waiting.get_nowait()
            except queue.Empty:
                select.select([self._receiver], [], [])
            # Before the queue is looked at: what comes now is not lost.
            with contextlib.suppress(BlockingIOError):
                self._receiver.recv(_WAKEUP_BYTES)


class _Server(rpc_server.RPCServer):  # type: ignore[misc]
    """Works on no more messages than it can."""

    def __init__(self, *args: ty.Any) -> None:
        super().__init__(*args)
        self._executor_cls = functools.partial(
            rpc_budget.Queues, manager.QUESTIONS, manager.ORDERS)


class RpcServer:
    """Answers RPC as soon as, and as long as, there is a message bus."""

    def __init__(self, conf: cfg.ConfigOpts, endpoint: ty.Any,
                 *on_bus: ty.Callable[[rpcapi.AgentAPI], None]) -> None:
        """Prepare; nothing is connected yet.

        :param on_bus: called, each with other agents, as soon as there is a
            bus
        """
        self._conf = conf
        self._on_bus = on_bus
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
            url = oslo_messaging.TransportURL.parse(self._conf)
            # NOTE: by default the driver asks RabbitMQ whether a caller is
            # still there, tries to answer one that is gone, or was made up,
            # for a minute, and may take the next caller for that one.
            url.query.setdefault('direct_mandatory_flag', 'false')
            transport = oslo_messaging.get_rpc_transport(self._conf, url)
            for use_bus in self._on_bus:
                use_bus(rpcapi.AgentAPI(
                    transport, exchange=options.exchange,
                    topic=options.topic))
            server = oslo_messaging.get_rpc_server(
                transport,
                oslo_messaging.Target(
                    exchange=options.exchange, topic=options.topic,
                    server=self._conf.host),
                [self._endpoint],
                serializer=oslo_messaging.NoOpSerializer(),
                access_policy=oslo_messaging.DefaultRPCAccessPolicy,
                server_cls=_Server)
            # They log each message with an unknown method, with a traceback,
            # and each caller that is gone.
            for name in 'rpc.server', '_drivers.amqpdriver':
                logging.getLogger(f'oslo_messaging.{name}').addFilter(
                    _FEW_LINES)
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
