# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage host list and host show."""

import argparse
from collections.abc import Mapping, Sequence
import itertools
import typing as ty

from cliff import lister
from cliff import show

from nova_vqos import units as cpu_units
from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import host_report
from nova_vqos.billing import host_load
from nova_vqos.billing import io_fairness
from nova_vqos.cmd.manage import capabilities
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import output

COLUMNS = ('host', 'cell', 'agent', 'capacity_cu', 'reserved_cu', 'used_cu',
           'coefficient', 'profile', 'profile_age_s', 'classes', 'servers',
           'wrong', 'alarms')

# What a table has only if asked, so that it fits 80 characters.
_LONG = frozenset({'cell', 'reserved_cu', 'coefficient', 'profile',
                   'profile_age_s', 'classes'})
_CAPABILITIES = 'capabilities'

#: States of an agent.
NO_ANSWER = 'no answer'
TOO_OLD = 'too old'
NO_HYPERVISOR = 'no hypervisor'
ALIVE = 'alive'


class ListHosts(command.ManageCommand, lister.Lister):
    """Show all hosts: their units, profiles, servers and alarms.

    The coefficient is that of the host's slowest pCPU. Classes are those of
    vqos:quantum_class that its kernel enforces. Wrong are servers whose cap is
    not as wanted. A table has all columns only with --long or -c; other
    formats always have them.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        command.add_hosts(parser)
        parser.add_argument('--long', action='store_true',
                            help='all columns in a table too')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask(self.hosts(parsed_args), rpcapi.GET_HOST)
        rows = [row(one) for one in answers]
        if (parsed_args.formatter != 'table' or parsed_args.long
                or parsed_args.columns):
            return COLUMNS, rows
        shown = [name not in _LONG for name in COLUMNS]
        return (tuple(itertools.compress(COLUMNS, shown)),
                [tuple(itertools.compress(one, shown)) for one in rows])


class ShowHost(command.ManageCommand, show.ShowOne):
    """Show one host: its units, profile, classes, servers and alarms.

    The column capabilities says what the host makes of each extra spec:
    enforced, approximated, refused, or ignored, and why. A table has it only
    with -c capabilities.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('host', metavar='HOST', type=command.host_name,
                            help='as Nova names its compute service')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        host = self.ask_one(parsed_args.host, rpcapi.GET_HOST)
        shown = fields(host)
        # As long as all others together.
        if parsed_args.formatter != 'table' or parsed_args.columns:
            capable = capabilities.of_host(host)
            shown.append((_CAPABILITIES, output.Shown(
                [one._asdict() for one in capable],
                '\n'.join(map(str, capable)))))
        return zip(*shown, strict=True)


def silence(error: str) -> str:
    """The state of an agent that gave no answer."""
    return TOO_OLD if error == fanout.TOO_OLD else NO_ANSWER


def row(answer: fanout.Answer[host_report.Host]) -> tuple[ty.Any, ...]:
    """A host, with :data:`COLUMNS`."""
    host = answer.value
    if host is None:
        return (answer.host, answer.cell, silence(answer.error),
                *[output.text(None)] * (len(COLUMNS) - 3))
    units, profile = host.units, host.profile
    return (
        answer.host, answer.cell,
        ALIVE if host.connected else NO_HYPERVISOR,
        output.number(units.capacity_cu if units else None),
        output.number(units.reserved_cu if units else None),
        output.number(units.used_cu if units else None),
        output.number(_coefficients(units)[0], 3),
        output.text(profile.id if profile else None),
        output.age(profile.age_s if profile else None),
        output.texts(host.quantum_classes), output.count(host.servers),
        output.count(host.wrong), output.count(host.alarms))


def fields(host: host_report.Host) -> list[tuple[str, ty.Any]]:
    """Names and values of one host."""
    units, profile = host.units, host.profile
    slowest, fastest = _coefficients(units)
    return [
        ('host', host.host), ('agent', host.version),
        ('started_at', host.started_at),
        ('hypervisor', 'connected' if host.connected else NO_HYPERVISOR),
        ('cgroup_version', host.cgroup_version),
        ('capacity_cu', units.capacity_cu if units else None),
        ('reserved_cu', units.reserved_cu if units else None),
        ('allocation_ratio', units.allocation_ratio if units else None),
        ('used_cu', units.used_cu if units else None),
        ('coefficient_slowest', slowest), ('coefficient_fastest', fastest),
        ('profile', profile.id if profile else None),
        ('profile_reference', profile.reference if profile else None),
        ('profile_measured_at', profile.measured_at if profile else None),
        ('profile_age_s', output.age(profile.age_s if profile else None)),
        ('classes', output.texts(host.quantum_classes)),
        ('proof', output.Shown(host.proof, _proof(host.proof))),
        ('pools', output.Shown(*_pools(host.quantum))),
        ('dd_billing', output.texts(host.dd_billing)),
        ('guarantee', output.Shown(host.guarantee,
                                   _guarantee(host.guarantee))),
        ('project_ceilings', output.Shown(
            host.project_ceilings, _ceilings(host.project_ceilings))),
        ('burst_room_cu', output.number(host.burst_room_cu, 2)),
        ('fairness', output.Shown(*_fairness(host.capacity))),
        ('servers', output.Shown(host.servers, str(len(host.servers)))),
        ('wrong', output.texts(host.wrong)),
        ('alarms', output.Shown(host.alarms,
                                '\n'.join(host.alarms) or 'none')),
        ('ticks', host.ticks), ('last_tick_ms', host.last_tick_ms),
        ('writes', host.writes), ('restored', host.restored),
        ('tamperings', host.tamperings),
        ('errors', host.errors),
    ]


def _coefficients(units: host_report.Units | None
                  ) -> tuple[float | None, float | None]:
    """Of the slowest pCPU and of the fastest."""
    if units is None:
        return None, None
    return (round(units.slowest_cu / cpu_units.CU_PER_REFERENCE_PCPU, 5),
            round(units.fastest_cu / cpu_units.CU_PER_REFERENCE_PCPU, 5))


def _guarantee(found: host_report.HostGuarantee | None) -> str:
    """What the host reserves for servers."""
    return 'none' if found is None else (
        f'{found.reserved_pcpus:.2f} pCPUs reserved, '
        f'{found.free_pcpus:.2f} free')


def _ceilings(found: Sequence[host_report.ProjectCeiling] | None) -> str:
    """The ceiling of each project, one a line."""
    return 'none' if not found else '\n'.join(
        f'{one.project_id}: '
        + ('' if one.used_cu is None else f'{one.used_cu:.2f} used ')
        + f'of {one.ceiling_cu} CU, {one.servers} servers of {one.units_cu} CU'
        for one in found)


def _fairness(load: host_load.LoadReport | None
              ) -> tuple[Mapping[str, io_fairness.Fairness] | None, str]:
    """How alike servers with like offers were served, one direction a line.

    :returns: for programs, and for people
    """
    found = None if load is None else load.fairness
    return found, '\n'.join(
        f'{direction}: {one.jain:.3f} of {one.servers} servers, least '
        f'{one.least_server}' for direction, one in (found or {}).items()
    ) or 'no like offers'


def _pools(quantum: host_report.Pools | None
           ) -> tuple[Mapping[str, ty.Any] | None, str]:
    """The size of each pool, one a line.

    :returns: for programs, and for people
    """
    if quantum is None:
        return None, ''
    return {
        name: {'pcpus': pcpus, 'vcpus': vcpus}
        for name, (pcpus, vcpus) in quantum.pools.items()
    }, '\n'.join(f'{name}: {pcpus} pCPUs, {vcpus} vCPUs' for name,
                 (pcpus, vcpus) in quantum.pools.items()) or 'none'


def _proof(proof: host_report.Proof | None) -> str:
    """What the kernel does with each class, one a line."""
    words = {True: 'enforced', False: 'not enforced', None: 'not measured'}
    return '' if proof is None else '\n'.join(
        ': '.join(filter(None, (
            name, words[outcome.enforced],
            outcome.reason or ('' if outcome.slice_us is None else
                               f'a slice of {outcome.slice_us} us'))))
        for name, outcome in proof.classes.items())
