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

"""What one sampling of all servers costs, on the host that it runs on.

Started on a host of the lab by sampling.py. Does in turns, and as often as
asked for:

tick
    what the driver does in each tick of the agent: which domains run, and the
    limits of each (from memory nearly always, as in the agent)
sampling
    what the agent does each ``[vqos_agent] sample_interval_s``: the CPU time
    of the vCPUs of all, from files that are open
sampling, new
    the same of domains that nobody has read before
billing
    all CPU time of all, as in a billing interval, by way of comparison; bulk
    calls of libvirt are not in it
telling
    the answer to list_servers, as JSON

and tells its own CPU time. Prints JSON.
"""

import argparse
import functools
import json
import statistics
import sys
import time

from nova_vqos import profile as profiles
from nova_vqos import tuning
from nova_vqos.agent import decision
from nova_vqos.agent import server as servers
from nova_vqos.agent import snapshot
from nova_vqos.hypervisor import libvirt as driver

TICK, SAMPLING, NEW, BILLING, TELLING = (
    'tick', 'sampling', 'sampling, new', 'billing', 'telling')


class Host:
    """The host that this runs on, and its servers."""

    def __init__(self) -> None:
        self.hypervisor = driver.LibvirtHypervisor()
        self.hypervisor.connect(lambda _event: None)
        self._run_ids = self.hypervisor.running()
        self._terms = decision.HostTerms(
            profiles.load(profiles.DEFAULT_PATH),
            self.hypervisor.cgroup_version, tuning.DEFAULT_PERIODS)
        self._servers = [servers.Server(uuid, run_id)
                         for uuid, run_id in self._run_ids.items()]
        for server in self._servers:
            server.take_description(
                self.hypervisor.describe(server.uuid), time.monotonic())

    def tick(self) -> None:
        self.hypervisor.running()
        for server in self._servers:
            self.hypervisor.read(server.uuid)

    def sample(self) -> None:
        found = self.hypervisor.vcpu_times(self._run_ids)
        if len(found) != len(self._run_ids):
            raise AssertionError(f'only {len(found)} servers could be read')
        for server in self._servers:
            server.take_sample(found[server.uuid])

    def sample_new(self) -> None:
        self.hypervisor._usages.close()
        self.sample()

    def bill(self) -> None:
        usages = self.hypervisor._usages
        for uuid, run_id in self._run_ids.items():
            usages._accounts.read(uuid, run_id, functools.partial(
                usages._find_pid, uuid))

    def tell(self) -> str:
        return json.dumps(snapshot.of_servers(
            self._servers, snapshot.Moment(self._terms, time.monotonic())))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--rounds', type=int, default=30)
    options = parser.parse_args()
    host = Host()
    works = {TICK: host.tick, SAMPLING: host.sample, NEW: host.sample_new,
             BILLING: host.bill, TELLING: host.tell}
    used_us: dict[str, list[float]] = {name: [] for name in works}
    # All files open, all caches warm.
    for work in works.values():
        work()
    for _ in range(options.rounds):
        for name, work in works.items():
            began_ns = time.process_time_ns()
            work()
            used_us[name].append((time.process_time_ns() - began_ns) / 1e3)
    host.hypervisor.close()
    print(json.dumps({
        'rounds': options.rounds, 'bytes': len(host.tell()),
        'medians_us': {name: round(statistics.median(found), 1)
                       for name, found in used_us.items()}}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
