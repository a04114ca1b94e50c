# SPDX-License-Identifier: Apache-2.0
"""What is reserved for a server, and what that costs a host."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import guarantee
from nova_vqos import units

TICK_US = 4000
# No period is above a second.
LARGE_SHARES = st.fractions(Fraction(1, 50), Fraction(9, 10))
SCALES = st.fractions(Fraction(1, 2), Fraction(1))
SHARES = st.fractions(Fraction(1, 100), Fraction(9, 10))


@given(SHARES, st.sampled_from(['default', 'io', 'cache', 'auto']))
def test_a_vcpu_gets_its_share_in_runtimes_of_two_ticks_at_least(share, name):
    found = guarantee.vcpu_reservation(share, name, tick_us=TICK_US)
    assert found.quota_us >= 2 * TICK_US
    # Quotas are whole microseconds.
    assert float(found.share) == pytest.approx(float(share), rel=1e-3)


@given(SHARES, st.sampled_from(['default', 'io']),
       st.fractions(Fraction(3, 4), Fraction(1)))
def test_what_a_vcpu_leaves_makes_no_period_longer(share, name, kept):
    whole = guarantee.vcpu_reservation(share, name, tick_us=TICK_US)
    found = guarantee.vcpu_reservation(share, name, tick_us=TICK_US, kept=kept)
    assert found.period_us == whole.period_us
    assert float(found.share) == pytest.approx(float(whole.share * kept),
                                               rel=1e-3)
    # A tick's overrun can be paid back.
    assert found.quota_us > TICK_US


@given(st.lists(st.tuples(LARGE_SHARES, LARGE_SHARES)), SCALES, SCALES)
def test_a_clock_that_is_counted(shares, scale, clock):
    """At no clock from the least on servers take more than the kernel admits.

    :param shares: of a server's vCPU, and of its I/O
    """
    clock = max(clock, scale)
    reservable = sum(map(sum, shares)) / (1 - guarantee.UNSOLD_PART)
    assert guarantee.sellable_pcpus(reservable) == sum(map(sum, shares))
    counted = [(guarantee.vcpu_reservation(
        vcpu, 'default', tick_us=TICK_US, scale=scale).share, io)
        for vcpu, io in shares]
    # Of the time on the wall; that of I/O is not counted by clock.
    used = sum(vcpu / clock + io for vcpu, io in counted)
    assert used <= reservable + Fraction(1, 1000) * len(shares)
    assert float(sum(guarantee.taken_pcpus(vcpu, io, scale)
                     for vcpu, io in counted)) == pytest.approx(
                         float(sum(map(sum, shares))), rel=2e-3)
    for (vcpu, _io), (share, _) in zip(counted, shares, strict=True):
        # Seconds at full clock: the work of the share at the least one.
        assert float(vcpu) == pytest.approx(float(share * scale), rel=2e-3)


@given(LARGE_SHARES, LARGE_SHARES)
def test_an_operator_bounds_what_is_sold(reservable, bound):
    assert guarantee.sellable_pcpus(reservable, bound) == min(
        bound, guarantee.sellable_pcpus(reservable))


@pytest.mark.parametrize('name, period_us', [
    ('default', 50_000), ('io', 20_000), ('cache', 50_000)])
def test_the_period_follows_the_class(name, period_us):
    assert guarantee.vcpu_reservation(
        Fraction(1, 2), name, tick_us=TICK_US) == units.CpuCap(
            period_us // 2, period_us)


@given(SHARES, st.integers(1, 64))
def test_io_gets_a_small_part_within_bounds(share, vcpus):
    found = guarantee.io_reservation(guarantee.io_share(share, vcpus))
    assert found.quota_us == 1000
    assert Fraction(19, 1000) < found.share < Fraction(81, 1000)
    if Fraction(24, 100) < share * vcpus < Fraction(96, 100):
        assert float(found.share) == pytest.approx(
            float(share * vcpus) / 12, rel=1e-3)


@given(SHARES, SHARES, st.floats(0, 1), st.fractions(0, 8))
def test_io_follows_its_use_within_what_is_unused(least, has, used, unused):
    found = guarantee.followed_io_share(least, has, used, unused)
    assert found >= least
    assert found <= max(least, min(Fraction(25, 100), least + unused / 2))
    if guarantee.is_io_short(has, used):
        # More than it has, as far as that can be had.
        assert found >= min(has, Fraction(25, 100), least + unused / 2)


@given(SHARES, st.integers(1, 64), SHARES, st.floats(0, 1))
def test_vcpus_leave_what_they_do_not_use(share, vcpus, has, used):
    found = guarantee.unused_pcpus(share, vcpus, has, used) / vcpus
    assert 0 <= found <= share / 4
    if used > has:
        assert found == 0
    if found:
        assert float(share - found) >= used


@given(SHARES, st.integers(1, 64))
def test_a_server_costs_what_is_reserved_for_it(share, vcpus):
    reserved = (vcpus * guarantee.vcpu_reservation(
        share, 'default', tick_us=TICK_US).share
        + 2 * guarantee.io_share(share, vcpus))
    assert float(guarantee.cost_pcpus(share, vcpus)) == pytest.approx(
        float(reserved), rel=1e-3)


@given(st.integers(1, 10_000), st.fractions(Fraction(1), Fraction(1000)),
       st.floats(0, 64))
def test_what_is_sold_can_be_reserved(capacity_cu, pcpu_cu, total_pcpus):
    unsold_cu = guarantee.unsold_cu(capacity_cu, total_pcpus, pcpu_cu)
    sold_cu = capacity_cu - unsold_cu
    assert 0 <= unsold_cu <= capacity_cu
    if total_pcpus:
        can_cu = Fraction(repr(total_pcpus)) * pcpu_cu
        assert sold_cu <= can_cu
        # And no less than that.
        assert sold_cu == capacity_cu or sold_cu > can_cu - 1
    else:
        assert unsold_cu == 0


@pytest.mark.parametrize('cu, vcpus, free_cu, part', [
    (60, 1, 70, ''),
    # The I/O of half a pCPU takes a sixth of that.
    (60, 1, 69, '69 CU'),
    (120, 2, 140, ''),
    (120, 2, 139, '139.2'),
    (108, 1, 10_000, ''),
    (109, 1, 10_000, '90%'),
    (60, 1, None, 'no speed'),
])
def test_what_a_host_cannot_guarantee(cu, vcpus, free_cu, part):
    """Of 120 CU each are its pCPUs."""
    refusal = guarantee.refusal(
        Fraction(cu, vcpus * 120), vcpus, Fraction(120), free_cu)
    assert bool(refusal) == bool(part)
    assert part in refusal


@given(st.fractions(Fraction(1, 100), 1), st.floats(500, 5000),
       st.floats(500, 5000))
def test_the_kernel_counts_no_more_than_all(part, mhz, calibrated_mhz):
    found = guarantee.counted_part(part, mhz, calibrated_mhz)
    assert 0 < found <= 1
    assert guarantee.counted_part(
        part, calibrated_mhz, calibrated_mhz) == pytest.approx(float(part))
    # Half the clock, half of each second, unless that was more than all.
    assert guarantee.counted_part(
        part, mhz / 2, calibrated_mhz) >= found / 2 * (1 - 1e-9)
