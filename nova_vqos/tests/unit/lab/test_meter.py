# SPDX-License-Identifier: Apache-2.0
"""CPU time and instructions of a vCPU."""

import numpy as np
import pytest

from nova_vqos.hypervisor.linux import instructions
from nova_vqos_lab import meter
from nova_vqos_lab import process
from nova_vqos_lab import rom

MS = 10**6


@pytest.fixture
def counter(tmp_path):
    """A file as QEMU's plugin writes it, of a number of instructions."""
    path = tmp_path / 'counter'

    def write(count):
        path.write_bytes(
            instructions.HEADER.pack(instructions.MAGIC, instructions.VERSION,
                                     1) + instructions.VCPU.pack(count))
        return str(path)
    return write


@pytest.mark.parametrize(('text', 'cpu_ns'), [
    ('123456789\n', 123456789),
    ('usage_usec 123456\nuser_usec 99\n', 123456000),
    ('123456789 42 17\n', 123456789),
], ids=['cgroup v1', 'cgroup v2', 'thread'])
def test_both_are_read(tmp_path, counter, text, cpu_ns):
    cpu = tmp_path / 'cpu'
    cpu.write_text(text)
    vcpu = meter.Vcpu(str(cpu), meter.Instructions(counter(77)))
    assert vcpu.read() == (cpu_ns, 77)
    counter(78)
    assert vcpu.read() == (cpu_ns, 78)
    vcpu.close()


def test_samples_grow_while_it_runs(tmp_path, counter):
    cpu = tmp_path / 'cpu'
    cpu.write_text('5\n')
    path = counter(77)
    with meter.Meter(
            lambda: meter.Vcpu(str(cpu), meter.Instructions(path)),
            'it') as measured:
        process.wait_until(
            lambda: len(measured._samples[-1]) > 3, 10, 'four samples')
    series = measured.series()
    assert set(series.cpu_ns) == {5}
    assert set(series.work) == {77}
    assert (np.diff(series.at_ns) > 0).all()


def test_a_guest_that_never_came():
    with meter.Meter(lambda: None, 'it') as measured:
        pass
    with pytest.raises(process.LabError, match='it was not seen'):
        measured.series()


def capped(*, offset_ms, period_ms=100, quota_ms=28, length_s=11):
    """A vCPU that waits, and then uses its quota in each period.

    :param offset_ms: of its first instruction
    """
    at_ms = np.arange(0, length_s * 1000, 2)
    in_period = (at_ms - offset_ms) % period_ms
    used = ((at_ms - offset_ms) // period_ms * quota_ms
            + np.minimum(in_period, quota_ms))
    used[at_ms < offset_ms] = 0
    return meter.Series(at_ms * MS + 10**15, used * MS + 10**9,
                        used * 1_000_000)


@pytest.mark.parametrize('offset_ms', [0, 7, 250])
def test_windows_begin_with_the_first_instruction(offset_ms):
    series = capped(offset_ms=offset_ms).from_first_instruction()
    assert series.at_ns[0] == pytest.approx(10**15 + offset_ms * MS, abs=2*MS)
    edges_ns = series.edges_ns(10**9)
    assert len(edges_ns) == 11
    assert series.cpu_between_ns(edges_ns) / 10**9 == pytest.approx(
        0.28, abs=0.003)
    assert series.work_between(edges_ns) == pytest.approx(
        280_000_000, rel=0.01)
    edges_ns = series.edges_ns(10 * 10**9)
    assert series.cpu_between_ns(edges_ns) / 10**10 == pytest.approx(
        0.28, rel=0.001)


def test_no_instruction_at_all():
    with pytest.raises(process.LabError, match='no instructions'):
        capped(offset_ms=10**6).from_first_instruction()


@pytest.fixture
def memory(tmp_path):
    """A guest's memory, of which rom.COUNT uses four bytes."""
    path = tmp_path / 'memory'
    path.write_bytes(bytes(1 << 16))

    def write(count):
        with path.open('r+b') as file:
            file.seek(rom.COUNTER)
            file.write(count.to_bytes(4, 'little'))
        return str(path)
    return write


def test_a_guest_whose_work_nothing_counts(tmp_path):
    cpu = tmp_path / 'cpu'
    cpu.write_text('5\n')
    vcpu = meter.Vcpu(str(cpu), meter.Uncounted())
    assert vcpu.read() == (5, 0)
    vcpu.close()


def test_rounds_are_counted_over_wraps(memory):
    rounds = meter.Rounds(memory(2**32 - 10))
    assert rounds.read() == 0
    memory(2**32 - 3)
    assert rounds.read() == 7
    memory(5)
    assert rounds.read() == 15
    memory(4)
    assert rounds.read() == 14 + 2**32
    rounds.close()


def test_memory_that_is_not_there_yet(tmp_path):
    empty = tmp_path / 'memory'
    empty.touch()
    with pytest.raises(ValueError, match='mmap'):
        meter.Rounds(str(empty))


def test_without_its_cpu_time_no_counter_is_left_open(memory):
    rounds = meter.Rounds(memory(1))
    with pytest.raises(FileNotFoundError):
        meter.Vcpu('/nonesuch', rounds)
    assert rounds._memory.closed


@pytest.mark.parametrize('offset_ms', [20, 250])
def test_memory_that_moves_is_no_beginning(offset_ms):
    series = capped(offset_ms=offset_ms)
    # The pages of its memory arrive, before it runs.
    series.work[3:] += 10**9
    series.cpu_ns[2:] += 3 * MS
    series = series.from_first_run()
    assert series.at_ns[0] == pytest.approx(10**15 + offset_ms * MS, abs=6*MS)
    assert series.work[1:] - series.work[:-1] == pytest.approx(
        np.diff(series.cpu_ns))


def test_no_cpu_time_at_all():
    with pytest.raises(process.LabError, match='not seen to run'):
        capped(offset_ms=10**6).from_first_run()
