# SPDX-License-Identifier: Apache-2.0
"""Addresses of guests on the link to their host."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from nova_vqos_lab import guest_link


@given(st.integers(0, 0xffffffff))
def test_a_guest_has_an_address_that_it_may_have(number):
    """Of RFC 3927, and not that of the host."""
    address = guest_link.address_of(f'instance-{number:08x}')
    first, second, third, _fourth = ipaddress.ip_address(address).packed
    assert (first, second) == (169, 254)
    assert 1 <= third <= 168


def test_neighbours_in_nova_have_addresses_of_their_own():
    addresses = {guest_link.address_of(f'instance-{number:08x}')
                 for number in range(1000)}
    assert len(addresses) == 1000


def test_the_interface_ends_as_the_address_does():
    """From which the guest's init makes its address."""
    assert guest_link.mac_of('169.254.1.171') == '52:54:00:71:01:ab'
