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


def test_what_is_billed(held):
    found = held.io_costs
    for backend in ('qemu', 'vhost'):
        assert found.interfaces[usage.InterfaceKind('nat', backend)] == \
            costs.InterfaceCost(
                costs.RequestCost(((64, 2508.0), (9000, 3625.0))),
                costs.RequestCost(((64, 0.0), (9000, 0.0))))
    assert found.interfaces.keys() == {
        usage.InterfaceKind(mode, backend) for mode in ('bridge', 'nat')
        for backend in ('qemu', 'vhost')}
    assert found.disks == {usage.DiskKind('file', False): costs.DiskCost(
        *(costs.RequestCost(((64, cost_ns), (9000, cost_ns)))
          for cost_ns in (5000.0, 6000.0)))}


def part(value, half):
    return io.Part(value, value - half, value + half)


def test_what_may_be_nothing_is_not_billed():
    """And no size is cheaper for that than a smaller one."""
    found = io.billed([
        (64, io.Part(0.0, -1.0, 11.0)), (256, part(100.0, 10.0)),
        (512, io.Part(0.0, -50.0, 10.0)), (1024, part(90.0, 10.0)),
        (1514, io.Part(0.0, -100.0, 700.0))])
    assert {size: cost.value for size, cost in found.items()} == {
        64: 0.0, 256: 100.0, 512: 100.0, 1024: 90.0, 1514: 90.0}
    # The interval stays that of the estimate.
    assert (found[512].low, found[512].high) == (-50.0, 10.0)


def as_a_line(request_ns, byte_ns, means_ns, half=50.0):
    """What the version before this one wrote of a kind of request."""
    return {'request_ns': request_ns, 'byte_ns': byte_ns,
            'request_interval_ns': [request_ns - half, request_ns + half],
            'byte_interval_ns': [byte_ns - 0.1, byte_ns + 0.1],
            'sizes': [64.0, 1514.0, 9000.0], 'means_ns': means_ns,
            'backends_ns': [1500.0] * 3, 'unaccounted_ns': [3.0, -10.0, 16.0],
            'samples': 80, 'outliers': 3}


def test_lines_of_the_version_before(held):
    """What they were made of is billed."""
    lines = {key: value for key, value in held.io.items() if key != 'schema'}
    # And of what woke a thread, which is not billed any more.
    lines |= {'disks': [], 'wake_ns': 900.0, 'wake_interval_ns': [800.0, 1e3]}
    lines['interfaces'] = [{
        'mode': 'bridge',
        'rx': as_a_line(1800.0, 0.1, [2000.0, 2100.0, 2700.0]),
        'tx': as_a_line(0.0, 0.0, [0.3, -0.2, 0.1], half=0.5)}]
    found = documents.loads(documents.dumps(
        held._replace(io=lines))).io_profile
    (interface,) = found.interfaces
    assert interface.rx.by_size == {
        64: part(2000.0, 50.0), 1514: part(2100.0, 50.0),
        9000: part(2700.0, 50.0)}
    assert set(dict(interface.tx.cost.by_size).values()) == {0.0}
    assert found.unmeasured.keys() == {'block', 'large packets'}
    # Written again, it is of this version.
    assert io.from_document(io.document(found)) == found


@pytest.mark.parametrize('schema', [0, 1, 3, 2.5, '2', None])
def test_another_schema_is_refused(held, schema):
    with pytest.raises(files.FileInvalid, match='io.schema'):
        io.from_document(held.io | {'schema': schema})


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
    (('interfaces', 0, 'rx', 'costs_ns'), [-1.0, 1.0], 'below 0'),
    (('interfaces', 0, 'rx', 'costs_ns'), [float('nan'), 1.0], 'of 2 numbers'),
    (('interfaces', 0, 'rx', 'costs_ns'), [True, 1.0], 'a list of 2'),
    (('interfaces', 0, 'rx', 'costs_ns'), [1.0, 1e10], 'from -1e.09 to 1e'),
    (('interfaces', 0, 'tx', 'lows_ns'), [1.0], 'a list of 2'),
    (('interfaces', 0, 'rx', 'highs_ns'), [float('inf'), 1.0], 'a list of 2'),
    (('interfaces', 0, 'rx', 'costs_ns'), [1.0] * 3, 'a list of 2'),
    (('interfaces', 0, 'rx', 'backends_ns'), ['1', '2'], 'a list of 2'),
    (('interfaces', 0, 'rx', 'sizes'), list(range(1, 60)), '1 to 50'),
    (('interfaces', 0, 'rx', 'sizes'), [], '1 to 50'),
    (('interfaces', 0, 'rx', 'sizes'), [9000.0, 64.0], 'larger than the one'),
    (('interfaces', 0, 'rx', 'sizes'), [64.0, 64.0], 'larger than the one'),
    (('interfaces', 0, 'rx', 'sizes'), [0.5, 64.0], 'whole numbers'),
    (('interfaces', 0, 'rx', 'sizes'), [64.0, 1e15], 'whole numbers up to'),
    (('interfaces', 0, 'rx', 'samples'), 1e9, 'samples'),
    (('disks', 0, 'source'), '', 'source'),
    (('disks', 0, 'buffered'), 1, 'true or false'),
    (('unmeasured',), {'a': 'x' * 300}, '1 to 256 characters'),
    (('created_at',), None, 'created_at'),
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
    assert [(row['kind'], row['direction']) for row in rows[::2]] == [
        ('bridge', 'rx'), ('bridge', 'tx'), ('nat', 'rx'), ('nat', 'tx'),
        ('file, direct', 'read'), ('file, direct', 'write')]
    assert rows[0] == {
        'kind': 'bridge', 'direction': 'rx', 'bytes': 64, 'cost_ns': 2008,
        'low': 2003, 'high': 2013, 'backend_ns': 1500,
        'unaccounted_ns': '+3 \N{PLUS-MINUS SIGN}13', 'samples': 80}
    assert rows[1]['bytes'] == 9000 and rows[1]['cost_ns'] == 3125
