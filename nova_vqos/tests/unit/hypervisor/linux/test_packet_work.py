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
