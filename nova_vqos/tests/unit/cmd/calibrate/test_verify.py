# SPDX-License-Identifier: Apache-2.0
"""Whether a profile still holds."""

import contextlib
import itertools
import json
import os
import typing as ty

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.cpu import combine
from nova_vqos.calibration.cpu import disturbances
from nova_vqos.calibration.cpu import drift
from nova_vqos.calibration.cpu import memory
from nova_vqos.cmd.calibrate import app
from nova_vqos.cmd.calibrate import cpu
from nova_vqos.cmd.calibrate import verify as verify_command
from nova_vqos.hypervisor.linux import clock
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import validity
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
    monkeypatch.setattr(clock, '_PMU', 'has/none')
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

    monkeypatch.setattr(verify_command.idle, 'group', group)
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


class TestMemory:
    """Kinds of work that memory bounds, which have no weight."""

    SCORES: ty.ClassVar = {'integer': 1200.0, 'memory-chase': 800.0,
                           'memory-stream': 900.0}

    @pytest.fixture
    def verify(self, command, tmp_path, monkeypatch, capsys):
        """Runs the command where the host is idle."""
        def load(name, commands):
            made = calibration_host.FakeBenchmark(
                tmp_path / 'benchmark', f'{name} 1.0')
            made.memory_bound = name.startswith('memory')
            made.memory_mib = 96
            return made

        monkeypatch.setattr(benchmarks, 'load', load)
        monkeypatch.setattr(memory, '_LOAD_CHECK_S', 0)
        monkeypatch.setattr(host_cpus, 'available_bytes',
                            lambda sysroot: 2**30)
        monkeypatch.setattr(verify_command.idle, 'group', self.group)
        reference = make_profiles.make_reference('gold', *(
            make_profiles.make_benchmark(
                name, weight=float(name == 'integer'))
            for name in self.SCORES))
        measured = combine.measurement(
            [make_profiles.make_score(score / 1000, benchmark=name,
                                      width=0.02)
             for name, score in self.SCORES.items()], reference)
        document.store(host_files.make_profile('compute1', {'0-1': 1.2})
                       ._replace(reference=reference, cpu_classes=(
                           make_profiles.cpu.CpuClass(
                               PCPUS, measured, measured),)), command.path)
        self.record = tmp_path / 'verification.json'
        self.measured, self.in_group = [], False

        def run(*arguments, record=True, scatter=(0.999, 1.0, 1.001),
                **changes):
            scores = self.SCORES | {
                name.replace('_', '-'): score
                for name, score in changes.items()}

            def opened(benchmark):
                name = benchmark.identity.split()[0]
                self.measured.append((name, self.in_group))
                made = calibration_host.ScriptedRunner(benchmark, None, [
                    scores[name] * one for one in scatter])
                return made

            monkeypatch.setattr(cpu.runner, 'NativeRunner', opened)
            self.measured.clear()
            status = app.main([
                'verify', command.path, '-f', 'json', *arguments,
                *(['--record', str(self.record)] if record else [])])
            out, err = capsys.readouterr()
            return status, {row['benchmark']: row['verdict']
                            for row in json.loads(out)}, ' '.join(err.split())

        run.path = command.path
        return run

    @contextlib.contextmanager
    def group(self):
        self.in_group = True
        yield
        self.in_group = False

    def load(self, path):
        return validity.load(str(self.record), document.load(path).id)

    def test_each_has_a_verdict(self, verify):
        status, verdicts, _err = verify()
        assert status == 0
        assert verdicts == {'combined': 'ok', 'memory-chase': 'ok',
                            'memory-stream': 'ok'}
        # At the lowest weight, and after the others.
        assert self.measured == [('integer', False), ('memory-chase', True),
                                 ('memory-stream', True)]
        found = self.load(verify.path)
        assert [one.kind for one in found.kinds] == ['memory-chase',
                                                     'memory-stream']

    @pytest.mark.parametrize(('score', 'status', 'verdict'), [
        (950.0, 0, 'drifted'), (840.0, 0, 'drifted'), (780.0, 3, 'stale'),
        (1100.0, 3, 'stale')])
    def test_the_worst_decides(self, verify, score, status, verdict):
        found, verdicts, _err = verify(memory_stream=score)
        assert found == status
        assert verdicts == {'combined': 'ok', 'memory-chase': 'ok',
                            'memory-stream': verdict}
        reason = validity.why_stale(str(self.record),
                                    document.load(verify.path).id)
        assert ('memory-stream on pCPUs 0-1' in reason) is (status == 3)
        assert 'pCPUs 0-1 have drifted' not in reason

    def test_the_cpus_alone_are_stale(self, verify):
        status, verdicts, _err = verify(integer=900.0)
        assert status == 3
        assert verdicts['memory-chase'] == 'ok'
        assert self.load(verify.path).verdict == 'stale'

    def test_an_older_version_reads_it(self, verify):
        """With the verdict of all, and one drift of each pCPU."""
        verify(memory_stream=500.0)
        found = json.loads(self.record.read_text())
        assert (found['schema'], found['verdict']) == (1, 'stale')
        assert [one.keys() for one in found['findings']] == [
            {'pcpus', 'drift', 'verdict'}]

    def test_what_an_older_version_wrote(self, verify):
        """It is not sold again by what is unknown now."""
        self.record.write_text(json.dumps({
            'schema': 1, 'profile_id': document.load(verify.path).id,
            'verdict': 'stale', 'verified_at': '2026-11-01T00:00:00+00:00',
            'findings': [{'pcpus': '0-1', 'drift': '-9.0%',
                          'verdict': 'stale'}]}))
        assert self.load(verify.path).kinds == ()
        assert verify('--tolerance', '0.0001')[0] == 1
        found = self.load(verify.path)
        assert (found.verdict, found.cpu_verdict) == ('stale', 'stale')
        assert found.drifts == {'0-1': -0.09}
        assert found.verified_at == '2026-11-01T00:00:00+00:00'
        assert found.kinds[0].verified_at > found.verified_at
        assert verify()[0] == 0
        assert self.load(verify.path).verdict == 'ok'

    def test_unknown_memory_decides_nothing(self, verify):
        status, verdicts, _err = verify('--memory-tolerance', '0.001')
        assert status == 0
        assert verdicts == {'combined': 'ok', 'memory-chase': 'unknown',
                            'memory-stream': 'unknown'}
        assert self.load(verify.path).verdict == 'ok'
        # Nor does it replace what was found.
        verify(memory_stream=500.0)
        verify('--memory-tolerance', '0.001')
        assert self.load(verify.path).verdict == 'stale'
        verify()
        assert self.load(verify.path).verdict == 'ok'

    def test_guests_at_work_are_not_disturbed(self, verify, monkeypatch):
        """What was found before stays."""
        verify(memory_stream=500.0)
        ticks = itertools.count(0, 1000)
        monkeypatch.setattr(host_cpus, 'guest_ticks',
                            lambda pcpus, sysroot: {1: next(ticks)})
        for how in '--idle', '--beside-guests':
            status, verdicts, err = verify(how)
            assert status == 0
            assert verdicts == {'combined': 'ok'}
            assert 'memory was not verified' in err
            assert [name for name, _group in self.measured] == ['integer']
            assert self.load(verify.path).verdict == 'stale'

    def test_guests_that_begin_meanwhile(self, verify, monkeypatch):
        """They make memory look slower."""
        # Read twice before the others, and three times before memory.
        ticks = itertools.chain([0] * 5, itertools.repeat(1000))
        monkeypatch.setattr(host_cpus, 'guest_ticks',
                            lambda pcpus, sysroot: {1: next(ticks)})
        monkeypatch.setattr(memory, 'check_room', lambda *arguments: None)
        status, verdicts, _err = verify(memory_stream=500.0)
        assert status == 0
        assert verdicts['memory-stream'] == 'unknown'

    @pytest.mark.parametrize('change', [
        ('load', host_cpus.Load(0.06, 0.0)),
        ('load', host_cpus.Load(0.0, 0.06)),
        # Of 1 GiB two pCPUs take 192 MiB.
        ('available_bytes', 383 * 2**20)])
    def test_there_is_no_room(self, verify, monkeypatch, change):
        name, value = change
        # The pCPUs' own check comes first, and sees nothing.
        real = host_cpus.load
        calls = itertools.count()
        monkeypatch.setattr(
            host_cpus, name, lambda *arguments: real(*arguments)
            if name == 'load' and not next(calls) else value)
        status, verdicts, err = verify()
        assert status == 0
        assert verdicts == {'combined': 'ok'}
        assert 'memory was not verified' in err

    def test_no_idle_group(self, verify, monkeypatch):
        @contextlib.contextmanager
        def group():
            raise benchmarks.CalibrationError('no idle cgroup can be made')
            yield

        monkeypatch.setattr(verify_command.idle, 'group', group)
        status, verdicts, err = verify()
        assert status == 0
        assert verdicts == {'combined': 'ok'}
        assert 'no idle cgroup' in err

    def test_without_memory(self, verify):
        """What was recorded of it is gone, too."""
        assert verify(memory_stream=500.0)[0] == 3
        status, verdicts, _err = verify('--no-memory', memory_stream=500.0)
        assert status == 0
        assert verdicts == {'combined': 'ok'}
        found = self.load(verify.path)
        assert (found.verdict, found.kinds) == ('ok', ())

    def test_rounds_of_memory_are_few(self, verify, monkeypatch):
        """However much they scatter."""
        seen = []
        real = drift.judge_kind

        def judge(profile, kind, measured, *arguments, **options):
            seen.extend(len(one.samples) for one in measured.values())
            return real(profile, kind, measured, *arguments, **options)
        monkeypatch.setattr(verify_command.drift, 'judge_kind', judge)
        verify(scatter=(0.9, 1.0, 1.1))
        assert all(count < 3 * memory.EFFORT.max_rounds for count in seen)
        assert seen


def test_a_fingerprint_that_does_not_fit_needs_no_measurement(command):
    held = document.load(command.path)
    document.store(held._replace(
        fingerprint=dict(held.fingerprint, cpu_model='i486')), command.path)
    status, out, err = command(1200)
    assert status == 3
    assert json.loads(out) == []
    assert "Stale, whatever is measured: cpu_model was 'i486'" in err
