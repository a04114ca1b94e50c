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

"""CPU time of a whole host: all that ran, its domains, and the rest.

Of what this process can see: within a container the visible root may be a
part of the machine's, and then all of this is of that part.
"""

from collections.abc import Collection
import os
import time

from nova_vqos.billing import usage
from nova_vqos.hypervisor import accounting
from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import counters

# NOTE: where libvirt puts domains unless told otherwise
# (virSystemdMakeScopeName and virCgroupNewPartition's /machine).
_DEFAULT_TOPS = frozenset(['machine', 'machine.slice'])


class HostAccount:
    """Counters of a host, which never fall."""

    def __init__(self, root: str = '/') -> None:
        """:param root: where /proc and /sys are looked for, for tests"""
        self._root = root
        self._domains = counters.Tally()
        self._own = counters.Tally()

    def read(self, tops: Collection[str]) -> usage.HostUsage:
        """Read the counters.

        :param tops: topmost cgroups with domains below them
        :raises CgroupError: when this host does not count, or not readably
        """
        version = cgroup.host_version(self._root)
        mount, _path = cgroup.find_process(self._root, 'self', version,
                                           'cpuacct')
        with cgroup.reading(mount):
            times_ns = {entry.name: _time_ns(entry.path, version)
                        for entry in os.scandir(mount)
                        if entry.is_dir(follow_symlinks=False)}
            # After the parts: what is left over is not negative.
            total_ns = _root_time_ns(mount, version)
        with_domains = _DEFAULT_TOPS.union(tops)
        return usage.HostUsage(
            read_at_s=time.monotonic(), total_ns=total_ns,
            domains_ns=self._domains.update({
                name: time_ns for name, time_ns in times_ns.items()
                if name in with_domains and time_ns is not None}),
            own_ns=self._own.update({
                name: time_ns for name, time_ns in times_ns.items()
                if name not in with_domains and time_ns is not None}))


def _time_ns(path: str, version: int) -> int | None:
    """CPU time of a cgroup; None where it just went."""
    try:
        return accounting.time_ns(_read(path, version), version)
    except OSError as error:
        if error.errno not in counters.GONE:
            raise
        return None


def _root_time_ns(mount: str, version: int) -> int:
    content = _read(mount, version)
    if version == 1:
        return int(content)
    # NOTE: not usage_usec, which at the root counts as used what another
    # guest of the machine below took (steal): root_cgroup_cputime() in
    # kernel/cgroup/rstat.c.
    return accounting.US_NS * (accounting.field(content, b'user_usec')
                               + accounting.field(content, b'system_usec'))


def _read(path: str, version: int) -> bytes:
    with open(os.path.join(path, accounting.TIME_FILES[version]), 'rb',
              buffering=0) as file:
        return file.read(4096)
