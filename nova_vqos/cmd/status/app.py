# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-status: checks the installation of nova_vqos on a machine."""

# ruff: noqa: E402

import sys

# NOTE: oslo.messaging imports eventlet wherever it is installed, and it is
# beside Nova.
sys.modules.setdefault('eventlet', None)  # type: ignore[arg-type]

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

import argparse
from collections.abc import Callable, Sequence
import concurrent.futures
import datetime
import functools
import glob
import logging
import os
import platform
import typing as ty

from oslo_config import cfg
from oslo_config import types
from oslo_upgradecheck import upgradecheck

from nova_vqos.cmd.status import agent
from nova_vqos.cmd.status import catalogue
from nova_vqos.cmd.status import config_files
from nova_vqos.cmd.status import host
from nova_vqos.cmd.status import importing
from nova_vqos.cmd.status import machine
from nova_vqos.conf import default_path
from nova_vqos.hooks import install

_Answer = ty.TypeVar('_Answer')

PROGRAM = 'nova-vqos-status'
_NOVA_DIRECTORY = '/etc/nova'
# Devstack's, the only file that its nova-compute reads.
_DEVSTACK_CONFIG = f'{_NOVA_DIRECTORY}/nova-cpu.conf'
_PLACEMENT_CONFIG = '/etc/placement/placement.conf'
_OPTS = [
    cfg.MultiOpt(
        'role', item_type=types.String(choices=list(machine.ROLES)),
        help='Role of this machine; may be repeated. Without it the program '
             'detects the roles.'),
    cfg.MultiStrOpt(
        'nova-config', metavar='PATH', default=[],
        help="Configuration file of Nova's services on this machine; may be "
             'repeated. Without it the program reads those in /etc/nova.'),
    cfg.MultiStrOpt(
        'placement-config', metavar='PATH', default=[],
        help='Configuration file of Placement on this machine; may be '
             'repeated. Without it the program reads those in '
             '/etc/placement.'),
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    :param argv: arguments, those of the process by default
    :returns: exit status: 0, 1 with warnings, 2 with failures
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # NOTE: oslo.config would end the program at a broken file, which is a
    # finding.
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument('--config-file', action='append')
    given, rest = own.parse_known_args(arguments)
    # The findings say it all: no log line of a library appears.
    logging.getLogger().addHandler(logging.NullHandler())
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(_OPTS)
    commands = catalogue.Commands(lambda: this_machine(
        conf.role or (), conf.nova_config, given.config_file or [],
        conf.placement_config))
    return upgradecheck.main(
        conf, 'nova-vqos', commands, argv=rest, default_config_files=[])


def this_machine(roles: Sequence[str], nova_files: Sequence[str],
                 own_files: Sequence[str],
                 placement_files: Sequence[str] = (), root: str = '/'
                 ) -> machine.Machine:
    """Make the machine that the program runs on.

    :param roles: of the command line
    :param nova_files: of Nova's services, if not the usual ones
    :param own_files: of the agent, if not the usual one
    :param placement_files: of Placement, if not the usual ones
    :param root: directory of its files, for tests
    """
    compute, controller = (
        config_files.ConfigFiles(
            nova_files or _nova_files(root, program), 'nova.conf',
            config_files.nova_opts())
        for program in ('nova-compute', 'nova-scheduler'))
    own = config_files.ConfigFiles(
        own_files or [machine.below(root, default_path.CONFIG)],
        'nova-vqos.conf', config_files.own_opts())
    placement = config_files.ConfigFiles(
        placement_files or _with_fragments([
            machine.below(root, _PLACEMENT_CONFIG)]), 'placement.conf',
        config_files.PLACEMENT_OPTS)
    return machine.Machine(
        root=root, given_roles=roles, compute=compute, controller=controller,
        own=own, placement=placement, now=datetime.datetime.now(datetime.UTC),
        kernel=platform.release(), ask_nova=_once(importing.ask),
        ask_agent=functools.partial(agent.ask, own),
        ask_libvirt=host.ask_libvirt, find_hook_fault=install.find_fault)


def _once(ask: Callable[[], _Answer]) -> Callable[[], _Answer]:
    """Ask once: later calls have the same answer, or the same error."""
    answer: concurrent.futures.Future[_Answer] = concurrent.futures.Future()

    def ask_once() -> _Answer:
        if not answer.done():
            try:
                answer.set_result(ask())
            except Exception as error:
                answer.set_exception(error)
        return answer.result()
    return ask_once


def _nova_files(root: str, program: str) -> list[str]:
    """The files that a program of Nova's reads by default."""
    devstack = machine.below(root, _DEVSTACK_CONFIG)
    if program == 'nova-compute' and os.path.exists(devstack):
        return [devstack]
    return _with_fragments([
        machine.below(root, f'{_NOVA_DIRECTORY}/{name}.conf')
        for name in ('nova', program)])


def _with_fragments(paths: list[str]) -> list[str]:
    return paths + [fragment for path in paths
                    for fragment in sorted(glob.glob(f'{path}.d/*.conf'))]


if __name__ == '__main__':
    sys.exit(main())
