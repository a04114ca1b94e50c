# SPDX-License-Identifier: Apache-2.0
"""A worker of vhost under a limit of its server, on a newer kernel.

This machine's own kernel may have no vhost, so a machine of its own is booted
(newer_machine, vhost_guest).
"""

import pytest

from nova_vqos.tests.host import newer_machine
from nova_vqos.tests.host import vhost_guest

TIMEOUT_S = 300

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
    found = newer_machine.observe(
        'nova_vqos.tests.host.vhost_guest',
        tmp_path_factory.mktemp('machine'), timeout_s=TIMEOUT_S,
        load=('vhost_net',))
    print(found)
    return found


def test_without_a_limit_both_have_a_part(seen):
    free = seen['shares']['free']
    assert min(free.values()) > 0.2


def test_a_limit_of_the_server_holds_its_vcpu_alone(seen):
    """The worker runs on, by what the vCPU was to have."""
    limited = seen['shares']['limited']
    assert limited['vhost'] > 2 * vhost_guest.LIMIT
    assert limited['vcpu'] < 0.05


def test_a_limit_of_the_vcpu_leaves_it_that(seen):
    limited = seen['shares']['vcpu limited']
    # Less where this machine is busy.
    assert 0.1 < limited['vcpu'] <= vhost_guest.LIMIT * 1.05


def test_a_limit_of_the_emulator_holds_its_main_loop_alone(seen):
    """So there can be none: doc/source/contributor/decisions.rst."""
    assert seen['shares']['with main loop']['main loop'] > 0.1
    limited = seen['shares']['emulator limited']
    assert limited['vhost'] > vhost_guest.LIMIT
    assert limited['main loop'] < 0.05


def test_the_probe_finds_it_out(seen):
    assert seen['probe']['limited'] is False
    assert seen['probe']['share'] > 0.5
