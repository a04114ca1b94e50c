# SPDX-License-Identifier: Apache-2.0
"""Checks of the systemd units of a host's agent, and of the agent's user."""

from collections.abc import Iterator, Mapping
import configparser
import os
import pathlib
import shlex
import sys
import typing as ty

from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines

UNIT = 'nova-vqos-agent.service'
PROBE = 'nova-vqos-probe.service'
SOCKET = 'nova-vqos-helper.socket'
HELPER = 'nova-vqos-helper.service'
#: What the agent's unit wants, and what lacks without it.
WANTED = {
    SOCKET: 'an agent that is not root changes no cap',
    HELPER: 'an agent that is not root changes no cap',
    PROBE: 'the host offers no quantum class with a slice of its own',
}

# Directories of systemd, the first one wins.
_DIRECTORIES = ('/etc/systemd/system', '/run/systemd/system',
                '/usr/local/lib/systemd/system', '/lib/systemd/system',
                '/usr/lib/systemd/system')
_SECTIONS = {'service': 'Service', 'socket': 'Socket'}
_COMMANDS = ('ExecStartPre', 'ExecStart')
_COMMAND_PREFIXES = '@-:+!'
# Options that are different on each machine.
_OWN_OPTIONS = ('Exec', 'Environment')
_INSTALL = (
    'install the units of this release (share/nova-vqos of the environment), '
    'run systemctl daemon-reload, and restart nova-vqos-agent')
_MAKE_USER = ('install nova-vqos.sysusers of share/nova-vqos as '
              '/usr/lib/sysusers.d/nova-vqos.conf, and run systemd-sysusers')
_ROOT = 'root'

_Options = Mapping[str, list[str]]


class _Account(ty.NamedTuple):
    """A user of the machine."""

    uid: int
    gid: int


def check(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether systemd runs the agent by the units of this release."""
    path = _find(machine, UNIT)
    if path is None:
        yield findings.warning(
            f'{UNIT} is not installed: the agent has all rights of root, and '
            'systemd does not restart it', _INSTALL)
        return
    try:
        found = _options(machine, path)
    except configparser.Error as error:
        yield findings.failure(f'{path} is no unit: {error}', _INSTALL)
        return
    yield from _check_one(machine, path, found)
    user = found.get('User', [_ROOT])[-1]
    if user != _ROOT:
        yield from _check_wanted(machine)
        yield from _check_user(machine, user)


def find_uid(machine: machines.Machine) -> int:
    """The id of the user that the agent's unit names; 0 where it is root."""
    path = _find(machine, UNIT)
    try:
        user = _options(machine, path).get('User', [_ROOT])[-1] if path else ''
    except configparser.Error:
        return 0
    account = _account(machine, user)
    return account.uid if account else 0


def _check_wanted(machine: machines.Machine) -> Iterator[findings.Finding]:
    for unit, lacking in WANTED.items():
        path = _find(machine, unit)
        if path is None:
            yield findings.failure(
                f'{unit} is not installed: {lacking}', _INSTALL)
            continue
        try:
            yield from _check_one(machine, path, _options(machine, path))
        except configparser.Error as error:
            yield findings.failure(f'{path} is no unit: {error}', _INSTALL)


def _check_one(machine: machines.Machine, path: str, found: _Options
               ) -> Iterator[findings.Finding]:
    """Whether a unit can be run, and is that of this release."""
    for name in _COMMANDS:
        for command in found.get(name, ()):
            yield from _check_command(machine, path, name, command)
    unit = os.path.basename(path)
    text = _released(unit)
    if text is None:
        yield findings.fact(f'{path} exists, and cannot be compared: the '
                            'unit of this release is not installed')
        return
    wanted = _parse(text, unit)
    differing = sorted(
        name for name in found.keys() | wanted.keys()
        if not name.startswith(_OWN_OPTIONS)
        and found.get(name) != wanted.get(name))
    if differing:
        yield findings.warning(
            f'{path} differs from the unit of this release: '
            f'{", ".join(differing)}',
            f'{_INSTALL}; make your own changes with systemctl edit {unit}')
    yield findings.fact(f'{path} is the unit of this release')


def _check_command(machine: machines.Machine, path: str, name: str,
                   command: str) -> Iterator[findings.Finding]:
    try:
        program = shlex.split(command.lstrip(_COMMAND_PREFIXES))[0]
    except (ValueError, IndexError):
        program = command
    if not os.access(machine.path(program), os.X_OK):
        yield findings.failure(
            f'{name} of {path} names {program}, which cannot be run',
            'set the path that the program has on this machine')


def _check_user(machine: machines.Machine, user: str
                ) -> Iterator[findings.Finding]:
    """Whether the agent's user exists, and can read its configuration."""
    account = _account(machine, user)
    if account is None:
        yield findings.failure(
            f'user {user} does not exist: the agent does not start',
            _MAKE_USER)
        return
    for path in machine.own.files:
        shown = machine.own_path(path)
        for directory in map(str, list(pathlib.Path(shown).parents)[:-1]):
            if not _may(0o111, machine.path(directory), account):
                yield findings.failure(
                    f'user {user} may not enter {directory}: the agent does '
                    'not start', f'chmod o+x {directory}')
        if not _may(0o444, path, account):
            yield findings.failure(
                f'user {user} may not read {shown}: the agent does not start',
                f'chgrp {user} {shown}; chmod 640 {shown}')
    yield findings.fact(f'the agent runs as user {user}')


def _may(bits: int, path: str, account: _Account) -> bool:
    """Whether a user may do something with a file, by its mode alone.

    :param bits: the right, of owner, group and others
    """
    status = os.stat(path)
    of = (0o700 if status.st_uid == account.uid else
          0o070 if status.st_gid == account.gid else 0o007)
    return bool(status.st_mode & bits & of)


def _account(machine: machines.Machine, user: str) -> _Account | None:
    """A user, by /etc/passwd; None: there is none."""
    for line in (machine.read('/etc/passwd') or '').splitlines():
        name, *fields = line.split(':')
        if name == user and len(fields) > 2:
            return _Account(int(fields[1]), int(fields[2]))
    return None


def _find(machine: machines.Machine, unit: str) -> str | None:
    """The path of a unit that is installed; None: it is not."""
    return next((path for directory in _DIRECTORIES if os.path.exists(
        machine.path(path := f'{directory}/{unit}'))), None)


def _options(machine: machines.Machine, path: str) -> _Options:
    """The options of an installed unit.

    :raises configparser.Error: when it is no unit
    """
    return _parse(machine.read(path) or '', path)


def _parse(text: str, name: str) -> _Options:
    """The options of a unit's own section: all values of each.

    :raises configparser.Error: when the text is no unit
    """
    class Options(dict[str, ty.Any]):
        def __setitem__(self, name: str, value: ty.Any) -> None:
            if name in self and isinstance(value, list):
                value = self[name] + value
            super().__setitem__(name, value)
    parser = configparser.RawConfigParser(
        delimiters='=', strict=False, dict_type=Options)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(text)
    return {name: value.split('\n') for name, value in parser.items(
        _SECTIONS[name.rpartition('.')[2]])}


def _released(unit: str) -> str | None:
    """A unit of this release, of the checkout or as it was installed."""
    for path in (pathlib.Path(__file__).parents[3] / 'etc/systemd' / unit,
                 pathlib.Path(sys.prefix) / 'share/nova-vqos' / unit):
        if path.is_file():
            return path.read_text(encoding='utf-8')
    return None
