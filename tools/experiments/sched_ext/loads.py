# SPDX-License-Identifier: Apache-2.0
"""Processes that stand for vCPUs, each in a cgroup of its own (version 2).

A vCPU that runs guest code is a thread that computes. What the kernel's
schedulers see of it is the same; what QEMU and KVM do besides is not here.
"""

from collections.abc import Iterator
import contextlib
import functools
import mmap
import os
import pathlib
import signal
import struct
import subprocess
import tempfile
import time

from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import procfs

CGROUPS = pathlib.Path('/sys/fs/cgroup')
# As in load.c.
_PCPUS, _MOST = 64, 4096
_NUMBERS = struct.Struct(f'={_PCPUS}QQ{_MOST}Q')
_WAIT_S = 20


class Load:
    """One such process. It stands still until it is told to go.

    :ivar group: directory of its cgroup
    """

    def __init__(self, program: str, parent: pathlib.Path, name: str,
                 kind: str, *arguments: int) -> None:
        self.group = parent / name
        self.group.mkdir()
        with tempfile.NamedTemporaryFile() as file:
            self._process = subprocess.Popen(
                [program, kind, file.name, *map(str, arguments)],
                preexec_fn=functools.partial(
                    cgroup.write, f'{self.group}/cgroup.procs', '0'))
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)
            self._results = mmap.mmap(file.fileno(), _NUMBERS.size)

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def run_ns(self) -> int:
        """The CPU time that it used."""
        return procfs.read_run(self.pid).run_ns

    def runs(self) -> int:
        """How often it was given a pCPU."""
        return procfs.read_run(self.pid).runs

    def by_pcpu_ns(self) -> tuple[int, ...]:
        """The CPU time that it used on each pCPU."""
        return self._numbers()[:_PCPUS]

    def intervals(self) -> int:
        """How many ended, of one that serves."""
        return self._numbers()[_PCPUS]

    def late_ms(self, first: int) -> list[float]:
        """How late it woke after each, in order of that.

        :param first: of those that count
        """
        numbers = self._numbers()
        return sorted(numbers[_PCPUS + 1 + index % _MOST] / 1e6
                      for index in range(first, numbers[_PCPUS]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._results.close()
        until_s = time.monotonic() + _WAIT_S
        while True:
            try:
                return self.group.rmdir()
            except OSError:
                # The process is there a little longer.
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.01)

    def _numbers(self) -> tuple[int, ...]:
        return _NUMBERS.unpack(self._results)


@contextlib.contextmanager
def parent(name: str, pcpus: str, *, partition: bool = False
           ) -> Iterator[pathlib.Path]:
    """A cgroup for loads that may run on some pCPUs alone.

    :param partition: whether these are a cpuset partition, which reservations
        on some of the pCPUs need
    """
    group = CGROUPS / name
    group.mkdir()
    try:
        (group / 'cgroup.subtree_control').write_text('+cpu +cpuset')
        (group / 'cpuset.cpus').write_text(pcpus)
        if partition:
            (group / 'cpuset.cpus.partition').write_text('root')
            state = (group / 'cpuset.cpus.partition').read_text().strip()
            if state != 'root':
                raise SystemExit(f'{group} is no partition: {state}')
        yield group
    finally:
        group.rmdir()
