# SPDX-License-Identifier: Apache-2.0
"""The memory of the emulators of domains."""

from collections.abc import Collection, Mapping
import os

from nova_vqos.hypervisor.linux import domain_files

_PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')


class _Reader:
    """Reads how much private memory of an emulator is resident."""

    def __init__(self, run: domain_files.DomainRun,
                 _files: domain_files.Files) -> None:
        self._path = os.path.join(run.root, 'proc', str(run.emulator.pid),
                                  'statm')

    def read(self) -> int:
        """Read it, in bytes.

        :raises OSError: when the emulator is gone
        :raises ValueError: when the kernel's answer is not understood
        """
        with open(self._path, 'rb') as file:
            # NOTE: of what is resident, "shared" is what maps files and
            # shared memory (fs/proc/task_mmu.c, task_statm). Any user may
            # read this file, unlike smaps, which costs a walk through all
            # page tables besides.
            _size, resident, shared, *_rest = map(int, file.read().split())
        return max(0, resident - shared) * _PAGE_BYTES


def read(domains: domain_files.Cache,
         uuids: Collection[str]) -> Mapping[str, int]:
    """As :meth:`base.UsageDriver.emulator_memory`."""
    return domains.use_each(uuids, _Reader, _Reader.read)
