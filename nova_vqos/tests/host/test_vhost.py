# SPDX-License-Identifier: Apache-2.0
"""A worker of vhost under a limit of its server, on a newer kernel.

This machine's own kernel may have no vhost, so a machine of its own is booted
(newer_machine, vhost_guest).
"""

import pytest

from nova_vqos.tests.host import newer_machine
from nova_vqos.tests.host import vhost_guest

TIMEOUT_S = 300
TOLERANCE = 0.02

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 60), pytest.mark.rotation]


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
    found = newer_machine.observe(
        'nova_vqos.tests.host.vhost_guest',
        tmp_path_factory.mktemp('machine'), timeout_s=TIMEOUT_S,
        load=('vhost_net',))
    print(found)
    return found


def near(**shares):
    """Of a pCPU, by thread; one that has none may have run for an instant."""
    return pytest.approx(shares, rel=TOLERANCE, abs=0.001)


def test_without_a_limit_both_have_half(seen):
    assert seen['shares']['free'] == near(vcpu=0.5, vhost=0.5)


def test_a_limit_of_the_server_holds_its_vcpu_alone(seen):
    """The worker runs on, by what the vCPU was to have."""
    assert seen['shares']['limited'] == near(vcpu=0, vhost=1)


def test_a_limit_of_the_vcpu_leaves_it_that(seen):
    limit = vhost_guest.LIMIT
    assert seen['shares']['vcpu limited'] == near(vcpu=limit, vhost=1 - limit)


def test_a_limit_of_the_emulator_holds_its_main_loop_alone(seen):
    """So there can be none: doc/source/contributor/decisions.rst."""
    assert seen['shares']['with main loop'] == near(
        **{'vcpu': 0.5, 'vhost': 0.25, 'main loop': 0.25})
    assert seen['shares']['emulator limited'] == near(
        **{'vcpu': 0.5, 'vhost': 0.5, 'main loop': 0})


def test_the_probe_finds_it_out(seen):
    assert seen['probe']['limited'] is False
    assert seen['probe']['share'] == pytest.approx(1, rel=TOLERANCE)
