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

"""The parts of nova_vqos on a host, and the bus between them."""

from concurrent import futures
import ctypes
import json
import os
import signal
import sys

from oslo_config import cfg
import oslo_messaging

from nova_vqos import fingerprint
from nova_vqos import profile as profiles
from nova_vqos.agent import rpcapi
from nova_vqos.tests import make_profiles
from nova_vqos_lab import process

LIMIT_S = 90
STOP_LIMIT_S = 20
TICK_S = 0.25
_RABBITMQ = '/usr/lib/rabbitmq/bin/rabbitmq-server'
_CLONE_NEWNET = 0x40000000


def install_hook(host):
    """Install the hook on a host; libvirtd takes notice when it starts."""
    host.run([sys.executable, '-c',
              'from nova_vqos.hooks import libvirt; import sys; '
              'sys.exit(libvirt.main(["--install"]))'])
    host.stop_libvirtd()
    host.start_libvirtd()


def configure_hook(host, **options):
    """Write the hook's configuration; none: remove it."""
    path = host.path('etc/nova-vqos/hook.conf')
    if not options:
        if os.path.exists(path):
            os.unlink(path)
        return
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write('[hook]\n')
        for name, value in options.items():
            stream.write(f'{name} = {value}\n')


def profile_path(host):
    """:returns: where a host's profile is, on the machine."""
    return host.path('etc/nova-vqos/profile.yaml')


def store_profile(host, coefficient):
    """Give a host a profile, as if it had been measured."""
    profiles.store(make_profiles.make_profile(
        host.name,
        make_profiles.make_class(host.pcpus, coefficient, width=0.02),
        fingerprint=fingerprint.of_host(), measured_in='guest'),
        profile_path(host))


class Agent:
    """nova-vqos-agent, running on a host.

    :ivar process: the process
    :cvar more: of its configuration, groups of their own
    """

    more = ''

    def __init__(self, host, bus, **options):
        """:param options: of its configuration, by name."""
        self.host = host
        self._config = host.path('etc/nova-vqos/nova-vqos.conf')
        with open(self._config, 'w', encoding='utf-8') as stream:
            stream.write(
                f'[DEFAULT]\nhost = {host.name}\ntransport_url = {bus}\n'
                'debug = true\n'
                'default_log_levels = oslo_messaging=INFO,amqp=INFO\n'
                f'[vqos_agent]\ntick_interval_s = {TICK_S}\n'
                'heartbeat_interval_s = 0.5\n' + ''.join(
                    f'{name} = {value}\n'
                    for name, value in options.items()) + self.more)
        # The sign of life of one that was killed would be taken for ours.
        if os.path.exists(self._state_path):
            os.unlink(self._state_path)
        self.process = host.popen(self.argv, log=f'agent-{host.name}')
        self._log_start = os.path.getsize(self.process.log)

    @property
    def argv(self):
        # So that SIGABRT makes it say where each of its threads is.
        return [sys.executable, '-X', 'faulthandler', '-m',
                'nova_vqos.cmd.agent', '--config-file', self._config]

    @property
    def _state_path(self):
        return self.host.path('run/nova-vqos/agent.json')

    def state(self):
        """:returns: its last sign of life, {} if there is none."""
        try:
            with open(self._state_path, encoding='utf-8') as stream:
                return json.load(stream)
        except FileNotFoundError:
            return {}

    def log(self):
        """:returns: what it has logged so far."""
        with open(self.process.log, encoding='utf-8') as stream:
            stream.seek(self._log_start)
            return stream.read()

    def stop(self):
        """End it as systemd would.

        :raises AssertionError: when it does not end
        """
        self.process.signal(signal.SIGTERM)
        if not self.process.wait(STOP_LIMIT_S):
            self.process.signal(signal.SIGABRT)
            assert self.process.wait(10)
            raise AssertionError(
                f'the agent did not end within {STOP_LIMIT_S} s of SIGTERM')

    def print_log(self):
        """Print what it has logged so far."""
        print(self.log())

    def wait_ready(self):
        """Wait until it looks after its host."""
        self.wait_connected(True)

    def wait_connected(self, connected):
        """Wait until it has reached libvirt, or has noticed its end."""
        process.wait_until(
            lambda: self.state().get('hypervisor_connected') is connected,
            LIMIT_S, f'the agent of {self.host.name}', log=self.process.log,
            alive=self.process.alive)


def start_bus(host):
    """Start a RabbitMQ on a host.

    :returns: its URL, from within the lab
    """
    directory = host.path('rabbitmq')
    os.makedirs(directory, exist_ok=True)
    with open(f'{directory}/rabbitmq.conf', 'w', encoding='ascii') as stream:
        stream.write(
            'listeners.tcp.1 = 0.0.0.0:5672\nloopback_users = none\n'
            'default_user = vqos\ndefault_pass = vqos\n'
            'log.console = true\nlog.file = false\n'
            'disk_free_limit.absolute = 50MB\n')
    with open(f'{directory}/plugins', 'w', encoding='ascii') as stream:
        stream.write('[].\n')
    running = host.popen([_RABBITMQ], log='rabbitmq', env={
        'HOME': directory,
        'RABBITMQ_NODENAME': 'vqos@localhost',
        'RABBITMQ_MNESIA_BASE': directory,
        'RABBITMQ_LOG_BASE': directory,
        'RABBITMQ_PID_FILE': f'{directory}/pid',
        'RABBITMQ_CONFIG_FILE': f'{directory}/rabbitmq.conf',
        'RABBITMQ_CONF_ENV_FILE': '/dev/null',
        'RABBITMQ_ENABLED_PLUGINS_FILE': f'{directory}/plugins',
        'ERL_EPMD_ADDRESS': '127.0.0.1',
        # One scheduler that does not spin: there is little CPU to spare.
        'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS':
            '+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none',
    })
    process.wait_until(
        lambda: host.run(
            [sys.executable, '-I', '-S', '-c',
             'import socket; socket.create_connection(("127.0.0.1", 5672))'],
            check=False).returncode == 0,
        LIMIT_S, 'the message bus', log=running.log, alive=running.alive,
        interval_s=0.3)
    return f'rabbit://vqos:vqos@{host.address}:5672/'


class Client:
    """Asks the agents over the real bus.

    All its work is done by one thread, which is in a network namespace where
    the bus can be reached; so is every thread that it starts.
    """

    def __init__(self, bus, network):
        """:param network: path of the network namespace."""
        self._bus = bus
        self._executor = futures.ThreadPoolExecutor(
            1, initializer=_enter_network, initargs=(network,))

    def __enter__(self):
        self._transport = self._executor.submit(self._connect).result()
        self._api = rpcapi.AgentAPI(self._transport)
        return self

    def __exit__(self, *_exception):
        self._executor.submit(self._transport.cleanup).result(LIMIT_S)
        self._executor.shutdown()

    def _connect(self):
        # NOTE: oslo.messaging registers the options of its tracing, which
        # every call reads, with this one alone.
        cfg.CONF([], default_config_files=[], default_config_dirs=[])
        return oslo_messaging.get_rpc_transport(cfg.CONF, self._bus)

    def ask(self, method, *arguments, **options):
        """Call a method of AgentAPI."""
        return self._executor.submit(
            getattr(self._api, method), *arguments, **options).result(LIMIT_S)

    def get_host(self, host):
        return self.ask('get_host', host.name)

    def get_server(self, host, guest):
        return self.ask('get_server', host.name, guest.uuid)

    def list_servers(self, host):
        """:returns: what the agent of a host tells of servers, by UUID."""
        return {server['server_uuid']: server for server in self.ask(
            'list_servers', host.name)['servers']}

    def call(self, host, method, timeout=10, **arguments):
        """Call anything, as a client that nobody has checked would."""
        def work():
            target = oslo_messaging.Target(
                exchange='nova_vqos', topic='vqos-agent', version='1.0',
                server=host.name)
            raw = oslo_messaging.get_rpc_client(
                self._transport, target, retry=0,
                serializer=oslo_messaging.NoOpSerializer())
            return raw.prepare(timeout=timeout).call({}, method, **arguments)
        return self._executor.submit(work).result(LIMIT_S)

    def submit(self, work, *arguments):
        """Run something in the bus's network."""
        return self._executor.submit(work, *arguments).result(LIMIT_S)


def _enter_network(path):
    libc = ctypes.CDLL(None, use_errno=True)
    # os.setns comes with Python 3.12. It moves this thread alone.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f'entering {path}')
    finally:
        os.close(handle)
