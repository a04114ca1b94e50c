# SPDX-License-Identifier: Apache-2.0
"""Checks of libvirt's hook."""

from collections.abc import Iterator
import os

from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines
from nova_vqos.conf import default_path
from nova_vqos.hooks import install

PATH = f'{default_path.HOOKS}/{default_path.HOOK_NAME}'
_INSTALL = 'run nova-vqos-libvirt-hook --install'
DAEMONS = ('virtqemud', 'libvirtd')
OTHERS_WRITE = 0o022
# Field 22 of /proc/PID/stat, of those behind the name in parentheses.
_START_TIME = 19
# The kernel rounds its boot time to whole seconds.
_CLOCK_S = 2.0


def config_path(machine: machines.Machine) -> str:
    """The path of the hook's configuration."""
    installed = install.parse(machine.read(PATH) or '')
    return installed.config if installed else default_path.HOOK_CONFIG


def check(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether libvirt runs our hook, of this version."""
    content = machine.read(PATH)
    if content is None:
        yield findings.failure(
            f'{PATH} does not exist: guests arrive with the cap of their '
            'previous host', f'{_INSTALL}, and restart libvirt')
        return
    installed = install.parse(content)
    if installed is None:
        yield findings.failure(
            f'{PATH} is not ours', f'move it away, and {_INSTALL}')
        return
    status = os.stat(machine.path(PATH))
    if not status.st_mode & 0o100:
        yield findings.failure(
            f'{PATH} is not executable: libvirt skips it', _INSTALL)
    if status.st_uid not in (0, os.geteuid()):
        yield findings.failure(
            f'{PATH} belongs to user {status.st_uid}: libvirt runs it as '
            'root', f'chown root {PATH}')
    if status.st_mode & OTHERS_WRITE:
        yield findings.failure(
            f'{PATH} has mode {status.st_mode & 0o777:04o}: other users can '
            'have libvirt run anything as root', f'chmod 755 {PATH}')
    fault = machine.find_hook_fault(installed.trusted)
    if fault:
        yield findings.failure(
            f'{fault}, and libvirt runs the hook as root: so the hook passes '
            'guests unchanged', 'install nova_vqos where only root may write, '
            f'and {_INSTALL}')
    for uid in installed.trusted:
        yield findings.warning(
            f'user {uid} may write what libvirt runs as root by {PATH}: he is '
            'root', 'install nova_vqos where only root may write, and '
            f'{_INSTALL} without --trust')
    if content != install.script(*installed):
        yield findings.warning(
            f'{PATH} belongs to another version or another environment than '
            'this program', f'{_INSTALL}: libvirt needs no restart')
    yield from _check_daemon(machine, status.st_mtime)
    yield findings.fact(f'{PATH} is ours, with the configuration '
                        f'{installed.config}')


def _check_daemon(machine: machines.Machine, installed_at_s: float
                  ) -> Iterator[findings.Finding]:
    """Whether libvirt, which finds hooks at its start, started later."""
    for process in machine.find_processes(*DAEMONS):
        started_at_s = _started_at_s(machine, process.pid)
        if started_at_s is not None and (
                started_at_s + _CLOCK_S < installed_at_s):
            name = next(iter(set(process.names) & set(DAEMONS)))
            yield findings.warning(
                f'the daemon {name} started before {PATH} was installed or '
                'renewed, and finds hooks only at its start',
                f'restart {name}, unless there was a hook before: guests '
                'run on')


def _started_at_s(machine: machines.Machine, pid: int) -> float | None:
    """When a process started, in seconds since 1970; None: it has ended."""
    status = machine.read(f'/proc/{pid}/stat')
    booted = machine.read('/proc/stat') or ''
    try:
        fields = (status or '').rpartition(')')[2].split()
        (boot_s,) = (float(line.split()[1]) for line in booted.splitlines()
                     if line.startswith('btime '))
        return boot_s + int(fields[_START_TIME]) / os.sysconf('SC_CLK_TCK')
    except (IndexError, ValueError):
        return None
