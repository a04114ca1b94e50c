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

"""What the code that Nova loads may import: other services depend on it."""

import ast
import importlib.util
import pathlib
import sys

import pytest

PLUGINS = ('nova_vqos.virt.driver', 'nova_vqos.virt.admission',
           'nova_vqos.virt.classkeeper', 'nova_vqos.virt.cputune',
           'nova_vqos.virt.inventory',
           'nova_vqos.virt.waker',
           'nova_vqos.compute_state', 'nova_vqos.host_report',
           'nova_vqos.scheduler.filter', 'nova_vqos.scheduler.fitness',
           'nova_vqos.validators', 'nova_vqos.agent.rpcapi',
           'nova_vqos.policy', 'nova_vqos.tuning',
           'nova_vqos.profile.document', 'nova_vqos.profile.errors',
           'nova_vqos.profile.fields', 'nova_vqos.profile.files',
           'nova_vqos.profile.measurement', 'nova_vqos.profile.model',
           'nova_vqos.profile.pcpus', 'nova_vqos.profile.reference',
           'nova_vqos.profile.staleness',
           'nova_vqos.units', 'nova_vqos.fingerprint',
           'nova_vqos.hooks.install', 'nova_vqos.conf.vqos',
           'nova_vqos.conf.agent')


def imported_by(name):
    """Names of the modules that a module imports, wherever it does."""
    source = pathlib.Path(importlib.util.find_spec(name).origin).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f'{node.module}.{alias.name}' for alias in node.names)


@pytest.mark.parametrize('name', PLUGINS)
def test_no_concurrency_of_its_own(name):
    # Nova 33 runs on eventlet by default, Nova 34 forbids it.
    foreign = {module.partition('.')[0] for module in imported_by(name)}
    assert not foreign & {'eventlet', 'asyncio', 'threading', '_thread',
                          'multiprocessing', 'concurrent'}


@pytest.mark.parametrize('package', ['nova_vqos.virt', 'nova_vqos.profile'])
def test_every_module_of_the_driver_is_looked_at(package):
    directory = pathlib.Path(importlib.util.find_spec(package).origin).parent
    found = {f'{package}.{path.stem}' for path in directory.glob('*.py')
             if path.stem != '__init__'}
    assert found
    assert found <= set(PLUGINS)


def test_nova_api_depends_on_little():
    # A module that cannot be imported keeps nova-api from starting.
    assert set(imported_by('nova_vqos.validators')) == {
        'nova.api.validation.extra_specs.base', 'nova_vqos.policy',
        'nova_vqos.units'}
    for name in ('nova_vqos.policy', 'nova_vqos.units'):
        assert {module.partition('.')[0] for module in imported_by(name)} <= (
            {'nova_vqos'} | sys.stdlib_module_names)
