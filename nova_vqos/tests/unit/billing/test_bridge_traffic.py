# SPDX-License-Identifier: Apache-2.0
"""What servers of one host send each other."""

import dataclasses
from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import usage

COUNT = st.integers(0, 10**12)
TRAFFIC = st.builds(usage.BridgeTraffic, st.just(frozenset({'tap0', 'eth0'})),
                    *[COUNT] * 4, st.none() | COUNT)
NOTHING = usage.BridgeTraffic(frozenset({'tap0', 'eth0'}), 0, 0, 0, 0)


def share(sent=0, received=0, left=0, arrived=0):
    return usage.BridgeTraffic(NOTHING.ports, sent, received, left, arrived
                               ).local_share(NOTHING)


def test_between_servers_all_is_local():
    assert share(sent=100, received=100) == 1


def test_what_leaves_and_what_arrives_is_not():
    assert share(sent=100, left=100, received=70, arrived=70) == 0


def test_both():
    assert share(sent=130, left=100, received=90, arrived=60) == Fraction(1, 3)


def test_what_a_server_sends_into_the_void_makes_nothing_local():
    """As where a rule drops it."""
    assert share(sent=1000, received=100, arrived=100) == 0


def test_a_broadcast_from_outside_is_none():
    """One packet arrives, and each of nine servers receives it."""
    assert share(received=9, arrived=1) == 0


def test_dropped_ones_are_not_received():
    assert share(sent=100, received=40) == 1


def test_ports_that_come_or_go():
    before = usage.BridgeTraffic(frozenset({'tap0', 'tap1'}), 0, 0, 0, 0)
    now = usage.BridgeTraffic(frozenset({'tap0'}), 100, 100, 0, 0)
    assert now.local_share(before) == 0


@pytest.mark.parametrize(('forwarded', 'local'), [
    (0, 0), (30, Fraction(3, 10)), (500, 1)])
def test_a_router_forwards_what_is_local(forwarded, local):
    """The rest was moved by a program, and not in the time of its sender."""
    before, now = (dataclasses.replace(
        NOTHING, sent=packets, received=packets, forwarded=7 + count)
        for packets, count in ((0, 0), (100, forwarded)))
    assert now.local_share(before) == local


@hypothesis.given(TRAFFIC, TRAFFIC)
def test_it_is_a_part(now, before):
    assert 0 <= now.local_share(before) <= 1


@hypothesis.given(st.integers(0, 10**6), st.integers(0, 10**6),
                  st.integers(0, 10**6))
def test_packets_to_one_server_are_counted_exactly(local, out, arriving):
    found = share(sent=local + out, received=local + arriving, left=out,
                  arrived=arriving)
    assert found == (Fraction(local, local + arriving)
                     if local + arriving else 0)
