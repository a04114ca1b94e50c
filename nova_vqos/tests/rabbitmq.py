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

"""A RabbitMQ of one's own on loopback, gone afterwards."""

from collections.abc import Iterator
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time

SERVER = '/usr/lib/rabbitmq/bin/rabbitmq-server'
USER = 'vqos'
PASSWORD = 'not-so-secret'

_START_LIMIT_S = 180
_STOP_LIMIT_S = 60


@contextlib.contextmanager
def running(prefix: str = 'nova-vqos-bus-') -> Iterator[str]:
    """Run one.

    Its directory, its ports and its name are its own, and so is its epmd.

    :param prefix: of the name of its directory
    :returns: its transport URL
    :raises TimeoutError: when it does not start; its output is in the message
    """
    with tempfile.TemporaryDirectory(prefix=prefix) as directory:
        port, distribution_port, epmd_port = free_ports(3)
        environment = _environment(directory, port, distribution_port,
                                   epmd_port)
        log = os.path.join(directory, 'log')
        with open(log, 'wb') as output:
            server = subprocess.Popen(
                [SERVER], env=environment, stdout=output,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True)
        try:
            _wait_listening(port, server, log)
            yield f'rabbit://{USER}:{PASSWORD}@127.0.0.1:{port}/'
        finally:
            _end(server)
            # It daemonises; only the one of this port is asked to end.
            subprocess.run(['epmd', '-port', str(epmd_port), '-kill'],
                           env=environment, capture_output=True, check=False)


def free_ports(number: int) -> list[int]:
    """Ports of loopback that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket())
                   for _ in range(number)]
        for one in sockets:
            one.bind(('127.0.0.1', 0))
        return [one.getsockname()[1] for one in sockets]


def _environment(directory: str, port: int, distribution_port: int,
                 epmd_port: int) -> dict[str, str]:
    with open(f'{directory}/rabbitmq.conf', 'w', encoding='ascii') as stream:
        stream.write(
            f'listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\n'
            f'default_user = {USER}\ndefault_pass = {PASSWORD}\n'
            'log.console = true\nlog.file = false\n'
            'disk_free_limit.absolute = 50MB\n')
    with open(f'{directory}/plugins', 'w', encoding='ascii') as stream:
        stream.write('[].\n')
    return {
        'PATH': os.environ['PATH'], 'HOME': directory,
        'RABBITMQ_NODENAME': f'vqos{port}@localhost',
        'RABBITMQ_MNESIA_BASE': directory, 'RABBITMQ_LOG_BASE': directory,
        'RABBITMQ_PID_FILE': f'{directory}/pid',
        'RABBITMQ_CONFIG_FILE': f'{directory}/rabbitmq.conf',
        'RABBITMQ_CONF_ENV_FILE': '/dev/null',
        'RABBITMQ_ENABLED_PLUGINS_FILE': f'{directory}/plugins',
        'RABBITMQ_DIST_PORT': str(distribution_port),
        'ERL_EPMD_ADDRESS': '127.0.0.1', 'ERL_EPMD_PORT': str(epmd_port),
        # Schedulers that do not spin: there may be little CPU to spare.
        'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS':
            '+sbwt none +sbwtdcpu none +sbwtdio none',
    }


def _wait_listening(port: int, server: subprocess.Popen[bytes],
                    log: str) -> None:
    end_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < end_s and server.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(('127.0.0.1', port), 1).close()
            return
        time.sleep(0.2)
    with open(log, encoding='utf-8', errors='replace') as stream:
        raise TimeoutError(f'RabbitMQ did not start: {stream.read()[-2000:]}')


def _end(server: subprocess.Popen[bytes]) -> None:
    """End a server and what it started, all of its own session."""
    for number, limit_s in ((signal.SIGTERM, _STOP_LIMIT_S),
                            (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(limit_s)
            break
