# SPDX-License-Identifier: Apache-2.0
"""The placement of each server of a host."""

import dataclasses
from fractions import Fraction

import pytest

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import host
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
SOCKETS = (model.Socket(0, ((0,), (1,))), model.Socket(1, ((2,), (3,))))


def server(uuid, kind, pcpus=(0, 1, 2, 3), vcpus=2, share=Fraction(1, 10)):
    return host.Server(uuid, dict.fromkeys(range(vcpus), kind), share,
                       frozenset(pcpus))


def plan(*servers, sockets=SOCKETS, previous=host.NOTHING):
    return host.plan_host(servers, sockets, quantum_vcpus.SLICES_US, previous)


def test_unlike_servers_are_separated():
    # pCPUs 2 and 3 are not online.
    found = plan(server('a', Kind.CACHE), server('b', Kind.DEFAULT),
                 sockets=SOCKETS[:1])
    first, second = (found.placements[uuid] for uuid in 'ab')
    assert first.slices_us == {0: 90_000, 1: 90_000}
    assert second.slices_us == {0: None, 1: None}
    assert first.pcpus[0] | second.pcpus[0] == {0, 1}
    assert not first.pcpus[0] & second.pcpus[0]
    assert found.unplanned == {}


@pytest.mark.parametrize('may_spin, vcpus, reason', [
    (False, 4, None), (True, 4, host.NARROW), (True, 1, None)])
def test_one_whose_vcpus_may_wait_for_each_other(may_spin, vcpus, reason):
    """It floats rather than having fewer pCPUs than vCPUs."""
    servers = [dataclasses.replace(
        server(f'{vcpus}-{number}', Kind.CACHE, (0, 1), vcpus),
        may_spin=may_spin) for number in range(4 // vcpus)]
    found = plan(*servers, server('b', Kind.DEFAULT, (0, 1), 4))
    placement = found.placements[servers[0].uuid]
    assert (placement.pcpus is None) is bool(reason)
    assert set(placement.slices_us.values()) == {None if reason else 90_000}
    assert found.unplanned.get(servers[0].uuid) == reason
    # Others are where they were.
    assert len(found.placements['b'].pcpus[0]) == 1
    assert found.suspended == {}


def test_equal_servers_get_slices_alone():
    found = plan(server('a', Kind.CACHE), server('b', Kind.CACHE))
    assert [placement.pcpus for placement in found.placements.values()] == [
        None, None]
    assert found.placements['a'].slices_us == {0: 90_000, 1: 90_000}


def test_servers_of_other_pcpus_have_a_plan_of_their_own():
    found = plan(server('a', Kind.CACHE, {0, 1}),
                 server('b', Kind.DEFAULT, {0, 1}),
                 server('c', Kind.CACHE, {2, 3}))
    assert set(found.plans) == {frozenset({0, 1}), frozenset({2, 3})}
    assert found.placements['a'].pcpus is not None
    assert found.placements['c'].pcpus is None


def test_servers_without_a_plan():
    found = plan(
        server('a', Kind.CACHE, {0, 1, 2}), server('b', Kind.CACHE, {1}),
        server('c', Kind.DEFAULT, {2}), server('d', Kind.DEFAULT, {3}),
        server('e', Kind.CACHE, {3}), server('f', Kind.CACHE, {7}))
    assert found.unplanned == {
        **dict.fromkeys('abc', host.OVERLAP), 'f': host.NO_PCPU}
    assert set(found.placements) == {'d', 'e'}


def test_placements_stay():
    servers = [server(uuid, kind) for uuid, kind in zip(
        'abcdef', (Kind.CACHE, Kind.DEFAULT) * 3, strict=True)]
    first = plan(*servers)
    again = plan(*servers[::-1], previous=first)
    assert again.placements == first.placements


def test_no_servers():
    assert plan() == host.NOTHING
