# SPDX-License-Identifier: Apache-2.0
"""Servers that pay for their I/O out of their entitlement."""

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes

KIND = base.EventKind
P = base.Parameter


class TestCharge:
    def test_all_of_a_server_is_limited_to_its_entitlement(self, world):
        world.run()
        assert world.domain() == billing.WHOLE
        assert world.limits() == {agent.RIGHT}
        report = world.report()
        assert report['right_at_first_sight'] is False
        assert report['wanted']['domain'] == {
            'quota_us': 30_000, 'period_us': 50_000}

    def test_a_limit_that_is_added_is_no_wrong_cap(self, world):
        world.run(quota_us=15_000, period_us=50_000, shares=614)
        assert world.domain() == billing.WHOLE
        assert world.report()['right_at_first_sight'] is True

    @pytest.mark.parametrize('specs', [
        fakes.make_specs(), fakes.make_specs(dd_billing='account'),
        fakes.make_specs(dd_billing='charge', cap='floor')])
    def test_others_are_not_limited_as_a_whole(self, world, specs):
        world.run(specs=specs)
        world.busy(40)
        assert world.domain().quota_us is None
        assert world.host.written[1:] == []

    def test_what_it_owes_is_taken_from_its_limit_with_few_writes(self, world):
        world.run()
        world.host.written.clear()
        world.busy(60)
        assert world.domain().quota_us < 29_000
        # It uses as much whatever its limit is, so that falls again and again.
        assert 1 <= len(world.host.written) <= 9
        # On cgroup v1 no vCPU has more than all of them.
        assert all(limit.quota_us <= world.domain().quota_us
                   for limit in world.limits())
        report = world.report()
        assert report['tamperings'] == []
        assert report['right'] is True
        assert report['bill']['debt_cu_s'] > 0
        assert report['bill']['limit_cu'] < 58

    def test_it_gets_it_back_when_it_is_quiet(self, world):
        world.run()
        world.busy(60)
        world.use(120, vcpu_ns=10**7)
        assert world.domain() == billing.WHOLE
        assert world.report()['bill']['debt_cu_s'] == 0

    def test_a_limit_that_was_tampered_with_is_restored(self, world):
        world.run()
        world.host.set_tune(domain=base.Limit(None, 100_000))
        world.tick()
        assert world.domain() == billing.WHOLE
        tampering, = world.report()['tamperings']
        assert 'domain 30000/50000' in tampering['expected']

    def test_a_tampering_beside_a_bill_is_logged(self, world, monkeypatch):
        world.run()
        done, read = [], world.host.usages

        def usages(*arguments):
            """Another writer comes between its reading and its bill."""
            tune = world.host.tunes[fakes.UUID]
            if tune.domain == billing.WHOLE:
                done.append(tune)
                world.host.set_tune(domain=base.Limit(45_000, 50_000))
            return read(*arguments)
        monkeypatch.setattr(world.host, 'usages', usages)
        world.busy(20)
        assert world.domain().quota_us < billing.WHOLE.quota_us
        for tampering in world.report()['tamperings']:
            assert 'domain 45000/50000' in tampering['found']
            assert 'domain 30000/50000' in tampering['expected']
        # The last of them met the bill that gave it another limit.
        assert len(world.report()['tamperings']) == len(done)

    def test_the_echo_of_an_own_write_is_no_foreign_write(self, world):
        world.run()
        world.host.event(KIND.TUNED, values={
            P.DOMAIN_QUOTA_US: 30_000, P.DOMAIN_PERIOD_US: 50_000})
        world.settle()
        assert world.report()['tamperings'] == []

    def test_an_agent_that_starts_again_writes_nothing(self, world, tmp_path):
        world.run()
        world.busy(60)
        limit = world.domain()
        assert limit.quota_us < billing.WHOLE.quota_us
        again = world.restarted(tmp_path)
        again.start()
        assert again.host.written == []
        again.tick(3)
        assert again.report()['bill']['debt_cu_s'] > 0
