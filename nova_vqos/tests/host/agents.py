# SPDX-License-Identifier: Apache-2.0
"""The parts of nova_vqos on a host, and the bus between them."""

import datetime
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types

import oslo_messaging

from nova_vqos import primitives
from nova_vqos.agent import rpcapi
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.quantum import probe_result
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.fixtures import rabbitmq
from nova_vqos.tests.host import guests
from nova_vqos_lab import netns
from nova_vqos_lab import paths
from nova_vqos_lab import process

LIMIT_S = 90
# As TimeoutStopSec of the unit.
STOP_LIMIT_S = 30
TICK_S = 0.25


def install_hook(host):
    """Install the hook on a host; libvirtd takes notice when it starts."""
    host.run([sys.executable, '-c',
              'from nova_vqos.hooks import libvirt; import sys; '
              'sys.exit(libvirt.main(["--install", "--trust", '
              f'"{paths.OWNER}"]))'])
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
    document.store(make_profiles.make_profile(
        host.name,
        make_profiles.make_class(host.pcpus, coefficient, width=0.02),
        fingerprint=fingerprint.of_host(), measured_in='guest'),
        profile_path(host))


#: Of all classes that have one: that of io is what the probe might choose.
SLICES_US = types.MappingProxyType({'io': 900, 'cache': 90_000})


def store_proof(host, slices_us=types.MappingProxyType({'cache': 90_000}),
                tick_us=4000):
    """Let it be as if the kernel had been seen to enforce some classes."""
    probe_result.store(probe_result.ProbeResult(
        kernel=os.uname().release, boot_id=probe_result.boot_id(),
        tick_us=tick_us,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(),
        outcomes={name: probe_result.Outcome(
            slice_us, float(slice_us), True,
            work_us=probe_result.LONG_WORKS_US[-1])
            for name, slice_us in slices_us.items()}),
        host.path('run/nova-vqos-probe/quantum.json'))


class Agent:
    """nova-vqos-agent, running on a host.

    :ivar process: the process
    :cvar more: of its configuration, groups of their own
    """

    more = ''

    def __init__(self, host, bus, environment=None, **options):
        """
        :param environment: variables on top of this process's own
        :param options: of its configuration, by name
        """
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
        # The heartbeat of a killed agent would look like ours.
        if os.path.exists(self._state_path):
            os.unlink(self._state_path)
        self.process = host.popen(self.argv, environment,
                                  log=f'agent-{host.name}')
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
        """:returns: its last heartbeat, {} if there is none."""
        try:
            with open(self._state_path, encoding='utf-8') as stream:
                return json.load(stream)
        except FileNotFoundError:
            return {}

    def silent_s(self):
        """:returns: the age of its last heartbeat"""
        return time.time() - os.path.getmtime(self._state_path)

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
    running = host.popen(
        [rabbitmq.SERVER], log='rabbitmq',
        env=rabbitmq.configure(directory, address='0.0.0.0'))
    process.wait_until(
        lambda: host.run(
            [sys.executable, '-I', '-S', '-c',
             'import socket; socket.create_connection(("127.0.0.1", 5672))'],
            check=False).returncode == 0,
        LIMIT_S, 'the message bus', log=running.log, alive=running.alive,
        interval_s=0.3)
    return (f'rabbit://{rabbitmq.USER}:{rabbitmq.PASSWORD}'
            f'@{host.address}:5672/')


class Client:
    """Asks the agents over the real bus.

    All its work is done by a process in a network namespace where the bus can
    be reached, see bus_client. What it raises is raised here.
    """

    def __init__(self, bus, network):
        """:param network: name of the network namespace."""
        # Of one thread's call at a time.
        self._lock = threading.Lock()
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                ['nsenter', f'--net={netns.Network.path(network)}', '--',
                 sys.executable, '-W', 'ignore', '-m',
                 'nova_vqos.tests.host.bus_client', bus,
                 str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
                start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self._pipe.close()
        try:
            self._process.wait(LIMIT_S)
        finally:
            self._process.kill()

    def _do(self, name, *arguments, **options):
        """:returns: what a method of bus_client.Caller does"""
        with self._lock:
            self._pipe.send((name, arguments, options))
            if not self._pipe.poll(LIMIT_S):
                # Its answer would be taken for that of the next call.
                self._process.kill()
                raise TimeoutError(f'{name}{arguments}: no answer')
            is_done, answer = self._pipe.recv()
        if not is_done:
            raise answer
        return answer

    def ask(self, method, *arguments, **options):
        """Call a method of AgentAPI."""
        return self._do('ask', method, *arguments, **options)

    def get_host(self, host, timeout=10):
        return self._get(host, rpcapi.GET_HOST, timeout=timeout)

    def get_server(self, host, guest):
        return self._get(host, rpcapi.GET_SERVER, server_uuid=guest.uuid)

    def list_servers(self, host):
        """:returns: rows of the servers of a host, by UUID"""
        return {server['server_uuid']: server for server in self._get(
            host, rpcapi.LIST_SERVERS)['servers']}

    def _get(self, host, method, **options):
        return primitives.to_primitives(
            self.ask('call', host.name, method, **options))

    def call(self, host, method, timeout=10, **arguments):
        """Call anything, as a client that nobody has checked would."""
        return self._do('call', host.name, method, timeout, arguments)

    def submit(self, work, *arguments):
        """Run something in the bus's network: a function of a module."""
        return self._do('submit', work, *arguments)

    def lift_limits(self, guest):
        """Have nothing limit a server's I/O for ten seconds.

        As nova-compute does, which goes on where it is not done in three.
        """
        process.wait_until(
            lambda: self.ask('lift_limits', guest.host.name, guest.uuid),
            guests.LIMIT_S, f'limits of {guest.name} to be lifted')

    def wait_reachable(self, host):
        def answers():
            try:
                return self.get_host(host, timeout=2)
            except oslo_messaging.MessagingTimeout:
                return None
        process.wait_until(answers, guests.LIMIT_S, 'the agent to answer')

    def wait_right(self, guest, host=None):
        """Wait until an agent finds that a guest has the right cap."""
        host = host or guest.host
        process.wait_until(
            lambda: guest.uuid in self.get_host(host)['servers']
            and self.get_server(host, guest)['right'], guests.LIMIT_S,
            f'the agent to find {guest.name} right')

    def wait_tampering(self, guest, found):
        """Wait until a change by others was seen and undone.

        :param found: part of what it left in the cgroup
        """
        return process.wait_until(
            lambda: self.tampering(guest, found), guests.LIMIT_S,
            f'a tampering of {found}')

    def tampering(self, guest, found):
        """:returns: a change by others that was undone, None if there is none

        :param found: part of what it left in the cgroup
        """
        return next((one for one in self.get_server(
            guest.host, guest)['tamperings'] if found in one['found']
            and one['restored_at'] is not None), None)
