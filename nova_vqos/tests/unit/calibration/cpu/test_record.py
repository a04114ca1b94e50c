# SPDX-License-Identifier: Apache-2.0
"""An interrupted calibration goes on where it was."""

import dataclasses
import json
import os
import pathlib
import stat
import time

import pytest

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import record

KEY = {'host': 'compute1'}
ROUNDS = record.Rounds({0: (1.5, 2.5), 9: (3.0,)}, 0.01, 2, 120)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'profile.yaml.partial')


def test_rounds_come_back(path):
    record.Record(path, KEY).add('hash/busy/0-1', ROUNDS)
    again = record.Record(path, KEY)
    assert again.found == 1
    assert again.get('hash/busy/0-1') == ROUNDS
    assert again.get('hash/alone/0') is None
    assert again.discarded == ''
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    again.remove()
    assert not os.path.exists(path)
    again.remove()


def test_rounds_of_some_pcpus():
    assert ROUNDS.scores({9, 0}) == [1.5, 2.5, 3.0]
    assert ROUNDS.scores({9, 4}) == [3.0]


def test_nothing_is_kept():
    kept = record.Record(None, KEY)
    kept.add('hash/busy/0-1', ROUNDS)
    assert kept.get('hash/busy/0-1') == ROUNDS
    kept.remove()


def test_restart(path):
    record.Record(path, KEY).add('hash/busy/0-1', ROUNDS)
    assert record.Record(path, KEY, restart=True).found == 0


def discarded(path):
    found = record.Record(path, KEY)
    assert found.found == 0
    return found.discarded


def test_of_another_host(path):
    record.Record(path, {'host': 'compute2'}).add('hash/busy/0-1', ROUNDS)
    assert 'is of another host' in discarded(path)


@pytest.mark.parametrize('age_s', [3700, -60])
def test_of_another_time(path, age_s):
    record.Record(path, KEY).add('hash/busy/0-1', ROUNDS)
    os.utime(path, (time.time() - age_s,) * 2)
    assert 'older than 60 minutes' in discarded(path)


@pytest.mark.parametrize('text', [
    '', '[]', '5', '{"key": {}, "schema": 1, "taken": {"a": 5}}',
    '{"key": {}, "schema": 1, "taken": {"a": {"samples": {"x": [1]}}}}',
    '{"key": {}, "schema": 1, "taken": {"a": {"what": 1, "samples": {}}}}',
    '[' * 9999])
def test_what_cannot_be_read(path, text):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
    assert 'cannot be read' in discarded(path)


def test_one_that_others_may_write(path):
    record.Record(path, KEY).add('hash/busy/0-1', ROUNDS)
    os.chmod(path, 0o666)
    assert 'others than its owner may write it' in discarded(path)


def test_a_calibration_goes_on(calibrate, path):
    """After its third of four measurements."""
    weights = {'integer': 1.0, 'float': 1.0}
    before = []

    def end(runners):
        if len(runners) == 2:
            raise CalibrationError('interrupted')

    class Opened(list):
        def append(self, one):
            super().append(one)
            end(self)

    with pytest.raises(CalibrationError, match='interrupted'):
        calibrate({0, 1}, weights=weights, opened=Opened(), record_path=path)
    done = json.loads(pathlib.Path(path).read_text())['taken']
    assert list(done) == ['integer/alone/0', 'integer/busy/0-1']
    made = calibrate({0, 1}, weights=weights, opened=before,
                     record_path=path).measured
    # Only the other one was run.
    assert [one.busy for one in before] == [[50.0]]
    samples = made.cpu_classes[0].busy.scores[0].samples
    assert list(samples) == [
        score for pcpu in ('0', '1')
        for score in done['integer/busy/0-1']['samples'][pcpu]]
    # And what is there now makes a profile by itself.
    assert calibrate({0, 1}, weights=weights, record_path=path,
                     opened=(again := [])).measured.reference.benchmarks
    assert again == []


def test_clocks_come_back(path):
    rounds = dataclasses.replace(ROUNDS, clocks_mhz={0: 2500.5})
    record.Record(path, KEY).add('hash/busy/0-1', rounds)
    found = record.Record(path, KEY).get('hash/busy/0-1')
    assert found == rounds
    assert found.clocks({0, 9}) == [2500.5]


def test_rounds_of_an_earlier_version_have_none(path):
    record.Record(path, KEY).add('hash/busy/0-1', ROUNDS)
    content = json.loads(pathlib.Path(path).read_text())
    del content['taken']['hash/busy/0-1']['clocks_mhz']
    pathlib.Path(path).write_text(json.dumps(content))
    assert record.Record(path, KEY).get('hash/busy/0-1') == ROUNDS
