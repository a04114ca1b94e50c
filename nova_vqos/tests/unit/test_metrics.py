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

"""What is told of an agent, its host and its servers, parsed back."""

import json
import logging
import threading
import time

import prometheus_client
import pytest

from nova_vqos.agent import manager
from nova_vqos.metrics import collector
from nova_vqos.metrics import families
from nova_vqos.metrics import of_servers
from nova_vqos.tests.unit import billing_world
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import metrics_case as case
from nova_vqos.tests.unit import test_agent_quanta

PREFIX = 'nova_vqos_'
SERVER_PREFIX = 'nova_vqos_server_'


@pytest.fixture
def agent(tmp_path):
    made = case.Agent(tmp_path)
    case.store_verification(made.path)
    return made


def names(found):
    return {name for name, _ in found}


class TestFamilies:
    def test_each_is_told_where_all_is_known(self, agent):
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


class TestHost:
    def test_figures(self, agent):
        found = agent.scrape()
        for name, value in {
                'agent_up': 1, 'agent_hypervisor_connected': 1,
                'agent_alarms': 2, 'agent_ledger_stored': 1,
                'agent_last_tick_seconds': 0.0025, 'agent_ticks_total': 10,
                'agent_tamperings_total': 2, 'host_servers': 1,
                'host_servers_wrong': 0, 'host_capacity_cpu_units': 400.5,
                'host_allocation_ratio': 1.5, 'host_profile_valid': 1,
                'host_profile_holds': 1, 'host_unpaid_cpu_units': 1,
                'host_profile_measured_timestamp_seconds':
                    1_795_341_600}.items():
            assert case.values(found, PREFIX + name) == [value], name
        assert case.values(found, 'nova_vqos_host_coefficient',
                           pcpu='slowest') == [0.995]
        assert case.values(found, 'nova_vqos_host_drift_ratio',
                           pcpus='0-3') == [-0.015]
        assert case.values(found, 'nova_vqos_host_load_cpu_units',
                           part='unattributed') == [5]
        assert case.values(found, 'nova_vqos_host_class_offered',
                           quantum_class='spin') == [0]
        assert case.values(found, 'nova_vqos_host_pool_vcpus',
                           quantum_class='cache') == [3]

    def test_the_parts_of_the_load_are_all_that_ran(self, agent):
        assert sum(case.values(
            agent.scrape(), 'nova_vqos_host_load_cpu_units')) == (
                agent.host['capacity']['total_cu'])

    def test_what_is_not_known_is_not_told(self, agent):
        agent.path.unlink()
        agent.host.update(units=None, profile=None, capacity=None,
                          quantum=None, problem='there is none')
        found = agent.scrape()
        assert case.values(found, 'nova_vqos_host_profile_valid') == [0]
        for name in ('capacity_cpu_units', 'drift_ratio', 'load_cpu_units',
                     'profile_info', 'pool_pcpus'):
            assert case.values(found, f'nova_vqos_host_{name}') == [], name

    def test_a_stale_profile_is_not_valid(self, agent):
        agent.host['problem'] = 'another kernel'
        assert case.values(
            agent.scrape(), 'nova_vqos_host_profile_valid') == [0]

    def test_a_ledger_that_cannot_be_written(self, agent):
        agent.host['dd_billing'] = ['off']
        assert case.values(
            agent.scrape(), 'nova_vqos_agent_ledger_stored') == [0]

    def test_a_profile_that_was_found_to_be_off(self, agent):
        case.store_verification(agent.path, 'stale', '+12.0%')
        found = agent.scrape()
        assert case.values(found, 'nova_vqos_host_profile_holds') == [0]
        assert case.values(found, 'nova_vqos_host_drift_ratio') == [0.12]

    def test_times_that_are_none(self, agent):
        """They are texts in files, and not worth the rest of the page."""
        content = json.loads(agent.path.read_text())
        agent.path.write_text(json.dumps(
            {**content, 'verified_at': 'yesterday'}))
        agent.host['profile']['measured_at'] = ''
        found = agent.scrape()
        for name in ('profile_measured_timestamp_seconds',
                     'verified_timestamp_seconds'):
            assert case.values(found, f'nova_vqos_host_{name}') == []
        assert case.values(found, 'nova_vqos_host_drift_ratio') == [-0.015]

    @pytest.mark.parametrize('change', [
        {'findings': [{'pcpus': '0', 'drift': 'much'}]},
        {'profile_id': 'another'}])
    def test_a_verification_that_says_nothing(self, agent, change):
        content = json.loads(agent.path.read_text())
        agent.path.write_text(json.dumps({**content, **change}))
        found = agent.scrape()
        assert case.values(found, 'nova_vqos_agent_up') == [1]
        assert case.values(found, 'nova_vqos_host_drift_ratio') == []


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
                'limit_cpu_units': 55.5, 'overdrawn': 0}.items():
            assert case.values(
                found, SERVER_PREFIX + name, server_uuid=case.UUID,
                project_id=case.PROJECT) == [value], name
        assert case.values(
            found, 'nova_vqos_server_billed_cpu_unit_seconds_total',
            component='disk') == [6]

    def test_one_of_which_nothing_is_known(self, agent):
        """As list_servers tells of one that it does not understand."""
        unknown = dict.fromkeys(case.make_server())
        agent.servers.append({**unknown, 'server_uuid': 'other'})
        found = agent.scrape()
        assert {name for name, labels in found
                if ('server_uuid', 'other') in labels} == {
                    'nova_vqos_server_info'}

    def test_one_without_units(self, agent):
        agent.servers = [case.make_server(
            policy=None, entitled_cu=None, right=None, quantum=None,
            bill=None, last_recap=None, quantum_class='default')]
        found = agent.scrape()
        assert case.values(
            found, 'nova_vqos_server_vcpu_seconds_total') == [100]
        for name in ('entitled_cpu_units', 'cap_right', 'class_right',
                     'debt_cpu_unit_seconds', 'cap_wrong_seconds'):
            assert case.values(found, SERVER_PREFIX + name) == [], name

    @pytest.mark.parametrize('change', [
        {'quantum_class': 'io'},
        {'quantum': {**case.make_server()['quantum'], 'problem': 'why'}}])
    def test_one_that_does_not_get_its_class(self, agent, change):
        agent.servers = [case.make_server(**change)]
        assert case.values(
            agent.scrape(), 'nova_vqos_server_class_right') == [0]

    @pytest.mark.parametrize(('quantum_class', 'right'), [
        ('cache', 0), ('neutral', 1), ('auto', 1)])
    def test_one_whose_pool_has_no_slice(self, agent, quantum_class, right):
        (server,) = agent.servers
        server['quantum_class'] = quantum_class
        server['quantum']['vcpus']['1']['slice_us'] = None
        assert case.values(
            agent.scrape(), 'nova_vqos_server_class_right') == [right]

    def test_vcpus_without_figures(self, agent):
        (server,) = agent.servers
        server['quantum']['vcpus']['1'].update(
            mean_run_us=None, slice_us=None, waited_s=None)
        found = agent.scrape()
        assert case.values(
            found, 'nova_vqos_server_run_length_seconds') == [0.02]
        assert case.values(
            found, 'nova_vqos_server_waited_seconds_total') == []

    def test_texts_are_escaped(self, agent):
        name = 'a "b"\\ \n{c="d"} 1'
        agent.servers = [case.make_server(name=name, flavor='größer')]
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
        delivered = of_servers.Deliveries()
        seen = [delivered.cu_s('a', vcpu_s, coefficient)
                for vcpu_s, coefficient in (
                    (10, 9.0), (20, 1.0), (20, 0.1), (30, 0.5), (40, 2.0))]
        assert seen == [0, 1000, 1000, 1500, 3500]

    def test_another_run_of_its_emulator_is_added(self):
        delivered = of_servers.Deliveries()
        delivered.cu_s('a', 10, 1.0)
        assert delivered.cu_s('a', 15, 1.0) == 500
        assert delivered.cu_s('a', 2, 1.0) == 700

    def test_those_that_went_are_forgotten(self):
        delivered = of_servers.Deliveries()
        delivered.cu_s('a', 10, 1.0)
        delivered.cu_s('b', 10, 1.0)
        delivered.keep(['b'])
        assert delivered.cu_s('a', 20, 0.5) == 0
        assert delivered.cu_s('b', 20, 0.5) == 500

    def test_two_who_scrape_are_told_the_same(self, agent):
        assert agent.scrape() == agent.scrape()


class TestAnAgentThatDoesNotAnswer:
    def test_that_alone_is_told(self, agent):
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
            release.wait(20)
            return 'answer'
        flight = collector.SingleFlight(question, timeout_s=0.02)
        assert [flight.ask() for _ in range(5)] == [None] * 5
        assert len(asked) == 1
        release.set()
        end_s = time.monotonic() + 20
        while (answer := flight.ask()) is None:
            assert time.monotonic() < end_s
        assert answer == 'answer'
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
    """What is told of a real agent's loop."""
    endpoint = manager.AgentManager(world.loop, 'compute-1')
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector.AgentCollector(
        lambda: collector.Snapshot(
            world.ask(lambda: endpoint.get_host({})),
            world.ask(lambda: endpoint.list_servers({}))),
        'compute-1', str(path / 'none')))
    return case.parse(prometheus_client.generate_latest(registry).decode())


class TestRealAgent:
    def test_bills(self, tmp_path):
        world = billing_world.World(tmp_path)
        world.boot()
        world.start()
        world.busy(20)
        before = scrape(world, tmp_path)
        assert case.values(before, 'nova_vqos_server_cap_right',
                           server_uuid=fakes.UUID) == [1]
        assert len(case.values(
            before, 'nova_vqos_server_billed_cpu_unit_seconds_total',
            server_uuid=fakes.UUID)) == len(case.COMPONENTS)
        world.busy(20)
        after = scrape(world, tmp_path)
        counters = {name for name, _ in before if name.endswith('_total')}
        assert len(counters) > 5
        assert all(after[key] >= value for key, value in before.items()
                   if key[0] in counters)
        assert case.values(
            after, 'nova_vqos_server_billed_cpu_unit_seconds_total',
            component='emulator') > case.values(
                before, 'nova_vqos_server_billed_cpu_unit_seconds_total',
                component='emulator')

    def test_slices(self, tmp_path, monkeypatch):
        world = test_agent_quanta.make_world(
            tmp_path, test_agent_quanta.FakeWatch(), monkeypatch)
        test_agent_quanta.boot(world)
        world.start()
        world.tick(12)
        found = scrape(world, tmp_path)
        for name in 'class_right', 'slice_seconds':
            assert case.values(found, SERVER_PREFIX + name), name
        assert case.values(found, 'nova_vqos_host_class_offered',
                           quantum_class='cache') == [1]
