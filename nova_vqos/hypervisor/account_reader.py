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

"""The accounts of all domains of a host."""

from collections.abc import Callable, Collection
import typing as ty

from nova_vqos.hypervisor import accounting
from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import counters

_Time = ty.TypeVar('_Time')


class AccountReader:
    """Finds and reads the accounts of domains."""

    def __init__(self, root: str = '/',
                 budget: counters.Budget | None = None) -> None:
        """Prepare; nothing is opened yet.

        :param root: where /proc and /sys are looked for, for tests
        """
        self._root = root
        self._budget = budget or counters.Budget()
        self._accounts: dict[str, tuple[int, accounting.DomainAccount]] = {}

    def read(self, uuid: str, number: int, pid: Callable[[], int]
             ) -> tuple[str, accounting.CpuTime]:
        """The counters of a domain.

        :param number: that another run of it does not have
        :param pid: finds its emulator, where that is not known yet
        :returns: what names its run, and the counters
        :raises CgroupError: when they cannot be found or read
        """
        return self._read(uuid, number, pid, accounting.DomainAccount.read)

    def read_vcpus(self, uuid: str, number: int, pid: Callable[[], int]
                   ) -> tuple[str, accounting.VcpuTime]:
        """Those of its vCPUs alone, as :meth:`read`."""
        return self._read(uuid, number, pid,
                          accounting.DomainAccount.read_vcpus)

    def knows(self, uuid: str, number: int) -> bool:
        """Whether the files of a domain's run are open."""
        return self._accounts.get(uuid, (None,))[0] == number

    def tops(self) -> frozenset[str]:
        """The topmost cgroups that domains were found below."""
        return frozenset(
            account.top for _number, account in self._accounts.values())

    def keep(self, uuids: Collection[str]) -> None:
        """Forget all other domains."""
        for uuid in self._accounts.keys() - uuids:
            self.forget(uuid)

    def forget(self, uuid: str) -> None:
        """Close the files of a domain."""
        _number, account = self._accounts.pop(uuid, (0, None))
        if account is not None:
            account.close()

    def close(self) -> None:
        """Close all files."""
        self.keep(())

    def _read(self, uuid: str, number: int, pid: Callable[[], int],
              read: Callable[[accounting.DomainAccount], _Time]
              ) -> tuple[str, _Time]:
        known, account = self._accounts.get(uuid, (number, None))
        if known != number:
            self.forget(uuid)
            account = None
        if account is None:
            account = accounting.DomainAccount(
                self._root, pid(), cgroup.host_version(self._root),
                self._budget)
            self._accounts[uuid] = number, account
        try:
            return account.run, read(account)
        except cgroup.CgroupError:
            del self._accounts[uuid]
            raise
