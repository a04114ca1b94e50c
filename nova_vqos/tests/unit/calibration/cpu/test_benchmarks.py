# SPDX-License-Identifier: Apache-2.0
"""The benchmarks, and which of them make a set."""

import gzip
import shutil

import pytest

from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import guest
from nova_vqos.calibration.cpu import busybox
from nova_vqos.calibration.cpu import command
from nova_vqos.calibration.cpu import openssl
from nova_vqos.calibration.cpu import sysbench
from nova_vqos.tests.fixtures import make_profiles


def choose(*wanted, commands=None):
    return [(member.name, member.weight)
            for member in benchmarks.choose(wanted, commands or {})]


@pytest.fixture
def versions(monkeypatch):
    """Of the programs, whatever there is here."""
    for module in (busybox, openssl, sysbench):
        monkeypatch.setattr(module, '_version', lambda program: '9.9')
    monkeypatch.setattr(shutil, 'which', lambda name: f'/opt/{name}')


class TestSet:

    def test_default(self):
        """All that are installed; of memory-bound work none counts."""
        assert choose() == [
            ('integer', 1), ('float', 1), ('hash', 1), ('compression', 1),
            ('decompression', 1), ('interpreter', 1), ('parsing', 1),
            ('image', 1), ('vector', 1), ('memory-stream', 0),
            ('memory-chase', 0)]
        assert sorted(benchmarks.DEFAULT_SET) == benchmarks.names()

    def test_the_operators(self):
        assert choose('hash=2.5', 'memory-chase=1', 'integer=0') == [
            ('hash', 2.5), ('memory-chase', 1), ('integer', 0)]

    def test_a_command_counts(self):
        own = command.Command(['true', '{events}'])
        assert choose(commands={'own': own})[-1] == ('own', 1)
        assert choose('own=3', commands={'own': own}) == [('own', 3)]

    @pytest.mark.parametrize(('wanted', 'message'), [
        (['bogomips'], "no benchmark 'bogomips': it may be one of compress"),
        (['integer=-1'], "weight in 'integer=-1' must be a number from 0 to"),
        (['integer=nan'], 'must be a number'),
        (['integer='], 'must be a number'),
        (['integer=1e9'], 'must be a number'),
        (['integer', 'integer=2'], "'integer' is given twice"),
        (['integer=0', 'memory-chase'], 'weight above 0')])
    def test_what_is_none(self, wanted, message):
        with pytest.raises(benchmarks.CalibrationError, match=message):
            choose(*wanted)

    def test_a_command_that_is_not_used(self):
        with pytest.raises(benchmarks.CalibrationError,
                           match='command own is given'):
            choose('integer', commands={'own': command.Command(['true'])})

    def test_as_the_reference(self, versions):
        known = [make_profiles.make_benchmark(
            name, weight=weight,
            identity=benchmarks.load(name, {}).identity)
            for name, weight in (('hash', 2.0), ('memory-stream', 0.0))]
        found = benchmarks.choose_as(
            make_profiles.make_reference('gold', *known), {})
        assert [(one.name, one.weight) for one in found] == [
            ('hash', 2.0), ('memory-stream', 0.0)]

    @pytest.mark.parametrize(('name', 'message'), [
        ('integer', "'integer 1.0', this host has 'sysbench 9.9 .* cannot be"),
        ('own', "no benchmark 'own'.*--command")])
    def test_not_as_the_reference(self, versions, name, message):
        with pytest.raises(benchmarks.CalibrationError, match=message):
            benchmarks.choose_as(make_profiles.make_reference(
                'gold', make_profiles.make_benchmark(name)), {})


class TestSysbench:

    def test_it_does_a_number_of_events_on_one_thread(self):
        benchmark = sysbench.Integer()
        benchmark.program = '/opt/sysbench'
        assert benchmark.argv(42) == [
            '/opt/sysbench', 'cpu', '--threads=1', '--time=0',
            '--cpu-max-prime=10000', '--events=42', 'run']

    def test_memory_is_counted_in_bytes(self):
        benchmark = sysbench.MemoryStream()
        benchmark.program = '/opt/sysbench'
        assert benchmark.argv(3)[-2:] == ['--memory-total-size=192M', 'run']

    @pytest.mark.parametrize('benchmark', [
        sysbench.Integer(), busybox.Hash(), openssl.Vector(),
        command.Command(['no-such', 'x'])])
    def test_missing_program(self, monkeypatch, benchmark):
        monkeypatch.setenv('PATH', '/nonexistent')
        with pytest.raises(benchmarks.CalibrationError,
                           match='install the package|give the path'):
            benchmark.argv(1)


class TestBusybox:

    def test_each_event_is_a_file(self):
        benchmark = busybox.Decompression()
        benchmark.program = '/opt/busybox'
        assert benchmark.argv(2) == [
            '/opt/busybox', 'gunzip', '-c', 'text.gz', 'text.gz']
        assert gzip.decompress(benchmark.files['text.gz']) == \
            guest.workload('text')

    def test_what_is_compressed_otherwise_is_other_work(self, versions,
                                                        monkeypatch):
        identity = busybox.Decompression().identity
        assert identity == busybox.Decompression().identity
        monkeypatch.setattr(guest, 'workload', lambda name: b'shorter')
        assert busybox.Decompression().identity != identity


class TestOpenssl:

    def test_a_script_does_a_number_of_mebibytes(self, versions):
        benchmark = openssl.Vector()
        assert benchmark.argv(7) == ['sh', 'kinds/vector', '7']
        (script,) = benchmark.files.values()
        assert b'$1 * 1048576' in script
        # AES, AVX, XOP and carry-less multiplication are hidden.
        assert b'OPENSSL_ia32cap=~0x1200080200000000:0 openssl' in script

    def test_no_openssl(self, monkeypatch):
        monkeypatch.setenv('PATH', '/nonexistent')
        with pytest.raises(benchmarks.CalibrationError, match='openssl'):
            _ = openssl.Vector().identity


class TestCommand:

    def test_it_runs_as_given(self):
        name, own = command.parse("burn='/bin/echo' 'a b' -n={events}")
        assert name == 'burn'
        assert own.argv(7) == ['/bin/echo', 'a b', '-n=7']
        assert own.identity == "command /bin/echo 'a b' '-n={events}'"

    def test_in_a_guest(self):
        """The number is its script's argument; nothing is expanded."""
        _, own = command.parse("burn=/bin/echo '$HOME x' -n={events}.")
        assert own.files == {
            'kinds/command':
            b"exec /bin/echo '$HOME x' -n=\"$1\".\n"}

    @pytest.mark.parametrize(('text', 'message'), [
        ('burn', 'must be NAME=PROGRAM'),
        ('burn=', 'must be NAME=PROGRAM'),
        ('burn=/bin/true', 'with {events} where'),
        ('burn={events}', 'with {events} where'),
        ("burn=/bin/true 'x {events}", 'No closing quotation'),
        ('hash=/bin/true {events}', "'hash' is a benchmark that is installed"),
        ('auto=/bin/true {events}', 'vqos:work=auto has another meaning'),
        ('My Own=/bin/true {events}', "'My Own' is no name"),
        ('burn=/bin/true {events}' + 'x' * 200, 'at most 200'),
        ('burn=/bin/true {events} \x07', 'printable')])
    def test_what_is_none(self, text, message):
        with pytest.raises(benchmarks.CalibrationError, match=message):
            command.parse(text)


class TestWorkload:

    def test_text(self):
        text = guest.workload('text')
        assert len(text) == guest.TEXT_BYTES
        assert text.startswith(b'1 41c67ea6 word134\n')
        assert guest.workload('text') is text

    def test_scripts_define_what_sysbench_calls(self):
        for name in ('nbody.lua', 'html.lua', 'image.lua', 'chase.lua'):
            assert b'function event()' in guest.workload(name)
