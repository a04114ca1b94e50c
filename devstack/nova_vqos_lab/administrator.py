# SPDX-License-Identifier: Apache-2.0
"""An administrator of the lab's cloud, who does what the audit advises."""

import json
import shlex
import typing as ty

from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import services
from nova_vqos_lab import soak_checks

_COMMAND_LIMIT_S = 120
_REST_LIMIT_S = 90
# What one row advises may be what another one waits for.
_MOST_ROUNDS = 6
# Of nova-manage placement audit: nothing to do, claims that it did not
# delete, and all done.
_STATUSES = {'nova-manage': (0, 3, 4), 'nova-vqos-manage': (0, 1)}


def differences(lab: clouds.Lab, *options: str) -> list[dict[str, ty.Any]]:
    """:returns: the rows of nova-vqos-manage audit

    :raises process.LabError: when it fails
    """
    return json.loads(run(lab, 'nova-vqos-manage', 'audit', '-f', 'json',
                          *options))


def follow_audit(lab: clouds.Lab, cloud: client.Cloud) -> None:
    """Do what the audit advises until it finds nothing, or to no avail.

    Nothing is being moved: open migrations are forgotten ones.

    :raises process.LabError: when a command fails
    """
    for _ in range(_MOST_ROUNDS):
        rows = differences(lab, '--stuck-minutes', '0')
        commands = dict.fromkeys(
            (row['host'], row['command']) for row in rows if row['command'])
        if not commands:
            return
        for host, command in commands:
            process.say(f'  {command}')
            program, *arguments = shlex.split(command)
            if program == 'virsh':
                # The guest may have ended by itself.
                lab.hosts[host].run([program, *arguments], check=False)
            else:
                run(lab, program, *arguments)
        process.wait_until(
            lambda: all(one.is_settled for one
                        in soak_checks.servers(cloud).values()),
            _REST_LIMIT_S, 'the servers that were treated', interval_s=0.25)


def run(lab: clouds.Lab, program: str, *arguments: str) -> str:
    """Run a program of an administrator on the controller.

    :returns: what it prints on stdout
    :raises process.LabError: when it fails
    """
    options = (['--config-file', f'{paths.etc("nova-api")}/nova.conf']
               if program == 'nova-manage' else [])
    done = process.run(
        lab.inside([f'{services.BIN}/{program}', *options, *arguments]),
        env=lab.environment(), limit_s=_COMMAND_LIMIT_S, check=False)
    if done.returncode not in _STATUSES.get(program, (0,)):
        raise process.LabError(
            f'{program} {" ".join(arguments)}: {done.returncode} '
            f'{done.stderr.strip()}')
    return done.stdout
