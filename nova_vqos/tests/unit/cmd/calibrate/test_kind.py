# SPDX-License-Identifier: Apache-2.0
"""A kind of work that is added to profiles which exist."""

import itertools
import json
import os

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.cpu import combine
from nova_vqos.calibration.cpu import disturbances
from nova_vqos.calibration.cpu import kind
from nova_vqos.calibration.cpu import steps
from nova_vqos.cmd.calibrate import app
from nova_vqos.cmd.calibrate import cpu
from nova_vqos.hypervisor.linux import clock
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import validity
from nova_vqos.tests.fixtures import calibration_host
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.unit.calibration.guest import test_guest

SCATTER = (0.999, 1.0, 1.001)
KINDS = {'integer': 1.0, 'hash': 1.25, 'image': 0.8}


class Runner(calibration_host.ScriptedRunner):
    """Scores are known beforehand, and what the program writes.

    :ivar outputs: of each time that it runs; or what breaks it
    """

    def output_sha256(self, events):
        found = next(self.outputs)
        if isinstance(found, Exception):
            raise found
        return str(found)


class Host:
    """A host of two pCPUs, with a profile.

    :ivar scores: of rounds, by the identity of the benchmark
    :ivar measured: identities of the benchmarks that were run, in order
    :ivar outputs: of the operator's program
    :ivar events: of a round as they were given, by identity
    """

    def __init__(self, directory, name, kinds, **changes):
        self.path = str(directory / f'{name}.yaml')
        self.program = str(directory / 'program')
        self.verification_path = str(directory / f'{name}.json')
        self.scores = {f'{kind} 1.0': 1000 * one
                       for kind, one in kinds.items()}
        self.scatter = dict.fromkeys(self.scores, SCATTER)
        self.events = {}
        self.measured = []
        self.outputs = itertools.repeat('the same')
        document.store(host_files.make_profile(
            name, {'0-1': dict(kinds)}, **changes), self.path)

    @property
    def identity(self):
        return f'command {self.program} ' + "'{events}'"

    @property
    def held(self):
        return document.load(self.path)

    def open(self, benchmark, round_events=None):
        assert benchmark.program_sha256
        self.measured.append(benchmark.identity)
        self.events[benchmark.identity] = round_events
        scores = [self.scores[benchmark.identity] * one for one in
                  self.scatter.get(benchmark.identity, SCATTER)]
        made = Runner(benchmark, [1.1 * one for one in scores], scores,
                      round_events)
        made.outputs = self.outputs
        return made


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Makes hosts; only the one that works is asked for its runners."""
    program = tmp_path / 'program'
    program.write_text('#!/bin/sh\necho "$1"\n')
    program.chmod(0o755)
    monkeypatch.setattr(disturbances, '_LOAD_CHECK_S', 0)
    monkeypatch.setattr(
        benchmarks, 'load', lambda name, commands: commands.get(name) or
        calibration_host.FakeBenchmark(program, f'{name} 1.0'))
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

    def make(name, kinds=None, **changes):
        return Host(tmp_path, name, kinds or KINDS, **changes)
    return make


@pytest.fixture
def gold(hosts):
    made = hosts('gold', dict.fromkeys(KINDS, 1.0), is_reference=True)
    made.scores[made.identity] = 500.0
    return made


@pytest.fixture
def silver(hosts):
    made = hosts('silver')
    made.scores[made.identity] = 300.0
    return made


@pytest.fixture
def add(monkeypatch, capsys):
    """Runs the command on a host; its status, output and log."""
    def run(host, *arguments, name='build', command='{program} {{events}}'):
        monkeypatch.setattr(cpu.runner, 'NativeRunner', host.open)
        monkeypatch.setattr(cpu.in_guest, 'GuestRunner', lambda benchmark, **o:
                            host.open(benchmark, o['round_events']))
        given = ([] if command is None else
                 ['--command', command.format(program=host.program)])
        status = app.main(['add-kind', name, host.path, *given, '-f', 'json',
                           '--verification', host.verification_path,
                           *arguments])
        out, err = capsys.readouterr()
        return status, out, ' '.join(err.split())
    return run


@pytest.fixture
def refused(add):
    """Runs the command on a host, which must leave the profile as it is."""
    def run(host, *arguments, **options):
        before = host.held
        status, out, err = add(host, *arguments, **options)
        assert status == 1
        assert out == ''
        assert host.held == before
        return err
    return run


def without(profile, name):
    """A profile as it was before a kind of no weight was added."""
    def less(measured):
        return measured._replace(scores=tuple(
            one for one in measured.scores if one.benchmark != name))
    return profile._replace(
        reference=profile.reference._replace(benchmarks=tuple(
            one for one in profile.reference.benchmarks if one.name != name)),
        cpu_classes=tuple(
            one._replace(alone=less(one.alone), busy=less(one.busy))
            for one in profile.cpu_classes),
        provenance={key: value for key, value in profile.provenance.items()
                    if key != f'kind_{name}'})


def test_on_the_reference(add, gold):
    before = gold.held
    status, out, _err = add(gold)
    assert status == 0
    made = gold.held
    assert without(made, 'build') == before
    known = made.reference.benchmark('build')
    assert (known.identity, known.weight) == (gold.identity, 0.0)
    assert known.score == pytest.approx(500.0, rel=0.001)
    assert known.program_sha256 == benchmarks.sha256(gold.program)
    assert known.program_sha256 in made.provenance['kind_build']
    (one,) = made.cpu_classes
    assert one.busy.kinds['build'] == 1.0
    assert one.alone.kinds['build'] == pytest.approx(1.1, rel=0.001)
    rows = json.loads(out)
    assert [(row['state'], row['benchmark'], row['weight'])
            for row in rows] == [('alone', 'build', '0'),
                                 ('busy', 'build', '0'),
                                 ('busy', 'hash', '1')]
    assert rows[1]['cu_per_pcpu'] == 100.0
    # The output of the kind, then the anchor and the kind, and nothing else.
    assert gold.measured == [gold.identity, 'hash 1.0', gold.identity]
    assert not os.path.exists(f'{gold.path}.build.partial')


def test_on_another_host(add, gold, silver):
    add(gold)
    before = silver.held
    status, out, _err = add(silver, '--against', gold.path)
    assert status == 0
    made = silver.held
    assert without(made, 'build') == before
    assert made.reference == gold.held.reference
    busy = made.cpu_classes[0].busy
    assert busy.kinds['build'] == pytest.approx(0.6, rel=0.001)
    assert json.loads(out)[1]['cu_per_pcpu'] == pytest.approx(60, abs=0.1)
    # The certainty of the reference's score is part of it.
    assert busy.score('build').interval_width > (
        2 * gold.held.reference.benchmark('build').half_width)


def test_kinds_in_any_order(add, gold, silver, hosts):
    """Hosts with the same kinds have the same reference."""
    for name in ('build', 'render'):
        assert add(gold, name=name)[0] == 0
    other = hosts('bronze')
    other.scores[other.identity] = 200.0
    for host, names in ((silver, ('build', 'render')),
                        (other, ('render', 'build'))):
        for name in names:
            assert add(host, '--against', gold.path, name=name)[0] == 0
    assert silver.held.reference == other.held.reference
    assert other.held.reference == gold.held.reference


def test_an_installed_benchmark(add, gold, silver):
    """A reference from before there was such a benchmark."""
    for host, score in ((gold, 400.0), (silver, 100.0)):
        host.scores['vector 1.0'] = score
        assert add(host, *([] if host is gold else ['--against', gold.path]),
                   name='vector', command=None)[0] == 0
    assert silver.held.cpu_classes[0].busy.kinds['vector'] == pytest.approx(
        0.25, rel=0.001)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5),
       st.floats(0.1, 10))
def test_no_bit_of_the_others_changes(coefficients, new):
    """Of each figure that servers with other kinds are promised."""
    held = host_files.make_profile('gold', {'0-1': {
        f'kind{number}': one for number, one in enumerate(coefficients)}},
        is_reference=True)
    member = benchmarks.Member('build', calibration_host.FakeBenchmark(''), 0)
    addition = kind.Addition(held, member, None, (
        *(one.name for one in held.reference.benchmarks), 'build'))
    known = make_profiles.make_benchmark('build', weight=0.0)
    score = make_profiles.make_score(new, width=0.02, benchmark='build')
    made = kind._with_kind(addition, known, {
        (state, one.pcpus): score for one in held.cpu_classes
        for state in (steps.ALONE, steps.BUSY)}, 'note')
    assert without(document.loads(document.dumps(made)), 'build') == held


def test_a_kind_that_counts(add, gold, silver):
    """It is as if all had been measured with it."""
    status, _out, err = add(gold, '--weight', '2')
    assert status == 0
    assert 'so has the meaning of CPU units' in err
    assert gold.held.cpu_classes[0].busy.coefficient == 1.0
    assert '--weight is for the reference' in add(
        silver, '--against', gold.path, '--weight', '1')[2]
    before = silver.held.cpu_classes[0].busy.coefficient
    assert add(silver, '--against', gold.path)[0] == 0
    made = silver.held
    busy = made.cpu_classes[0].busy
    assert busy.coefficient < before
    assert busy == combine.measurement(busy.scores, made.reference)


@pytest.mark.parametrize('weight', ['-1', '1001', 'much', 'nan'])
def test_a_weight_that_is_none(refused, gold, weight):
    assert 'must be a number from 0 to 1000' in refused(
        gold, f'--weight={weight}')


def test_a_name_that_exists(add, refused, gold):
    add(gold, '--weight', '3')
    assert 'has a kind of work' in refused(gold)
    gold.scores[gold.identity] = 700.0
    assert add(gold, '--replace')[0] == 0
    known = gold.held.reference.benchmark('build')
    assert known.score == pytest.approx(700.0, rel=0.001)
    assert known.weight == 3.0
    assert len(gold.held.reference.benchmarks) == 4


def test_a_replaced_kind_on_another_host(add, refused, gold, silver):
    add(gold)
    add(silver, '--against', gold.path)
    gold.scores[gold.identity] = 600.0
    add(gold, '--replace')
    assert 'has a kind of work' in refused(silver, '--against', gold.path)
    assert add(silver, '--against', gold.path, '--replace')[0] == 0
    assert silver.held.cpu_classes[0].busy.kinds['build'] == pytest.approx(
        0.5, rel=0.001)
    assert silver.held.reference == gold.held.reference


def test_the_only_kind_that_counts_keeps_its_weight(refused, hosts):
    host = hosts('gold', {'integer': 1.0}, is_reference=True)
    assert 'there would be no coefficient' in refused(
        host, '--replace', '--weight', '0', name='integer', command=None)


def test_too_many_kinds(refused, hosts):
    host = hosts('gold', {f'kind{number}': 1.0 for number in range(20)},
                 is_reference=True)
    assert 'has 20 benchmarks' in refused(host, '--anchor', 'kind1')


class TestAgainst:

    def test_it_is_needed(self, refused, silver):
        assert 'this host is not the reference' in refused(silver)

    def test_not_on_the_reference(self, add, refused, gold, silver):
        add(gold)
        assert 'do without --against' in refused(
            gold, '--against', gold.path, name='other')

    def test_a_reference_without_the_kind(self, refused, gold, silver):
        assert 'no kind of work' in refused(silver, '--against', gold.path)

    def test_another_program(self, add, refused, gold, silver):
        add(gold)
        assert 'cannot be compared' in refused(
            silver, '--against', gold.path, command='{program} -n {{events}}')

    @pytest.mark.parametrize('change', [
        lambda one: one._replace(name='silver'),
        lambda one: one._replace(created_at='2026-01-01T00:00:00+00:00'),
        lambda one: one._replace(benchmarks=one.benchmarks[1:]),
        lambda one: one._replace(benchmarks=(
            one.benchmarks[0]._replace(score=1.0), *one.benchmarks[1:]))])
    def test_another_reference(self, add, refused, gold, silver, change):
        add(gold)
        made = gold.held
        changed = change(made.reference)
        names = [one.name for one in changed.benchmarks]
        document.store(made._replace(reference=changed, cpu_classes=tuple(
            one._replace(**{state: measured._replace(scores=tuple(
                score for score in measured.scores
                if score.benchmark in names))
                for state, measured in (('alone', one.alone),
                                        ('busy', one.busy))})
            for one in made.cpu_classes)), gold.path)
        assert 'it must be the same one' in refused(
            silver, '--against', gold.path)

    def test_another_build(self, add, gold, silver):
        """Of the same version, as far as its command says."""
        add(gold)
        with open(silver.program, 'a', encoding='ascii') as file:
            file.write('# of another compiler\n')
        status, _out, err = add(silver, '--against', gold.path)
        assert status == 0
        assert 'is another build than on the reference' in err


class TestHost:

    def test_another_state(self, refused, gold):
        made = gold.held
        document.store(made._replace(fingerprint=dict(
            made.fingerprint, kernel='5.10')), gold.path)
        assert "kernel was '5.10'" in refused(gold)

    def test_it_was_found_to_be_stale(self, refused, gold):
        """Another id would make the host sell units again."""
        validity.store(gold.verification_path, gold.held.id, 'stale', [
            {'pcpus': '0-1', 'drift': '-40.0%', 'verdict': 'stale'}])
        assert 'have drifted by -40.0%' in refused(gold)

    @pytest.mark.parametrize('pace', [0.9, 1.1])
    def test_it_is_not_as_fast_as_it_was(self, refused, gold, pace):
        gold.scores['hash 1.0'] = 1000 * pace
        err = refused(gold)
        assert 'off from the profile' in err
        assert 'calibrate it again' in err
        # It does not go on with these rounds.
        assert not os.path.exists(f'{gold.path}.build.partial')

    def test_a_drift_that_is_tolerated(self, add, gold):
        gold.scores['hash 1.0'] = 1000 * 0.98
        status, out, _err = add(gold)
        assert status == 0
        assert float(json.loads(out)[-1]['drift'].rstrip('%')) == (
            pytest.approx(-2, abs=0.1))
        assert 'hash -2.0%' in gold.held.provenance['kind_build']
        # Nothing is corrected by it.
        assert gold.held.reference.benchmark('build').score == pytest.approx(
            500.0, rel=0.001)

    def test_chance_leaves_too_much_open(self, refused, gold):
        assert 'is tolerated' in refused(gold, '--tolerance', '0.0001')

    def test_guests_are_at_work(self, add, refused, gold, monkeypatch):
        ticks = itertools.count(0, 1000)
        monkeypatch.setattr(host_cpus, 'guest_ticks',
                            lambda pcpus, sysroot: {1: next(ticks)})
        assert 'guests use' in refused(gold)
        assert add(gold, '--beside-guests')[0] == 0

    def test_pcpus_that_became_unlike(self, refused, gold, monkeypatch):
        monkeypatch.setattr(host_cpus, 'classes', lambda pcpus, sysroot: (
            frozenset({0}), frozenset({1})))
        assert 'the profile has equal pCPUs' in refused(gold)

    def test_the_profile_changed_meanwhile(self, add, gold, monkeypatch):
        """What another program wrote stays."""
        written = gold.held._replace(host='another')
        real = kind.add

        def slowly(*arguments, **options):
            found = real(*arguments, **options)
            document.store(written, gold.path)
            return found
        monkeypatch.setattr(kind, 'add', slowly)
        status, _out, err = add(gold)
        assert status == 1
        assert 'another program changed' in err
        assert gold.held == written

    def test_an_interrupted_run_goes_on(self, add, gold):
        gold.scores.pop(gold.identity)
        assert add(gold, '--output-differs')[0] == 1
        gold.scores[gold.identity] = 500.0
        gold.measured.clear()
        assert add(gold)[0] == 0
        assert 'hash 1.0' not in gold.measured

    def test_other_parts_of_the_profile_stay(self, add, gold):
        document.store(gold.held._replace(io={'some': 'costs'}), gold.path)
        assert add(gold)[0] == 0
        assert gold.held.io == {'some': 'costs'}


class TestAnchor:

    def test_the_one_that_is_wanted(self, add, gold):
        assert add(gold, '--anchor', 'image')[0] == 0
        assert gold.measured[1] == 'image 1.0'

    def test_a_program_of_the_operator(self, add, refused, gold):
        """Where nothing else counts."""
        add(gold, '--weight', '1')
        assert 'none of them' in refused(gold, '--anchor', 'other',
                                         name='new')
        assert add(gold, '--anchor', f'build={gold.program} {{events}}',
                   name='new', command='{program} -x {{events}}')[0] == 1
        gold.scores[f"command {gold.program} -x '{{events}}'"] = 10.0
        assert add(gold, '--anchor', f'build={gold.program} {{events}}',
                   name='new', command='{program} -x {{events}}')[0] == 0

    def test_none_is_installed(self, refused, hosts):
        host = hosts('gold', {'mine': 1.0}, is_reference=True)
        assert '--anchor' in refused(host)

    def test_one_that_counts_not(self, add, refused, gold):
        add(gold)
        assert 'none of them' in refused(gold, '--anchor', 'build',
                                         name='new')


class TestProgram:

    @pytest.mark.parametrize(('command', 'says'), [
        ('/no/such {{events}}', 'cannot be run'),
        ('{program}', 'must be NAME=PROGRAM'),
        ('"{program}', 'is no command'),
        ('{program} {{events}} ' + 200 * 'x', 'at most 200')])
    def test_no_command(self, refused, gold, command, says):
        assert says in refused(gold, command=command)

    @pytest.mark.parametrize('name', ['integer', 'Build', 'a b', '', 33 * 'a'])
    def test_a_name_that_it_may_not_have(self, refused, gold, name):
        assert name in refused(gold, '--replace', name=name)

    def test_no_name_of_a_benchmark(self, refused, gold):
        assert 'is no installed benchmark' in refused(gold, command=None)

    def test_it_fails(self, refused, gold):
        gold.outputs = iter([benchmarks.CalibrationError('it broke')])
        assert 'it broke' in refused(gold)
        assert gold.measured == [gold.identity]

    def test_another_output_each_time(self, add, refused, gold):
        gold.outputs = itertools.count()
        assert 'different outputs' in refused(gold)
        # Nothing was measured.
        assert gold.measured == [gold.identity]
        assert add(gold, '--output-differs')[0] == 0

    def test_two_speeds(self, refused, gold):
        gold.scatter[gold.identity] = (1.0, 1.001, 0.999, 0.7)
        assert 'two speeds: build' in refused(gold)
        assert not os.path.exists(f'{gold.path}.build.partial')

    def test_events_that_are_not_alike(self, add, refused, gold):
        gold.scatter[gold.identity] = (0.8, 0.9, 1.0, 1.1, 1.2)
        err = refused(gold, '--rounds', '12')
        assert 'Each event must be the same work' in err
        assert add(gold, '--rounds', '12', '--widest-interval', '0.3')[0] == 0


def test_in_guests(add, gold, silver, tmp_path, monkeypatch):
    """As the profile was measured; rounds are the reference's work."""
    kernel = test_guest.write_kernel(tmp_path / 'vmlinuz', b'6.1.0-40\0')
    monkeypatch.setattr(cpu.in_guest, 'check_memory',
                        lambda guests, memory_mib: None)
    monkeypatch.setitem(host_files.FINGERPRINT, 'emulator', '/usr/bin/qemu')
    for host in (gold, silver):
        document.store(host.held._replace(
            measured_in='guest', fingerprint=dict(host_files.FINGERPRINT),
            provenance={'virt_type': 'qemu', 'guest_kernel': '6.1.0-40'},
            ), host.path)
    assert add(gold, '--kernel', kernel)[0] == 0
    # It finds how many events a round has, and others do as many.
    assert gold.events[gold.identity] is None
    assert gold.held.reference.benchmark('build').round_events == 120
    assert add(silver, '--kernel', kernel, '--against', gold.path)[0] == 0
    assert silver.events[silver.identity] == 120
