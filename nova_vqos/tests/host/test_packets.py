# SPDX-License-Identifier: Apache-2.0
"""A pCPU that receives more packets than it has time for, on this kernel."""

import os
import subprocess
import sys
import time

import pytest

from nova_vqos.billing import packet_load
from nova_vqos.hypervisor.linux import packet_work

WINDOW_S = 2
WINDOWS = 6
FLOOD_S = 60

pytestmark = [pytest.mark.timeout(120), pytest.mark.measured]


@pytest.fixture
def pcpus():
    """One that sends and one that receives."""
    sender, *_, receiver = sorted(os.sched_getaffinity(0))
    return sender, receiver


@pytest.fixture
def flood(pcpus):
    """All that was sent goes over loopback of a namespace of its own."""
    with subprocess.Popen(
            ['unshare', '--net', '--mount', sys.executable, '-m',
             'nova_vqos.tests.host.packet_flood', *map(str, pcpus),
             str(FLOOD_S)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == 'sending\n'
        yield process
        process.kill()


def test_it_is_seen_while_it_lasts(pcpus, flood):
    _sender, receiver = pcpus
    reader, load = packet_work.PacketWorkReader(), packet_load.PacketLoad()

    def window():
        # The length of a measurement.
        time.sleep(WINDOW_S)
        load.add(time.monotonic(), reader.read())
        return load.report

    load.add(time.monotonic(), reader.read())
    flooded = [window() for _ in range(WINDOWS)]
    flood.kill()
    flood.wait()
    # What was sent last.
    window()
    after = window()

    dropped = [one.dropped_packets for one in flooded]
    assert dropped == sorted(set(dropped))
    # The first one has nothing to be compared with, and another program may
    # take some time of a short window.
    assert [one.saturated_pcpus for one in flooded[1:]].count(
        (receiver,)) >= WINDOWS // 2
    assert flooded[-1].softirq_share > 0.1
    first, last = (next(found for found in one.softirqs
                        if found.pcpu == receiver)
                   for one in (flooded[0], flooded[-1]))
    took_s = last.softirq_s - first.softirq_s
    assert took_s > 0.1 * (WINDOWS - 1) * WINDOW_S
    print(f'{took_s:.2f} s in softirqs, '
          f'{last.ksoftirqd_s - first.ksoftirqd_s:.2f} s in ksoftirqd')
    assert last.ksoftirqd_s > first.ksoftirqd_s
    assert after.saturated_pcpus == ()
    assert after.dropped_packets == window().dropped_packets
