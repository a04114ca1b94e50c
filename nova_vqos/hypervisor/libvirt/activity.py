# SPDX-License-Identifier: Apache-2.0
"""The counters of domains that show which kind of work they do.

Requests of their interfaces and disks, and how often their vCPUs wait for each
other. KVM counts the latter; libvirt 8.9 passes it on from QEMU 7.1. What is
counted differs:

* on x86 only what a Linux guest reports itself: that it yields the rest of its
  time to a vCPU that does not run, while it waits for that to answer an
  interrupt. Exits for the pause loops of spin locks, which the research
  counts, are in no counter: kvm_sched_yield() in arch/x86/kvm/x86.c counts,
  kvm_vcpu_on_spin() in virt/kvm/kvm_main.c does not;
* on arm64 each wait for an event that KVM regards as spinning;
* on s390x each time that a guest yields the rest of its time, also to another
  vCPU.

Other architectures have none.
"""

from collections.abc import Callable, Collection, Mapping
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import bulk
from nova_vqos.quantum import recognition

_GROUPS = (libvirt.VIR_DOMAIN_STATS_INTERFACE | libvirt.VIR_DOMAIN_STATS_BLOCK
           | libvirt.VIR_DOMAIN_STATS_VCPU)

# NOTE: kvm_vcpu_stats_desc of each architecture in arch/*/kvm/; for a while
# s390x had other names.
_WAITS = ('directed_yield_attempted', 'wfe_exit_stat',
          'instruction_diagnose_44', 'diagnose_44',
          'instruction_diagnose_9c', 'diagnose_9c')

# KVM has no more vCPUs in one domain.
_MOST_VCPUS = 4096

ReadRuns = Callable[[Collection[str]],
                    Mapping[str, Mapping[int, base.ThreadRun]]]


class ActivityReader:
    """Reads all domains with one call, which has a time limit."""

    def __init__(self, read_runs: ReadRuns, qemus: bulk.QemuReader) -> None:
        """
        :param read_runs: as :meth:`base.ThreadDriver.vcpu_runs`
        """
        self._read_runs = read_runs
        self._qemus = qemus

    def read(self, uuids: Collection[str]
             ) -> Mapping[str, recognition.Activity]:
        """As :meth:`base.UsageDriver.activity`."""
        # A domain that has ended meanwhile has no id.
        running = [(domain, found)
                   for domain, found in self._qemus.read(uuids, _GROUPS)
                   if domain.ID() >= 0]
        runs = self._read_runs([domain.UUIDString()
                                for domain, _found in running])

        def activity(domain: ty.Any, found: Mapping[str, ty.Any]
                     ) -> recognition.Activity:
            vcpus = runs.get(domain.UUIDString(), {})
            return recognition.Activity(
                run=domain.ID(), requests=requests(found), waits=waits(found),
                runs={number: one.runs for number, one in vcpus.items()},
                ran_ns={number: one.run_ns for number, one in vcpus.items()},
                ready_ns={number: one.run_ns + one.waited_ns
                          for number, one in vcpus.items()})
        return bulk.each(running, activity)


def requests(found: Mapping[str, ty.Any]) -> Mapping[str, int] | None:
    """Sum up packets and disk requests of a domain so far, by device.

    :param found: libvirt's statistics of the domain
    :returns: None: not known this time
    """
    disks = bulk.disks(found)
    if disks is None:
        return None
    counted = {f'interface {name}': counters.rx_packets + counters.tx_packets
               for name, counters in bulk.interfaces(found).items()}
    for name, disk in disks.items():
        counted[f'disk {name}'] = disk.read_requests + disk.write_requests
    return counted


def waits(found: Mapping[str, ty.Any]) -> Mapping[int, int]:
    """Sum up how often each vCPU was seen to wait for another so far.

    :param found: libvirt's statistics of the domain
    :returns: by number; without vCPUs that have no such counter
    """
    counted = {}
    for number in range(min(found.get('vcpu.maximum', 0), _MOST_VCPUS)):
        counts = [found[key] for name in _WAITS
                  if (key := f'vcpu.{number}.{name}.sum') in found]
        if counts:
            counted[number] = sum(counts)
    return counted
