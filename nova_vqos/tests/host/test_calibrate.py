# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate on this machine: real programs and guests, short.

What is measured by the stand-in for sysbench (steady_sysbench) comes out the
same on any machine.
"""

import contextlib
import glob
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from nova_vqos.calibration import benchmark
from nova_vqos.calibration import guest
from nova_vqos.calibration import runner
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import command
from nova_vqos.calibration.cpu import in_guest
from nova_vqos.calibration.cpu import kind
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import validity
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import calibration_run
from nova_vqos.tests.host import steady_sysbench

PROGRAM = calibration_run.PROGRAM
QEMU = '/usr/bin/qemu-system-x86_64'
TIMEOUT_S = 300
# A program of an operator, which writes the same each time.
OWN = ("own=busybox awk 'BEGIN { for (n = 0; n < ARGV[1] * 20000; n++) s += n;"
       " print s }' {events}")
# The first that tests may use.
PCPU = min(os.sched_getaffinity(0))
ONE_PCPU = ('--pcpus', str(PCPU))
# TCG everywhere: what the machine may have in hardware is not to be tested.
IN_GUEST = ('--in-guest', '--virt-type', 'qemu', *ONE_PCPU)
# As short as it can be: each measurement has its least rounds.
SHORT = ('--rounds', '4')
# So few of a machine with neighbours may leave anything open.
WIDEST_INTERVAL = 10.0
WIDEST = ('--widest-interval', str(WIDEST_INTERVAL))
GOLD = ('cpu', *WIDEST, '--reference', 'gold', '--benchmark', 'integer',
        *SHORT)
# Guests of other tests do no harm to what is not timed.
BESIDE = '--beside-guests'
# The stand-in's CPU time is as exact as the reading of its clock.
TOLERANCE = 0.03

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


@pytest.fixture(scope='module', autouse=True)
def tools():
    requirement.need_programs('sysbench', 'busybox', 'openssl', QEMU)


@pytest.fixture(scope='module', autouse=True)
def scratch(tmp_path_factory):
    """Where guests boot from: tells ours from those of another run."""
    path = tmp_path_factory.mktemp('scratch')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('TMPDIR', str(path))
        yield path


def calibrate(*arguments, expected=0, **changes):
    """:param changes: of the environment"""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True,
                          text=True, timeout=TIMEOUT_S,
                          env=os.environ | changes)
    assert done.returncode == expected, done.stderr
    return done


def left_behind(scratch):
    """Command lines of guests that run, and files that they booted."""
    found = []
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            line = pathlib.Path(path).read_bytes()
        except OSError:
            continue
        if os.fsencode(scratch) in line:
            found.append(line)
    return found + list(scratch.iterdir())


@pytest.fixture(scope='module')
def native(tmp_path_factory):
    path = str(tmp_path_factory.mktemp('native') / 'profile.yaml')
    calibrate(*GOLD, '--output', path)
    return path


@pytest.fixture(scope='module')
def guests(tmp_path_factory):
    path = str(tmp_path_factory.mktemp('guests') / 'profile.yaml')
    calibrate(*GOLD, *IN_GUEST, '--output', path)
    return path


@pytest.fixture(scope='module')
def steady(tmp_path_factory):
    """The environment in which sysbench is the stand-in for it."""
    directory = tmp_path_factory.mktemp('bin')
    path = directory / 'sysbench'
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -ISB '
                    f'{steady_sysbench.__file__} "$@"\n')
    path.chmod(0o755)
    return {'PATH': f'{directory}:{os.environ["PATH"]}'}


@pytest.fixture(scope='module')
def gold(steady, tmp_path_factory):
    """A profile by the stand-in, made beside a process that spins."""
    path = str(tmp_path_factory.mktemp('gold') / 'profile.yaml')
    burner = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
    try:
        os.sched_setaffinity(burner.pid, {PCPU})
        calibrate(*GOLD, *ONE_PCPU, BESIDE, '--output', path, **steady)
    finally:
        burner.kill()
        burner.wait()
    return path


@pytest.mark.measured
def test_reference(native):
    made = document.load(native)
    assert made.measured_in == 'host'
    assert made.is_reference
    assert made.pcpus == os.sched_getaffinity(0)
    assert made.cpu_classes[0].busy.coefficient == 1.0
    assert validity.staleness(made, fingerprint.of_host(),
                              max_interval=WIDEST_INTERVAL) == []
    assert os.stat(native).st_mode & 0o777 == 0o644
    for cpu_class in made.cpu_classes:
        for score in (*cpu_class.alone.scores, *cpu_class.busy.scores):
            assert len(score.samples) >= 4
            # One pCPU is as fast as the other, however busy the machine is.
            assert 0.3 < score.coefficient < 3


@pytest.mark.measured
def test_verify(native):
    """On a machine that may have any noise: it measures, and answers."""
    done = calibrate('verify', native, *SHORT, '--tolerance', '0.9',
                     '-f', 'json')
    (row, *_) = json.loads(done.stdout)
    assert row['cu_per_pcpu'] == 100
    assert row['verdict'] in ('ok', 'drifted')


@pytest.mark.measured
def test_in_a_guest(guests, native, scratch):
    made = document.load(guests)
    assert made.measured_in == 'guest'
    assert made.pcpus == {PCPU}
    assert made.fingerprint['emulator'] == QEMU
    assert made.provenance['virt_type'] == 'qemu'
    assert validity.staleness(made, fingerprint.of_host(emulator=QEMU),
                              max_interval=WIDEST_INTERVAL) == []
    # Emulation is several times slower than the host: it was in a guest.
    (here,), (there,) = (one.reference.benchmarks
                         for one in (made, document.load(native)))
    assert here.round_events > 0
    assert here.score < there.score / 2
    assert left_behind(scratch) == []


@pytest.mark.measured
def test_a_profile_that_promises_too_much(guests, tmp_path):
    """Measured is in guests again, as the profile was."""
    made = document.load(guests)
    path = str(tmp_path / 'profile.yaml')
    document.store(made._replace(cpu_classes=tuple(
        one._replace(busy=one.busy._replace(
            coefficient=9.0, interval_low=8.99, interval_high=9.01))
        for one in made.cpu_classes)), path)
    done = calibrate('verify', path, *SHORT, '-f', 'json', expected=3)
    (row,) = json.loads(done.stdout)
    assert row['verdict'] == 'stale'
    assert 30 < row['measured'] < 300


@pytest.mark.rotation
@pytest.mark.parametrize('name', benchmark.DEFAULT_SET)
def test_a_benchmark_does_what_it_is_asked_for(name):
    """A round of it, on the host."""
    native = runner.NativeRunner(benchmark.load(name, {}))
    with contextlib.closing(native):
        found = native.measure({PCPU}, lambda samples: bool(samples[PCPU]),
                               lambda samples: '')
    assert found[PCPU][0] > 0


def in_guest_of(emulator=QEMU, kernel=None, known=None):
    """Rounds of one event in guests."""
    return contextlib.closing(in_guest.GuestRunner(
        known or benchmark.load('integer', {}), emulator=emulator,
        virt_type='qemu', kernel=kernel or guest.find_kernel(None),
        max_rounds=4, round_events=1))


@pytest.mark.parametrize('name', [
    *(pytest.param(name, marks=pytest.mark.rotation)
      for name in benchmark.DEFAULT_SET), 'own'])
def test_a_benchmark_in_a_guest(name):
    """And a command, which it gets a copy of."""
    known = benchmark.load(name, dict([command.parse(OWN)]))
    with in_guest_of(known=known) as measuring:
        found = measuring.measure({PCPU}, lambda samples: bool(samples[PCPU]),
                                  lambda samples: '')
    assert found[PCPU][0] > 0


@pytest.mark.parametrize('options', [
    {'emulator': '/bin/false'}, {'kernel': '/etc/passwd'}])
def test_guests_that_do_not_start(scratch, options):
    with in_guest_of(**options) as measuring, pytest.raises(
            CalibrationError, match='does not start'):
        measuring.measure({PCPU}, lambda samples: False, lambda samples: '')
    assert left_behind(scratch) == []


@pytest.mark.parametrize(('line', 'message'), [
    ('/bin/true {events}', 'does not do what it was asked for'),
    ('/bin/false {events}', 'ended with 1'),
    ("/bin/sh -c 'kill -9 $$' {events}", 'was killed'),
    ('/bin/sh -c "[ $0 -lt 3 ] || exit 7" {events}', 'ended with 7'),
    ('/bin/ls /no/{events}', "cannot access '/no/1'"),
    # It is killed in time; here in less.
    ('/bin/sleep {events}000', 'sleep 1000 was killed')])
def test_a_command_that_is_no_benchmark(monkeypatch, line, message):
    monkeypatch.setattr(runner, '_ROUND_TIMEOUT_S', 1)
    _, known = command.parse(f'own={line}')
    native = runner.NativeRunner(known)
    with contextlib.closing(native), pytest.raises(
            CalibrationError, match=message):
        native.measure({PCPU}, lambda samples: False, lambda samples: '')


def test_a_command_with_another_output_each_time():
    kind.check_output(benchmark.Member('own', command.parse(OWN)[1], 1.0))
    _, other = command.parse("own=/bin/sh -c 'echo $$' {events}")
    with pytest.raises(CalibrationError, match='different outputs'):
        kind.check_output(benchmark.Member('own', other, 1.0))


def test_beside_another_load(gold):
    """Of which the score takes no harm, and which is told."""
    made = document.load(gold)
    assert made.reference.benchmarks[0].score == pytest.approx(
        1 / steady_sysbench.EVENT_S, rel=TOLERANCE)
    assert float(made.provenance['busy_before']) > 0.5


def test_a_host_half_as_fast(gold, steady, tmp_path):
    slow = {**steady, steady_sysbench.SLOWDOWN: '2'}
    path = str(tmp_path / 'profile.yaml')
    calibrate('cpu', *WIDEST, '--against', gold, *SHORT, *ONE_PCPU,
              BESIDE, '--output', path, **slow)
    made = document.load(path)
    assert made.coefficient(PCPU) == pytest.approx(0.5, rel=TOLERANCE)
    assert made.reference == document.load(gold).reference
    assert not made.is_reference
    done = calibrate('verify', path, *SHORT, BESIDE, '-f', 'json', **slow)
    (row,) = json.loads(done.stdout)
    # Its intervals are next to nothing: what the start of a program takes more
    # is more than they leave open.
    assert row['verdict'] in (validity.OK, validity.DRIFTED)
    assert row['measured'] == pytest.approx(50, rel=TOLERANCE)


@pytest.fixture(scope='module')
def refused_and_left(gold, steady, scratch, tmp_path_factory):
    """A calibration in guests that is ended early: why nothing else may be
    measured beside it, and what there is of it afterwards.
    """
    directory = tmp_path_factory.mktemp('interrupted')
    with subprocess.Popen(
            # On a quiet machine the first measurement would soon be narrow
            # enough, and verify look while the next one's guest is built.
            [PROGRAM, *GOLD, '--rounds', '1000', '--max-interval', '0.00001',
             *IN_GUEST, BESIDE, '--output', str(directory / 'profile.yaml')],
            stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if ' rounds' in line:
                break
        refused = calibrate('verify', gold, expected=1, **steady)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    return refused.stderr, [*left_behind(scratch), *directory.iterdir()]


def test_guests_are_not_disturbed(refused_and_left):
    """By a calibration: here its own guests are in another one's way."""
    refused, _ = refused_and_left
    assert 'guests use ' in refused
    assert '--beside-guests' in refused


def test_ended_early_it_leaves_nothing(refused_and_left):
    _, left = refused_and_left
    assert left == []
