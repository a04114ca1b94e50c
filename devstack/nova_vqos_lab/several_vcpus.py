# SPDX-License-Identifier: Apache-2.0
"""The chapter of the story about servers with several vCPUs.

A server's units are divided among its vCPUs evenly, and each has a cap of its
own: two vCPUs of a server of 60 CU are half as fast as the vCPU of a server
that has one. Nova takes no server with more vCPUs than a host has pCPUs, so
the second server has as many as that, and at most three. All vCPUs spin,
before and after the servers change places, and the CPU time of each is
compared with its cap.
"""

import os
import time

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import cgroups
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import host as hosts
from nova_vqos_lab import process
from nova_vqos_lab import results
from nova_vqos_lab import verdict
from nova_vqos_lab import visits

_MACHINE_PCPUS = len(os.sched_getaffinity(0))
#: Of each server, vCPUs and CPU units.
SERVERS = {'pair': (2, 60), 'wide': (min(3, _MACHINE_PCPUS), 90)}
#: The most vCPUs that one has.
MOST_VCPUS = max(vcpus for vcpus, _ in SERVERS.values())
#: The name of every check that is made.
CHECKS = tuple(
    f'{what}-of-{name}-on-{host}' for name in SERVERS
    for host in ('fast', 'slow') for what in ('caps', 'cpu-times'))

_FIRST_WORK_LIMIT_S = 120
_LENGTH_S = 10
_AT_ONCE_NS = 2 * 10**7


def run(lab: clouds.Lab, cloud: client.Cloud, image: str,
        found: results.Results) -> None:
    """Boot servers with several vCPUs, and let them change places.

    :param image: whose guests spin on all vCPUs
    :param found: where checks are noted
    """
    servers = {}
    for (name, (vcpus, cu)), host in zip(SERVERS.items(), lab.hosts,
                                         strict=True):
        cloud.make_flavor(name, {policy.UNITS_KEY: str(cu)}, vcpus=vcpus)
        servers[name] = cloud.boot(name, name, image, host)
    for server in servers.values():
        server.wait_active()
        # Its spinners began before.
        process.wait_until(
            lambda server=server: guest.rounds(server.console().splitlines()),
            _FIRST_WORK_LIMIT_S, f'the first work of {server.name}',
            interval_s=0.5)
    _measure(lab, servers, found)
    # Slow has no room for both.
    for server in sorted(servers.values(), key=lambda one: one.host,
                         reverse=True):
        server.migrate('fast' if server.host == 'slow' else 'slow')
    _measure(lab, servers, found)
    client.delete_all(servers.values())


def _measure(lab: clouds.Lab, servers: dict[str, client.Server],
             found: results.Results) -> None:
    """Compare the CPU time of each vCPU with its cap, all at once."""
    on = {name: lab.hosts[server.host] for name, server in servers.items()}
    domains = {name: server.domain for name, server in servers.items()}

    def used_ns() -> dict[str, list[int]]:
        return {name: [_used_ns(on[name], domains[name], vcpu)
                       for vcpu in range(SERVERS[name][0])]
                for name in servers}

    def used_at_once() -> tuple[dict[str, list[int]], int]:
        """:returns: with the time, and once more where that took long"""
        for _ in range(20):
            began_ns, found = time.monotonic_ns(), used_ns()
            if time.monotonic_ns() - began_ns < _AT_ONCE_NS:
                break
        return found, began_ns

    before, began_ns = used_at_once()
    # The length of the measurement.
    time.sleep(_LENGTH_S)
    after, ended_ns = used_at_once()
    wall_ns = ended_ns - began_ns
    for name, host in on.items():
        vcpus, cu = SERVERS[name]
        caps = [host.vcpu_cap(domains[name], vcpu) for vcpu in range(vcpus)]
        quota_us, period_us = lab.profiles.cap(host.name, cu, vcpus)
        found.check(
            f'caps-of-{name}-on-{host.name}',
            caps == [(quota_us, period_us)] * vcpus,
            f'{", ".join(map(str, caps))} us in the cgroups, each '
            f'{quota_us}, {period_us} us by the profile')
        errors = [(end - start) / wall_ns * period_us / quota_us - 1
                  for start, end in zip(before[name], after[name],
                                        strict=True)]
        found.check(
            f'cpu-times-of-{name}-on-{host.name}', verdict.of_all(*(
                verdict.of_cpu_time(error, visits.CPU_TOLERANCE,
                                    period_us / 1e6 / _LENGTH_S)
                for error in errors)),
            f'{", ".join(f"{error:+.2%}" for error in errors)} of the caps of '
            f'{vcpus} vCPUs in {_LENGTH_S} s, wanted: within '
            f'{visits.CPU_TOLERANCE:.1%}')


def _used_ns(host: hosts.Host, domain: str, vcpu: int) -> int:
    group = host.vcpu_cgroup(domain, vcpu)
    if group is None:
        raise process.LabError(f'{domain} has no vCPU {vcpu} on {host.name}')
    return cgroups.cpu_time_ns(host.hierarchy, group)
