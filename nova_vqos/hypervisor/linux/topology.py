# SPDX-License-Identifier: Apache-2.0
"""Which pCPUs a host has, and what they share."""

import os
import re

from nova_vqos import cpuset
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux.procfs import read_text
from nova_vqos.quantum import model

_NODE = re.compile(r'node[0-9]+')
# The last level that CPUs have; without it they share their package's.
_LAST_LEVEL_CACHE = 'cache/index3/shared_cpu_list'


class Topology:
    """Reads a host's pCPUs; again only when some came or went."""

    def __init__(self, root: str) -> None:
        """Prepare; nothing is read yet.

        :param root: where /sys is looked for
        """
        self._cpus = os.path.join(root, 'sys/devices/system/cpu')
        self._nodes = os.path.join(root, 'sys/devices/system/node')
        self._cgroups = os.path.join(root, 'sys/fs/cgroup')
        self._usable: frozenset[int] = frozenset()
        self._sockets: tuple[model.Socket, ...] = ()

    def read(self) -> tuple[model.Socket, ...]:
        """Read the pCPUs that are online and not isolated.

        A socket is the pCPUs that share a last-level cache, within one package
        and one NUMA node, since pools are about that. Sockets are numbered in
        the order of their pCPUs.

        :raises base.HypervisorError: when they cannot be read
        """
        try:
            usable = cpuset.parse_pcpus(
                read_text(f'{self._cpus}/online')) - self._isolated()
            if usable != self._usable:
                self._sockets = self._find(usable)
                self._usable = usable
        except (OSError, ValueError) as error:
            raise base.HypervisorError(
                f"this host's pCPUs cannot be read: {error}") from error
        return self._sockets

    def _isolated(self) -> frozenset[int]:
        """The pCPUs that the kernel balances no load to.

        By a boot parameter, or by an isolated partition of cpusets, which
        newer kernels list at the root of cgroups.
        """
        found = frozenset[int]()
        for path in (f'{self._cpus}/isolated',
                     f'{self._cgroups}/cpuset.cpus.isolated'):
            text = read_text(path, '')
            if text:
                found |= cpuset.parse_pcpus(text)
        return found

    def _find(self, usable: frozenset[int]) -> tuple[model.Socket, ...]:
        nodes = self._find_nodes()
        sockets: dict[tuple[str, ...], dict[int, tuple[int, ...]]] = {}
        for pcpu in sorted(usable):
            base_path = f'{self._cpus}/cpu{pcpu}'
            siblings = read_text(
                f'{base_path}/topology/thread_siblings_list', '')
            core = tuple(sorted(usable & cpuset.parse_pcpus(
                f'{pcpu},{siblings}' if siblings else f'{pcpu}')))
            key = (read_text(f'{base_path}/topology/physical_package_id', ''),
                   nodes.get(pcpu, ''),
                   read_text(f'{base_path}/{_LAST_LEVEL_CACHE}', ''))
            sockets.setdefault(key, {}).setdefault(core[0], core)
        return tuple(model.Socket(number, tuple(cores.values()))
                     for number, cores in enumerate(sockets.values()))

    def _find_nodes(self) -> dict[int, str]:
        """The NUMA node of each pCPU; empty where there are none."""
        try:
            names = os.listdir(self._nodes)
        except FileNotFoundError:
            return {}
        return {pcpu: name for name in filter(_NODE.fullmatch, names)
                # The list of a node without pCPUs is empty.
                if (text := read_text(f'{self._nodes}/{name}/cpulist', ''))
                for pcpu in cpuset.parse_pcpus(text)}
