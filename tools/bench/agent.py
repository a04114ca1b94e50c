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

"""What the agent costs on a host with many servers.

Starts a host of the lab with a libvirtd of its own, as many paused QEMU
guests of 32 MiB as asked for or as the machine carries, and the real agent;
then measures the CPU time and the memory of the agent, and the CPU time that
its ticks cost libvirtd. Removes everything afterwards. As root::

    tools/bench/agent.py --guests 200 --seconds 60

Fails where the aims are missed. There is no message bus: the agent tries to
reach it every so often, as on any host whose bus is down; what a broker's
heartbeats cost is not in the figures. Other load on the machine makes them
worse (caches): the load average is told.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import uuid

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LAB_DIRECTORY = tempfile.mkdtemp(prefix='vqos-bench-')
os.environ['NOVA_VQOS_LAB_DIR'] = _LAB_DIRECTORY
os.environ['NOVA_VQOS_LAB_PREFIX'] = 'vqosbench'
sys.path.insert(0, str(_ROOT / 'devstack'))
sys.path.insert(0, str(_ROOT))

import libvirt  # noqa: E402

from nova_vqos import fingerprint  # noqa: E402
from nova_vqos import policy  # noqa: E402
from nova_vqos import profile  # noqa: E402
from nova_vqos.tests import make_profiles  # noqa: E402
from nova_vqos_lab import host as hosts  # noqa: E402
from nova_vqos_lab import netns  # noqa: E402
from nova_vqos_lab import process  # noqa: E402

WANTED_GUESTS = 200
AIM_CPU_PERCENT = 0.5
AIM_MEMORY_MIB = 80
SPARE_MEMORY_MIB = 2048
SETTLE_LIMIT_S = 60

_DOMAIN = """
<domain type='qemu'>
  <name>bench-{number}</name>
  <uuid>{uuid}</uuid>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:flavor name="bench">
        <nova:vcpus>{vcpus}</nova:vcpus>
        <nova:extraSpecs>
          <nova:extraSpec name="{units_key}">{units}</nova:extraSpec>
        </nova:extraSpecs>
      </nova:flavor>
    </nova:instance>
  </metadata>
  <memory unit='MiB'>32</memory>
  <vcpu>{vcpus}</vcpu>
  <os><type arch='x86_64'>hvm</type></os>
  <devices>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--guests', type=int, default=WANTED_GUESTS)
    parser.add_argument('--vcpus', type=int, default=2,
                        help='of each guest (default %(default)s)')
    parser.add_argument('--seconds', type=int, default=60,
                        help='to measure for (default %(default)s)')
    parser.add_argument('--start-limit-s', type=int, default=240,
                        help='start no more guests after this many seconds')
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args()
    if os.geteuid() != 0:
        print('namespaces and cgroups can be made by root only')
        return 2
    network = netns.Network()
    host = hosts.Host('bench', pcpus=os.sched_getaffinity(0),
                      address='198.18.0.21')
    try:
        network.create()
        host.start(peers={})
        report = measure(host, options)
    finally:
        host.remove()
        network.remove()
        shutil.rmtree(_LAB_DIRECTORY)
    print_report(report)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=2))
    return 0 if report['aims_met'] else 1


def measure(host: hosts.Host, options: argparse.Namespace) -> dict:
    """Measure everything on a host that runs."""
    libvirtd = host.libvirtd.pid
    quiet_percent = busy_percent(options.seconds / 4, libvirtd)[0]
    agent = start_agent(host)
    wait_until_settled(agent, 'Connected to the hypervisor', 1)
    fixed_percent = busy_percent(options.seconds / 2, agent.pid)[0]
    connection = libvirt.open(host.libvirt_uri)
    try:
        guests = start_guests(connection, options)
    finally:
        connection.close()
    wait_until_settled(agent, 'before its cap was corrected', guests)
    agent_percent, libvirtd_percent = busy_percent(
        options.seconds, agent.pid, libvirtd)
    memory_mib = resident_mib(agent.pid)
    agent.stop()
    libvirtd_percent -= quiet_percent
    scale = WANTED_GUESTS / guests
    extrapolated_percent = fixed_percent + (
        agent_percent - fixed_percent) * scale
    return {
        'guests': guests,
        'vcpus_per_guest': options.vcpus,
        'seconds': options.seconds,
        'load': round(os.getloadavg()[0], 1),
        'agent_cpu_percent_alone': round(fixed_percent, 3),
        'agent_cpu_percent': round(agent_percent, 3),
        'agent_memory_mib': round(memory_mib, 1),
        'libvirtd_cpu_percent': round(libvirtd_percent, 3),
        'agent_cpu_percent_200': round(extrapolated_percent, 3),
        'libvirtd_cpu_percent_200': round(libvirtd_percent * scale, 3),
        'aims_met': (extrapolated_percent < AIM_CPU_PERCENT
                     and memory_mib < AIM_MEMORY_MIB),
    }


def start_guests(connection: libvirt.virConnect,
                 options: argparse.Namespace) -> int:
    """Start paused guests until there are enough, or no room for more."""
    began_s = time.monotonic()
    for number in range(options.guests):
        if available_mib() < SPARE_MEMORY_MIB:
            print(f'no memory for more than {number} guests')
            return number
        if time.monotonic() - began_s > options.start_limit_s:
            print(f'{number} guests in {options.start_limit_s} s, no more')
            return number
        connection.createXML(
            _DOMAIN.format(number=number, uuid=uuid.uuid4(),
                           vcpus=options.vcpus, units_key=policy.UNITS_KEY,
                           units=20 * options.vcpus),
            libvirt.VIR_DOMAIN_START_PAUSED)
        if number % 20 == 19:
            print(f'{number + 1} guests', flush=True)
    return options.guests


def start_agent(host: hosts.Host) -> process.Process:
    """Start the agent as it is on any host, with a profile made up."""
    directory = pathlib.Path(host.path('etc/nova-vqos'))
    profile.store(make_profiles.make_profile(
        host.name, make_profiles.make_class(host.pcpus, 1.0),
        fingerprint=fingerprint.of_host()), str(directory / 'profile.yaml'))
    (directory / 'nova-vqos.conf').write_text(
        '[DEFAULT]\nhost = bench\n'
        # The port discard, where nobody is: the bus is down.
        'transport_url = rabbit://nobody:nothing@127.0.0.1:9/\n')
    return host.popen(
        [sys.executable, '-m', 'nova_vqos.cmd.agent', '--config-file',
         '/etc/nova-vqos/nova-vqos.conf'],
        env={'PYTHONPATH': str(_ROOT), 'MALLOC_ARENA_MAX': '2'},
        log='agent')


def wait_until_settled(agent: process.Process, text: str,
                       times: int) -> None:
    """Wait until the agent has logged something so many times."""
    log = pathlib.Path(agent.log)
    process.wait_until(
        lambda: log.read_text().count(text) >= times, SETTLE_LIMIT_S,
        f'{times} times {text!r}', log=str(log), alive=agent.alive)
    # Nothing of what led to it is to be measured.
    time.sleep(5)


def busy_percent(seconds: float, *pids: int) -> list[float]:
    """How much of one core each process uses for a while."""
    before_us, began_s = [cpu_us(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    elapsed_s = time.monotonic() - began_s
    return [(cpu_us(pid) - before) / elapsed_s / 1e4
            for pid, before in zip(pids, before_us, strict=True)]


def cpu_us(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    return sum(int(path.read_text().split()[0]) for path in
               pathlib.Path(f'/proc/{pid}/task').glob('*/schedstat')) / 1e3


def resident_mib(pid: int) -> float:
    return _field_kib(f'/proc/{pid}/status', 'VmRSS') / 1024


def available_mib() -> float:
    return _field_kib('/proc/meminfo', 'MemAvailable') / 1024


def _field_kib(path: str, name: str) -> int:
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith(f'{name}:'):
            return int(line.split()[1])
    raise ValueError(f'{path} has no {name}')


def print_report(report: dict) -> None:
    guests = report['guests']
    print(f'{guests} paused guests of {report["vcpus_per_guest"]} vCPUs, a '
          f'tick each second, {report["seconds"]} s, load average '
          f'{report["load"]}')
    print(f'  agent     {report["agent_cpu_percent"]:.3f} % of a core '
          f'({report["agent_cpu_percent_alone"]:.3f} % without guests), '
          f'{report["agent_memory_mib"]:.1f} MiB')
    print(f'  libvirtd  {report["libvirtd_cpu_percent"]:.3f} % of a core for '
          'the ticks')
    if guests != WANTED_GUESTS:
        print(f'extrapolated from {guests} to {WANTED_GUESTS} guests: what '
              'guests cost in proportion')
        print(f'  agent     {report["agent_cpu_percent_200"]:.3f} %')
        print(f'  libvirtd  {report["libvirtd_cpu_percent_200"]:.3f} %')
    print(f'aims (agent below {AIM_CPU_PERCENT} % and {AIM_MEMORY_MIB} MiB '
          f'for {WANTED_GUESTS}): {"met" if report["aims_met"] else "missed"}')


if __name__ == '__main__':
    sys.exit(main())
