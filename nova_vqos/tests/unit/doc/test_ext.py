# SPDX-License-Identifier: Apache-2.0
"""What the reference is made of, below doc/ext."""

import copy
import importlib
import json

import pytest

from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import host_report
from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout


@pytest.fixture
def load(monkeypatch):
    """Imports a module of doc/ext, those that need no Sphinx."""
    monkeypatch.syspath_prepend(project.TOP / 'doc/ext')
    return importlib.import_module


class TestDescriptions:
    def test_names_and_their_descriptions(self, load):
        assert load('descriptions').described([
            ':a: first', '    and more', '', ':vqos:b: second']) == {
                'a': 'first and more', 'vqos:b': 'second'}

    @pytest.mark.parametrize(('lines', 'error'), [
        (['of nothing'], "'of nothing' describes nothing"),
        (['   of nothing'], 'describes nothing'),
        ([':a: one', 'two'], "'two' describes nothing"),
        ([':a: one', ':a: two'], 'a is described twice')])
    def test_what_is_no_description(self, load, lines, error):
        with pytest.raises(ValueError, match=error):
            load('descriptions').described(lines)

    def test_all_that_there_is_has_to_be_described_and_no_more(self, load):
        descriptions = load('descriptions')
        descriptions.check({'a': ()}, {'a': 'first'})
        with pytest.raises(ValueError, match='^b: not described; '
                                             'c, d: there is no such$'):
            descriptions.check(['a', 'b'], {'a': '', 'c': '', 'd': ''})

    def test_a_table(self, load):
        assert load('descriptions').table(
            ('Name', 'What'), (30, 70), [('a', 'first')]).splitlines() == [
                '.. list-table::', '   :header-rows: 1', '   :widths: 30 70',
                '', '   * - Name', '     - What', '   * - a', '     - first']


class TestProfileLimits:
    @pytest.fixture
    def example(self):
        return json.loads((
            project.TOP / 'doc/source/reference/profile.yaml').read_text())

    def test_what_the_programs_say(self, load, example):
        before = copy.deepcopy(example)
        limits = load('profile_limits')
        found = {name: (must_be, optional) for name, must_be, optional
                 in limits.limits(example, example)}
        assert found['measured_in'] == ('host or guest', False)
        assert found['is_reference'] == ('true or false', False)
        assert found['cpu_classes'] == ('a list of 1 to 64 mappings', False)
        assert found['io'] == ('a mapping of fields', True)
        assert set(found) == set(example)
        assert example == before

    @pytest.mark.parametrize(('path', 'field', 'expected'), [
        ('reference.benchmarks[]', 'round_events', (
            'a number from 1 to 1e+12', True)),
        ('cpu_classes[].busy', 'interval', (
            'a list of 2 positive numbers', False)),
        ('io.disks[]', 'source', ('one of file, block, network', False)),
        ('quantum.curves[].points[]', 'slice_us', (
            'a number from 100 to 100000', True))])
    def test_parts_have_their_text(self, load, example, path, field, expected):
        limits = load('profile_limits')
        found = {name: tuple(said) for name, *said in limits.limits(
            example, limits.at(example, path))}
        assert found[field] == expected

    def test_an_unused_field_is_an_error(self, load, example):
        example['remark'] = 'of the operator'
        with pytest.raises(ValueError, match='remark: nothing is wrong'):
            list(load('profile_limits').limits(example, example))


class TestRpcFacts:
    def test_who_is_asked_and_since_when(self, load):
        asked = load('rpc_facts').asked()
        assert asked['apply_policy'] == ('cast to one', '1.0')
        assert asked['claim_ledger'] == ('cast to one or all', '1.6')
        assert asked['list_servers'] == ('call to one', '1.2')
        assert asked['compare_pushed'] == ('call to any', '1.2')

    def test_questions_and_their_answers(self, load):
        facts = load('rpc_facts')
        assert set(facts.asked()) == set(facts.methods())
        assert facts.methods()['get_host'] is manager.AgentManager.get_host
        for method in vars(rpcapi).values():
            if isinstance(method, rpcapi.Method):
                assert facts.answers()[method.name] is method.reply

    def test_fields_of_answers(self, load):
        facts = load('rpc_facts')
        assert {'Host', 'LoopReport', 'Server', 'Slices', 'Vcpu',
                'ServerPolicy', 'Override'} <= facts.records().keys()
        found = {name: words for name, *words in facts.fields(
            host_report.LoopReport)}
        assert found['connected'] == [
            'true or false', 'whether the hypervisor can be reached']
        assert found['units'][0] == '`Units`_ or null'
        assert found['wrong'][0] == 'list of text'
        assert [name for name, *_words
                in facts.fields(enforcement.Slices)] == [
            'class', 'recognised_class', 'problem', 'left_alone', 'vcpus',
            'sibling_preemptions_per_s']
        assert facts.fields(host_report.Pools)[0][1] == (
            'mapping of list of 2 whole numbers')
