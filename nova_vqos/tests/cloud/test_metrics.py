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

"""A Prometheus on the controller watches both hosts of the cloud."""

import contextlib
import os

import pytest

from nova_vqos import guest
from nova_vqos.host_report import TRAIT_DD_BILLING
from nova_vqos.tests import dashboards
from nova_vqos.tests import monitoring
from nova_vqos.tests.host import test_pools
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import paths
from nova_vqos_lab import process

LIMIT_S = 180
UNITS = 40
TRAITS = {TRAIT_DD_BILLING, 'CUSTOM_VQOS_QUANTUM_CACHE'}
FLAVOR = {f'resources:{clouds.UNITS}': str(UNITS),
          'vqos:dd_billing': 'charge', 'vqos:quantum_class': 'cache'}

pytestmark = pytest.mark.timeout(900)


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
            test_pools.store_proof(host)
            ending.callback(os.unlink,
                            host.path('run/nova-vqos/quantum.json'))
        image = cloud.make_image(
            'watched', guest.find_kernel(), clouds.initramfs(),
            guest.command_line(
                events={'sysbench': lab.benchmark().round_events}))
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
    if why := monitoring.missing():
        if os.environ.get('CI') == 'true':
            pytest.fail(why)
        pytest.skip(why)
    assert lab.is_deployed, told.checks[-1]
    with lab.cloud() as cloud, contextlib.ExitStack() as ending:
        yield Watched(lab, cloud, ending)


@pytest.mark.parametrize('host', ['fast', 'slow'])
@pytest.mark.parametrize('dashboard', dashboards.DASHBOARDS)
def test_every_panel_shows_something(watched, dashboard, host):
    lacking = None

    def complete():
        nonlocal lacking
        lacking = watched.prometheus.without_data(
            dashboard, host=watched.targets[host],
            server=watched.servers[host].uuid)
        return not lacking
    with contextlib.suppress(process.LabError):
        process.wait_until(complete, LIMIT_S, f'all panels of {dashboard}',
                           interval_s=1)
    assert lacking == []


def test_names_are_those_of_the_cloud(watched):
    """The project is the administrator's, the flavor the one of the API."""
    found = {one['metric']['server_uuid']: one['metric']
             for one in watched.prometheus.query('nova_vqos_server_info')}
    for name, server in watched.servers.items():
        labels = found[server.uuid]
        assert labels['flavor'] == 'watched'
        assert labels['project_id']
        assert labels['instance'] == watched.targets[name]


def test_every_rule_can_be_evaluated(watched):
    for rule in watched.prometheus.rules():
        assert rule['health'] == 'ok', rule


def test_what_is_promised_is_delivered_on_both_hosts(watched):
    """By the agents' own figures: a unit is the same on either."""
    def delivered():
        found = watched.prometheus.query(
            'rate(nova_vqos_server_vcpu_cpu_unit_seconds_total[1m]) / '
            'nova_vqos_server_entitled_cpu_units > 0.9 < 1.1')
        return {one['metric']['server_uuid'] for one in found} >= {
            server.uuid for server in watched.servers.values()}
    process.wait_until(delivered, LIMIT_S, 'what was promised',
                       interval_s=1)
