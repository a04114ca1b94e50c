# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate on this machine: real work, real guests, short."""

import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import typing as ty

import pytest

from nova_vqos import cpuset
from nova_vqos.calibration import benchmark
from nova_vqos.calibration import runner
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import command
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import validity
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import calibration_run

PROGRAM = calibration_run.PROGRAM
QEMU = '/usr/bin/qemu-system-x86_64'
# A quiet machine needs 15 s of it.
TIMEOUT_S = 300
# The machine's pace may be another one in between than before and after.
ATTEMPTS = 3
# TCG everywhere: what the machine may have in hardware is not to be tested.
# A program of an operator, which writes the same each time.
OWN = ("busybox awk 'BEGIN { for (n = 0; n < ARGV[1] * 20000; n++) s += n; "
       "print s }' {events}")
# The first that tests may use.
PCPU = min(os.sched_getaffinity(0))
IN_GUEST = ('--in-guest', '--virt-type', 'qemu', '--pcpus', str(PCPU))
# As short as it can be: each measurement has its least rounds.
SHORT = ('--rounds', '4')
# So few of a machine with neighbours may leave anything open.
WIDEST_INTERVAL = 10.0
WIDEST = ('--widest-interval', str(WIDEST_INTERVAL))
CPU = ('cpu', *WIDEST)
# One benchmark is as good as all, where it is not about them.
GOLD = ('--reference', 'gold', '--benchmark', 'integer', *SHORT)

pytestmark = [pytest.mark.quiet, pytest.mark.timeout(2 * TIMEOUT_S)]


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


def calibrate(*arguments, expected=0):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True,
                          text=True, timeout=TIMEOUT_S)
    assert done.returncode == expected, done.stderr
    return done


class Paces(ty.NamedTuple):
    """The least and most events per CPU second that the machine did.

    Its neighbours make a machine 1.9 times faster or slower from one minute to
    the next, so no test takes its pace for granted.
    """

    least: float
    most: float

    def agree(self, factor: float, before: 'Paces', *, within: float) -> bool:
        """:returns: whether it may have been this factor faster than before"""
        return (self.least / before.most * (1 - within) < factor
                < self.most / before.least * (1 + within))


def pace():
    """:returns: events per CPU second that benchmark integer's work did"""
    with subprocess.Popen(
            ['sysbench', 'cpu', '--time=0', '--events=1000', 'run'],
            stdout=subprocess.DEVNULL) as running:
        _pid, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    assert running.returncode == 0
    return 1000 / (usage.ru_utime + usage.ru_stime)


def calibrate_at_pace(*arguments, expected=0):
    """:returns: the run, and the paces of the machine around it"""
    before = pace()
    done = calibrate(*arguments, expected=expected)
    after = pace()
    return done, Paces(min(before, after), max(before, after))


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
    calibrate(*CPU, '--reference', 'gold', *SHORT, '--output', path)
    return path


class Reference(ty.NamedTuple):
    path: str
    paces: Paces


@pytest.fixture(scope='module')
def gold(tmp_path_factory):
    path = str(tmp_path_factory.mktemp('integer') / 'profile.yaml')
    _, paces = calibrate_at_pace(*CPU, *GOLD, '--output', path)
    return Reference(path, paces)


@pytest.fixture(scope='module')
def integer(gold):
    return gold.path


@pytest.fixture(scope='module')
def gold_guest(tmp_path_factory):
    path = str(tmp_path_factory.mktemp('guest') / 'profile.yaml')
    _, paces = calibrate_at_pace(*CPU, *GOLD, *IN_GUEST, '--output', path)
    return Reference(path, paces)


@pytest.fixture(scope='module')
def in_guest(gold_guest):
    return gold_guest.path


def test_reference(native):
    made = document.load(native)
    assert made.measured_in == 'host'
    assert made.pcpus == os.sched_getaffinity(0)
    assert {made.coefficient(pcpu) for pcpu in made.pcpus
            if pcpu in made.cpu_classes[0].pcpus} == {1.0}
    assert validity.staleness(made, fingerprint.of_host(),
                              max_interval=WIDEST_INTERVAL) == []
    assert os.stat(native).st_mode & 0o777 == 0o644


def test_all_benchmarks(native):
    made = document.load(native)
    assert tuple(b.name for b in made.reference.benchmarks) == (
        benchmark.DEFAULT_SET)
    assert made.is_reference
    for cpu_class in made.cpu_classes:
        for score in (*cpu_class.alone.scores, *cpu_class.busy.scores):
            assert len(score.samples) >= 4
            # One pCPU is as fast as the other, however busy the machine is.
            assert 0.3 < score.coefficient < 3


def test_a_host_against_itself(gold, tmp_path):
    for number in range(ATTEMPTS):
        path = str(tmp_path / f'again-{number}.yaml')
        _, paces = calibrate_at_pace(*CPU, '--against', gold.path, *SHORT,
                                     '--output', path)
        made = document.load(path)
        agrees = paces.agree(made.slowest(made.pcpus), gold.paces, within=0.25)
        if agrees:
            break
    assert agrees
    assert made.reference == document.load(gold.path).reference
    assert not made.is_reference


def test_show(native):
    done = calibrate('show', native, '-f', 'json')
    rows = json.loads(done.stdout)
    combined = {row['state']: row for row in rows
                if row['benchmark'] == 'combined'
                and PCPU in cpuset.parse_pcpus(row['pcpus'])}
    assert combined['busy']['coefficient'] == 1.0
    assert combined['busy']['cu_per_pcpu'] == 100
    assert combined.keys() == {'alone', 'busy'}
    assert '100 CU are one pCPU of gold' in ' '.join(done.stderr.split())


def test_verify(gold):
    """On a machine that may have any noise: it measures, and answers."""
    for _ in range(ATTEMPTS):
        done, paces = calibrate_at_pace('verify', gold.path, *SHORT,
                                        '--tolerance', '0.9', '-f', 'json')
        (row, *_) = json.loads(done.stdout)
        agrees = paces.agree(row['measured'] / 100, gold.paces, within=0.25)
        if agrees:
            break
    assert agrees
    assert row['cu_per_pcpu'] == 100
    assert row['verdict'] in ('ok', 'drifted')


def test_in_a_guest(in_guest, native, scratch):
    made = document.load(in_guest)
    assert made.measured_in == 'guest'
    assert made.pcpus == {PCPU}
    assert made.fingerprint['emulator'] == QEMU
    assert made.provenance['virt_type'] == 'qemu'
    assert validity.staleness(made, fingerprint.of_host(emulator=QEMU),
                              max_interval=WIDEST_INTERVAL) == []
    # Emulation is several times slower than the host: it was in a guest.
    (here,) = made.reference.benchmarks
    there = document.load(native).reference.benchmark('integer')
    assert here.score < there.score / 2
    assert left_behind(scratch) == []


def test_a_slower_emulator_is_seen(gold_guest, tmp_path):
    emulator = tmp_path / 'qemu-slow'
    # Blocks of translated code are no longer linked to each other.
    emulator.write_text(
        f'#!/bin/sh\nexec {QEMU} -d nochain -D /dev/null "$@"\n')
    emulator.chmod(0o755)
    path = str(tmp_path / 'slow.yaml')
    _, paces = calibrate_at_pace(
        *CPU, '--against', gold_guest.path, *SHORT, *IN_GUEST, '--emulator',
        str(emulator), '--output', path)
    made = document.load(path)
    pace_changed = paces.least / gold_guest.paces.most
    assert made.coefficient(PCPU) < 0.9 * pace_changed
    assert made.fingerprint['emulator'] == str(emulator)
    assert made.reference == document.load(gold_guest.path).reference
    assert made.reference.benchmarks[0].round_events > 0


def test_all_benchmarks_in_guests(tmp_path):
    """And a command, which they get a copy of."""
    path = str(tmp_path / 'profile.yaml')
    calibrate(*CPU, '--reference', 'gold', *SHORT, *IN_GUEST, '--command',
              'own=/usr/bin/sysbench cpu --time=0 --events={events} run',
              '--output', path)
    made = document.load(path)
    assert [b.name for b in made.reference.benchmarks] == [
        *benchmark.DEFAULT_SET, 'own']
    for known in made.reference.benchmarks:
        assert known.round_events >= 1
        assert known.score > 0


def test_it_goes_on_where_it_was(tmp_path, tmp_path_factory, monkeypatch):
    """The kill comes in the midst of the second measurement."""
    # Nobody can clean up after that.
    monkeypatch.setenv('TMPDIR', str(tmp_path_factory.mktemp('killed')))
    output = tmp_path / 'profile.yaml'
    options = [*CPU, '--reference', 'gold', '--benchmark', 'integer',
               '--benchmark', 'hash', '--pcpus', str(PCPU), *SHORT, '--output',
               str(output)]
    with subprocess.Popen([PROGRAM, *options], stderr=subprocess.PIPE,
                          text=True) as process:
        for line in process.stderr:
            if line.startswith('[2 of 2]'):
                break
        process.kill()
        process.communicate(timeout=60)
    partial = tmp_path / 'profile.yaml.partial'
    (before,) = json.loads(partial.read_text())['taken'].values()
    done = calibrate(*options)
    assert 'Going on after 1 measurements' in done.stderr
    assert '[1 of 2]' not in done.stderr
    made = document.load(str(output))
    assert list(made.cpu_classes[0].busy.scores[0].samples) == (
        before['samples'][str(PCPU)])
    assert list(tmp_path.iterdir()) == [output]


def test_a_kind_is_added(integer, tmp_path):
    """To the reference's profile, and to another's that has not measured it.

    On a machine with any noise.
    """
    noise = ('--tolerance', '0.9', *WIDEST)
    gold, other = (str(tmp_path / name) for name in ('gold', 'other'))
    shutil.copy(integer, gold)
    calibrate(*CPU, '--against', integer, *SHORT, '--output', other)
    before = [document.load(path) for path in (gold, other)]
    for path, against in ((gold, []), (other, ['--against', gold])):
        calibrate('add-kind', 'own', path, '--command', OWN, *SHORT, *noise,
                  *against)
    made = [document.load(path) for path in (gold, other)]
    assert made[0].reference == made[1].reference
    for was, now in zip(before, made, strict=True):
        for one, same in zip(was.cpu_classes, now.cpu_classes, strict=True):
            assert same.busy.coefficient == one.busy.coefficient
            assert same.busy.score('integer') == one.busy.score('integer')
            assert 0.3 < same.busy.kinds['own'] < 3
    assert sorted(tmp_path.iterdir()) == [tmp_path / name
                                          for name in ('gold', 'other')]


def test_a_kind_is_added_to_guests(in_guest, tmp_path):
    path = str(tmp_path / 'profile.yaml')
    shutil.copy(in_guest, path)
    calibrate('add-kind', 'own', path, '--command', OWN, *SHORT,
              '--tolerance', '0.9', *WIDEST)
    assert document.load(path).reference.benchmark('own').round_events >= 1


@pytest.mark.parametrize(('command', 'message'), [
    ('/bin/true {events}', 'does not do what it was asked for'),
    ('/bin/false {events}', 'ended with 1'),
    ("/bin/sh -c 'kill -9 $$' {events}", 'was killed'),
    ("/bin/sh -c 'echo $$' {events}", 'different outputs'),
    ('/bin/sh -c "[ $0 -lt 3 ] || exit 7" {events}', 'ended with 7')])
def test_no_kind_to_add(integer, tmp_path, command, message):
    path = tmp_path / 'profile.yaml'
    shutil.copy(integer, path)
    before = path.read_bytes()
    done = calibrate('add-kind', 'own', str(path), '--command', command,
                     *SHORT, '--tolerance', '0.9', '--beside-guests',
                     expected=1)
    assert message in ' '.join(done.stderr.split())
    assert path.read_bytes() == before


@pytest.mark.parametrize(('command', 'message'), [
    ('own=/bin/true {events}', 'does not do what it was asked for'),
    ('own=/bin/false {events}', 'ended with 1'),
    ("own=/bin/sh -c 'kill -9 $$' {events}", 'was killed'),
    ('own=/bin/ls /no/{events}', "cannot access '/no/1'")])
def test_a_command_that_is_no_benchmark(tmp_path, command, message):
    done = calibrate(*CPU, '--reference', 'gold', '--command', command,
                     '--benchmark', 'own', '--output',
                     str(tmp_path / 'profile.yaml'), expected=1)
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_promises_too_much(gold_guest, tmp_path):
    """Measured is in guests again, as the profile was."""
    made = document.load(gold_guest.path)
    path = str(tmp_path / 'profile.yaml')
    document.store(made._replace(cpu_classes=tuple(
        one._replace(busy=one.busy._replace(
            coefficient=9.0, interval_low=8.99, interval_high=9.01))
        for one in made.cpu_classes)), path)
    done, paces = calibrate_at_pace('verify', path, *SHORT, '-f', 'json',
                                    expected=3)
    (row,) = json.loads(done.stdout)
    assert row['verdict'] == 'stale'
    assert paces.agree(row['measured'] / 100, gold_guest.paces, within=0.25)
    assert 'Calibrate this host again' in done.stderr


def test_native_and_in_guest_are_not_mixed(native, tmp_path):
    output = tmp_path / 'profile.yaml'
    done = calibrate(*CPU, '--against', native, *IN_GUEST, '--output',
                     str(output), expected=1)
    assert 'measure this host likewise' in done.stderr
    assert not output.exists()


def test_guests_are_not_disturbed(native, tmp_path):
    """By a calibration: here its own guests are in another one's way."""
    with subprocess.Popen(
            # On a quiet machine the first measurement would soon be narrow
            # enough, and verify look while the next one's guest is built.
            [PROGRAM, *CPU, *GOLD, '--rounds', '1000', '--max-interval',
             '0.00001', *IN_GUEST, '--output', str(tmp_path / 'profile.yaml')],
            stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if ' rounds' in line:
                break
        refused = calibrate('verify', native, expected=1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert 'guests use ' in refused.stderr
    assert '--beside-guests' in refused.stderr


def test_ended_early_it_leaves_nothing(tmp_path, scratch):
    output = tmp_path / 'profile.yaml'
    with subprocess.Popen(
            [PROGRAM, *CPU, *GOLD, *IN_GUEST, '--output', str(output)],
            stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith('[1 of 1]'):
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert left_behind(scratch) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('arguments', [
    [], ['--reference', 'gold', '--against', 'gold.yaml'],
    ['--reference', 'gold', '--rounds', '3']])
def test_bad_options(arguments):
    assert 'usage: ' in calibrate(*CPU, *arguments, expected=2).stderr


@pytest.mark.parametrize(('arguments', 'message'), [
    (['--output', '/dev/null/profile.yaml'], 'cannot be written'),
    (['--in-guest', '--emulator', '/no/qemu'], '/no/qemu cannot be run'),
    (['--in-guest', '--emulator', '/bin/false'], 'does not start'),
    ([*IN_GUEST, '--kernel', '/etc/passwd'], 'does not start'),
    (['--command', 'own=/no/program {events}'], "'/no/program', of"),
    (['--against', '/no/profile.yaml'], '/no/profile.yaml does not exist')])
def test_what_cannot_be_done_is_said(tmp_path, arguments, message):
    if '--against' not in arguments:
        arguments = ['--reference', 'gold', *arguments]
    done = calibrate(*CPU, '--output', str(tmp_path / 'profile.yaml'),
                     *arguments, expected=1)
    assert message in done.stderr
    assert 'Traceback' not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_hangs(tmp_path, monkeypatch):
    """It is killed in time; here in less."""
    monkeypatch.setattr(runner, '_ROUND_TIMEOUT_S', 1)
    _, hanging = command.parse('own=/bin/sleep {events}000')
    native = runner.NativeRunner(hanging)
    with contextlib.closing(native), pytest.raises(
            CalibrationError, match='sleep 1000 was killed'):
        native.measure({PCPU}, lambda samples: False, lambda samples: '')


def test_beside_another_load(gold, tmp_path):
    """Of which the score takes no harm but its scatter, and it is told."""
    burner = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
    try:
        path = str(tmp_path / 'profile.yaml')
        os.sched_setaffinity(burner.pid, {PCPU})
        done, paces = calibrate_at_pace(*CPU, '--against', gold.path, *SHORT,
                                        '--output', path)
    finally:
        burner.kill()
        burner.wait()
    assert re.search(r'the host was \d+% busy before', done.stderr)
    assert paces.agree(document.load(path).coefficient(PCPU), gold.paces,
                       within=0.5)
