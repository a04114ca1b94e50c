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

"""Checks of the agent's systemd unit."""

from collections.abc import Iterator, Mapping
import configparser
import os
import pathlib
import shlex
import sys
import typing as ty

from nova_vqos.status import findings
from nova_vqos.status import worlds

NAME = 'nova-vqos-agent.service'
# Where systemd looks, the first one wins.
_DIRECTORIES = ('/etc/systemd/system', '/run/systemd/system',
                '/usr/local/lib/systemd/system', '/lib/systemd/system',
                '/usr/lib/systemd/system')
_PROBE = 'nova-vqos-probe'
_PREFIXES = '@-:+!'
# What each machine has its own of.
_OWN = ('Exec', 'Environment')
_INSTALL = ('install the one of this release (share/nova-vqos of the '
            'environment), run systemctl daemon-reload, and restart '
            'nova-vqos-agent')


def look(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether systemd runs the agent by the unit of this release."""
    path = next((found for directory in _DIRECTORIES if os.path.exists(
        world.path(found := f'{directory}/{NAME}'))), None)
    if path is None:
        yield findings.warning(
            f'{NAME} is not installed: the agent has all the rights of root, '
            'and nothing starts it again', _INSTALL)
        return
    try:
        found = _service(world.read(path) or '')
    except configparser.Error as error:
        yield findings.failure(f'{path} is no unit: {error}', _INSTALL)
        return
    for option in 'ExecStartPre', 'ExecStart':
        for line in found.get(option, ()):
            yield from _look_at_command(world, path, option, line)
    if not any(_PROBE in line for line in found.get('ExecStartPre', ())):
        yield findings.warning(
            f'{path} does not run {_PROBE}: no quantum class is offered that '
            'has a slice of its own', _INSTALL)
    text = _sample()
    if text is None:
        yield findings.fact(f'{path} is there, and cannot be compared: the '
                            'unit of this release was not installed')
        return
    differing = _differing(found, _service(text))
    if differing:
        yield findings.warning(
            f'{path} is not that of this release: it has other '
            f'{", ".join(differing)}',
            f'{_INSTALL}; what you change yourself belongs into '
            f'systemctl edit {NAME}')
    yield findings.fact(f'{path} is that of this release')


def _look_at_command(world: worlds.World, path: str, option: str, line: str
                     ) -> Iterator[findings.Finding]:
    try:
        program = shlex.split(line.lstrip(_PREFIXES))[0]
    except (ValueError, IndexError):
        program = line
    if not os.access(world.path(program), os.X_OK):
        yield findings.failure(
            f'{option} of {path} names {program}, which cannot be run',
            'give it the path that the program has on this machine')


def _differing(found: Mapping[str, list[str]],
               wanted: Mapping[str, list[str]]) -> list[str]:
    return sorted(
        name for name in found.keys() | wanted.keys()
        if not name.startswith(_OWN) and found.get(name) != wanted.get(name))


def _service(text: str) -> dict[str, list[str]]:
    """The options of [Service]; one that is given twice has both.

    :raises configparser.Error: when it is no unit
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
    return {name: value.split('\n')
            for name, value in parser.items('Service')}


def _sample() -> str | None:
    """The unit of this release, of the checkout or as it was installed."""
    for path in (pathlib.Path(__file__).parents[2] / 'etc/systemd' / NAME,
                 pathlib.Path(sys.prefix) / 'share/nova-vqos' / NAME):
        if path.is_file():
            return path.read_text(encoding='utf-8')
    return None
