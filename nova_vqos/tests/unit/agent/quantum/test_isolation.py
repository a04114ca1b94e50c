# SPDX-License-Identifier: Apache-2.0
"""Whatever fails for one server, the others have their slices."""

import pkgutil

import pytest

from nova_vqos.quantum import model
from nova_vqos.tests.fixtures import quantum_world
from nova_vqos.tests.unit.agent import test_isolation

A, B, C = test_isolation.A, test_isolation.B, test_isolation.C
OWNERS = {name: pkgutil.resolve_name(f'nova_vqos.agent.quantum.{name}')
          for name in ('enforcer', 'enforcer:Enforcer', 'trials:PoolTrials')}


@pytest.fixture
def tell(tmp_path, monkeypatch):
    def tell(name, change):
        """Half a minute of three servers, two of which are recognised.

        :param change: makes changes, once the plan knows all three
        :returns: what B and C have in the end, and the report of the host
        """
        directory = tmp_path / name
        directory.mkdir()
        world = quantum_world.QuantumWorld(directory, monkeypatch)
        world.enforce_classes('cache', 'io')
        for run_id, uuid in enumerate((A, B, C), 1):
            world.boot(uuid, 'cache' if uuid == B else 'auto', run_id=run_id)
            world.watcher.kinds[uuid, 0] = model.Kind.IO
        world.start()
        with pytest.MonkeyPatch.context() as changes:
            change(changes)
            world.tick(30)
            found = {}
            for uuid in B, C:
                slices = world.report(uuid)['quantum']
                found[uuid] = world.host.slices[uuid], world.host.pins[uuid], {
                    name: slices[name] for name in (
                        'class', 'recognised_class', 'problem')}
            return found, world.host_report()
    return tell


@pytest.mark.causes_faults
def test_a_fault_of_one_costs_no_other(tell):
    reached = set()

    def note_all(changes):
        for key, owner in OWNERS.items():
            for name in test_isolation.functions(owner):
                test_isolation.replace(
                    changes, owner, name,
                    lambda key=key, name=name: reached.add((key, name)))
    expected, _host = tell('well', note_all)
    assert expected[B][0][0] == quantum_world.CACHE_US
    assert expected[C][0][0] == quantum_world.IO_US
    assert len(reached) > 10
    wrong = []
    for key, name in sorted(reached):
        def fail(name=name):
            raise test_isolation.Broken(name)
        found, host = tell(f'{key}-{name}', lambda changes, key=key, name=name,
                           fail=fail: test_isolation.replace(
                               changes, OWNERS[key], name, fail))
        if found != expected or not host['errors'] or not any(
                A in alarm and name in alarm for alarm in host['alarms']):
            wrong.append(name)
    assert wrong == []
