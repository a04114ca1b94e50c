#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What one reading of what servers used costs, on the host that it runs on.

Started on a host of the lab by billing_tick.py. Does in turns, and as often as
asked for:

tick
    what the driver does in each tick of the agent: which domains run, and the
    limits of each (from memory nearly always, as in the agent)
reading
    what it does in each billing interval: usages() of all, bridge_traffic(),
    host_usage(); as it is, where those who do nothing are hardly ever asked
    about their disks, and where all are asked
write
    what it does where a cap differs, here for all, with the values that are
    there

and measures the CPU time of them, its own and libvirtd's, and of their parts.
Prints JSON.
"""

import argparse
from collections.abc import Callable, Mapping
import json
import pathlib
import statistics
import sys
import time

import libvirt

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.linux import burst
from nova_vqos.hypervisor.linux import cgroup

TICK, READING, ALL_ASKED = 'tick', 'reading', 'reading, all asked'
DISKS, INTERFACES, CPU_TIME, BRIDGES, WHOLE_HOST = (
    'bulk: disks', 'bulk: interfaces', 'CPU time', 'bridges', 'whole host')
WRITE, BURSTS = 'write', 'bursts of a write'


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--libvirtd', type=int, required=True,
                        help='its process id')
    options = parser.parse_args()
    print(json.dumps(measure(options.rounds, options.libvirtd)))
    return 0


class Cost:
    """CPU time of one kind of work, a value for each time it was done."""

    def __init__(self, libvirtd: int) -> None:
        self._libvirtd = libvirtd
        self.own_us: list[float] = []
        self.libvirtd_us: list[float] = []
        self.wall_us: list[float] = []

    def measure(self, work: Callable[[], object]) -> None:
        libvirtd_us = cpu_us(self._libvirtd)
        own_ns, began_ns = time.process_time_ns(), time.monotonic_ns()
        work()
        self.wall_us.append((time.monotonic_ns() - began_ns) / 1e3)
        self.own_us.append((time.process_time_ns() - own_ns) / 1e3)
        self.libvirtd_us.append(cpu_us(self._libvirtd) - libvirtd_us)

    def medians(self) -> Mapping[str, float]:
        return {name: round(statistics.median(values), 1)
                for name, values in (
                    ('own_us', self.own_us), ('wall_us', self.wall_us),
                    ('libvirtd_us', self.libvirtd_us))}


def measure(rounds: int, libvirtd: int) -> dict:
    """Measure everything on the host that this runs on."""
    hypervisor = driver.LibvirtHypervisor()
    hypervisor.connect(lambda _event: None)
    uuids = list(hypervisor.running())

    def tick() -> None:
        hypervisor.running()
        for server in uuids:
            hypervisor.read(server)

    def reading() -> None:
        found = hypervisor.usages(uuids, {})
        if len(found) != len(uuids):
            raise AssertionError(f'only {len(found)} servers could be read')
        hypervisor.bridge_traffic()
        hypervisor.host_usage()

    def reading_with_disks() -> None:
        hypervisor._statistics._schedule.retain(())
        reading()

    connection = hypervisor._session.connected()
    records = connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_INTERFACE)
    domains = [domain for domain, _found in records]
    pids = [hypervisor._session.read_pid(domain.name()) for domain in domains]
    version = cgroup.host_version('/')

    def write() -> None:
        for server in uuids:
            hypervisor.write(server, [base.Change(
                base.Parameter.SHARES, hypervisor.read(server).shares)])

    works = {
        TICK: tick, READING: reading, ALL_ASKED: reading_with_disks,
        DISKS: lambda: hypervisor._statistics._read_disks(uuids),
        INTERFACES: lambda: connection.getAllDomainStats(
            libvirt.VIR_DOMAIN_STATS_INTERFACE,
            libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE),
        CPU_TIME: lambda: [hypervisor._statistics._read_usage(*record)
                           for record in records],
        BRIDGES: hypervisor.bridge_traffic,
        WHOLE_HOST: hypervisor.host_usage, WRITE: write,
        BURSTS: lambda: [burst.clear('/', pid, version) for pid in pids]}
    costs = {name: Cost(libvirtd) for name in works}
    # All files open, all caches warm.
    for work in works.values():
        work()
    # Those that ask about disks after the others: a QEMU that is asked many
    # times a second is not idle.
    for names in (works.keys() - {ALL_ASKED, DISKS}, {ALL_ASKED, DISKS}):
        for _ in range(rounds):
            for name in sorted(names):
                costs[name].measure(works[name])
    hypervisor.close()
    return {'rounds': rounds, 'tick_own_us': costs[TICK].own_us,
            'medians': {name: cost.medians()
                        for name, cost in costs.items()}}


def cpu_us(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    return sum(int(path.read_text().split()[0]) for path in
               pathlib.Path(f'/proc/{pid}/task').glob('*/schedstat')) / 1e3


if __name__ == '__main__':
    sys.exit(main())
