# SPDX-License-Identifier: Apache-2.0
"""Threads in a domain's emulator cgroup that do other work than QEMU's.

Workers of vhost move packets, and others only serve a migration; their names
show it. The time of each is read from its schedstat, in nanoseconds.
"""

from collections.abc import Iterator
import contextlib
import re

from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import procfs

VHOST = 'vhost'
MIGRATION = 'migration'

# NOTE: vhost_worker_create() in drivers/vhost/vhost.c: a thread of the kernel
# in the emulator's cgroup, or from Linux 6.4 on one of QEMU's own.
_VHOST = re.compile(r'vhost-[0-9]+')
# NOTE: QEMU's migration/ directory; the names are as old as QEMU 2 (the words)
# or from 9.1 (mig/). libvirt has QEMU name its threads (debug-threads=on). The
# kernel keeps 15 characters.
_MIGRATION = re.compile(
    r'mig/.*|live_migration|bg_snapshot|return path|multifd.*|postcopy/.*'
    r'|fault-.*|COLO incoming|get_dirtyrate|(de)?compress')


class EmulatorThreads:
    """The threads in the cgroup of a domain's emulator."""

    def __init__(self, list_path: str, proc_path: str, own_name: str,
                 files: domain_files.Files) -> None:
        """Prepare; nothing is read yet.

        :param list_path: of the cgroup's file that lists its threads
        :param proc_path: where processes are looked for
        :param own_name: of the emulator's process, which a new thread has
            until it is given its own
        """
        self._list_path = list_path
        self._proc_path = proc_path
        self._own_name = own_name
        self._files = files
        # By thread: VHOST or MIGRATION, and its counters; None: an ordinary
        # one. A thread that had the process's name when it was seen first is
        # recognised once more.
        self._known: dict[int, tuple[str, domain_files.File] | None] = {}
        self._nameless: set[int] = set()
        self._tallies = {VHOST: procfs.Tally(), MIGRATION: procfs.Tally()}

    def read(self) -> dict[str, int]:
        """Read the CPU time by kind so far, in nanoseconds; it never falls.

        What a thread used since the last reading is not seen when it ends
        before the next.

        :raises OSError: when the cgroup is gone
        :raises ValueError: when a counter is no number
        """
        self._recognise_all(set(procfs.read_threads(self._list_path)))
        values: dict[str, dict[int, int]] = {VHOST: {}, MIGRATION: {}}
        for tid, known in self._known.items():
            if known is not None:
                kind, file = known
                with _unless_gone():
                    values[kind][tid] = procfs.parse_run(file.read()).run_ns
        return {kind: tally.update(values[kind])
                for kind, tally in self._tallies.items()}

    def _recognise_all(self, tids: set[int]) -> None:
        for tid in self._known.keys() - tids:
            self._nameless.discard(tid)
            known = self._known.pop(tid)
            if known is not None:
                known[1].close()
        for tid in (tids - self._known.keys()) | self._nameless:
            with _unless_gone():
                self._known[tid] = self._recognise(tid)

    def _recognise(self, tid: int) -> tuple[str, domain_files.File] | None:
        name = procfs.read_text(f'{self._proc_path}/{tid}/comm')
        if name != self._own_name or tid in self._nameless:
            self._nameless.discard(tid)
        else:
            self._nameless.add(tid)
        kind = (VHOST if _VHOST.fullmatch(name)
                else MIGRATION if _MIGRATION.fullmatch(name) else None)
        if kind is None:
            return None
        return kind, domain_files.File(
            self._files, procfs.run_path(self._proc_path, tid))


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in procfs.GONE:
            raise
