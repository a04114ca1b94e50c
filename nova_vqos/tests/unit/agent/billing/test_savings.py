# SPDX-License-Identifier: Apache-2.0
"""What servers save for bursts, in the accounts of a host."""

from nova_vqos.billing import savings
from nova_vqos.tests.fixtures import billing_host

UUID = billing_host.UUID
BURST = savings.Terms(50, 100, 60)
S = 10**6


def test_one_that_started_while_no_agent_ran_keeps_all(host):
    """Nobody knows since when it has used what it used."""
    host.begin(burst=BURST)
    host.use(length_s=20.0)
    host.leave()
    host.start()
    host.begin(run='two', origin='found', burst=BURST, vcpu_ns=30 * 10**9)
    assert host.used_cu_s('vcpu') == 3000
    assert host.account().saved_cu_us == 1000 * S
    host.use(vcpu_ns=10**9)
    assert host.account().saved_cu_us == 1000 * S
