# SPDX-License-Identifier: Apache-2.0
"""Traces: a reader accepts what the recorder writes, and nothing else."""

import json
import os
import pathlib
import stat

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.cmd.calibrate import recognize
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition
from nova_vqos.quantum import recognition_trace

Kind = model.Kind
Recorder = recognition_trace.Recorder
TraceInvalid = recognition_trace.TraceInvalid
LIMITS = recognition.Limits(io_requests=100, spin_events=200,
                            references=1000, misses=500)
HEADER = {'nova_vqos_trace': 2}
FIRST = {'at_s': 12.5, 'server': 'a', 'vcpu': 0, 'thread': 7,
         'io_requests': 80.0, 'spin_events': None, 'references': None,
         'misses': None, 'ran': 0.25, 'ready': None}

rates = st.none() | st.floats(0, 1e15)
samples = st.builds(recognition.Sample, *[rates] * 6)
readings = st.dictionaries(
    st.tuples(st.text('abc-é', min_size=1, max_size=8), st.integers(0, 300)),
    st.tuples(st.integers(0, 2**31 - 1), samples), min_size=1, max_size=4)


def lines(*records):
    return [json.dumps(record).encode() + b'\n' for record in records]


def parse(*records):
    return list(recognition_trace.read(lines(*records)))


def times(path):
    return [record.at_s for record in recognition_trace.load(str(path))]


@hypothesis.given(given=st.lists(readings, max_size=5))
def test_roundtrip(given, tmp_path_factory):
    path = str(tmp_path_factory.mktemp('trace') / 'trace')
    recorder = Recorder(path)
    for number, reading in enumerate(given):
        recorder.record(
            number * 5.25,
            {key: thread for key, (thread, _) in reading.items()},
            {key: sample for key, (_, sample) in reading.items()})
    recorder.close()
    found = list(recognition_trace.readings(recognition_trace.load(path)))
    assert [{record.key: (record.thread, record.sample)
             for record in reading} for reading in found] == given
    assert [reading[0].at_s for reading in found] == [
        number * 5.25 for number in range(len(given))]


class TestRecorder:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / 'trace'

    @staticmethod
    def record(recorder, *times_s):
        for at_s in times_s:
            recorder.record(at_s, {('a', 0): 7}, {
                ('a', 0): recognition.Sample(io_requests=80.0)})

    def test_only_the_user_can_read_it(self, path):
        old_mask = os.umask(0)
        try:
            Recorder(str(path)).close()
        finally:
            os.umask(old_mask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_an_earlier_trace_is_replaced(self, path):
        for number in (1, 2):
            recorder = Recorder(str(path))
            self.record(recorder, number)
            recorder.close()
        assert times(path) == [2]
        path.write_bytes(b'')
        Recorder(str(path)).close()
        assert times(path) == []

    @pytest.mark.parametrize('make', [
        lambda path: path.write_text('precious'), pathlib.Path.mkdir,
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to(path.with_name('other')),
        lambda path: path.symlink_to('/nowhere')])
    def test_no_other_file_is_replaced(self, make, path):
        other = path.with_name('other')
        Recorder(str(other)).close()
        make(path)
        before = path.lstat()
        with pytest.raises(OSError, match=str(path)):
            Recorder(str(path))
        assert path.lstat().st_ino == before.st_ino
        assert other.stat().st_size

    def test_it_stops_before_it_is_too_long(self, path, caplog):
        recorder = Recorder(str(path), max_bytes=1000)
        self.record(recorder, *range(100))
        assert 800 < path.stat().st_size <= 1000
        assert len(times(path)) >= 5
        assert len(caplog.records) == 1
        recorder.close()

    def test_it_stops_with_a_whole_line(self, path, monkeypatch, caplog):
        recorder = Recorder(str(path))
        self.record(recorder, 1)
        write = os.write
        monkeypatch.setattr(os, 'write', lambda handle, content: write(
            handle, content[:50]))
        self.record(recorder, 2)
        monkeypatch.undo()
        self.record(recorder, 3)
        assert times(path) == [1]
        assert len(caplog.records) == 1
        recorder.close()

    def test_no_directory(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            Recorder(str(tmp_path / 'nowhere' / 'trace'))


class TestDamaged:
    @pytest.mark.parametrize('field, value', [
        ('at_s', -1), ('at_s', '1'), ('at_s', True), ('at_s', None),
        # Before the line above.
        ('at_s', 12),
        ('server', ''), ('server', 5), ('server', 'x' * 65),
        ('server', 'a\nb'), ('vcpu', -1), ('vcpu', 1.5), ('vcpu', True),
        ('thread', 2**31), ('thread', None), ('io_requests', -0.1),
        ('spin_events', 'many'), ('references', 1e16), ('misses', [1]),
        ('misses', float('inf')), ('misses', float('nan'))])
    def test_value(self, field, value):
        with pytest.raises(TraceInvalid, match=f'^line 3, {field}: '):
            parse(HEADER, FIRST, FIRST | {'at_s': 20, field: value})

    @pytest.mark.parametrize('field', FIRST)
    def test_missing_field(self, field):
        found = {name: FIRST[name] for name in FIRST if name != field}
        with pytest.raises(TraceInvalid, match=f'line 2, {field}: '):
            parse(HEADER, found)

    def test_unknown_field(self):
        with pytest.raises(TraceInvalid, match="line 2, 'x': "):
            parse(HEADER, FIRST | {'x': 1})

    def test_a_vcpu_twice_in_a_reading(self):
        parse(HEADER, FIRST, FIRST | {'vcpu': 1}, FIRST | {'at_s': 13})
        with pytest.raises(TraceInvalid, match='line 4, vcpu: '):
            parse(HEADER, FIRST, FIRST | {'vcpu': 1}, FIRST)

    @pytest.mark.parametrize('line', [
        b'\n', b'{\n', b'[]\n', b'{}', b'5\n', b'\xff\n', b'{"a":1,"a":2}\n',
        b'[' * 1000 + b'\n', b'{' + b' ' * 1030 + b'}\n'])
    def test_line(self, line):
        with pytest.raises(TraceInvalid, match='^line 2: '):
            list(recognition_trace.read([*lines(HEADER), line]))

    @pytest.mark.parametrize('header', [
        FIRST, {}, {'nova_vqos_trace': 1}, {'nova_vqos_trace': True},
        HEADER | {'x': 1}])
    def test_header(self, header):
        with pytest.raises(TraceInvalid, match='^line 1, nova_vqos_trace: '):
            parse(header, FIRST)

    def test_empty_file(self):
        with pytest.raises(TraceInvalid, match='^line 1: '):
            parse()
        assert parse(HEADER) == []

    def test_a_line_without_an_end_is_not_read_whole(self, tmp_path):
        path = tmp_path / 'trace'
        with open(path, 'wb') as file:
            file.writelines(lines(HEADER))
            file.truncate(2**40)
        with pytest.raises(TraceInvalid, match='^line 2: '):
            times(path)

    @hypothesis.given(st.binary(max_size=300))
    def test_any_content_raises_one_error(self, content):
        try:
            list(recognition_trace.read([*lines(HEADER), content]))
        except TraceInvalid as error:
            assert str(error).startswith('line 2')


def record(at_s, vcpu=0, *, thread=7, io=0.0, references=0.0, misses=0.0):
    return recognition_trace.Record(
        float(at_s), 'a', vcpu, thread, recognition.Sample(
            io, 0.0, references, misses))


class TestReplay:
    @staticmethod
    def phases(records):
        return [(phase.vcpu, phase.from_s, phase.to_s, phase.kind)
                for phase in recognition_trace.replay(records, LIMITS)]

    def test_changes_of_each_vcpu(self):
        records = []
        for number in range(20):
            records.append(record(100 + 5 * number, references=1000,
                                  io=100 if number >= 8 else 0, misses=250))
            records.append(record(100 + 5 * number, 1))
        assert self.phases(records) == [
            (0, 0, 10, None), (0, 15, 60, Kind.CACHE), (0, 65, 95, Kind.IO),
            (1, 0, 10, None), (1, 15, 95, Kind.NEUTRAL)]

    def test_another_thread_begins_anew(self):
        records = [record(number, thread=7 + (number >= 5))
                   for number in range(10)]
        assert self.phases(records) == [
            (0, 0, 2, None), (0, 3, 4, Kind.NEUTRAL), (0, 5, 7, None),
            (0, 8, 9, Kind.NEUTRAL)]

    def test_a_vcpu_that_was_missing_begins_anew(self):
        records = [record(number, 1) for number in range(10)]
        records += [record(number) for number in range(10) if number != 5]
        records.sort(key=lambda one: one.at_s)
        assert self.phases(records)[:4] == [
            (0, 0, 2, None), (0, 3, 4, Kind.NEUTRAL), (0, 6, 8, None),
            (0, 9, 9, Kind.NEUTRAL)]


    @pytest.mark.parametrize('ready, found', [
        (None, [True]), (1.0, [True, False]), (0.05, [True])])
    def test_what_else_decides_about_pools(self, ready, found):
        records = [recognition_trace.Record(
            float(number), 'a', 0, 7, recognition.Sample(
                0.0, 0.0, 1.0, 0.0, ready=ready)) for number in range(20)]
        phases = [phase for phase in recognition_trace.replay(records, LIMITS)
                  if phase.kind is Kind.NEUTRAL]
        assert [phase.is_sensitive for phase in phases] == found


class TestCommand:
    @pytest.fixture
    def path(self, tmp_path):
        path = str(tmp_path / 'trace')
        recorder = Recorder(path)
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
                 row['kind'], row['pollutes'], row['sensitive'])
                for row in found] == [
            ('a', 0, 0, 10, None, False, True),
            ('a', 0, 15, 25, 'io', False, True)]
        assert found[1]['io_cursor'] == 90
        assert found[1]['cache_cursor'] is None

    def test_other_limits(self, path):
        _, rows = self.run(path, '--limits', 'io:9000,spin:5')
        assert [row[4] for row in rows] == [None]

    @pytest.mark.parametrize('limits', ['io', 'io:0', 'x:5', 'io:5,io:6'])
    def test_invalid_limits(self, path, limits, capsys):
        with pytest.raises(SystemExit):
            self.run(path, '--limits', limits)
        assert repr(limits.partition(':')[0]) in capsys.readouterr().err

    def test_a_damaged_trace_is_named(self, path, tmp_path):
        with open(path, 'a') as file:
            file.write('{"at_s": 1}\n')
        with pytest.raises(CalibrationError) as caught:
            self.run(path)
        assert path in str(caught.value)
        assert 'line 8, server' in str(caught.value)
        with pytest.raises(CalibrationError, match='No such file'):
            self.run(str(tmp_path / 'nowhere'))
