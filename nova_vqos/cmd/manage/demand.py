# SPDX-License-Identifier: Apache-2.0
"""The demand of a flavor on Placement, and what a host offers of it.

As Nova asks for it, as far as flavors determine it: images, ports, volumes and
the scheduler's pre-filters may add to it.
"""

from collections.abc import Mapping
import math
import re
import typing as ty
import urllib.parse

from nova_vqos import policy

# As nova/scheduler/utils.py reads them: resources, trait, and their groups.
_KEY = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)')
_ANY_AMOUNT: ty.Final = {
    'reserved': 0, 'allocation_ratio': 1.0, 'min_unit': 1,
    'max_unit': 2**31 - 1, 'step_size': 1}
_DEDICATED_POLICY = 'hw:cpu_policy'


class Demand(ty.NamedTuple):
    """What is asked of one host.

    :ivar resources: amounts by resource class, of the host itself
    :ivar required: traits that it must have
    :ivar forbidden: traits that it must not have
    :ivar groups: what else is asked for, by parameter of the query
    """

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    groups: Mapping[str, str] = {}

    @property
    def query(self) -> str:
        """Of allocation candidates, from Placement 1.36 on."""
        parameters = {
            'resources': _format(self.resources),
            'required': ','.join((*sorted(self.required), *(
                f'!{trait}' for trait in sorted(self.forbidden)))),
            **self.groups}
        return urllib.parse.urlencode(
            {name: value for name, value in parameters.items() if value})


def of_flavor(flavor: ty.Any, resources: Mapping[str, int] | None = None
              ) -> Demand:
    """What a flavor asks for.

    :param flavor: with vcpus, ram (MiB), disk, ephemeral (GiB), swap (MiB)
        and extra_specs, as openstacksdk reads it
    :param resources: what a server of it holds, in place of what the flavor
        says: its disk may be a volume
    """
    swap_gb = math.ceil((flavor.swap or 0) / 1024)
    asked = {'MEMORY_MB': flavor.ram or 0, 'DISK_GB': int(
        (flavor.disk or 0) + (flavor.ephemeral or 0) + swap_gb)}
    required, forbidden = set(), set()
    groups: dict[str, dict[str, int]] = {}
    traits: dict[str, list[str]] = {}
    specs = flavor.extra_specs or {}
    vcpus = 'PCPU' if specs.get(_DEDICATED_POLICY) == 'dedicated' else 'VCPU'
    if not any(name in specs for name in ('resources:VCPU',
                                          'resources:PCPU')):
        asked[vcpus] = flavor.vcpus
    for key, value in specs.items():
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        kind, group, name = match.groups()
        if kind == 'resources':
            if not value.isdecimal():
                # Nova leaves it out.
                continue
            (groups.setdefault(group, {}) if group else asked)[name] = int(
                value)
        elif group:
            traits.setdefault(group, []).append(
                name if value == 'required' else f'!{name}')
        elif value == 'required':
            required.add(name)
        elif value == 'forbidden':
            forbidden.add(name)
    parameters = {f'resources{group}': _format(amounts)
                  for group, amounts in groups.items()}
    parameters |= {f'required{group}': ','.join(names)
                   for group, names in traits.items()}
    if groups:
        parameters['group_policy'] = specs.get('group_policy', 'none')
    return Demand(
        resources={name: amount for name, amount in (
            asked if resources is None else resources).items() if amount},
        required=frozenset(required), forbidden=frozenset(forbidden),
        groups=parameters if resources is None else {})


class Provider(ty.NamedTuple):
    """What Placement knows of a host.

    :ivar inventories: by resource class, as the API shows them
    :ivar usages: amounts by resource class
    :ivar traits: all that it has
    """

    inventories: Mapping[str, Mapping[str, ty.Any]]
    usages: Mapping[str, int]
    traits: frozenset[str]

    @classmethod
    def of_summary(cls, summary: Mapping[str, ty.Any]) -> 'Provider':
        """One that was offered, of which little is known.

        :param summary: of it, in an answer with allocation candidates
        """
        found = summary['resources']
        return cls(
            {name: {**_ANY_AMOUNT, 'total': one['capacity']}
             for name, one in found.items()},
            {name: one['used'] for name, one in found.items()},
            frozenset(summary['traits']))

    @property
    def free_cu(self) -> int | None:
        """CU that are left; None: it has no units."""
        if policy.RESOURCE_CLASS not in self.inventories:
            return None
        return self._free(policy.RESOURCE_CLASS)

    def capacity(self, name: str) -> int:
        """What it sells of a resource class; 0: it has none of it."""
        inventory = self.inventories.get(name)
        if inventory is None:
            return 0
        sold: float = ((inventory['total'] - inventory['reserved'])
                       * inventory['allocation_ratio'])
        return math.floor(sold)

    def lacks(self, demand: Demand) -> list[str]:
        """Why it cannot serve a demand, as far as it is asked of itself."""
        reasons = []
        for name, amount in demand.resources.items():
            reason = self._lacks_of(name, amount)
            if reason:
                reasons.append(reason)
        reasons += [f'it has no trait {name}, which the flavor requires'
                    for name in sorted(demand.required - self.traits)]
        reasons += [f'it has the trait {name}, which the flavor forbids'
                    for name in sorted(demand.forbidden & self.traits)]
        return reasons

    def _lacks_of(self, name: str, amount: int) -> str:
        word = 'CU' if name == policy.RESOURCE_CLASS else name
        inventory = self.inventories.get(name)
        if inventory is None:
            return ('it has no CPU units' if name == policy.RESOURCE_CLASS
                    else f'it has no {name} of its own')
        if amount > self._free(name):
            return (f'it has {max(0, self._free(name))} {word} left, '
                    f'{amount} are asked for')
        least, most, step = (inventory[key] for key in (
            'min_unit', 'max_unit', 'step_size'))
        if not least <= amount <= most or amount % step:
            return (f'one server may have {least} to {most} {word} of it, in '
                    f'steps of {step}: {amount} are asked for')
        return ''

    def _free(self, name: str) -> int:
        return self.capacity(name) - self.usages.get(name, 0)


def _format(resources: Mapping[str, int]) -> str:
    return ','.join(f'{name}:{amount}'
                    for name, amount in sorted(resources.items()))
