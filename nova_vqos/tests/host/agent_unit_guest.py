# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_agent_unit, whose PID 1 is systemd.

Upgrades a host whose agent was root: makes the agent's user and starts its
units, as the guide says. It prints one JSON object of what was then seen: the
test asserts on that. libvirt's own driver for tests stands for its daemon.
"""

import json
import os
import pathlib
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
import time
import traceback

from nova_vqos.tests.host import unit_files

USER = 'nova-vqos'
SYSTEM = pathlib.Path('/run/systemd/system')
STATE, RUN = pathlib.Path('/var/lib/nova-vqos'), pathlib.Path('/run/nova-vqos')
CONFIG = pathlib.Path('/etc/nova-vqos/nova-vqos.conf')
LOG = pathlib.Path('/run/agent.log')
#: What an agent that was root has left.
LEFT = (STATE / 'pushed.json', STATE / 'ledger.sqlite-wal', RUN / 'agent.lock')
WAIT_S = 200
_UNITS = (unit_files.AGENT, unit_files.HELPER, unit_files.PROBE)


def main():
    seen = {}
    try:
        make_writable()
        leave_of_root()
        install()
        control('start', unit_files.SOCKET.name)
        control('start', unit_files.AGENT.name)
        seen.update(observe())
        seen['vhost'] = probe_vhost()
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        seen['failed'] = traceback.format_exc()
    seen['log'] = LOG.read_text()[-4000:] if LOG.exists() else ''
    print(json.dumps(seen), flush=True)


def run(*argv):
    """:returns: what a command prints"""
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True,
                          timeout=WAIT_S).stdout.strip()


def control(*arguments):
    return run('systemctl', *arguments)


def make_writable():
    """An /etc of its own, and an empty /var/lib."""
    shutil.copytree('/etc', '/run/etc', symlinks=True, ignore=lambda *_: [
        'libvirt', 'ssl', 'alternatives'])
    run('mount', '--bind', '/run/etc', '/etc')
    run('mount', '-t', 'tmpfs', 'tmpfs', '/var/lib')


def leave_of_root():
    for path in LEFT:
        path.parent.mkdir(exist_ok=True)
        path.touch(0o600)


def install():
    run('systemd-sysusers', str(unit_files.ETC / 'nova-vqos.sysusers'))
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text('[vqos_agent]\nlibvirt_uri = test:///default\n'
                      'heartbeat_interval_s = 1\n')
    shutil.chown(CONFIG, 'root', USER)
    CONFIG.chmod(0o640)
    shutil.copy(unit_files.SOCKET, SYSTEM)
    for unit in _UNITS:
        shutil.copy(unit, SYSTEM)
        write_drop_in(unit)
    control('daemon-reload')


def write_drop_in(unit):
    """What is of this machine: its Python, and no targets to wait for."""
    program, *arguments = shlex.split(
        unit_files.read(unit)['ExecStart'])
    module = program.removeprefix('/usr/bin/nova-vqos-')
    directory = SYSTEM / f'{unit.name}.d'
    directory.mkdir()
    (directory / 'machine.conf').write_text('\n'.join([
        '[Unit]', 'DefaultDependencies=no', '[Service]', 'ExecStart=',
        f'ExecStart={shlex.quote(sys.executable)} -m nova_vqos.cmd.{module} '
        f'{shlex.join(arguments)}', 'TimeoutStartSec=180',
        f'Environment=PYTHONPATH={shlex.quote(str(unit_files.TOP))}',
        f'StandardOutput=append:{LOG}', 'StandardError=inherit',
        *unit_files.showing(), '']))


def observe():
    pid = control('show', '-P', 'MainPID', unit_files.AGENT.name)
    state = wait_connected()
    return {
        'active': control('is-active', unit_files.AGENT.name),
        'connected': state['hypervisor_connected'],
        'helper': control('is-active', unit_files.HELPER.name),
        'helper user': user(control(
            'show', '-P', 'MainPID', unit_files.HELPER.name)),
        'agent user': user(pid),
        'capabilities': int(status(pid)['CapEff'], 16),
        'owners': {str(path): owner(path) for path in (STATE, RUN, *LEFT)},
        'probe': owner(pathlib.Path('/run/nova-vqos-probe')),
        'socket': describe(pathlib.Path('/run/nova-vqos-helper.sock')),
    }


def probe_vhost():
    """:returns: what the probe finds of vhost, once a pCPU is idle enough"""
    control('stop', unit_files.AGENT.name)
    until_s = time.monotonic() + WAIT_S / 2
    while True:
        control('start', unit_files.PROBE.name)
        found = json.loads(pathlib.Path(
            '/run/nova-vqos-probe/quantum.json').read_text())['vhost']
        if 'limited' in found or time.monotonic() > until_s:
            return found
        time.sleep(1)


def wait_connected():
    """:returns: the first heartbeat of an agent that has reached libvirt"""
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            state = json.loads((RUN / 'agent.json').read_text())
        except FileNotFoundError:
            state = {'hypervisor_connected': False}
        if state['hypervisor_connected'] or time.monotonic() > until_s:
            return state
        time.sleep(0.5)


def owner(path):
    return pwd.getpwuid(path.stat().st_uid).pw_name


def describe(path):
    return f'{owner(path)} {stat.S_IMODE(os.stat(path).st_mode):o}'


def user(pid):
    """:returns: the name of the user in force"""
    return pwd.getpwuid(int(status(pid)['Uid'].split()[1])).pw_name


def status(pid):
    """:returns: the kernel's word of a process"""
    return {name: value.strip() for name, _, value in (
        line.partition(':') for line in pathlib.Path(
            '/proc', pid, 'status').read_text().splitlines())}


if __name__ == '__main__':
    main()
