# SPDX-License-Identifier: Apache-2.0
"""How fast a server is on a host, by its own speed on other hosts."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import learning
from nova_vqos import primitives
from nova_vqos import work

KINDS = tuple(f'kind-{number}' for number in range(6))
EQUAL = dict.fromkeys(KINDS, 1.0)
HOST = st.fixed_dictionaries(
    dict.fromkeys(KINDS, st.floats(0.1, 10.0)))
WEIGHTS = st.fixed_dictionaries(
    dict.fromkeys(KINDS, st.sampled_from((0.0, 0.5, 1.0, 1000.0)))).filter(
        lambda weights: any(weights.values()))
OBSERVATION = st.builds(learning.Observation, HOST, st.floats(-3, 3),
                        st.floats(1e-6, 1.0))
HISTORIES = st.lists(OBSERVATION, max_size=5).map(
    lambda seen: learning.History(tuple(seen)))
CERTAIN = learning.VARIANCES[0]


def make_hosts(chance, hosts, spread=0.2, kinds=KINDS):
    return [{kind: math.exp(chance.gauss(0, spread)) for kind in kinds}
            for _ in range(hosts)]


def make_history(hosts, speed, variance=CERTAIN):
    """:param speed: of the server on a host, by its kinds"""
    return learning.History(tuple(
        learning.Observation(host, math.log(speed(host)), variance)
        for host in hosts))


def mean(host):
    return math.exp(math.fsum(map(math.log, host.values())) / len(host))


def scaled(history, **factors):
    """The same hosts and speeds, by another reference or in another unit."""
    return learning.History(tuple(
        learning.Observation(
            {kind: coefficient * factors.get(kind.replace('-', '_'), 1.0)
             for kind, coefficient in one.kinds.items()},
            one.log_speed + math.log(factors.get('speed', 1.0)),
            one.variance) for one in history.observations))


def close(prediction):
    """Equal but for rounding."""
    return pytest.approx(prediction, rel=1e-6)


@given(HOST, WEIGHTS)
def test_a_server_that_was_never_seen(here, weights):
    found = learning.predict(learning.History(), here, weights)
    assert found.factor == 1.0
    assert found.hosts == 0
    prior = work.Mix(tuple(
        pair for pair in weights.items() if pair[1])).coefficient(here)
    assert found.low * prior == pytest.approx(min(here.values()))
    assert found.high * prior == pytest.approx(max(here.values()))


@given(OBSERVATION, HOST, WEIGHTS)
def test_the_first_move_is_by_the_prior(seen, here, weights):
    found = learning.predict(learning.History((seen,)), here, weights)
    assert found.factor == 1.0
    assert found.hosts == 1
    assert found.low < 1 < found.high


@given(HISTORIES, HOST, WEIGHTS)
def test_it_is_no_slower_or_faster_than_any_kind(history, here, weights):
    """Compared with the same hosts as the server."""
    found = learning.predict(history, here, weights)
    total = math.fsum(weights.values())
    if not history.observations:
        return
    merged = learning.History()
    for one in history.observations:
        merged = merged.extended(one)
    certainty = [1 / (one.variance + 0.03 ** 2) for one in merged.observations]
    factors = []
    for kind in KINDS:
        ratios = []
        for one in merged.observations:
            apart = {k: math.log(here[k] / one.kinds[k]) for k in KINDS}
            ratios.append(apart[kind] - math.fsum(
                weights[k] * apart[k] for k in KINDS) / total)
        factors.append(math.exp(
            math.fsum(c * r for c, r in zip(certainty, ratios, strict=True))
            / math.fsum(certainty)))
    assert min(factors) / 1.0001 <= found.factor <= max(factors) * 1.0001
    assert found.low <= found.factor <= found.high


@given(HISTORIES, HOST, WEIGHTS, st.floats(0.2, 5.0), st.floats(0.01, 100.0))
def test_another_reference_or_unit_of_speed(history, here, weights, factor,
                                            speed):
    """A reference that is faster in one kind changes no ratio of hosts."""
    if len(history.observations) < 1:
        return
    found = learning.predict(
        scaled(history, kind_1=factor, speed=speed),
        here | {'kind-1': here['kind-1'] * factor}, weights)
    assert found == close(learning.predict(history, here, weights))


@given(st.data(), HISTORIES, HOST, WEIGHTS)
def test_the_order_of_hosts_and_kinds_does_not_count(data, history, here,
                                                     weights):
    order = data.draw(st.permutations(history.observations))
    kinds = data.draw(st.permutations(KINDS))
    assert learning.predict(
        learning.History(tuple(order)), {kind: here[kind] for kind in kinds},
        {kind: weights[kind] for kind in kinds},
    ) == close(learning.predict(history, here, weights))


@given(HISTORIES, HOST, WEIGHTS)
def test_what_is_not_certain_leaves_the_prior(history, here, weights):
    """Hosts that differ up to 2.5 times, speeds by a factor of 20 wrong."""
    uncertain = learning.History(tuple(
        learning.Observation(
            {kind: coefficient ** 0.2
             for kind, coefficient in one.kinds.items()},
            one.log_speed / 5, learning.VARIANCES[1])
        for one in history.observations))
    found = learning.predict(
        uncertain, {kind: coefficient ** 0.2 for kind, coefficient
                    in here.items()}, weights)
    assert abs(math.log(found.factor)) < 0.02


@pytest.mark.parametrize('seen', [2, 3, 8])
def test_less_certain_is_closer_to_the_prior(seen):
    """On average: of one server a new hypothesis may become the likeliest."""
    off = dict.fromkeys((1e-6, 1e-3, 1e-2, 0.1, 1.0, 9.0), 0.0)
    chance = random.Random(3)
    for _ in range(40):
        *hosts, here = make_hosts(chance, seen + 1)
        kind = chance.choice(KINDS)
        for variance in off:
            off[variance] += abs(math.log(learning.predict(
                make_history(hosts, lambda host, of=kind: host[of], variance),
                here, EQUAL).factor)) / 40
    assert sorted(off.values(), reverse=True) == list(off.values())
    assert off[1e-6] > 10 * off[9.0]


@pytest.mark.parametrize('kind', KINDS)
def test_a_server_that_is_a_known_kind(kind):
    """The more hosts it is seen on, the closer; at last within 2 %."""
    chance = random.Random(3)
    errors = {}
    for seen in (1, 3, 8, 15):
        found = []
        for _ in range(20):
            *hosts, here = make_hosts(chance, seen + 1)
            real = here[kind] / mean(here) / math.exp(math.fsum(
                math.log(host[kind] / mean(host)) for host in hosts) / seen)
            prediction = learning.predict(
                make_history(hosts, lambda host: host[kind]), here, EQUAL)
            found.append(abs(math.log(real / prediction.factor)))
        errors[seen] = sum(found) / len(found)
    assert errors[15] < 0.02
    assert errors[15] < errors[8] < errors[3] < errors[1]


def test_two_servers_that_were_seen_on_other_hosts():
    """By the factor of the reference, each kind has its own coefficient."""
    chance = random.Random(3)
    here = make_hosts(chance, 1)[0]
    for _ in range(2):
        history = make_history(make_hosts(chance, 16),
                               lambda host: host['kind-2'])
        found, reference = (
            learning.predict(history, host, EQUAL).factor
            for host in (here, dict.fromkeys(KINDS, 1.0)))
        assert found / reference == pytest.approx(
            here['kind-2'] / mean(here), rel=0.03)


def test_a_server_that_is_a_mix_of_kinds():
    chance = random.Random(3)
    *hosts, here = make_hosts(chance, 16)

    def speed(host):
        return host['kind-0'] ** 0.7 * host['kind-1'] ** 0.3
    real = speed(here) / mean(here) / math.exp(math.fsum(
        math.log(speed(host) / mean(host)) for host in hosts) / 15)
    found = learning.predict(make_history(hosts, speed), here, EQUAL)
    assert found.factor == pytest.approx(real, rel=0.05)
    assert found.low < real < found.high
    assert abs(math.log(real)) > 0.05


def test_a_server_like_no_kind_is_known_where_it_was_seen():
    """Also by a host with the same profile, and less so by one alike."""
    chance = random.Random(3)
    hosts = make_hosts(chance, 4, spread=0.3)
    speeds = [-0.2, 0.05, 0.1, 0.05]
    history = learning.History(tuple(
        learning.Observation(host, math.log(mean(host)) + speed, CERTAIN)
        for host, speed in zip(hosts, speeds, strict=True)))
    found = learning.predict(history, dict(hosts[0]), EQUAL)
    assert math.log(found.factor) == pytest.approx(-0.2, abs=0.02)
    alike = {kind: coefficient * math.exp(chance.gauss(0, 0.02))
             for kind, coefficient in hosts[0].items()}
    near = learning.predict(history, alike, EQUAL)
    assert found.factor < near.factor < 0.9
    assert near.high / near.low > found.high / found.low


def test_a_certain_host_counts_more():
    chance = random.Random(3)
    one, other = make_hosts(chance, 2)
    alike = {kind: coefficient * math.exp(chance.gauss(0, 0.02))
             for kind, coefficient in one.items()}

    def ratio(variance):
        """Of one to the other, by two like hosts that contradict."""
        history = learning.History(tuple(
            learning.Observation(host, math.log(mean(host)) + speed, variance)
            for host, speed, variance in (
                (one, 0.1, variance), (alike, 0.0, 1e-4), (other, 0.0, 1e-4))))
        here, there = (learning.predict(history, host, EQUAL).factor
                       for host in (one, other))
        return here / there
    assert ratio(1e-6) > ratio(1e-3) > ratio(1e-2) > ratio(1.0)


def test_the_interval_is_wider_far_from_what_was_seen():
    chance = random.Random(3)
    hosts = make_hosts(chance, 6)
    history = make_history(hosts, mean)
    near, far = ({kind: hosts[0][kind] * math.exp(chance.gauss(0, spread))
                  for kind in KINDS} for spread in (0.02, 0.5))
    near, far = (learning.predict(history, here, EQUAL)
                 for here in (near, far))
    assert near.high / near.low < far.high / far.low


def test_a_host_without_a_kind_counts_by_the_others():
    chance = random.Random(3)
    *hosts, here = make_hosts(chance, 5)
    expected = learning.predict(
        make_history([{kind: host[kind] for kind in KINDS[:-1]}
                      for host in hosts], lambda host: host['kind-0']),
        {kind: here[kind] for kind in KINDS[:-1]},
        dict.fromkeys(KINDS[:-1], 1.0))
    hosts[2] = {kind: hosts[2][kind] for kind in KINDS[:-1]} | {'other': 1.0}
    found = learning.predict(
        make_history(hosts, lambda host: host['kind-0']), here, EQUAL)
    assert found == close(expected)
    assert found.hosts == 4


@pytest.mark.parametrize('kinds', [KINDS[:1], KINDS[:2], ('other', 'more')])
def test_a_host_with_few_kinds_in_common_is_left_out(kinds):
    *hosts, here = make_hosts(random.Random(3), 4)
    history = make_history(hosts, lambda host: host['kind-0'])
    rogue = learning.Observation(dict.fromkeys(kinds, 1.0), 50.0, CERTAIN)
    assert learning.predict(
        learning.History((rogue, *history.observations)), here, EQUAL,
    ) == learning.predict(history, here, EQUAL)
    alone = learning.predict(learning.History((rogue,)), here, EQUAL)
    assert alone == learning.predict(learning.History(), here, EQUAL)


def test_a_mix_of_the_flavor_is_the_prior():
    """A server of that mix is right from the start, and stays so."""
    chance = random.Random(3)
    *hosts, here = make_hosts(chance, 9)
    mix = work.parse('kind-0:0.5,kind-3:0.5')
    for seen in range(9):
        found = learning.predict(
            make_history(hosts[:seen], mix.coefficient), here,
            dict(mix.weights))
        assert found.factor == pytest.approx(1, abs=0.03)


def test_what_the_prior_may_be():
    here = make_hosts(random.Random(3), 1)[0]
    with pytest.raises(work.KindMissing) as raised:
        learning.predict(learning.History(), here, {'hash': 1.0})
    assert raised.value.kind == 'hash'
    for weights in ({}, {'kind-0': 0.0}, {'kind-0': -1.0},
                    {'kind-0': math.nan}, {'kind-0': math.inf}):
        with pytest.raises(ValueError, match='weights'):
            learning.predict(learning.History(), here, weights)
    with pytest.raises(learning.HistoryInvalid):
        learning.predict(learning.History(), {'kind-0': 0.0}, EQUAL)


@pytest.mark.parametrize(('fields', 'says'), [
    ({'kinds': {}}, 'kinds has 0'),
    ({'kinds': {f'k{number}': 1.0 for number in range(65)}}, 'kinds has 65'),
    ({'kinds': {'A b': 1.0}}, "kinds has 'A b'"),
    ({'kinds': {'integer': 0.0}}, 'coefficient of integer is 0.0'),
    ({'kinds': {'integer': math.nan}}, 'coefficient of integer is nan'),
    ({'kinds': {'integer': 1001.0}}, 'coefficient of integer is 1001.0'),
    ({'log_speed': math.inf}, 'log_speed is inf'),
    ({'log_speed': math.nan}, 'log_speed is nan'),
    ({'log_speed': -60.1}, 'log_speed is -60.1'),
    ({'variance': 0.0}, 'variance is 0.0'),
    ({'variance': 9.1}, 'variance is 9.1')])
def test_what_no_observation_may_be(fields, says):
    good = {'kinds': {'integer': 1.0}, 'log_speed': 0.0, 'variance': 0.01}
    with pytest.raises(learning.HistoryInvalid) as raised:
        learning.Observation(**(good | fields))
    assert says in str(raised.value)


def test_a_message_of_another_host():
    history = make_history(make_hosts(random.Random(3), 3), mean)
    message = primitives.to_primitives(history)
    assert primitives.parse(learning.History, message) == history
    message['observations'][1]['variance'] = 0
    with pytest.raises(primitives.MessageInvalid, match='variance'):
        primitives.parse(learning.History, message)
    message['observations'][1]['variance'] = 'small'
    with pytest.raises(primitives.MessageInvalid, match='variance'):
        primitives.parse(learning.History, message)


def test_a_history_has_a_limit():
    hosts = make_hosts(random.Random(3), learning.MOST_HOSTS + 1)
    with pytest.raises(learning.HistoryInvalid):
        make_history(hosts, mean)


def test_hosts_with_the_same_profile_are_one():
    one, other = make_hosts(random.Random(3), 2)
    history = learning.History()
    for host, speed, variance in ((one, 0.0, 0.04), (other, 1.0, 0.01),
                                  (dict(reversed(one.items())), 0.3, 0.02)):
        history = history.extended(
            learning.Observation(host, speed, variance))
    found = {seen.log_speed: seen for seen in history.observations}
    assert len(found) == 2
    assert found.pop(1.0) == learning.Observation(other, 1.0, 0.01)
    (merged,) = found.values()
    assert merged.kinds == one
    assert merged.log_speed == pytest.approx(0.2)
    assert merged.variance == pytest.approx(0.04 / 3)


def test_the_same_host_again_and_again():
    one = make_hosts(random.Random(3), 1)[0]
    history = learning.History()
    for _ in range(100):
        history = history.extended(learning.Observation(one, 0.1, CERTAIN))
    (seen,) = history.observations
    assert seen.variance == CERTAIN
    assert seen.log_speed == pytest.approx(0.1)


def test_a_long_history_leaves_out_one_of_those_alike():
    hosts = make_hosts(random.Random(3), learning.MOST_HOSTS)
    alike = {kind: coefficient * 1.001 for kind, coefficient
             in hosts[4].items()}
    history = make_history(hosts, mean, variance=0.01)
    kept = history.extended(learning.Observation(alike, 0.0, 0.02))
    assert {one.log_speed for one in kept.observations} == {
        one.log_speed for one in history.observations}
    kept = history.extended(learning.Observation(alike, 7.0, 0.001))
    assert len(kept.observations) == learning.MOST_HOSTS
    assert {one.log_speed for one in kept.observations} == {
        one.log_speed for one in history.observations
        if one.kinds != hosts[4]} | {7.0}


@given(st.lists(st.tuples(
    st.dictionaries(st.sampled_from(KINDS), st.sampled_from((0.5, 1.0, 2.0)),
                    min_size=1), st.floats(-60, 60)), max_size=40), HOST)
def test_any_history_stays_within_its_limits(seen, here):
    history = learning.History()
    for kinds, speed in seen:
        history = history.extended(
            learning.Observation(kinds, speed, CERTAIN))
    found = learning.predict(history, here, EQUAL)
    assert 0 < found.low <= found.factor <= found.high < math.inf
    assert found.hosts <= len(history.observations) <= learning.MOST_HOSTS
