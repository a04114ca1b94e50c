# SPDX-License-Identifier: Apache-2.0
"""Checks of the import of our parts into Nova."""

from collections.abc import Iterator, Mapping
import functools
import json
import subprocess
import sys

from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines

#: Releases of Nova that the tests run with.
RELEASES = (33, 34)
_TIMEOUT_S = 60
_PROGRAM = 'nova_vqos.cmd.status.nova_side'


def ask() -> Mapping[str, str]:
    """Run :mod:`nova_vqos.cmd.status.nova_side`, and return its answer.

    :raises Unanswered: when there is no Nova, or it does not answer
    """
    try:
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-m', _PROGRAM],
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise machines.Unanswered(str(error)) from error
    if done.returncode:
        raise machines.Unanswered(
            done.stderr.strip().rpartition('\n')[2] or
            f'{_PROGRAM} ended with status {done.returncode}')
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise machines.Unanswered(
            f'{_PROGRAM} printed {done.stdout[:80]!r}') from error
    return {str(name): str(text) for name, text in found.items()}


def check_version(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether this environment has a Nova that we support."""
    try:
        version = machine.ask_nova()['version']
    except machines.Unanswered as error:
        yield findings.failure(
            f'Nova does not answer: {error}', 'install nova_vqos into the '
            'environment of Nova, and run the nova-vqos-status of that '
            'environment')
        return
    release = version.partition('.')[0]
    if release not in map(str, RELEASES):
        yield findings.warning(
            f'this is Nova {version}, which nova_vqos is not tested with',
            'try it before you rely on it: the tested releases are '
            + ' and '.join(map(str, RELEASES)))
    yield findings.fact(f'this is Nova {version}')


def check_prefilter(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the scheduler can ask Placement for hosts that suit."""
    if not machine.controller.get('vqos', 'placement_prefilter'):
        yield findings.fact(
            f'[vqos] placement_prefilter of {machine.controller} is off')
        return
    try:
        problem = machine.ask_nova()['prefilter']
    except machines.Unanswered:
        problem = 'Nova does not answer'
    if problem:
        yield findings.warning(
            'nova-scheduler does not ask Placement for hosts that suit a '
            'server: where [scheduler] max_placement_results hosts do not, '
            f'servers find no host: {problem}',
            'write the traits into flavors with nova-vqos-manage flavor sync, '
            'and set [vqos] placement_prefilter to false')
    yield findings.fact('nova-scheduler can ask Placement for them')


def _check_part(part: str, consequence: str, remedy: str,
                machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether Nova imports one of our parts."""
    try:
        problem = machine.ask_nova()[part]
    except machines.Unanswered:
        problem = 'Nova does not answer'
    if problem:
        yield findings.failure(f'{consequence}: {problem}', remedy)
    yield findings.fact('Nova imports it')


check_driver = functools.partial(
    _check_part, 'driver', 'Nova does not import the compute driver',
    'install nova_vqos into the environment of Nova; after an editable '
    'install, link nova/virt/vqos into the directory nova/virt of Nova')
check_contract = functools.partial(
    _check_part, 'contract', 'This host sells no CPU units, since servers '
    'could start without a cap',
    'use releases of Nova and of nova_vqos that were tested together')
check_scheduler = functools.partial(
    _check_part, 'scheduler', 'Nova does not import filter and weighers',
    'install nova_vqos into the environment of nova-scheduler')
check_validators = functools.partial(
    _check_part, 'validators', "Nova's API does not check our extra specs, "
    'and accepts flavors that no host can serve',
    'install nova_vqos into the environment of nova-api, not as a copy but '
    'with pip, and restart nova-api')
