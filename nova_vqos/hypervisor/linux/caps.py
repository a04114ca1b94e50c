# SPDX-License-Identifier: Apache-2.0
"""The CPU limits of running domains, straight from cgroupfs.

libvirt offers no bulk call for quotas, and one call per domain and tick would
cost its daemon a quarter of a core for 200 domains. So the files are kept
open, and read again after a write to them, and when asked to; where the kernel
does not report writes, each time.

Only reads: the driver writes through libvirt, which keeps the values for the
domain's XML and its hotplugged vCPUs.
"""

from collections.abc import Iterator
import os

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import inotify

_READ_BYTES = 64


class Caps:
    """Reads the limits and the weight of one domain."""

    def __init__(self, domain: domain_files.DomainRun,
                 files: domain_files.Files) -> None:
        """Open the files that are not of vCPUs.

        :raises OSError: when one is not there
        """
        self._domain = domain
        self._files = files
        self._children: domain_files.Children | None = None
        self._content: list[bytes] = []
        self._in_force: base.InForce | None = None
        self._own = [
            self._open(_shares_path(domain.path),
                       'cpu.shares' if domain.version == 1 else 'cpu.weight'),
            *self._open_limit(domain.path)]
        self._vcpus: list[domain_files.File] = []
        self._all = self._own
        self._is_watched = False

    def read(self) -> base.InForce:
        """Read the limits in force; from memory where no write was reported.

        :returns: the very same object as long as nothing changes
        :raises OSError: when the cgroup is gone
        :raises ValueError: when it is not understood
        """
        if (not self._domain.written and self._in_force is not None
                and self._is_watched):
            return self._in_force
        return self.read_anew()

    def read_anew(self) -> base.InForce:
        """Read the limits in force, whether or not a write was reported."""
        # First: a write from now on is read the next time.
        self._domain.written = False
        children = self._domain.children()
        if children is not self._children:
            self._open_vcpus(children.vcpus)
            self._children = children
            self._in_force = None
        content = [file.read(_READ_BYTES) for file in self._all]
        if self._in_force is None or content != self._content:
            # In the order of the files.
            left = iter(content)
            self._in_force = base.InForce(
                shares=int(next(left)), domain=self._limit(left),
                vcpus={number: self._limit(left)
                       for number in children.vcpus})
            self._content = content
        return self._in_force

    def _open_vcpus(self, numbers: tuple[int, ...]) -> None:
        for file in self._vcpus:
            file.close()
        self._vcpus = [
            file for number in numbers
            for file in self._open_limit(f'{self._domain.path}/vcpu{number}')]
        self._all = [*self._own, *self._vcpus]
        self._is_watched = all(
            file.is_watched for file in (self._domain.directory, *self._all))

    def _open_limit(self, path: str) -> list[domain_files.File]:
        return [self._open(path, name) for name in (
            ['cpu.max'] if self._domain.version == 2
            else ['cpu.cfs_quota_us', 'cpu.cfs_period_us'])]

    def _open(self, directory: str, name: str) -> domain_files.File:
        return domain_files.File(
            self._files, os.path.join(directory, name), inotify.IN_MODIFY)

    def _limit(self, content: Iterator[bytes]) -> base.Limit:
        if self._domain.version == 2:
            quota, period = next(content).split()
        else:
            quota, period = next(content), next(content)
        quota_us = -1 if quota == b'max' else int(quota)
        limited = 0 <= quota_us < cgroup.UNLIMITED_QUOTA_US
        return base.Limit(quota_us if limited else None, int(period))


def _shares_path(path: str) -> str:
    # NOTE: where systemd made the domain's scope, libvirt works in a child of
    # it named libvirt, but leaves the weight to systemd, on the scope itself.
    parent, name = os.path.split(path)
    return parent if name == 'libvirt' else path
