# SPDX-License-Identifier: Apache-2.0
"""A real CloudKitty rates what a real Prometheus has of real bills.

The bills are those of the agent's own biller, for hours that a fake host
passes at once; Prometheus gets the samples of its exporter with their times.
CloudKitty needs an environment of its own: the Python of CLOUDKITTY_PYTHON.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import urllib.request

import pytest

from nova_vqos.agent.messages import server_report
from nova_vqos.metrics import families
from nova_vqos.metrics import samples
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import library_text
from nova_vqos.tests.fixtures import monitoring
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement
from nova_vqos_lab import process

METRICS = 'etc/cloudkitty/nova-vqos-cloudkitty.yml'
HOUR_S = 3600
# In the past, and at a full hour as CloudKitty's periods.
BEGIN = 1_790_000_000 // HOUR_S * HOUR_S
SCRAPE_S = 30
HOURS = 2
PROJECT = 'p'
# Price of a CU hour of the server's own work, and of its host's for its I/O.
PRICES = {'vcpu': '0.01', 'emulator': '0.03', 'net_rx': '0.03'}

pytestmark = [pytest.mark.timeout(300), pytest.mark.nightly]


def cloudkitty_python():
    """:returns: path of the Python that has CloudKitty; None: there is none"""
    named = os.environ.get('CLOUDKITTY_PYTHON')
    if named:
        return named
    return sys.executable if importlib.util.find_spec('cloudkitty') else None


@dataclasses.dataclass
class Scraped:
    """An agent's samples of its servers, with the time of each scrape."""

    instance: str
    lines: dict = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list))
    deliveries: samples.Deliveries = dataclasses.field(
        default_factory=samples.Deliveries)

    def scrape(self, at, billed, dd_billing):
        """:param billed: by UUID of a server
        :param dd_billing: of their flavors, by UUID
        """
        servers = [server_report.Server(
            server_uuid=uuid, project_id=PROJECT, name='instance',
            dd_billing=dd_billing[uuid], bill=one.report)
            for uuid, one in billed.items()]
        for family, values, figure in library_text.flat(
                samples.server_samples(servers, self.deliveries, ())):
            labels = ','.join(
                f'{name}="{value}"' for name, value in zip(
                    (*family.labels, 'instance'),
                    (*values, self.instance), strict=True))
            self.lines[family].append(
                (labels, at,
                 f'{family.name}{{{labels}}} {float(figure)!r} {at}'))


def openmetrics(scrapes):
    """:returns: the text that Prometheus takes samples of the past from"""
    lines = []
    for family in families.ALL:
        found = sorted(line for one in scrapes for line in one.lines[family])
        if found:
            lines.append(f'# TYPE {family.name.removesuffix("_total")} '
                         f'{family.kind}')
            lines += [text for _labels, _at, text in found]
    return '\n'.join([*lines, '# EOF\n'])


class Past:
    """Two hours of two servers; one moves to another host in the second.

    :ivar scrapes: of the agents
    """

    UNBILLED = fakes.OTHER_UUID
    BILLED = fakes.UUID

    def __init__(self, directory):
        here = billing_host.Host(directory, 'here')
        there = billing_host.Host(directory, 'there')
        self.scrapes = Scraped('here:19177'), Scraped('there:19177')
        for uuid in (self.BILLED, self.UNBILLED):
            here.run(uuid)
        here.round()
        half = (HOURS * HOUR_S - HOUR_S // 2) // SCRAPE_S
        self.spend(here, self.scrapes[0], range(half + 1))
        there.run(self.BILLED, origin='migrated')
        there.round()
        self.spend(there, self.scrapes[1],
                   range(half, HOURS * HOUR_S // SCRAPE_S + 1))

    def spend(self, host, scraped, scrapes):
        """Use 60 CU of vCPUs and 10 of the emulator."""
        for number in scrapes:
            billed = host.round()
            scraped.scrape(BEGIN + number * SCRAPE_S, billed, {
                self.BILLED: 'account', self.UNBILLED: 'off'})
            host.now_s += SCRAPE_S
            for uuid in billed:
                reading = host.hypervisor.used[uuid]
                host.hypervisor.used[uuid] = dataclasses.replace(
                    reading, read_at_s=host.now_s,
                    vcpu_ns=reading.vcpu_ns + SCRAPE_S * 6 * 10**8,
                    emulator_ns=reading.emulator_ns + SCRAPE_S * 10**8)


@contextlib.contextmanager
def prometheus(directory, text):
    """:returns: the URL of one that has samples of the past"""
    requirement.need(monitoring.missing())
    source, data = directory / 'past.txt', directory / 'data'
    source.write_text(text)
    subprocess.run(['promtool', 'tsdb', 'create-blocks-from', 'openmetrics',
                    str(source), str(data)], check=True, capture_output=True)
    configuration = directory / 'prometheus.yml'
    configuration.write_text('global: {}\n')
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        address = f'127.0.0.1:{free.getsockname()[1]}'
    log = directory / 'prometheus.log'
    with log.open('wb') as stream:
        running = subprocess.Popen([
            'prometheus', f'--config.file={configuration}',
            f'--storage.tsdb.path={data}',
            '--storage.tsdb.retention.time=100y',
            f'--web.listen-address={address}', '--log.level=warn'],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)

    def answers():
        with contextlib.suppress(OSError), urllib.request.urlopen(
                f'http://{address}/-/ready', timeout=5) as answer:
            return answer.status == 200
        return False
    try:
        process.wait_until(answers, 60, 'Prometheus', log=str(log),
                           alive=lambda: running.poll() is None)
        yield f'http://{address}/api/v1'
    finally:
        running.kill()
        running.wait(20)


@pytest.fixture(scope='module')
def rated(tmp_path_factory):
    """What CloudKitty stored of the project, each point of each hour."""
    python = cloudkitty_python()
    if python is None:
        requirement.need('CloudKitty is missing: install it into an '
                         'environment of its own, and name its Python in '
                         'CLOUDKITTY_PYTHON')
    directory = tmp_path_factory.mktemp('rating')
    past = Past(directory)
    configuration = directory / 'cloudkitty.conf'
    with prometheus(directory, openmetrics(past.scrapes)) as url:
        configuration.write_text(f'''
[database]
connection = sqlite:///{directory}/cloudkitty.sqlite
[storage]
version = 1
backend = sqlalchemy
[collect]
collector = prometheus
metrics_conf = {project.sample(METRICS)}
[collector_prometheus]
prometheus_url = {url}
[fetcher]
backend = prometheus
''')
        programs = pathlib.Path(python).parent

        def run(*command, given=None):
            done = subprocess.run(
                command, input=given, capture_output=True, text=True,
                timeout=120, check=False, cwd=directory)
            assert done.returncode == 0, done.stderr[-4000:]
            return done.stdout
        run(programs / 'cloudkitty-dbsync', '--config-file', configuration,
            'upgrade', '--module', 'cloudkitty')
        run(programs / 'cloudkitty-storage-init', '--config-file',
            configuration)
        return json.loads(run(
            python, '-W', 'ignore',
            pathlib.Path(__file__).with_name('cloudkitty_rating.py'),
            given=json.dumps({
                'config': str(configuration), 'prices': PRICES,
                'project': PROJECT, 'begin': BEGIN, 'hours': HOURS})
        ).splitlines()[-1])


def of_hour(rated, number, component):
    """:returns: CU hours and price"""
    found = [(one['qty'], one['price']) for one in rated
             if one['begin'] == BEGIN + number * HOUR_S
             and one['component'] == component]
    return tuple(map(sum, zip(*found, strict=True)))


def test_cu_hours_and_their_price(rated):
    assert {one['unit'] for one in rated} == {'CU hours'}
    for component, cu in (('vcpu', 60.0), ('emulator', 10.0)):
        qty, price = of_hour(rated, 0, component)
        assert qty == pytest.approx(cu, rel=1e-3)
        assert price == pytest.approx(cu * float(PRICES[component]), rel=1e-3)


def test_an_hour_in_which_it_moved_is_whole(rated):
    """By the counters of two hosts, to a scrape or two."""
    for component, cu in (('vcpu', 60.0), ('emulator', 10.0)):
        qty, price = of_hour(rated, 1, component)
        assert qty == pytest.approx(cu, rel=2 * SCRAPE_S / HOUR_S)
        assert price == pytest.approx(qty * float(PRICES[component]))


def test_a_server_that_nobody_asked_to_bill_is_not_rated(rated):
    assert {one['server_uuid'] for one in rated} == {Past.BILLED}
