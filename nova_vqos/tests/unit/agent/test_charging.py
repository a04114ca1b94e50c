# SPDX-License-Identifier: Apache-2.0
"""What holds a server to the limit on its I/O."""

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

TUNE = cputune.CpuTune(cap=units.CpuCap(15_000, 50_000), shares=614)
DOMAIN, VCPU = charging.DOMAIN_QUOTA, charging.VCPU_QUOTA


def terms(**others):
    return controller.HostTerms(**{
        'profile': fakes.make_profile(), 'cgroup_version': 1,
        'periods': cputune.DEFAULT_PERIODS, 'charges': True, **others})


def in_force_of(want, vcpus):
    return base.InForce(
        vcpus=dict.fromkeys(range(vcpus), base.Limit(*want.cap)),
        shares=want.shares, domain=base.Limit(*(
            (None, 100_000) if want.domain is None else want.domain)))


class TestDomainQuota:
    def test_the_whole_domain_has_what_its_vcpus_have_together(self):
        limited = DOMAIN.quotas(TUNE, 2, 1.0, terms())
        assert limited.domain == units.CpuCap(30_000, 50_000)
        assert limited.cap == TUNE.cap

    @pytest.mark.parametrize('version, vcpu_us', [(1, 12_000), (2, 15_000)])
    def test_what_it_pays_is_taken_from_all_of_it(self, version, vcpu_us):
        limited = DOMAIN.quotas(TUNE, 2, 0.4, terms(cgroup_version=version))
        assert limited.domain == units.CpuCap(12_000, 50_000)
        assert limited.cap == units.CpuCap(vcpu_us, 50_000)

    @pytest.mark.parametrize('version', [1, 2])
    @pytest.mark.parametrize('limit, domain', [
        # 0.3 of a pCPU: no less than two ticks of 4 ms, of a longer period.
        (0.2, (8_000, 133_333)), (0.1, (8_000, 266_667)),
        # No longer than the longest.
        (0.01, (8_000, 1_000_000))])
    def test_a_small_limit_stretches_the_period(self, version, limit, domain):
        limited = DOMAIN.quotas(TUNE, 1, limit, terms(cgroup_version=version))
        assert limited.domain == domain
        assert limited.cap == (domain if version == 1 else TUNE.cap)

    @hypothesis.settings(deadline=None)
    @hypothesis.given(
        st.integers(2, 100), st.integers(1, 8), st.floats(0.01, 1.0),
        st.sampled_from([1, 2]), st.sampled_from([1000, 4000, 10_000]))
    def test_a_limit_holds_two_ticks(self, cu, vcpus, limit, version, tick_us):
        host = terms(cgroup_version=version,
                     profile=fakes.make_profile(tick_us=tick_us))
        tune = cputune.CpuTune(cap=units.cap(cu, 1, 1.0, tick_us=tick_us),
                               shares=2)
        limited = DOMAIN.quotas(tune, vcpus, limit, host)
        whole = units.CpuCap(tune.cap.quota_us * vcpus, tune.cap.period_us)
        given = limited.domain
        assert version == 2 or limited.cap.share <= given.share
        assert given.quota_us >= 2 * tick_us
        assert given.share <= whole.share
        least = 2 * tick_us / units.MAX_PERIOD_US
        assert float(given.share) == pytest.approx(
            max(least, float(whole.share) * limit), rel=0.001)

    @pytest.mark.parametrize('version', [1, 2])
    @hypothesis.given(st.floats(0.1, 1.0))
    def test_class_cache_pays_at_its_own_period(self, version, limit):
        """What it pays changes quotas alone, and is found again."""
        host = terms(cgroup_version=version)
        tune = desired.entitlement(
            policy.ServerPolicy(vcpus=2, units=100, quantum_class='cache',
                                dd_billing='charge'), 2, {0}, host)
        want = DOMAIN.quotas(tune, 2, limit, host)
        assert want.domain.period_us == want.cap.period_us == 200_000
        assert want.domain.quota_us == pytest.approx(200_000 * limit, abs=1)
        found = DOMAIN.limit_in_force(tune, 2, in_force_of(want, 2), host)
        assert DOMAIN.quotas(tune, 2, found, host) == want

    @hypothesis.given(
        st.integers(1, 8), st.floats(0.1, 1.0), st.sampled_from([1, 2]))
    def test_the_effective_cap_is_found_again(self, vcpus, limit, version):
        """So that an agent that starts writes nothing."""
        host = terms(cgroup_version=version)
        want = DOMAIN.quotas(TUNE, vcpus, limit, host)
        found = DOMAIN.limit_in_force(TUNE, vcpus, in_force_of(want, vcpus),
                                      host)
        assert DOMAIN.quotas(TUNE, vcpus, found, host) == want

    @pytest.mark.parametrize('limit', [
        base.Limit(None, 50_000), base.Limit(30_001, 50_000),
        base.Limit(10_000, 49_999)])
    def test_a_limit_that_is_not_ours_is_none(self, limit):
        in_force = base.InForce(vcpus={0: base.Limit(15_000, 50_000)},
                                shares=614, domain=limit)
        assert DOMAIN.limit_in_force(TUNE, 2, in_force, terms()) == 1.0


class TestVcpuQuota:
    @hypothesis.given(st.floats(0.1, 1.0), st.integers(1, 8))
    def test_the_effective_cap_is_found_again(self, limit, vcpus):
        host = terms(limits_vhost=False)
        want = VCPU.quotas(TUNE, vcpus, limit, host)
        assert want.domain is None
        assert float(want.cap.share) == pytest.approx(0.3 * limit, rel=1e-3)
        found = VCPU.limit_in_force(TUNE, vcpus, in_force_of(want, vcpus),
                                    host)
        assert VCPU.quotas(TUNE, vcpus, found, host) == want

    @pytest.mark.parametrize('vcpus', [
        {}, {0: base.Limit(None, 50_000)},
        {0: base.Limit(15_000, 50_000), 1: base.Limit(12_000, 50_000)}])
    def test_vcpus_without_a_common_limit_have_none(self, vcpus):
        in_force = base.InForce(vcpus=vcpus, shares=614,
                                domain=base.Limit(9_000, 50_000))
        assert VCPU.limit_in_force(TUNE, 2, in_force, terms()) == 1.0


class TestRuntime:
    @pytest.mark.parametrize('quota', [DOMAIN, VCPU])
    @pytest.mark.parametrize('version', [1, 2])
    def test_quotas_are_those_without_a_limit(self, quota, version):
        """Which bind threads of I/O that have nothing reserved."""
        host = terms(cgroup_version=version)
        assert (charging.Runtime(quota).quotas(TUNE, 2, 0.4, host)
                == quota.quotas(TUNE, 2, 1.0, host))

    def test_another_limit_is_none_of_its_own(self):
        in_force = base.InForce(vcpus={0: base.Limit(15_000, 50_000)},
                                shares=614, domain=base.Limit(12_000, 50_000))
        assert charging.Runtime(DOMAIN).limit_in_force(
            TUNE, 2, in_force, terms()) == 1.0


@pytest.mark.parametrize('one', [DOMAIN, VCPU, charging.Runtime(DOMAIN)])
def test_a_floor_has_nothing_to_pay_with(one):
    tune = TUNE._replace(cap=None)
    assert one.quotas(tune, 2, 0.4, terms()) == tune
