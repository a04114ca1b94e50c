#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

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
    the same of domains that were not read before
billing
    all CPU time of all, as in a billing interval, by way of comparison; bulk
    calls of libvirt are not in it
telling
    the answer to list_servers, as JSON

and measures its own CPU time. Prints JSON.
"""

import argparse
import json
import statistics
import sys
import time

from nova_vqos import primitives
from nova_vqos.agent import replies
from nova_vqos.agent import sampler
from nova_vqos.agent import server as servers
from nova_vqos.agent.billing import controller
from nova_vqos.agent.billing import disk_limits
from nova_vqos.agent.caps import state as caps
from nova_vqos.agent.guarantee import state as guarantees
from nova_vqos.agent.quantum import controller as quantum
from nova_vqos.conf import default_path
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.linux import accounting
from nova_vqos.profile import document

TICK, SAMPLING, NEW, BILLING, TELLING = (
    'tick', 'sampling', 'sampling, new', 'billing', 'telling')
AGED_S = 600
SAMPLE_INTERVAL_S = 10


class Host:
    """The host that this runs on, and its servers."""

    def __init__(self) -> None:
        self.hypervisor = driver.LibvirtHypervisor()
        self.hypervisor.connect(lambda _event: None)
        self._run_ids = self.hypervisor.running()
        self._profile = document.load(default_path.PROFILE)
        self._samples = {}
        for uuid, run_id in self._run_ids.items():
            server = servers.Server(uuid, run_id)
            server.describe(self.hypervisor.describe(uuid))
            self._samples[server] = sampler.SampleState(server)

    def age(self) -> None:
        """Have readings of ten minutes, as an agent has that ran for long."""
        found = self.hypervisor.vcpu_times(self._run_ids)
        for server, state in self._samples.items():
            last = found[server.uuid]
            for age_s in range(AGED_S, 0, -SAMPLE_INTERVAL_S):
                state.record(server, last._replace(
                    read_at_s=last.read_at_s - age_s))

    def tick(self) -> None:
        self.hypervisor.running()
        for uuid in self._run_ids:
            self.hypervisor.read(uuid)

    def sample(self) -> None:
        found = self.hypervisor.vcpu_times(self._run_ids)
        if len(found) != len(self._run_ids):
            raise AssertionError(f'only {len(found)} servers could be read')
        for server, state in self._samples.items():
            state.record(server, found[server.uuid])

    def sample_new(self) -> None:
        self.hypervisor._domains.close()
        self.sample()

    def bill(self) -> None:
        for uuid, run_id in self._run_ids.items():
            self.hypervisor._domains.use(
                uuid, accounting.Account, accounting.Account.read, run_id)

    def tell(self) -> str:
        return json.dumps(primitives.to_primitives([
            replies.of_server(replies.ServerView(
                server, caps.CapState(server), controller.BillState(server),
                disk_limits.DiskLimitState(server),
                quantum.QuantumState(server),
                guarantees.GuaranteeState(server), None, state.history,
                base.NO_CLOCKS, self._profile, time.monotonic(), set()))
            for server, state in self._samples.items()]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--rounds', type=int, default=30)
    options = parser.parse_args()
    host = Host()
    works = {TICK: host.tick, SAMPLING: host.sample, NEW: host.sample_new,
             BILLING: host.bill, TELLING: host.tell}
    used_us: dict[str, list[float]] = {name: [] for name in works}
    host.age()
    # All files open, all caches warm.
    for work in works.values():
        work()
    for _ in range(options.rounds):
        # The files of limits, which sampling new domains has closed.
        host.tick()
        for name, work in works.items():
            began_ns = time.process_time_ns()
            work()
            used_us[name].append((time.process_time_ns() - began_ns) / 1e3)
    host.hypervisor.close()
    print(json.dumps({
        'rounds': options.rounds, 'bytes': len(host.tell()),
        'tick_us': used_us[TICK],
        'medians_us': {name: round(statistics.median(found), 1)
                       for name, found in used_us.items()}}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
