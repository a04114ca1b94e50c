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

"""A host and its servers, as get_host and list_servers tell of them."""

import copy

import prometheus_client
from prometheus_client import parser

from nova_vqos import verification
from nova_vqos.metrics import collector

PROFILE = '2026-11-22-compute-1'
UUID = '7c1e8f0a-5d0b-4b53-9d0e-3a7f7c9e2b11'
PROJECT = 'a2f0c1d4e5b64798a1c2d3e4f5061728'
COMPONENTS = ('vcpu', 'emulator', 'iothread', 'vhost', 'net_rx', 'net_tx',
              'disk')

_VCPU = {'kind': 'cache', 'slice_us': 90_000, 'obtainable_us': 30_000,
         'mean_run_us': 20_000.0, 'waited_s': 2.5, 'pcpus': None}
_HOST = {
    'host': 'compute-1', 'version': '1.0', 'connected': True,
    'alarms': ['one', 'another'], 'dd_billing': ['off', 'account', 'charge'],
    'pushed_generation': 1_795_350_000_000_000,
    'last_tick_ms': 2.5, 'ticks': 10, 'writes': 3, 'pins': 1, 'restored': 2,
    'policy_errors': 4, 'errors': 5, 'bills': 6, 'domains': 3,
    'servers': [UUID], 'wrong': [],
    'units': {'capacity_cu': 400.5, 'reserved_cu': 20,
              'allocation_ratio': 1.5, 'used_cu': 60, 'slowest_cu': 99.5,
              'fastest_cu': 101.0},
    'problem': '',
    'profile': {'id': PROFILE, 'reference': 'compute-0', 'age_s': 60.0,
                'measured_at': '2026-11-22T10:00:00+00:00'},
    'capacity': {'total_cu': 100.0, 'servers_cu': 60.0, 'modelled_cu': 20.0,
                 'own_cu': 15.0, 'unattributed_cu': 5.0, 'unpaid_cu': 1.0,
                 'suggested_reserved_cu': 21, 'minutes_seen': 3},
    'quantum_classes': ['default', 'neutral', 'cache', 'auto'],
    'quantum': {'pools': {'cache': [2, 3]}, 'slices_written': 7,
                'servers_placed': 8},
}
_SERVER = {
    'server_uuid': UUID, 'name': 'instance-1', 'project_id': PROJECT,
    'origin': 'booted', 'flavor': 'm1',
    'policy': {'vcpus': 2, 'units': 60, 'cap': 'hard',
               'quantum_class': 'cache', 'dd_billing': 'charge'},
    'entitled_cu': 60, 'quantum_class': 'cache', 'dd_billing': 'charge',
    'right': True, 'problem': '', 'coefficient': 0.5, 'vcpu_s': 100.0,
    'throttled_s': 7.0, 'rates': None,
    'bill': {'used_here_cu_s': {name: float(at) for at, name in enumerate(
        COMPONENTS)}, 'debt_cu_s': 1.0, 'written_off_here_cu_s': 2.0,
        'overdrawn': False, 'limit_cu': 55.5},
    'quantum': {'class': 'cache', 'problem': '',
                'vcpus': {'0': dict(_VCPU), '1': dict(_VCPU)}},
    'last_recap': {'at': '2026-11-22T11:00:00+00:00', 'reason': 'migrated',
                   'wrong_ms': 12.0},
}


def make_host(**fields):
    """:returns: what get_host answers, of which nothing is unknown."""
    return {**copy.deepcopy(_HOST), **fields}


def make_server(**fields):
    """:returns: what list_servers tells of one, nothing is unknown."""
    return {**copy.deepcopy(_SERVER), **fields}


def store_verification(path, verdict='ok', drift='-1.5%'):
    verification.store(str(path), PROFILE, verdict, [
        {'pcpus': '0-3', 'drift': drift, 'verdict': verdict}])


class Agent:
    """An agent that answers what a test wants it to.

    :ivar host: what it tells of its host
    :ivar servers: of which it tells
    :ivar answers: whether it does
    """

    def __init__(self, directory):
        self.host = make_host()
        self.servers = [make_server()]
        self.answers = True
        self.registry = prometheus_client.CollectorRegistry()
        self.path = directory / 'verification.json'
        self.registry.register(collector.AgentCollector(
            self._snapshot, 'compute-1', str(self.path)))

    def _snapshot(self):
        return collector.Snapshot(
            self.host, {'servers': self.servers}) if self.answers else None

    def text(self):
        return prometheus_client.generate_latest(self.registry).decode()

    def scrape(self):
        """:returns: values by name and by what the labels are."""
        return parse(self.text())


def parse(text):
    """:returns: values by name and by labels, as pairs sorted by name."""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples}


def values(found, name, **labels):
    """:returns: of a metric, those that have these labels."""
    return [value for (one, pairs), value in found.items()
            if one == name and labels.items() <= dict(pairs).items()]
