# SPDX-License-Identifier: Apache-2.0
"""The part of a profile that says what I/O costs."""

import json

import pytest

from nova_vqos import files
from nova_vqos.billing import costs
from nova_vqos.billing import usage
from nova_vqos.calibration.cpu import reference
from nova_vqos.calibration.report import table
from nova_vqos.cmd.calibrate import cpu
from nova_vqos.profile import document as documents
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import make_profiles

FINGERPRINT = {'cpu_model': 'a pCPU', 'kernel': '6.1'}


def make_profile(host='compute1', coefficient=1.0, **changes):
    return make_profiles.make_profile(
        host, make_profiles.make_class({0, 1}, coefficient),
        **{'fingerprint': FINGERPRINT} | changes)


@pytest.fixture
def held():
    return make_profile(io=io.document(make_profiles.make_io()))


def test_it_comes_back(held, tmp_path):
    path = str(tmp_path / 'profile.yaml')
    documents.store(held, path)
    loaded = documents.load(path)
    assert loaded == held
    assert loaded.io_profile == make_profiles.make_io()


def test_an_old_profile_without_wakeups(held):
    old = dict(held.io)
    del old['wake_ns'], old['wake_interval_ns']
    older = held._replace(io=old)
    assert older.io_profile.wake == io.Part(0.0, 0.0, 0.0)


def test_who_takes_packets_in_is_woken_whatever_the_mode(held):
    made = make_profiles.make_io(wake=io.Part(900.0, 800.0, 1000.0))
    found = held._replace(io=io.document(made))
    assert found.io_profile == made
    assert {cost.wake_ns for cost in found.io_costs.interfaces.values()} == {
        900.0}


def test_what_is_billed(held):
    found = held.io_costs
    for backend in ('qemu', 'vhost'):
        assert found.interfaces[usage.InterfaceKind('nat', backend)] == \
            costs.InterfaceCost(costs.RequestCost(2500.0, 0.125),
                                costs.RequestCost(0.0, 0.0))
    assert found.interfaces.keys() == {
        usage.InterfaceKind(mode, backend) for mode in ('bridge', 'nat')
        for backend in ('qemu', 'vhost')}
    assert found.disks == {usage.DiskKind('file', False): costs.DiskCost(
        costs.RequestCost(5000.0, 0.0), costs.RequestCost(6000.0, 0.0))}


def test_a_profile_without_it_is_as_it_was(tmp_path):
    held = make_profile()
    assert 'io' not in json.loads(documents.dumps(held))
    assert held.io_profile is held.io_costs is None
    assert held.id != held._replace(io={}).id


def test_nothing_was_measured(held):
    made = make_profiles.make_io(interfaces=(), disks=())
    assert held._replace(io=io.document(made)).io_profile == made


@pytest.mark.parametrize(('path', 'value', 'said'), [
    (('interfaces',), None, 'io.interfaces is None'),
    (('interfaces',), [{}] * 101, 'a list of 1 to 100'),
    (('interfaces', 0, 'mode'), 'magic', 'mode.*bridge, routed'),
    (('interfaces', 1, 'mode'), 'bridge', 'the same kind twice'),
    (('interfaces', 0, 'rx'), 7, r'interfaces\[0\].rx is no mapping'),
    (('interfaces', 0, 'rx', 'request_ns'), -1, 'a number from 0 to 1e'),
    (('interfaces', 0, 'rx', 'request_ns'), float('nan'), 'a number from 0'),
    (('interfaces', 0, 'rx', 'request_ns'), True, 'a number from 0'),
    (('interfaces', 0, 'tx', 'byte_ns'), 1e4, 'from 0 to 1000'),
    (('interfaces', 0, 'tx', 'byte_interval_ns'), [1.0], 'a list of 2'),
    (('interfaces', 0, 'rx', 'request_interval_ns'),
     [float('-inf'), 1.0], 'a list of 2'),
    (('interfaces', 0, 'rx', 'means_ns'), [1.0] * 3, 'a list of 2'),
    (('interfaces', 0, 'rx', 'means_ns'), ['1', '2'], 'a list of 2'),
    (('interfaces', 0, 'rx', 'sizes'), list(range(1, 60)), '1 to 50'),
    (('interfaces', 0, 'rx', 'samples'), 1e9, 'samples'),
    (('disks', 0, 'source'), '', 'source'),
    (('disks', 0, 'buffered'), 1, 'true or false'),
    (('unmeasured',), {'a': 'x' * 300}, '1 to 256 characters'),
    (('created_at',), None, 'created_at'),
    (('wake_ns',), -1.0, 'wake_ns'),
    (('wake_interval_ns',), [1.0], 'a list of 2'),
])
def test_nonsense_is_refused_when_it_is_asked_for(held, path, value, said):
    damaged = make_profiles.damaged(held.io, path, value)
    # As in a file made by hand; all else in it can be used.
    loaded = documents.loads(documents.dumps(held._replace(io=damaged)))
    assert loaded.coefficient(0) == 1.0
    for _ in range(2):
        with pytest.raises(files.FileInvalid, match=said):
            assert loaded.io_costs


def test_something_else_is_no_profile(held):
    document = json.loads(documents.dumps(held)) | {'io': [1]}
    with pytest.raises(files.FileInvalid, match='io is .1., it must be'):
        documents.loads(json.dumps(document))


def test_another_reference_changes_nothing_of_it(held):
    onto = make_profile('compute2', 2.0)
    assert reference.rescale(held, onto, 'silver').io == held.io


class Log(list):
    def info(self, text, *arguments):
        self.append(text % arguments)

    warning = info


@pytest.mark.parametrize(('changes', 'kept', 'said'), [
    ({'coefficient': 1.1}, True, 'costs of I/O'),
    ({'fingerprint': FINGERPRINT | {'kernel': '7.2'}}, False,
     "kernel was '6.1'"),
    ({'host': 'compute2'}, False, 'it is of compute1'),
])
def test_it_is_kept_on_the_same_host(held, tmp_path, changes, kept, said):
    path = str(tmp_path / 'profile.yaml')
    documents.store(held, path)
    log = Log()
    made = make_profile(**changes)
    assert cpu.with_parts_of(made, path, log) == (
        made._replace(io=held.io) if kept else made)
    assert said in log[0]


@pytest.mark.parametrize('content', [None, 'nonsense'])
def test_there_was_none_to_keep(tmp_path, content):
    path = tmp_path / 'profile.yaml'
    if content:
        path.write_text(content)
    made = make_profile()
    assert cpu.with_parts_of(made, str(path), Log()) == made


def test_the_table(held):
    rows = [dict(zip(table.IO_COLUMNS, row, strict=True))
            for row in table.io_rows(held.io_profile)]
    assert [(row['kind'], row['direction']) for row in rows] == [
        ('bridge', 'rx'), ('bridge', 'tx'), ('nat', 'rx'), ('nat', 'tx'),
        ('file, direct', 'read'), ('file, direct', 'write')]
    assert rows[0] == {
        'kind': 'bridge', 'direction': 'rx', 'request_ns': 2000, 'low': 1995,
        'high': 2005, 'byte_ns': 0.125, 'byte_low': 0.025,
        'byte_high': 0.225, 'residual_ns': 0, 'backend_ns': '1500 at 64',
        'unaccounted_ns': '+3 \N{PLUS-MINUS SIGN}13', 'samples': 80}
