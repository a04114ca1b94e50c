# SPDX-License-Identifier: Apache-2.0
"""The check of how the kernel receives packets for servers."""

from collections.abc import Iterator

from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines

#: Packets that one poll may deliver; the kernel's default is 64.
LEAST_WEIGHT = 16
_SETTINGS = '/proc/sys/net/core'
_WEIGHT = 'dev_weight'
# Of one round of polls: packets, and microseconds.
_BUDGETS = ('netdev_budget', 'netdev_budget_usecs')
_LEAST_BUDGET_US = 1000
#: The largest one that was seen to lose packets (doc billing, What short polls
#: cost).
_LOSING_WEIGHT = 4
_INTERFACES = '/sys/class/net'


def check_napi(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether polls for packets are long enough."""
    weight = _setting(machine, _WEIGHT)
    budget, budget_us = (_setting(machine, name) for name in _BUDGETS)
    if weight is not None and weight < LEAST_WEIGHT:
        problem = (f'{_SETTINGS}/{_WEIGHT} is {weight}: the kernel begins a '
                   f'poll anew for each {weight} packets of a backlog, which '
                   'taps and bridges fill')
        remedy = f'set net.core.{_WEIGHT} to 64, its default, in /etc/sysctl.d'
        if weight <= _LOSING_WEIGHT:
            yield findings.failure(
                f'{problem}, and drops packets of servers under load', remedy)
        else:
            yield findings.warning(problem, remedy)
    if weight is not None and budget is not None and budget < weight:
        yield findings.warning(
            f'{_SETTINGS}/{_BUDGETS[0]} is {budget}, less than the {weight} '
            'packets of one poll: one busy interface leaves others none',
            f'set net.core.{_BUDGETS[0]} to 300, its default')
    if budget_us is not None and budget_us < _LEAST_BUDGET_US:
        yield findings.warning(
            f'{_SETTINGS}/{_BUDGETS[1]} is {budget_us}: polls end before '
            'packets are delivered',
            f'set net.core.{_BUDGETS[1]} to 2000 or more')
    yield findings.fact('; '.join((
        *(f'{name} is {"unknown" if value is None else value}'
          for name, value in zip((_WEIGHT, *_BUDGETS),
                                 (weight, budget, budget_us), strict=True)),
        _count(machine, 'threaded', 'receive in threads of their own, whose '
               'time is not softirq'),
        _count(machine, 'gro_flush_timeout', 'wait before they pass packets '
               'on'),
        _count(machine, 'napi_defer_hard_irqs', 'poll on without interrupts'),
    )))


def _setting(machine: machines.Machine, name: str) -> int | None:
    """None: unknown."""
    return _number(machine.first_line(f'{_SETTINGS}/{name}'))


def _count(machine: machines.Machine, name: str, meaning: str) -> str:
    """Say on how many interfaces something is switched on."""
    values = [_number(machine.first_line(path))
              for path in machine.glob(f'{_INTERFACES}/*/{name}')]
    known = [value for value in values if value is not None]
    if not known:
        return f'{name} is unknown'
    return f'{sum(map(bool, known))} of {len(known)} interfaces {meaning}'


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
