# SPDX-License-Identifier: Apache-2.0
"""Check of servers without units on a host that sells units."""

from collections.abc import Iterator

from nova_vqos import compute_state
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines

_REMEDY = ('move them to hosts without units, or resize them to flavors with '
           'units')


def check(machine: machines.Machine) -> Iterator[findings.Finding]:
    """How many servers without units are on this host, what they take."""
    path = machine.compute.get('vqos', 'compute_state_path')
    try:
        state = compute_state.load(machine.path(path))
    except ValueError as error:
        yield findings.warning(
            f'the report of nova-compute cannot be read: {error}',
            'restart nova-compute')
        return
    if state is None or state.stock_servers is None:
        yield findings.fact('nova-compute has not counted the servers without '
                            'units on this host yet')
        return
    if not state.stock_servers:
        yield findings.fact('no server without units is on this host')
        return
    found = (f'servers without units on this host: {state.stock_servers}, '
             f'counted at {state.at}')
    if state.stock_cu is not None:
        yield findings.warning(
            f'{found}. {state.stock_cu} CPU units are reserved for them, and '
            'are not sold', _REMEDY)
    elif machine.compute.get('vqos', 'servers_without_units') == 'allow':
        yield findings.warning(
            f'{found}. [vqos] servers_without_units is allow, so nova-compute '
            'reserves nothing for them: they use pCPUs that servers with '
            'units have paid for',
            'set [vqos] reserved_cu to what they use, or servers_without_units'
            f' to refuse; or {_REMEDY}')
    else:
        yield findings.warning(
            f'{found}. Once this host has a valid profile, nova-compute '
            'reserves their vCPUs, and sells the rest', _REMEDY)
