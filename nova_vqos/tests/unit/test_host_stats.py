# SPDX-License-Identifier: Apache-2.0
"""The one codec of what a host reports, and what it makes of nonsense."""

import datetime
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import host_stats
from nova_vqos.quantum import occupancy

WHOLE = host_stats.HostStats(
    profile=host_stats.VALID, profile_id='f00f00f00f00f00f',
    slowest_cu=Decimal('33.4'), fastest_cu=Decimal(200),
    least_cu=Decimal('0.2672'), core_types=(
        host_stats.CoreTypeRoom(Decimal('33.4'), 320, Decimal('0.2672')),
        host_stats.CoreTypeRoom(Decimal(200), 400, Decimal('1.6'))),
    room_cu=720, agent_seen_at=datetime.datetime(
        2026, 11, 22, 10, tzinfo=datetime.UTC),
    quantum_classes=('default', 'io'), quantum_pools=occupancy.Occupancy(
        {'io': occupancy.PoolSize(1, 4), 'cache': occupancy.PoolSize(2, 3)},
        5),
    dd_billing=('off', 'account'), guarantee_cu=120,
    largest_vcpu_cu=Decimal('26.666667'), pieces=(
        host_stats.Piece(100, 3), host_stats.Piece(40, 12)), stranded_cu=480,
    sells_units=True, work=(
        host_stats.WorkSpeeds(Decimal('33.4'), {
            'integer': 0.341, 'memory-chase': 0.2987654321098765}),
        host_stats.WorkSpeeds(Decimal(200), {'integer': 2.1})), servers=12,
    keeps_ceilings=True)
TEXTS = {
    'vqos_profile': 'valid', 'vqos_profile_id': 'f00f00f00f00f00f',
    'vqos_slowest_cu': '33.4', 'vqos_fastest_cu': '200',
    'vqos_least_cu': '0.2672',
    'vqos_classes': '33.4:320:0.2672 200:400:1.6', 'vqos_room_cu': '720',
    'vqos_agent_seen_at': '2026-11-22T10:00:00+00:00',
    'vqos_quantum_classes': 'default,io',
    'vqos_quantum_pools': 'cache:2:3 io:1:4 polluters:5',
    'vqos_dd_billing': 'off,account', 'vqos_guarantee_cu': '120',
    'vqos_largest_vcpu_cu': '26.666667', 'vqos_pieces': '100:3 40:12',
    'vqos_stranded_cu': '480', 'vqos_sells_units': 'True',
    'vqos_work': '33.4=integer:34.1,memory-chase:29.87654321098765 '
                 '200=integer:210', 'vqos_servers': '12',
    'vqos_keeps_ceilings': 'True'}

CU = st.decimals(0, 999_999, allow_nan=False, places=17)
NAMES = st.lists(st.from_regex('[a-z_]{1,9}', fullmatch=True),
                 max_size=9).map(tuple)
COUNTS = st.integers(0, occupancy.MOST)
POOLS = st.builds(
    occupancy.Occupancy,
    st.dictionaries(st.sampled_from(occupancy.NAMES),
                    st.builds(occupancy.PoolSize, COUNTS, COUNTS)),
    st.none() | COUNTS)
WORK = st.lists(st.builds(
    host_stats.WorkSpeeds, CU, st.dictionaries(
        st.from_regex('[a-z0-9][a-z0-9-]{0,9}', fullmatch=True),
        st.floats(0.001, 1000), min_size=1, max_size=5)), max_size=4).map(
            lambda found: tuple(sorted(found, key=lambda one: one.speed_cu)))
STATS = st.builds(
    host_stats.HostStats,
    profile=st.text(st.characters(exclude_categories=('C', 'Z')),
                    max_size=255),
    profile_id=st.from_regex('[0-9a-f]{0,16}', fullmatch=True),
    slowest_cu=st.none() | CU, fastest_cu=st.none() | CU,
    least_cu=st.none() | CU,
    core_types=st.lists(st.builds(
        host_stats.CoreTypeRoom, CU, st.integers(0, 10**10 - 1), CU),
        max_size=4).map(sorted).map(tuple),
    room_cu=st.none() | st.integers(0, 10**10 - 1),
    agent_seen_at=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    quantum_classes=NAMES, quantum_pools=POOLS, dd_billing=NAMES,
    guarantee_cu=st.none() | st.integers(0, 10**10 - 1),
    largest_vcpu_cu=st.none() | CU,
    pieces=st.lists(st.builds(
        host_stats.Piece, st.integers(0, 10**8 - 1),
        st.integers(1, 10**6 - 1)), max_size=9, unique_by=lambda one: one.cu
        ).map(lambda found: tuple(sorted(found, reverse=True))),
    stranded_cu=st.none() | st.integers(0, 10**10 - 1),
    sells_units=st.booleans(), work=WORK,
    servers=st.none() | st.integers(0, 10**10 - 1),
    keeps_ceilings=st.booleans())
# What the parts of stats are made of, in any order, and anything else.
PARTS = st.lists(st.sampled_from([
    '0', '60', '1', '9' * 6, '9' * 40, '.', ':', ' ', ',', '-', '+00:00', 'T',
    'e', 'E+', 'NaN', 'Infinity', '_', '\n', '\0', '٦', '²', 'cache', 'io',
    'polluters', 'True', 'valid', '2026-11-22T10:00:00']),
    max_size=12).map(''.join)
ANYTHING = st.one_of(
    PARTS, st.text(max_size=300), st.none(), st.integers(), st.floats(),
    st.booleans(), st.binary(), st.just([]), st.just({}))


def decode(**stats):
    return host_stats.decode(host_stats.texts_of(stats))


def is_within_bounds(stats):
    cus = [stats.slowest_cu, stats.fastest_cu, stats.least_cu,
           stats.largest_vcpu_cu,
           *(cu for one in stats.core_types for cu in (one[0], one[2]))]
    rooms_cu = [stats.room_cu or 0, stats.stranded_cu or 0,
                *(one[1] for one in stats.core_types)]
    sizes = stats.quantum_pools.pools.values()
    return (
        len(stats.profile) <= 255 and stats.profile.isprintable()
        and all(cu is None or 0 <= cu < 10**6 for cu in cus)
        and all(0 <= room_cu < 10**10 for room_cu in rooms_cu)
        and all(0 <= number <= occupancy.MOST for size in sizes
                for number in size)
        and [one[0] for one in stats.core_types] == sorted(
            one[0] for one in stats.core_types)
        and all(0 <= cu < 10**8 and 0 <= pcpus < 10**6
                for cu, pcpus in stats.pieces)
        and list(stats.pieces) == sorted(set(stats.pieces), reverse=True)
        and len(stats.core_types) < 52 and len(stats.pieces) < 65
        and len(stats.quantum_classes) < 129
        and (stats.agent_seen_at is None
             or stats.agent_seen_at.tzinfo is datetime.UTC))


def test_as_it_is_reported():
    assert host_stats.encode(WHOLE) == TEXTS
    assert decode(**TEXTS, uptime='1 day') == WHOLE
    assert tuple(TEXTS) == host_stats.KEYS


def test_a_host_of_stock_nova():
    assert decode(uptime='1 day') == host_stats.HostStats()
    texts = host_stats.encode(host_stats.HostStats())
    assert texts == {**dict.fromkeys(TEXTS, ''), 'vqos_sells_units': 'False',
                     'vqos_keeps_ceilings': 'False'}


@given(STATS)
def test_nothing_is_lost_on_the_way(stats):
    texts = host_stats.encode(stats)
    assert tuple(texts) == host_stats.KEYS
    assert all(type(text) is str for text in texts.values())
    # 4 types of 17 decimals, each number at its longest, have no place.
    if len(texts['vqos_classes'].split()) < len(stats.core_types):
        stats = stats._replace(core_types=())
        texts['vqos_classes'] = ''
    assert decode(**texts) == stats


@given(st.text())
def test_any_reason_can_be_reported(reason):
    found = decode(**host_stats.encode(WHOLE._replace(profile=reason)))
    assert found._replace(profile=host_stats.VALID) == WHOLE


@given(st.dictionaries(st.sampled_from(host_stats.KEYS), ANYTHING))
def test_nonsense_is_the_one_error(stats):
    try:
        found = decode(**stats)
    except host_stats.StatInvalid as error:
        assert stats[error.key] == error.value or error.value != error.value
        assert error.expected in str(error)
        assert str(error).isprintable()
        assert len(str(error)) < 300
    else:
        assert is_within_bounds(found)
    assert isinstance(host_stats.sells_units(stats), bool)


@pytest.mark.parametrize(('key', 'texts'), [
    *((f'vqos_{key}_cu', ('9e999999', '1e3', 'Infinity', 'NaN', 'sNaN', '-1',
                          '+1', ' 1', '1_0', '٦٠', '²', '1000000', '.5', '5.',
                          '60\n', f'1.{"1" * 25}', '9' * 10**6))
      for key in ('slowest', 'fastest', 'least', 'largest_vcpu')),
    ('vqos_classes', (
        '80', '80:320', '80:x:1', 'a:320:1', '80:320:1:1', '80:1.5:1',
        '9e999999:100:1', '80:320:1  80:320:1', '80:320:1 79:1:1',
        '80:99999999999:1', ' '.join(['1:1:1'] * 50))),
    *((key, ('-5', '1_0', '٦٠', '9' * 11, '1e3', 'nan', '1.0'))
      for key in ('vqos_room_cu', 'vqos_guarantee_cu', 'vqos_stranded_cu',
                  'vqos_servers')),
    ('vqos_pieces', (
        ' ', '40', '40:', ':1', '40:1:1', '40:-1', '40:1.5', '4_0:1', '٤٠:1',
        'a:1', '40:1 100:1', '40:1 40:1', '40:1  30:1', '999999999:1',
        '40:1000000', ' '.join(f'{cu}:1' for cu in range(99, 9, -1)))),
    ('vqos_agent_seen_at', (
        'yesterday', '2026-11-21T07:10:00', '2026-11-21T07:10:00+01:00',
        '2026-11-21', '0000-01-01T00:00:00+00:00',
        '2026-13-01T00:00:00+00:00', '٢026-11-21T07:10:00+00:00')),
    *((f'vqos_{key}', ('IO', 'io,', ',', 'io io', 'é', 'x' * 33,
                       ','.join(['io'] * 99)))
      for key in ('quantum_classes', 'dd_billing')),
    ('vqos_quantum_pools', (
        ' ', 'cache', 'cache:2', 'cache:2:3:4', 'cache:a:b', 'cache:-1:3',
        'cache:1_0:3', 'cache:²:3', 'cache:٣:3', 'polluters', 'polluters:',
        'polluters:1:2', 'cache:1:2 io:?', 'cache:2:3 cache:2:3',
        'polluters:1 polluters:1', 'gold:1:1 ' * 30, 'cache:1000000:1')),
    ('vqos_profile', ('x' * 256, 'x\n2026-11-22 CRITICAL forged', '\x9b',
                      '\u202e')),
    ('vqos_profile_id', ('F00', 'x', 'f' * 65)),
    ('vqos_sells_units', ('true', '1', 'Yes')),
    ('vqos_work', (
        ' ', '80', '80=', '80=integer', '80=integer:', '80=Integer:1',
        '80=integer:0', '80=integer:x', '80=integer:1e3', '80=integer:-1',
        '80=integer:1,integer:1', '80=integer:1  90=integer:1',
        '90=integer:1 80=integer:1', '=integer:1', '80=integer:٦',
        f'80={"x" * 33}:1', ','.join(['80=integer:1'] * 200))),
    *((key, (None, 5, True, b'1', ['1'])) for key in TEXTS)])
def test_what_no_host_reports(key, texts):
    for text in texts:
        with pytest.raises(host_stats.StatInvalid) as caught:
            decode(**TEXTS | {key: text})
        assert (caught.value.key, caught.value.value) == (key, text)
        # It goes to the scheduler's log.
        assert str(caught.value).isprintable()


def test_what_a_newer_version_adds_is_left_out():
    found = decode(
        vqos_quantum_classes='default,io,gold', vqos_moon='full',
        vqos_quantum_pools='cache:2:3 gold:1:1 io:1:4 polluters:5 moon:7')
    assert found.quantum_pools == WHOLE.quantum_pools
    assert 'io' in found.quantum_classes


def test_core_types_that_have_no_place():
    """Those with the least room are left out, never the other way round."""
    core_types = tuple(host_stats.CoreTypeRoom(
        Decimal(f'{100 + number}.0123456789012'), (number * 7) % 64,
        Decimal('0.8'))
        for number in range(64))
    text = host_stats.encode(WHOLE._replace(core_types=core_types))[
        'vqos_classes']
    assert 200 < len(text) <= 255
    found = decode(vqos_classes=text).core_types
    assert set(found) == set(sorted(
        core_types, key=lambda one: -one.room_cu)[:len(found)])


def test_kinds_of_work_that_have_no_place():
    kinds = {f'kind-{number}': 1 + number / 7 for number in range(60)}
    speeds = tuple(host_stats.WorkSpeeds(Decimal(cu), kinds)
                   for cu in (80, 100, 120))
    text = host_stats.encode(WHOLE._replace(work=speeds))['vqos_work']
    assert 1900 < len(text) <= 2000
    found = decode(vqos_work=text).work
    assert found[0] == speeds[0]
    assert found[1].kinds.items() < kinds.items()


def test_pieces_that_have_no_place():
    """The smallest are left out."""
    pieces = tuple(host_stats.Piece(cu, cu % 7 + 1)
                   for cu in range(255, -1, -1))
    text = host_stats.encode(WHOLE._replace(pieces=pieces))['vqos_pieces']
    assert 200 < len(text) <= 255
    found = decode(vqos_pieces=text).pieces
    assert 40 < len(found) < len(pieces)
    assert found == pieces[:len(found)]


QUANTUM = {'CUSTOM_VQOS_QUANTUM_IO', 'CUSTOM_VQOS_QUANTUM_SPIN',
           'CUSTOM_VQOS_QUANTUM_CACHE'}


@pytest.mark.parametrize(('changes', 'expected'), [
    ({}, {'CUSTOM_VQOS', 'CUSTOM_VQOS_SPEED_10', 'CUSTOM_VQOS_SPEED_20'}),
    ({'dd_billing': ('off', 'account', 'charge')}, {
        'CUSTOM_VQOS', 'CUSTOM_VQOS_SPEED_10', 'CUSTOM_VQOS_SPEED_20',
        'CUSTOM_VQOS_DD_BILLING'}),
    ({'fastest_cu': Decimal('9.99')}, {'CUSTOM_VQOS'}),
    ({'fastest_cu': Decimal(9), 'guarantee_cu': 0}, {
        'CUSTOM_VQOS', 'CUSTOM_VQOS_GUARANTEE'}),
    ({'profile': 'stale', 'dd_billing': ('charge',)}, set()),
    # Servers without units have classes too: no profile is needed.
    ({'profile': 'stale', 'quantum_classes': (
        'auto', 'cache', 'spin', 'io', 'neutral', 'gold')}, QUANTUM),
    ({'profile': 'stale', 'sells_units': True}, {'CUSTOM_VQOS_SELLS_UNITS'}),
    ])
def test_traits(changes, expected):
    stats = WHOLE._replace(**{
        'fastest_cu': Decimal('24.9'), 'quantum_classes': ('default',),
        'dd_billing': ('off', 'account'), 'guarantee_cu': None,
        'sells_units': False, **changes})
    assert host_stats.traits(stats, hook=False) == expected
    with_hook = expected | (
        {'CUSTOM_VQOS_HOOK'} if 'CUSTOM_VQOS' in expected else set())
    assert host_stats.traits(stats, hook=True) == with_hook
    assert host_stats.own_traits(with_hook) == with_hook


def test_traits_of_others_are_not_ours():
    assert not host_stats.own_traits([
        'CUSTOM_VQOS_SPEED_FAST', 'CUSTOM_VQOS_MINE', 'HW_CPU_X86_AVX',
        'CUSTOM_VQOS_QUANTUM_GOLD', 'CUSTOM_VQOS_QUANTUM_'])
