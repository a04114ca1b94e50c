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

"""The dashboards and rules that are installed, as Grafana reads them.

Grafana is in no distribution: what its panels show are the answers to their
queries, which tests ask as it would.
"""

import json
import re

import yaml

from nova_vqos.tests import project

DASHBOARDS = ('cloud', 'host', 'server')
RULES = 'etc/prometheus/nova-vqos.rules.yml'


def load(dashboard):
    """:returns: a dashboard's file"""
    return json.loads(project.sample(
        f'etc/grafana/nova-vqos-{dashboard}.json').read_text())


def load_rules():
    """:returns: the file of rules"""
    return yaml.safe_load(project.sample(RULES).read_text())


def panels(dashboard):
    """:returns: title, unit and queries with their legends, of each panel"""
    return [(panel['title'], panel['fieldConfig']['defaults']['unit'], [
        (target['expr'], target['legendFormat'])
        for target in panel['targets']])
        for panel in load(dashboard)['panels']]


def with_values(query, **variables):
    """:returns: a query as Grafana sends it.

    :param variables: what was chosen
    """
    for name, value in {'__rate_interval': '1m', **variables}.items():
        query = query.replace(f'${name}', value)
    assert '$' not in query, query
    return query


def rules_without_waiting():
    """:returns: the rules, whose alerts fire at once"""
    rules = load_rules()
    for group in rules['groups']:
        for rule in group['rules']:
            rule.pop('for', None)
    return rules


def metrics_of(expression):
    """:returns: names of our metrics in an expression, without recordings"""
    return set(re.findall(r'(?<![\w:])nova_vqos_\w+', expression))
