#!/usr/bin/env python3
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

"""What one reading of what servers used costs, beside the agent's tick.

Starts a host of the lab with a libvirtd of its own and paused QEMU guests of
32 MiB, each with a tap on a bridge and a disk in a file; as many as asked for
or as the machine carries. A program on that host then reads, in turns and as
often as asked for:

tick
    what the driver does in each tick of the agent: which domains run, and the
    limits of each (from memory nearly always, as in the agent)
reading
    what it does in each billing interval: usages() of all, host_usage(); where
    all are idle, so that nobody is asked about disks but now and then, and
    where all are busy

and tells the CPU time of both, its own and libvirtd's, and how much of a
reading are libvirt's bulk calls. Removes everything afterwards. As root::

    tools/bench/billing_tick.py --guests 100 200 --rounds 30

Ratios of medians are of use, for the times are the machine's.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
import uuid

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LAB_DIRECTORY = tempfile.mkdtemp(prefix='vqos-bench-')
os.environ['NOVA_VQOS_LAB_DIR'] = _LAB_DIRECTORY
os.environ['NOVA_VQOS_LAB_PREFIX'] = 'vqostick'
sys.path.insert(0, str(_ROOT / 'devstack'))
sys.path.insert(0, str(_ROOT))

import libvirt  # noqa: E402

from nova_vqos.hypervisor import libvirt as driver  # noqa: E402
from nova_vqos_lab import host as hosts  # noqa: E402
from nova_vqos_lab import netns  # noqa: E402

SPARE_MEMORY_MIB = 2048
MEASURE_LIMIT_S = 600
BRIDGE = 'br-bench'
DIRECTORY = '/var/lib/libvirt/bench'
TICK, IDLE_READING, READING = 'tick', 'reading, idle', 'reading, busy'
DISKS, INTERFACES, CPU_TIME, WHOLE_HOST = (
    'bulk: disks', 'bulk: interfaces', 'CPU time', 'whole host')

_DOMAIN = """
<domain type='qemu'>
  <name>bench-{number}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>32</memory>
  <vcpu>{vcpus}</vcpu>
  <os><type arch='x86_64'>hvm</type></os>
  <devices>
    <interface type='bridge'>
      <source bridge='{bridge}'/>
      <target dev='tap-b{number}'/>
      <model type='virtio'/>
    </interface>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{directory}/{number}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--guests', type=int, nargs='+', default=[100, 200],
                        help='how many, each time more than before')
    parser.add_argument('--vcpus', type=int, default=2,
                        help='of each guest (default %(default)s)')
    parser.add_argument('--rounds', type=int, default=30,
                        help='of each kind (default %(default)s)')
    parser.add_argument('--start-limit-s', type=int, default=240,
                        help='start no more guests after this many seconds')
    parser.add_argument('--json', metavar='FILE')
    # Of the program on the host.
    parser.add_argument('--libvirtd', type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.libvirtd is not None:
        shutil.rmtree(_LAB_DIRECTORY)
        print(json.dumps(measure(options.rounds, options.libvirtd)))
        return 0
    if os.geteuid() != 0:
        print('namespaces and cgroups can be made by root only')
        return 2
    network = netns.Network()
    host = hosts.Host('bench', pcpus=os.sched_getaffinity(0),
                      address='198.18.0.21')
    try:
        network.create()
        host.start(peers={})
        reports = [measure_on(host, guests, options)
                   for guests in start_guests(host, options)]
    finally:
        host.remove()
        network.remove()
        shutil.rmtree(_LAB_DIRECTORY)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(reports, indent=2))
    return 0


def measure_on(host: hosts.Host, guests: int,
               options: argparse.Namespace) -> dict:
    """Have a program on the host measure; say what it found."""
    libvirtd = host.run(['pgrep', '-x', 'libvirtd']).stdout.strip()
    report = json.loads(host.run(
        [sys.executable, __file__, '--rounds', str(options.rounds),
         '--libvirtd', libvirtd], limit_s=MEASURE_LIMIT_S).stdout)
    report |= {'guests': guests, 'vcpus_per_guest': options.vcpus,
               'load': round(os.getloadavg()[0], 1)}
    print_report(report)
    return report


def start_guests(host: hosts.Host,
                 options: argparse.Namespace) -> Iterator[int]:
    """Start paused guests until there are enough, or no room for more.

    :returns: how many there are, each time that it is to be measured
    """
    host.run(['ip', 'link', 'add', BRIDGE, 'type', 'bridge'])
    host.run(['ip', 'link', 'set', BRIDGE, 'up'])
    directory = pathlib.Path(host.path(DIRECTORY.lstrip('/')))
    directory.mkdir()
    began_s = time.monotonic()
    connection = libvirt.open(host.libvirt_uri)
    try:
        for number in range(max(options.guests)):
            if number in options.guests:
                yield number
            if available_mib() < SPARE_MEMORY_MIB:
                print(f'no memory for more than {number} guests')
                yield number
                return
            if time.monotonic() - began_s > options.start_limit_s:
                print(f'{number} guests in {options.start_limit_s} s, no more')
                yield number
                return
            with (directory / str(number)).open('wb') as disk:
                disk.truncate(1024 * 1024)
            connection.createXML(
                _DOMAIN.format(number=number, uuid=uuid.uuid4(),
                               vcpus=options.vcpus, bridge=BRIDGE,
                               directory=DIRECTORY),
                libvirt.VIR_DOMAIN_START_PAUSED)
            if number % 20 == 19:
                print(f'{number + 1} guests', flush=True)
        yield max(options.guests)
    finally:
        connection.close()


def available_mib() -> float:
    for line in pathlib.Path('/proc/meminfo').read_text().splitlines():
        if line.startswith('MemAvailable:'):
            return int(line.split()[1]) / 1024
    raise ValueError('/proc/meminfo has no MemAvailable')


# On the host.

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
        found = hypervisor.usages(uuids)
        if len(found) != len(uuids):
            raise AssertionError(f'only {len(found)} servers could be read')
        hypervisor.host_usage()

    def reading_with_disks() -> None:
        hypervisor._disk_schedule.keep(())
        reading()

    connection = hypervisor._connected()
    records = connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_INTERFACE)
    domains = [domain for domain, _found in records]
    works = {
        TICK: tick, IDLE_READING: reading, READING: reading_with_disks,
        DISKS: lambda: hypervisor._read_disks(domains),
        INTERFACES: lambda: connection.getAllDomainStats(
            libvirt.VIR_DOMAIN_STATS_INTERFACE,
            libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE),
        CPU_TIME: lambda: [hypervisor._read_usage(*record)
                           for record in records],
        WHOLE_HOST: hypervisor.host_usage}
    costs = {name: Cost(libvirtd) for name in works}
    # All files open, all caches warm.
    for work in works.values():
        work()
    # Those that ask about disks after the others: a QEMU that is asked many
    # times a second is not idle.
    for names in (works.keys() - {READING, DISKS}, {READING, DISKS}):
        for _ in range(rounds):
            for name in sorted(names):
                costs[name].measure(works[name])
    hypervisor.close()
    return {'rounds': rounds,
            'medians': {name: cost.medians()
                        for name, cost in costs.items()}}


def cpu_us(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    return sum(int(path.read_text().split()[0]) for path in
               pathlib.Path(f'/proc/{pid}/task').glob('*/schedstat')) / 1e3


def print_report(report: dict) -> None:
    guests, medians = report['guests'], report['medians']
    print(f'{guests} paused guests of {report["vcpus_per_guest"]} vCPUs with '
          f'a tap and a disk each; medians of {report["rounds"]} rounds; load '
          f'average {report["load"]}')
    print(f'{"":18}{"us per guest":>26}{"of a tick":>22}{"wall":>9}')
    print(f'{"":18}{"own":>13}{"libvirtd":>13}{"own":>11}{"both":>11}'
          f'{"ms":>9}')
    tick = medians[TICK]
    for name, found in medians.items():
        both = found['own_us'] + found['libvirtd_us']
        print(f'{name:18}{found["own_us"] / guests:13.1f}'
              f'{found["libvirtd_us"] / guests:13.1f}'
              f'{found["own_us"] / tick["own_us"]:11.2f}'
              f'{both / (tick["own_us"] + tick["libvirtd_us"]):11.2f}'
              f'{found["wall_us"] / 1e3:9.1f}')
    whole, interfaces, disks = (
        medians[name]['own_us'] + medians[name]['libvirtd_us']
        for name in (READING, INTERFACES, DISKS))
    print(f'share of the bulk calls in the CPU time of a reading: '
          f'{(interfaces + disks) / whole:.2f}, of that for disks alone: '
          f'{disks / whole:.2f}')


if __name__ == '__main__':
    sys.exit(main())
