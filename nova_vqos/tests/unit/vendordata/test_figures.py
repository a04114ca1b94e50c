# SPDX-License-Identifier: Apache-2.0
"""What a tenant is told of his server, and what not."""

import dataclasses
import json
import re

import pytest

from nova_vqos import primitives
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import server_report
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import project
from nova_vqos.vendordata import figures

# Names in the answer of an agent that no guest may read.
SECRET = 'secret'


def make_server(**others):
    return server_report.ServerDetail(server_uuid=fakes.UUID, **{
        'entitled_cu': 60, 'coefficient': 2.0, 'vcpu_s': 30.0,
        'throttled_s': 70.0, 'sampled_at': '2026-11-27T10:00:00.000+00:00',
        'rates': server_report.Rates(60.0, 59.9, 0.7), **others})


@pytest.fixture
def host(tmp_path):
    return billing_host.Host(tmp_path)


def read(server):
    """As the guest has it."""
    return json.loads(json.dumps(figures.of(server).to_dict()))


class TestFigures:
    def test_what_was_promised_delivered_and_withheld(self):
        found = read(make_server())
        assert found.pop('at')
        assert found == {
            'version': '1.1', 'available': True, 'problem': '',
            'promised_cu': 60, 'guaranteed': None, 'cu_per_pcpu': 200.0,
            'sampled_at': '2026-11-27T10:00:00.000+00:00', 'cpu_s': 30.0,
            'withheld_s': 70.0, 'over_s': 60.0, 'delivered_cu': 59.9,
            'withheld_share': 0.7, 'delivered_cu_s': None, 'io': None,
            'burst': None}

    def test_one_that_pays_for_its_io(self, host):
        host.begin(billing='charge', limit_share=1.0)
        bill = host.use(times=10, vcpu_ns=10**9, emulator_ns=10**8).report
        found = read(make_server(bill=bill))
        assert found['delivered_cu_s'] == pytest.approx(1000)
        assert found['io']['charged'] is True
        assert found['io']['used_cu_s']['emulator'] == pytest.approx(100)
        assert 'vcpu' not in found['io']['used_cu_s']
        assert found['io']['limit_cu'] == bill.limit_cu

    def test_one_that_only_has_an_account(self, host):
        host.begin(billing='account')
        bill = host.use(times=2, emulator_ns=10**8).report
        found = read(make_server(bill=bill))['io']
        assert (found['charged'], found['limit_cu']) == (False, None)

    def test_what_it_saved(self):
        """Without the reason that the host gives."""
        found = read(make_server(burst=enforcement.Burst(
            burst_cu=90, left_cu=60.0, saved_cu_s=1200.5,
            most_saved_cu_s=36_000.0, problem=SECRET)))
        assert found['burst'] == {
            'burst_cu': 90, 'left_cu': 60.0, 'saved_cu_s': 1200.5,
            'most_saved_cu_s': 36_000.0}

    @pytest.mark.parametrize('since, ends, guaranteed', [
        ('2026-11-27T10:00:00+00:00', False, True), (None, False, False),
        ('2026-11-27T10:00:00+00:00', True, None)])
    def test_a_guarantee(self, since, ends, guaranteed):
        found = read(make_server(guarantee=enforcement.Guarantee(
            since=since, vcpus=1, runtime_us=1, period_us=2,
            reserved_pcpus=0.5, problem=SECRET, ends=ends)))
        assert found['guaranteed'] is guaranteed

    def test_one_without_units_or_samples(self):
        found = read(server_report.ServerDetail(server_uuid=fakes.UUID))
        assert found['available'] is True
        assert {name for name, value in found.items() if value is None} == {
            'promised_cu', 'guaranteed', 'cu_per_pcpu', 'sampled_at', 'cpu_s',
            'withheld_s', 'over_s', 'delivered_cu', 'withheld_share',
            'delivered_cu_s', 'io', 'burst'}

    def test_no_text_of_the_host_is_in_it(self, host):
        """Names, reasons and other figures of an answer stay inside."""
        host.begin(billing='charge', limit_share=1.0)
        bill = host.use(times=2, emulator_ns=10**8).report
        texts = {field.name: SECRET
                 for field in dataclasses.fields(server_report.ServerDetail)
                 if field.type == str | None and field.name != 'sampled_at'}
        assert {'name', 'project_id', 'problem', 'policy_error'} <= set(texts)
        server = make_server(
            bill=dataclasses.replace(bill, server_uuid=SECRET,
                                     project_id=SECRET,
                                     not_modelled=(SECRET,)), **texts)
        assert SECRET in json.dumps(primitives.to_primitives(server))
        assert SECRET not in json.dumps(figures.of(server).to_dict())


@pytest.mark.parametrize('problem', figures.Problem)
def test_where_there_are_none(problem):
    found = figures.missing(problem).to_dict()
    assert found['available'] is False
    assert found['problem'] == problem.value
    assert found['promised_cu'] is None


@project.needs_checkout
class TestReference:
    PAGE = 'doc/source/reference/vendordata.rst'

    @pytest.fixture
    def page(self):
        return (project.TOP / self.PAGE).read_text()

    def test_it_explains_each_field_and_problem(self, page):
        for kind in (figures.Figures, figures.Io, figures.Burst):
            for field in dataclasses.fields(kind):
                assert f'``{field.name}``\n' in page
        for problem in figures.Problem:
            assert f'* - ``{problem.value}``\n' in page
        assert f'version {figures.VERSION} ' in page

    def test_its_example_is_an_answer(self, page, host):
        found = re.search(r'code-block:: json\n\n((?: +.*\n|\n)+)', page)
        host.begin(billing='charge', limit_share=1.0)
        bill = host.use(times=2, emulator_ns=10**8).report
        example, sent = json.loads(found[1]), read(make_server(bill=bill))
        assert list(example) == list(sent)
        assert list(example['io']) == list(sent['io'])
        assert set(example['io']['used_cu_s']) == set(
            sent['io']['used_cu_s'])
        assert example['version'] == sent['version']
