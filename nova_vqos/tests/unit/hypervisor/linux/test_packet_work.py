# SPDX-License-Identifier: Apache-2.0
"""What the kernel shows of the packets that each pCPU received."""

import pytest

from nova_vqos.billing import usage
from nova_vqos.hypervisor.linux import packet_work

STAT = """\
cpu  5003612 1220899 1511715 3374293 58937 0 28763 13518 160 0
cpu0 2616506 538609 689090 1727336 17785 0 8765 6802 73 0
cpu3 2387106 682290 822625 1646957 41151 0 19998 6715 87 0
intr 5 0
softirq 56227926 0 5028563
"""
# Of Linux 6.18; pCPU 3 is the second of two that are online.
SOFTNET = ''.join(
    f'{counters} {" ".join(["00000000"] * 9)} {pcpu:08x} 00000000 00000000\n'
    for counters, pcpu in (('017192f7 00000000 00000009', 0),
                           ('0060099b 0000000a 0000000b', 3)))


@pytest.fixture
def proc(tmp_path):
    (tmp_path / 'proc/net').mkdir(parents=True)
    (tmp_path / 'proc/stat').write_text(STAT)
    (tmp_path / 'proc/net/softnet_stat').write_text(SOFTNET)
    return tmp_path / 'proc'


@pytest.fixture
def reader(proc):
    return packet_work.PacketWorkReader(str(proc.parent))


def test_by_pcpu(reader):
    ticks_ns = 10**9 // packet_work._TICKS_PER_S
    assert reader.read() == {
        0: usage.PacketWork(0x017192f7, 0, 9, 8765 * ticks_ns,
                            (1727336 + 17785) * ticks_ns),
        3: usage.PacketWork(0x0060099b, 10, 11, 19998 * ticks_ns,
                            (1646957 + 41151) * ticks_ns)}


def add_thread(proc, tid, name, run_ns, flags=0x04208040):
    """:param flags: those of the kernel's own threads by default"""
    (proc / str(tid)).mkdir()
    (proc / str(tid) / 'stat').write_text(
        f'{tid} ({name}) S 2 0 0 0 -1 {flags} 0 0\n')
    (proc / str(tid) / 'schedstat').write_text(f'{run_ns} 5 6\n')


def ksoftirqd_ns(reader):
    return {pcpu: one.ksoftirqd_ns for pcpu, one in reader.read().items()}


def test_the_time_of_ksoftirqd(reader, proc):
    add_thread(proc, 14, 'ksoftirqd/0', 10**9)
    add_thread(proc, 22, 'ksoftirqd/3', 2 * 10**9)
    # A program calls itself so.
    add_thread(proc, 5000, 'ksoftirqd/3', 9 * 10**9, flags=0x400000)
    add_thread(proc, 5001, 'x (ksoftirqd/3)', 9 * 10**9)
    add_thread(proc, 15, 'migration/0', 9 * 10**9)
    assert ksoftirqd_ns(reader) == {0: 10**9, 3: 2 * 10**9}
    (proc / '14/schedstat').write_text('1500000000 5 6\n')
    assert ksoftirqd_ns(reader) == {0: 1_500_000_000, 3: 2 * 10**9}


def test_ksoftirqd_that_is_not_shown(reader, proc):
    """As within a container, or on a kernel without schedstat."""
    add_thread(proc, 14, 'ksoftirqd/0', 10**9)
    (proc / '14/schedstat').unlink()
    assert ksoftirqd_ns(reader) == {0: None, 3: None}


def test_ksoftirqd_of_a_pcpu_that_comes(reader, proc):
    (proc / 'stat').write_text(STAT.replace('cpu3', 'cpu4'))
    add_thread(proc, 14, 'ksoftirqd/0', 10**9)
    assert ksoftirqd_ns(reader) == {0: 10**9}
    add_thread(proc, 22, 'ksoftirqd/3', 2 * 10**9)
    (proc / 'stat').write_text(STAT)
    assert ksoftirqd_ns(reader) == {0: 10**9, 3: 2 * 10**9}


def test_a_pcpu_that_just_goes_is_left_out(reader, proc):
    (proc / 'stat').write_text(STAT.replace('cpu3', 'cpu4'))
    assert reader.read().keys() == {0}


@pytest.mark.parametrize('name', ['stat', 'net/softnet_stat'])
@pytest.mark.parametrize('text', [None, 'x\n', 'cpu0 1\n', '00 00\n', '\n'])
def test_what_is_not_understood_is_logged_once(reader, proc, caplog, name,
                                               text):
    if text is None:
        (proc / name).unlink()
    else:
        (proc / name).write_text(text)
    assert [reader.read(), reader.read()] == [{}, {}]
    assert len(caplog.records) <= 1
    (proc / 'stat').write_text(STAT)
    (proc / 'net/softnet_stat').write_text(SOFTNET)
    assert reader.read().keys() == {0, 3}
