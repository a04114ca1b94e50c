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
"""What others are told of servers and of the host, in primitives."""

import datetime
import json
import time

import pytest

from nova_vqos import tuning
from nova_vqos.agent import decision
from nova_vqos.agent import server as servers
from nova_vqos.agent import snapshot
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.quantum import proof as proofs
from nova_vqos.tests.unit import fake_hypervisor as fakes

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


def make_moment(profile=None, now_s=100.0):
    return snapshot.Moment(decision.HostTerms(
        profile=profile, cgroup_version=1, periods=tuning.DEFAULT_PERIODS,
        reserved_cu=10, allocation_ratio=2.0), now_s)


def make_server(units='60', uuid=fakes.UUID, pcpus=None, **others):
    server = servers.Server(uuid, 1, 'booted')
    server.take_description(base.Domain(
        uuid=uuid, name='instance-1', vcpus=2, pcpus=pcpus, project_id='p',
        flavor_name='m1', extra_specs=fakes.make_specs(units, **others)
        if units else None), 1.0)
    return server


def reading(at_s, vcpu_ns, throttled_ns=0, run='run'):
    return usage.VcpuTime(run, at_s, vcpu_ns, throttled_ns, 2)


class TestServer:
    def test_a_server_with_units(self):
        server = make_server(dd_billing='account', quantum_class='io')
        found = snapshot.of_server(server, make_moment(
            fakes.make_profile(coefficient=1.5)))
        assert found.pop('policy')['units'] == 60
        assert found == {
            'server_uuid': fakes.UUID, 'name': 'instance-1',
            'project_id': 'p', 'origin': 'booted', 'arriving': False,
            'flavor': 'm1',
            'flavor_id': '', 'policy_source': dict.fromkeys(
                ('units', 'cap', 'quantum_class', 'dd_billing'), 'flavor'),
            'booted': {'quantum_class': 'io', 'dd_billing': 'account'},
            'pushed': None, 'push_error': '',
            'entitled_cu': 60, 'quantum_class': 'io',
            'dd_billing': 'account', 'right': False, 'problem': '',
            'coefficient': 1.5, 'vcpu_s': None, 'throttled_s': None,
            'rates': None, 'bill': None, 'quantum': None,
            'last_recap': None}

    def test_one_that_comes_is_told_of_by_two_hosts(self):
        server = servers.Server(fakes.UUID, 1, 'migrated')
        server.take_description(base.Domain(
            uuid=fakes.UUID, name='instance-1', vcpus=2, pcpus=None,
            extra_specs=fakes.make_specs(), incoming=True), 1.0)
        assert snapshot.of_server(server, make_moment())['arriving'] is True

    def test_a_domain_that_is_no_server(self):
        found = snapshot.of_server(make_server(units=None), make_moment())
        assert found['policy'] is None
        assert found['entitled_cu'] is None
        assert found['right'] is None
        assert found['coefficient'] is None

    def test_one_that_was_not_described_yet(self):
        found = snapshot.of_server(servers.Server(fakes.UUID, 1),
                                   make_moment(fakes.make_profile()))
        assert (found['name'], found['project_id'], found['flavor']) == (
            '', '', '')
        assert found['coefficient'] is None

    def test_counters_and_rates(self):
        server = make_server()
        server.history.add(reading(40.0, 10_000_000_000, 1_000_000_000))
        server.history.add(reading(90.0, 25_000_000_000, 11_000_000_000))
        moment = make_moment(fakes.make_profile(coefficient=2.0))
        found = snapshot.of_server(server, moment)
        assert (found['vcpu_s'], found['throttled_s']) == (25.0, 11.0)
        assert found['rates'] == {'over_s': 50.0, 'delivered_cu': 60.0,
                                  'throttled': 0.1}

    def test_a_pcpu_that_was_not_measured_is_as_slow_as_any(self):
        found = snapshot.of_server(
            make_server(pcpus=frozenset({0, 77})),
            make_moment(fakes.make_profile(coefficient=1.25)))
        assert found['coefficient'] == 1.25

    def test_in_detail_there_is_more(self):
        server, moment = make_server(), make_moment(fakes.make_profile())
        brief = snapshot.of_server(server, moment)
        whole = snapshot.in_detail(server, moment)
        assert brief.items() <= whole.items()
        assert {'wanted', 'in_force', 'tamperings', 'writes'} <= whole.keys()
        json.dumps(whole)

    def test_one_that_is_broken_costs_its_fields_alone(self, caplog):
        broken, other = make_server(), make_server(uuid=fakes.OTHER_UUID)
        broken.domain = 17
        for _ in range(2):
            found = snapshot.of_servers([other, broken],
                                        make_moment(fakes.make_profile()))
        assert [server['server_uuid'] for server in found] == [
            fakes.UUID, fakes.OTHER_UUID]
        assert found[0]['flavor'] is None
        assert found[0]['entitled_cu'] == 60
        assert found[1]['flavor'] == 'm1'
        # Each field of it once, however often it is asked for.
        assert len(caplog.records) == len(
            {record.getMessage() for record in caplog.records})


class TestMany:
    MANY = 200

    @staticmethod
    def used_ns(known, moment):
        """CPU time of one answer about all servers, the least of some."""
        found_ns = []
        for _ in range(10):
            began_ns = time.thread_time_ns()
            snapshot.of_servers(known, moment)
            found_ns.append(time.thread_time_ns() - began_ns)
        return min(found_ns)

    def test_an_answer_costs_no_more_for_each_where_there_are_many(self):
        known = [make_server(uuid=fakes.UUID[:-3] + f'{number:03}')
                 for number in range(self.MANY)]
        for server in known:
            server.history.add(reading(40.0, 10))
            server.history.add(reading(90.0, 20))
        moment = make_moment(fakes.make_profile())
        few = known[:self.MANY // 10]
        assert self.used_ns(known, moment) < 30 * self.used_ns(few, moment)
        assert len(snapshot.of_servers(known, moment)) == self.MANY


class TestHost:
    def test_units(self):
        moment = make_moment()
        profile = fakes.make_profile(coefficient=1.26)
        assert snapshot.of_units(
            profile, moment.terms,
            [make_server(), make_server('40'), make_server(None)]) == {
                'capacity_cu': 252, 'reserved_cu': 10,
                'allocation_ratio': 2.0, 'used_cu': 100,
                'slowest_cu': 126.0, 'fastest_cu': 126.0}

    def test_without_a_profile_there_are_none(self):
        assert snapshot.of_units(None, make_moment().terms, []) is None
        assert snapshot.of_profile(None, NOW) is None

    @pytest.mark.parametrize('created_at, age_s', [
        ('2026-01-01T00:00:00+00:00', 86_400.0),
        ('2026-01-01T23:59:50', 10.0),
        ('2026-01-03T00:00:00+00:00', 0.0),
        ('yesterday', None)])
    def test_the_age_of_a_profile(self, created_at, age_s):
        profile = fakes.make_profile()._replace(created_at=created_at)
        found = snapshot.of_profile(profile, NOW)
        assert found == {
            'id': profile.id, 'reference': profile.reference.name,
            'measured_at': created_at, 'age_s': age_s}

    def test_what_the_kernel_was_seen_to_do(self):
        assert snapshot.of_proof(None) is None
        assert snapshot.of_proof(proofs.Proof(
            'k', 'boot', 4000, 'then', {'io': proofs.Outcome(
                100, None, None, 'busy')})) == {
            'kernel': 'k', 'measured_at': 'then', 'classes': {'io': {
                'slice_us': 100, 'mean_run_us': None, 'enforced': None,
                'reason': 'busy'}}}
