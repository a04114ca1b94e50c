# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import units

coefficients = st.floats(min_value=0.01, max_value=100).map(
    lambda c: round(c, 6))
server_units = st.integers(min_value=1, max_value=100_000)
server_vcpus = st.integers(min_value=1, max_value=512)
ticks_us = st.sampled_from([1000, 2500, 3333, 4000, 10_000])
periods_us = st.integers(min_value=units.MIN_PERIOD_US,
                         max_value=units.MAX_PERIOD_US)


def names(arguments):
    """The start of an error about an argument."""
    return rf'(?i)\b{min(arguments).removesuffix("_us")}.* must be'


@pytest.mark.parametrize(
    'server, vcpus, coefficient, expected', [
        (100, 1, 1.0, (50_000, 50_000)),
        (60, 1, 1.0, (30_000, 50_000)),
        (60, 1, 2.5, (12_000, 50_000)),
        (60, 2, 1.0, (15_000, 50_000)),
        # As a binary fraction 0.6 is a little less than six tenths.
        (60, 1, 0.6, (50_000, 50_000)),
        (100, 3, 0.5, (33_333, 50_000)),
        # The quota stays at two ticks, the period is stretched.
        (10, 1, 1.0, (8_000, 80_000)),
        (1, 1, 1.25, (8_000, 1_000_000)),
    ])
def test_cap(server, vcpus, coefficient, expected):
    cap = units.cap(server, vcpus, coefficient, tick_us=4000)
    assert (cap.quota_us, cap.period_us) == expected


def test_cap_stretches_to_libvirts_least_quota_on_a_short_tick():
    assert units.cap(1, 1, 1.0, tick_us=250) == units.CpuCap(1000, 100_000)


def test_too_fast_is_refused_with_what_would_do():
    with pytest.raises(units.HostTooSlow) as caught:
        units.cap(150, 1, 1.2, tick_us=4000)
    assert caught.value.needed_coefficient == Fraction(3, 2)
    for says in ('a vCPU of 150 CU', 'the pCPU, which has 120 CU', '1.5'):
        assert says in str(caught.value)


def test_too_slow_is_refused_with_the_least():
    with pytest.raises(units.ShareTooSmall) as caught:
        units.cap(1, 1, 2.0, tick_us=4000)
    assert caught.value.least_cu == Fraction(8, 5)
    assert '1.6 CU per vCPU' in str(caught.value)


@pytest.mark.parametrize('arguments', [
    {'units': 0}, {'units': -1}, {'vcpus': 0}, {'coefficient': 0.0},
    {'coefficient': -1.0}, {'coefficient': float('nan')},
    {'coefficient': float('inf')}, {'tick_us': 99}, {'tick_us': 10_001},
    {'period_us': 999}, {'period_us': 1_000_001}])
def test_arguments_out_of_range(arguments):
    good = {'units': 60, 'vcpus': 1, 'coefficient': 1.0, 'tick_us': 4000}
    units.cap(**good)
    with pytest.raises(ValueError, match=names(arguments)):
        units.cap(**(good | arguments))


@pytest.mark.parametrize('period_us, tick_us, expected_us', [
    (1000, 100, 1000), (1000, 10_000, 20_000), (1_000_000, 100, 1_000_000)])
def test_the_ends_of_the_ranges(period_us, tick_us, expected_us):
    assert units.cap(100, 1, 1.0, tick_us=tick_us, period_us=period_us) == (
        expected_us, expected_us)


@given(server_units, server_vcpus, coefficients, ticks_us, periods_us)
def test_cap_is_exact_or_none(server, vcpus, coefficient, tick_us, period_us):
    exact = Fraction(server, vcpus) / units.pcpu_cu(coefficient)
    try:
        cap = units.cap(server, vcpus, coefficient, tick_us=tick_us,
                        period_us=period_us)
    except units.HostTooSlow as error:
        assert exact > 1
        # The coefficient that the error asks for would really do.
        units.cap(server, vcpus, float(error.needed_coefficient) * 1.0001,
                  tick_us=1000)
    except units.ShareTooSmall as error:
        assert exact * units.MAX_PERIOD_US < max(1000, 2 * tick_us)
        assert error.least_cu > error.cu_per_vcpu
    else:
        assert abs(cap.share / exact - 1) <= Fraction(1, 1000)
        assert cap.share <= 1
        assert cap.quota_us >= max(units.MIN_QUOTA_US, 2 * tick_us)
        assert period_us <= cap.period_us <= units.MAX_PERIOD_US
        assert isinstance(cap.quota_us, int)
        assert isinstance(cap.period_us, int)


@given(server_units, server_vcpus, coefficients)
def test_cap_and_back(server, vcpus, coefficient):
    try:
        cap = units.cap(server, vcpus, coefficient, tick_us=1000)
    except units.UnitsError:
        return
    back = cap.share * units.pcpu_cu(coefficient) * vcpus
    assert abs(back / server - 1) <= Fraction(1, 1000)


@given(st.integers(1, 1000), coefficients, coefficients)
def test_work_is_the_same_on_any_two_hosts(server, one, other):
    """The promise: share times speed does not depend on the host."""
    try:
        caps = [units.cap(server, 1, c, tick_us=4000) for c in (one, other)]
    except units.UnitsError:
        return
    work = [cap.share * units.pcpu_cu(c)
            for cap, c in zip(caps, (one, other), strict=True)]
    assert abs(work[0] / work[1] - 1) <= Fraction(2, 1000)


@given(coefficients, ticks_us)
def test_least_cu_is_the_boundary(coefficient, tick_us):
    least = units.least_cu_per_vcpu(coefficient, tick_us=tick_us)
    whole = -(-least // 1)
    if whole <= units.pcpu_cu(coefficient):
        units.cap(int(whole), 1, coefficient, tick_us=tick_us)
    if whole > 1:
        with pytest.raises(units.ShareTooSmall):
            units.cap(int(whole) - 1, 1, coefficient, tick_us=tick_us)


def test_share_is_exact():
    assert units.share(60, 2, 0.6) == Fraction(1, 2)
    assert units.share(120, 1, 0.6) == 2


@pytest.mark.parametrize('share, expected', [
    # 90 ms of 45 % are 200 ms.
    (Fraction(45, 100), 200_000), (Fraction(449, 1000), 50_000),
    (Fraction(46, 100), 200_000), (Fraction(60, 100), 150_000),
    (Fraction(90, 100), 100_000), (Fraction(999, 1000), 100_000),
    # Never stopped: any period would do.
    (Fraction(1), 50_000), (Fraction(2), 50_000),
    (Fraction(1, 10**9), 50_000)])
def test_a_period_that_holds_a_slice_of_90_ms(share, expected):
    assert units.holding_period_us(share, 90_000, 50_000, 200_000) == expected


@pytest.mark.parametrize('share, longest_us', [
    (Fraction(3, 5), 200_000),
    # The longest is below the plain one.
    (Fraction(1, 2), 49_999)])
def test_the_plain_period_is_kept(share, longest_us):
    assert units.holding_period_us(share, 30_000, 50_000, longest_us) == 50_000


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=2),
       st.integers(1, 100_000), periods_us, periods_us)
def test_the_least_holding_period(share, slice_us, period_us, longest_us):
    found_us = units.holding_period_us(share, slice_us, period_us, longest_us)
    assert isinstance(found_us, int)
    if share >= 1:
        assert found_us == period_us
        return
    multiples_us = range(period_us, longest_us + 1, period_us)
    holding_us = [one for one in multiples_us if share * one >= slice_us]
    assert found_us == (holding_us[0] if holding_us else period_us)
    if holding_us:
        # Also after rounding, as it is written.
        cap = units.cap_of_share(share, tick_us=4000, period_us=found_us)
        assert cap.quota_us >= slice_us


@pytest.mark.parametrize('arguments', [
    {'share': Fraction(0)}, {'share': Fraction(-1)}, {'slice_us': 0},
    {'period_us': 999}, {'period_us': 1_000_001}, {'longest_us': 999},
    {'longest_us': 1_000_001}])
def test_a_holding_period_out_of_range(arguments):
    good = {'share': Fraction(1, 2), 'slice_us': 90_000, 'period_us': 50_000,
            'longest_us': 200_000}
    units.holding_period_us(**good)
    with pytest.raises(ValueError, match=names(arguments)):
        units.holding_period_us(**(good | arguments))


def test_capacity_rounds_down_once():
    assert units.capacity_cu([0.333] * 3) == 99
    assert units.capacity_cu([0.1] * 10) == 100
    assert units.capacity_cu([]) == 0


@given(st.lists(coefficients, max_size=300))
def test_capacity_is_never_oversold(pcpu_coefficients):
    capacity = units.capacity_cu(pcpu_coefficients)
    exact = sum(map(units.pcpu_cu, pcpu_coefficients))
    assert capacity <= exact < capacity + 1


@pytest.mark.parametrize('server, version, expected', [
    (100, 1, 1024), (100, 2, 100), (60, 1, 614), (60, 2, 60), (1, 1, 10),
    (1, 2, 2), (10**6, 1, 262_144), (10**6, 2, 10_000)])
def test_shares(server, version, expected):
    assert units.shares(server, version) == expected


def test_shares_of_an_unknown_cgroup_version():
    with pytest.raises(ValueError, match='must be 1 or 2'):
        units.shares(60, 3)


@pytest.mark.parametrize('value, expected', [
    (60, '60'), (100.0, '100'), (33.333, '33.33'), (0.5, '0.5')])
def test_format_cu(value, expected):
    assert units.format_cu(value) == expected
