# SPDX-License-Identifier: Apache-2.0
"""What the kernel shows of the packets that each pCPU received."""

from collections.abc import Collection, Mapping
import contextlib
import logging
import os
import re

from nova_vqos.billing import usage
from nova_vqos.hypervisor.linux import procfs

LOG = logging.getLogger(__name__)

# Columns of softnet_stat, in hexadecimal; the last one is there since Linux
# 5.10 (net/core/net-procfs.c).
_PROCESSED, _DROPPED, _SQUEEZED, _PCPU = 0, 1, 2, 12
# user nice system idle iowait irq softirq: what ksoftirqd does is in the last
# one (kernel/sched/cputime.c).
_IDLE, _IOWAIT, _SOFTIRQ = 3, 4, 6
_TICKS_PER_S = os.sysconf('SC_CLK_TCK')
_NS_PER_S = 10**9
# Flag of the kernel's own threads (include/linux/sched.h): any program may
# have the name of one.
_PF_KTHREAD = 0x00200000
_KSOFTIRQD = re.compile(r'(\d+) \(ksoftirqd/(\d+)\) . (.*)')


class PacketWorkReader:
    """Reads them for all pCPUs that are online."""

    def __init__(self, root: str = '/') -> None:
        """:param root: where /proc is looked for, for tests"""
        self._proc = os.path.join(root, 'proc')
        self._problem = ''
        self._ksoftirqds = _Ksoftirqds(self._proc)

    def read(self) -> Mapping[int, usage.PacketWork]:
        """:returns: by pCPU; empty where the kernel does not show it"""
        try:
            times_ns = _parse_stat(procfs.read_text(f'{self._proc}/stat'))
            threads_ns = self._ksoftirqds.read(times_ns.keys())
            found = {
                pcpu: usage.PacketWork(*counters, *times_ns[pcpu],
                                       threads_ns.get(pcpu))
                for pcpu, counters in _parse_softnet(procfs.read_text(
                    f'{self._proc}/net/softnet_stat')).items()
                if pcpu in times_ns}
        except (OSError, ValueError, IndexError) as error:
            if str(error) != self._problem:
                LOG.warning('What pCPUs do with packets cannot be read: %s',
                            error)
            self._problem = str(error)
            return {}
        self._problem = ''
        return found


class _Ksoftirqds:
    """The threads that do a pCPU's softirqs where these are too many.

    They last as long as the kernel: those of pCPUs that go offline wait.
    """

    def __init__(self, proc: str) -> None:
        """:param proc: where processes are looked for"""
        self._proc = proc
        self._pcpus: frozenset[int] = frozenset()
        self._tids: Mapping[int, int] = {}

    def read(self, pcpus: Collection[int]) -> dict[int, int]:
        """:returns: CPU time in ns by pCPU, of those that are shown"""
        if self._pcpus != pcpus:
            self._tids = self._find()
            self._pcpus = frozenset(pcpus)
        found = {}
        for pcpu, tid in self._tids.items():
            with contextlib.suppress(OSError, ValueError), open(
                    procfs.run_path(self._proc, tid), 'rb') as file:
                found[pcpu] = procfs.parse_run(file.read()).run_ns
        return found

    def _find(self) -> dict[int, int]:
        """:returns: their ids, by pCPU; none within a container"""
        found = {}
        for name in filter(str.isdecimal, os.listdir(self._proc)):
            thread = _KSOFTIRQD.match(procfs.read_text(
                f'{self._proc}/{name}/stat', ''))
            # ppid pgrp session tty_nr tpgid flags
            if thread and int(thread[3].split()[5]) & _PF_KTHREAD:
                found[int(thread[2])] = int(thread[1])
        return found


def _parse_stat(text: str) -> dict[int, tuple[int, int]]:
    """:returns: nanoseconds in softirq, and idle, by pCPU"""
    found = {}
    for line in text.splitlines():
        name, *words = line.split()
        if name.startswith('cpu') and name != 'cpu':
            ticks = [int(word) for word in words]
            found[int(name.removeprefix('cpu'))] = (
                ticks[_SOFTIRQ] * _NS_PER_S // _TICKS_PER_S,
                (ticks[_IDLE] + ticks[_IOWAIT]) * _NS_PER_S // _TICKS_PER_S)
    return found


def _parse_softnet(text: str) -> dict[int, tuple[int, int, int]]:
    """:returns: packets that were processed and dropped, and polls that were
        squeezed, by pCPU
    """
    found = {}
    for line in text.splitlines():
        values = [int(word, 16) for word in line.split()]
        found[values[_PCPU]] = (
            values[_PROCESSED], values[_DROPPED], values[_SQUEEZED])
    return found
