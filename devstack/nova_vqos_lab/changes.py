# SPDX-License-Identifier: Apache-2.0
"""What happens to a cloud, or is set on it, for a while."""

from collections.abc import Iterator
import contextlib
import os

from nova_vqos import host_stats
from nova_vqos_lab import cgroups
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import node
from nova_vqos_lab import openstack
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import services

_HOST_LIMIT_S = 120
# The rest is for what a cloud and its hosts do beside servers: all of the lab
# is on these pCPUs.
_GUARANTEED_SHARE = 0.75


@contextlib.contextmanager
def guaranteeing(lab: clouds.Lab, name: str) -> Iterator[None]:
    """Let a host reserve CPU time for servers meanwhile.

    :raises process.LabError: when a step fails
    """
    usual = lab.hosts[name].pcpus
    try:
        guarantee(lab, name)
        yield
    finally:
        lab.profiles.give_pcpus(name, usual)
        openstack.together(lambda: lab.restart_scheduler('refuse'),
                           lab.nodes[name].restart)
        lab.wait_for_units()


def guarantee(lab: clouds.Lab, name: str) -> None:
    """Let a host reserve CPU time for servers.

    The kernel does that only for threads that may run on all pCPUs. So the
    host has all of the machine's, which are equal; another one is to do
    nothing. Its services weigh as much as its guests, as on a stock host,
    and it takes servers without units, too.

    :raises process.LabError: when a step fails
    """
    host = lab.hosts[name]
    lab.profiles.give_pcpus(name, os.sched_getaffinity(0))
    openstack.together(
        lambda: lab.restart_scheduler('allow'),
        lambda: lab.nodes[name].restart({'vqos_agent': {
            'guarantees_speed': 'true',
            'guaranteed_share': str(_GUARANTEED_SHARE)},
            'vqos': {'allocation_ratio': '1.0'}}, 1.0))
    lab.wait_for_units({name: 1.0})
    cgroups.weigh_equally(host.hierarchy, host.cgroup)
    with lab.cloud() as cloud:
        process.wait_until(
            lambda: host_stats.TRAIT_GUARANTEE in cloud.traits(name),
            _HOST_LIMIT_S, f'the guarantee of host {name}', interval_s=0.5,
            log=f'{paths.LOGS}/{node.AGENT}-{name}.log')


@contextlib.contextmanager
def quotas_of_keystone(lab: clouds.Lab) -> Iterator[None]:
    """Let Nova take its quotas from Keystone's unified limits meanwhile.

    :raises process.LabError: when a service does not start
    """
    try:
        _restart_quota_services(lab, config.unified_limits())
        yield
    finally:
        _restart_quota_services(lab, {})


def _restart_quota_services(lab: clouds.Lab, more: config.Settings) -> None:
    with lab.controller_network():
        for name, daemon, start in (
                ('nova-api', services.APIS['nova'],
                 lambda: services.start_api('nova')),
                ('nova-conductor', services.CONDUCTOR,
                 services.start_conductor)):
            config.write_ini(
                f'{paths.etc(name)}/nova.conf',
                config.merge(config.nova_controller(name), more))
            daemon.stop()
            start()


@contextlib.contextmanager
def lost(lab: clouds.Lab, name: str, cloud: client.Cloud) -> Iterator[None]:
    """Let a host have lost its power meanwhile, and Nova know that.

    Its guests and nova-compute are killed. Its agent is not: it sees that.

    :raises process.LabError: when it does not come back
    """
    path = cloud.compute_service(name)
    compute = lab.nodes[name].process_of(node.COMPUTE)
    if compute:
        compute.kill()
    lab.nodes[name].destroy_guests()
    try:
        cloud.compute('PUT', path, {'forced_down': True})
        yield
    finally:
        lab.nodes[name].start_compute()
        # Nova does not want to before it has seen what was evacuated.
        process.wait_until(
            lambda: cloud.compute(
                'PUT', path, {'forced_down': False}).status == 200,
            _HOST_LIMIT_S, f'nova-compute of host {name}', interval_s=0.5,
            log=f'{paths.LOGS}/{node.COMPUTE}-{name}.log')
