# SPDX-License-Identifier: Apache-2.0
"""What filter.py and weigher.py share: Nova's scheduler in one process.

Import it before Nova's own modules: it patches them as Nova's services do.
"""

import argparse
import json
import logging
import os
import statistics
import tempfile
import warnings

os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = '1'
warnings.simplefilter('ignore')

import against_itself  # noqa: E402

from nova import monkey_patch  # noqa: E402

monkey_patch.patch()

import nova.conf  # noqa: E402
from nova.scheduler import host_manager  # noqa: E402
from oslo_log import log  # noqa: E402

from nova import objects  # noqa: E402


def make_host(number, stats, speed='fast'):
    """A host state as the scheduler has it, in three aggregates."""
    host = host_manager.HostState(f'compute{number}', f'node{number}', None)
    host.stats = {'num_instances': '12', 'io_workload': '0',
                  'failed_builds': '0', 'uptime': 'up 12 days', **stats}
    host.aggregates = [
        objects.Aggregate(metadata=metadata) for metadata in (
            {'availability_zone': f'zone{number % 3}'},
            {'rack': str(number // 40)}, {'speed': speed})]
    return host


def read_anew(hosts, changed=None):
    """The stats as Nova reads them for each request: other texts.

    :param changed: what each host reports that is new
    """
    for host in hosts:
        host.stats = json.loads(json.dumps(host.stats | (changed or {})))


def make_spec(extra_specs):
    return objects.RequestSpec(
        instance_uuid='8d2b5d4f-0000-4000-8000-000000000001',
        numa_topology=None, flavor=objects.Flavor(
            id=1, flavorid='1', vcpus=2, extra_specs=extra_specs))


def result(name, hosts, our_times, stock_times, **more):
    """One case: medians, ratio, and the extremes of the ratio.

    And those of stock against itself, one round later: what lies within them
    is noise.
    """
    ratios = [our / stock for our, stock in zip(our_times, stock_times,
                                                strict=True)]
    noise = against_itself.noise(stock_times)
    return {
        'case': name, 'hosts': len(hosts), 'rounds': len(ratios),
        'vqos_ms': statistics.median(our_times) * 1e3,
        'stock_ms': statistics.median(stock_times) * 1e3,
        'ratio': statistics.median(ratios),
        'least_ratio': min(ratios), 'greatest_ratio': max(ratios),
        'least_noise': noise.least, 'greatest_noise': noise.greatest, **more}


def main(about, run, head, line):
    """Run all cases, and print each as soon as it is measured.

    :param about: of which the first line is the description
    :param run: yields the results of so many hosts and rounds, with ``met``
    :param line: format of a result, below ``head``
    """
    parser = argparse.ArgumentParser(description=about.split('\n', 1)[0])
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--rounds', type=int, default=15,
                        help='two or more (default %(default)s)')
    parser.add_argument('--json', metavar='FILE',
                        help='also write the results there')
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error('--rounds must be 2 or more: stock is compared with '
                     'itself, one round later')
    objects.register_all()
    results = []
    with tempfile.NamedTemporaryFile(suffix='.log') as log_file:
        log.register_options(nova.conf.CONF)
        nova.conf.CONF([], project='nova', default_config_files=[])
        nova.conf.CONF.set_override('log_file', log_file.name)
        log.setup(nova.conf.CONF, 'nova')
        logging.getLogger('nova_vqos').setLevel(logging.INFO)
        print(head)
        for one in run(arguments.hosts, arguments.rounds):
            results.append(one)
            print(line.format(**one), flush=True)
    if arguments.json:
        with open(arguments.json, 'w') as file:
            json.dump(results, file, indent=2)
    return 0 if all(one['met'] for one in results) else 1
