# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_partition_unit, whose PID 1 is systemd.

Has systemd make the partition by our units, does to it what package upgrades
and operators do, and prints one JSON object of what was then seen: the test
asserts on that.
"""

import contextlib
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
import traceback

from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import partition
from nova_vqos.tests.host import unit_files

SLICE = 'machine.slice'
SERVICE = partition.UNIT
TIMER = SERVICE.replace('.service', '.timer')
SYSTEM = pathlib.Path('/run/systemd/system')
RUN = pathlib.Path('/run/vqos')
CONFIG, LOG = RUN / 'nova-vqos.conf', RUN / 'log'
PARTITION = partition.Partition(frozenset({1, 2}),
                                '/run/nova-vqos-partition/partition.json')
# Of the program that stands for a server.
RESERVED = units.CpuCap(30_000, 100_000)
TIMER_S = 2
WAIT_S = 90
# How long systemd may take to write to cgroups after it has answered.
SETTLE_S = 10
TAKES_AWAY = ('pcpus unset', 'reload without')


def main():
    seen = {}
    try:
        RUN.mkdir()
        CONFIG.write_text('[vqos]\nguaranteed_pcpus = 1-2\n')
        install()
        observe_made(seen)
        observe_kept(seen)
        observe_timer(seen)
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        seen['failed'] = traceback.format_exc()
        seen['log'] = LOG.read_text() if LOG.exists() else ''
    print(json.dumps(seen), flush=True)


def install():
    """Our units as they are, and beside them what is of this machine."""
    for name in (SERVICE, TIMER):
        shutil.copy(unit_files.ETC / name, SYSTEM)
    write_drop_in(SERVICE, 'Service', [
        'ExecStart=',
        f'ExecStart={shlex.quote(sys.executable)} -m nova_vqos.cmd.partition '
        f'--config-file {CONFIG} --record '
        '/run/nova-vqos-partition/partition.json',
        f'Environment=PYTHONPATH={shlex.quote(str(unit_files.TOP))}',
        f'StandardOutput=append:{LOG}', 'StandardError=inherit',
        *unit_files.showing()])
    # As it is, but in seconds.
    write_drop_in(TIMER, 'Timer', [
        'OnActiveSec=', f'OnActiveSec={TIMER_S}',
        f'OnUnitActiveSec={TIMER_S}', 'AccuracySec=100ms'])
    control('daemon-reload')


def write_drop_in(name, section, lines):
    directory = SYSTEM / f'{name}.d'
    directory.mkdir()
    # There are no targets to wait for.
    (directory / 'machine.conf').write_text('\n'.join(
        ['[Unit]', 'DefaultDependencies=no', f'[{section}]', *lines, '']))


def control(*arguments):
    """:returns: what systemctl prints."""
    print(time.monotonic(), *arguments, file=sys.stderr, flush=True)
    return subprocess.run(
        ['systemctl', *arguments], stdout=subprocess.PIPE, text=True,
        check=True, timeout=WAIT_S).stdout.strip()


def look():
    """What is wrong with the partition, and how its service did."""
    return {'problem': PARTITION.problem(),
            'result': control('show', '-P', 'Result', SERVICE),
            'runs': runs()}


def runs():
    """How often its service has printed what it measured."""
    return LOG.read_text().count('total_pcpus') if LOG.exists() else 0


@contextlib.contextmanager
def scope(name):
    """A program in a scope of the slice, as QEMU is one."""
    started = subprocess.Popen([
        'systemd-run', '--scope', f'--slice={SLICE}', f'--unit={name}',
        'sleep', '600'])
    try:
        wait_until(lambda: str(started.pid) in procs(name))
        yield started.pid
    finally:
        started.kill()
        started.wait()


def procs(name):
    with contextlib.suppress(FileNotFoundError):
        return pathlib.Path(PARTITION.path, f'{name}.scope',
                            'cgroup.procs').read_text().split()
    return []


def wait_at_most(seconds, fits):
    limit_s = time.monotonic() + seconds
    while not fits() and time.monotonic() < limit_s:
        time.sleep(0.1)


def wait_until(fits):
    limit_s = time.monotonic() + WAIT_S
    while not fits():
        assert time.monotonic() < limit_s, LOG.read_text()
        time.sleep(0.1)


def observe_made(seen):
    """The steps of the guide."""
    control('set-property', '--runtime', SLICE, 'AllowedCPUs=1-2')
    control('start', SERVICE)
    seen['made'] = look()
    seen['record'] = float(PARTITION.total_pcpus())


def observe_kept(seen):
    """What systemd does to it, beside a program that has a reservation."""
    seen['kept'] = {}
    with scope('one') as pid:
        deadline.reserve(pid, RESERVED)
        for name, work in {
                'reload': lambda: control('daemon-reload'),
                'reexec': lambda: control('daemon-reexec'),
                'weight': lambda: control(
                    'set-property', '--runtime', SLICE, 'CPUWeight=200'),
                'pcpus again': lambda: control(
                    'set-property', '--runtime', SLICE, 'AllowedCPUs=1-2'),
                'another scope': another_scope,
                'pcpus unset': lambda: control(
                    'set-property', '--runtime', SLICE, 'AllowedCPUs='),
                'reload without': lambda: control('daemon-reload'),
                }.items():
            refused = work()
            if name in TAKES_AWAY:
                wait_at_most(SETTLE_S, PARTITION.problem)
            problem = PARTITION.problem()
            # Faster than the service, on an emulated machine.
            PARTITION.make()
            seen['kept'][name] = {
                'problem': problem, 'refused': refused,
                'reserved': deadline.reservation(pid) == RESERVED}


def another_scope():
    """:returns: why the kernel reserves nothing for it"""
    with scope('two') as pid:
        try:
            deadline.reserve(pid, RESERVED)
        except base.ReservationRefused as error:
            return str(error)
    return ''


def observe_timer(seen):
    """Our timer, when another took the partition away."""
    state = pathlib.Path(PARTITION.path, 'cpuset.cpus.partition')
    seen['taken'] = []
    for begin in (lambda: control('start', TIMER)), lambda: None:
        # The second time, while the service still measures.
        state.write_text('member')
        seen['taken'].append(PARTITION.problem())
        begin()
        wait_until(lambda: not PARTITION.problem())
    seen['repaired'] = PARTITION.problem()


if __name__ == '__main__':
    main()
