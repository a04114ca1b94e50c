# SPDX-License-Identifier: Apache-2.0
"""Some steps by chance, see devstack/lab soak; and what judges and mends."""

import os
import random

import pytest

from nova_vqos_lab import process
from nova_vqos_lab import soak
from nova_vqos_lab import soak_checks
from nova_vqos_lab import soak_steps

# A decimal number: to repeat a run.
SEED_VARIABLE = 'NOVA_VQOS_SEED'
STEPS = 15
# A busy machine did nine in three, a quiet one all in that.
MINUTES = 15
LIMIT_S = 120

# The servers' ends, and what Nova leaves, are waited for besides.
pytestmark = [pytest.mark.nightly,
              pytest.mark.timeout(1500, func_only=True)]


def test_the_soak_sees_what_does_not_hold(lab, told):
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


def test_the_soak_deletes_a_server_that_never_ran(lab, told):
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


def test_what_must_hold_does(lab, told, record_property):
    assert lab.is_deployed, told.checks[-1]
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(10**6))
    print(f'{SEED_VARIABLE}={seed}')
    record_property('seed', seed)
    found = soak.run(lab, seed, MINUTES, STEPS)
    assert found.violations == []
    assert found.steps == STEPS
