# SPDX-License-Identifier: Apache-2.0
"""A Prometheus on the controller watches both hosts of the cloud.

Panels and rules are tested at the level host.
"""

import contextlib
import os

import pytest

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos.host_stats import TRAIT_DD_BILLING
from nova_vqos.tests.fixtures import monitoring
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import paths
from nova_vqos_lab import process

LIMIT_S = 180
UNITS = 40
TRAITS = {TRAIT_DD_BILLING, 'CUSTOM_VQOS_QUANTUM_CACHE'}
FLAVOR = {f'resources:{policy.RESOURCE_CLASS}': str(UNITS),
          'vqos:dd_billing': 'charge', 'vqos:quantum_class': 'cache'}

pytestmark = pytest.mark.timeout(900, func_only=True)


class Watched:
    """A server on each host, and who watches them.

    :ivar servers: by host
    :ivar targets: what Prometheus calls the agents, by host
    """

    def __init__(self, lab, cloud, ending):
        self.targets = {name: f'{host.address}:{monitoring.PORT}'
                        for name, host in lab.hosts.items()}
        for host in lab.hosts.values():
            monitoring.store_verification(host)
            agents.store_proof(host)
            ending.callback(os.unlink, host.path(
                'run/nova-vqos-probe/quantum.json'))
        image = cloud.make_image(
            'watched', guest.find_kernel(), clouds.initramfs(),
            guest.command_line(
                events={'sysbench': lab.profiles.benchmark().round_events}))
        cloud.make_flavor('watched', FLAVOR)
        for name in lab.hosts:
            process.wait_until(
                lambda name=name: set(cloud.traits(name)) >= TRAITS,
                LIMIT_S, f'what host {name} offers', interval_s=1)
        self.servers = {}
        for name in lab.hosts:
            server = cloud.boot(f'watched-{name}', 'watched', image, name)
            ending.callback(server.delete)
            self.servers[name] = server
        for server in self.servers.values():
            server.wait_active()
        self.prometheus = ending.enter_context(monitoring.Prometheus(
            f'{paths.RUN}/prometheus', lab.network.controller,
            self.targets.values()))


@pytest.fixture(scope='module')
def watched(lab, told):
    requirement.need(monitoring.missing())
    assert lab.is_deployed, told.checks[-1]
    with lab.cloud() as cloud, contextlib.ExitStack() as ending:
        yield Watched(lab, cloud, ending)


@pytest.mark.rotation
def test_names_are_those_of_the_cloud(watched):
    """The project is the administrator's, the flavor the one of the API."""
    def labels_by_uuid():
        return {one['metric']['server_uuid']: one['metric']
                for one in watched.prometheus.query('nova_vqos_server_info')}
    # Prometheus may have read the agents before they knew the servers.
    process.wait_until(
        lambda: labels_by_uuid().keys() >= {
            server.uuid for server in watched.servers.values()},
        LIMIT_S, 'both servers in Prometheus', interval_s=1)
    found = labels_by_uuid()
    for name, server in watched.servers.items():
        labels = found[server.uuid]
        assert labels['flavor'] == 'watched'
        assert labels['project_id']
        assert labels['instance'] == watched.targets[name]


@pytest.mark.measured
def test_what_is_promised_is_delivered_on_both_hosts(watched):
    """By the agents' own figures: a unit is the same on either."""
    def delivered():
        found = watched.prometheus.query(
            'rate(nova_vqos_server_vcpu_cpu_unit_seconds_total[1m]) / '
            'nova_vqos_server_entitled_cpu_units > 0.9 < 1.1')
        return {one['metric']['server_uuid'] for one in found} >= {
            server.uuid for server in watched.servers.values()}
    process.wait_until(delivered, LIMIT_S, 'what was promised', interval_s=1)
