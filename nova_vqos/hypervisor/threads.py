# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Threads that the kernel accounts to a domain's emulator, told apart.

Some of them do other work than the emulator's: workers of vhost move packets,
and others only serve a migration. Each one's time is read from its schedstat,
in nanoseconds; what they are is told by their names.
"""

from collections.abc import Iterator
import contextlib
import re

from nova_vqos.hypervisor import counters
from nova_vqos.hypervisor import schedstat
from nova_vqos.hypervisor import thread_list

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


class _Thread:
    """A thread whose time is told from the emulator's.

    :ivar kind: VHOST or MIGRATION
    """

    def __init__(self, kind: str, file: counters.CounterFile) -> None:
        self.kind = kind
        self.file = file


class EmulatorThreads:
    """The threads in the cgroup of a domain's emulator."""

    def __init__(self, list_path: str, proc_path: str, own_name: str,
                 budget: counters.Budget) -> None:
        """Prepare; nothing is read yet.

        :param list_path: of the cgroup's file that lists its threads
        :param proc_path: where processes are looked for
        :param own_name: of the emulator's process, which a new thread has
            until it is given its own
        """
        self._list_path = list_path
        self._proc_path = proc_path
        self._own_name = own_name
        self._budget = budget
        # None: an ordinary one. One that still had the process's name when it
        # was seen first is looked at once more.
        self._known: dict[int, _Thread | None] = {}
        self._nameless: set[int] = set()
        self._tallies = {VHOST: counters.Tally(), MIGRATION: counters.Tally()}
        self._wakes = counters.Tally()

    def read(self) -> dict[str, int]:
        """CPU time by kind so far, in nanoseconds; it never falls.

        What a thread used since the last reading is not seen when it ends
        before the next.

        :raises OSError: when the cgroup is gone
        :raises ValueError: when what the kernel says is no number
        """
        self._look(set(thread_list.read(self._list_path)))
        values: dict[str, dict[int, int]] = {VHOST: {}, MIGRATION: {}}
        wakes: dict[int, int] = {}
        for number, thread in self._known.items():
            if thread is not None:
                with _unless_gone():
                    found = schedstat.parse(thread.file.read())
                    values[thread.kind][number] = found.run_ns
                    if thread.kind == VHOST:
                        wakes[number] = found.runs
        self._wakes.update(wakes)
        return {kind: tally.update(values[kind])
                for kind, tally in self._tallies.items()}

    @property
    def vhost_wakes(self) -> int:
        """How often workers of vhost began to run, as of the last reading."""
        return self._wakes.total

    def close(self) -> None:
        """Close all files; what was counted stays."""
        self._look(set())

    def _look(self, numbers: set[int]) -> None:
        for number in self._known.keys() - numbers:
            self._nameless.discard(number)
            thread = self._known.pop(number)
            if thread is not None:
                thread.file.close()
        for number in (numbers - self._known.keys()) | self._nameless:
            with _unless_gone():
                self._known[number] = self._recognise(number)

    def _recognise(self, number: int) -> _Thread | None:
        name = self._name(number)
        if name != self._own_name or number in self._nameless:
            self._nameless.discard(number)
        else:
            self._nameless.add(number)
        kind = (VHOST if _VHOST.fullmatch(name)
                else MIGRATION if _MIGRATION.fullmatch(name) else None)
        if kind is None:
            return None
        return _Thread(kind, counters.CounterFile(
            schedstat.path(self._proc_path, number), self._budget))

    def _name(self, number: int) -> str:
        with open(f'{self._proc_path}/{number}/comm', 'rb',
                  buffering=0) as file:
            return file.read(64).decode(errors='replace').rstrip('\n')


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in counters.GONE:
            raise
