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

#!/usr/bin/env python3
"""What the weighers cost, against Nova's CPUWeigher.

That one is among the simplest, and enabled by default. All weigh the same host
states in the same process, in turns, through the scheduler's own machinery, at
its usual log level (info). Prints the median CPU time of a request for each,
the ratio of the two, the extremes of the ratio among the rounds, and what a
host costs more. Exits 1 if a ratio is above its limit.

What each case compares:

* ``no class, no units``: a flavor with nothing of ours.
* ``units``, ``class``: a flavor with one of them, or both, each weigher alone.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings

os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = '1'
warnings.simplefilter('ignore')

from nova import monkey_patch  # noqa: E402

monkey_patch.patch()

import nova.conf  # noqa: E402
from nova.scheduler import host_manager  # noqa: E402
from nova.scheduler import weights  # noqa: E402
from nova.scheduler.weights import cpu  # noqa: E402
from oslo_log import log  # noqa: E402

from nova import objects  # noqa: E402
from nova_vqos import policy  # noqa: E402
from nova_vqos.scheduler import weigher  # noqa: E402

# Of a request that asks for something of ours: reading a text of several
# numbers takes longer than subtracting two.
LIMIT = 2.5
# Of one that asks for nothing: it has to be for nothing.
IDLE_LIMIT = 1.1


def make_hosts(count):
    """Host states as the scheduler has them, each in three aggregates."""
    hosts = []
    for number in range(count):
        host = host_manager.HostState(f'compute{number}', f'node{number}',
                                      None)
        host.vcpus_total, host.vcpus_used = 64, number % 64
        host.cpu_allocation_ratio = 4.0
        host.stats = {
            'num_instances': '12', 'io_workload': '0', 'failed_builds': '0',
            'uptime': 'up 12 days', 'vqos_room_cu': str(number % 9000),
            'vqos_quantum_pools': (
                f'cache:{number % 16 + 1}:{number % 40} default:20:60 '
                f'io:{number % 7}:{number % 30} polluters:{number % 50}')}
        host.aggregates = [
            objects.Aggregate(metadata=metadata) for metadata in (
                {'availability_zone': f'zone{number % 3}'},
                {'rack': str(number // 40)}, {'speed': 'fast'})]
        hosts.append(host)
    return hosts


def make_spec(extra_specs):
    return objects.RequestSpec(
        instance_uuid='8d2b5d4f-0000-4000-8000-000000000001',
        numa_topology=None, flavor=objects.Flavor(
            id=1, flavorid='1', vcpus=2, extra_specs=extra_specs))


def measure(handler, one, hosts, spec):
    """CPU seconds that a weigher needs for one request."""
    begin = time.process_time()
    handler.get_weighed_objects([one], hosts, spec)
    return time.process_time() - begin


def compare(name, ours, hosts, extra_specs, rounds, limit):
    """One case: medians, ratio, and the extremes of the ratio."""
    handler = weights.HostWeightHandler()
    stock = cpu.CPUWeigher()
    spec = make_spec(extra_specs)
    times = [(measure(handler, ours, hosts, spec),
              measure(handler, stock, hosts, spec)) for _ in range(rounds)]
    ratios = [our_s / stock_s for our_s, stock_s in times]
    our_s, stock_s = map(statistics.median, zip(*times, strict=True))
    return {
        'case': f'{type(ours).__name__}, {name}', 'hosts': len(hosts),
        'rounds': rounds, 'vqos_ms': our_s * 1e3, 'stock_ms': stock_s * 1e3,
        'ratio': statistics.median(ratios), 'least_ratio': min(ratios),
        'greatest_ratio': max(ratios), 'limit': limit,
        'more_us_per_host': (our_s - stock_s) / len(hosts) * 1e6}


def run(count, rounds):
    hosts = make_hosts(count)
    quantum = weigher.VqosQuantumWeigher()
    fit = weigher.VqosUnitsWeigher()
    units = {policy.UNITS_KEY: '200'}
    for ours in quantum, fit:
        yield compare('no class, no units', ours, hosts, {}, rounds,
                      IDLE_LIMIT)
    yield compare('units', fit, hosts, units, rounds, LIMIT)
    yield compare('units', quantum, hosts, units, rounds, IDLE_LIMIT)
    for name in 'io', 'cache', 'neutral':
        yield compare(f'class {name}', quantum, hosts,
                      {**units, policy.QUANTUM_CLASS_KEY: name}, rounds,
                      LIMIT)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--json', metavar='FILE',
                        help='also write the results there')
    arguments = parser.parse_args()
    objects.register_all()
    results = []
    with tempfile.NamedTemporaryFile(suffix='.log') as log_file:
        log.register_options(nova.conf.CONF)
        nova.conf.CONF([], project='nova', default_config_files=[])
        nova.conf.CONF.set_override('log_file', log_file.name)
        log.setup(nova.conf.CONF, 'nova')
        print(f'{"case":40} {"stock ms":>9} {"vqos ms":>9} {"ratio":>6} '
              f'{"limit":>6} {"us a host":>10}  (least, greatest)')
        for result in run(arguments.hosts, arguments.rounds):
            results.append(result)
            print('{case:40} {stock_ms:9.2f} {vqos_ms:9.2f} {ratio:6.3f} '
                  '{limit:6.1f} {more_us_per_host:10.2f}  '
                  '({least_ratio:.3f}, {greatest_ratio:.3f})'
                  .format(**result), flush=True)
    if arguments.json:
        with open(arguments.json, 'w') as file:
            json.dump(results, file, indent=2)
    return 0 if all(result['ratio'] <= result['limit']
                    for result in results) else 1


if __name__ == '__main__':
    sys.exit(main())
