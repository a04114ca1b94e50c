# SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import time

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos.profile import cpu
from nova_vqos.profile import document as documents
from nova_vqos.profile import model
from nova_vqos.profile import validity
from nova_vqos.tests.fixtures import make_profiles


def make_profile(**changes):
    measurement = make_profiles.make_measurement(
        1.25, width=0.016, samples=(812.0, 815.5, 810.25))
    values = {
        'created_at': '2026-11-21T07:00:00+00:00',
        'host': 'compute1',
        'reference': make_profiles.make_reference(),
        'measured_in': 'host',
        'fingerprint': {'cpu_model': 'Some CPU', 'tick_us': '4000'},
        'cpu_classes': (
            cpu.CpuClass(pcpus=frozenset([0, 1, 2, 8]),
                         alone=measurement._replace(
                                 coefficient=1.255),
                         busy=measurement),
            cpu.CpuClass(pcpus=frozenset([4]), alone=measurement,
                         busy=make_profiles.make_measurement(
                                 0.5, width=0.04))),
        'provenance': {'load': '0.1'},
    }
    return model.Profile(**(values | changes))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'etc' / 'profile.yaml')


def document(**changes):
    return json.loads(documents.dumps(make_profile())) | changes


def test_store_and_load(path):
    made = make_profile()
    documents.store(made, path)
    assert documents.load(path) == made
    assert documents.load(path).id == made.id
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert os.listdir(os.path.dirname(path)) == ['profile.yaml']


def test_the_id_names_the_content():
    made = make_profile()
    assert len(made.id) == 16
    assert made._replace(host='compute2').id != made.id


def test_a_failed_store_leaves_the_old_one(path, monkeypatch):
    documents.store(make_profile(), path)

    def full(_fd):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space'):
        documents.store(make_profile(host='compute2'), path)
    assert documents.load(path).host == 'compute1'
    assert os.listdir(os.path.dirname(path)) == ['profile.yaml']


@pytest.mark.parametrize(('changes', 'says'), [
    ({'provenance': {'load': 'x' * 300}}, 'provenance.load is'),
    ({'cpu_classes': (make_profiles.make_class([0], 5000.0),)},
     r'coefficient is 5000\.0, it must be a number from')])
def test_what_could_not_be_read_is_not_written(path, changes, says):
    documents.store(make_profile(), path)
    with pytest.raises(files.FileInvalid, match=says) as caught:
        documents.store(make_profile(host='compute2', **changes), path)
    assert f'{path} was not written' in str(caught.value)
    assert documents.load(path).host == 'compute1'
    assert os.listdir(os.path.dirname(path)) == ['profile.yaml']


@pytest.mark.parametrize(('there', 'says'), [
    (documents.dumps(make_profile(host='compute3')),
     'reads as another profile'),
    (documents.dumps(make_profile())[:700], 'not the JSON of a profile'),
    ('', 'not the JSON of a profile')])
def test_what_a_disk_makes_of_it_is_not_taken(path, monkeypatch, there, says):
    documents.store(make_profile(), path)

    def lose(descriptor):
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, there.encode(), 0)

    monkeypatch.setattr(os, 'fsync', lose)
    with pytest.raises(files.FileInvalid, match=says):
        documents.store(make_profile(host='compute2'), path)
    assert documents.load(path).host == 'compute1'


def test_missing(path):
    with pytest.raises(files.FileMissing, match='nova-vqos-calibrate'):
        documents.load(path)


@pytest.mark.parametrize('mode', [0o666, 0o646, 0o664])
def test_written_by_others(path, mode):
    documents.store(make_profile(), path)
    os.chmod(path, mode)
    with pytest.raises(files.FileUnsafe, match=f'mode 0{mode:o}'):
        documents.load(path)


def test_of_another_owner(path, monkeypatch):
    documents.store(make_profile(), path)
    monkeypatch.setattr(os, 'geteuid', lambda: 12345)
    if os.stat(path).st_uid == 0:
        documents.load(path)
    else:
        with pytest.raises(files.FileUnsafe, match='belongs to user'):
            documents.load(path)


def test_not_a_file(tmp_path):
    for path in (str(tmp_path), '/dev/null'):
        with pytest.raises(files.FileUnsafe, match='regular file'):
            documents.load(path)


def test_too_large(path):
    documents.store(make_profile(), path)
    with open(path, 'a') as file:
        file.write('#' * files.MAX_FILE_BYTES)
    with pytest.raises(files.FileInvalid, match='more than'):
        documents.load(path)


@given(st.integers(0, len(documents.dumps(make_profile())) - 2))
def test_truncated(length):
    with pytest.raises(files.FileInvalid):
        documents.loads(documents.dumps(make_profile())[:length])


def test_edited_by_hand():
    text = documents.dumps(make_profile())
    with pytest.raises(files.FileInvalid, match='content was changed'):
        documents.loads(text.replace('"coefficient": 1.25,',
                                     '"coefficient": 1.26,'))


def test_whole_numbers_are_as_good():
    made = make_profile(cpu_classes=(
        make_profiles.make_class([0], 1, samples=(5,)),))
    assert documents.loads(documents.dumps(made)) == made


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_garbage(content):
    with pytest.raises(files.FileInvalid):
        documents.loads(content)


_BUSY = ('cpu_classes', 1, 'busy')
_SCORE = (*_BUSY, 'scores', 0)
_BENCHMARK = ('reference', 'benchmarks', 0)


@pytest.mark.parametrize('path, value, says', [
    (('schema',), 1, 'schema is 1, it must be 2: calibrate with'),
    (('schema',), True, 'schema is True'),
    (('schema',), None, 'schema is None'),
    (('host',), '', "host is '', it must be a text of 1 to 256"),
    (('host',), 'x' * 257, 'host is'),
    (('measured_in',), 'dream', 'it must be host or guest'),
    (('reference',), [], 'reference is no mapping'),
    (('fingerprint',), {'a': 1}, 'fingerprint.a is 1'),
    (('fingerprint',), {str(i): 'x' for i in range(101)}, 'at most 100'),
    (('provenance',), 5, 'provenance is no mapping'),
    (('cpu_classes',), [], 'a list of 1 to 64 mappings'),
    (('cpu_classes',), [5], r'cpu_classes\[0\] is no mapping'),
    (('cpu_classes',), [{'pcpus': '0-1'}],
     r'cpu_classes\[0\].alone is no mapping'),
    (('cpu_classes', 1, 'pcpus'), '1', 'several'),
    ((*_BUSY, 'coefficient'), 0, r'\[1\].busy.*from 0.001 to 1000'),
    ((*_BUSY, 'coefficient'), -1.0, r'\[1\].busy.coefficient.*a number from'),
    ((*_BUSY, 'coefficient'), float('nan'), 'a number from'),
    ((*_BUSY, 'coefficient'), '1.0', 'a number from'),
    ((*_BUSY, 'interval'), [1.3, 1.4], r'\[1\].busy.*around the coefficient'),
    ((*_BUSY, 'interval'), [1.2], 'busy.interval.*a list of 2 positive'),
    ((*_BUSY, 'scores'), [], 'busy.scores.*a list of 1 to 20'),
    ((*_SCORE, 'coefficient'), 0, r'\[1\].busy.scores.*from 0.001 to 1000'),
    ((*_SCORE, 'interval'), [1.3, 1.4], 'scores.*around the coefficient'),
    ((*_SCORE, 'outliers'), -1, 'scores.*a number from 0'),
    ((*_SCORE, 'samples'), [], 'scores.*a list of 1 to 10000'),
    ((*_SCORE, 'samples'), [float('inf')], 'scores.*positive numbers'),
    ((*_SCORE, 'samples'), ['1'], 'scores.*positive numbers'),
    ((*_SCORE, 'benchmark'), 'float', 'one of each benchmark of the refer'),
    ((*_BENCHMARK, 'weight'), -1, 'benchmarks.*a number from 0 to 1000'),
    ((*_BENCHMARK, 'weight'), 0, 'at least one with a weight above 0'),
    ((*_BENCHMARK, 'score'), 0, 'benchmarks.*a number from 1e-09'),
    ((*_BENCHMARK, 'half_width'), 2, 'benchmarks.*a number from 0 to 1'),
    ((*_BENCHMARK, 'identity'), '', 'benchmarks.*a text of 1 to 256'),
    ((*_BENCHMARK, 'round_events'), 0.5, 'benchmarks.*a number from 1'),
    (('reference', 'benchmarks'), document()['reference']['benchmarks'] * 2,
     'each of another name'),
])
def test_fields_that_are_wrong(path, value, says):
    with pytest.raises(files.FileInvalid, match=says):
        documents.loads(json.dumps(
            make_profiles.damaged(document(), path, value)))


def test_samples_are_no_reading_matter():
    """Of thousands each would be a line; what is in texts stays as it is."""
    made = make_profile(provenance={'odd': '[\\n 1,  2 ]'})
    assert '"samples": [ 812.0, 815.5, 810.25 ]' in documents.dumps(made)
    assert documents.loads(documents.dumps(made)) == made


@pytest.mark.parametrize('opening', ['[', '{"a":', '[{"a":', 'a: {', '- '])
def test_nesting_ends_soon(opening):
    started = time.process_time()
    with pytest.raises(files.FileInvalid):
        documents.loads(opening * (files.MAX_FILE_BYTES // len(opening)))
    assert time.process_time() - started < 5


@pytest.mark.parametrize('digits', [400, 5000])
def test_numbers_beyond_floats(digits):
    text = json.dumps(document(schema='SCHEMA'))
    with pytest.raises(files.FileInvalid):
        documents.loads(text.replace('"SCHEMA"', '9' * digits))


def test_coefficients_are_those_of_busy_pcpus():
    made = make_profile()
    assert made.coefficient(8) == 1.25
    assert made.slowest([0, 4]) == 0.5
    assert made.fastest([0, 4]) == 1.25
    assert made.pcpus == {0, 1, 2, 4, 8}


@pytest.mark.parametrize('pcpus, says', [
    ([0, 3], 'pCPU 3 is not in the profile, which has 0-2,4,8'),
    ([], 'no pCPU is left')])
def test_pcpus_that_were_not_measured(pcpus, says):
    with pytest.raises(files.FileInvalid, match=says):
        make_profile().slowest(pcpus)


def test_tick_of_an_unknown_kernel_is_the_longest():
    assert make_profile().tick_us == 4000
    assert make_profile(fingerprint={}).tick_us == 10_000
    assert make_profile(fingerprint={'tick_us': 'x'}).tick_us == 10_000


def test_staleness():
    made = make_profile()
    assert validity.staleness(made, made.fingerprint) == []
    assert validity.staleness(
        made, made.fingerprint | {'something_new': '1'}) == []
    assert validity.staleness(
        made, {'cpu_model': 'Other CPU'}) == [
        "cpu_model was 'Some CPU' and is 'Other CPU'",
        "tick_us was '4000' and is 'unknown'"]
    assert validity.staleness(
        made, made.fingerprint, max_interval=0.02) == [
        'the interval of pCPUs 4 is 4.0% wide, more than 2.0%']


@pytest.mark.parametrize('text, expected', [
    ('0', {0}), ('0-3', {0, 1, 2, 3}), ('0-1,8', {0, 1, 8}),
    ('8, 0', {0, 8})])
def test_parse_pcpus(text, expected):
    assert cpuset.parse_pcpus(text) == expected


@pytest.mark.parametrize('text', [
    '', ',', '-1', '3-1', '0-', 'a', '0-99999', '0--1', '1.5'])
def test_parse_pcpus_refuses(text):
    with pytest.raises(ValueError, match='no (list|range) of pCPUs|no range'):
        cpuset.parse_pcpus(text)


@given(st.sets(st.integers(0, 8191), min_size=1))
def test_pcpus_and_back(pcpus):
    assert cpuset.parse_pcpus(cpuset.format_pcpus(pcpus)) == pcpus


class TestClock:
    def with_clocks(self, *clocks_mhz):
        made = make_profile()
        return made._replace(cpu_classes=tuple(
            one._replace(clock_mhz=mhz) for one, mhz in zip(
                made.cpu_classes, clocks_mhz, strict=True)))

    def test_it_comes_back(self):
        made = self.with_clocks(2900.5, None)
        found = documents.loads(documents.dumps(made))
        assert found == made
        assert found.id != make_profile().id

    def test_a_profile_without_it_stays_the_same(self):
        text = documents.dumps(make_profile())
        assert 'clock' not in text
        assert documents.loads(text).clock_mhz({0}) is None

    @pytest.mark.parametrize(('pcpus', 'expected'), [
        ({0, 1}, 2900.0), ({4}, 1800.0), ({0, 4}, 1800.0), ({77}, None)])
    def test_of_some_pcpus_it_is_the_lowest(self, pcpus, expected):
        assert self.with_clocks(2900.0, 1800.0).clock_mhz(pcpus) == expected

    def test_one_that_is_not_known_of_all_is_not_known(self):
        assert self.with_clocks(2900.0, None).clock_mhz({0, 4}) is None

    @pytest.mark.parametrize('mhz', [0, -1, 1e9, 'fast', None])
    def test_one_that_is_none_is_refused(self, mhz):
        content = json.loads(documents.dumps(self.with_clocks(2900.0, None)))
        content['cpu_classes'][0]['clock_mhz'] = mhz
        with pytest.raises(files.FileInvalid, match='clock_mhz'):
            documents.loads(json.dumps(content))
