# SPDX-License-Identifier: Apache-2.0
"""Inventory and traits of a host, in Nova's own provider tree."""

from nova.compute import provider_tree
from oslo_utils import uuidutils
import pytest

from nova_vqos import agent_state
from nova_vqos import files
from nova_vqos import policy
from nova_vqos.tests.functional import host_files
from nova_vqos.virt import host_state
from nova_vqos.virt import inventory

OTHERS = {'VCPU': {'total': 4, 'reserved': 0}}


def report(coefficients=None, problem='', **agent):
    profile = coefficients and host_files.make_profile('compute1',
                                                       coefficients)
    pcpus = profile.pcpus if profile else frozenset([0])
    return host_state.HostReport(
        pcpus=pcpus, profile=profile, problem=problem, present=True,
        agent=agent_state.AgentState(**agent))


def guaranteeing(total_pcpus):
    """A host of two pCPUs of 100 CU."""
    return report({'0-1': 1.0}, guarantee_total_pcpus=total_pcpus)


def cpu_units(host, last=None, reserved_cu=0, allocation_ratio=1.0,
              **options):
    return inventory.cpu_units(host, last, reserved_cu=reserved_cu,
                               allocation_ratio=allocation_ratio, **options)


def test_capacity_is_that_of_all_pcpus_busy():
    assert cpu_units(report({'0': 1.5, '1-2': 0.555}), reserved_cu=10,
                     allocation_ratio=2.0) == {
        'total': 261, 'reserved': 10, 'allocation_ratio': 2.0,
        'min_unit': 1, 'max_unit': 2**31 - 1, 'step_size': 1}


@pytest.mark.parametrize(('coefficient', 'reserved_cu', 'expected'), [
    (1.0, 100, (100, 100)), (1.0, 101, (100, 100)), (1.0, 99, (100, 99)),
    # Placement takes no total of 0.
    (0.005, 0, (1, 1)), (0.01, 0, (1, 0)), (0.01, 7, (1, 1))])
def test_reserved_is_at_most_the_total(coefficient, reserved_cu, expected):
    made = cpu_units(report({'0': coefficient}), reserved_cu=reserved_cu)
    assert (made['total'], made['reserved']) == expected


@pytest.mark.parametrize(('total_pcpus', 'reserved_cu', 'reserved'), [
    (1.746, 0, 26),
    # What the kernel keeps for all else is for the host, too.
    (1.746, 20, 26), (1.746, 40, 40),
    # All units are sold where none can be reserved.
    (0.0, 0, 0), (0.0, 7, 7), (None, 7, 7), (2.5, 7, 7), (0.001, 0, 200)])
def test_what_cannot_be_reserved_is_not_sold(total_pcpus, reserved_cu,
                                             reserved):
    for ratio in 1.0, 2.0:
        made = cpu_units(guaranteeing(total_pcpus), reserved_cu=reserved_cu,
                         allocation_ratio=ratio)
        assert (made['total'], made['reserved']) == (200, reserved)
        assert made['allocation_ratio'] == ratio


def test_it_stays_until_the_agent_says_something_else():
    last = cpu_units(guaranteeing(1.746))
    unknown = guaranteeing(None)
    assert cpu_units(unknown, last, guarantees=True) == last
    assert cpu_units(unknown, last, 40, guarantees=True)['reserved'] == 40
    # Never seen to guarantee anything: nova-compute alone decides.
    assert cpu_units(unknown, last)['reserved'] == 0
    assert cpu_units(unknown, guarantees=True)['reserved'] == 0
    # It says that it does not.
    assert cpu_units(guaranteeing(0.0), last, guarantees=True)[
        'reserved'] == 0


def test_no_profile_and_nothing_known():
    assert cpu_units(report(problem='missing')) is None


@pytest.mark.parametrize('last_reserved', [0, 7, 210])
def test_without_a_valid_profile_the_last_inventory_is_closed(last_reserved):
    last = {**cpu_units(report({'0': 2.1})), 'reserved': last_reserved}
    closed = cpu_units(report({'0': 9.9}, problem='stale'), last)
    assert closed == {**last, 'reserved': 210}
    # And again: closing is idempotent.
    assert cpu_units(report(problem='missing'), closed) == closed


def test_a_foreign_inventory_that_hinders_moves_is_mended():
    last = {'total': 100, 'reserved': 0, 'allocation_ratio': 1.0,
            'min_unit': 10, 'max_unit': 50, 'step_size': 10}
    assert cpu_units(report(problem='stale'), last) == {
        'total': 100, 'reserved': 100, 'allocation_ratio': 1.0,
        'min_unit': 1, 'max_unit': 2**31 - 1, 'step_size': 1}


def test_max_unit_does_not_shrink_with_the_host():
    # Else a server of 500 CU could not be moved off, or be reverted.
    last = cpu_units(report({'0-4': 1.0}))
    assert cpu_units(report({'0-4': 0.2}), last)['max_unit'] == (
        last['max_unit'])


def test_total_may_shrink_below_usage():
    last = cpu_units(report({'0-4': 1.0}))
    assert cpu_units(report({'0-4': 0.2}), last)['total'] == 100


def test_a_valid_report_needs_a_profile():
    with pytest.raises(files.FileError):
        cpu_units(report())


@pytest.fixture
def tree():
    tree = provider_tree.ProviderTree()
    tree.new_root('compute1', uuidutils.generate_uuid())
    tree.update_inventory('compute1', OTHERS)
    return tree


def test_merge_preserves_foreign_entries(tree):
    mine = cpu_units(report({'0': 1.0}))
    inventory.merge(tree, 'compute1', mine)
    assert inventory.last_of(tree, 'compute1') == mine
    assert tree.data('compute1').inventory == {
        **OTHERS, policy.RESOURCE_CLASS: mine}
    inventory.merge(tree, 'compute1', None)
    assert inventory.last_of(tree, 'compute1') is None
    assert tree.data('compute1').inventory == OTHERS


def test_own_stale_traits_go_and_others_stay(tree):
    tree.update_traits('compute1', {
        'CUSTOM_VQOS', 'CUSTOM_VQOS_SPEED_200', 'CUSTOM_GOLD',
        'CUSTOM_VQOS_MINE', 'COMPUTE_NODE'})
    inventory.set_traits(tree, 'compute1',
                         {'CUSTOM_VQOS', 'CUSTOM_VQOS_SPEED_100'})
    assert tree.data('compute1').traits == {
        'CUSTOM_VQOS', 'CUSTOM_VQOS_SPEED_100', 'CUSTOM_GOLD',
        'CUSTOM_VQOS_MINE', 'COMPUTE_NODE'}
    inventory.set_traits(tree, 'compute1', set())
    assert tree.data('compute1').traits == {
        'CUSTOM_GOLD', 'CUSTOM_VQOS_MINE', 'COMPUTE_NODE'}
