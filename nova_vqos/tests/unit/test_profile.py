# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

import errno
import json
import os
import time

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import profile
from nova_vqos.tests import make_profiles


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
            profile.CpuClass(pcpus=frozenset([0, 1, 2, 8]),
                             alone=measurement._replace(
                                 coefficient=1.255),
                             busy=measurement),
            profile.CpuClass(pcpus=frozenset([4]), alone=measurement,
                             busy=make_profiles.make_measurement(
                                 0.5, width=0.04))),
        'provenance': {'load': '0.1'},
    }
    return profile.Profile(**(values | changes))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'etc' / 'profile.yaml')


def document(**changes):
    return json.loads(profile.dumps(make_profile())) | changes


def test_store_and_load(path):
    made = make_profile()
    profile.store(made, path)
    assert profile.load(path) == made
    assert profile.load(path).id == made.id
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert os.listdir(os.path.dirname(path)) == ['profile.yaml']


def test_the_id_names_the_content():
    made = make_profile()
    assert len(made.id) == 16
    assert made._replace(host='compute2').id != made.id


def test_a_failed_store_leaves_the_old_one(path, monkeypatch):
    profile.store(make_profile(), path)

    def full(_fd):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space'):
        profile.store(make_profile(host='compute2'), path)
    assert profile.load(path).host == 'compute1'
    assert os.listdir(os.path.dirname(path)) == ['profile.yaml']


@pytest.mark.parametrize(('changes', 'says'), [
    ({'provenance': {'load': 'x' * 300}}, 'provenance.load is'),
    ({'cpu_classes': (make_profiles.make_class([0], 5000.0),)},
     r'coefficient is 5000\.0, it must be a number from')])
def test_what_could_not_be_read_is_not_written(path, changes, says):
    profile.store(make_profile(), path)
    with pytest.raises(profile.ProfileInvalid, match=says) as caught:
        profile.store(make_profile(host='compute2', **changes), path)
    assert f'{path} was not written' in str(caught.value)
    assert profile.load(path).host == 'compute1'
    assert os.listdir(os.path.dirname(path)) == ['profile.yaml']


@pytest.mark.parametrize(('there', 'says'), [
    (profile.dumps(make_profile(host='compute3')), 'reads as another profile'),
    (profile.dumps(make_profile())[:700], 'not the JSON of a profile'),
    ('', 'not the JSON of a profile')])
def test_what_a_disk_makes_of_it_is_not_taken(path, monkeypatch, there, says):
    profile.store(make_profile(), path)

    def lose(descriptor):
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, there.encode(), 0)

    monkeypatch.setattr(os, 'fsync', lose)
    with pytest.raises(profile.ProfileInvalid, match=says):
        profile.store(make_profile(host='compute2'), path)
    assert profile.load(path).host == 'compute1'


def test_missing(path):
    with pytest.raises(profile.ProfileMissing, match='nova-vqos-calibrate'):
        profile.load(path)


@pytest.mark.parametrize('mode', [0o666, 0o646, 0o664])
def test_written_by_others(path, mode):
    profile.store(make_profile(), path)
    os.chmod(path, mode)
    with pytest.raises(profile.ProfileUnsafe, match=f'mode 0{mode:o}'):
        profile.load(path)


def test_of_another_owner(path, monkeypatch):
    profile.store(make_profile(), path)
    monkeypatch.setattr(os, 'geteuid', lambda: 12345)
    if os.stat(path).st_uid == 0:
        profile.load(path)
    else:
        with pytest.raises(profile.ProfileUnsafe, match='belongs to user'):
            profile.load(path)


def test_not_a_file(tmp_path):
    with pytest.raises(profile.ProfileInvalid, match='cannot be read'):
        profile.load(str(tmp_path))
    with pytest.raises(profile.ProfileUnsafe, match='regular file'):
        profile.load('/dev/null')


def test_too_large(path):
    profile.store(make_profile(), path)
    with open(path, 'a') as file:
        file.write('#' * profile.MAX_FILE_BYTES)
    with pytest.raises(profile.ProfileInvalid, match='more than'):
        profile.load(path)


@given(st.integers(0, len(profile.dumps(make_profile())) - 2))
def test_truncated(length):
    with pytest.raises(profile.ProfileInvalid):
        profile.loads(profile.dumps(make_profile())[:length])


def test_edited_by_hand():
    text = profile.dumps(make_profile())
    with pytest.raises(profile.ProfileInvalid, match='content was changed'):
        profile.loads(text.replace('"coefficient": 1.25,',
                                   '"coefficient": 1.26,'))


def test_whole_numbers_are_as_good():
    made = make_profile(cpu_classes=(
        make_profiles.make_class([0], 1, samples=(5,)),))
    assert profile.loads(profile.dumps(made)) == made


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_garbage(content):
    with pytest.raises(profile.ProfileInvalid):
        profile.loads(content)


@pytest.mark.parametrize('changes, says', [
    ({'schema': 1}, 'schema is 1, it must be 2: calibrate with'),
    ({'schema': True}, 'schema is True'),
    ({'schema': None}, 'schema is None'),
    ({'host': ''}, "host is '', it must be a text of 1 to 256"),
    ({'host': 'x' * 257}, 'host is'),
    ({'measured_in': 'dream'}, 'it must be host or guest'),
    ({'reference': []}, 'reference is no mapping'),
    ({'fingerprint': {'a': 1}}, 'fingerprint.a is 1'),
    ({'fingerprint': {str(i): 'x' for i in range(101)}}, 'at most 100'),
    ({'provenance': 5}, 'provenance is no mapping'),
    ({'cpu_classes': []}, 'a list of 1 to 64 mappings'),
    ({'cpu_classes': [5]}, r'cpu_classes\[0\] is no mapping'),
    ({'cpu_classes': [{'pcpus': '0-1'}]},
     r'cpu_classes\[0\].alone is no mapping'),
])
def test_fields_that_are_wrong(changes, says):
    with pytest.raises(profile.ProfileInvalid, match=says):
        profile.loads(json.dumps(document(**changes)))


@pytest.mark.parametrize('changes, says', [
    ({'coefficient': 0}, 'a number from 0.001 to 1000'),
    ({'coefficient': -1.0}, 'a number from'),
    ({'coefficient': float('nan')}, 'a number from'),
    ({'coefficient': '1.0'}, 'a number from'),
    ({'interval': [1.3, 1.4]}, 'around the coefficient'),
    ({'interval': [1.2]}, 'a list of 2 positive'),
    ({'scores': []}, 'a list of 1 to 20'),
])
def test_measurements_that_are_wrong(changes, says):
    content = document()
    content['cpu_classes'][1]['busy'].update(changes)
    with pytest.raises(
            profile.ProfileInvalid,
            match=rf'cpu_classes\[1\].busy.(coefficient|interval|scores).*'
                  rf'{says}'):
        profile.loads(json.dumps(content))


@pytest.mark.parametrize('changes, says', [
    ({'coefficient': 0}, 'a number from 0.001 to 1000'),
    ({'interval': [1.3, 1.4]}, 'around the coefficient'),
    ({'outliers': -1}, 'a number from 0'),
    ({'samples': []}, 'a list of 1 to 10000'),
    ({'samples': [float('inf')]}, 'positive numbers'),
    ({'samples': ['1']}, 'positive numbers'),
    ({'benchmark': 'float'}, 'one of each benchmark of the reference'),
])
def test_scores_that_are_wrong(changes, says):
    content = document()
    content['cpu_classes'][1]['busy']['scores'][0].update(changes)
    with pytest.raises(profile.ProfileInvalid, match=(
            rf'cpu_classes\[1\].busy.scores.*{says}')):
        profile.loads(json.dumps(content))


@pytest.mark.parametrize('changes, says', [
    ({'weight': -1}, 'a number from 0 to 1000'),
    ({'weight': 0}, 'at least one with a weight above 0'),
    ({'score': 0}, 'a number from 1e-09'),
    ({'half_width': 2}, 'a number from 0 to 1'),
    ({'identity': ''}, 'a text of 1 to 256'),
    ({'round_events': 0.5}, 'a number from 1'),
])
def test_benchmarks_that_are_wrong(changes, says):
    content = document()
    content['reference']['benchmarks'][0].update(changes)
    with pytest.raises(profile.ProfileInvalid,
                       match=f'reference.benchmarks.*{says}'):
        profile.loads(json.dumps(content))


def test_a_benchmark_that_is_there_twice():
    content = document()
    content['reference']['benchmarks'] *= 2
    with pytest.raises(profile.ProfileInvalid, match='each of another name'):
        profile.loads(json.dumps(content))


def test_samples_are_no_reading_matter():
    """Of thousands each would be a line; what is in texts stays as it is."""
    made = make_profile(provenance={'odd': '[\\n 1,  2 ]'})
    assert '"samples": [ 812.0, 815.5, 810.25 ]' in profile.dumps(made)
    assert profile.loads(profile.dumps(made)) == made


def test_one_pcpu_in_two_classes():
    content = document()
    content['cpu_classes'][1]['pcpus'] = '1'
    with pytest.raises(profile.ProfileInvalid, match='several'):
        profile.loads(json.dumps(content))


@pytest.mark.parametrize('opening', ['[', '{"a":', '[{"a":', 'a: {', '- '])
def test_nesting_ends_soon(opening):
    started = time.process_time()
    with pytest.raises(profile.ProfileInvalid):
        profile.loads(opening * (profile.MAX_FILE_BYTES // len(opening)))
    assert time.process_time() - started < 5


@pytest.mark.parametrize('digits', [400, 5000])
def test_numbers_beyond_floats(digits):
    text = json.dumps(document(schema='SCHEMA'))
    with pytest.raises(profile.ProfileInvalid):
        profile.loads(text.replace('"SCHEMA"', '9' * digits))


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
    with pytest.raises(profile.ProfileInvalid, match=says):
        make_profile().slowest(pcpus)


def test_tick_of_an_unknown_kernel_is_the_longest():
    assert make_profile().tick_us == 4000
    assert make_profile(fingerprint={}).tick_us == 10_000
    assert make_profile(fingerprint={'tick_us': 'x'}).tick_us == 10_000


def test_staleness():
    made = make_profile()
    assert profile.staleness(made, made.fingerprint) == []
    assert profile.staleness(
        made, made.fingerprint | {'something_new': '1'}) == []
    assert profile.staleness(
        made, {'cpu_model': 'Other CPU'}) == [
        "cpu_model was 'Some CPU' and is 'Other CPU'",
        "tick_us was '4000' and is 'unknown'"]
    assert profile.staleness(
        made, made.fingerprint, max_interval=0.02) == [
        'the interval of pCPUs 4 is 4.0% wide, more than 2.0%']


@pytest.mark.parametrize('text, expected', [
    ('0', {0}), ('0-3', {0, 1, 2, 3}), ('0-1,8', {0, 1, 8}),
    ('8, 0', {0, 8})])
def test_parse_pcpus(text, expected):
    assert profile.parse_pcpus(text) == expected


@pytest.mark.parametrize('text', [
    '', ',', '-1', '3-1', '0-', 'a', '0-99999', '0--1', '1.5'])
def test_parse_pcpus_refuses(text):
    with pytest.raises(ValueError, match='no (list|range) of pCPUs|no range'):
        profile.parse_pcpus(text)


@given(st.sets(st.integers(0, 8191), min_size=1))
def test_pcpus_and_back(pcpus):
    assert profile.parse_pcpus(profile.format_pcpus(pcpus)) == pcpus
