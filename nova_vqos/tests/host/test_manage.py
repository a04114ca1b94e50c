# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage, real agents and a real message bus."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from nova_vqos.tests.fixtures import rabbitmq
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos_lab import process

ON = ('--host', 'fast', '--host', 'slow')
# A bound alone: agents that live answer before. On a busy machine two seconds
# were too few.
TIMEOUT_S = 30
# Where some do not live; and where none does.
SOME_DEAD_TIMEOUT_S = 10
ALL_DEAD_TIMEOUT_S = 2
# What Python and the bus take, on a machine with other things to do.
SLACK_S = 20
SECRET = 'hush-hush'


@pytest.fixture
def config(lab, bus):
    """Path of a configuration, as hosts see it; written with another URL."""
    def write(url=bus, timeout_s=TIMEOUT_S):
        path = lab.fast.path('etc/nova-vqos/manage.conf')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(f'[DEFAULT]\ntransport_url = {url}\n'
                         f'[vqos_manage]\ntimeout_s = {timeout_s}\n')
        return path
    return write


@pytest.fixture
def manage(lab, config):
    """Runs the program on a host; returns status, rows and what it said."""
    def run(*arguments, **options):
        done = lab.fast.run(argv(config(**options), *arguments), check=False)
        assert 'Traceback' not in done.stderr
        assert rabbitmq.PASSWORD not in done.stderr + done.stdout
        return done
    return run


def argv(path, *arguments):
    return [sys.executable, '-m', 'nova_vqos.cmd.manage.app', '--config-file',
            path, *arguments]


def rows(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wait_alive(manage, hosts=ON):
    # What is sent before its queue exists is lost.
    process.wait_until(
        lambda: manage('host', 'list', *hosts,
                       timeout_s=ALL_DEAD_TIMEOUT_S).returncode == 0,
        guests.LIMIT_S, 'the agents to answer')


def test_hosts_and_servers_are_told_of(lab, agent_of, guest_on, manage):
    for host in lab.hosts:
        agent_of(host)
    guest = guest_on(lab.slow, specs=guests.server(40))
    guest.wait_cap((40_000, 50_000))
    wait_alive(manage)
    fast, slow = rows(manage('host', 'list', '-f', 'json', *ON))
    assert (fast['host'], fast['agent'], fast['coefficient']) == (
        'fast', 'alive', 1.0)
    assert (slow['host'], slow['agent'], slow['coefficient']) == (
        'slow', 'alive', 0.5)
    assert (fast['used_cu'], slow['used_cu']) == (0, 40)
    assert slow['servers'] == [guest.uuid]
    (server,) = rows(manage('server', 'list', '-f', 'json', *ON))
    assert (server['server_uuid'], server['host'], server['entitled_cu'],
            server['right']) == (guest.uuid, 'slow', 40, True)
    shown = rows(manage('server', 'show', guest.uuid, '-f', 'json', *ON))
    assert shown['host'] == 'slow'
    compared = rows(manage('calibration', 'report', '-f', 'json', *ON))
    assert [(row['host'], row['group']) for row in compared] == [
        ('slow', 1), ('fast', 2)]


@pytest.mark.measured
def test_dead_agents_cost_one_timeout(lab, agent_of, manage):
    agent_of(lab.fast)
    dead = agent_of(lab.slow)
    wait_alive(manage)
    dead.process.signal(signal.SIGKILL)
    assert dead.process.wait(10)
    # Hosts that never had an agent have no queue; that of slow is still there.
    others = [f'--host=none{number}' for number in range(50)]
    began_s = time.monotonic()
    done = manage('host', 'list', '-f', 'json', *ON, *others,
                  timeout_s=SOME_DEAD_TIMEOUT_S)
    assert time.monotonic() - began_s < SOME_DEAD_TIMEOUT_S + SLACK_S
    assert done.returncode == 1
    found = {row['host']: row['agent'] for row in json.loads(done.stdout)}
    assert found.pop('fast') == 'alive'
    assert set(found.values()) == {'no answer'}
    assert done.stderr.startswith('51 of 52 hosts gave no answer: ')
    assert done.stderr.count('\n') == 1
    done = manage('host', 'show', 'slow', timeout_s=ALL_DEAD_TIMEOUT_S)
    assert (done.returncode, done.stderr) == (
        1, f'host slow: no answer within {ALL_DEAD_TIMEOUT_S} s\n')
    done = manage('host', 'show', 'none1', timeout_s=ALL_DEAD_TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.startswith('host none1: ')
    assert done.stderr.count('\n') == 1


@pytest.mark.measured
@pytest.mark.parametrize(('url', 'text'), [
    (f'rabbit://vqos:{SECRET}@{{host}}:5672/', 'refused'),
    (f'rabbit://vqos:{SECRET}@{{host}}:1/', 'refused'),
    (f'rabbit://vqos:{SECRET}@192.0.2.1:5672/', ''),
    (f'rabbit://vqos:{SECRET}@nonesuch.invalid:5672/', ''),
])
def test_a_bus_that_cannot_be_used_is_one_line(lab, manage, url, text):
    began_s = time.monotonic()
    done = manage('host', 'list', *ON, url=url.format(host=lab.fast.address),
                  timeout_s=ALL_DEAD_TIMEOUT_S)
    assert time.monotonic() - began_s < ALL_DEAD_TIMEOUT_S + SLACK_S
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr.startswith('the bus of cell default '), done.stderr
    assert text in done.stderr.lower()
    assert done.stderr.count('\n') == 1, done.stderr
    assert SECRET not in done.stderr


@pytest.mark.parametrize('end', ['q', '\x03', signal.SIGTERM])
def test_top_gives_the_terminal_back(lab, agent_of, manage, config, end):
    agent_of(lab.fast)
    wait_alive(manage, ('--host', 'fast'))
    controller, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    # The terminal is its own: what is pressed there is for nobody else, such
    # as who entered the host for it. Shells have what runs in the background
    # ignore SIGINT, as this run may be.
    running = subprocess.Popen(
        lab.fast._enter([], [
            'setsid', '--ctty', 'env', '--default-signal=INT', *argv(
                config(), 'server', 'top', '--host', 'fast',
                '--interval', '1')]),
        stdin=terminal, stdout=terminal, stderr=terminal,
        env={**os.environ, 'TERM': 'xterm', 'LINES': '24', 'COLUMNS': '100'})
    try:
        seen = read_until(controller, 'promised 0 CU')
        assert '\x1b[?1049h' in seen
        # Only what changed is drawn: the time.
        read_until(controller, '\x1b[1;')
        if isinstance(end, str):
            os.write(controller, end.encode())
        else:
            os.kill(innermost(running.pid), end)
        seen = read_until(controller, '\x1b[?1049l')
        assert running.wait(agents.STOP_LIMIT_S) is not None
        assert 'Traceback' not in seen
        assert termios.tcgetattr(terminal)[:4] == before[:4]
    finally:
        running.kill()
        running.wait()
        os.close(controller)
        os.close(terminal)


def innermost(pid):
    """:returns: the last of a chain of children: what a host was entered for
    """
    with open(f'/proc/{pid}/task/{pid}/children', encoding='ascii') as stream:
        children = stream.read().split()
    return innermost(int(children[0])) if children else pid


def read_until(controller, text):
    """:returns: what was written to the terminal up to a text"""
    seen = ''
    end_s = time.monotonic() + guests.LIMIT_S
    while text not in seen:
        assert time.monotonic() < end_s, seen
        if select.select([controller], [], [], 1)[0]:
            seen += os.read(controller, 65536).decode(errors='replace')
    return seen
