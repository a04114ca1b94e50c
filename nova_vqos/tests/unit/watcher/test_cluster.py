# SPDX-License-Identifier: Apache-2.0
"""What Placement's answers make of hosts and servers."""

from nova_vqos import policy
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import demand
from nova_vqos.cmd.manage import placement
from nova_vqos.watcher import balance
from nova_vqos.watcher import cluster

CLASS = policy.RESOURCE_CLASS


def provider(total, used, reserved=0, ratio=1.0):
    amounts = {'min_unit': 1, 'max_unit': 2**31 - 1, 'step_size': 1}
    return demand.Provider(
        {CLASS: {'total': total, 'reserved': reserved,
                 'allocation_ratio': ratio, **amounts},
         'MEMORY_MB': {'total': 4096, 'reserved': 512,
                       'allocation_ratio': 1.5, **amounts}},
        {CLASS: used, 'MEMORY_MB': 2048}, frozenset())


class Placement:
    """Two hosts; that of the third has no units, the fourth's are closed."""

    def __init__(self):
        self._providers = {
            'p1': provider(400, 180, reserved=50, ratio=1.1),
            'p2': provider(400, 60),
            'p3': demand.Provider({}, {}, frozenset()),
            'p4': provider(400, 60, reserved=400)}
        self._held = {
            'p1': {'one': {CLASS: 60, 'MEMORY_MB': 1024},
                   'two': {CLASS: 60, 'MEMORY_MB': 512},
                   'migration': {CLASS: 60, 'MEMORY_MB': 512}},
            'p2': {'arriving': {CLASS: 60, 'MEMORY_MB': 512}},
            'p3': {'stock': {'MEMORY_MB': 512}},
            'p4': {'closed': {CLASS: 60, 'MEMORY_MB': 512}}}

    def providers(self, uuids):
        return {uuid: self._providers[uuid] for uuid in uuids}

    def holdings(self, uuids):
        return [(uuid, placement.Holdings(None, self._held[uuid]))
                for uuid in uuids]


def test_hosts_and_servers():
    computes = [cloud.Compute(f'h{number}', f'p{number}', False, ())
                for number in range(1, 5)]
    known = Placement()
    found = cluster.read(known, computes, {
        'one': ('h1', True), 'two': ('h1', False), 'arriving': ('h1', True),
        'stock': ('h3', True), 'closed': ('h4', True)})
    assert found.hosts == (
        balance.Host('h1', 385, 180, 5376, 2048),
        balance.Host('h2', 400, 60, 5376, 2048))
    assert found.servers == (
        balance.Server('one', 'h1', 60, 1024),
        balance.Server('two', 'h1', 60, 512, may_move=False))
    assert found.providers == known.providers(
        [one.provider for one in computes])
