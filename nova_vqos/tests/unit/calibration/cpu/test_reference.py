# SPDX-License-Identifier: Apache-2.0
"""The reference, handed on and exchanged for another one."""

import json
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos import files
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import combine
from nova_vqos.calibration.cpu import reference as references
from nova_vqos.calibration.run import Effort
from nova_vqos.cmd.calibrate import app
from nova_vqos.profile import cpu
from nova_vqos.profile import document as documents
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.functional import host_files

BENCHMARK = make_profiles.make_benchmark()._asdict() | {'round_events': 120}
coefficients = st.floats(min_value=0.1, max_value=10)
widths = st.floats(min_value=0.001, max_value=0.1)


def make(coefficient, *, width=0.01, reference_half_width=0.0, **changes):
    return host_files.make_profile(
        'compute1', {'0-1': coefficient}, relative_width=width,
        reference=make_profiles.make_reference(
            'gold', make_profiles.make_benchmark(
                half_width=reference_half_width, round_events=120)),
        **changes)


def gold_of(coefficient, **changes):
    """The profile of a reference."""
    return make(coefficient, is_reference=True, **changes)


def document(profile=None, **changes):
    """The document of a reference with some of it changed, and its id."""
    content = json.loads(references.export(profile or gold_of(1.2), 'me'))
    content.update(changes)
    del content['id']
    return content | {'id': references._id(content)}


class TestDocument:

    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / 'reference.json'

    @pytest.mark.parametrize('events', [None, 120])
    def test_it_is_the_reference_of_the_profile(self, path, events):
        held = gold_of(1.2)._replace(reference=make_profiles.make_reference(
            'gold', make_profiles.make_benchmark(
                'integer', half_width=0.01, round_events=events),
            make_profiles.make_benchmark('float', weight=2.5)))
        path.write_text(references.export(held, 'Jane Doe'))
        assert references.load(str(path)) == references.of_profile(held)

    def test_of_a_reference_without_a_profile(self, path):
        made_up = references.Yardstick(make_profiles.make_reference(
            'gold', make_profiles.make_benchmark('integer', half_width=0.0),
        ), 'guest')
        path.write_text(references.dumps(made_up, 'me', {}))
        assert references.load(str(path)) == made_up

    def test_it_names_its_origin(self):
        found = document()
        assert found['signed_off_by'] == 'me'
        assert found['exported']['cpu_model'] == 'a pCPU of the tests'
        assert found['exported']['from_host'] == 'compute1'
        assert found['exported']['nova_vqos']

    def test_it_stands_for_the_profile(self, calibrate, path, tmp_path):
        gold = calibrate({0, 1}, reference_name='gold',
                         busy=(99.0, 100.0, 101.0)).measured
        documents.store(gold, str(tmp_path / 'gold.yaml'))
        path.write_text(references.export(gold, 'me'))
        one, other = (
            calibrate({0, 1}, busy=(60.0,),
                      against=references.load(str(against))).measured
            for against in (path, tmp_path / 'gold.yaml'))
        # How many rounds there were is another matter.
        assert one.cpu_classes[0].busy[:3] == other.cpu_classes[0].busy[:3]
        assert one.reference == other.reference

    @pytest.mark.parametrize(('change', 'message'), [
        ({'kind': 'a letter'}, "kind is 'a letter'"),
        ({'schema': 1}, 'schema is 1, it must be 2'),
        ({'measured_in': 'mind'}, 'measured_in is'),
        ({'name': ''}, 'name is'),
        ({'benchmarks': []}, 'benchmarks is'),
        ({'benchmarks': [{}]}, r'benchmarks\[0\].name is missing'),
        ({'benchmarks': [BENCHMARK | {'score': 0}]},
         r'benchmarks\[0\].score is 0'),
        ({'benchmarks': [BENCHMARK | {'score': float('nan')}]},
         r'benchmarks\[0\].score is nan'),
    ])
    def test_an_invalid_reference(self, path, change, message):
        path.write_text(json.dumps(document(**change)))
        with pytest.raises(files.FileInvalid, match=message):
            references.load(str(path))

    def test_changed_since_it_was_signed_off(self, path):
        content = document()
        content['benchmarks'][0]['score'] *= 2
        path.write_text(json.dumps(content))
        with pytest.raises(files.FileInvalid,
                           match='changed since me signed it off'):
            references.load(str(path))

    def test_of_another_host_than_the_reference(self):
        with pytest.raises(CalibrationError,
                           match='compute1 is not that of the reference'):
            references.export(make(1.2), 'me')

    @pytest.mark.parametrize('text', [
        '', '[]', '{"kind": 1e999}', '{"schema": 1' + '0' * 400 + '}',
        '{"kind": ', '[' * 9999])
    def test_an_invalid_document(self, path, text):
        path.write_text(text)
        with pytest.raises(files.FileInvalid, match='reference.json'):
            references.load(str(path))

    def test_one_that_others_may_write(self, path):
        path.write_text(references.export(gold_of(1.2), 'me'))
        path.chmod(0o666)
        with pytest.raises(files.FileUnsafe):
            references.load(str(path))


class TestRescale:

    def test_the_new_reference_is_1(self):
        onto = make(1.7, reference_half_width=0.003)
        own = references.rescale(onto, onto, 'silver')
        assert own.cpu_classes[0].busy.coefficient == 1.0
        assert own.reference.name == 'silver'
        assert own.reference.benchmarks[0].score == pytest.approx(1700)
        # To itself it is certain, but for its own measurement.
        assert own.cpu_classes[0].busy.interval_width == pytest.approx(
            2 * (0.005 ** 2 - 0.003 ** 2) ** 0.5)
        assert own.provenance['rescaled_from'] == onto.id
        assert own.provenance['rescaled_from_reference'] == 'gold'
        assert references.export(own, 'me')

    @given(coefficients)
    def test_the_new_reference_is_exactly_1(self, coefficient):
        """Else its host has a unit less, for a rounding."""
        onto = make(coefficient)
        own = references.rescale(onto, onto, 'silver')
        assert own.cpu_classes[0].busy.coefficient == 1.0

    def test_the_old_reference_is_one_no_longer(self):
        made = references.rescale(gold_of(1.0), make(2.0), 'silver')
        assert not made.is_reference

    def test_what_can_be_no_profile(self):
        with pytest.raises(files.FileInvalid, match='coefficient is'):
            references.rescale(make(0.01), make(100.0), 'silver')

    def test_an_interval_that_is_wider_than_its_coefficient(self):
        made = references.rescale(make(1.0, width=1.9),
                                  make(2.0, width=1.9), 'silver')
        assert made.cpu_classes[0].busy.interval_low == 0.0005

    @settings(deadline=None)
    @given(coefficients, coefficients, widths, widths)
    def test_speeds_stay_what_they_are(self, mine, theirs, width, its_width):
        profile, onto = make(mine, width=width), make(theirs, width=its_width)
        made = references.rescale(profile, onto, 'silver')
        old, new = profile.cpu_classes[0].busy, made.cpu_classes[0].busy
        (before,), (after,) = (profile.reference.benchmarks,
                               made.reference.benchmarks)
        assert (new.coefficient * after.score == pytest.approx(
            old.coefficient * before.score))
        assert new.scores[0].samples == old.scores[0].samples
        assert made.fingerprint == profile.fingerprint
        assert references.own_half_width(made, new) / new.coefficient == (
            pytest.approx(width / 2, rel=0.01, abs=1e-5))

    @settings(deadline=None)
    @given(coefficients, coefficients)
    def test_there_and_back(self, mine, theirs):
        gold, profile, onto = make(1.0), make(mine), make(theirs)
        back = references.rescale(
            references.rescale(profile, onto, 'silver'),
            references.rescale(gold, onto, 'silver'), gold.reference.name)
        assert back.reference.benchmarks[0].score == pytest.approx(
            gold.reference.benchmarks[0].score)
        assert back.cpu_classes[0].busy[:1] == pytest.approx(
            profile.cpu_classes[0].busy[:1])

    def test_as_if_it_had_been_measured_so(self, calibrate):
        """Against the new reference from the start."""
        scores = {'silver': (118.0, 120.0, 122.0), 'host': (59.0, 60.0, 61.0)}
        effort = Effort(12, max_interval=0.001)
        gold = references.of_profile(calibrate(
            {0, 1}, reference_name='gold', busy=(99.0, 100.0, 101.0),
            effort=effort).measured)
        silver, host = (
            calibrate({0, 1}, busy=scores[name], against=gold,
                      effort=effort).measured for name in ('silver', 'host'))
        rescaled = references.rescale(host, silver, 'silver')
        measured = calibrate(
            {0, 1}, busy=scores['host'], effort=effort,
            against=references.of_profile(calibrate(
                {0, 1}, reference_name='silver', busy=scores['silver'],
                effort=effort).measured)).measured
        for mine, theirs in zip(rescaled.cpu_classes, measured.cpu_classes,
                                strict=True):
            assert mine.busy[:3] == pytest.approx(theirs.busy[:3], rel=5e-3)
        assert rescaled.reference.benchmarks[0].score == pytest.approx(
            measured.reference.benchmarks[0].score, rel=5e-3)

    @settings(deadline=None)
    @given(st.lists(coefficients, min_size=2, max_size=2),
           st.lists(coefficients, min_size=2, max_size=2), widths)
    def test_several_benchmarks(self, mine, theirs, width):
        """Each by itself, and the mean: as only a geometric one does."""
        reference = make_profiles.make_reference(
            'gold', make_profiles.make_benchmark('integer'),
            make_profiles.make_benchmark('float', weight=2.0))
        profile, onto = (make(1.0)._replace(
            reference=reference, cpu_classes=(cpu.CpuClass(
                frozenset({0}), *[combine.measurement([
                    make_profiles.make_score(one, width=width),
                    make_profiles.make_score(other, width=width,
                                             benchmark='float')],
                    reference)] * 2),)) for one, other in (mine, theirs))
        (made,) = references.rescale(profile, onto, 'silver').cpu_classes
        for i in (0, 1):
            assert made.busy.scores[i].coefficient == pytest.approx(
                mine[i] / theirs[i])
        assert made.busy.coefficient == pytest.approx(
            profile.cpu_classes[0].busy.coefficient
            / onto.cpu_classes[0].busy.coefficient)

    def test_what_was_not_measured_alike(self):
        with pytest.raises(CalibrationError,
                           match='the new reference in the guest'):
            references.rescale(make(1.0), make(1.2, measured_in='guest'), 'x')


def make_with(kinds, *, weight=0.0, score=1000.0, scale=1.0):
    """A profile with integer, and these kinds of work besides."""
    reference = make_profiles.make_reference(
        'gold', make_profiles.make_benchmark('integer'), *(
            make_profiles.make_benchmark(kind, weight=weight, score=score)
            for kind in kinds))
    measured = combine.measurement(
        [make_profiles.make_score(scale, benchmark=name, width=0.01)
         for name in ('integer', *kinds)], reference)
    return make(1.0)._replace(reference=reference, cpu_classes=(
        cpu.CpuClass(frozenset({0, 1}), measured, measured),))


class TestKinds:
    """Kinds of work are added one host at a time."""

    @pytest.mark.parametrize('kinds', [
        [], ['build', 'render'], ['render', 'build'], ['render']])
    def test_the_same_reference(self, kinds):
        one, other = make_with(['build']), make_with(kinds)
        references.check_comparable({'one': one, 'other': other})
        references.check_comparable({'other': other, 'one': one})

    @pytest.mark.parametrize(('kinds', 'changes'), [
        (['build'], {'score': 900.0}), (['build'], {'weight': 1.0}),
        (['build', 'render'], {'weight': 1.0}),
        (['render'], {'weight': 1.0})])
    def test_another_reference(self, kinds, changes):
        one, other = make_with(['build']), make_with(kinds, **changes)
        for found in ({'one': one, 'other': other},
                      {'other': other, 'one': one}):
            with pytest.raises(CalibrationError, match='measured alike'):
                references.check_comparable(found)

    def test_a_host_is_rescaled_onto_one_with_more(self):
        made = references.rescale(
            make_with(['build']),
            make_with(['render', 'build'], scale=2.0), 'silver')
        assert made.cpu_classes[0].busy.kinds == {
            'integer': 0.5, 'build': 0.5}

    def test_a_host_with_more_cannot_be(self):
        with pytest.raises(CalibrationError, match='add-kind'):
            references.rescale(make_with(['render', 'build']),
                               make_with(['build']), 'silver')


class TestCommands:

    @pytest.fixture
    def profile(self, tmp_path):
        def stored(name, coefficient):
            path = str(tmp_path / name)
            kind = gold_of if coefficient == 1.0 else make
            documents.store(kind(coefficient, host=name), path)
            return path

        return stored

    def test_reference(self, profile, tmp_path, capsys):
        output = str(tmp_path / 'out' / 'gold.json')
        assert app.main(['reference', profile('gold', 1.0),
                         '--signed-off-by', 'Jane Doe',
                         '--output', output]) == 0
        assert references.load(output).reference == make(1.0).reference

    @pytest.mark.parametrize('name', ['', 'a\nb', 'x' * 257])
    def test_a_name_that_is_none(self, profile, tmp_path, capsys, name):
        with pytest.raises(SystemExit):
            app.main(['reference', profile('gold', 1.0),
                      '--signed-off-by', name, '--output', 'gold.json'])
        assert 'printable characters' in capsys.readouterr().err

    def test_rescale(self, profile, tmp_path, capsys):
        onto = profile('silver', 2.0)
        assert app.main([
            'rescale', '--onto', onto, '--name', 'silver', '--output-dir',
            str(tmp_path / 'new'), '-f', 'json', profile('gold', 1.0),
            onto]) == 0
        printed = capsys.readouterr()
        assert [(row['host'], row['cu_before'], row['cu_after'])
                for row in json.loads(printed.out)] == [
            ('gold', 100.0, 50.0), ('silver', 200.0, 100.0)]
        assert '100 CU of gold are 50 CU of silver' in ' '.join(
            printed.err.split())
        assert 'run 2 times as fast as they should' in ' '.join(
            printed.err.split())
        made = documents.load(str(tmp_path / 'new' / 'gold'))
        assert made.coefficient(0) == 0.5

    def test_all_are_written_or_none_is(self, profile, tmp_path, capsys):
        stranger = tmp_path / 'stranger'
        documents.store(make(1.0, measured_in='guest'), str(stranger))
        assert app.main([
            'rescale', '--onto', profile('silver', 2.0), '--name', 'silver',
            '--output-dir', str(tmp_path / 'new'), profile('gold', 1.0),
            str(stranger)]) == 1
        assert not (tmp_path / 'new').exists()

    def test_a_profile_is_not_replaced(self, profile, tmp_path, capsys):
        gold = profile('gold', 1.0)
        assert app.main(['rescale', '--onto', gold, '--name', 'x',
                         '--output-dir', str(tmp_path), gold]) == 1
        assert 'would be replaced' in capsys.readouterr().err

    def test_two_of_one_name(self, profile, tmp_path, capsys):
        gold = profile('gold', 1.0)
        assert app.main(['rescale', '--onto', gold, '--name', 'x',
                         '--output-dir', str(tmp_path / 'new'), gold,
                         str(tmp_path / '.' / 'gold')]) == 1
        assert 'both be written' in capsys.readouterr().err


def test_a_reference_that_is_hardly_known():
    """Its part is taken out of an interval whose lower end would be below 0.

    What is left is the uncertainty of the host itself.
    """
    vague = make_profiles.make_reference(
        'vague', make_profiles.make_benchmark(half_width=1.0))
    low, high = cpu.interval(1.0, math.hypot(1.0, 0.05))
    score = make_profiles.make_score(1.0)._replace(
        interval_low=low, interval_high=high)
    made = make_profiles.make_profile(
        'there', make_profiles.make_class({0}, 1.0), reference=vague,
        fingerprint={}, is_reference=False)
    assert references.own_half_width(made, score) == pytest.approx(0.05)
