# SPDX-License-Identifier: Apache-2.0
"""The CPU limits of running domains, straight from cgroupfs.

libvirt offers no bulk call for quotas, and one call per domain and tick would
cost its daemon a quarter of a core for 200 domains. So the files are kept
open, and read again after a write to them, and when asked to; where the kernel
does not report writes, each time.

Only reads: the driver writes through libvirt, which keeps the values for the
domain's XML and its hotplugged vCPUs.

The kernel reports each write. The files are read in turn all the same, in case
a report is lost: quotas at each turn, periods and weights less often.
"""

from collections.abc import Iterator
import os

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import inotify

_READ_BYTES = 64
# Of readings without a write, how many read quotas alone, between two of all.
_QUOTA_READINGS = 5


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
        self._in_force: base.InForce | None = None
        # Of the domain, and behind it of each vCPU: its quota, and apart the
        # rest, first of all the weight.
        self._quotas: list[domain_files.File] = []
        self._rest: list[domain_files.File] = [self._open(
            _shares_path(domain.path),
            'cpu.shares' if domain.version == 1 else 'cpu.weight')]
        self._open_limit(domain.path)
        self._own = len(self._quotas), len(self._rest)
        self._quotas_content: list[bytes] = []
        self._rest_content: list[bytes] = []
        self._is_watched = False
        # How many more readings are of quotas alone.
        self._quota_readings = 0

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
        """Read the limits in force, whether or not a write was reported.

        Without a report, where the kernel makes reports, it reads periods
        and the weight in one of six calls.
        """
        written = self._domain.written
        # Before the files: a write from now on is read the next time. Only
        # where it was set: another thread may have set it since.
        if written:
            self._domain.written = False
        children = self._domain.children()
        if children is not self._children:
            self._open_vcpus(children.vcpus)
            self._children = children
            self._in_force = None
        quotas = [file.read(_READ_BYTES) for file in self._quotas]
        rest = self._rest_content
        if (written or not self._is_watched or self._in_force is None
                or self._quota_readings <= 0):
            rest = [file.read(_READ_BYTES) for file in self._rest]
            self._quota_readings = _QUOTA_READINGS
        else:
            self._quota_readings -= 1
        if (self._in_force is None or quotas != self._quotas_content
                or rest != self._rest_content):
            self._in_force = self._parse(iter(quotas), iter(rest),
                                         children.vcpus)
            self._quotas_content, self._rest_content = quotas, rest
        return self._in_force

    def _parse(self, quotas: Iterator[bytes], rest: Iterator[bytes],
               numbers: tuple[int, ...]) -> base.InForce:
        """
        :param numbers: of the vCPUs
        """
        return base.InForce(
            shares=int(next(rest)), domain=self._limit(quotas, rest),
            vcpus={number: self._limit(quotas, rest) for number in numbers})

    def _open_vcpus(self, numbers: tuple[int, ...]) -> None:
        for files, own in zip((self._quotas, self._rest), self._own,
                              strict=True):
            for file in files[own:]:
                file.close()
            del files[own:]
        for number in numbers:
            self._open_limit(f'{self._domain.path}/vcpu{number}')
        self._is_watched = all(file.is_watched for file in (
            self._domain.directory, *self._quotas, *self._rest))

    def _open_limit(self, path: str) -> None:
        if self._domain.version == 2:
            self._quotas.append(self._open(path, 'cpu.max'))
        else:
            self._quotas.append(self._open(path, 'cpu.cfs_quota_us'))
            self._rest.append(self._open(path, 'cpu.cfs_period_us'))

    def _open(self, directory: str, name: str) -> domain_files.File:
        return domain_files.File(
            self._files, os.path.join(directory, name), inotify.IN_MODIFY)

    def _limit(self, quotas: Iterator[bytes], rest: Iterator[bytes]
               ) -> base.Limit:
        if self._domain.version == 2:
            quota, period = next(quotas).split()
        else:
            quota, period = next(quotas), next(rest)
        quota_us = -1 if quota == b'max' else int(quota)
        limited = 0 <= quota_us < cgroup.UNLIMITED_QUOTA_US
        return base.Limit(quota_us if limited else None, int(period))


def _shares_path(path: str) -> str:
    # NOTE: where systemd made the domain's scope, libvirt works in a child of
    # it named libvirt, but leaves the weight to systemd, on the scope itself.
    parent, name = os.path.split(path)
    return parent if name == 'libvirt' else path
