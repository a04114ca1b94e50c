# SPDX-License-Identifier: Apache-2.0
"""How packets fare with short and long polls, on a newer kernel.

nova-vqos-status warns of short ones. The settings are those of a machine of
its own (newer_machine, napi_guest), never of this one.
"""

import math

import pytest

from nova_vqos.tests.host import napi_guest
from nova_vqos.tests.host import newer_machine

TIMEOUT_S = 500

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 60), pytest.mark.rotation]


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
    found = newer_machine.observe(
        'nova_vqos.tests.host.napi_guest', tmp_path_factory.mktemp('machine'),
        timeout_s=TIMEOUT_S, pcpus=1, load=('veth', 'bridge'))
    for table, rows in (('polls', found['polls']), *found['floods'].items()):
        for limit, row in rows.items():
            print(table, limit, row)
    return found


@pytest.mark.parametrize('limit', napi_guest.LIMITS)
def test_a_poll_takes_as_many_packets_as_the_limit(seen, limit):
    found = seen['polls'][str(limit)]
    # One for each port, and that of the bridge.
    assert found['packets'] == napi_guest.PORTS + 1
    assert found['polls'] == math.ceil(found['packets'] / limit)
    assert found['dropped'] == 0


@pytest.mark.parametrize('budget', ['default', 'one poll'])
@pytest.mark.parametrize('limit, loses', [
    (1, True), (2, True), (4, True), (8, False), (64, False), (200, False)])
def test_polls_of_few_packets_lose_some(seen, budget, limit, loses):
    """That is an error to the check NAPI."""
    found = seen['floods'][budget][str(limit)]
    assert bool(found['dropped']) is loses, found
