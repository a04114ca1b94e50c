# SPDX-License-Identifier: Apache-2.0
"""Rates hours of a project by CloudKitty's own worker.

Run by the Python that has CloudKitty. A JSON document comes on standard input:
path of the configuration, prices by component, project, when to begin (seconds
since 1970) and how many hours. What CloudKitty stored is printed as JSON.
"""

import datetime
import json
import sys

from cloudkitty import collector
from cloudkitty import db
from cloudkitty import orchestrator
from cloudkitty import service
from cloudkitty import storage
from cloudkitty.db import api
from cloudkitty.rating import hash as hashmap
from cloudkitty.rating.hash.db.sqlalchemy import models
from cloudkitty.utils import tz

METRIC = 'vqos_cpu_units'


def main():
    given = json.load(sys.stdin)
    service.prepare_service(['rating', '--config-file', given['config']])
    begin = tz.dt_from_ts(given['begin'])
    set_prices(given['prices'], begin)
    kept = storage.get_storage()
    worker = orchestrator.Worker(collector.get_collector(), kept,
                                 given['project'], 0)
    hours = [tz.add_delta(begin, datetime.timedelta(hours=number))
             for number in range(given['hours'] + 1)]
    for hour in hours[:-1]:
        worker.do_execute_scope_processing(hour)
    stored = kept.retrieve(begin=hours[0], end=hours[-1], paginate=False)
    print(json.dumps([
        {'metric': metric, 'begin': frame.start.timestamp(),
         'qty': float(point.qty), 'unit': point.unit,
         'price': float(point.price), **point.groupby, **point.metadata}
        for frame in stored['dataframes']
        for metric, point in frame.iterpoints()]))


def set_prices(prices, begin):
    """As its API does when an operator sets them."""
    # NOTE: CloudKitty 25's own migration of these tables fails on SQLite.
    with db.session_for_write() as session:
        models.Base.metadata.create_all(session.get_bind())
    rules = hashmap.HashMap.db_api
    field = rules.create_field(rules.create_service(METRIC).service_id,
                               'component')
    for component, price in prices.items():
        rules.create_mapping(
            price, map_type='flat', value=component, field_id=field.field_id,
            name=component, created_by='test', start=begin)
    api.get_instance().get_module_info().set_state('hashmap', True)


if __name__ == '__main__':
    main()
