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

"""nova-vqos-status: what it makes of a machine as a whole."""

import json
import re
import subprocess

from oslo_config import cfg
import pytest

from nova_vqos.cmd import status
from nova_vqos.status import agent
from nova_vqos.status import catalogue
from nova_vqos.status import findings
from nova_vqos.status import importing
from nova_vqos.status import versions
from nova_vqos.status import worlds
from nova_vqos.tests import project
from nova_vqos.tests.unit import status_world as at
from nova_vqos.tests.unit.test_status import both
from nova_vqos.tests.unit.test_status import remove
from nova_vqos.tests.unit.test_status import write


@pytest.fixture
def machine(tmp_path):
    return at.Machine(tmp_path)


GARBAGE = (b'', b'\0', b'\xff\xfe', b'[', b'{}', b'[[]]', b'[vqos]\nx',
           b'schema: 2\n', b'9' * 5000, b'{"outcomes": ' + b'[' * 50_000)
FILES = (at.NOVA_CONF, at.OWN_CONF, at.HOOK_CONF, at.HOOK, at.PROFILE,
         at.STATE, at.PROOF, at.LEDGER, at.UNIT, at.HALT_POLL, at.BOOT_CONFIG,
         f'{at.SCX}/state', 'proc/cpuinfo', 'proc/stat',
         'sys/fs/cgroup/cgroup.controllers',
         f'{at.CPU}/cpufreq/policy0/scaling_governor')


@pytest.mark.parametrize('name', FILES)
def test_no_garbage_ends_it(machine, name):
    """Each check has a result, and knows what it is of."""
    machine.run(7, '/usr/sbin/libvirtd')
    for content in (*GARBAGE, None):
        if content is None:
            machine.remove(name)
            (machine.root / name).mkdir()
        else:
            machine.write(name, content)
        world = machine.world
        for check in catalogue.CHECKS:
            result = catalogue.run(check, world)
            assert result.details
            if content is not None:
                assert 'could not be made' not in result.details, (
                    check.name, content[:20], result.details)


def test_a_fault_of_ours_is_a_failure_that_names_it(machine):
    def look(_world):
        yield findings.warning('a', 'b')
        raise ZeroDivisionError('of ours')
    result = catalogue.run(
        catalogue.Check('Faulty', worlds.ROLES, look), machine.world)
    assert result.code == at.Code.FAILURE
    assert 'ZeroDivisionError: of ours' in result.details
    # What was found before is not lost.
    assert 'A. B.' in result.details


@pytest.mark.parametrize(('break_it', 'sign'), [
    (write(at.NOVA_CONF, '[filter_scheduler]\nenabled_filters = A\n'),
     {'controller': 'has [filter_scheduler] enabled_filters'}),
    (write(at.NOVA_CONF, '[DEFAULT]\ncompute_driver = x\n'),
     {'compute': 'has [DEFAULT] compute_driver'}),
    (both(write(at.NOVA_CONF, ''), lambda machine: machine.run(
        7, '/usr/bin/python3', '/usr/bin/nova-scheduler', '--config-file')),
     {'controller': 'nova-scheduler runs'}),
    (both(remove(at.NOVA_CONF), write(at.OWN_CONF, '')),
     {'compute': 'nova-vqos.conf is there'}),
])
def test_the_role_is_found_out(machine, break_it, sign):
    """What does not apply says so, and is no failure."""
    machine.asked = []
    for name in at.OWN_CONF, at.PROFILE, at.HOOK:
        machine.remove(name)
    break_it(machine)
    details = machine.check('Role').details
    assert machine.check('Role').code == at.Code.SUCCESS
    for role, check in ('compute', 'Halt polling'), ('controller', 'Filter'):
        if role in sign:
            assert sign[role] in details
            assert 'Does not apply' not in machine.check(check).details
        else:
            assert f'a {worlds.NAMES[role]} ' not in details
            assert machine.check(check).details == (
                f'Does not apply: this machine is no {worlds.NAMES[role]}.')


def test_controllers_of_version_1(machine):
    machine.remove('sys/fs/cgroup/cgroup.controllers')
    machine.write('sys/fs/cgroup/cpuset/tasks', '')
    assert 'no cgroup controller cpu in /sys/fs/cgroup' in (
        machine.check('cgroups').details)
    machine.write('sys/fs/cgroup/cpu,cpuacct/tasks', '')
    assert machine.check('cgroups').code == at.Code.SUCCESS


def test_controllers_where_domains_are(machine):
    machine.run(7, '/usr/bin/qemu-system-x86_64', '-name')
    machine.write('proc/7/cgroup', '0::/own/domain/libvirt/emulator\n')
    machine.write('sys/fs/cgroup/own/domain/cgroup.controllers',
                  'cpu cpuset\n')
    assert machine.check('cgroups').code == at.Code.SUCCESS
    machine.write('sys/fs/cgroup/own/domain/cgroup.controllers', 'io\n')
    assert '/sys/fs/cgroup/own/domain' in machine.check('cgroups').details


def test_nothing_is_said_twice(machine):
    for pid in 7, 8:
        machine.run(pid, '/usr/sbin/libvirtd')
    assert machine.check('Hook').details.count('daemon libvirtd') == 1


def test_devstacks_file_is_read_alone(machine):
    machine.write('etc/nova/nova-cpu.conf', '[vqos]\nperiod_us = 20000\n')
    assert 'nova-cpu.conf' in machine.check('Same options').details
    assert machine.check('Filter').code == at.Code.SUCCESS


def test_fragments_are_read(machine):
    machine.write('etc/nova/nova.conf.d/90.conf',
                  '[vqos]\nperiod_us = 20000\n')
    assert '20000' in machine.check('Same options').details


@pytest.fixture
def global_conf():
    """oslo.config's, as it was before."""
    yield
    cfg.CONF.reset()


@pytest.mark.usefixtures('global_conf')
def test_a_bus_that_is_not_there(machine):
    """And its password is told to nobody."""
    machine.change(at.OWN_CONF, 'DEFAULT', transport_url='nonesuch://a:secret@b')
    own = machine.world.own
    with pytest.raises(worlds.Unanswered) as caught:
        agent.ask(own)
    assert 'secret' not in str(caught.value)


@pytest.mark.usefixtures('global_conf')
def test_an_agent_that_is_not_there(machine, monkeypatch):
    machine.change(at.OWN_CONF, 'DEFAULT', transport_url='fake:/')
    monkeypatch.setattr(agent, '_ANSWER_S', 0.01)
    with pytest.raises(worlds.Unanswered, match='no answer within 0.01 s'):
        agent.ask(machine.world.own)


@pytest.mark.parametrize(('answer', 'said'), [
    (subprocess.TimeoutExpired('python', 60), 'timed out after 60'),
    (OSError('no more processes'), 'no more processes'),
    (subprocess.CompletedProcess([], 1, '', 'Traceback:\nKeyError: n\n'),
     'KeyError: n'),
    (subprocess.CompletedProcess([], -9, '', ''), 'status -9'),
    (subprocess.CompletedProcess([], 0, 'hello', ''), "printed 'hello'"),
])
def test_a_nova_that_does_not_answer(monkeypatch, answer, said):
    monkeypatch.setattr(importing.subprocess, 'run', answering(answer))
    with pytest.raises(worlds.Unanswered, match=said):
        importing.ask()


@pytest.mark.parametrize(('answer', 'said'), [
    (FileNotFoundError(), 'neither virtqemud nor libvirtd'),
    (subprocess.TimeoutExpired('virtqemud', 10), 'timed out after 10'),
    (subprocess.CalledProcessError(1, 'virtqemud'), 'exit status 1'),
])
def test_a_libvirt_that_does_not_answer(monkeypatch, answer, said):
    monkeypatch.setattr(versions.subprocess, 'run', answering(answer))
    with pytest.raises(worlds.Unanswered, match=said):
        versions.ask_libvirt()


def answering(answer):
    def run(*_arguments, **_options):
        if isinstance(answer, Exception):
            raise answer
        return answer
    return run


def test_the_program(machine, monkeypatch, capsys):
    given = []
    world = machine.world

    def world_of(*arguments):
        given.append(arguments)
        return world
    monkeypatch.setattr(status, 'world_of', world_of)
    assert status.main(['upgrade', 'check']) == 0
    assert '| Check: sched_ext ' in capsys.readouterr().out
    machine.live(31)
    assert status.main(['--role', 'compute', '--nova-config', 'n',
                        '--config-file', 'o', 'upgrade', 'check',
                        '--json']) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one['check'] for one in found['checks']] == [
        check.name for check in catalogue.CHECKS]
    assert given[-1] == (['compute'], ['n'], ['o'])
    machine.remove(at.HOOK)
    assert status.main(['upgrade', 'check']) == 2


def test_a_role_that_there_is_not(capsys):
    with pytest.raises(SystemExit) as caught:
        status.main(['--role', 'storage', 'upgrade', 'check'])
    assert caught.value.code
    assert 'storage' in capsys.readouterr().err


@project.needs_checkout
def test_the_releases_of_nova_are_those_that_are_tested():
    script = (project.TOP / 'tools/lib/install.sh').read_text()
    tested = re.search(r'^NOVA_VERSIONS=\((.*)\)$', script, re.M)[1].split()
    assert [int(one.partition('.')[0]) for one in tested] == list(
        importing.RELEASES)


@project.needs_checkout
def test_the_guide_has_each_check():
    """In the same order, with the roles that it is made for."""
    guide = (project.TOP / 'doc/source/admin/status.rst').read_text()
    table = guide.partition('\nAll checks\n')[2]
    rows = re.findall(r'^   \* - (.+)\n     - (.+)$', table, re.M)
    assert rows[0] == ('Check', 'On')
    assert rows[1:] == [(check.name, ', '.join(check.roles))
                        for check in catalogue.CHECKS]
