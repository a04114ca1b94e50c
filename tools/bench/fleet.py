#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What it takes to ask all agents, with nova-vqos-manage and one by one.

Starts a RabbitMQ of its own on loopback, and the agents of many hosts in a
few processes: real RPC servers, managers and loops; the hosts below them are
the unit tests' fakes, with a few servers each. Then times ``nova-vqos-manage
host list`` as a whole process, with its hosts named and with those that a
stand-in for Nova lists, and the same hosts asked one by one. Then a part of
the agents is killed, and it is timed once more. Removes everything::

    tools/bench/fleet.py --hosts 200 --dead 20

Fails where a ``host list`` with all agents alive takes longer than the aim.
A Python that runs fifty agents is slower to answer than one agent on a host
of its own: the figures are upper bounds.
"""

import argparse
from collections.abc import Iterator
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

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP))

from nova_vqos.tests.fixtures import rabbitmq  # noqa: E402

AGENTS = TOP / 'tools' / 'bench' / 'fleet_agents.py'
AIM_S = 3.0
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
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args()
    with (tempfile.TemporaryDirectory(prefix='nova-vqos-fleet-') as directory,
          rabbitmq.running() as url):
        report = measure(pathlib.Path(directory), url, options)
    print(f'load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs')
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1))
    slow = [name for name in ('named_s', 'by_nova_s') if report[name] > AIM_S]
    for name in slow:
        print(f'missed: {name} {report[name]:.2f}, aim {AIM_S:g}')
    return 1 if slow else 0


def measure(directory: pathlib.Path, url: str,
            options: argparse.Namespace) -> dict[str, float]:
    names = [f'compute{number:03}' for number in range(options.hosts)]
    dead = names[:options.dead]
    config = directory / 'nova-vqos.conf'
    config.write_text(f'[DEFAULT]\ntransport_url = {url}\n')
    config.chmod(0o600)
    report = {}
    with (agents(config, dead, options) as doomed,
          agents(config, names[options.dead:], options),
          nova(names) as environment):
        named = [f'--host={name}' for name in names]
        # The first answer of an agent connects it to the bus once more.
        report['first_s'] = host_list(config, named, options.hosts)
        report['named_s'] = repeat(config, named, options.hosts)
        report['by_nova_s'] = repeat(config, [], options.hosts, environment)
        report['one_by_one_s'] = one_by_one(config, names)
        for process in doomed:
            process.kill()
            process.wait()
        alive = options.hosts - options.dead
        report['dead_s'] = repeat(config, named, alive, rounds=2)
        report['dead_one_by_one_s'] = one_by_one(config, names)
    say(report, options)
    return report


def say(report: dict[str, float], options: argparse.Namespace) -> None:
    print(f'host list of {options.hosts} hosts with {options.servers} '
          'servers each, seconds for the whole process')
    for what, name in (('first time', 'first_s'), ('hosts named', 'named_s'),
                       ('hosts from Nova', 'by_nova_s')):
        print(f'  {what:28} {report[name]:7.2f}')
    print(f'  {"asked one by one":28} {report["one_by_one_s"]:7.2f}  '
          f'{report["one_by_one_s"] / report["named_s"]:.1f} times as long')
    print(f'with {options.dead} of them dead')
    print(f'  {"hosts named":28} {report["dead_s"]:7.2f}')
    print(f'  {"asked one by one":28} {report["dead_one_by_one_s"]:7.2f}  '
          f'{report["dead_one_by_one_s"] / report["dead_s"]:.1f} '
          'times as long')


def repeat(config: pathlib.Path, arguments: list[str], answers: int,
           environment: dict[str, str] | None = None,
           rounds: int = ROUNDS) -> float:
    """:returns: the median of some rounds"""
    return statistics.median(
        host_list(config, arguments, answers, environment)
        for _ in range(rounds))


def host_list(config: pathlib.Path, arguments: list[str], answers: int,
              environment: dict[str, str] | None = None) -> float:
    """Run it once.

    :param answers: that have to be in what it prints
    :returns: seconds
    """
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, '-m', 'nova_vqos.cmd.manage.app', '--config-file',
         str(config), 'host', 'list', '-f', 'json', *arguments],
        capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': str(TOP), **(environment or {})},
        check=False)
    took_s = time.monotonic() - began_s
    rows = json.loads(done.stdout) if done.stdout else []
    found = sum(row['agent'] != 'no answer' for row in rows)
    if found != answers:
        print(f'{found} of {answers} answered: {done.stderr}')
    return took_s


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
def nova(names: list[str]) -> Iterator[dict[str, str]]:
    """A stand-in that knows compute services, and how to reach it.

    :returns: the environment of one who asks it
    """
    services = [{'id': str(number), 'binary': 'nova-compute', 'host': name,
                 'status': 'enabled', 'state': 'up', 'zone': 'nova',
                 'updated_at': None, 'disabled_reason': None}
                for number, name in enumerate(names)]

    class Handler(http_server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({'services': services} if 'os-services' in self.path
                         else {'version': VERSION})

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
