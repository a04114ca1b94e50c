# SPDX-License-Identifier: Apache-2.0
"""Metrics of an agent, its host and its servers, parsed back."""

import json
import logging
import threading
import time

import pytest

from nova_vqos import utc
from nova_vqos.metrics import collector
from nova_vqos.metrics import exposition
from nova_vqos.metrics import families
from nova_vqos.metrics import samples
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import metrics
from nova_vqos.tests.fixtures import quantum_world
from nova_vqos.tests.fixtures import waits

PREFIX = 'nova_vqos_'
SERVER_PREFIX = 'nova_vqos_server_'
BILLED = 'server_billed_cpu_unit_seconds_total'


@pytest.fixture
def agent(tmp_path):
    made = metrics.Agent(tmp_path)
    metrics.store_verification(made.path)
    return made


def names(found):
    return {name for name, _ in found}


def values(found, name, **labels):
    """:returns: of a metric, by its name without the prefix"""
    return metrics.values(found, PREFIX + name, **labels)


class TestFamilies:
    def test_each_metric_appears_where_all_is_known(self, agent):
        assert names(agent.scrape()) == {
            family.name for family in families.ALL}

    def test_types_and_help_are_those_of_the_table(self, agent):
        text = agent.text()
        for family in families.ALL:
            assert f'# HELP {family.name} {family.help}\n' in text
            assert f'# TYPE {family.name} {family.kind}\n' in text

    @pytest.mark.parametrize('family', families.ALL,
                             ids=lambda family: family.name)
    def test_conventions(self, family):
        assert family.name.startswith(PREFIX)
        assert (family.kind == families.COUNTER) is family.name.endswith(
            '_total')
        assert not family.help.endswith('.')
        assert (family.name.startswith(SERVER_PREFIX)
                is (family.labels[:2] == families.SERVER_LABELS))
        # Only one has names: they are not to be in each series.
        texts = set(family.labels) & {'name', 'flavor'}
        assert not texts or family is families.SERVER_INFO


SOFTIRQS = [{'pcpu': 0, 'softirq_s': 5.5, 'ksoftirqd_s': 0.125},
            {'pcpu': 3, 'softirq_s': 70.0, 'ksoftirqd_s': None}]


class TestHost:
    def test_figures(self, agent):
        found = agent.scrape()
        for name, value in {
                'agent_up': 1, 'agent_hypervisor_connected': 1,
                'agent_alarms': 2, 'agent_ledger_stored': 1,
                'agent_last_tick_seconds': 0.0025, 'agent_ticks_total': 10,
                'agent_tamperings_total': 2, 'host_servers': 1,
                'host_servers_wrong': 0, 'host_capacity_cpu_units': 400,
                'host_reserved_cpu_units': 20, 'host_stock_cpu_units': 5,
                'host_work_cpu_units': 7,
                'host_allocation_ratio': 1.5, 'host_profile_valid': 1,
                'host_profile_holds': 1, 'host_unpaid_cpu_units': 1,
                'host_softirq_ratio': 0.25, 'host_saturated_pcpus': 1,
                'host_backlog_dropped_packets_total': 9,
                'host_squeezed_polls_total': 11,
                'host_profile_measured_timestamp_seconds':
                    1_795_341_600}.items():
            assert values(found, name) == [value], name
        assert values(found, 'host_coefficient', pcpu='slowest') == [0.995]
        assert values(found, 'host_io_jain', direction='received') == [0.9]
        assert values(found, 'host_drift_ratio', pcpus='0-3') == [-0.015]
        assert values(found, 'host_kind_drift_ratio', pcpus='0-3',
                      kind='memory-stream') == [-0.04]
        assert values(found, 'host_load_cpu_units', part='unattributed') == [5]
        assert values(found, 'host_class_offered', quantum_class='spin') == [0]
        assert values(found, 'host_pool_vcpus', quantum_class='cache') == [3]

    def test_the_parts_of_the_load_are_all_that_ran(self, agent):
        assert sum(values(agent.scrape(), 'host_load_cpu_units')) == (
            agent.host['capacity']['total_cu'])

    def test_unknown_values_do_not_appear(self, agent):
        agent.path.unlink()
        agent.host.update(units=None, profile=None, capacity=None,
                          quantum=None, problem='there is none')
        found = agent.scrape()
        assert values(found, 'host_profile_valid') == [0]
        for name in ('capacity_cpu_units', 'drift_ratio', 'load_cpu_units',
                     'profile_info', 'pool_pcpus'):
            assert values(found, f'host_{name}') == [], name

    def test_softirqs_of_each_pcpu(self, agent):
        agent.host['capacity']['packets']['softirqs'] = SOFTIRQS
        found = agent.scrape()
        for pcpu, softirq_s, ksoftirqd_s in (('0', [5.5], [0.125]),
                                             ('3', [70.0], [])):
            assert values(found, 'host_softirq_seconds_total',
                          pcpu=pcpu) == softirq_s
            assert values(found, 'host_ksoftirqd_seconds_total',
                          pcpu=pcpu) == ksoftirqd_s

    def test_softirq_time_that_is_not_counted_does_not_appear(self, agent):
        packets = agent.host['capacity']['packets']
        packets['softirq_share'] = None
        packets['softirqs'] = [one | {'softirq_s': None} for one in SOFTIRQS]
        found = agent.scrape()
        assert values(found, 'host_softirq_ratio') == []
        assert values(found, 'host_softirq_seconds_total') == []
        assert values(found, 'host_ksoftirqd_seconds_total') == [0.125]
        assert values(found, 'host_saturated_pcpus') == [1]

    def test_servers_that_cannot_be_compared_do_not_appear(self, agent):
        agent.host['capacity']['fairness'] = {}
        assert values(agent.scrape(), 'host_io_jain') == []

    def test_a_stale_profile_is_not_valid(self, agent):
        agent.host['problem'] = 'another kernel'
        assert values(agent.scrape(), 'host_profile_valid') == [0]

    def test_a_ledger_that_cannot_be_written(self, agent):
        agent.host['dd_billing'] = ['off']
        assert values(agent.scrape(), 'agent_ledger_stored') == [0]

    def test_a_profile_that_was_found_to_be_off(self, agent):
        metrics.store_verification(agent.path, 'stale', '+12.0%')
        found = agent.scrape()
        assert values(found, 'host_profile_holds') == [0]
        assert values(found, 'host_drift_ratio') == [0.12]

    def test_times_that_are_none(self, agent):
        """They are texts in files, and not worth the rest of the page."""
        content = json.loads(agent.path.read_text())
        agent.path.write_text(json.dumps(
            {**content, 'verified_at': 'yesterday'}))
        agent.host['profile']['measured_at'] = ''
        found = agent.scrape()
        for name in ('profile_measured_timestamp_seconds',
                     'verified_timestamp_seconds'):
            assert values(found, f'host_{name}') == []
        assert values(found, 'host_drift_ratio') == [-0.015]

    @pytest.mark.parametrize('change', [
        {'findings': [{'pcpus': '0', 'drift': 'much'}]},
        {'profile_id': 'another'}])
    def test_a_verification_that_says_nothing(self, agent, change):
        content = json.loads(agent.path.read_text())
        agent.path.write_text(json.dumps({**content, **change}))
        found = agent.scrape()
        assert values(found, 'agent_up') == [1]
        assert values(found, 'host_drift_ratio') == []


def test_alarms_of_the_compute_service_count(agent):
    before, = values(agent.scrape(), 'agent_alarms')
    content = json.loads(agent.stats_path.read_text())
    agent.stats_path.write_text(json.dumps({**content, 'alarms': ['one']}))
    assert values(agent.scrape(), 'agent_alarms') == [before + 1]


class TestStranded:
    NAME = 'host_stranded_cpu_units'

    def test_as_the_compute_service_says(self, agent):
        assert values(agent.scrape(), self.NAME) == [80]
        metrics.store_stats(agent.stats_path, stranded_cu=0)
        assert values(agent.scrape(), self.NAME) == [0]

    def test_where_vcpus_need_not_pack(self, agent):
        metrics.store_stats(agent.stats_path)
        assert values(agent.scrape(), self.NAME) == []

    @pytest.mark.parametrize('change', [
        {'at': 'yesterday'}, {'stats': {'vqos_stranded_cu': 'much'}},
        {'version': 2}])
    def test_a_report_that_says_nothing(self, agent, change):
        content = json.loads(agent.stats_path.read_text())
        agent.stats_path.write_text(json.dumps({**content, **change}))
        found = agent.scrape()
        assert values(found, self.NAME) == []
        assert values(found, 'server_vcpus') == [2]
        agent.stats_path.unlink()
        assert values(agent.scrape(), self.NAME) == []

    @pytest.mark.parametrize(('age_s', 'expected'), [(500, [80]), (700, [])])
    def test_an_old_report(self, agent, age_s, expected):
        """The compute service is down: nothing is known of now."""
        content = json.loads(agent.stats_path.read_text())
        agent.stats_path.write_text(json.dumps(
            {**content, 'at': utc.text(time.time() - age_s)}))
        assert values(agent.scrape(), self.NAME) == expected


class TestServer:
    def test_figures(self, agent):
        agent.scrape()
        agent.servers[0]['vcpu_s'] += 100
        found = agent.scrape()
        for name, value in {
                'entitled_cpu_units': 60, 'vcpus': 2, 'coefficient': 0.5,
                'vcpu_seconds_total': 200, 'throttled_seconds_total': 7,
                'vcpu_cpu_unit_seconds_total': 5000,
                'waited_seconds_total': 5, 'cap_right': 1,
                'cap_wrong_seconds': 0.012, 'class_right': 1,
                'slice_seconds': 0.09, 'obtainable_slice_seconds': 0.03,
                'run_length_seconds': 0.02, 'debt_cpu_unit_seconds': 1,
                'written_off_cpu_unit_seconds_total': 2,
                'limit_cpu_units': 55.5, 'overdrawn': 0, 'guaranteed': 1,
                'reserved_pcpus': 0.65}.items():
            assert values(found, f'server_{name}', server_uuid=metrics.UUID,
                          project_id=metrics.PROJECT) == [value], name
        assert values(found, BILLED, component='disk') == [6]

    def test_one_of_which_nothing_is_known(self, agent):
        """As list_servers reports a server that it does not understand."""
        unknown = dict.fromkeys(metrics.make_server())
        agent.servers.append({**unknown, 'server_uuid': 'other'})
        found = agent.scrape()
        assert {name for name, labels in found
                if ('server_uuid', 'other') in labels} == {
                    'nova_vqos_server_info'}

    def test_one_without_units(self, agent):
        agent.servers = [metrics.make_server(
            policy=None, entitled_cu=None, right=None, quantum=None,
            bill=None, last_recap=None, quantum_class='default')]
        found = agent.scrape()
        assert values(found, 'server_vcpu_seconds_total') == [100]
        for name in ('entitled_cpu_units', 'cap_right', 'class_right',
                     'debt_cpu_unit_seconds', 'cap_wrong_seconds'):
            assert values(found, f'server_{name}') == [], name

    @pytest.mark.parametrize('change', [
        {'quantum_class': 'io'},
        {'quantum': {**metrics.make_server()['quantum'], 'problem': 'why'}}])
    def test_one_that_does_not_get_its_class(self, agent, change):
        agent.servers = [metrics.make_server(**change)]
        assert values(agent.scrape(), 'server_class_right') == [0]

    @pytest.mark.parametrize(('quantum_class', 'right'), [
        ('cache', 0), ('neutral', 1), ('auto', 1),
        # It works for too long at a time.
        ('io', 1)])
    def test_one_that_has_no_slice(self, agent, quantum_class, right):
        agent.host['quantum_classes'] = [
            *agent.host['quantum_classes'], 'io']
        (server,) = agent.servers
        server['quantum_class'] = quantum_class
        server['quantum']['vcpus']['1']['slice_us'] = None
        assert values(agent.scrape(), 'server_class_right') == [right]

    def test_how_long_recognition_took(self, agent):
        vcpus = agent.servers[0]['quantum']['vcpus']
        for after_s, expected in ((40.0, [40]), (None, [25])):
            vcpus['1']['recognised_after_s'] = after_s
            assert values(agent.scrape(),
                          'server_recognition_seconds') == expected
        vcpus['0']['recognised_after_s'] = None
        assert values(agent.scrape(), 'server_recognition_seconds') == []

    def test_preemptions_of_one_that_spins(self, agent):
        name = 'server_sibling_preemptions_per_second'
        assert values(agent.scrape(), name) == [1.5]
        del agent.servers[0]['quantum']['sibling_preemptions_per_s']
        assert values(agent.scrape(), name) == []

    def test_vcpus_without_figures(self, agent):
        (server,) = agent.servers
        server['quantum']['vcpus']['1'].update(
            mean_run_us=None, slice_us=None, waited_s=None)
        found = agent.scrape()
        assert values(found, 'server_run_length_seconds') == [0.02]
        assert values(found, 'server_waited_seconds_total') == []

    def test_one_that_is_not_guaranteed(self, agent):
        agent.servers[0]['guarantee'].update(since=None, problem='full')
        assert values(agent.scrape(), 'server_guaranteed') == [0]
        agent.servers[0]['guarantee'].update(ends=True)
        assert values(agent.scrape(), 'server_guaranteed') == []
        assert values(agent.scrape(), 'server_reserved_pcpus') == [0.65]
        agent.servers[0]['guarantee'] = None
        assert values(agent.scrape(), 'server_reserved_pcpus') == []

    def test_one_that_is_corrected(self, agent):
        found = agent.scrape()
        assert values(found, 'server_correction') == [0.9]
        assert values(found, 'server_correction_predicted') == [
            0.8, 0.85, 0.95]
        assert values(found, 'server_instructions_per_cpu_second') == [2e9]
        agent.servers[0]['correction'].update(
            predicted=None, low=None, high=None, instructions_per_cpu_s=None)
        found = agent.scrape()
        assert values(found, 'server_correction') == [0.9]
        assert values(found, 'server_correction_predicted') == []
        assert values(found, 'server_instructions_per_cpu_second') == []

    def test_the_rolling_mean(self, agent):
        name = 'server_rolling_4h_cpu_units'
        assert values(agent.scrape(), name) == [42.5]
        agent.servers[0]['bill']['rolling_4h'] = None
        assert values(agent.scrape(), name) == []

    def test_the_memory_of_its_emulator(self, agent):
        name = 'server_emulator_memory_bytes'
        found = agent.scrape()
        assert values(found, name, bound='low') == [30_000_000]
        assert values(found, name, bound='high') == [90_000_000]
        agent.servers[0]['emulator_memory'] = None
        assert values(agent.scrape(), name) == []

    def test_texts_are_escaped(self, agent):
        # New lines are none any more where a message was read.
        name = 'a "b"\\ {c="d"} 1'
        agent.servers = [metrics.make_server(name=name, flavor='größer')]
        (labels,) = [dict(labels) for one, labels in agent.scrape()
                     if one == 'nova_vqos_server_info']
        assert (labels['name'], labels['flavor']) == (name, 'größer')

    def test_series_do_not_depend_on_its_size(self, agent):
        few = len(agent.scrape())
        (server,) = agent.servers
        vcpus = server['quantum']['vcpus']
        server['quantum']['vcpus'] = {
            str(number): vcpus['0'] for number in range(64)}
        assert len(agent.scrape()) == few


class TestDelivered:
    def test_it_grows_with_the_coefficient_of_the_time(self):
        delivered = samples.Deliveries()
        seen = [delivered.add('a', vcpu_s, coefficient)
                for vcpu_s, coefficient in (
                    (10, 9.0), (20, 1.0), (20, 0.1), (30, 0.5), (40, 2.0))]
        assert seen == [0, 1000, 1000, 1500, 3500]

    def test_another_run_of_its_emulator_is_added(self):
        delivered = samples.Deliveries()
        delivered.add('a', 10, 1.0)
        assert delivered.add('a', 15, 1.0) == 500
        assert delivered.add('a', 2, 1.0) == 700

    def test_those_that_went_are_forgotten(self):
        delivered = samples.Deliveries()
        delivered.add('a', 10, 1.0)
        delivered.add('b', 10, 1.0)
        delivered.forget_all_but(['b'])
        assert delivered.add('a', 20, 0.5) == 0
        assert delivered.add('b', 20, 0.5) == 500

    def test_two_scrapers_get_the_same(self, agent):
        assert agent.scrape() == agent.scrape()


class TestAnAgentThatDoesNotAnswer:
    def test_that_alone_appears(self, agent):
        agent.answers = False
        assert agent.scrape() == {
            ('nova_vqos_agent_up', ()): 0,
            ('nova_vqos_agent_info', (
                ('host', 'compute-1'),
                ('version', dict(next(
                    labels for name, labels in agent.scrape()
                    if name == 'nova_vqos_agent_info'))['version']))): 1}

    def test_it_is_asked_one_question_at_a_time(self, caplog):
        release = threading.Event()
        asked = []

        def question():
            asked.append(threading.current_thread())
            release.wait(waits.LIMIT_S)
            return 'answer'
        flight = collector.SingleFlight(question, timeout_s=0.02)
        assert [flight.ask() for _ in range(5)] == [None] * 5
        assert len(asked) == 1
        release.set()
        waits.wait_until(lambda: flight.ask() == 'answer')
        flight.close()
        assert len([record for record in caplog.records
                    if record.levelno == logging.WARNING]) == 1

    @pytest.mark.parametrize('error', [TimeoutError('held up'),
                                       ValueError('a bug')])
    def test_one_that_fails_is_asked_again(self, error, caplog):
        answers = [error, error, 'answer']

        def question():
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        flight = collector.SingleFlight(question)
        assert [flight.ask() for _ in range(3)] == [None, None, 'answer']
        flight.close()
        assert len([record for record in caplog.records
                    if record.levelno == logging.WARNING]) == 1


def scrape(world, path):
    """Metrics of a real agent's loop."""
    agent = collector.AgentCollector(
        lambda: collector.Snapshot(
            world.ask(world.loop.host_report),
            world.ask(world.loop.servers_report)),
        'compute-1', str(path / 'none'), str(path / 'none'))
    return metrics.parse(exposition.text(agent.samples()))


class TestRealAgent:
    def test_bills(self, tmp_path):
        world = billing.World(tmp_path)
        world.run()
        world.busy(20)
        before = scrape(world, tmp_path)
        assert values(before, 'server_cap_right',
                      server_uuid=fakes.UUID) == [1]
        assert len(values(before, BILLED, server_uuid=fakes.UUID)) == len(
            metrics.COMPONENTS)
        world.busy(20)
        after = scrape(world, tmp_path)
        counters = {name for name, _ in before if name.endswith('_total')}
        assert len(counters) > 5
        assert all(after[key] >= value for key, value in before.items()
                   if key[0] in counters)
        assert values(after, BILLED, component='emulator') > values(
            before, BILLED, component='emulator')

    def test_slices(self, tmp_path, monkeypatch):
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch)
        world.run()
        world.tick(12)
        found = scrape(world, tmp_path)
        for name in 'class_right', 'slice_seconds':
            assert values(found, f'server_{name}'), name
        assert values(found, 'host_class_offered',
                      quantum_class='cache') == [1]


class TestClock:
    def test_of_its_own_time(self, agent):
        found = agent.scrape()
        assert values(found, 'server_clock_hertz') == [2.4e9]
        assert values(found, 'server_clock_coefficient') == [0.4]
        assert values(found, 'server_guarantee_counted_ratio') == [0.6]

    def test_that_of_pcpus_is_none_of_a_server(self, agent):
        agent.servers[0]['clock']['is_own'] = False
        found = agent.scrape()
        assert values(found, 'server_clock_hertz') == []
        assert values(found, 'server_clock_coefficient') == []
