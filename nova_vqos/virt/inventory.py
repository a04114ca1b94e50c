# SPDX-License-Identifier: Apache-2.0
"""A host in Placement: its inventory of CPU units, and its traits."""

from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos import room
from nova_vqos import units

# NOTE: a server that claims more than a bound here could not be moved, neither
# away nor back. So the bounds never depend on the profile or on what is used.
_ANY_AMOUNT = {'min_unit': 1, 'max_unit': units.MAX_UNITS, 'step_size': 1}


def cpu_units(report, last, *, reserved_cu, allocation_ratio,
              stock_cu=0, work_cu=0, last_work_cu=0, guarantees=False):
    """The inventory of CPU units of a host.

    :param report: :class:`nova_vqos.virt.host_state.HostReport` of the host
    :param last: the inventory that Placement has; None if it has none
    :param reserved_cu: CU that are reserved for the host
    :param stock_cu: CU that servers without units take
    :param work_cu: CU that other servers take beyond their units
    :param last_work_cu: what the last inventory reserved for that
    :param allocation_ratio: ratio of sold CU to the rest
    :param guarantees: whether Placement knows it as a host that guarantees
        speed
    :returns: None where there is nothing to sell, and never was
    """
    if not report.valid:
        return None if last is None else closed(last)
    capacity_cu = report.capacity_cu
    # NOTE: Placement refuses a total of 0.
    total = max(capacity_cu, 1)
    unsold_cu, least_cu = report.unsold_cu, 0
    if unsold_cu is None and last and guarantees:
        # Until the agent says it, the rest of the inventory stays as it is.
        least_cu = last['reserved'] - last_work_cu
    return {
        **_ANY_AMOUNT,
        'total': total,
        'reserved': total if capacity_cu < 1 else min(
            capacity_cu, work_cu + max(least_cu, room.reserved_cu(
                capacity_cu, host_cu=reserved_cu, stock_cu=stock_cu,
                unsold_cu=unsold_cu or 0))),
        'allocation_ratio': allocation_ratio,
    }


def sale(inventory):
    """What an inventory sells, that has nothing reserved for kinds of work."""
    return room.Sale(inventory['total'], inventory['reserved'],
                     inventory['allocation_ratio'])


def closed(last):
    """An inventory that holds what is claimed, and accepts no more.

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


def guarantees(provider_tree, nodename):
    """Whether Placement knows a host as one that guarantees speed."""
    return host_stats.TRAIT_GUARANTEE in provider_tree.data(nodename).traits


def set_traits(provider_tree, nodename, traits):
    """Give a host these traits of ours, and no others of ours."""
    present = host_stats.own_traits(provider_tree.data(nodename).traits)
    provider_tree.remove_traits(nodename, *(present - traits))
    provider_tree.add_traits(nodename, *traits)
