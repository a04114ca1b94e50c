#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether Placement sells more of a provider than there is.

Starts a MariaDB and a stock Placement of its own in a temporary directory, on
Unix sockets. In each round twelve clients claim 40 of 100 VCPU of a new
provider at the same moment, so that two of them fit. A client that is
answered 409 placement.concurrent_update tries again, like Nova: up to four
times. Prints for each setting how many rounds ended oversold, what was used
on average and at most, claims accepted and requests sent per round, and how
many claims per round Placement excused as no worse than before. Exits 1
unless the setting of nova_vqos, the last one, had no oversold round.

It imports nothing of nova_vqos, so that it also runs beside a Placement
alone: it needs mariadbd, uWSGI, PyMySQL and openstack-placement.
"""

import argparse
import contextlib
import getpass
import http.client
import importlib.metadata
import json
import os
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import typing
import uuid

import pymysql

CLIENTS = 12
CLAIM = 40
TOTAL = 100
# As the report client of Nova 34 does.
ATTEMPTS = 4
START_S = 60

APPLICATION = 'placement.wsgi.api'
ONE_ATTEMPT = '[placement]\nallocation_conflict_retry_count = 1\n'
#: In Placement's log, where a claim over the capacity is accepted.
EXCUSED = 'reduces existing overage'


class Setting(typing.NamedTuple):
    """A way to run Placement.

    :ivar isolation: of the database's transactions
    :ivar more: lines of placement.conf
    :ivar module: of the WSGI application
    """

    name: str
    isolation: str = 'REPEATABLE-READ'
    more: str = ''
    module: str = APPLICATION


SETTINGS = (
    Setting('as shipped'),
    Setting('READ COMMITTED', isolation='READ-COMMITTED'),
    Setting('mended', more=ONE_ATTEMPT, module='oversold_mended'),
    # Of allocation_conflict_retry_count.
    Setting('retry count 1', more=ONE_ATTEMPT),
)
CONF = """\
[DEFAULT]
log_file = {directory}/placement.log
[api]
auth_strategy = noauth2
[placement_database]
connection = mysql+pymysql://{user}@/placement?unix_socket={directory}/my.sock
sync_on_startup = True
{more}
"""


class Connection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path):
        super().__init__('localhost', timeout=START_S)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Placement:
    """A stock Placement, and requests to it."""

    def __init__(self, directory):
        self._path = f'{directory}/placement.sock'

    def request(self, method, path, body=None):
        """:returns: status and body of the answer"""
        with contextlib.closing(Connection(self._path)) as connection:
            connection.request(method, path, json.dumps(body), {
                'Content-Type': 'application/json', 'X-Auth-Token': 'admin',
                'OpenStack-API-Version': 'placement 1.36'})
            answer = connection.getresponse()
            text = answer.read()
        return answer.status, json.loads(text) if text else None

    def ask(self, *args):
        """:returns: the body of an answer without an error"""
        status, body = self.request(*args)
        if status >= 400:
            raise SystemExit(f'{args} was answered {status}: {body}')
        return body

    def claim(self, provider, consumer):
        """Claim as Nova does; :returns: how often, and whether it worked"""
        for attempt in range(ATTEMPTS):
            time.sleep(random.uniform(0, attempt * 0.2))
            status, body = self.request('PUT', f'/allocations/{consumer}', {
                'allocations': {provider: {'resources': {'VCPU': CLAIM}}},
                'project_id': 'p', 'user_id': 'u',
                'consumer_generation': None})
            if status < 400:
                return attempt + 1, True
            if (status != 409 or body['errors'][0]['code']
                    != 'placement.concurrent_update'):
                break
        return attempt + 1, False

    def round(self):
        """:returns: VCPU used, claims accepted, requests sent"""
        provider = str(uuid.uuid4())
        path = f'/resource_providers/{provider}'
        self.ask('POST', '/resource_providers', {
            'name': provider, 'uuid': provider})
        self.ask('PUT', f'{path}/inventories', {
            'resource_provider_generation': 0,
            'inventories': {'VCPU': {'total': TOTAL}}})
        together = threading.Barrier(CLIENTS)
        claims = []

        def claim():
            together.wait()
            claims.append(self.claim(provider, uuid.uuid4()))

        threads = [threading.Thread(target=claim) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        used = self.ask('GET', f'{path}/usages')['usages']['VCPU']
        return (used, sum(accepted for _, accepted in claims),
                sum(attempts for attempts, _ in claims))


@contextlib.contextmanager
def running(arguments, log, **environment):
    """A process that ends with the block."""
    with open(log, 'ab') as file:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            env=os.environ | environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_S)


def wait_until(answers, process, log):
    """Wait until a process answers.

    :param answers: returns whether it does; may raise OSError
    """
    end_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end_s:
        with contextlib.suppress(OSError, pymysql.err.OperationalError):
            if answers():
                return
        time.sleep(0.1)
    raise SystemExit(f'it does not start:\n{pathlib.Path(log).read_text()}')


@contextlib.contextmanager
def database(directory):
    """A MariaDB of our own, below a directory."""
    user = getpass.getuser()
    log = f'{directory}/mariadb.log'
    common = ('--no-defaults', f'--user={user}', f'--datadir={directory}/my')
    with open(log, 'ab') as file:
        subprocess.run(['mariadb-install-db', *common, '--skip-test-db',
                        '--auth-root-authentication-method=normal'],
                       check=True, stdout=file, stderr=file)
    with running(['mariadbd', *common, f'--socket={directory}/my.sock',
                  '--skip-networking', '--skip-log-bin',
                  '--innodb-flush-log-at-trx-commit=0',
                  '--general-log-file=general.log'], log) as process:
        wait_until(lambda: query(directory, 'SELECT 1'), process, log)
        yield


def query(directory, *statements):
    """:returns: the first row of the answer to the last statement"""
    with contextlib.closing(pymysql.connect(
            unix_socket=f'{directory}/my.sock', user='root')) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchone()


@contextlib.contextmanager
def placement(directory, setting):
    """A Placement on an empty database."""
    query(directory, 'DROP DATABASE IF EXISTS placement',
          'CREATE DATABASE placement CHARACTER SET utf8mb3',
          f"SET GLOBAL tx_isolation = '{setting.isolation}'")
    pathlib.Path(directory, 'placement.conf').write_text(CONF.format(
        directory=directory, user='root', more=setting.more))
    log = f'{directory}/uwsgi.log'
    api = Placement(directory)
    with running([
            os.path.join(os.path.dirname(sys.executable), 'uwsgi'),
            '--http-socket', f'{directory}/placement.sock', '--module',
            f'{setting.module}:application', '--master', '--processes', '1',
            '--threads', '6', '--lazy-apps', '--need-app', '--die-on-term',
            '--disable-logging', '--listen', '50', '--add-header',
            'Connection: close'], log, OS_PLACEMENT_CONFIG_DIR=directory,
            PYTHONPATH=os.path.dirname(os.path.abspath(__file__))
            ) as process:
        wait_until(lambda: api.request('GET', '/')[0] == 200, process, log)
        yield api


def measure(directory, setting, rounds):
    """Print a line; :returns: how many rounds ended oversold"""
    log = pathlib.Path(directory, 'placement.log')
    log.unlink(missing_ok=True)
    with placement(directory, setting) as api:
        used, accepted, requests = zip(
            *(api.round() for _ in range(rounds)), strict=True)
    oversold = sum(one > TOTAL for one in used)
    excused = log.read_text().count(EXCUSED)
    print(f'{setting.name:15} {oversold:3} of {rounds:2}'
          f' {statistics.mean(used):5.0f} {max(used):5}'
          f' {sum(accepted) / rounds:6.1f} {sum(requests) / rounds:8.1f}'
          f' {excused / rounds:7.1f}', flush=True)
    return oversold


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--rounds', type=int, default=20)
    parser.add_argument('--general-log', metavar='PATH',
                        help='write there all statements of the first setting')
    given = parser.parse_args()
    with (tempfile.TemporaryDirectory(prefix='oversold-') as directory,
            database(directory)):
        print('Placement', importlib.metadata.version('openstack-placement'),
              'MariaDB', *query(directory, 'SELECT VERSION()'))
        print(f'{CLIENTS} clients claim {CLAIM} of {TOTAL} each')
        print(f'{"setting":15} {"oversold":>9} {"used":>5} {"most":>5}'
              f' {"claims":>6} {"requests":>8} {"excused":>7}')
        for setting in SETTINGS:
            logged = given.general_log and setting is SETTINGS[0]
            query(directory,
                  f'SET GLOBAL general_log = {int(bool(logged))}')
            oversold = measure(directory, setting, given.rounds)
            if logged:
                shutil.copy(f'{directory}/my/general.log',
                            given.general_log)
    return bool(oversold)


if __name__ == '__main__':
    sys.exit(main())
