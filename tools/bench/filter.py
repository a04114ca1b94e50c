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
"""What VqosFilter costs, against Nova's AggregateInstanceExtraSpecsFilter.

Both filter the same host states in the same process, in turns, through the
scheduler's own machinery, at its usual log level (info). Prints the median
time of a request for each, the ratio of the two, and the extremes of the
ratio among the rounds. Exits 1 if VqosFilter was not the cheaper one.

What each case compares:

* ``without units``: a flavor with nothing of ours, for which the stock filter
  is given the extra spec that operators use it for.
* ``no extra specs``: a flavor with which neither filter has anything to do.
* ``with units``: the same flavor with units; all hosts are fast enough.
* ``with units, half refused``: every other host is too slow for the units,
  or not in the aggregate. The stock filter logs each refusal at level debug,
  which is off; VqosFilter logs the first ones of a request at info.
* ``with units, unlike pCPUs``: all hosts have three classes of pCPUs, of which
  the fastest is the one that fits.
"""

import argparse
import datetime
import json
import logging
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
from nova.scheduler import filters  # noqa: E402
from nova.scheduler import host_manager  # noqa: E402
from nova.scheduler.filters import aggregate_instance_extra_specs  # noqa: E402
from oslo_log import log  # noqa: E402

from nova import objects  # noqa: E402
from nova_vqos import policy  # noqa: E402
from nova_vqos.scheduler import filter as vqos_filter  # noqa: E402

AGGREGATE_KEY = 'aggregate_instance_extra_specs:speed'
SLOW_CU = 60
FAST_CU = 150


def make_hosts(count, with_units, slow_every=0, unlike=False):
    """Host states as the scheduler has them, each in three aggregates."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    hosts = []
    for number in range(count):
        slow = bool(slow_every) and number % slow_every == 0
        speed_cu = SLOW_CU if slow else FAST_CU
        host = host_manager.HostState(f'compute{number}', f'node{number}',
                                      None)
        host.stats = {'num_instances': '12', 'io_workload': '0',
                      'failed_builds': '0', 'uptime': 'up 12 days'}
        if with_units:
            # A calibrated host has its own coefficient, of many digits.
            host.stats |= {
                'vqos_sells_units': 'True', 'vqos_profile': 'valid',
                'vqos_profile_id': f'{number:016x}',
                'vqos_slowest_cu': f'{speed_cu + number / 1e6:.14f}',
                'vqos_fastest_cu': f'{speed_cu + 10 + number / 1e6:.14f}',
                'vqos_least_cu': '0.48', 'vqos_agent_seen_at': now,
                'vqos_quantum_classes': 'default', 'vqos_dd_billing': 'off'}
        if unlike:
            host.stats['vqos_classes'] = ' '.join(
                f'{cu + number / 1e6:.14f}:{cu * 4}:{cu * 0.008}'
                for cu in (SLOW_CU, SLOW_CU + 20, FAST_CU))
        host.aggregates = [
            objects.Aggregate(metadata=metadata) for metadata in (
                {'availability_zone': f'zone{number % 3}'},
                {'rack': str(number // 40)},
                {'speed': 'slow' if slow else 'fast'})]
        hosts.append(host)
    return hosts


def make_spec(extra_specs):
    return objects.RequestSpec(
        instance_uuid='8d2b5d4f-0000-4000-8000-000000000001',
        numa_topology=None, flavor=objects.Flavor(
            id=1, flavorid='1', vcpus=2, extra_specs=extra_specs))


def measure(handler, host_filter, hosts, spec):
    """Seconds that a filter needs for one request, and how many passed."""
    begin = time.perf_counter()
    passed = handler.get_filtered_objects([host_filter], hosts, spec)
    return time.perf_counter() - begin, len(passed)


def compare(name, hosts, extra_specs, rounds, stock_specs=None):
    """One case: medians, ratio, and the extremes of the ratio.

    :param stock_specs: extra specs of the flavor that the stock filter sees;
        None: the same, and one for the stock filter
    """
    if stock_specs is None:
        stock_specs = {**extra_specs, AGGREGATE_KEY: 'fast'}
    handler = filters.HostFilterHandler()
    ours = vqos_filter.VqosFilter()
    stock = (aggregate_instance_extra_specs
             .AggregateInstanceExtraSpecsFilter())
    stock_spec = make_spec(stock_specs)
    our_spec = make_spec(extra_specs)
    our_times, stock_times = [], []
    for _ in range(rounds):
        stock_s, stock_passed = measure(handler, stock, hosts, stock_spec)
        our_s, our_passed = measure(handler, ours, hosts, our_spec)
        if stock_passed != our_passed:
            raise SystemExit(f'{name}: the stock filter let {stock_passed} '
                             f'hosts pass, VqosFilter {our_passed}')
        our_times.append(our_s)
        stock_times.append(stock_s)
    ratios = [our / stock for our, stock in zip(our_times, stock_times,
                                                strict=True)]
    return {
        'case': name, 'hosts': len(hosts), 'passed': our_passed,
        'rounds': rounds,
        'vqos_ms': statistics.median(our_times) * 1e3,
        'stock_ms': statistics.median(stock_times) * 1e3,
        'ratio': statistics.median(ratios),
        'least_ratio': min(ratios), 'greatest_ratio': max(ratios),
    }


def run(hosts, rounds):
    units = {policy.UNITS_KEY: '200'}
    nova.conf.CONF.set_override('servers_without_units', 'allow', 'vqos')
    yield compare('without units, allowed everywhere',
                  make_hosts(hosts, with_units=True), {}, rounds)
    nova.conf.CONF.set_override('servers_without_units', 'refuse', 'vqos')
    yield compare('without units, hosts without units',
                  make_hosts(hosts, with_units=False), {}, rounds)
    yield compare('no extra specs for either filter',
                  make_hosts(hosts, with_units=False), {}, rounds,
                  stock_specs={})
    yield compare('with units, all fast enough',
                  make_hosts(hosts, with_units=True), units, rounds)
    yield compare('with units, half refused',
                  make_hosts(hosts, with_units=True, slow_every=2), units,
                  rounds)
    yield compare('with units, unlike pCPUs',
                  make_hosts(hosts, with_units=True, unlike=True), units,
                  rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--json', metavar='FILE',
                        help='also write the results there')
    arguments = parser.parse_args()
    objects.register_all()
    with tempfile.NamedTemporaryFile(suffix='.log') as log_file:
        log.register_options(nova.conf.CONF)
        nova.conf.CONF([], project='nova', default_config_files=[])
        nova.conf.CONF.set_override('log_file', log_file.name)
        log.setup(nova.conf.CONF, 'nova')
        logging.getLogger('nova_vqos').setLevel(logging.INFO)
        vqos_filter.VqosFilter()
        results = []
        print(f'{"case":36} {"passed":>6} {"stock ms":>9} {"vqos ms":>9} '
              f'{"ratio":>6}  (least, greatest)')
        for result in run(arguments.hosts, arguments.rounds):
            results.append(result)
            print('{case:36} {passed:6} {stock_ms:9.2f} {vqos_ms:9.2f} '
                  '{ratio:6.3f}  ({least_ratio:.3f}, {greatest_ratio:.3f})'
                  .format(**result), flush=True)
    if arguments.json:
        with open(arguments.json, 'w') as file:
            json.dump(results, file, indent=2)
    return 0 if all(result['ratio'] < 1 for result in results) else 1


if __name__ == '__main__':
    sys.exit(main())
