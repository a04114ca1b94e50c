#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What VqosFilter costs, against Nova's AggregateInstanceExtraSpecsFilter.

Both filter the same host states in the same process, in turns, through the
scheduler's own machinery, at its usual log level (info). Prints the median
CPU time of a request for each, the ratio of the two, and the extremes of the
ratio among the rounds. Exits 1 if VqosFilter was not the cheaper one; in the
last two cases, if it was dearer than two.

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
* ``units of a kind of work``: as ``all fast enough``, with ``vqos:work``; all
  hosts were measured with nine kinds, by coefficients of their own.
* ``with units, all reported anew``: as ``all fast enough``, but each host has
  reported other stats since the last request, as it does once a minute.
"""

import datetime
import sys
import time

import bench_scheduler
import nova.conf
from nova.scheduler import filters
from nova.scheduler.filters import aggregate_instance_extra_specs

from nova_vqos import policy
from nova_vqos.scheduler import filter as vqos_filter

AGGREGATE_KEY = 'aggregate_instance_extra_specs:speed'
KINDS = ('integer', 'float', 'hash', 'compress', 'json', 'memory-stream',
         'memory-random', 'branch', 'sort')
SLOW_CU = 60
FAST_CU = 150


def make_hosts(count, with_units, slow_every=0, unlike=False):
    now = datetime.datetime.now(datetime.UTC).isoformat()
    hosts = []
    for number in range(count):
        slow = bool(slow_every) and number % slow_every == 0
        speed_cu = SLOW_CU if slow else FAST_CU
        stats = {}
        if with_units:
            # A calibrated host has its own coefficient, of many digits.
            stats |= {
                'vqos_sells_units': 'True', 'vqos_profile': 'valid',
                'vqos_profile_id': f'{number:016x}',
                'vqos_slowest_cu': f'{speed_cu + number / 1e6:.14f}',
                'vqos_fastest_cu': f'{speed_cu + 10 + number / 1e6:.14f}',
                'vqos_least_cu': '0.48', 'vqos_agent_seen_at': now,
                'vqos_quantum_classes': 'default', 'vqos_dd_billing': 'off',
                'vqos_room_cu': '4000',
                'vqos_work': f'{speed_cu + number / 1e6:.14f}=' + ','.join(
                    f'{kind}:{speed_cu * part + number / 1e6:.14f}'
                    for part, kind in enumerate(KINDS, 2))}
        if unlike:
            stats['vqos_classes'] = ' '.join(
                f'{cu + number / 1e6:.14f}:{cu * 4}:{cu * 0.008}'
                for cu in (SLOW_CU, SLOW_CU + 20, FAST_CU))
        hosts.append(bench_scheduler.make_host(
            number, stats, 'slow' if slow else 'fast'))
    return hosts


def measure(handler, host_filter, hosts, spec):
    """CPU seconds that a filter needs for one request, and how many passed."""
    begin = time.process_time()
    passed = handler.get_filtered_objects([host_filter], hosts, spec)
    return time.process_time() - begin, len(passed)


def compare(name, hosts, extra_specs, rounds, stock_specs=None,
            reports=False, most_ratio=1):
    """One case.

    :param stock_specs: extra specs of the flavor that the stock filter sees;
        None: the same, and one for the stock filter
    :param reports: whether all hosts report between requests
    :param most_ratio: that is good enough
    """
    if stock_specs is None:
        stock_specs = {**extra_specs, AGGREGATE_KEY: 'fast'}
    handler = filters.HostFilterHandler()
    ours = vqos_filter.VqosFilter()
    stock = (aggregate_instance_extra_specs
             .AggregateInstanceExtraSpecsFilter())
    stock_spec = bench_scheduler.make_spec(stock_specs)
    our_spec = bench_scheduler.make_spec(extra_specs)
    our_times, stock_times = [], []
    for _ in range(rounds):
        bench_scheduler.read_anew(hosts, {
            'vqos_agent_seen_at': datetime.datetime.now(
                datetime.UTC).isoformat()} if reports else None)
        stock_s, stock_passed = measure(handler, stock, hosts, stock_spec)
        our_s, our_passed = measure(handler, ours, hosts, our_spec)
        if stock_passed != our_passed:
            raise SystemExit(f'{name}: the stock filter let {stock_passed} '
                             f'hosts pass, VqosFilter {our_passed}')
        our_times.append(our_s)
        stock_times.append(stock_s)
    found = bench_scheduler.result(name, hosts, our_times, stock_times,
                                   passed=our_passed)
    return found | {'met': found['ratio'] < most_ratio}


def run(hosts, rounds):
    units = {policy.UNITS_KEY: '200'}
    # Registers its options.
    vqos_filter.VqosFilter()
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
    yield compare('units of a kind of work',
                  make_hosts(hosts, with_units=True),
                  {**units, policy.WORK_KEY: 'integer:0.5,hash:0.5'}, rounds,
                  most_ratio=2)
    yield compare('with units, all reported anew',
                  make_hosts(hosts, with_units=True), units, rounds,
                  reports=True, most_ratio=2)


if __name__ == '__main__':
    sys.exit(bench_scheduler.main(
        __doc__, run,
        f'{"case":36} {"passed":>6} {"stock ms":>9} {"vqos ms":>9} '
        f'{"ratio":>6}  (least, greatest)  '
        'stock against itself',
        '{case:36} {passed:6} {stock_ms:9.2f} {vqos_ms:9.2f} '
        '{ratio:6.3f}  ({least_ratio:.3f}, {greatest_ratio:.3f})  '
        '({least_noise:.3f}, {greatest_noise:.3f})'))
