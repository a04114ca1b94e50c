# SPDX-License-Identifier: Apache-2.0
"""The command that computes how many packets may be coalesced."""

import json
import sys

import pytest

from nova_vqos.calibration import io as io_package
from nova_vqos.calibration.io import traffic
from nova_vqos.cmd.calibrate import app
from nova_vqos.profile import document
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import make_profiles


@pytest.fixture
def run(capsys):
    """:returns: what runs it: to its status, its rows, and what it said"""
    def run(*arguments):
        status = app.main(['coalesce', '-f', 'json', *map(str, arguments)])
        output = capsys.readouterr()
        return (status, json.loads(output.out or '[]'),
                ' '.join(output.err.split()))
    return run


def test_the_example_of_the_model(run):
    status, rows, said = run(800_000, '--delay-us', 300, '--batch-us', 80,
                             '--packet-us', 0.001)
    assert status == 0
    assert [row['packets'] for row in rows[:-1]] == [
        1, 2, 4, 8, 16, 32, 64, 128, 256]
    largest = rows[-1]
    assert f'Coalesce up to {largest["packets"]} packets.' in said
    assert 'set the timer to 219 us' in said
    assert largest['delay_us'] <= 300
    assert largest['delay_us'] == pytest.approx(
        largest['fill_us'] + largest['wait_us'] + largest['transfer_us'],
        abs=0.2)
    # One by one they are too much work; each costs the less the more there
    # are.
    assert rows[0]['wait_us'] is None
    assert rows[0]['load'] > 1 > largest['load']
    took = [row['us_per_packet'] for row in rows]
    assert took == sorted(took, reverse=True)


@pytest.fixture
def path(tmp_path):
    held = make_profiles.make_profile(
        'compute1', make_profiles.make_class({0}, 1.0), fingerprint={})
    document.store(held._replace(io=io.document(make_profiles.make_io())),
                   str(tmp_path / 'one'))
    return str(tmp_path / 'one')


def test_costs_of_the_profile(run, path):
    measured = make_profiles.make_io().interfaces[0]
    size, cost = next(iter(measured.rx.by_size.items()))
    status, rows, _said = run(
        1000, '--delay-us', 10_000, '--batch-us', 1, '--profile', path,
        '--mode', measured.mode, '--bytes', size)
    assert status == 0
    assert rows[0]['transfer_us'] == pytest.approx(
        1 + (cost.value + measured.rx.backends[size]) / 1e3, abs=0.1)


def test_what_the_profile_does_not_have(run, path):
    modes = {one.mode for one in make_profiles.make_io().interfaces}
    missing = next(mode for mode in traffic.MODES if mode not in modes)
    status, _rows, said = run(1000, '--delay-us', 100, '--batch-us', 1,
                              '--profile', path, '--mode', missing)
    assert status == 1
    assert f'{path} has no cost of packets of mode {missing}' in said


def test_a_budget_that_none_keeps_to(run):
    status, _rows, said = run(1e6, '--delay-us', 5, '--batch-us', 10,
                              '--packet-us', 0.01)
    assert status == 1
    assert 'no number of packets has a mean delay of 5 us or less' in said


def test_too_many_streams(run):
    status, _rows, said = run(*[1000] * 8, '--delay-us', 5, '--batch-us', 1,
                              '--packet-us', 1)
    assert status == 1
    assert 'there are 8 streams, it must be 1 to 7' in said


@pytest.mark.parametrize(('option', 'value'), [
    ('--delay-us', 0), ('--delay-us', '1e7'), ('--batch-us', -1),
    ('--batch-us', 'nan'), ('--packet-us', 'x'), ('--bytes', 63)])
def test_refused(run, capsys, option, value):
    given = {'--delay-us': 100, '--batch-us': 1} | {option: value}
    with pytest.raises(SystemExit) as error:
        run(1000, *(f'{name}={text}' for name, text in given.items()))
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert option in said and repr(str(value)) in said


def test_without_numpy(run, monkeypatch):
    for name in list(sys.modules):
        if name == 'numpy' or name.endswith('.aggregation'):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(io_package, 'aggregation', raising=False)
    monkeypatch.setitem(sys.modules, 'numpy', None)
    status, _rows, said = run(1000, '--delay-us', 5, '--batch-us', 1,
                              '--packet-us', 1)
    assert status == 1
    assert 'the package python3-numpy, or nova_vqos[coalesce]' in said
