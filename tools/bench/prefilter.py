#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How often a boot that has a place is refused, for lack of answers.

Placement answers with at most max_placement_results hosts (1000), of which the
filter refuses those that do not suit. Makes a stock Placement in this process,
on SQLite, with so many providers; their rows are written straight into its
database, since 30 000 requests would take longer than the measurement. All of
them have room, and a few of them suit: for a server without units those
without units, for one with units those that are fast. Each boot is a query
that Nova's own code makes, with and without the pre-filter, and Nova's filter
object of nova_vqos on the hosts of the answer. Prints for each case the part
of boots that no host was left for, the median time of the query, and what that
of stock is to itself, one boot later. Exits 1 if one was refused with the
pre-filter.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import types
from unittest import mock

import against_itself
import bench_scheduler
import nova.conf
from nova.scheduler import utils
from nova.scheduler.client import report
from oslo_config import cfg
from placement import conf as placement_conf
from placement import direct
import sqlalchemy

from nova import context
from nova import objects
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.conf import vqos
from nova_vqos.scheduler import filter as vqos_filter
from nova_vqos.scheduler import prefilter

CONF = nova.conf.CONF
HOSTS = (1_000, 10_000)
# Of all of them: hosts that suit a server.
SUITING = (1, 10, 100)
_CU_PER_HOST = 6400
_BULK = {'VCPU': 512, 'MEMORY_MB': 512 * 1024, 'DISK_GB': 4096}
_SLOW_CU, _FAST_CU = 80, 200
_HEAD = f'''\
{"server":14} {"hosts":>6} {"suiting":>7} {"randomized":>10} {"refused":>15} \
{"query ms":>15}  stock against itself
{"":40} {"stock":>7} {"ours":>7} {"stock":>7} {"ours":>7}'''
_LINE = ('{server:14} {hosts:6} {suiting:7} {randomized!s:>10} '
         '{stock_refused:7.0%} {ours_refused:7.0%} {stock_ms:7.0f} '
         '{ours_ms:7.0f}  {noise}')


class Case:
    """A cloud, and a server that a few of its hosts suit.

    :ivar specs: of its flavor
    :ivar others: stats of the hosts that do not suit it
    :ivar suiting: stats of those that do
    """

    def __init__(self, name, specs, others, suiting):
        self.name = name
        self.specs = specs
        self.others = others
        self.suiting = suiting


def of_speed(cu):
    return host_stats.HostStats(
        profile=host_stats.VALID, slowest_cu=cu, fastest_cu=cu, least_cu=1,
        sells_units=True)


CASES = (
    Case('without units', {}, of_speed(_FAST_CU), host_stats.HostStats()),
    Case('fast', {policy.UNITS_KEY: '300'}, of_speed(_SLOW_CU),
         of_speed(_FAST_CU)),
)


class Cloud:
    """Hosts in Placement, and as the scheduler has them."""

    def __init__(self, client, engine, case, hosts, suiting):
        """
        :param client: of Placement
        :param hosts: their number
        :param suiting: the number of those that suit the server of the case
        """
        self._client = client
        chosen = set(random.sample(range(hosts), suiting))
        stats = [case.suiting if number in chosen else case.others
                 for number in range(hosts)]
        traits = [host_stats.traits(one, hook=True) for one in stats]
        for name in sorted(host_stats.ASKED_TRAITS | set().union(*traits)):
            client.put(f'/traits/{name}', microversion='1.6')
        client.put(f'/resource_classes/{policy.RESOURCE_CLASS}',
                   microversion='1.7')
        self.states = {}
        _fill(engine, stats, traits)
        for number, one in enumerate(stats):
            self.states[_uuid(number)] = bench_scheduler.make_host(
                number, host_stats.encode(one))

    def boot(self, spec, prefilters):
        """:returns: whether a host is left, and seconds that the query took"""
        started_s = time.monotonic()
        for one in prefilters:
            one(context.get_admin_context(), spec)
        resources = utils.ResourceRequest.from_request_spec(spec)
        answer = self._client.get(
            f'/allocation_candidates?{resources.to_querystring()}',
            microversion='1.36')
        took_s = time.monotonic() - started_s
        if answer.status_code != 200:
            raise SystemExit(answer.text)
        return bool(vqos_filter.VqosFilter().filter_all(
            [self.states[uuid] for uuid
             in answer.json()['provider_summaries']], spec)), took_s


def _uuid(number):
    return f'00000000-0000-4000-8000-{number:012}'


def _fill(engine, stats, traits):
    """Write the providers into the database of Placement."""
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine)
    tables = metadata.tables

    def ids_of(name):
        return {row.name: row.id for row in connection.execute(
            sqlalchemy.select(tables[name].c.id, tables[name].c.name))}

    with engine.begin() as connection:
        for name in ('resource_provider_traits', 'inventories',
                     'resource_providers'):
            connection.execute(tables[name].delete())
        trait_ids, class_ids = ids_of('traits'), ids_of('resource_classes')
        numbers = range(len(stats))
        connection.execute(tables['resource_providers'].insert(), [
            {'id': number + 1, 'uuid': _uuid(number), 'name': f'c{number}',
             'generation': 1, 'root_provider_id': number + 1}
            for number in numbers])
        connection.execute(tables['inventories'].insert(), [
            {'resource_provider_id': number + 1,
             'resource_class_id': class_ids[name], 'total': total,
             'reserved': 0, 'min_unit': 1, 'max_unit': total, 'step_size': 1,
             'allocation_ratio': 1.0}
            for number in numbers for name, total in (
                _BULK | ({policy.RESOURCE_CLASS: _CU_PER_HOST}
                         if stats[number].sells_units else {})).items()])
        connection.execute(tables['resource_provider_traits'].insert(), [
            {'resource_provider_id': number + 1, 'trait_id': trait_ids[name]}
            for number in numbers for name in sorted(traits[number])])


def make_spec(case):
    """A request as the scheduler has it."""
    return objects.RequestSpec(
        instance_uuid='8d2b5d4f-0000-4000-8000-000000000001',
        numa_topology=None, force_hosts=None, force_nodes=None,
        is_bfv=False, image=objects.ImageMeta(
            properties=objects.ImageMetaProps()),
        requested_resources=[], requested_destination=None,
        pci_requests=None,
        flavor=objects.Flavor(
            id=1, flavorid='1', vcpus=2, memory_mb=2048, root_gb=10,
            ephemeral_gb=0, swap=0, extra_specs=case.specs))


def measure(client, engine, conf, options):
    """Yield the results of all cases."""
    ours = prefilter.Prefilter()
    for hosts in options.hosts:
        for case in CASES:
            for suiting in SUITING:
                cloud = Cloud(client, engine, case, hosts, suiting)
                for randomized in (False, True):
                    conf.set_override('randomize_allocation_candidates',
                                      randomized, 'placement')
                    yield {
                        'server': case.name, 'hosts': hosts,
                        'suiting': suiting, 'randomized': randomized,
                        'boots': options.boots, **_compare(
                            cloud, case, options.boots, ours)}


def _compare(cloud, case, boots, ours):
    """Both in turn: :returns: figures of each"""
    found = {'stock': [], 'ours': []}
    for _ in range(boots):
        found['stock'].append(cloud.boot(make_spec(case), []))
        found['ours'].append(cloud.boot(make_spec(case), [ours]))
    return {f'{name}_{figure}': value for name, answers in found.items()
            for figure, value in (
                ('refused', sum(not booted for booted, _ in answers)
                 / len(answers)),
                ('ms', statistics.median(
                    took_s for _, took_s in answers) * 1e3))} | {
        'noise': against_itself.noise([took_s for _, took_s
                                       in found['stock']])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--hosts', type=int, nargs='+', default=HOSTS)
    parser.add_argument('--boots', type=int, default=20)
    parser.add_argument('--json', metavar='FILE',
                        help='also write the results there')
    options = parser.parse_args()
    random.seed(1)
    objects.register_all()
    CONF([], project='nova', default_config_files=[])
    vqos.register_opts(CONF)
    # The hosts have no agents.
    CONF.set_override('agent_max_age_s', 0, 'vqos')
    results = []
    with tempfile.TemporaryDirectory(prefix='prefilter-') as directory:
        url = f'sqlite:///{directory}/placement.sqlite'
        conf = cfg.ConfigOpts()
        placement_conf.register_opts(conf)
        conf.set_default('connection', url, 'placement_database')
        conf([], default_config_files=[])
        conf.set_override('sync_on_startup', True, 'placement_database')
        with direct.PlacementDirect(conf) as client:
            api = types.SimpleNamespace(
                get=lambda url, version, global_request_id: client.get(
                    url, microversion=version),
                put=lambda url, data, version, global_request_id: client.put(
                    url, microversion=version))
            with mock.patch.object(report, 'report_client_singleton',
                                   lambda: api):
                print(_HEAD)
                for one in measure(client, sqlalchemy.create_engine(url),
                                   conf, options):
                    results.append(one)
                    print(_LINE.format(**one), flush=True)
    if options.json:
        with open(options.json, 'w') as file:
            json.dump(results, file, indent=2)
    return any(one['ours_refused'] for one in results)


if __name__ == '__main__':
    sys.exit(main())
