# SPDX-License-Identifier: Apache-2.0
"""The order of the floors: which module may import which.

The lists of breaches only shrink: one that is gone goes from its list.
"""

import ast
import builtins
import functools
import graphlib
import pathlib

import pytest

import nova_vqos

PACKAGE = pathlib.Path(nova_vqos.__file__).parent

# A floor may import itself and those before it.
GROUND = {'units', 'work', 'learning', 'policy', 'policy_override',
          'policy_push', 'push_keys', 'push_signature', 'cpuset', 'files',
          'utc', 'plain_text', 'primitives', 'room', 'compute_state',
          'domain_xml', 'xml_edit', 'version', 'light_typing'}
# What is known of a host, and what follows from it for its servers.
PURE = (GROUND, {'billing', 'quantum'}, {'profile'},
        {'cputune', 'core_types', 'packing', 'host_stats', 'guarantee',
         'speeds'},
        {'agent_state'})
BESIDE = {'virt', 'scheduler', 'hooks', 'agent', 'validators'}
FLOORS = (*PURE, {'conf', 'hypervisor', 'calibration', 'wsgi_server'}, BESIDE,
          {'metrics', 'vendordata'}, {'cmd'}, {'watcher'})
# All that BESIDE import of each other.
SHARED = {'agent.rpcapi', 'hooks', 'scheduler.fitness'}

BREACHES = set()
IMPURE = {('billing.ledger', 'threading')}
CIRCLES = set()


def _name(path):
    """:returns: such as agent.caps.state, agent.caps of an __init__"""
    return '.'.join(path.relative_to(PACKAGE).with_suffix('').parts
                    ).removesuffix('__init__').strip('.')


TREES = {_name(path): ast.parse(path.read_text())
         for path in sorted(PACKAGE.rglob('*.py'))}
MODULES = {name for name in TREES if name.split('.')[0] != 'tests'}


def _imports(name):
    """:returns: full names of modules, and the alias of each of ours"""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from ((one.name, one.asname) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                full = f'{node.module}.{one.name}'
                ours = full.removeprefix('nova_vqos.') in TREES
                yield (full, one.asname) if ours else (node.module, None)


def _arrows():
    for name in MODULES:
        for full, _alias in _imports(name):
            other = full.removeprefix('nova_vqos.')
            if full != other and other in MODULES:
                yield name, other


def _is_allowed(name, other):
    room, target = name.split('.')[0], other.split('.')[0]
    mine, floor = (next(number for number, rooms in enumerate(FLOORS)
                        if one in rooms) for one in (room, target))
    if room == target or other in SHARED and mine >= FLOORS.index(BESIDE):
        return True
    return floor < mine or floor == mine and room not in BESIDE


@functools.cache
def _part(name):
    """:returns: its folder; itself where that has folders"""
    path = PACKAGE / name.replace('.', '/')
    folder = path if path.is_dir() else path.parent
    return name if any(folder.glob('*/*.py')) else _name(folder)


def _sort(arrows):
    graph = {}
    for one, other in arrows:
        graph.setdefault(one, set()).add(other)
    graphlib.TopologicalSorter(graph).prepare()


def _bound(tree):
    """:returns: names that a module can use, but for attributes"""
    yield from dir(builtins)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif not isinstance(node, ast.keyword):
            yield getattr(node, 'arg', None) or getattr(node, 'name', None)


def test_no_floor_imports_a_higher_one():
    found = {arrow for arrow in _arrows() if not _is_allowed(*arrow)}
    assert found == BREACHES


def test_the_ground_imports_no_nova_libvirt_oslo_or_threads():
    found = {(name, full) for name in MODULES
             if any(name.split('.')[0] in floor for floor in PURE)
             for full, _alias in _imports(name)
             if full.split('.')[0] in ('nova', 'libvirt', 'threading')
             or full.startswith('oslo')}
    assert found == IMPURE


def test_folders_do_not_import_each_other_in_a_circle():
    arrows = {pair for pair in ((_part(one), _part(other))
                                for one, other in _arrows())
              if pair[0] != pair[1]}
    _sort(arrows - CIRCLES)
    for arrow in CIRCLES:
        assert arrow in arrows
        with pytest.raises(graphlib.CycleError):
            _sort(arrows - CIRCLES | {arrow})


def test_a_module_of_ours_has_an_alias_only_where_its_name_is_bound():
    found = [f'{name}: {full} as {alias}' for name in TREES
             for full, alias in _imports(name)
             if alias and full.startswith('nova_vqos.')
             and full.rpartition('.')[2] not in _bound(TREES[name])]
    assert not found
