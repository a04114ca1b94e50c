# SPDX-License-Identifier: Apache-2.0
"""Some steps by chance, the same each time; see devstack/lab soak."""

import pytest

from nova_vqos_lab import process
from nova_vqos_lab import soak
from nova_vqos_lab import soak_checks
from nova_vqos_lab import soak_steps

SEED = 16
STEPS = 15
# A busy machine did nine in three, a quiet one all in that.
MINUTES = 15
LIMIT_S = 120

# The servers' ends, and what Nova leaves, are waited for besides.
pytestmark = pytest.mark.timeout(1500, func_only=True)


def test_what_does_not_hold_is_seen(lab, told):
    """A wrong cap, and a wrong claim, each as what it is."""
    assert lab.is_deployed, told.checks[-1]
    with lab.cloud() as cloud:
        soak.prepare(cloud)
        checks = soak_checks.Checks(lab, cloud)
        world = soak_steps.World(lab, cloud)
        server = cloud.boot('wrong', 'soak-10', cloud.find_image(
            soak_steps.IMAGE))
        try:
            server.wait_active()
            assert checks.after_step() == []
            host = server.host
            lab.nodes[host].stop('nova-vqos-agent')
            world.tamper(host)
            assert {one.kind for one in checks.after_step()} == {
                soak_checks.CAP}
            lab.nodes[host].start_agent_again()
            process.wait_until(lambda: not checks.after_step(),
                               soak.LIMIT_S, 'the right cap')
            # As in a move that nobody finished.
            cloud.delete_claim(server.uuid)
            assert {one.kind for one in checks.after_step()} == {
                soak_checks.CLAIM}
        finally:
            server.delete()


def test_a_server_that_never_ran_is_deleted(lab, told):
    """Nova would refuse to reboot it."""
    assert lab.is_deployed, told.checks[-1]
    with lab.cloud() as cloud:
        soak.prepare(cloud)
        world = soak_steps.World(lab, cloud)

        def shown():
            return soak_checks.servers(cloud).get(server.uuid)

        for _ in range(3):
            server = cloud.boot('unborn', 'soak-10', cloud.find_image(
                soak_steps.IMAGE), 'fast')
            process.wait_until(lambda: shown().host, LIMIT_S,
                               'nova-compute to begin with the server')
            lab.nodes['fast'].process_of('nova-compute').kill()
            lab.nodes['fast'].start_compute()
            process.wait_until(lambda: shown().status != 'BUILD', LIMIT_S,
                               'nova-compute to find what it had begun')
            if shown().status == 'ERROR':
                break
            # On a machine that stood still it was born before that.
            server.delete()
        assert shown().status == 'ERROR'
        world.mend(shown())
        process.wait_until(lambda: shown() is None, LIMIT_S,
                           'the end of the server')


def test_what_must_hold_does(lab, told):
    assert lab.is_deployed, told.checks[-1]
    found = soak.run(lab, SEED, MINUTES, STEPS)
    assert found.violations == []
    assert found.steps == STEPS
