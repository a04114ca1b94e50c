# SPDX-License-Identifier: Apache-2.0
"""What answers say of servers and of the host."""

import dataclasses
import datetime
import json

import pytest

from nova_vqos import cputune
from nova_vqos import primitives
from nova_vqos import utc
from nova_vqos.agent import controller
from nova_vqos.agent import replies
from nova_vqos.agent import server as servers
from nova_vqos.agent import usage_history
from nova_vqos.agent.billing import controller as billing
from nova_vqos.agent.billing import disk_limits
from nova_vqos.agent.caps import state
from nova_vqos.agent.guarantee import state as guarantee
from nova_vqos.agent.messages import calibration
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import server_report
from nova_vqos.agent.quantum import controller as quantum
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.quantum import probe_result
from nova_vqos.tests.fixtures import fakes

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


TERMS = controller.HostTerms(
    profile=None, cgroup_version=1, periods=cputune.DEFAULT_PERIODS,
    reserved_cu=10, allocation_ratio=2.0)


def make_server(units='60', uuid=fakes.UUID, pcpus=None, **others):
    server = servers.Server(uuid, 1, 'booted')
    server.describe(base.Domain(
        uuid=uuid, name='instance-1', vcpus=2, pcpus=pcpus, project_id='p',
        flavor_name='m1', extra_specs=fakes.make_specs(units, **others)
        if units else None))
    return server


def view(server, profile=None, history=None, clocks=base.NO_CLOCKS):
    return replies.ServerView(
        server, state.CapState(server), billing.BillState(server),
        disk_limits.DiskLimitState(server),
        quantum.QuantumState(server), guarantee.GuaranteeState(server),
        None, None, None, history or usage_history.History(), clocks, profile,
        now_s=100.0,
        failed=set())


def reading(at_s, vcpu_ns, throttled_ns=0, run='run'):
    return usage.VcpuTime(run, at_s, vcpu_ns, throttled_ns, 2)


class TestServer:
    def test_a_server_with_units(self):
        server = make_server(dd_billing='account', quantum_class='io')
        found = replies.of_server(view(
            server, fakes.make_profile(coefficient=1.5)))
        assert primitives.to_primitives(found) == {
            'server_uuid': fakes.UUID, 'name': 'instance-1',
            'project_id': 'p', 'origin': 'booted', 'arriving': False,
            'flavor': 'm1', 'flavor_id': '', 'policy': {
                'vcpus': 2, 'units': 60, 'cap': 'hard',
                'quantum_class': 'io', 'dd_billing': 'account',
                'guarantee': 'off', 'work': '',
                'project_ceiling_cu': None, 'burst_cu': None,
                'burst_seconds': None},
            'policy_source': dict.fromkeys(
                ('units', 'cap', 'work', 'project_ceiling_cu', 'burst_cu',
                 'burst_seconds', 'guarantee', 'quantum_class',
                 'dd_billing'),
                'flavor'),
            'booted': {'quantum_class': 'io', 'dd_billing': 'account',
                       'guarantee': 'off'},
            'pushed': None, 'push_error': '',
            'entitled_cu': 60, 'quantum_class': 'io',
            'dd_billing': 'account', 'right': False, 'problem': '',
            'coefficient': 1.5, 'vcpu_s': None, 'throttled_s': None,
            'rates': None, 'clock': None, 'emulator_memory': None,
            'bill': None, 'quantum': None,
            'disk_limit': None, 'guarantee': None, 'correction': None,
            'ceiling': None, 'burst': None, 'last_recap': None}

    def test_one_that_comes_is_reported_by_two_hosts(self):
        server = servers.Server(fakes.UUID, 1, 'migrated')
        server.describe(base.Domain(
            uuid=fakes.UUID, name='instance-1', vcpus=2, pcpus=None,
            extra_specs=fakes.make_specs(), incoming=True))
        assert replies.of_server(view(server)).arriving is True

    def test_a_domain_that_is_no_server(self):
        found = replies.of_server(view(make_server(units=None)))
        assert found.policy is None
        assert found.entitled_cu is None
        assert found.right is None
        assert found.coefficient is None

    def test_one_that_was_not_described_yet(self):
        found = replies.of_server(view(servers.Server(fakes.UUID, 1),
                                       fakes.make_profile()))
        assert (found.name, found.project_id, found.flavor) == ('', '', '')
        assert found.coefficient is None

    def test_counters_and_rates(self):
        history = usage_history.History()
        history.add(reading(40.0, 10_000_000_000, 1_000_000_000))
        history.add(reading(90.0, 25_000_000_000, 11_000_000_000))
        found = replies.of_server(view(
            make_server(), fakes.make_profile(coefficient=2.0), history))
        assert (found.vcpu_s, found.throttled_s) == (25.0, 11.0)
        assert found.rates == server_report.Rates(50.0, 60.0, 0.1)

    def test_a_pcpu_that_was_not_measured_is_as_slow_as_any(self):
        found = replies.of_server(view(
            make_server(pcpus=frozenset({0, 77})),
            fakes.make_profile(coefficient=1.25)))
        assert found.coefficient == 1.25

    def test_in_detail_there_is_more(self):
        seen = view(make_server(), fakes.make_profile())
        brief, whole = map(primitives.to_primitives, (
            replies.of_server(seen), replies.in_detail(seen)))
        assert brief.items() < whole.items()
        json.dumps(whole)

    def test_counters_have_the_time_at_which_they_were_read(self):
        history = usage_history.History()
        assert replies.in_detail(view(
            make_server(), history=history)).sampled_at is None
        history.add(reading(40.0, 10_000_000_000))
        before = datetime.datetime.now(datetime.UTC)
        found = utc.parse(replies.in_detail(view(
            make_server(), history=history)).sampled_at)
        after = datetime.datetime.now(datetime.UTC)
        # The view is of 100 s, on the same clock.
        ago = datetime.timedelta(seconds=60)
        slack = datetime.timedelta(milliseconds=1)
        assert before - ago - slack <= found <= after - ago

    def test_in_detail_there_are_more_rates(self):
        history = usage_history.History()
        for at_s in range(0, 301, 10):
            # Idle until the last interval.
            history.add(reading(at_s, 6_000_000_000 * (at_s == 300), 0))
        found = replies.in_detail(view(
            make_server(), fakes.make_profile(coefficient=2.0), history))
        assert found.rates_10s == server_report.Rates(10.0, 120.0, 0.0)
        assert found.rates.delivered_cu == 20.0
        assert found.rates_5min == server_report.Rates(300.0, 4.0, 0.0)

    @pytest.mark.causes_faults
    def test_one_that_is_broken_costs_its_fields_alone(self, caplog):
        broken = view(make_server(), fakes.make_profile())
        broken.server.domain = 17
        for _ in range(2):
            found = replies.of_server(broken)
        assert found.flavor is None
        assert found.entitled_cu == 60
        # Each field of it once, however often it is asked for.
        assert len(caplog.records) == len(
            {record.getMessage() for record in caplog.records})


class TestHost:
    def test_units(self):
        profile = fakes.make_profile(coefficient=1.26)
        known = [make_server(), make_server('40'), make_server(None)]
        assert replies.of_units(
            dataclasses.replace(TERMS, profile=profile), known
        ) == host_report.Units(
                capacity_cu=252, reserved_cu=10, allocation_ratio=2.0,
                used_cu=100, slowest_cu=126.0, fastest_cu=126.0)

    def test_without_a_profile_there_are_none(self):
        assert replies.of_units(TERMS, []) is None

    def test_what_cannot_be_reserved(self):
        terms = dataclasses.replace(
            TERMS, profile=fakes.make_profile(), reserved_cu=10)
        has = replies.of_units(terms, []).capacity_cu / 100
        for total_pcpus, stock_cu, reserved_cu in (
                (0.0, 0, 10), (has - 0.5, 0, 50), (has - 0.05, 0, 10),
                (0.0, 70, 80), (has - 0.5, 70, 80), (has - 0.5, 20, 50)):
            found = replies.of_units(
                dataclasses.replace(terms, stock_cu=stock_cu), [],
                total_pcpus)
            assert (found.reserved_cu, found.stock_cu) == (
                reserved_cu, stock_cu)
            # What servers take beyond their units comes on top.
            found = replies.of_units(
                dataclasses.replace(terms, stock_cu=stock_cu, work_cu=7), [],
                total_pcpus)
            assert (found.reserved_cu, found.work_cu) == (reserved_cu + 7, 7)
        assert replies.of_profile(None, NOW) is None

    @pytest.mark.parametrize('created_at, age_s', [
        ('2026-01-01T00:00:00+00:00', 86_400.0),
        ('2026-01-01T23:59:50', 10.0),
        ('2026-01-03T00:00:00+00:00', 0.0),
        ('yesterday', None)])
    def test_the_age_of_a_profile(self, created_at, age_s):
        profile = fakes.make_profile()._replace(created_at=created_at)
        found = replies.of_profile(profile, NOW)
        assert found == calibration.Profile(
            id=profile.id, reference=profile.reference.name,
            measured_at=created_at, age_s=age_s)

    def test_what_the_kernel_was_seen_to_do(self):
        assert replies.of_proof(None) is None
        made = replies.of_proof(probe_result.ProbeResult(
            'k', 'boot', 4000, 'then', {'io': probe_result.Outcome(
                100, None, None, 'busy')}))
        assert primitives.to_primitives(made) == {
            'kernel': 'k', 'measured_at': 'then', 'classes': {'io': {
                'slice_us': 100, 'mean_run_us': None, 'enforced': None,
                'reason': 'busy', 'wait_us': None, 'work_us': None}}}
