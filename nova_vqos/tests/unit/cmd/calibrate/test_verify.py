# SPDX-License-Identifier: Apache-2.0
"""Whether a profile still holds."""

import contextlib
import itertools
import json
import os

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.cpu import disturbances
from nova_vqos.calibration.cpu import drift
from nova_vqos.cmd.calibrate import app
from nova_vqos.cmd.calibrate import cpu
from nova_vqos.cmd.calibrate import verify
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.tests.fixtures import calibration_host
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.unit.calibration.guest import test_guest

PCPUS = frozenset({0, 1})


def measurement(coefficient, width=0.02):
    return make_profiles.make_measurement(coefficient, width=width)


def judge(promised, measured, tolerance=0.03, width=0.02):
    held = host_files.make_profile('compute1', {'0-1': promised},
                                   relative_width=width)
    (found,) = drift.judge(held, {PCPUS: measurement(measured, width)},
                            tolerance)
    return found


@pytest.mark.parametrize(('measured', 'verdict'), [
    # Intervals of 2 % leave 1.41 % open, and 3 % are tolerated.
    (1.2, drift.OK), (1.2 * 1.014, drift.OK), (1.2 * 0.986, drift.OK),
    (1.2 * 1.015, drift.DRIFTED), (1.2 * 1.044, drift.DRIFTED),
    (1.2 * 0.957, drift.DRIFTED), (1.2 * 1.046, drift.STALE),
    (1.2 * 0.955, drift.STALE), (0.5, drift.STALE), (2.4, drift.STALE)])
def test_verdicts(measured, verdict):
    found = judge(1.2, measured)
    assert found.verdict == verdict
    assert found.drift == pytest.approx(measured / 1.2 - 1)


def test_what_is_open():
    """Half widths of 1 % each."""
    assert judge(1.2, 1.2).open_by == pytest.approx(0.01 * 2 ** 0.5)


@pytest.mark.parametrize(('measured', 'verdict'), [
    (1.2, drift.UNKNOWN), (1.2 * 1.01, drift.UNKNOWN),
    # Not by chance.
    (1.2 * 1.03, drift.STALE)])
def test_chance_leaves_more_open_than_is_tolerated(measured, verdict):
    assert judge(1.2, measured, tolerance=0.01).verdict == verdict


@pytest.mark.parametrize(('measured', 'verdict'), [
    (1.2, drift.OK), (1.2 * 1.02, drift.DRIFTED), (1.2 * 0.98,
                                                     drift.DRIFTED),
    (1.4, drift.STALE), (1.0, drift.UNKNOWN)])
def test_guests_make_a_host_look_slower(measured, verdict):
    held = host_files.make_profile('compute1', {'0-1': 1.2},
                                   relative_width=0.02)
    (found,) = drift.judge(held, {PCPUS: measurement(measured)}, 0.03,
                            beside_guests=True)
    assert found.verdict == verdict


@pytest.mark.parametrize('now', [[{0, 1}, {2, 3}], [{0, 1, 2, 3}],
                                 [{0, 1, 7}, {2, 3, 4}]])
def test_the_profiles_classes_are_measured(now):
    """Some were measured to differ, and look equal."""
    held = host_files.make_profile('compute1', {'0-1': 1.0, '2-3': 0.5})
    assert drift.classes(held, list(map(frozenset, now))) == ({0, 1}, {2, 3})


@pytest.mark.parametrize(('now', 'says'), [
    ([{0, 1}], '0-1'), ([{0, 2}, {1, 3}], '0,2 and equal pCPUs 1,3'),
    ([{0, 1}, {2}, {3}], '0-1 and equal pCPUs 2')])
def test_other_classes(now, says):
    held = host_files.make_profile('compute1', {'0-1': 1.0, '2-3': 0.5})
    with pytest.raises(
            benchmarks.CalibrationError,
            match=f'equal pCPUs 0-1 and 2-3, the host has equal pCPUs '
            f'{says.replace("equal pCPUs ", "")}'):
        drift.classes(held, list(map(frozenset, now)))


@settings(deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.001, 0.1),
       st.floats(0.001, 0.5))
def test_the_further_off_the_worse(promised, measured, width, tolerance):
    order = (drift.OK, drift.DRIFTED, drift.UNKNOWN, drift.STALE)

    def verdict(measured):
        return order.index(judge(promised, measured, tolerance, width).verdict)

    further = promised + (measured - promised) * 2
    if further > 0:
        assert verdict(further) >= verdict(measured)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command on a host of two pCPUs that do so much work."""
    program = tmp_path / 'benchmark'
    program.write_bytes(b'this build')
    benchmark = calibration_host.FakeBenchmark(program, 'integer 1.0')
    monkeypatch.setattr(disturbances, '_LOAD_CHECK_S', 0)
    monkeypatch.setattr(benchmarks, 'load', lambda name, commands: benchmark)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1})
    monkeypatch.setattr(host_cpus, 'classes',
                        lambda pcpus, sysroot: (frozenset(pcpus),))
    monkeypatch.setattr(host_cpus, 'cpu_times', lambda pcpus, sysroot:
                        host_cpus.CpuTimes(100, 1, 0))
    monkeypatch.setattr(host_cpus, 'guest_ticks', lambda pcpus, sysroot: {})
    monkeypatch.setattr(host_cpus, 'throttle_count', lambda pcpus, sysroot: 0)
    monkeypatch.setattr(fingerprint, 'of_host', lambda emulator, sysroot='/':
                        dict(host_files.FINGERPRINT))
    path = str(tmp_path / 'profile.yaml')
    document.store(host_files.make_profile('compute1', {'0-1': 1.2}), path)

    def run(score, *arguments, scatter=(0.999, 1.0, 1.001)):
        monkeypatch.setattr(
            cpu.runner, 'NativeRunner', lambda benchmark:
            calibration_host.ScriptedRunner(
                benchmark, None, [score * one for one in scatter]))
        status = app.main(['verify', path, '-f', 'json', *arguments])
        return status, *capsys.readouterr()

    run.path = path
    return run


@pytest.mark.parametrize(('score', 'status', 'verdict'), [
    (1200, 0, 'ok'), (1230, 0, 'drifted'), (1300, 3, 'stale')])
def test_the_command(command, score, status, verdict):
    found, out, err = command(score)
    assert found == status
    (row,) = json.loads(out)
    assert (row['pcpus'], row['cu_per_pcpu'], row['verdict']) == (
        '0-1', 120.0, verdict)
    assert row['measured'] == pytest.approx(score / 10, rel=0.001)
    assert ('Calibrate this host again' in err) is (status == 3)


def test_the_command_with_a_tolerance(command):
    assert command(1300, '--tolerance', '0.1')[0] == 0


def test_the_command_without_a_verdict(command):
    status, out, err = command(1200, '--tolerance', '0.001')
    assert status == 1
    assert json.loads(out)[0]['verdict'] == 'unknown'
    assert 'Chance leaves more open' in err


def test_the_verdict_is_written(command, tmp_path):
    record = tmp_path / 'lib' / 'verification.json'
    for score, verdict, off_by in ((1200, 'ok', None), (1300, 'stale', '8.3')):
        command(score, '--record', str(record))
        found = json.loads(record.read_text())
        assert found['verdict'] == verdict
        assert found['profile_id'] == document.load(command.path).id
        assert verdict == 'ok' or off_by in found['findings'][0]['drift']


def test_a_record_that_cannot_be_written(command):
    status, _, err = command(1200, '--record', '/dev/null/verification.json')
    assert status == 1
    assert 'cannot be written: run as root, or give --record' in err


def test_two_speeds_are_no_verdict(command, tmp_path, monkeypatch):
    record = tmp_path / 'verification.json'
    status, _, err = command(1200, '--record', str(record),
                             scatter=(0.999, 1.0, 1.001, 0.7))
    assert status == 1
    assert 'of the rounds ran 1.43 times slower' in ' '.join(err.split())
    assert not record.exists()
    # Guests may be why, which one cannot do anything about.
    ticks = itertools.count(0, 1000)
    monkeypatch.setattr(host_cpus, 'guest_ticks',
                        lambda pcpus, sysroot: {1: next(ticks)})
    status, out, err = command(1200, '--beside-guests',
                               scatter=(0.999, 1.0, 1.001, 0.7))
    assert status == 0
    assert json.loads(out)[0]['verdict'] == 'ok'
    assert 'beside guests had two speeds' in ' '.join(err.split())


def test_in_idle_time(command, monkeypatch):
    """Guests that are at work do not matter then."""
    entered = []

    @contextlib.contextmanager
    def group():
        entered.append('in')
        yield
        entered.append('out')

    monkeypatch.setattr(verify.idle, 'group', group)
    ticks = itertools.count(0, 1000)
    monkeypatch.setattr(host_cpus, 'guest_ticks',
                        lambda pcpus, sysroot: {1: next(ticks)})
    assert command(1200)[0] == 1
    assert command(1200, '--idle')[0] == 0
    assert json.loads(command(1000, '--idle')[1])[0]['verdict'] == 'unknown'
    assert entered == ['in', 'out'] * 2
    with pytest.raises(SystemExit):
        command(1200, '--idle', '--beside-guests')


def test_a_host_with_a_class_that_was_divided(command):
    """What was measured to differ is measured apart, and judged apart."""
    document.store(host_files.make_profile('compute1', {'0': 1.2, '1': 1.0}),
                   command.path)
    status, out, _err = command(1200)
    assert status == 3
    assert [(row['pcpus'], row['verdict']) for row in json.loads(out)] == [
        ('0', 'ok'), ('1', 'stale')]


def test_another_kernel_of_guests_is_reported(command, tmp_path, monkeypatch):
    """It is no reason to call the profile stale."""
    kernel = test_guest.write_kernel(tmp_path / 'vmlinuz', b'6.1.0-40\0')
    monkeypatch.setattr(cpu.in_guest, 'check_memory',
                        lambda guests, memory_mib: None)
    monkeypatch.setattr(
        cpu.in_guest, 'GuestRunner', lambda benchmark, **_options:
        calibration_host.ScriptedRunner(benchmark, None, (
            1198.8, 1200.0, 1201.2)))
    held = document.load(command.path)
    monkeypatch.setitem(host_files.FINGERPRINT, 'emulator', '/usr/bin/qemu')
    for release, reported in (('6.1.0-40', False), ('5.10.0-9', True)):
        document.store(held._replace(
            measured_in='guest', fingerprint=dict(host_files.FINGERPRINT),
            provenance={'virt_type': 'qemu', 'guest_kernel': release}),
            command.path)
        status, out, err = command(1200, '--kernel', kernel)
        assert status == 0
        assert json.loads(out)[0]['verdict'] == 'ok'
        assert ('guests boot Linux 6.1.0-40, those of the profile booted '
                '5.10.0-9' in ' '.join(err.split())) is reported


def test_a_fingerprint_that_does_not_fit_needs_no_measurement(command):
    held = document.load(command.path)
    document.store(held._replace(
        fingerprint=dict(held.fingerprint, cpu_model='i486')), command.path)
    status, out, err = command(1200)
    assert status == 3
    assert json.loads(out) == []
    assert "Stale, whatever is measured: cpu_model was 'i486'" in err
