# SPDX-License-Identifier: Apache-2.0
"""What the command leaves behind."""

import json
import os

import pytest

from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.cpu import disturbances
from nova_vqos.cmd.calibrate import app
from nova_vqos.cmd.calibrate import cpu
from nova_vqos.hypervisor.linux import clock
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.tests.fixtures import calibration_host
from nova_vqos.tests.functional import host_files


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs the command on a host of two pCPUs with these scores."""
    program = tmp_path / 'benchmark'
    program.write_bytes(b'this build')
    benchmark = calibration_host.FakeBenchmark(program, 'integer 1.0')
    monkeypatch.setattr(disturbances, '_LOAD_CHECK_S', 0)
    monkeypatch.setattr(benchmarks, 'load', lambda name, commands: benchmark)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1})
    monkeypatch.setattr(host_cpus, 'classes',
                        lambda pcpus, sysroot: (frozenset(pcpus),))
    monkeypatch.setattr(host_cpus, 'guest_ticks', lambda pcpus, sysroot: {})
    monkeypatch.setattr(host_cpus, 'throttle_count', lambda pcpus, sysroot: 0)
    monkeypatch.setattr(clock, '_PMU', 'has/none')
    monkeypatch.setattr(fingerprint, 'of_host', lambda emulator, sysroot='/':
                        dict(host_files.FINGERPRINT))

    def run(*scores, options=()):
        monkeypatch.setattr(
            cpu.runner, 'NativeRunner', lambda benchmark:
            calibration_host.ScriptedRunner(benchmark, scores, scores))
        return app.main([
            'cpu', '--reference', 'gold', '--benchmark', 'integer',
            '--output', str(tmp_path / 'profile.yaml'), *options])
    return run


STEADY = (99.9, 100.0, 100.1)


def test_two_speeds_leave_the_old_profile(command, tmp_path, capsys):
    path, refused = (str(tmp_path / name) for name in (
        'profile.yaml', 'profile.yaml.refused'))
    assert command(*STEADY) == 0
    before = document.load(path)
    capsys.readouterr()
    assert command(*(100.0, 100.1, 99.9, 70.0, 100.0)) == 1
    err = ' '.join(capsys.readouterr().err.split())
    assert 'integer, alone on pCPU 0: 2' in err
    assert 'times slower than the others' in err
    assert f'report --output report.html {refused}' in err
    assert document.load(path) == before
    assert 70.0 in document.load(refused).cpu_classes[0].busy.scores[0].samples
    # The next one begins anew.
    assert not os.path.exists(f'{path}.partial')
    assert command(*STEADY) == 0


WILD = (80.0, 100.0, 120.0, 90.0)


def test_a_wide_interval_leaves_the_old_profile(command, tmp_path, capsys):
    path, refused = (str(tmp_path / name) for name in (
        'profile.yaml', 'profile.yaml.refused'))
    assert command(*STEADY) == 0
    before = document.load(path)
    capsys.readouterr()
    assert command(*WILD, options=['--rounds', '12']) == 1
    err = ' '.join(capsys.readouterr().err.split())
    assert 'the interval of pCPU 0-1 is ' in err
    assert 'more than 5.0%. Most of it is by integer: its 2' in err
    assert 'accept a wider interval by --widest-interval' in err
    assert f'{path} was not written' in err
    assert f'report --output report.html {refused}' in err
    assert document.load(path) == before
    assert 80.0 in document.load(refused).cpu_classes[0].busy.scores[0].samples
    # The next one does not go on with the same rounds.
    assert not os.path.exists(f'{path}.partial')


def test_a_wide_interval_that_is_asked_for(command, tmp_path, capsys):
    assert command(*WILD, options=[
        '--rounds', '12', '--widest-interval', '10']) == 0
    held = document.load(str(tmp_path / 'profile.yaml'))
    assert held.cpu_classes[0].busy.interval_width > 0.05
    assert 'more than 2.0%. Most of it is by integer' in ' '.join(
        capsys.readouterr().err.split())


@pytest.mark.parametrize('arguments', [
    [], ['--reference', 'gold', '--against', 'gold.yaml'],
    ['--reference', 'gold', '--rounds', '3']])
def test_bad_options(arguments):
    with pytest.raises(SystemExit) as ended:
        app.main(['cpu', *arguments])
    assert ended.value.code == 2


@pytest.mark.parametrize(('arguments', 'named'), [
    (['--output', '/dev/null/profile.yaml'], '/dev/null/profile.yaml'),
    (['--in-guest', '--emulator', '/no/qemu'], '/no/qemu'),
    (['--against', '/no/profile.yaml'], '/no/profile.yaml')])
def test_what_is_missing_is_named(tmp_path, capsys, arguments, named):
    output = tmp_path / 'profile.yaml'
    if '--against' not in arguments:
        arguments = ['--reference', 'gold', *arguments]
    assert app.main(['cpu', '--output', str(output), *arguments]) == 1
    assert named in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_one_goes_on(command, tmp_path, monkeypatch):
    """After the first measurement, of one pCPU alone."""
    class Interrupted(calibration_host.ScriptedRunner):
        def measure(self, pcpus, enough, progress):
            if len(pcpus) > 1:
                raise benchmarks.CalibrationError('interrupted')
            return super().measure(pcpus, enough, progress)

    with monkeypatch.context() as patch:
        patch.setattr(calibration_host, 'ScriptedRunner', Interrupted)
        assert command(*STEADY) == 1
    partial = tmp_path / 'profile.yaml.partial'
    (before,) = json.loads(partial.read_text())['taken'].values()
    # Other rounds than those of the first one.
    assert command(*(2 * score for score in STEADY)) == 0
    (made,) = document.load(str(tmp_path / 'profile.yaml')).cpu_classes
    assert list(made.alone.scores[0].samples) == before['samples']['0']
    assert min(made.busy.scores[0].samples) > 150
    assert not partial.exists()
