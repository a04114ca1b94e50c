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

"""What Placement learns of a host: inventory of CPU units, and traits."""

from nova_vqos import host_report
from nova_vqos import policy
from nova_vqos import units

# NOTE: of whom a server claims more than a host has now, no move would be
# left: neither away from it nor back to it. So these never depend on the
# profile, nor on what is used.
_ANY_AMOUNT = {'min_unit': 1, 'max_unit': units.MAX_UNITS, 'step_size': 1}


def cpu_units(report, last, *, reserved_cu, allocation_ratio):
    """The inventory of CPU units of a host.

    :param report: :class:`nova_vqos.host_report.HostReport` of the host
    :param last: the inventory that Placement has; None if it has none
    :param reserved_cu: CU that are kept for the host
    :param allocation_ratio: how many times over the rest is sold
    :returns: None when there is nothing to sell, and never was
    """
    if not report.valid:
        return None if last is None else closed(last)
    capacity_cu = report.capacity_cu
    # NOTE: Placement takes no total of 0.
    total = max(capacity_cu, 1)
    return {
        **_ANY_AMOUNT,
        'total': total,
        'reserved': total if capacity_cu < 1 else min(reserved_cu, total),
        'allocation_ratio': allocation_ratio,
    }


def closed(last):
    """An inventory that holds what it has, and takes no more.

    NOTE: it is not dropped: Placement refuses that while there are
    allocations, and nova-compute does not start then (InventoryInUse, in
    nova/compute/resource_tracker.py).
    """
    total = max(last['total'], 1)
    return {**last, **_ANY_AMOUNT, 'total': total, 'reserved': total}


def merge(provider_tree, nodename, inventory):
    """Put an inventory of CPU units beside the others of a host.

    :param inventory: None: there is none
    """
    others = provider_tree.data(nodename).inventory
    others.pop(policy.RESOURCE_CLASS, None)
    if inventory is not None:
        others[policy.RESOURCE_CLASS] = inventory
    provider_tree.update_inventory(nodename, others)


def last_of(provider_tree, nodename):
    """The inventory of CPU units that a host has, None if it has none."""
    return provider_tree.data(nodename).inventory.get(policy.RESOURCE_CLASS)


def set_traits(provider_tree, nodename, traits):
    """Give a host these traits of ours, and no others of ours."""
    present = host_report.own_traits(provider_tree.data(nodename).traits)
    provider_tree.remove_traits(nodename, *(present - traits))
    provider_tree.add_traits(nodename, *traits)
