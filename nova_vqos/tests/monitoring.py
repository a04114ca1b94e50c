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

"""A Prometheus that scrapes the agents of a lab."""

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request

import yaml

from nova_vqos import profile as profiles
from nova_vqos import verification
from nova_vqos.tests import dashboards
from nova_vqos_lab import daemons
from nova_vqos_lab import netns
from nova_vqos_lab import process

PORT = 19177
JOB = 'nova-vqos'

_LISTEN = '127.0.0.1:9090'
_LIMIT_S = 60
_PROGRAMS = ('prometheus', 'promtool')


def missing():
    """:returns: what this machine lacks, '' if nothing"""
    return '; '.join(
        f'{name} is missing: install the package prometheus'
        for name in _PROGRAMS if shutil.which(name) is None)


def store_verification(host, verdict='ok', drift='+0.5%'):
    """Let the profile of a host have been verified just now."""
    path = host.path('var/lib/nova-vqos/verification.json')
    os.makedirs(os.path.dirname(path), exist_ok=True)
    verification.store(
        path, profiles.load(host.path('etc/nova-vqos/profile.yaml')).id,
        verdict, [{'pcpus': profiles.format_pcpus(host.pcpus),
                   'drift': drift}])


class Prometheus:
    """Runs in a network namespace of a lab, and scrapes what is there."""

    def __init__(self, directory, namespace, targets):
        """Start it.

        :param directory: of its own
        :param namespace: name of the network namespace
        :param targets: addresses and ports of agents
        """
        self._namespace = namespace
        os.makedirs(directory, exist_ok=True)
        rules = f'{directory}/rules.yml'
        configuration = f'{directory}/prometheus.yml'
        with open(rules, 'w', encoding='utf-8') as file:
            yaml.safe_dump(dashboards.rules_without_waiting(), file)
        with open(configuration, 'w', encoding='utf-8') as file:
            yaml.safe_dump({
                'global': {'scrape_interval': '1s', 'scrape_timeout': '1s',
                           'evaluation_interval': '1s'},
                'rule_files': [rules],
                'scrape_configs': [{
                    'job_name': JOB,
                    'static_configs': [{'targets': list(targets)}]}],
            }, file)
        self.log = f'{directory}/prometheus.log'
        with open(self.log, 'ab') as log:
            self._process = subprocess.Popen([
                'nsenter', f'--net={netns.NETNS_DIR}/{namespace}', '--',
                'prometheus', f'--config.file={configuration}',
                f'--storage.tsdb.path={directory}/data',
                f'--web.listen-address={_LISTEN}', '--log.level=warn'],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        process.wait_until(
            self.answers, _LIMIT_S, 'Prometheus', log=self.log,
            alive=lambda: self._process.poll() is None)
        return self

    def __exit__(self, *_exception):
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)

    def answers(self):
        """:returns: whether it does"""
        try:
            return self._fetch('/api/v1/status/runtimeinfo') is not None
        except OSError:
            return False

    def fetch(self, url):
        """:returns: the text of a page, as Prometheus would see it"""
        with daemons.network(self._namespace), urllib.request.urlopen(
                url, timeout=20) as answer:
            return answer.read().decode()

    def query(self, expression):
        """:returns: what it answers now: a list of series"""
        return self._ask('query', query=expression)['result']

    def rules(self):
        """:returns: all rules with their state"""
        return [rule for group in self._ask('rules')['groups']
                for rule in group['rules']]

    def firing(self):
        """:returns: alerts that fire, by name"""
        found = {}
        for alert in self._ask('alerts')['alerts']:
            if alert['state'] == 'firing':
                found.setdefault(alert['labels']['alertname'], []).append(
                    alert)
        return found

    def without_data(self, dashboard, **variables):
        """:returns: queries of a dashboard that nothing is answered to."""
        return [
            f'{title}: {query}'
            for title, _unit, queries in dashboards.panels(dashboard)
            for query, _legend in queries
            if not self.query(dashboards.with_values(query, **variables))]

    def _ask(self, what, **parameters):
        return self._fetch(
            f'/api/v1/{what}?{urllib.parse.urlencode(parameters)}')['data']

    def _fetch(self, path):
        return json.loads(self.fetch(f'http://{_LISTEN}{path}'))
