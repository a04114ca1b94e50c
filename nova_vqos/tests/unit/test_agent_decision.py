# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What is to be done about a server: by examples and by properties."""

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import policy
from nova_vqos import tuning
from nova_vqos import units
from nova_vqos.agent import decision
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import fake_hypervisor as fakes

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
TUNES = st.builds(tuning.Tune, cap=st.none() | CAPS,
                  shares=st.integers(2, 4096), domain=st.none() | CAPS)
# What the agent wants on a host of cgroup v1: no vCPU above the domain.
OWN_TUNES = st.builds(
    lambda cap, vcpus, share: decision.limited(
        tuning.Tune(cap, 614), vcpus, share, terms(charges=True)),
    st.builds(lambda cu: units.cap(cu, 1, 1.0, tick_us=4000),
              st.integers(1, 100)),
    st.integers(1, 8), st.floats(0.01, 1.0))


def terms(**others):
    return decision.HostTerms(**{
        'profile': fakes.make_profile(), 'cgroup_version': 1,
        'periods': tuning.DEFAULT_PERIODS, **others})


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
        changes = decision.changes(want, in_force)
        end = ([in_force] + apply(in_force, changes))[-1]
        assert decision.changes(want, end) == ()
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
        for state in apply(in_force, decision.changes(want, in_force)):
            assert state != before
            before = state

    @hypothesis.given(TUNES.filter(lambda tune: tune.cap), IN_FORCE)
    def test_no_step_gives_more_than_before_or_after(self, want, in_force):
        hypothesis.assume(len(set(in_force.vcpus.values())) == 1)
        allowed = max(want.cap.share, *map(share, in_force.vcpus.values()))
        for state in apply(in_force, decision.changes(want, in_force)):
            assert all(share(limit) <= allowed + 1e-12
                       for limit in state.vcpus.values())

    @hypothesis.settings(deadline=None)
    @hypothesis.given(OWN_TUNES, OWN_TUNES)
    def test_no_step_is_one_that_cgroup_v1_refuses(self, before, want):
        """It gives no child more than its parent."""
        in_force = base.InForce(
            vcpus=dict.fromkeys(range(2), base.Limit(*before.cap)),
            shares=614, domain=base.Limit(*before.domain))
        for state in apply(in_force, decision.changes(want, in_force)):
            for limit in state.vcpus.values():
                assert share(limit) <= share(state.domain) + 1e-12

    def test_the_limit_of_the_parent_is_lowered_last(self):
        in_force = base.InForce(vcpus={0: base.Limit(20_000, 50_000)},
                                shares=600, domain=base.Limit(None, 100_000))
        want = tuning.Tune(cap=units.CpuCap(15_000, 50_000), shares=600,
                           domain=units.CpuCap(15_000, 50_000))
        assert decision.changes(want, in_force) == (
            base.Change(P.QUOTA_US, 15_000),
            base.Change(P.DOMAIN_PERIOD_US, 50_000),
            base.Change(P.DOMAIN_QUOTA_US, 15_000))

    def test_the_limit_of_the_parent_is_raised_first(self):
        in_force = base.InForce(vcpus={0: base.Limit(10_000, 50_000)},
                                shares=600, domain=base.Limit(20_000, 50_000))
        want = tuning.Tune(cap=units.CpuCap(40_000, 50_000), shares=600)
        assert decision.changes(want, in_force) == (
            base.Change(P.DOMAIN_QUOTA_US, None),
            base.Change(P.QUOTA_US, 40_000))

    def test_one_vcpu_that_differs_is_enough(self):
        in_force = base.InForce(
            vcpus={0: base.Limit(10_000, 50_000), 1: base.Limit(None, 50_000)},
            shares=600, domain=base.Limit(None, 100_000))
        want = tuning.Tune(cap=units.CpuCap(10_000, 50_000), shares=600)
        assert decision.changes(want, in_force) == (
            base.Change(P.QUOTA_US, 10_000),)

    def test_a_floor_has_no_limit_whatever_its_period(self):
        in_force = base.InForce(vcpus={0: base.Limit(None, 12_345)},
                                shares=600, domain=base.Limit(None, 100_000))
        want = tuning.Tune(cap=None, shares=600)
        assert decision.changes(want, in_force) == ()


class TestLimited:
    TUNE = tuning.Tune(cap=units.CpuCap(15_000, 50_000), shares=614)

    def test_the_whole_domain_has_what_its_vcpus_have_together(self):
        limited = decision.limited(self.TUNE, 2, 1.0, terms(charges=True))
        assert limited.domain == units.CpuCap(30_000, 50_000)
        assert limited.cap == self.TUNE.cap

    @pytest.mark.parametrize('version, vcpu_us', [(1, 12_000), (2, 15_000)])
    def test_what_it_pays_is_taken_from_all_of_it(self, version, vcpu_us):
        limited = decision.limited(self.TUNE, 2, 0.4, terms(
            charges=True, cgroup_version=version))
        assert limited.domain == units.CpuCap(12_000, 50_000)
        assert limited.cap == units.CpuCap(vcpu_us, 50_000)

    @pytest.mark.parametrize('version', [1, 2])
    @pytest.mark.parametrize('limit, domain', [
        # 0.3 of a pCPU: no less than two ticks of 4 ms, of a longer period.
        (0.2, (8_000, 133_333)), (0.1, (8_000, 266_667)),
        # No longer than the longest.
        (0.01, (8_000, 1_000_000))])
    def test_a_small_limit_stretches_the_period(self, version, limit, domain):
        tune = tuning.Tune(cap=units.CpuCap(15_000, 50_000), shares=2)
        limited = decision.limited(tune, 1, limit, terms(
            charges=True, cgroup_version=version))
        assert limited.domain == domain
        assert limited.cap == (domain if version == 1 else tune.cap)

    @hypothesis.settings(deadline=None)
    @hypothesis.given(
        st.integers(2, 100), st.integers(1, 8), st.floats(0.01, 1.0),
        st.sampled_from([1, 2]), st.sampled_from([1000, 4000, 10_000]))
    def test_no_limit_is_below_two_ticks(self, cu, vcpus, limit, version,
                                         tick_us):
        host = terms(charges=True, cgroup_version=version,
                     profile=fakes.make_profile(tick_us=tick_us))
        tune = tuning.Tune(cap=units.cap(cu, 1, 1.0, tick_us=tick_us),
                           shares=2)
        limited = decision.limited(tune, vcpus, limit, host)
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
        host = terms(charges=True, cgroup_version=version)
        tune = decision.wanted(
            policy.ServerPolicy(vcpus=2, units=100, quantum_class='cache',
                                dd_billing='charge'), 2, {0}, host)
        want = decision.limited(tune, 2, limit, host)
        assert want.domain.period_us == want.cap.period_us == 200_000
        assert want.domain.quota_us == pytest.approx(200_000 * limit, abs=1)
        in_force = base.InForce(
            vcpus=dict.fromkeys(range(2), base.Limit(*want.cap)),
            shares=1024, domain=base.Limit(*want.domain))
        found = decision.limit_in_force(tune, 2, in_force, host)
        assert decision.limited(tune, 2, found, host) == want

    def test_a_floor_has_nothing_to_pay_with(self):
        tune = self.TUNE._replace(cap=None)
        assert decision.limited(tune, 2, 0.4, terms(charges=True)) == tune

    def test_nothing_is_limited_where_nobody_counts(self):
        assert decision.limited(self.TUNE, 2, 0.4, terms()) == self.TUNE

    @hypothesis.given(
        st.integers(1, 8), st.floats(0.1, 1.0), st.sampled_from([1, 2]))
    def test_what_is_in_force_is_found_again(self, vcpus, limit, version):
        """So that an agent that starts writes nothing."""
        host = terms(charges=True, cgroup_version=version)
        want = decision.limited(self.TUNE, vcpus, limit, host)
        in_force = base.InForce(
            vcpus=dict.fromkeys(range(vcpus), base.Limit(*want.cap)),
            shares=614, domain=base.Limit(*want.domain))
        found = decision.limit_in_force(self.TUNE, vcpus, in_force, host)
        assert decision.limited(self.TUNE, vcpus, found, host) == want

    @pytest.mark.parametrize('limit', [
        base.Limit(None, 50_000), base.Limit(30_001, 50_000),
        base.Limit(10_000, 49_999)])
    def test_a_limit_that_is_not_ours_is_none(self, limit):
        in_force = base.InForce(vcpus={0: base.Limit(15_000, 50_000)},
                                shares=614, domain=limit)
        assert decision.limit_in_force(self.TUNE, 2, in_force, terms(
            charges=True)) == 1.0


class TestWanted:
    def test_units_become_a_cap(self):
        server = policy.ServerPolicy(vcpus=2, units=60)
        assert decision.wanted(server, 2, {0}, terms()) == tuning.Tune(
            cap=units.CpuCap(15_000, 50_000), shares=614)

    def test_class_cache_has_its_period(self):
        server = policy.ServerPolicy(vcpus=2, units=100,
                                     quantum_class='cache')
        assert decision.wanted(server, 2, {0}, terms()).cap == (
            100_000, 200_000)
        assert decision.wanted(server, 2, {0}, terms(
            periods=tuning.Periods(cache_longest_us=100_000))).cap == (
            25_000, 50_000)

    def test_hotplugged_vcpus_share_the_units(self):
        server = policy.ServerPolicy(vcpus=2, units=60)
        want = decision.wanted(server, 4, {0}, terms())
        assert float(want.cap.share * 4) == pytest.approx(0.6, rel=0.001)

    def test_unplugged_vcpus_leave_the_others_their_speed(self):
        server = policy.ServerPolicy(vcpus=2, units=60)
        assert (decision.wanted(server, 1, {0}, terms())
                == decision.wanted(server, 2, {0}, terms()))

    def test_without_units_nothing_is_wanted(self):
        server = policy.ServerPolicy(vcpus=2)
        assert decision.wanted(server, 2, None, terms(profile=None)) is None

    @pytest.mark.parametrize('server, pcpus, others, message', [
        ((1, 60), None, {'profile': None}, 'no valid profile'),
        ((1, 160), None, {}, 'faster than the pCPU'),
        ((1, 60), {7}, {}, '7'),
    ])
    def test_what_cannot_be_told_says_why(self, server, pcpus, others,
                                          message):
        vcpus, cu = server
        with pytest.raises(decision.Unenforceable, match=message):
            decision.wanted(policy.ServerPolicy(vcpus=vcpus, units=cu),
                            vcpus, pcpus, terms(**others))
