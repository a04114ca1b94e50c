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
"""Which pCPUs a host has, and what they share."""

import os
import re

from nova_vqos import profile
from nova_vqos.hypervisor import base
from nova_vqos.quantum import model

_NODE = re.compile(r'node[0-9]+')
# The last level that CPUs have; those without it share what their package has.
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
        """The pCPUs that are online and not isolated.

        A socket is what shares a last-level cache, within one package and one
        NUMA node, since that is what pools are about. They are numbered in
        the order of their pCPUs.

        :raises base.HypervisorError: when they cannot be told
        """
        try:
            usable = profile.parse_pcpus(
                _read(f'{self._cpus}/online')) - self._isolated()
            if usable != self._usable:
                self._sockets = self._find(usable)
                self._usable = usable
        except (OSError, ValueError) as error:
            raise base.HypervisorError(
                f"this host's pCPUs cannot be told: {error}") from error
        return self._sockets

    def _isolated(self) -> frozenset[int]:
        """Those that the kernel balances no load to.

        By a boot parameter, or by an isolated partition of cpusets, which
        newer kernels tell of at the root of cgroups.
        """
        found = frozenset[int]()
        for path in (f'{self._cpus}/isolated',
                     f'{self._cgroups}/cpuset.cpus.isolated'):
            text = _read(path, '')
            if text:
                found |= profile.parse_pcpus(text)
        return found

    def _find(self, usable: frozenset[int]) -> tuple[model.Socket, ...]:
        nodes = self._find_nodes()
        sockets: dict[tuple[str, ...], dict[int, tuple[int, ...]]] = {}
        for pcpu in sorted(usable):
            base_path = f'{self._cpus}/cpu{pcpu}'
            siblings = _read(
                f'{base_path}/topology/thread_siblings_list', '')
            core = tuple(sorted(usable & profile.parse_pcpus(
                f'{pcpu},{siblings}' if siblings else f'{pcpu}')))
            key = (_read(f'{base_path}/topology/physical_package_id', ''),
                   nodes.get(pcpu, ''),
                   _read(f'{base_path}/{_LAST_LEVEL_CACHE}', ''))
            sockets.setdefault(key, {}).setdefault(core[0], core)
        return tuple(model.Socket(number, tuple(cores.values()))
                     for number, cores in enumerate(sockets.values()))

    def _find_nodes(self) -> dict[int, str]:
        """The NUMA node of each pCPU; nothing where there are none."""
        try:
            names = os.listdir(self._nodes)
        except FileNotFoundError:
            return {}
        return {pcpu: name for name in filter(_NODE.fullmatch, names)
                # That of a node without pCPUs is empty.
                if (text := _read(f'{self._nodes}/{name}/cpulist', ''))
                for pcpu in profile.parse_pcpus(text)}


def _read(path: str, default: str | None = None) -> str:
    """:param default: where there is no such file; None: an error"""
    try:
        with open(path, encoding='ascii') as file:
            return file.read().strip()
    except OSError:
        # NOTE: that of a pCPU that goes offline meanwhile is gone, too.
        if default is None:
            raise
        return default
