# SPDX-License-Identifier: Apache-2.0
"""What servers with vhost are billed for packets, on a newer kernel.

This machine's own kernel may have neither vhost nor Open vSwitch, so a machine
of its own is booted (newer_machine, vhost_packets_guest). Its CPU time is the
number of instructions.
"""

import pytest

from nova_vqos.tests.host import newer_machine
from nova_vqos.tests.host import vhost_packets_guest

TIMEOUT_S = 900
TOLERANCE = 0.05

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 60), pytest.mark.nightly]


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
    found = newer_machine.observe(
        'nova_vqos.tests.host.vhost_packets_guest',
        tmp_path_factory.mktemp('machine'), timeout_s=TIMEOUT_S, pcpus=1,
        load=('tun', 'veth', 'bridge', 'openvswitch', 'vhost_net'))
    for mode, by_size in found['costs'].items():
        print(mode, by_size)
    for mode, by_way in found['bills'].items():
        for way, one in by_way.items():
            print(mode, way, one)
    return found


@pytest.mark.parametrize('mode', vhost_packets_guest.MODES)
@pytest.mark.parametrize('size', vhost_packets_guest.SIZES)
def test_packets_cost_what_they_cost_with_qemu(seen, mode, size):
    """A profile has no costs of their own for them."""
    billed_ns, measured_ns = seen['costs'][mode][str(size)]
    assert billed_ns == pytest.approx(measured_ns, rel=TOLERANCE)


def test_open_vswitch_costs_more_than_a_bridge(seen):
    bridge, switch = (seen['costs'][mode]['64'][1]
                      for mode in vhost_packets_guest.MODES)
    assert switch > 1.2 * bridge


@pytest.mark.parametrize('mode', vhost_packets_guest.MODES)
@pytest.mark.parametrize('way', ['to outside', 'local'])
def test_each_cpu_second_is_billed_once(seen, mode, way):
    assert seen['bills'][mode][way]['ratio'] == pytest.approx(
        1, abs=TOLERANCE)


@pytest.mark.parametrize('mode', vhost_packets_guest.MODES)
@pytest.mark.parametrize('way, least', [
    ('from outside', 0.92), ('from outside, bursts', 0.92),
    ('from outside, singly', 0.7)])
def test_waking_a_worker_is_not_billed(seen, mode, way, least):
    """On its one pCPU it has to wait until all of a burst was sent."""
    assert least < seen['bills'][mode][way]['ratio'] < 1 + TOLERANCE
