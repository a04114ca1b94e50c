# SPDX-License-Identifier: Apache-2.0
"""What the code that Nova loads may import: other services depend on it."""

import ast
import importlib.util
import pathlib
import sys

ENTRIES = ('nova_vqos.virt.driver', 'nova_vqos.scheduler.filter',
           'nova_vqos.scheduler.weigher', 'nova_vqos.validators')


def source_of(name):
    """The source of a module of ours, None if it is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        # Of a name that a module defines.
        return None
    return spec and pathlib.Path(spec.origin).read_text()


def imported_by(name):
    """Names of the modules that a module imports, wherever it does."""
    for node in ast.walk(ast.parse(source_of(name))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f'{node.module}.{alias.name}' for alias in node.names)


def loaded_by(*names):
    """{module of ours: what it imports}, of some and all that they import."""
    found = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found and source_of(name) is not None:
            found[name] = set(imported_by(name))
            todo += [one for one in found[name]
                     if one.partition('.')[0] == 'nova_vqos']
    return found


def test_no_concurrency_of_its_own():
    # Nova 33 runs on eventlet by default, Nova 34 forbids it.
    loaded = loaded_by(*ENTRIES)
    assert {'nova_vqos.virt.core_type_tracker', 'nova_vqos.profile.document',
            'nova_vqos.agent.rpcapi', 'nova_vqos.host_stats'} <= set(loaded)
    for name, imported in loaded.items():
        assert not {one.partition('.')[0] for one in imported} & {
            'eventlet', 'asyncio', 'threading', '_thread', 'multiprocessing',
            'concurrent'}, name


def test_nova_api_depends_on_little():
    # A module that cannot be imported keeps nova-api from starting.
    loaded = loaded_by('nova_vqos.validators')
    assert set(loaded) == {'nova_vqos', 'nova_vqos.validators',
                           'nova_vqos.light_typing', 'nova_vqos.policy',
                           'nova_vqos.units', 'nova_vqos.work'}
    foreign = {one.partition('.')[0] for imported in loaded.values()
               for one in imported}
    assert foreign <= {'nova', 'nova_vqos'} | sys.stdlib_module_names
