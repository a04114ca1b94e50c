# SPDX-License-Identifier: Apache-2.0
"""What is to be done about a server: by examples and by properties."""

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import cputune
from nova_vqos import policy
from nova_vqos import units
from nova_vqos.agent import charging
from nova_vqos.agent import controller
from nova_vqos.agent.caps import desired
from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import fakes

P = base.Parameter
QUOTAS = st.none() | st.integers(1000, 1_000_000)
PERIODS = st.integers(1000, 1_000_000)
LIMITS = st.builds(base.Limit, QUOTAS, PERIODS)
IN_FORCE = st.builds(
    base.InForce,
    vcpus=st.dictionaries(st.integers(0, 7), LIMITS, min_size=1, max_size=4),
    shares=st.integers(2, 4096), domain=LIMITS)
CAPS = st.builds(
    lambda period_us, share: units.CpuCap(
        max(1000, period_us * share // 100), period_us),
    PERIODS, st.integers(1, 100))
TUNES = st.builds(cputune.CpuTune, cap=st.none() | CAPS,
                  shares=st.integers(2, 4096), domain=st.none() | CAPS)
# What the agent wants on a host of cgroup v1: no vCPU above the domain.
OWN_TUNES = st.builds(
    lambda cap, vcpus, share: charging.DOMAIN_QUOTA.quotas(
        cputune.CpuTune(cap, 614), vcpus, share, terms(charges=True)),
    st.builds(lambda cu: units.cap(cu, 1, 1.0, tick_us=4000),
              st.integers(1, 100)),
    st.integers(1, 8), st.floats(0.01, 1.0))


def terms(**others):
    return controller.HostTerms(**{
        'profile': fakes.make_profile(), 'cgroup_version': 1,
        'periods': cputune.DEFAULT_PERIODS, **others})


def apply(in_force, changes):
    """Every state that a series of writes goes through."""
    host = fakes.FakeHypervisor()
    host.runs[fakes.UUID] = 1
    host.tunes[fakes.UUID] = in_force
    states = []
    for change in changes:
        host.write(fakes.UUID, [change])
        states.append(host.tunes[fakes.UUID])
    return states


def share(limit):
    return (float('inf') if limit.quota_us is None
            else limit.quota_us / limit.period_us)


class TestChanges:
    @hypothesis.given(TUNES, IN_FORCE)
    def test_writing_them_makes_it_right(self, want, in_force):
        changes = desired.changes(want, in_force)
        end = ([in_force] + apply(in_force, changes))[-1]
        assert desired.changes(want, end) == ()
        assert end.shares == want.shares
        if want.domain is None:
            assert end.domain.quota_us is None
        else:
            assert (end.domain.quota_us,
                    end.domain.period_us) == tuple(want.domain)
        for limit in end.vcpus.values():
            if want.cap is None:
                assert limit.quota_us is None
            else:
                assert (limit.quota_us, limit.period_us) == tuple(want.cap)

    @hypothesis.given(TUNES, IN_FORCE)
    def test_nothing_is_written_that_is_right(self, want, in_force):
        before = in_force
        for state in apply(in_force, desired.changes(want, in_force)):
            assert state != before
            before = state

    @hypothesis.given(TUNES.filter(lambda tune: tune.cap), IN_FORCE)
    def test_no_step_gives_more_than_before_or_after(self, want, in_force):
        hypothesis.assume(len(set(in_force.vcpus.values())) == 1)
        allowed = max(want.cap.share, *map(share, in_force.vcpus.values()))
        for state in apply(in_force, desired.changes(want, in_force)):
            assert all(share(limit) <= allowed + 1e-12
                       for limit in state.vcpus.values())

    @hypothesis.settings(deadline=None)
    @hypothesis.given(OWN_TUNES, OWN_TUNES)
    def test_no_step_is_one_that_cgroup_v1_refuses(self, before, want):
        """It gives no child more than its parent."""
        in_force = base.InForce(
            vcpus=dict.fromkeys(range(2), base.Limit(*before.cap)),
            shares=614, domain=base.Limit(*before.domain))
        for state in apply(in_force, desired.changes(want, in_force)):
            for limit in state.vcpus.values():
                assert share(limit) <= share(state.domain) + 1e-12

    @pytest.mark.parametrize('vcpus, domain, cap, whole, changes', [
        # The limit of the parent is lowered last,
        ([(20_000, 50_000)], (None, 100_000), (15_000, 50_000),
         (15_000, 50_000), [(P.QUOTA_US, 15_000),
                            (P.DOMAIN_PERIOD_US, 50_000),
                            (P.DOMAIN_QUOTA_US, 15_000)]),
        # and raised first.
        ([(10_000, 50_000)], (20_000, 50_000), (40_000, 50_000), None,
         [(P.DOMAIN_QUOTA_US, None), (P.QUOTA_US, 40_000)]),
        # One vCPU that differs is enough.
        ([(10_000, 50_000), (None, 50_000)], (None, 100_000),
         (10_000, 50_000), None, [(P.QUOTA_US, 10_000)]),
        # A floor has no limit, whatever its period.
        ([(None, 12_345)], (None, 100_000), None, None, [])])
    def test_what_differs_is_written_in_order(self, vcpus, domain, cap, whole,
                                              changes):
        in_force = base.InForce(
            vcpus={number: base.Limit(*limit)
                   for number, limit in enumerate(vcpus)},
            shares=600, domain=base.Limit(*domain))
        want = cputune.CpuTune(cap=cap and units.CpuCap(*cap), shares=600,
                               domain=whole and units.CpuCap(*whole))
        assert desired.changes(want, in_force) == tuple(
            base.Change(*change) for change in changes)


class TestEntitlement:
    def test_units_become_a_cap(self):
        server = policy.ServerPolicy(vcpus=2, units=60)
        assert desired.entitlement(server, 2, {0}, terms()) == cputune.CpuTune(
            cap=units.CpuCap(15_000, 50_000), shares=614)

    def test_class_cache_has_its_period(self):
        server = policy.ServerPolicy(vcpus=2, units=100, quantum_class='cache')
        assert desired.entitlement(server, 2, {0}, terms()).cap == (
            100_000, 200_000)
        assert desired.entitlement(server, 2, {0}, terms(
            periods=cputune.Periods(cache_longest_us=100_000))).cap == (
            25_000, 50_000)

    def test_hotplugged_vcpus_share_the_units(self):
        server = policy.ServerPolicy(vcpus=2, units=60)
        want = desired.entitlement(server, 4, {0}, terms())
        assert float(want.cap.share * 4) == pytest.approx(0.6, rel=0.001)

    def test_unplugged_vcpus_leave_the_others_their_speed(self):
        server = policy.ServerPolicy(vcpus=2, units=60)
        assert (desired.entitlement(server, 1, {0}, terms())
                == desired.entitlement(server, 2, {0}, terms()))

    @pytest.mark.parametrize('server, pcpus, others, message', [
        ((1, 60), None, {'profile': None}, 'no valid profile'),
        ((1, 160), None, {}, 'faster than the pCPU'),
        ((1, 60), {7}, {}, '7'),
    ])
    def test_an_unknown_cap_has_a_reason(self, server, pcpus, others, message):
        vcpus, cu = server
        with pytest.raises(desired.Unenforceable, match=message):
            desired.entitlement(policy.ServerPolicy(vcpus=vcpus, units=cu),
                                vcpus, pcpus, terms(**others))
