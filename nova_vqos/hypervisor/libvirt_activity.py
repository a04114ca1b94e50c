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

"""What libvirt's domains do, as far as it tells what kind of work that is.

Requests of their interfaces and disks, and how often their vCPUs wait for each
other. Of the latter KVM keeps counters, which libvirt 8.9 passes on from
QEMU 7.1. What they count differs:

* on x86 only what a Linux guest tells of itself: that it gives up the rest of
  its time for a vCPU that does not run, while it waits for that to answer an
  interrupt. Exits for the pause loops of spin locks, which the research
  counts, are in no counter: kvm_sched_yield() in arch/x86/kvm/x86.c counts,
  kvm_vcpu_on_spin() in virt/kvm/kvm_main.c does not;
* on arm64 each wait for an event that KVM takes for spinning;
* on s390x each time that a guest gives up the rest of its time, or gives it to
  another vCPU.

Other architectures have none.
"""

from collections.abc import Callable, Collection, Mapping
import logging
import threading
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import iostats
from nova_vqos.hypervisor import libvirt_session
from nova_vqos.hypervisor import schedstat
from nova_vqos.quantum import activity

LOG = logging.getLogger(__name__)

_GROUPS = (libvirt.VIR_DOMAIN_STATS_INTERFACE | libvirt.VIR_DOMAIN_STATS_BLOCK
           | libvirt.VIR_DOMAIN_STATS_VCPU)
# Without it a domain with a job, such as a migration, holds up all others.
_NOWAIT = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT

# NOTE: kvm_vcpu_stats_desc of each architecture in arch/*/kvm/; those of s390x
# were called otherwise for a while.
_WAITS = ('directed_yield_attempted', 'wfe_exit_stat',
          'instruction_diagnose_44', 'diagnose_44',
          'instruction_diagnose_9c', 'diagnose_9c')

# KVM has no more vCPUs in one domain.
_MOST_VCPUS = 4096


ReadRuns = Callable[[Collection[str]],
                    Mapping[str, Mapping[int, schedstat.ThreadRun]]]


class ActivityReader:
    """Asks for all domains at once, and never waits for one for long."""

    def __init__(self, session: libvirt_session.Session,
                 read_runs: ReadRuns) -> None:
        """
        :param read_runs: as :meth:`base.Hypervisor.runs`
        """
        self._session = session
        self._read_runs = read_runs
        self._bulk = iostats.BulkReader()
        self._lock = threading.Lock()
        # Of one connection: by UUID.
        self._connection: ty.Any = None
        self._domains: dict[str, ty.Any] = {}

    def read(self, uuids: Collection[str]) -> Mapping[str, activity.Activity]:
        """As :meth:`base.Hypervisor.activity`."""
        domains = self._look_up(uuids)
        if not domains:
            return {}
        try:
            records = self._bulk.read(lambda: self._session.call(
                self._session.connected().domainListGetStats, domains,
                _GROUPS, _NOWAIT))
        except base.Unavailable:
            raise
        except base.HypervisorError as error:
            raise base.Unavailable(
                f'libvirt gives no statistics: {error}') from error
        # Of one that has ended meanwhile there is no id.
        running = {domain.UUIDString(): (domain.ID(), found)
                   for domain, found in records if domain.ID() >= 0}
        runs = self._read_runs(running)
        return {uuid: activity.Activity(
            run=run, requests=requests(found), waits=waits(found),
            runs={number: counted.runs
                  for number, counted in runs.get(uuid, {}).items()})
            for uuid, (run, found) in running.items()}

    def _look_up(self, uuids: Collection[str]) -> list[ty.Any]:
        """libvirt's domains, each looked up once in each connection."""
        with self._lock:
            connection = self._session.connected()
            if connection is not self._connection:
                self._connection, self._domains = connection, {}
            for uuid in self._domains.keys() - set(uuids):
                del self._domains[uuid]
            for uuid in set(uuids) - self._domains.keys():
                try:
                    self._domains[uuid] = self._session.lookup(uuid)
                except base.Unavailable:
                    raise
                except base.HypervisorError as error:
                    LOG.debug('What domain %s does is not known: %s', uuid,
                              error)
            return list(self._domains.values())


def requests(found: Mapping[str, ty.Any]) -> Mapping[str, int] | None:
    """Packets and disk requests of a domain so far, by device.

    :param found: libvirt's statistics of the domain
    :returns: None: not known this time
    """
    disks = iostats.disks(found)
    if disks is None:
        return None
    counted = {f'interface {name}': counters.rx_packets + counters.tx_packets
               for name, counters in iostats.interfaces(found).items()}
    for name, disk in disks.items():
        counted[f'disk {name}'] = disk.read_requests + disk.write_requests
    return counted


def waits(found: Mapping[str, ty.Any]) -> Mapping[int, int]:
    """How often each vCPU was seen to wait for another so far.

    :param found: libvirt's statistics of the domain
    :returns: by number; without those of which nothing is counted
    """
    counted = {}
    for number in range(min(found.get('vcpu.maximum', 0), _MOST_VCPUS)):
        counts = [found[key] for name in _WAITS
                  if (key := f'vcpu.{number}.{name}.sum') in found]
        if counts:
            counted[number] = sum(counts)
    return counted
