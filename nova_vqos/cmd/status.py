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

"""nova-vqos-status: what of nova_vqos is missing or wrong on a machine."""

# ruff: noqa: E402

import sys

# NOTE: oslo.messaging imports eventlet wherever it is installed, and it is
# beside Nova.
sys.modules.setdefault('eventlet', None)  # type: ignore[arg-type]

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

import argparse
from collections.abc import Sequence
import datetime
import functools
import logging
import platform

from oslo_config import cfg
from oslo_config import types
from oslo_upgradecheck import upgradecheck

from nova_vqos.status import agent
from nova_vqos.status import catalogue
from nova_vqos.status import importing
from nova_vqos.status import settings
from nova_vqos.status import versions
from nova_vqos.status import worlds

PROGRAM = 'nova-vqos-status'
_OPTS = [
    cfg.MultiOpt(
        'role', item_type=types.String(choices=list(worlds.ROLES)),
        help='What this machine is; given twice, both. It is found out if it '
             'is not given.'),
    cfg.MultiStrOpt(
        'nova-config', metavar='PATH', default=[],
        help="Nova's configuration, as its services on this machine are "
             'given it; those in /etc/nova by default.'),
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    :param argv: arguments, those of the process by default
    :returns: exit status: 0, 1 with warnings, 2 with failures
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # NOTE: oslo.config would end the program at a file that is broken, which
    # is for a check to tell.
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument('--config-file', action='append')
    given, rest = own.parse_known_args(arguments)
    # Whatever others log, a check says in its own words.
    logging.getLogger().addHandler(logging.NullHandler())
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(_OPTS)
    commands = catalogue.Commands(lambda: world_of(
        conf.role or (), conf.nova_config, given.config_file or []))
    return upgradecheck.main(
        conf, 'nova-vqos', commands, argv=rest, default_config_files=[])


def world_of(roles: Sequence[str], nova_files: Sequence[str],
             own_files: Sequence[str], root: str = '/') -> worlds.World:
    """This machine.

    :param roles: that the caller says it has
    :param nova_files: of Nova's services, if not the usual ones
    :param own_files: of the agent, if not the usual one
    :param root: where its files are looked for, for tests
    """
    compute, controller = (
        settings.Settings(
            nova_files or worlds.nova_files(root, program), 'nova.conf',
            settings.nova_opts())
        for program in ('nova-compute', 'nova-scheduler'))
    own = settings.Settings(
        own_files or [worlds.below(root, worlds.OWN_CONFIG)],
        'nova-vqos.conf', settings.own_opts())
    return worlds.World(
        root=root, asked_roles=roles, compute=compute, controller=controller,
        own=own, now=datetime.datetime.now(datetime.UTC),
        kernel=platform.release(), ask_nova=functools.cache(importing.ask),
        ask_agent=functools.partial(agent.ask, own),
        ask_libvirt=versions.ask_libvirt)


if __name__ == '__main__':
    sys.exit(main())
