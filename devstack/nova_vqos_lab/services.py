# SPDX-License-Identifier: Apache-2.0
"""The controller's services: database, bus, and the APIs under uWSGI.

All of them run in the controller's network namespace: their ports are their
own, whatever the machine already runs, and cannot be reached from outside
the lab.
"""

from collections.abc import Mapping
import json
import os
import shutil
import socket
import sys
import typing as ty
import urllib.error
import urllib.request

import kombu
import pymysql

from nova_vqos_lab import config
from nova_vqos_lab import daemons
from nova_vqos_lab import paths
from nova_vqos_lab import process

BIN = os.path.join(sys.prefix, 'bin')
_MYSQL_SOCKET = os.path.join(paths.RUN, 'mysql.sock')
_WSGI = {
    'keystone': 'keystone.wsgi.api', 'placement': 'placement.wsgi.api',
    'glance': 'glance.wsgi.api', 'nova': 'nova.wsgi.osapi_compute',
    'neutron': 'nova_vqos_lab.neutron_stub',
    'metadata': 'nova.wsgi.metadata',
}
# The directory that each finds its configuration in.
_WSGI_ETC = {'nova': 'nova-api', 'metadata': 'nova-metadata'}

MARIADB = daemons.Daemon('mariadb')
RABBITMQ = daemons.Daemon('rabbitmq')
CONDUCTOR = daemons.Daemon('nova-conductor')
SCHEDULER = daemons.Daemon('nova-scheduler')
APIS = {name: daemons.Daemon(f'{name}-api') for name in _WSGI
        if name != 'metadata'}
# In the order of their start.
ALL = (MARIADB, RABBITMQ, *APIS.values(), CONDUCTOR, SCHEDULER)
# What not each cloud has, see vendordata.py and watcher.py.
METADATA = daemons.Daemon('metadata-api')
VENDORDATA = daemons.Daemon('nova-vqos-vendordata')
WATCHER_API = daemons.Daemon('watcher-api')
WATCHER_ENGINE = daemons.Daemon('watcher-decision-engine')
WATCHER_APPLIER = daemons.Daemon('watcher-applier')
ON_REQUEST = (METADATA, VENDORDATA, WATCHER_API, WATCHER_ENGINE,
              WATCHER_APPLIER)


def start_mariadb() -> None:
    """Start a database server of our own, with one database per service.

    What is committed outlives a killed server, not a machine without power:
    that would cost seconds, and the data is removed with the lab.
    """
    data = paths.data('mysql')
    if not os.path.isdir(os.path.join(data, 'mysql')):
        daemons.run('mariadb', [
            'mariadb-install-db', '--no-defaults', '--user=root',
            '--auth-root-authentication-method=normal',
            '--skip-test-db', f'--datadir={data}'])
    MARIADB.start([
        'mariadbd', '--no-defaults', '--user=root', f'--datadir={data}',
        f'--socket={_MYSQL_SOCKET}',
        f'--bind-address={config.CONTROLLER}', f'--port={config.MYSQL_PORT}',
        f'--pid-file={paths.RUN}/mariadbd.pid', '--skip-log-bin',
        '--innodb-flush-log-at-trx-commit=2', '--innodb-doublewrite=0',
        '--innodb-flush-method=nosync', '--performance-schema=OFF',
        '--max-connections=500', '--skip-name-resolve'])
    process.wait_until(_make_databases, 60, 'the database', log=MARIADB.log,
                       alive=MARIADB.alive)


def _make_databases() -> bool:
    try:
        connection = pymysql.connect(unix_socket=_MYSQL_SOCKET, user='root')
    except pymysql.err.OperationalError:
        return False
    with connection, connection.cursor() as cursor:
        for name in config.DATABASES:
            cursor.execute(f'CREATE DATABASE IF NOT EXISTS {name} '
                           'CHARACTER SET utf8mb3')
        cursor.execute("GRANT ALL ON *.* TO 'root'@'%%' IDENTIFIED BY %s",
                       (config.PASSWORD,))
    return True


def start_rabbitmq() -> None:
    """Start a broker of our own, below the lab's directory."""
    etc = paths.etc('rabbitmq')
    config.write(f'{etc}/rabbitmq.conf', '\n'.join((
        f'listeners.tcp.1 = {config.CONTROLLER}:{config.AMQP_PORT}',
        'default_user = nova', f'default_pass = {config.PASSWORD}',
        'loopback_users = none', 'log.console = true', 'log.file = false',
        # The lab needs little memory, the machine may have little.
        'vm_memory_high_watermark.absolute = 512MB',
        'disk_free_limit.absolute = 50MB', '')))
    config.write(f'{etc}/enabled_plugins', '[].\n')
    RABBITMQ.start([_rabbitmq_program('rabbitmq-server')],
                   env=_rabbitmq_environment())
    process.wait_until(lambda: _listens(config.AMQP_PORT), 90,
                       'the message bus', log=RABBITMQ.log,
                       alive=RABBITMQ.alive)


def queued() -> dict[str, int]:
    """:returns: messages that wait on the bus, by queue.

    Without queues that nobody reads and that expire by themselves: each
    client of oslo.messaging that was killed leaves some for half an hour.
    :raises process.LabError: when the broker does not answer
    """
    done = process.run(
        [_rabbitmq_program('rabbitmqctl'), '--quiet', '--formatter', 'json',
         'list_queues', 'name', 'messages_ready', 'consumers', 'arguments'],
        env=_rabbitmq_environment())
    return {one['name']: one['messages_ready']
            for one in json.loads(done.stdout)
            if one['consumers'] or not _expires(one['arguments'])}


def _expires(arguments: list[tuple[str, str, ty.Any]]) -> bool:
    return any(name == 'x-expires' for name, _type, _value in arguments)


def _rabbitmq_environment() -> dict[str, str]:
    return {
        'HOME': paths.data('rabbitmq'),
        'RABBITMQ_NODENAME': 'vqos@localhost',
        'RABBITMQ_MNESIA_BASE': paths.data('rabbitmq'),
        'RABBITMQ_LOG_BASE': paths.LOGS,
        'RABBITMQ_PID_FILE': f'{paths.RUN}/rabbitmq-server.pid',
        'RABBITMQ_CONFIG_FILE': f'{paths.etc("rabbitmq")}/rabbitmq.conf',
        'RABBITMQ_CONF_ENV_FILE': '/dev/null',
        'RABBITMQ_ENABLED_PLUGINS_FILE':
            f'{paths.etc("rabbitmq")}/enabled_plugins',
        'ERL_CRASH_DUMP': f'{paths.LOGS}/erl_crash.dump',
        'ERL_EPMD_ADDRESS': '127.0.0.1',
        # One scheduler thread that does not spin: the cores are measured.
        'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS':
            '+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none',
    }


def _rabbitmq_program(name: str) -> str:
    """:returns: one of the broker's scripts, not Debian's wrapper, which
    changes to the user and the directories of the machine's own server."""
    direct = f'/usr/lib/rabbitmq/bin/{name}'
    return direct if os.path.exists(direct) else shutil.which(name) or name


def _listens(port: int) -> bool:
    try:
        socket.create_connection((config.CONTROLLER, port), 1).close()
    except OSError:
        return False
    return True


def start_api(service: str) -> None:
    """Start one of the WSGI applications, and wait until it answers.

    :param service: a key of config.PORTS
    """
    daemon = METADATA if service == 'metadata' else APIS[service]
    program = 'nova' if daemon is METADATA else service
    start_wsgi(
        daemon, service, _WSGI[service], BIN,
        env={f'OS_{program.upper()}_CONFIG_DIR': paths.etc(
                 _WSGI_ETC.get(service, service)),
             # That of the lab's own Neutron, and of an earlier nova_vqos.
             'PYTHONPATH': os.pathsep.join(filter(None, (
                 os.path.dirname(os.path.dirname(__file__)),
                 os.environ.get('PYTHONPATH'))))})


def start_wsgi(daemon: daemons.Daemon, service: str, module: str,
               directory: str, *arguments: str,
               env: Mapping[str, str] | None = None) -> None:
    """Start a WSGI application, and wait until it answers.

    uWSGI closes each connection after its answer: unless it says so, clients
    that send the next request on it find it reset.

    :param service: a key of config.PORTS
    :param module: that has the application
    :param directory: of the program uwsgi
    :param arguments: more of uwsgi's
    :param env: variables on top of this process's own
    """
    daemon.start([
        f'{directory}/uwsgi', '--http-socket',
        f'{config.CONTROLLER}:{config.PORTS[service]}',
        '--module', f'{module}:application', '--master',
        '--processes', '1', '--threads', '6', '--enable-threads',
        '--lazy-apps', '--die-on-term', '--need-app', '--buffer-size',
        '65535', '--add-header', 'Connection: close',
        '--disable-logging', '--procname', f'vqos-{service}-api',
        *arguments], env=env)
    process.wait_until(lambda: _answers(service), 90, f'the {service} API',
                       log=daemon.log, alive=daemon.alive)


def _answers(service: str) -> bool:
    address = f'http://{config.CONTROLLER}:{config.PORTS[service]}/'
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(address, timeout=20).close()
    except urllib.error.HTTPError as exc:
        # Glance lists its versions with 300 Multiple Choices.
        return exc.code < 500
    except OSError:
        return False
    return True


def start_conductor() -> None:
    """Start nova-conductor, and wait until it reads its queue."""
    CONDUCTOR.start([f'{BIN}/nova-conductor', '--config-file',
                     f'{paths.etc("nova-conductor")}/nova.conf'])
    process.wait_until(lambda: _has_reader('conductor'), 90, 'nova-conductor',
                       log=CONDUCTOR.log, alive=CONDUCTOR.alive)


def _has_reader(queue: str) -> bool:
    with kombu.Connection(
            config.CONTROLLER, 'nova', config.PASSWORD,
            port=config.AMQP_PORT) as connection:
        try:
            found = connection.default_channel.queue_declare(
                queue, passive=True)
        except connection.channel_errors:
            return False
        return found.consumer_count > 0


def start_scheduler() -> None:
    """Start nova-scheduler."""
    SCHEDULER.start([f'{BIN}/nova-scheduler', '--config-file',
                     f'{paths.etc("nova-scheduler")}/nova.conf'])


def start_vendordata() -> None:
    """Start nova-vqos-vendordata, and wait until it answers."""
    VENDORDATA.start([f'{BIN}/nova-vqos-vendordata', '--config-file',
                      f'{paths.etc("vendordata")}/vendordata.conf'])
    process.wait_until(lambda: _answers('vendordata'), 90,
                       'nova-vqos-vendordata', log=VENDORDATA.log,
                       alive=VENDORDATA.alive)
