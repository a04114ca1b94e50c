# SPDX-License-Identifier: Apache-2.0
"""Sockets for servers that spin and are wider than one."""

import collections

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import guarantees
from nova_vqos.quantum.placement import sockets as placement
from nova_vqos.quantum.placement import wide
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
of_kind = quantum_vcpus.of_kind
sockets = quantum_vcpus.sockets


@pytest.mark.parametrize('width, widths', [
    (0, [4, 4, 4]), (4, [4, 4, 4]), (5, [8, 4]), (8, [8, 4]), (9, [12]),
    # Wider than the host.
    (13, [4, 4, 4])])
def test_as_few_are_joined_as_hold_it(width, widths):
    vcpus = [*of_kind(Kind.SPIN, width, per_server=max(1, width)),
             *of_kind(Kind.CACHE, 20, per_server=20)]
    joined = wide.join(sockets(3, 4), vcpus)
    assert [len(socket.pcpus) for socket in joined] == widths
    assert [socket.number for socket in joined] == {
        3: [0, 1, 2], 2: [0, 2], 1: [0]}[len(widths)]


def test_the_widest_are_joined():
    host = [model.Socket(0, ((0,),)), *sockets(3, 3)[1:]]
    joined = wide.join(host, of_kind(Kind.SPIN, 5, per_server=5))
    assert [(socket.number, len(socket.pcpus)) for socket in joined] == [
        (0, 1), (1, 6)]


@hypothesis.given(quantum_vcpus.vcpus(), quantum_vcpus.hosts())
def test_all_pcpus_are_left_and_cores_whole(vcpus, host):
    joined = wide.join(host, vcpus)
    assert sorted(
        core for socket in joined for core in socket.cores) == sorted(
        core for socket in host for core in socket.cores)


@hypothesis.given(
    quantum_vcpus.vcpus(kinds=(Kind.SPIN, Kind.CACHE, Kind.POLLUTER)),
    st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_none_is_more_cramped(vcpus, widths):
    before = placement.assign(vcpus, widths)
    after = wide.exchange(before, widths)
    assert collections.Counter(
        vcpu.key for members in after for vcpu in members
    ) == collections.Counter(vcpu.key for vcpu in vcpus)
    assert list(map(len, after)) == list(map(len, before))
    assert cramped(after, widths) <= cramped(before, widths)


def cramped(members, widths):
    """Servers that spin on a socket that is too narrow for them."""
    return {server for here, width in zip(members, widths, strict=True)
            for server, count in guarantees.spinning_servers(here).items()
            if count > width}


def test_others_make_room_rather_of_its_kind():
    spinning = of_kind(Kind.SPIN, 3, per_server=3, pollutes=True)
    cache, polluters = (of_kind(kind, 3) for kind in (
        Kind.CACHE, Kind.POLLUTER))
    assert wide.exchange([spinning, [*cache, *polluters]], [2, 4]) == [
        polluters, [*cache, *spinning]]


@pytest.mark.parametrize('members, widths', [
    # Servers that spin and fit anywhere make room, too.
    ([of_kind(Kind.SPIN, 3, per_server=3), of_kind(Kind.SPIN, 8, name='small',
                                                   per_server=2)], [2, 4]),
    # Another socket than the widest has room.
    ([of_kind(Kind.SPIN, 3, per_server=3),
      of_kind(Kind.SPIN, 4, name='one', per_server=4),
      of_kind(Kind.CACHE, 8)], [2, 4, 4])])
def test_it_goes_where_there_is_room(members, widths):
    assert cramped(members, widths) == {'spin-0'}
    after = wide.exchange(members, widths)
    assert not cramped(after, widths)
    assert list(map(len, after)) == list(map(len, members))


def test_nothing_moves_without_need():
    members = [of_kind(Kind.SPIN, 2, per_server=2), of_kind(Kind.CACHE, 2)]
    assert wide.exchange(members, [2, 2]) == members
