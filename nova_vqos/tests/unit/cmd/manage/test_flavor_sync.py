# SPDX-License-Identifier: Apache-2.0
"""What flavor sync changes in the extra specs of a flavor.

The command beside a real Nova: functional/test_flavor_sync.
"""

import pytest

from nova_vqos import policy
from nova_vqos.cmd.manage import flavor_sync

UNITS = {policy.UNITS_KEY: '120'}
RESERVED = 'trait:CUSTOM_VQOS_SELLS_UNITS'
WANTED = {'trait:CUSTOM_VQOS': 'required',
          'trait:CUSTOM_VQOS_SPEED_60': 'required'}


def change(specs, without='refuse'):
    return flavor_sync.Change.of(specs, 2, servers_without_units=without)


@pytest.mark.parametrize(('specs', 'without', 'expected'), [
    ({}, 'refuse', ({RESERVED: 'forbidden'}, (), {})),
    ({}, 'allow', ({}, (), {})),
    (UNITS, 'refuse', (WANTED, (), {})),
    # It got units, and would find no host.
    (UNITS | {RESERVED: 'forbidden'}, 'refuse', (WANTED, (RESERVED,), {})),
    # Somebody's choices.
    (UNITS | {'trait:CUSTOM_VQOS_SPEED_60': 'forbidden',
              'trait:CUSTOM_VQOS_SPEED_100': 'required',
              'trait:CUSTOM_GOLD': 'required'}, 'refuse',
     ({'trait:CUSTOM_VQOS': 'required'}, (),
      {'trait:CUSTOM_VQOS_SPEED_60': 'forbidden'})),
    ({RESERVED: 'required'}, 'refuse', ({}, (), {RESERVED: 'required'})),
])
def test_changes(specs, without, expected):
    assert change(specs, without) == expected


@pytest.mark.parametrize('specs', [
    {}, UNITS, UNITS | {policy.QUANTUM_CLASS_KEY: 'cache',
                        policy.GUARANTEE_KEY: 'required',
                        policy.DD_BILLING_KEY: 'charge'}])
def test_once_more_nothing_changes(specs):
    first = change(specs)
    assert first.set
    assert change({**specs, **first.set}) == ({}, (), {})


def test_an_invalid_flavor_is_left_alone():
    with pytest.raises(policy.PolicyError):
        change({policy.UNITS_KEY: 'many'})
