# SPDX-License-Identifier: Apache-2.0
"""Dashboards and rules say what there is, and the guide says what to do."""

import re
import runpy

import pytest

from nova_vqos.metrics import families
from nova_vqos.tests.fixtures import dashboards
from nova_vqos.tests.fixtures import metrics
from nova_vqos.tests.fixtures import project

GUIDE = 'doc/source/admin/metrics.rst'
# Of the agent's process, by prometheus_client.
PROCESS = {'process_cpu_seconds_total', 'process_resident_memory_bytes'}

alerts = [rule for group in dashboards.load_rules()['groups']
          for rule in group['rules'] if 'alert' in rule]
recorded = {rule['record'] for group in dashboards.load_rules()['groups']
            for rule in group['rules'] if 'record' in rule}
KNOWN = {family.name for family in families.ALL}
by_dashboard = pytest.mark.parametrize('dashboard', dashboards.DASHBOARDS)
by_alert = pytest.mark.parametrize(
    'alert', alerts, ids=lambda alert: alert['alert'])


@project.needs_checkout
@by_dashboard
def test_dashboards_are_current(dashboard):
    maker = runpy.run_path(str(project.TOP / 'tools' / 'dashboards.py'))
    written = project.sample(
        f'etc/grafana/nova-vqos-{dashboard}.json').read_text()
    assert maker['text'](dashboard) == written, 'run tools/dashboards.py'


@by_dashboard
def test_panels_are_of_metrics_that_there_are(dashboard):
    for title, _unit, queries in dashboards.panels(dashboard):
        for query, _legend in queries:
            ours = dashboards.metrics_of(query)
            assert ours <= KNOWN, title
            assert ours or 'up{' in query or any(
                name in query for name in PROCESS), title


@by_dashboard
def test_panels_have_a_place_of_their_own(dashboard):
    taken = set()
    content = dashboards.load(dashboard)
    assert len({panel['id'] for panel in content['panels']}) == len(
        content['panels'])
    for panel in content['panels']:
        at = panel['gridPos']
        cells = {(x, y) for x in range(at['x'], at['x'] + at['w'])
                 for y in range(at['y'], at['y'] + at['h'])}
        assert at['x'] + at['w'] <= 24
        assert not cells & taken, panel['title']
        taken |= cells


@by_dashboard
def test_what_is_chosen_can_be_chosen(dashboard):
    content = dashboards.load(dashboard)
    variables = {one['name'] for one in content['templating']['list']}
    for panel in content['panels']:
        assert panel['datasource']['uid'] == '${datasource}'
        for target in panel['targets']:
            used = set(re.findall(r'\$(\w+)', target['expr']))
            assert used <= variables | {'__rate_interval'}, panel['title']
    assert 'datasource' in variables


@by_alert
def test_alerts_are_of_metrics_that_there_are(alert):
    ours = dashboards.metrics_of(alert['expr'])
    assert ours <= KNOWN
    assert set(re.findall(r'nova_vqos:[\w:]+', alert['expr'])) <= recorded


@project.needs_checkout
@by_alert
def test_the_guide_says_what_to_do(alert):
    name = alert['alert']
    url = alert['annotations']['runbook_url']
    assert url.endswith(f'/admin/metrics.html#{name.lower()}')
    guide = (project.TOP / GUIDE).read_text()
    assert f'\n{name}\n{"-" * len(name)}\n' in guide


@project.needs_checkout
@pytest.mark.parametrize(('server', 'count'), [
    ({}, 28), ({'bill': None}, 16)])
def test_the_guide_counts_series_as_they_are(tmp_path, server, count):
    agent = metrics.Agent(tmp_path)
    agent.servers = []
    others = len(agent.scrape())
    agent.servers = [metrics.make_server(
        guarantee=None, correction=None, ceiling=None, burst=None,
        clock=None, disk_limit=None, **server)]
    # Of class auto, and of servers that spin, alone.
    quantum = agent.servers[0]['quantum']
    del quantum['sibling_preemptions_per_s']
    for vcpu in quantum['vcpus'].values():
        del vcpu['recognised_after_s']
    assert len(agent.scrape()) - others == count
    assert f' {count} series' in (project.TOP / GUIDE).read_text()
