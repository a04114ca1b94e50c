# SPDX-License-Identifier: Apache-2.0
"""What operators are shown of a server."""

import dataclasses
import json

import pytest

from nova_vqos import primitives
from nova_vqos.agent.messages import server_report
from nova_vqos.cmd.manage import output
from nova_vqos.cmd.manage import servers
from nova_vqos.tests.fixtures import fakes

BRIEF = {
    'server_uuid': fakes.UUID, 'name': 'instance-1', 'project_id': 'p',
    'origin': 'migrated', 'flavor': 'web', 'entitled_cu': 60,
    'quantum_class': 'auto', 'dd_billing': 'charge', 'right': True,
    'problem': '', 'coefficient': 1.25, 'vcpu_s': 12.5, 'throttled_s': 3.5,
    'rates': {'over_s': 60.0, 'delivered_cu': 58.25, 'throttled': 0.125},
    'rates_10s': {'over_s': 10.2, 'delivered_cu': 59.5, 'throttled': 0.0},
    'rates_5min': None,
    'bill': {'used_cu_s': {'vcpu': 900.0, 'emulator': 100.0, 'disk': 20.5},
             'used_lately_cu': {'vcpu': 55.0, 'emulator': 3.0, 'disk': 1.5},
             'debt_cu_s': 7.5, 'written_off_cu_s': 0.0, 'limit_cu': 55.0,
             'entitlement_cu': 60},
    'quantum': {'recognised_class': 'spin', 'vcpus': {
        '0': {'kind': 'spin', 'slice_us': 1000, 'mean_run_us': 900.0,
              'pcpus': '0-1', 'recognised_after_s': 25.0},
        '1': {'kind': 'idle', 'slice_us': None, 'mean_run_us': 100.0,
              'pcpus': None}}},
    'last_recap': {'at': '2026-01-01T00:00:00+00:00', 'reason': 'migrated',
                   'wrong_ms': 12.4},
    'guarantee': {'since': '2026-01-01T00:00:00+00:00', 'vcpus': 2,
                  'runtime_us': 12_000, 'period_us': 50_000,
                  'reserved_pcpus': 0.53, 'problem': ''},
    'wanted': {'quota_us': 12_000, 'period_us': 50_000, 'shares': 614,
               'domain': None},
}
# A server that an agent does not understand.
NOTHING = dict.fromkeys(BRIEF) | {'server_uuid': fakes.UUID}


def parse(brief):
    return primitives.parse(server_report.ServerDetail, brief)


def plain(shown):
    return (shown.machine_readable()
            if isinstance(shown, output.Shown) else shown)


def row(brief):
    placed = servers.Placed('a', parse(brief))
    return {name: plain(column(placed))
            for name, column in servers.LONG.items()}


def test_a_row_has_numbers():
    found = row(BRIEF)
    assert (found['delivered_cu'], found['throttled']) == (58.25, 0.125)
    assert (found['dd_cu'], found['debt_cu_s']) == (4.5, 7.5)
    assert found['class'] == 'auto: spin'
    assert found['guaranteed'] is True
    assert (found['slice_us'], found['run_us']) == (1000, 500.0)
    assert found['last_recap'] == BRIEF['last_recap']
    assert json.loads(json.dumps(found)) == found


def test_a_row_of_unknown_values_is_empty():
    found = row(NOTHING)
    assert {name for name, value in found.items() if value} == {
        'server_uuid', 'host'}


def test_fields_are_for_people():
    found = {name: str(value) for name, value
             in servers.fields('a', parse(BRIEF))}
    assert found['delivered_cu'] == '58.25 over 60 s'
    assert found['delivered_10s_cu'] == '59.50 over 10 s'
    assert found['delivered_5min_cu'] == '-'
    assert found['throttled'] == '12.5%'
    assert found['wanted'] == '12000 of 50000 us for each vCPU'
    assert found['guarantee'].startswith('since 2026-01-01T')
    assert found['last_recap'] == (
        '2026-01-01T00:00:00+00:00: migrated, wrong for 12 ms')
    assert found['bill'] == ('vcpu: 900.00 CU s, lately 55.00 CU\n'
                             'emulator: 100.00 CU s, lately 3.00 CU\n'
                             'disk: 20.50 CU s, lately 1.50 CU')
    assert (found['coefficient'], found['vcpu_s']) == ('1.2500', '12.5')
    assert found['host'] == 'a'
    assert found['slices'] == (
        'vCPU 0: spin (recognised after 25 s), slice 1000 us, ran 900 us at a '
        'time, on pCPUs 0-1\n'
        "vCPU 1: idle, the kernel's own slice, ran 100 us at a time")


def test_fields_of_unknown_values_are_empty():
    found = dict(servers.fields('a', parse(NOTHING)))
    assert str(found['delivered_cu']) == '-'
    assert plain(found['delivered_10s_cu']) is None
    assert plain(found['bill']) is None


def test_fields_have_the_last_tampering_and_the_number_of_all():
    tampering = {'seen_at': '2026-01-01T00:00:00+00:00', 'found': '9/10 us',
                 'expected': '1/10 us', 'last_right_at': '',
                 'channel': 'in the cgroup itself', 'restored_at': None}
    found = dict(servers.fields('a', parse({
        **BRIEF, 'tamperings': [tampering] * 10, 'tampering_count': 120})))
    assert found['tampering_count'] == 120
    assert '9/10 us' in str(found['tamperings'])
    assert len(plain(found['tamperings'])) == 10
    assert str(dict(servers.fields('a', parse(BRIEF)))['tamperings']) == '-'


def test_a_guarantee_that_was_taken_away():
    found = {**BRIEF, 'guarantee': {**BRIEF['guarantee'], 'ends': True}}
    assert row(found)['guaranteed'] is None
    shown = dict(servers.fields('a', parse(found)))['guarantee']
    assert str(shown) == ('off, reserved until it stops: 12000 of 50000 us '
                          'for each vCPU, 0.53 pCPUs with its I/O')


@pytest.mark.parametrize('saved_cu_s, shown', [
    (1200.5, '1200 of 36000 CU'), (-60.0, '-60 of'), (None, 'unknown of')])
def test_what_it_saved_for_bursts(saved_cu_s, shown):
    burst = {'burst_cu': 90, 'left_cu': 52.5, 'saved_cu_s': saved_cu_s,
             'most_saved_cu_s': 36_000.0, 'problem': 'why it cannot'}
    found = dict(servers.fields('a', parse({**BRIEF, 'burst': burst})))
    assert primitives.to_primitives(plain(found['burst'])) == burst
    first, second = str(found['burst']).splitlines()
    assert first.startswith('52.50 CU now, 90 CU') and shown in first
    assert second == burst['problem']


def test_a_migrating_server_is_shown_as_arriving():
    shown = servers.SHORT['host'](servers.Placed(
        'b', parse({**BRIEF, 'arriving': True})))
    assert (str(shown), plain(shown)) == ('b (arriving)', 'b')


@pytest.mark.parametrize(('brief', 'wrong'), [
    ({'right': True, 'problem': ''}, False), ({'right': None}, False),
    ({'right': False}, True), ({'right': True, 'problem': 'x'}, True),
    ({'guarantee': parse(BRIEF).guarantee}, False),
    ({'guarantee': dataclasses.replace(parse(BRIEF).guarantee, since=None)},
     True),
    # Its flavor does not ask for a guarantee any more.
    ({'guarantee': dataclasses.replace(parse(BRIEF).guarantee, since=None,
                                       ends=True)}, False),
    ({'guarantee': dataclasses.replace(parse(BRIEF).guarantee, ends=True,
                                       problem='full')}, True)])
def test_what_is_wrong(brief, wrong):
    assert servers.is_wrong(servers.Placed(
        'a', server_report.Server(server_uuid='x', **brief))) is wrong


@pytest.mark.parametrize(('found', 'parts', 'coefficient'), [
    ({'clock': {'mhz': 2400.4, 'is_own': True, 'calibrated_mhz': 3000.0,
                'coefficient': 1.0}}, ['2400 MHz', 'own', '3000 MHz'],
     '1.0000'),
    ({'clock': {'mhz': 2400.4, 'is_own': False}, 'clock_problem': 'no APERF'},
     ['2400 MHz', 'pCPUs'], '-'),
    ({'clock_problem': 'no APERF'}, ['-'], '-'), ({}, ['-'], '-')])
def test_the_clock_or_why_there_is_none(found, parts, coefficient):
    shown = dict(servers.fields('compute-1', parse(BRIEF | found)))
    text = shown['clock'].human_readable()
    for part in parts:
        assert part in text
    assert shown['clock_coefficient'].human_readable() == coefficient
    assert plain(shown['clock_coefficient']) == found.get(
        'clock', {}).get('coefficient')
    assert shown['clock_problem'] == found.get('clock_problem')


@pytest.mark.parametrize(('found', 'parts', 'missing'), [
    ({'factor': 0.9, 'since': '2026-01-01T00:00:00+00:00', 'predicted': 0.85,
      'low': 0.8, 'high': 0.95, 'windows': 12,
      'instructions_per_cpu_s': 2.5e9},
     ['0.900 since 2026', '0.850', '0.800 to 0.950', '2500.0 million',
      '12 windows'], []),
    ({'factor': 1.0, 'windows': 1, 'problem': 'this CPU does not count'},
     ['none yet', 'this CPU does not count'], ['million', 'predicted'])])
def test_a_correction_and_what_it_follows_from(found, parts, missing):
    shown = dict(servers.fields('compute-1', parse(
        BRIEF | {'correction': found})))['correction']
    text = shown.human_readable()
    assert [part for part in parts if part not in text] == []
    assert [part for part in missing if part in text] == []
    assert plain(shown)['factor'] == found['factor']


def test_a_server_without_a_correction():
    shown = dict(servers.fields('compute-1', parse(BRIEF)))['correction']
    assert shown.human_readable() == '-'
    assert plain(shown) is None


@pytest.mark.parametrize(('found', 'text'), [
    ({'low_bytes': 0, 'high_bytes': 95 * 2**20},
     'at least 0.0 MiB, at most 95.0 MiB'),
    ({'low_bytes': 2**20, 'high_bytes': 2**20}, '1.0 MiB'), (None, '-')])
def test_the_memory_of_an_emulator(found, text):
    shown = dict(servers.fields('compute-1', parse(
        BRIEF | {'emulator_memory': found})))['emulator_memory']
    assert shown.human_readable() == text
    assert plain(shown) == found


@pytest.mark.parametrize('known', [True, False])
def test_the_rolling_mean(known):
    rolling = {'cu': 42.25, 'covered_s': 5400.0} if known else None
    found = dict(servers.fields('compute-1', parse(
        BRIEF | {'bill': BRIEF['bill'] | {'rolling_4h': rolling}})))
    shown = found['rolling_4h_cu']
    assert plain(shown) == rolling
    assert ('42.25' in shown.human_readable()) is known
    assert ('1.5 h' in shown.human_readable()) is known


@pytest.mark.parametrize(('found', 'text'), [
    ({'requests_per_s': 900, 'bytes_per_s': 3_686_400,
      'since': '2026-01-01T00:00:00+00:00', 'problem': ''},
     '900 requests and 3686400 bytes per second, since '
     '2026-01-01T00:00:00+00:00'),
    ({'requests_per_s': 900, 'bytes_per_s': 3_686_400, 'since': None,
      'problem': 'cannot'},
     '900 requests and 3686400 bytes per second, not in force\ncannot'),
    (None, '-')])
def test_a_limit_on_disks(found, text):
    shown = dict(servers.fields('compute-1', parse(
        BRIEF | {'disk_limit': found})))['disk_limit']
    assert shown.human_readable() == text
    assert plain(shown) == found
