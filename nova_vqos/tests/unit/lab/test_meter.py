# SPDX-License-Identifier: Apache-2.0
"""CPU time and instructions of a vCPU."""

import numpy as np
import pytest

from nova_vqos.hypervisor.linux import instructions
from nova_vqos_lab import meter
from nova_vqos_lab import process

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
    vcpu = meter.Vcpu(str(cpu), counter(77))
    assert vcpu.read() == (cpu_ns, 77)
    counter(78)
    assert vcpu.read() == (cpu_ns, 78)
    vcpu.close()


def test_a_guest_whose_instructions_nothing_counts(tmp_path):
    cpu = tmp_path / 'cpu'
    cpu.write_text('5\n')
    vcpu = meter.Vcpu(str(cpu), None)
    assert vcpu.read() == (5, 0)
    vcpu.close()


def test_samples_grow_while_it_runs(tmp_path, counter):
    cpu = tmp_path / 'cpu'
    cpu.write_text('5\n')
    path = counter(77)
    with meter.Meter(lambda: meter.Vcpu(str(cpu), path), 'it') as measured:
        process.wait_until(
            lambda: len(measured._samples[-1]) > 3, 10, 'four samples')
    series = measured.series()
    assert set(series.cpu_ns) == {5}
    assert set(series.instructions) == {77}
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
    assert series.instructions_between(edges_ns) == pytest.approx(
        280_000_000, rel=0.01)
    edges_ns = series.edges_ns(10 * 10**9)
    assert series.cpu_between_ns(edges_ns) / 10**10 == pytest.approx(
        0.28, rel=0.001)


def test_no_instruction_at_all():
    with pytest.raises(process.LabError, match='no instructions'):
        capped(offset_ms=10**6).from_first_instruction()


@pytest.mark.parametrize('offset_ms', [0, 7, 250])
def test_without_instructions_windows_begin_with_the_first_run(offset_ms):
    series = capped(offset_ms=offset_ms)
    series.cpu_ns[2:] += 3 * MS
    first = series.from_first_run()
    assert first.at_ns[0] == pytest.approx(10**15 + offset_ms * MS,
                                           abs=6 * MS)
