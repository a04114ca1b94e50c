# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes real agents: panels, rules, and what they say."""

import contextlib
import subprocess

import pytest

from nova_vqos.tests.fixtures import dashboards
from nova_vqos.tests.fixtures import monitoring
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import conftest
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_usage
from nova_vqos_lab import ioguest
from nova_vqos_lab import ionet
from nova_vqos_lab import process

image = test_usage.image

# The CPU time of a host is read once a minute, and exported from the second
# reading on.
LIMIT_S = 150

# CPUs here do not report their clock, QEMU does not count instructions, no
# second guest receives packets, and a host of the lab sees no threads of the
# kernel. A server that pays for its I/O does not burst.
NOT_HERE = {'nova_vqos_host_io_jain',
            'nova_vqos_host_ksoftirqd_seconds_total',
            'nova_vqos_server_burst_left_cpu_units',
            'nova_vqos_server_clock_hertz',
            'nova_vqos_server_clock_coefficient',
            'nova_vqos_server_correction_predicted',
            'nova_vqos_server_instructions_per_cpu_second',
            'nova_vqos_server_saved_cpu_unit_seconds'}

pytestmark = pytest.mark.timeout(600)


def promtool(*arguments, text=None):
    """:returns: what it prints, once it has found nothing wrong"""
    requirement.need(monitoring.missing())
    done = subprocess.run(
        ['promtool', *arguments], input=text, capture_output=True, text=True,
        timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_alerts_fire_when_they_should():
    promtool('test', 'rules', str(
        project.TOP / 'nova_vqos/tests/host/rules_test.yml'))


def test_prometheus_takes_the_rules():
    promtool('check', 'rules', str(project.sample(dashboards.RULES)))


class Monitored:
    """Two hosts with agents and guests, and who watches them.

    :ivar guest: one of class cache, on the host fast; there others would keep
        it from its slice
    :ivar fast: what Prometheus calls the agent of that host
    :ivar slow: likewise; it is gone in the end
    """

    def __init__(self, lab, bus, image, started):
        self.fast, self.slow = (
            f'{host.address}:{monitoring.PORT}' for host in lab.hosts)
        for host, coefficient, proven in (
                (lab.fast, 1.0, ('cache',)),
                (lab.slow, 0.5, agents.SLICES_US)):
            agents.store_profile(host, coefficient)
            agents.store_proof(host, {
                name: agents.SLICES_US[name] for name in proven})
            monitoring.store_verification(host)
        self.agents = {}
        for host in lab.hosts:
            # An emulated guest reads its disk slowly.
            agent = agents.Agent(host, bus, metrics_address=host.address,
                                 sample_interval_s=1, quantum_interval_s=1,
                                 quantum_limits='io:50')
            started.callback(agent.print_log)
            started.callback(agent.stop)
            self.agents[host.name] = agent
        for agent in self.agents.values():
            agent.wait_ready()
        self.prometheus = started.enter_context(monitoring.Prometheus(
            f'{conftest.ROOT}/prometheus', lab.network.controller,
            (self.fast, self.slow)))
        started.callback(guests.destroy_all, lab.fast)
        self.guest = guests.Guest(lab.fast, specs=guests.server(
            40, vqos_dd_billing='charge', vqos_quantum_class='cache',
            vqos_project_ceiling_cu='40', vqos_work='auto'), project='p1')
        self._serve_others(lab, image, started)
        self.guest.wait_cap(guests.CAP)

    @staticmethod
    def _serve_others(lab, image, started):
        """One whose preemptions are counted, and one whose work is recognised.
        """
        started.callback(guests.destroy_all, lab.slow)
        guests.Guest(lab.slow, vcpus=2, specs=guests.server(
            20, vqos_quantum_class='spin'))
        network = ionet.ClientNetwork(lab.slow, lab.network)
        started.callback(network.remove)
        network.create()
        reading = ioguest.IoGuest(lab.slow, image, readers=1,
                                  specs=guests.server(
                                      10, vqos_quantum_class='auto'))
        started.callback(reading.destroy)
        reading.wait_ready()

    def without_data(self, dashboard):
        """:returns: queries of a dashboard that show nothing of any host"""
        lacking = [self.prometheus.without_data(
            dashboard, host=host, server=self.guest.uuid)
            for host in (self.fast, self.slow)]
        return [query for query in lacking[0] if query in lacking[1]]

    def wait(self, condition, what):
        """:returns: what the condition does, once that is something"""
        return process.wait_until(condition, LIMIT_S, what, interval_s=0.5)

    def wait_firing(self, name):
        """:returns: an alert, once it fires"""
        return self.wait(lambda: self.prometheus.firing().get(name),
                         f'the alert {name}')[0]


@pytest.fixture(scope='module')
def monitored(lab, bus, image):
    requirement.need(monitoring.missing())
    with contextlib.ExitStack() as started:
        yield Monitored(lab, bus, image, started)


@pytest.mark.rotation
@pytest.mark.parametrize('dashboard', dashboards.DASHBOARDS)
def test_every_panel_shows_something(monitored, dashboard):
    lacking = None

    def complete():
        nonlocal lacking
        lacking = [
            found for found in monitored.without_data(dashboard)
            if not NOT_HERE & dashboards.metrics_of(found)]
        return not lacking
    with contextlib.suppress(process.LabError):
        monitored.wait(complete, f'all panels of {dashboard}')
    assert lacking == []


@pytest.mark.rotation
def test_what_is_promised_is_delivered(monitored):
    """By the metrics alone, as an operator would see it."""
    monitored.wait(
        lambda: monitored.guest.uuid in [
            found['metric']['server_uuid']
            for found in monitored.prometheus.query(
                'rate(nova_vqos_server_vcpu_cpu_unit_seconds_total[30s]) / '
                'nova_vqos_server_entitled_cpu_units > 0.9 < 1.1')],
        'what was promised to be delivered')


@pytest.mark.rotation
def test_every_rule_can_be_evaluated(monitored):
    rules = monitored.wait(
        lambda: [rule for rule in monitored.prometheus.rules()
                 if rule['health'] != 'unknown'], 'rules to be evaluated')
    assert len(rules) == len(monitored.prometheus.rules())
    for rule in rules:
        assert rule['health'] == 'ok', rule


@pytest.mark.rotation
def test_names_follow_the_conventions(monitored):
    text = monitored.prometheus.fetch(f'http://{monitored.fast}/metrics')
    assert monitored.guest.uuid in text
    assert promtool('check', 'metrics', text=text) == ''


@pytest.mark.rotation
def test_nothing_is_the_matter(monitored):
    """But for what this host cannot help: nothing is reserved for it.

    Most alerts fire after minutes. Here they fire at once, so they may also
    fire for a second in which the machine stood still.
    """
    def firing():
        return set(monitored.prometheus.firing()) - {
            'NovaVqosReservedTooSmall', 'NovaVqosUnattributedLarge'}
    with contextlib.suppress(process.LabError):
        monitored.wait(lambda: not firing(), 'no alert')
    assert firing() == set()


@pytest.mark.rotation
def test_tampering_raises_an_alert(monitored):
    # Less: more than the limit of all of it cannot be written.
    monitored.guest.meddle(10_000)
    alert = monitored.wait_firing('NovaVqosTampering')
    assert alert['labels']['instance'] == monitored.fast
    assert monitored.fast in alert['annotations']['summary']
    monitored.guest.wait_cap(guests.CAP)


@pytest.mark.rotation
def test_a_host_slower_than_its_profile_raises_an_alert(monitored, lab):
    monitoring.store_verification(lab.slow, 'stale', '-20.0%')
    alert = monitored.wait_firing('NovaVqosProfileDrifted')
    assert alert['labels']['instance'] == monitored.slow


@pytest.mark.rotation
def test_a_class_that_is_not_enforced_raises_an_alert(monitored, lab):
    guest = guests.Guest(lab.fast, specs=guests.server(
        20, vqos_quantum_class='io'))
    # Where the machine was too busy for a proof other guests lack theirs, too.
    monitored.wait(
        lambda: guest.uuid in [
            alert['labels']['server_uuid'] for alert
            in monitored.prometheus.firing().get('NovaVqosClassNotEnforced',
                                                 ())],
        f'an alert for server {guest.uuid}')


@pytest.mark.rotation
def test_an_agent_that_is_gone_raises_an_alert(monitored):
    monitored.agents['slow'].stop()
    alert = monitored.wait_firing('NovaVqosAgentGone')
    assert alert['labels']['instance'] == monitored.slow
