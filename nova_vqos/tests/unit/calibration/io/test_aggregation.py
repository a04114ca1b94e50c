# SPDX-License-Identifier: Apache-2.0
"""The size of containers, against formulas and simulations of its own."""

import math

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from nova_vqos.calibration.io import aggregation

RATE = 800_000.0
SEED = 4
# The aim of the model.
TOLERANCE = 0.05

rates = strategies.floats(1e3, 1e6)
loads = strategies.floats(0.05, 0.95)


def erlang_wait_s(stages, per_s, mean_s):
    """G/M/1: exact, by the root of its equation."""
    low, high = 0.0, 1.0 - 1e-9
    for _ in range(200):
        root = (low + high) / 2
        found = (1 + (1 - root) / (mean_s * stages * per_s)) ** -stages
        low, high = (root, high) if found > root else (low, root)
    return mean_s * root / (1 - root)


def simulated_wait_s(size, streams, transfer, containers=200_000):
    """Containers of exactly so many packets, one after the other."""
    random = np.random.default_rng(SEED)
    ends_s = containers * size / sum(streams)
    arrivals = []
    for rate in streams:
        times = np.cumsum(random.gamma(
            size, 1 / rate, int(1.2 * ends_s * rate / size)))
        times -= random.random() * times[0]
        arrivals.append(times[times < ends_s])
    at = np.sort(np.concatenate(arrivals))
    took = random.gamma(transfer.stages,
                        transfer.container_s / transfer.stages, len(at))
    # Lindley's recursion: earlier containers leave some work, or none.
    walk = np.cumsum(np.concatenate([[0], took[:-1] - np.diff(at)]))
    return float((walk - np.minimum.accumulate(walk)).mean())


def simulated_filling(size, rate, timer_s, packets=40_000):
    """:returns: packets of a container, and a packet's wait, both means"""
    arrivals = np.cumsum(np.random.default_rng(SEED).exponential(
        1 / rate, packets))
    first, waits, containers = 0, 0.0, 0
    while first + size < packets:
        end = min(first + size, int(np.searchsorted(
            arrivals, arrivals[first] + timer_s, side='right')))
        closed = (arrivals[end - 1] if end == first + size
                  else arrivals[first] + timer_s)
        waits += (closed - arrivals[first:end]).sum()
        containers += 1
        first = end
    return first / containers, waits / first


def transfer_of(load, size=160, streams=(RATE,)):
    return aggregation.Transfer(load * size / sum(streams))


def test_the_example_of_the_model():
    filled = aggregation.Filling(160, RATE)
    assert filled.packets == 160
    assert filled.wait_s == pytest.approx(99.4e-6, rel=1e-3)
    # Their distance is Erlang's of as many stages.
    assert filled.regularity == pytest.approx(160)


@pytest.mark.parametrize('stages', [1, 4, 12, 20])
@pytest.mark.parametrize('load', [0.1, 0.5, 0.8, 0.95])
def test_regular_arrivals(stages, load):
    per_s = 5000.0
    assert aggregation.mean_wait_s(
        aggregation.erlang_arrivals(stages, per_s),
        aggregation.erlang_service(1, load / per_s)) == pytest.approx(
            erlang_wait_s(stages, per_s, load / per_s), rel=1e-6)


@pytest.mark.parametrize('stages', [1, 2, 5, 20])
@pytest.mark.parametrize('load', [0.1, 0.5, 0.95])
def test_regular_services(stages, load):
    """M/G/1: the formula of Pollaczek and Khinchine."""
    assert aggregation.mean_wait_s(
        aggregation.erlang_arrivals(1, 1.0),
        aggregation.erlang_service(stages, load)) == pytest.approx(
            load ** 2 * (1 + 1 / stages) / 2 / (1 - load), rel=1e-6)


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True)
@hypothesis.given(strategies.lists(rates, min_size=1, max_size=7), loads)
def test_random_streams_together_are_random(streams, load):
    per_s = sum(streams)
    found = aggregation.mean_wait_s(
        aggregation.superpose([aggregation.erlang_arrivals(1, rate)
                               for rate in streams]),
        aggregation.erlang_service(1, load / per_s))
    assert found == pytest.approx(load / per_s * load / (1 - load), rel=1e-6)


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
@hypothesis.given(strategies.integers(1, 400), rates, loads,
                  strategies.integers(2, 20))
def test_steadier_streams_and_services_wait_less(size, rate, load, stages):
    slow = aggregation.Transfer(load * size / rate)
    steady = slow._replace(stages=stages)
    alone = aggregation.delay(size, [rate], slow)
    assert aggregation.delay(size, [rate], steady).wait_s <= alone.wait_s
    # The same load by single packets.
    single = aggregation.delay(1, [rate / size], slow)
    assert alone.wait_s <= single.wait_s * (1 + 1e-9)


@pytest.mark.parametrize('streams', [1, 2, 3, 4, 7])
@pytest.mark.parametrize('load', [0.5, 0.8, 0.9])
def test_against_a_simulation(streams, load):
    rates = [RATE] * streams
    transfer = transfer_of(load, streams=rates)
    found = aggregation.delay(160, rates, transfer)
    simulated = simulated_wait_s(160, rates, transfer)
    assert found.total_s == pytest.approx(
        found.fill_s + simulated + found.transfer_s, rel=TOLERANCE)
    assert found.wait_s == pytest.approx(simulated, rel=0.15)


def test_unlike_streams_and_steady_services_against_a_simulation():
    rates = [RATE, RATE / 2, RATE / 10]
    transfer = transfer_of(0.8, streams=rates)._replace(stages=2)
    found = aggregation.delay(160, rates, transfer)
    assert found.wait_s == pytest.approx(
        simulated_wait_s(160, rates, transfer), rel=TOLERANCE)


def test_more_stages_come_closer_to_a_simulation():
    transfer = transfer_of(0.8)
    service = aggregation.erlang_service(1, transfer.container_s)
    simulated = simulated_wait_s(160, [RATE], transfer)
    off_by = [aggregation.mean_wait_s(aggregation.erlang_arrivals(
        stages, RATE / 160), service) / simulated - 1
        for stages in (4, 12, 20)]
    assert off_by == sorted(off_by, reverse=True)
    assert 0 < off_by[-1] < 0.1
    # And what is extrapolated from the last is closer yet.
    found = aggregation.delay(160, [RATE], transfer)
    assert abs(found.wait_s / simulated - 1) < off_by[-1] / 2


@pytest.mark.parametrize('rate', [1e3, 1e4, 1e5, 6e5, 1e6])
@pytest.mark.parametrize('size', [1, 2, 20, 160])
def test_a_timer_against_a_simulation(size, rate):
    filled = aggregation.Filling(size, rate, 200e-6)
    packets, wait_s = simulated_filling(size, rate, 200e-6)
    assert filled.packets == pytest.approx(packets, rel=0.02)
    assert filled.wait_s == pytest.approx(wait_s, rel=0.02)


def test_the_shape_over_the_rate():
    """As long as the timer, half of it, and then less and less."""
    timer_s = 200e-6
    waits = [aggregation.Filling(160, rate, timer_s).wait_s
             for rate in (100, 4e5, 8e5, 1.6e6, 3.2e6)]
    assert waits[0] == pytest.approx(timer_s, rel=0.02)
    assert waits[1] == pytest.approx(timer_s / 2, rel=0.02)
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] == pytest.approx(159 / 2 / 3.2e6)


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True)
@hypothesis.given(rates, strategies.floats(1e-7, 5e-5),
                  strategies.floats(0, 0.9),
                  strategies.lists(strategies.floats(1e-5, 3e-3), min_size=2,
                                   max_size=4))
def test_the_size_falls_with_the_budget(rate, container_s, packet_load,
                                        budgets):
    transfer = aggregation.Transfer(container_s, packet_load / rate)
    sizes = [aggregation.largest_size(budget_s, [rate], transfer) or 0
             for budget_s in sorted(budgets)]
    assert sizes == sorted(sizes)
    for budget_s, size in zip(sorted(budgets), sizes, strict=True):
        if 0 < size < aggregation.MOST_PACKETS:
            assert aggregation.delay(
                size, [rate], transfer).total_s <= budget_s
            assert aggregation.delay(
                size + 1, [rate], transfer).total_s > budget_s


def test_the_size_of_the_model_depends_on_what_a_packet_takes():
    """The paper prints no service rate, and 160 packets in 300 us allow many.

    With a time of each packet a container of 160 takes 300 us at a load of
    0.77; with the same time for each container, so does one twice as large.
    """
    streams = [RATE, RATE]
    by_packet = aggregation.Transfer(1e-9, 0.77 / sum(streams))
    size = aggregation.largest_size(300e-6, streams, by_packet)
    assert size == pytest.approx(160, rel=TOLERANCE)
    by_container = aggregation.Transfer(by_packet.packet_s * 160)
    assert aggregation.delay(160, streams, by_container).total_s == (
        pytest.approx(300e-6, rel=TOLERANCE))
    assert aggregation.largest_size(300e-6, streams, by_container) > 320


def test_an_overload():
    transfer = aggregation.Transfer(10e-6)
    assert aggregation.delay(8, [RATE], transfer).wait_s == math.inf
    assert math.isfinite(aggregation.delay(16, [RATE], transfer).wait_s)
    # Small ones are an overload, and large ones are not filled in time.
    assert aggregation.largest_size(12e-6, [RATE], transfer) is None
    assert aggregation.largest_size(1e-3, [RATE], transfer, most=8) is None


@pytest.mark.parametrize(('change', 'key', 'value'), [
    ({'size': 0}, 'size', '0'),
    ({'size': aggregation.MOST_PACKETS + 1}, 'size', '4097'),
    ({'streams': []}, 'streams', '0'),
    ({'streams': [1.0] * 8}, 'streams', '8'),
    ({'streams': [0.0]}, 'packets/s', '0.0'),
    ({'streams': [math.inf]}, 'packets/s', 'inf'),
    ({'transfer': aggregation.Transfer(0)}, 'container_s', '0'),
    ({'transfer': aggregation.Transfer(math.nan)}, 'container_s', 'nan'),
    ({'transfer': aggregation.Transfer(1e-6, -1)}, 'packet_s', '-1'),
    ({'transfer': aggregation.Transfer(1e-6, 0, 0)}, 'stages', '0'),
    ({'transfer': aggregation.Transfer(1e-6, 0, 21)}, 'stages', '21'),
    ({'timer_s': 0}, 'timer_s', '0'),
])
def test_refused(change, key, value):
    given = {'size': 2, 'streams': [1000.0],
             'transfer': aggregation.Transfer(1e-6)} | change
    with pytest.raises(ValueError, match=key) as error:
        aggregation.delay(**given)
    assert value in str(error.value)


@pytest.mark.parametrize(('budget_s', 'most'), [
    (0, 8), (math.nan, 8), (math.inf, 8), (1e-3, 0),
    (1e-3, aggregation.MOST_PACKETS + 1)])
def test_refused_searches(budget_s, most):
    with pytest.raises(ValueError, match='must be'):
        aggregation.largest_size(budget_s, [RATE],
                                 aggregation.Transfer(1e-6), most)
