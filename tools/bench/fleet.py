#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What it takes to ask all agents, with nova-vqos-manage and one by one.

Starts a RabbitMQ of its own on loopback, and the agents of many hosts in a
few processes: real RPC servers, managers and loops; the hosts below them are
the unit tests' fakes, with a few servers each. Then times ``nova-vqos-manage
host list`` as a whole process, with its hosts named and with those that a
stand-in for Nova lists, and the same hosts asked one by one; and ``policy
push`` and ``policy status`` with the flavors of that stand-in, with the bytes
that crossed loopback meanwhile, to the bus and from it. Then a part of the
agents is killed, and ``host list`` is timed once more. Removes everything::

    tools/bench/fleet.py --hosts 1000 --flavors 500 --dead 20

Fails where a ``host list`` or a push with all agents alive takes longer than
the aim. A Python that runs fifty agents is slower to answer than one agent on
a host of its own: the figures are upper bounds.
"""

import argparse
from collections.abc import Callable, Iterator
import contextlib
from http import server as http_server
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import typing as ty
import uuid

import against_itself

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP))

from nova_vqos import policy  # noqa: E402
from nova_vqos.tests.fixtures import rabbitmq  # noqa: E402

AGENTS = TOP / 'tools' / 'bench' / 'fleet_agents.py'
# Of a host list, of so many hosts; and of a push.
AIM_S, AIM_HOSTS, PUSH_AIM_S = 6.0, 1000, 20.0
HOSTS_PER_PROCESS = 50
ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--hosts', type=int, default=200)
    parser.add_argument('--dead', type=int, default=20,
                        help='that are killed (default %(default)s)')
    parser.add_argument('--servers', type=int, default=10,
                        help='on each host (default %(default)s)')
    parser.add_argument('--flavors', type=int, default=100,
                        help='that are pushed (default %(default)s)')
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args()
    with (tempfile.TemporaryDirectory(prefix='nova-vqos-fleet-') as directory,
          rabbitmq.running() as url):
        report = measure(pathlib.Path(directory), url, options)
    print(f'load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs')
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1))
    aim_s = AIM_S * max(1.0, options.hosts / AIM_HOSTS)
    slow = [(name, limit_s) for name, limit_s in (
        ('named_s', aim_s), ('by_nova_s', aim_s), ('push_s', PUSH_AIM_S),
        ('push_again_s', PUSH_AIM_S)) if report[name] > limit_s]
    for name, limit_s in slow:
        print(f'missed: {name} {report[name]:.2f}, aim {limit_s:g}')
    return 1 if slow else 0


def measure(directory: pathlib.Path, url: str,
            options: argparse.Namespace) -> dict[str, ty.Any]:
    names = [f'compute{number:03}' for number in range(options.hosts)]
    dead = names[:options.dead]
    config = directory / 'nova-vqos.conf'
    config.write_text(f'[DEFAULT]\ntransport_url = {url}\n')
    config.chmod(0o600)
    report: dict[str, ty.Any] = {}
    with (agents(config, dead, options) as doomed,
          agents(config, names[options.dead:], options),
          nova(names, options.flavors) as environment):
        named = [f'--host={name}' for name in names]
        # The first answer of an agent connects it to the bus once more.
        report['first_s'] = host_list(config, named, options.hosts)
        each_s = repeat(config, named, options.hosts)
        report['named_each_s'] = each_s
        report['named_s'] = statistics.median(each_s)
        report['by_nova_s'] = statistics.median(
            repeat(config, [], options.hosts, environment))
        report['one_by_one_s'] = one_by_one(config, names)
        for name, command in (('push', 'push'), ('push_again', 'push'),
                              ('status', 'status')):
            before = loopback_bytes()
            report[f'{name}_s'] = run(
                config, ['policy', command], options.hosts,
                lambda row: row['state'] != 'no answer', environment)
            report[f'{name}_bytes'] = loopback_bytes() - before
        for process in doomed:
            process.kill()
            process.wait()
        alive = options.hosts - options.dead
        report['dead_s'] = statistics.median(
            repeat(config, named, alive, rounds=2))
        report['dead_one_by_one_s'] = one_by_one(config, names)
    say(report, options)
    return report


def say(report: dict[str, ty.Any], options: argparse.Namespace) -> None:
    print(f'host list of {options.hosts} hosts with {options.servers} '
          'servers each, seconds for the whole process')
    for what, name in (('first time', 'first_s'), ('hosts named', 'named_s'),
                       ('hosts from Nova', 'by_nova_s')):
        print(f'  {what:28} {report[name]:7.2f}')
    print(f'  {"asked one by one":28} {report["one_by_one_s"]:7.2f}  '
          f'{report["one_by_one_s"] / report["named_s"]:.1f} times as long')
    print('  ' + against_itself.line('hosts named', report['named_each_s']))
    for what, name in (('policy push', 'push'), ('once more', 'push_again'),
                       ('policy status', 'status')):
        print(f'  {what:28} {report[f"{name}_s"]:7.2f}  '
              f'{options.flavors} flavors, '
              f'{report[f"{name}_bytes"] / 1e6:.1f} MB')
    print(f'with {options.dead} of them dead')
    print(f'  {"hosts named":28} {report["dead_s"]:7.2f}')
    print(f'  {"asked one by one":28} {report["dead_one_by_one_s"]:7.2f}  '
          f'{report["dead_one_by_one_s"] / report["dead_s"]:.1f} '
          'times as long')


def repeat(config: pathlib.Path, arguments: list[str], answers: int,
           environment: dict[str, str] | None = None,
           rounds: int = ROUNDS) -> list[float]:
    """:returns: seconds, of some rounds"""
    return [host_list(config, arguments, answers, environment)
            for _ in range(rounds)]


def host_list(config: pathlib.Path, arguments: list[str], answers: int,
              environment: dict[str, str] | None = None) -> float:
    """Run it once.

    :param answers: that have to be in what it prints
    :returns: seconds
    """
    return run(config, ['host', 'list', *arguments], answers,
               lambda row: row['agent'] != 'no answer', environment)


def run(config: pathlib.Path, arguments: list[str], answers: int,
        is_answer: Callable[[dict[str, object]], bool],
        environment: dict[str, str] | None = None) -> float:
    """Run nova-vqos-manage once.

    :param answers: that have to be in what it prints
    :returns: seconds
    """
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, '-m', 'nova_vqos.cmd.manage.app', '--config-file',
         str(config), *arguments, '-f', 'json'],
        capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': str(TOP), **(environment or {})},
        check=False)
    took_s = time.monotonic() - began_s
    rows = json.loads(done.stdout) if done.stdout else []
    found = sum(map(is_answer, rows))
    if found != answers:
        print(f'{found} of {answers} answered: {done.stderr}')
    return took_s


def loopback_bytes() -> int:
    """All that was sent over loopback so far."""
    path = pathlib.Path('/sys/class/net/lo/statistics/tx_bytes')
    return int(path.read_text())


def one_by_one(config: pathlib.Path, names: list[str]) -> float:
    """Ask in turn, as a loop of single calls would; in a process of its own.

    :returns: seconds, of the process as a whole
    """
    began_s = time.monotonic()
    subprocess.run([sys.executable, str(AGENTS), 'ask', str(config), *names],
                   env={**os.environ, 'PYTHONPATH': str(TOP)}, check=True)
    return time.monotonic() - began_s


@contextlib.contextmanager
def agents(config: pathlib.Path, names: list[str],
           options: argparse.Namespace
           ) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the agents of hosts, some in each process."""
    with contextlib.ExitStack() as stack:
        started = []
        for first in range(0, len(names), HOSTS_PER_PROCESS):
            process = subprocess.Popen(
                [sys.executable, str(AGENTS), 'serve', str(config),
                 str(options.servers), *names[first:first + HOSTS_PER_PROCESS]
                 ], stdout=subprocess.PIPE, text=True,
                env={**os.environ, 'PYTHONPATH': str(TOP)})
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            if process.stdout.readline() != 'ready\n':
                raise SystemExit('the agents did not start')
        yield started


@contextlib.contextmanager
def nova(names: list[str], flavors: int) -> Iterator[dict[str, str]]:
    """A stand-in that knows compute services and flavors.

    :returns: the environment of one who asks it
    """
    services = [{'id': str(number), 'binary': 'nova-compute', 'host': name,
                 'status': 'enabled', 'state': 'up', 'zone': 'nova',
                 'updated_at': None, 'forced_down': False,
                 'disabled_reason': None}
                for number, name in enumerate(names)]
    page = [{'id': str(uuid.uuid4()), 'name': f'vqos.c4.m8.{number}',
             'vcpus': 4, 'ram': 8192,
             'extra_specs': {policy.UNITS_KEY: str(60 + number),
                             'vqos:quantum_class': 'auto',
                             'vqos:dd_billing': 'account'}}
            for number in range(flavors)]

    class Handler(http_server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if 'os-services' in self.path:
                self._answer({'services': services})
            elif 'flavors' in self.path:
                # A second page is asked for, and empty.
                self._answer({'flavors': [] if 'marker' in self.path
                              else page})
            else:
                self._answer({'version': VERSION})

        def _answer(self, document: dict[str, object]) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    with http_server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f'http://127.0.0.1:{web.server_address[1]}/v2.1'
        VERSION['links'] = [{'rel': 'self', 'href': url}]
        try:
            yield {'OS_AUTH_TYPE': 'none', 'OS_ENDPOINT': url}
        finally:
            web.shutdown()


VERSION = {'id': 'v2.1', 'status': 'CURRENT', 'version': '2.96',
           'min_version': '2.1'}


if __name__ == '__main__':
    sys.exit(main())
