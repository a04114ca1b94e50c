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


"""What the reference is made of, below doc/ext."""

import copy
import importlib
import inspect
import json

import pytest

from nova_vqos.agent import manager
from nova_vqos.tests import project

pytestmark = project.needs_checkout


@pytest.fixture
def load(monkeypatch):
    """Imports a module of doc/ext, those that need no Sphinx."""
    monkeypatch.syspath_prepend(project.TOP / 'doc/ext')
    return importlib.import_module


class TestDescriptions:
    def test_names_and_what_is_said_of_them(self, load):
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
    def test_what_they_say_of_parts(self, load, example, path, field,
                                    expected):
        limits = load('profile_limits')
        found = {name: tuple(said) for name, *said in limits.limits(
            example, limits.at(example, path))}
        assert found[field] == expected

    def test_a_field_that_nobody_looks_at_is_an_error(self, load, example):
        example['remark'] = 'of the operator'
        with pytest.raises(ValueError, match='remark: nothing is wrong'):
            list(load('profile_limits').limits(example, example))


class TestRpcFacts:
    def test_who_is_asked_and_since_when(self, load):
        asked = load('rpc_facts').asked()
        assert asked['apply_policy'] == ('one is told', '1.0')
        assert asked['claim_ledger'] == ('all are told', '1.1')
        assert asked['list_servers'] == ('one is asked', '1.2')
        assert asked['compare_pushed'] == ('any is asked', '1.2')

    def test_what_is_asked_is_answered(self, load):
        facts = load('rpc_facts')
        assert set(facts.asked()) <= set(facts.methods())
        assert facts.methods()['get_host'] is manager.AgentManager.get_host

    def test_a_long_answer_becomes_a_list(self, load):
        assert load('rpc_facts').with_lists(inspect.cleandoc("""
            One line.

            :returns: host, at; used_cu (of ``a_b``; or
                None); problem
            :raises X: at times
            """)) == inspect.cleandoc("""
            One line.

            :returns:
                * host, at
                * ``used_cu`` (of ``a_b``; or None)
                * problem
            :raises X: at times
            """) + '\n'

    def test_a_short_one_stays_as_it_is(self, load):
        assert load('rpc_facts').with_lists(
            ':returns: lifted: whether') == ':returns: lifted: whether\n'
