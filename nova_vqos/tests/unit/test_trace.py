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

"""Traces: what the recorder writes can be read, and nothing else."""

import json
import os
import pathlib
import stat

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.cmd import recognize
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition
from nova_vqos.quantum import replay
from nova_vqos.quantum import trace

Kind = model.Kind
LIMITS = recognition.Limits(io_requests=100, spin_events=200,
                            references=1000, misses=500)
HEADER = {'nova_vqos_trace': 1}
FIRST = {'at_s': 12.5, 'server': 'a', 'vcpu': 0, 'thread': 7,
         'io_requests': 80.0, 'spin_events': None, 'references': None,
         'misses': None}

rates = st.none() | st.floats(0, 1e15)
samples = st.builds(recognition.Sample, rates, rates, rates, rates)
looks = st.dictionaries(
    st.tuples(st.text('abc-é', min_size=1, max_size=8), st.integers(0, 300)),
    st.tuples(st.integers(0, 2**31 - 1), samples), min_size=1, max_size=4)


def lines(*records):
    return [json.dumps(record).encode() + b'\n' for record in records]


def parse(*records):
    return list(trace.read(lines(*records)))


@hypothesis.given(given=st.lists(looks, max_size=5))
def test_what_is_written_is_what_is_read(given, tmp_path_factory):
    path = str(tmp_path_factory.mktemp('trace') / 'trace')
    recorder = trace.Recorder(path)
    for number, look in enumerate(given):
        recorder.record(number * 5.25,
                        {key: thread for key, (thread, _) in look.items()},
                        {key: sample for key, (_, sample) in look.items()})
    recorder.close()
    found = list(trace.looks(trace.load(path)))
    assert [{(record.server, record.vcpu): (record.thread, record.sample)
             for record in look} for look in found] == given
    assert [look[0].at_s for look in found] == [
        number * 5.25 for number in range(len(given))]


class TestRecorder:
    KEYS = {('a', 0): 7}
    SAMPLES = {('a', 0): recognition.Sample(io_requests=80.0)}

    def test_the_file_is_for_nobody_else(self, tmp_path):
        path = tmp_path / 'trace'
        old_mask = os.umask(0)
        try:
            trace.Recorder(str(path)).close()
        finally:
            os.umask(old_mask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_a_trace_that_was_there_is_replaced(self, tmp_path):
        path = tmp_path / 'trace'
        for number in (1, 2):
            recorder = trace.Recorder(str(path))
            recorder.record(number, self.KEYS, self.SAMPLES)
            recorder.close()
        assert [record.at_s for record in trace.load(str(path))] == [2]
        path.write_bytes(b'')
        trace.Recorder(str(path)).close()
        assert list(trace.load(str(path))) == []

    @pytest.mark.parametrize('make', [
        lambda path: path.write_text('precious'), pathlib.Path.mkdir,
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to(path.with_name('other')),
        lambda path: path.symlink_to('/nowhere')])
    def test_nothing_else_is_replaced(self, make, tmp_path):
        other = tmp_path / 'other'
        trace.Recorder(str(other)).close()
        path = tmp_path / 'trace'
        make(path)
        before = path.lstat()
        with pytest.raises(OSError, match=str(path)):
            trace.Recorder(str(path))
        assert path.lstat().st_ino == before.st_ino
        assert other.stat().st_size

    def test_it_ends_before_it_is_too_long(self, tmp_path, caplog):
        path = tmp_path / 'trace'
        recorder = trace.Recorder(str(path), most_bytes=1000)
        for number in range(100):
            recorder.record(number, self.KEYS, self.SAMPLES)
        assert 800 < path.stat().st_size <= 1000
        assert len(list(trace.load(str(path)))) >= 5
        assert len(caplog.records) == 1
        recorder.close()

    def test_it_ends_with_a_whole_line_where_there_is_no_room(
            self, tmp_path, monkeypatch, caplog):
        path = tmp_path / 'trace'
        recorder = trace.Recorder(str(path))
        recorder.record(1, self.KEYS, self.SAMPLES)
        write = os.write
        monkeypatch.setattr(os, 'write', lambda handle, content: write(
            handle, content[:50]))
        recorder.record(2, self.KEYS, self.SAMPLES)
        monkeypatch.undo()
        recorder.record(3, self.KEYS, self.SAMPLES)
        assert [record.at_s for record in trace.load(str(path))] == [1]
        assert 'no room' in caplog.text
        recorder.close()

    def test_where_it_cannot_be_made(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            trace.Recorder(str(tmp_path / 'nowhere' / 'trace'))


class TestDamaged:
    @pytest.mark.parametrize('field, value', [
        ('at_s', -1), ('at_s', '1'), ('at_s', True), ('at_s', None),
        ('server', ''), ('server', 5), ('server', 'x' * 65),
        ('server', 'a\nb'), ('vcpu', -1), ('vcpu', 1.5), ('vcpu', True),
        ('thread', 2**31), ('thread', None), ('io_requests', -0.1),
        ('spin_events', 'many'), ('references', 1e16), ('misses', [1]),
        ('misses', float('inf')), ('misses', float('nan'))])
    def test_a_value_that_cannot_be(self, field, value):
        with pytest.raises(trace.TraceInvalid) as caught:
            parse(HEADER, FIRST, FIRST | {'at_s': 20, field: value})
        assert (caught.value.line, caught.value.field) == (3, field)
        assert f'line 3, {field}' in str(caught.value)

    @pytest.mark.parametrize('field', FIRST)
    def test_a_field_that_is_missing(self, field):
        found = {name: FIRST[name] for name in FIRST if name != field}
        with pytest.raises(trace.TraceInvalid, match=f'line 2, {field}: '):
            parse(HEADER, found)

    def test_a_field_too_many(self):
        with pytest.raises(trace.TraceInvalid, match="line 2, 'x': "):
            parse(HEADER, FIRST | {'x': 1})

    def test_times_that_go_back(self):
        with pytest.raises(trace.TraceInvalid, match='line 3, at_s: is 12.0'):
            parse(HEADER, FIRST, FIRST | {'at_s': 12})

    def test_a_vcpu_that_is_twice_in_one_look(self):
        parse(HEADER, FIRST, FIRST | {'vcpu': 1}, FIRST | {'at_s': 13})
        with pytest.raises(trace.TraceInvalid, match='line 4, vcpu: '):
            parse(HEADER, FIRST, FIRST | {'vcpu': 1}, FIRST)

    @pytest.mark.parametrize('line', [
        b'\n', b'{\n', b'[]\n', b'{}', b'5\n', b'\xff\n', b'{"a":1,"a":2}\n',
        b'[' * 1000 + b'\n', b'{' + b' ' * 1030 + b'}\n'])
    def test_a_line_that_is_none(self, line):
        with pytest.raises(trace.TraceInvalid, match='^line 2: '):
            list(trace.read([*lines(HEADER), line]))

    @pytest.mark.parametrize('header', [
        FIRST, {}, {'nova_vqos_trace': 2}, {'nova_vqos_trace': True},
        HEADER | {'x': 1}])
    def test_a_file_that_is_no_trace(self, header):
        with pytest.raises(trace.TraceInvalid,
                           match='line 1, nova_vqos_trace'):
            parse(header, FIRST)

    def test_an_empty_file(self):
        with pytest.raises(trace.TraceInvalid, match='line 1: .*empty'):
            parse()
        assert parse(HEADER) == []

    def test_a_line_without_an_end_is_not_read_whole(self, tmp_path):
        path = tmp_path / 'trace'
        with open(path, 'wb') as file:
            file.writelines(lines(HEADER))
            file.truncate(2**40)
        with pytest.raises(trace.TraceInvalid, match='line 2: .*cut off'):
            list(trace.load(str(path)))

    @hypothesis.given(st.binary(max_size=300))
    def test_whatever_it_is_there_is_one_error(self, content):
        try:
            list(trace.read([*lines(HEADER), content]))
        except trace.TraceInvalid as error:
            assert error.line == 2


def record(at_s, vcpu=0, *, thread=7, io=0.0, references=0.0, misses=0.0):
    return trace.Record(float(at_s), 'a', vcpu, thread, recognition.Sample(
        io, 0.0, references, misses))


class TestReplay:
    @staticmethod
    def spells(*records):
        return [(spell.vcpu, spell.from_s, spell.to_s, spell.kind)
                for spell in replay.spells(records, LIMITS)]

    def test_what_each_vcpu_was_taken_for(self):
        records = []
        for number in range(20):
            records.append(record(100 + 5 * number, references=1000,
                                  io=100 if number >= 8 else 0, misses=250))
            records.append(record(100 + 5 * number, 1))
        assert self.spells(*records) == [
            (0, 0, 10, None), (0, 15, 60, Kind.CACHE), (0, 65, 95, Kind.IO),
            (1, 0, 10, None), (1, 15, 95, Kind.NEUTRAL)]

    def test_another_thread_begins_anew(self):
        records = [record(number, thread=7 + (number >= 5))
                   for number in range(10)]
        assert self.spells(*records) == [
            (0, 0, 2, None), (0, 3, 4, Kind.NEUTRAL), (0, 5, 7, None),
            (0, 8, 9, Kind.NEUTRAL)]

    def test_one_that_was_not_looked_at_begins_anew(self):
        records = [record(number, 1) for number in range(10)]
        records += [record(number) for number in range(10) if number != 5]
        records.sort(key=lambda one: one.at_s)
        assert self.spells(*records)[:4] == [
            (0, 0, 2, None), (0, 3, 4, Kind.NEUTRAL), (0, 6, 8, None),
            (0, 9, 9, Kind.NEUTRAL)]


class TestCommand:
    @pytest.fixture
    def path(self, tmp_path):
        path = str(tmp_path / 'trace')
        recorder = trace.Recorder(path)
        for number in range(6):
            recorder.record(number * 5, {('a', 0): 7}, {
                ('a', 0): recognition.Sample(io_requests=900.0)})
        recorder.close()
        return path

    @staticmethod
    def run(*arguments):
        command = recognize.RecognizeTrace(None, None)
        parser = command.get_parser('recognize')
        return command.take_action(parser.parse_args(arguments))

    def test_a_trace_is_shown(self, path):
        columns, rows = self.run(path)
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        assert [(row['server'], row['vcpu'], row['from_s'], row['to_s'],
                 row['kind'], row['pollutes']) for row in found] == [
            ('a', 0, 0, 10, None, False), ('a', 0, 15, 25, 'io', False)]
        assert found[1]['io_cursor'] == 90
        assert found[1]['cache_cursor'] is None

    def test_limits_can_be_others(self, path):
        _, rows = self.run(path, '--limits', 'io:9000,spin:5')
        assert [row[4] for row in rows] == [None]

    @pytest.mark.parametrize('limits', ['io', 'io:0', 'x:5', 'io:5,io:6'])
    def test_limits_that_cannot_be(self, path, limits, capsys):
        with pytest.raises(SystemExit):
            self.run(path, '--limits', limits)
        assert repr(limits.partition(':')[0]) in capsys.readouterr().err

    def test_what_cannot_be_replayed_is_named(self, path, tmp_path):
        with open(path, 'a') as file:
            file.write('{"at_s": 1}\n')
        with pytest.raises(CalibrationError) as caught:
            self.run(path)
        assert f'{path} cannot be replayed: line 8, server' in str(
            caught.value)
        with pytest.raises(CalibrationError, match='No such file'):
            self.run(str(tmp_path / 'nowhere'))
