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

"""What operators are shown of a server."""

import json

import pytest

from nova_vqos.manage import columns
from nova_vqos.manage import server_rows as rows
from nova_vqos.tests.unit import fake_hypervisor as fakes

BRIEF = {
    'server_uuid': fakes.UUID, 'name': 'instance-1', 'project_id': 'p',
    'origin': 'migrated', 'flavor': 'web', 'entitled_cu': 60,
    'quantum_class': 'auto', 'dd_billing': 'charge', 'right': True,
    'problem': '', 'coefficient': 1.25, 'vcpu_s': 12.5, 'throttled_s': 3.5,
    'rates': {'over_s': 60.0, 'delivered_cu': 58.25, 'throttled': 0.125},
    'bill': {'used_cu_s': {'vcpu': 900.0, 'emulator': 100.0, 'disk': 20.5},
             'used_lately_cu': {'vcpu': 55.0, 'emulator': 3.0, 'disk': 1.5},
             'debt_cu_s': 7.5, 'written_off_cu_s': 0.0, 'limit_cu': 55.0,
             'entitlement_cu': 60},
    'quantum': {'recognised_class': 'spin', 'vcpus': {
        '0': {'kind': 'spin', 'slice_us': 1000, 'mean_run_us': 900.0,
              'pcpus': '0-1'},
        '1': {'kind': 'idle', 'slice_us': None, 'mean_run_us': 100.0,
              'pcpus': None}}},
    'last_recap': {'at': '2026-01-01T00:00:00+00:00', 'reason': 'migrated',
                   'wrong_ms': 12.4},
    'wanted': {'quota_us': 12_000, 'period_us': 50_000, 'shares': 614,
               'domain': None},
}
# What an agent tells of a server that it does not understand.
NOTHING = dict.fromkeys(BRIEF) | {'server_uuid': fakes.UUID}


def plain(shown):
    return (shown.machine_readable()
            if isinstance(shown, columns.Shown) else shown)


def row(brief):
    placed = rows.Placed('a', brief)
    return {name: plain(column(placed)) for name, column in rows.LONG.items()}


def test_a_row_has_numbers():
    found = row(BRIEF)
    assert (found['delivered_cu'], found['throttled']) == (58.25, 0.125)
    assert (found['dd_cu'], found['debt_cu_s']) == (4.5, 7.5)
    assert found['class'] == 'auto: spin'
    assert (found['slice_us'], found['run_us']) == (1000, 500.0)
    assert found['last_recap'] == BRIEF['last_recap']
    assert json.loads(json.dumps(found)) == found


def test_a_row_of_what_is_not_known_is_empty():
    found = row(NOTHING)
    assert {name for name, value in found.items() if value} == {
        'server_uuid', 'host'}


def test_fields_are_for_people():
    found = {name: str(value) for name, value
             in rows.fields(rows.Placed('a', BRIEF))}
    assert found['delivered_cu'] == '58.25 over 60 s'
    assert found['throttled'] == '12.5%'
    assert found['wanted'] == '12000 of 50000 us for each vCPU'
    assert found['last_recap'] == (
        '2026-01-01T00:00:00+00:00: migrated, wrong for 12 ms')
    assert found['bill'] == ('vcpu: 900.00 CU s, lately 55.00 CU\n'
                             'emulator: 100.00 CU s, lately 3.00 CU\n'
                             'disk: 20.50 CU s, lately 1.50 CU')
    assert (found['coefficient'], found['vcpu_s']) == ('1.2500', '12.5')
    assert found['host'] == 'a'
    assert found['slices'] == (
        'vCPU 0: spin, slice 1000 us, ran 900 us at a time, on pCPUs 0-1\n'
        "vCPU 1: idle, the kernel's own slice, ran 100 us at a time")


def test_fields_of_what_is_not_known_are_empty():
    found = dict(rows.fields(rows.Placed('a', NOTHING)))
    assert str(found['delivered_cu']) == '-'
    assert plain(found['bill']) is None


def test_one_that_migrates_is_said_to_arrive():
    shown = rows.SHORT['host'](rows.Placed('b', {**BRIEF, 'arriving': True}))
    assert (str(shown), plain(shown)) == ('b (arriving)', 'b')


@pytest.mark.parametrize(('brief', 'wrong'), [
    ({'right': True, 'problem': ''}, False), ({'right': None}, False),
    ({'right': False}, True), ({'right': True, 'problem': 'x'}, True)])
def test_what_is_wrong(brief, wrong):
    assert rows.is_wrong(rows.Placed('a', brief)) is wrong


@pytest.mark.parametrize(('shown', 'text', 'value'), [
    (columns.number(7), '      7', 7), (columns.number(None), '-', None),
    (columns.number(1.26, 1), '    1.3', 1.26),
    (columns.share(0.5), '  50.0%', 0.5),
    (columns.age(119.0), '119 s', 119.0), (columns.age(120.0), '2 min', 120.0),
    (columns.age(200_000.0), '2 d', 200_000.0), (columns.age(None), '-', None),
    (columns.texts(['a', 'b']), 'a, b', ['a', 'b']),
    (columns.texts([]), '-', []), (columns.texts(None), '-', None),
    (columns.count(['a', 'b']), '      2', ['a', 'b']),
    (columns.flag(False), 'no', False), (columns.flag(None), '-', None)])
def test_columns(shown, text, value):
    assert (str(shown), shown.machine_readable()) == (text, value)


def test_what_is_not_known_sorts_first():
    found = sorted([columns.number(2), columns.number(None),
                    columns.number(1)])
    assert [plain(one) for one in found] == [None, 1, 2]
