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
"""What may be offered follows from what was measured, and nothing else."""

import dataclasses
import json
import os

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import classes
from nova_vqos.quantum import proof as proofs

SLICES_US = classes.DEFAULT_SLICES_US
TICK_US = 4000
BOOT_ID = '127993a0-3a3d-4f86-a2a7-66d7e1b30a8c'
FREE = ('default', 'neutral')


def make_proof(**runs_us):
    """A proof by what threads ran for at a time, by class."""
    default_us = runs_us.pop('default', 3950.0)
    tick_us = runs_us.pop('tick', TICK_US)
    return proofs.Proof(
        kernel='6.18.1', boot_id=BOOT_ID, tick_us=tick_us,
        measured_at='2026-11-22T09:00:00+00:00',
        outcomes={
            'default': proofs.Outcome(None, default_us, True),
            **{name: proofs.judge(SLICES_US[name], run_us, run_us,
                                  default_us, tick_us)
               for name, run_us in runs_us.items()}})


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / 'proc/sys/kernel/random'
    directory.mkdir(parents=True)
    (directory / 'boot_id').write_text(f'{BOOT_ID}\n')
    return str(tmp_path)


@pytest.fixture
def path(tmp_path):
    proofs._warn.cache_clear()
    return str(tmp_path / 'run/quantum.json')


class TestJudge:
    @pytest.mark.parametrize('turn_us', [45_000, 64_600, 92_000, 139_000])
    def test_enforced(self, turn_us):
        assert proofs.judge(90_000, 30_000, turn_us, 3950, TICK_US) == (
            proofs.Outcome(90_000, 30_000, True))

    @pytest.mark.parametrize('turn_us', [8000, 44_000, 140_000])
    def test_not_enforced(self, turn_us):
        found = proofs.judge(90_000, 7000, turn_us, 3950, TICK_US)
        assert found.enforced is False
        assert found.mean_run_us == 7000
        assert f'{turn_us / 1000:.1f} ms at a time' in found.reason

    def test_one_turn_of_a_machine_that_stood_still(self):
        assert proofs.judge(90_000, 75_300, 139_500, 3950,
                            TICK_US).enforced is True

    def test_like_the_default(self):
        found = proofs.judge(1000, 3700, 3990, 3950, TICK_US)
        assert found.enforced is False
        assert 'cannot be told from the default, 4.0 ms' in found.reason
        assert 'the tick is 4 ms' in found.reason

    @pytest.mark.parametrize('turn_us, enforced', [
        (1100, True), (1600, False), (2900, False)])
    def test_a_slice_below_the_tick_is_exact_or_not_at_all(self, turn_us,
                                                           enforced):
        assert proofs.judge(1000, turn_us, turn_us, 4000,
                            TICK_US).enforced is enforced

    def test_a_short_slice_on_a_short_tick(self):
        assert proofs.judge(1000, 1990, 1990, 3950, 1000).enforced

    @given(st.integers(100, 100_000), st.floats(1, 1e6), st.floats(1, 1e6),
           st.sampled_from([1000, 4000, 10_000]))
    def test_either_enforced_or_a_reason(self, slice_us, turn_us, default_us,
                                         tick_us):
        found = proofs.judge(slice_us, turn_us, turn_us, default_us, tick_us)
        assert bool(found.reason) is not found.enforced


class TestClasses:
    def test_nothing_is_proven(self):
        assert proofs.enforced_classes(None, SLICES_US) == FREE

    def test_at_250_hz(self):
        assert proofs.enforced_classes(
            make_proof(io=3990.0, spin=3990.0, cache=70_100.0),
            SLICES_US) == (*FREE, 'cache')

    def test_at_1000_hz(self):
        assert proofs.enforced_classes(
            make_proof(tick=1000, io=1990.0, spin=1990.0, cache=70_100.0),
            SLICES_US) == (*FREE, 'io', 'spin', 'cache')

    def test_another_slice_than_was_measured(self):
        assert proofs.enforced_classes(
            make_proof(cache=70_100.0), {**SLICES_US, 'cache': 80_000}
        ) == FREE

    @pytest.mark.parametrize('change', [
        {'enforced': False}, {'enforced': None}, {'slice_us': None}])
    def test_one_that_was_not_seen(self, change):
        proof = make_proof(cache=70_100.0)
        outcomes = {**proof.outcomes, 'cache': dataclasses.replace(
            proof.outcomes['cache'], **change)}
        assert proofs.enforced_classes(dataclasses.replace(
            proof, outcomes=outcomes), SLICES_US) == FREE


class TestKept:
    UNKNOWN = proofs.Outcome(90_000, None, None, 'not measured: busy')

    def test_what_is_not_measured_now_was_before(self):
        before = make_proof(cache=70_100.0)
        now = dataclasses.replace(before, measured_at='later', outcomes={
            'default': proofs.Outcome(None, None, None, 'why'),
            'cache': self.UNKNOWN})
        assert proofs.kept(now, before) == dataclasses.replace(
            before, measured_at='later')

    def test_what_is_measured_counts(self):
        now = make_proof(cache=9000.0)
        assert proofs.kept(now, make_proof(cache=70_100.0)) == now

    def test_of_another_slice_nothing_is_known(self):
        unknown = dataclasses.replace(self.UNKNOWN, slice_us=80_000)
        now = dataclasses.replace(make_proof(), outcomes={'cache': unknown})
        assert proofs.kept(
            now, make_proof(cache=70_100.0)).outcomes == {'cache': unknown}

    def test_there_was_nothing_before(self):
        now = dataclasses.replace(make_proof(),
                                  outcomes={'cache': self.UNKNOWN})
        assert proofs.kept(now, None) == now
        assert proofs.kept(now, make_proof()) == now


class TestRecord:
    def test_it_comes_back(self, path, root):
        proof = make_proof(io=3990.0, cache=70_100.0)
        proof = dataclasses.replace(proof, outcomes={
            **proof.outcomes, 'spin': proofs.Outcome(1000, None, None, 'why')})
        proofs.store(proof, path)
        assert proofs.load(path, root) == proof
        assert os.stat(path).st_mode & 0o777 == 0o644

    def test_there_is_none(self, path, root, caplog):
        assert proofs.load(path, root) is None
        assert caplog.records == []

    def test_of_another_boot(self, path, root):
        proofs.store(dataclasses.replace(
            make_proof(cache=70_100.0), boot_id='other'), path)
        assert proofs.load(path, root) is None

    @pytest.mark.parametrize('change, text', [
        ({'schema': 2}, 'schema'),
        ({'schema': '1'}, 'schema'),
        ({'kernel': ''}, 'kernel'),
        ({'boot_id': 7}, 'boot_id'),
        ({'tick_us': 0}, 'tick_us'),
        ({'tick_us': float('nan')}, 'tick_us'),
        ({'measured_at': 'x' * 300}, 'measured_at'),
        ({'outcomes': []}, 'outcomes'),
        ({'outcomes': {'cache': 5}}, 'cache'),
        ({'outcomes': {'cache': {'slice_us': 99}}}, 'slice_us'),
        ({'outcomes': {'cache': {'mean_run_us': -1}}}, 'mean_run_us'),
        ({'outcomes': {'cache': {'enforced': 1}}}, 'enforced'),
        ({'outcomes': {'cache': {'reason': 'x' * 300}}}, 'reason'),
        ({'outcomes': {str(i): {} for i in range(65)}}, 'outcomes'),
    ])
    def test_what_cannot_be_used_is_said_once(self, path, root, caplog,
                                              change, text):
        proofs.store(make_proof(cache=70_100.0), path)
        with open(path, encoding='ascii') as file:
            document = json.load(file)
        document.update(change)
        with open(path, 'w', encoding='ascii') as file:
            json.dump(document, file)
        for _ in range(2):
            assert proofs.load(path, root) is None
        record, = caplog.records
        assert text in record.getMessage()

    @pytest.mark.parametrize('content', [
        b'', b'{', b'[]', b'\xff', b'[' * 100_000])
    def test_what_is_no_document(self, path, root, caplog, content):
        os.mkdir(os.path.dirname(path))
        with open(path, 'wb') as file:
            file.write(content)
        assert proofs.load(path, root) is None
        assert len(caplog.records) == 1

    def test_one_that_others_may_write(self, path, root):
        proofs.store(make_proof(cache=70_100.0), path)
        os.chmod(path, 0o666)
        assert proofs.load(path, root) is None

    def test_a_host_without_a_boot_id(self, path, tmp_path):
        proofs.store(make_proof(cache=70_100.0), path)
        assert proofs.load(path, str(tmp_path / 'nowhere')) is None
