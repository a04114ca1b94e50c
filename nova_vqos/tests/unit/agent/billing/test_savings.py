# SPDX-License-Identifier: Apache-2.0
"""What servers save for bursts, in the accounts of a host."""

import pytest

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


@pytest.fixture
def there(tmp_path):
    return billing_host.Host(tmp_path, 'there')


class TestReturn:
    """A server comes back to a host that has a copy of its account."""

    SMALLER = savings.Terms(50, 60, 60)

    def go(self, source, target, burst, answers=True, **options):
        """Move a server, whose account may follow it later.

        :returns: has the account follow it
        """
        source.leave()
        target.begin(run=source.name, origin='migrated', burst=burst,
                     **options)
        asked = target.sent.claims[-1]

        def follow():
            source.receive_claim(target.name, nonce=asked.nonce,
                                 most_saved_cu_us=asked.most_saved_cu_us)
            source.round()
            target.receive(source.sent.statements.pop())
            target.round()
        if answers:
            follow()
        return follow

    def test_what_the_bound_cuts_meanwhile_is_not_owed(self, host, there):
        """It spent all elsewhere; what it saves here is its own."""
        host.begin(burst=BURST)
        host.use(length_s=59.0)
        self.go(host, there, BURST)
        there.use(length_s=50.0, vcpu_ns=545 * 10**8)
        assert there.account().saved_cu_us == 0
        follow = self.go(there, host, BURST, answers=False)
        host.use(length_s=20.0)
        follow()
        assert host.account().saved_cu_us == 1000 * S

    @pytest.mark.parametrize('burst, most_cu_us', [
        (SMALLER, SMALLER.most_cu_us), (None, 0)])
    def test_nor_is_what_another_flavor_does_not_allow(self, host, there,
                                                       burst, most_cu_us):
        host.begin(burst=BURST)
        host.use(length_s=60.0)
        self.go(host, there, BURST)
        follow = self.go(there, host, burst, answers=False)
        assert host.account().saved_cu_us == most_cu_us
        # It stops before the next bill.
        host.leave()
        follow()
        assert host.account().saved_cu_us == most_cu_us

    def test_what_it_overspent_as_another_flavor_is_forgiven(self, host,
                                                             there):
        """Beyond a day of its bursts; all else of its account counts."""
        host.begin(burst=BURST)
        host.use(length_s=20_000.0, vcpu_ns=20_000 * 10**9)
        assert host.account().saved_cu_us == -10**6 * S
        self.go(host, there, self.SMALLER)
        assert there.account().saved_cu_us == self.SMALLER.least_cu_us
        assert there.account().total_cu_us == host.account().total_cu_us
