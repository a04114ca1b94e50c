# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import files
from nova_vqos import work
from nova_vqos.profile import coefficients
from nova_vqos.profile import cpu
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.unit.profile import test_document

make_profile = test_document.make_profile
IDENTITY = (1, 2, 3, 4)
FOUND = coefficients.Coefficients((
    coefficients.ClassCoefficients(frozenset((0, 1)), 1.25, {
        'integer': 1.2, 'hash': 1.3}),
    coefficients.ClassCoefficients(frozenset((4,)), 0.5, {
        'integer': 0.6, 'hash': 0.4})), 4000)


@pytest.fixture
def path(tmp_path):
    """Of a profile."""
    path = tmp_path / 'profile.yaml'
    document.store(make_profile(), str(path))
    return path


@pytest.fixture
def read(monkeypatch):
    """How often a whole profile was read: one entry each time."""
    times = []

    def load(path, original=document.load):
        times.append(path)
        return original(path)
    monkeypatch.setattr(document, 'load', load)
    return times


def beside(path):
    return pathlib.Path(f'{path}{coefficients.SUFFIX}')


def test_of_a_pcpu():
    assert FOUND.pcpus == {0, 1, 4}
    assert (FOUND.of(1), FOUND.of(4)) == (1.25, 0.5)
    assert FOUND.of(1, work.parse('hash')) == 1.3
    with pytest.raises(files.FileInvalid, match=r'pCPU 2 .* which has 0-1,4'):
        FOUND.of(2)
    with pytest.raises(work.KindMissing, match='it has integer, hash'):
        FOUND.of(1, work.parse('vector'))


def test_of_several():
    assert (FOUND.slowest((0, 4)), FOUND.fastest((0, 4))) == (0.5, 1.25)
    assert FOUND.slowest((0, 4), work.parse('integer')) == 0.6
    with pytest.raises(files.FileInvalid, match='no pCPU is left'):
        FOUND.slowest(())


def test_of_a_profile():
    profile = make_profile()
    found = profile.coefficients
    assert (found.pcpus, found.tick_us) == (profile.pcpus, 4000)
    assert found.of(0) == profile.coefficient(0) == 1.25
    assert found.slowest(profile.pcpus) == profile.slowest(profile.pcpus)
    assert profile.fastest(profile.pcpus) == 1.25


def test_a_profile_is_read_once(path, read):
    expected = make_profile().coefficients
    assert coefficients.load(str(path)) == expected
    assert coefficients.load(str(path)) == expected
    assert read == [str(path)]
    assert sorted(os.listdir(path.parent)) == [path.name, beside(path).name]
    assert beside(path).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize('change', [
    lambda path: document.store(
        make_profile(fingerprint={'tick_us': '1000'}), str(path)),
    lambda path: path.write_text(document.dumps(
        make_profile(fingerprint={'tick_us': '1000'}))),
])
def test_a_changed_profile_is_read_again(path, read, change):
    coefficients.load(str(path))
    change(path)
    for _ in range(2):
        assert coefficients.load(str(path)).tick_us == 1000
    assert len(read) == 2


def test_a_profile_that_cannot_be_used_any_more(path):
    coefficients.load(str(path))
    text = path.read_text()
    path.write_text(text.replace('1.25', '1.24'))
    with pytest.raises(files.FileInvalid, match='the content was changed'):
        coefficients.load(str(path))
    path.write_text(text)
    coefficients.load(str(path))
    path.chmod(0o666)
    with pytest.raises(files.FileUnsafe, match='mode 0666'):
        coefficients.load(str(path))
    path.unlink()
    with pytest.raises(files.FileMissing, match='nova-vqos-calibrate cpu'):
        coefficients.load(str(path))


def test_what_is_beside_it_is_unsafe(path, read):
    coefficients.load(str(path))
    beside(path).chmod(0o666)
    coefficients.load(str(path))
    assert len(read) == 2
    # Written anew.
    assert beside(path).stat().st_mode & 0o777 == 0o644


def test_what_is_beside_it_is_cut_off(path, read):
    coefficients.load(str(path))
    lines = beside(path).read_text().splitlines(keepends=True)
    assert len(lines) == 6
    for left in range(len(lines)):
        read.clear()
        beside(path).write_text(''.join(lines[:left]))
        assert coefficients.load(str(path)) == make_profile().coefficients
        assert len(read) == 1


@pytest.mark.parametrize('content', [
    b'', b'\xff', b'\0' * 200, b'{}', b'nova-vqos coefficients 1\n'])
def test_what_is_beside_it_is_something_else(path, read, content):
    beside(path).write_bytes(content)
    assert coefficients.load(str(path)) == make_profile().coefficients
    assert len(read) == 1


def test_nothing_can_be_written_beside_it(path, read, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError
    monkeypatch.setattr(files, 'write', refuse)
    for _ in range(2):
        assert coefficients.load(str(path)) == make_profile().coefficients
    assert len(read) == 2
    assert not beside(path).exists()


def test_the_profile_is_replaced_while_it_is_read(path, monkeypatch):
    old, new = make_profile(), make_profile(fingerprint={'tick_us': '1000'})

    def load(_path):
        document.store(new, str(path))
        return old
    monkeypatch.setattr(document, 'load', load)
    coefficients.load(str(path))
    assert not beside(path).exists()


@pytest.mark.parametrize('name', ['a\tb', 'a\nb', 'a\x85b', '\u2028', 'a\rb'])
def test_a_kind_of_any_name(tmp_path, read, name):
    """It is not lost: the whole profile is read."""
    path = tmp_path / 'profile.yaml'
    measurement, reference = make_profiles.make_kinds({name: 1.5})
    document.store(make_profile(reference=reference, cpu_classes=(
        cpu.CpuClass(frozenset((0,)), measurement, measurement),)), str(path))
    for _ in range(2):
        assert coefficients.load(str(path)).classes[0].kinds == {name: 1.5}
    assert len(read) == 2


NUMBERS = st.floats(min_value=0.001, max_value=1000)


@given(st.lists(st.tuples(
    st.frozensets(st.integers(0, 8191), min_size=1, max_size=20), NUMBERS,
    st.dictionaries(st.from_regex('[a-z]([ a-z-]{0,9}[a-z])?', fullmatch=True),
                    NUMBERS, max_size=4)), max_size=4), st.integers(1, 10_000))
def test_the_text_is_exact(classes, tick_us):
    found = coefficients.Coefficients(tuple(
        coefficients.ClassCoefficients(*one) for one in classes), tick_us)
    text = coefficients._format(found, IDENTITY)
    assert coefficients._parse(text, IDENTITY) == found
    with pytest.raises(ValueError, match='another profile'):
        coefficients._parse(text, (*IDENTITY[:3], 5))
