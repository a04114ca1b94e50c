# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-status: the program on a whole machine."""

import json
import re
import subprocess

from oslo_config import cfg
import pytest

from nova_vqos.cmd.status import agent
from nova_vqos.cmd.status import app
from nova_vqos.cmd.status import catalogue
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import host as host_checks
from nova_vqos.cmd.status import importing
from nova_vqos.cmd.status import machine
from nova_vqos.tests.fixtures import machine as at
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.unit.cmd.status.test_checks import both
from nova_vqos.tests.unit.cmd.status.test_checks import remove
from nova_vqos.tests.unit.cmd.status.test_checks import write


@pytest.fixture
def host(tmp_path):
    return at.Host(tmp_path)


GARBAGE = (b'', b'\0', b'\xff\xfe', b'[', b'{}', b'[[]]', b'[vqos]\nx',
           b'schema: 2\n', b'9' * 5000, b'{"outcomes": ' + b'[' * 50_000)
FILES = (at.NOVA_CONF, at.OWN_CONF, at.PLACEMENT_CONF, at.HOOK_CONF, at.HOOK,
         at.PROFILE, at.STATE, at.PROOF, at.LEDGER, at.UNIT, at.HALT_POLL,
         at.BOOT_CONFIG, f'{at.SCX}/state', 'proc/cpuinfo', 'proc/stat',
         'sys/fs/cgroup/cgroup.controllers',
         f'{at.CPU}/cpufreq/policy0/scaling_governor')


@pytest.mark.parametrize('name', FILES)
def test_garbage_in_a_file(host, name):
    """Each check has a result, and ends with no error of its own."""
    host.run(7, '/usr/sbin/libvirtd')
    for content in (*GARBAGE, None):
        if content is None:
            host.remove(name)
            (host.root / name).mkdir()
        else:
            host.write(name, content)
        machine_now = host.machine
        for check in catalogue.CHECKS:
            result = catalogue.run(check, machine_now)
            assert result.details
            if content is not None:
                assert catalogue.CRASHED not in result.details, (
                    check.name, content[:20], result.details)


def test_an_error_in_a_check_is_a_failure(host):
    def find(_machine):
        yield findings.warning('a', 'b')
        raise ZeroDivisionError('of ours')
    result = catalogue.run(
        catalogue.Check('Faulty', machine.ROLES, find), host.machine)
    assert result.code == at.Code.FAILURE
    assert f'{catalogue.CRASHED}: ZeroDivisionError: of ours' in result.details
    # Earlier findings are not lost.
    assert 'A. B.' in result.details


@pytest.mark.parametrize(('break_it', 'evidence'), [
    (write(at.NOVA_CONF, '[filter_scheduler]\nenabled_filters = A\n'),
     {'controller': 'has [filter_scheduler] enabled_filters'}),
    (write(at.NOVA_CONF, '[DEFAULT]\ncompute_driver = x\n'),
     {'compute': 'has [DEFAULT] compute_driver'}),
    (both(write(at.NOVA_CONF, ''), lambda host: host.run(
        7, '/usr/bin/python3', '/usr/bin/nova-scheduler', '--config-file')),
     {'controller': 'nova-scheduler runs'}),
    (both(remove(at.NOVA_CONF), write(at.OWN_CONF, '')),
     {'compute': 'nova-vqos.conf exists'}),
])
def test_roles_are_detected(host, break_it, evidence):
    """Checks of other roles do not apply, which is no failure."""
    host.roles = []
    for name in at.OWN_CONF, at.PROFILE, at.HOOK:
        host.remove(name)
    break_it(host)
    details = host.check('Role').details
    assert host.check('Role').code == at.Code.SUCCESS
    for role, check in ('compute', 'Halt polling'), ('controller', 'Filter'):
        if role in evidence:
            assert evidence[role] in details
            assert 'Does not apply' not in host.check(check).details
        else:
            assert f'a {machine.NAMES[role]} ' not in details
            assert host.check(check).details == (
                f'Does not apply: this machine is no {machine.NAMES[role]}.')


def test_controllers_of_version_1(host):
    host.remove('sys/fs/cgroup/cgroup.controllers')
    host.write('sys/fs/cgroup/cpuset/tasks', '')
    assert 'no cgroup controller cpu in /sys/fs/cgroup' in (
        host.check('cgroups').details)
    host.write('sys/fs/cgroup/cpu,cpuacct/tasks', '')
    assert host.check('cgroups').code == at.Code.SUCCESS


def test_controllers_where_domains_are(host):
    host.run(7, '/usr/bin/qemu-system-x86_64', '-name')
    host.write('proc/7/cgroup', '0::/own/domain/libvirt/emulator\n')
    host.write('sys/fs/cgroup/own/domain/cgroup.controllers', 'cpu cpuset\n')
    assert host.check('cgroups').code == at.Code.SUCCESS
    host.write('sys/fs/cgroup/own/domain/cgroup.controllers', 'io\n')
    assert '/sys/fs/cgroup/own/domain' in host.check('cgroups').details


def test_equal_findings_appear_once(host):
    for pid in 7, 8:
        host.run(pid, '/usr/sbin/libvirtd')
    assert host.check('Hook').details.count('daemon libvirtd') == 1


def test_devstack_reads_one_file_alone(host):
    host.write('etc/nova/nova-cpu.conf', '[vqos]\nperiod_us = 20000\n')
    assert 'nova-cpu.conf' in host.check('Same options').details
    assert host.check('Filter').code == at.Code.SUCCESS


def test_fragments_are_read(host):
    host.write('etc/nova/nova.conf.d/90.conf', '[vqos]\nperiod_us = 20000\n')
    assert '20000' in host.check('Same options').details


def test_a_placement_elsewhere(host):
    """What is not known is no problem of this machine."""
    host.remove(at.PLACEMENT_CONF)
    result = host.check('Placement')
    assert result.code == at.Code.SUCCESS
    assert result.details.startswith('Not known here')
    host.write('etc/placement/placement.conf.d/90.conf', '[placement]\n')
    assert '90.conf' in host.check('Placement').details


@pytest.fixture
def global_conf():
    """oslo.config's, reset after the test."""
    yield
    cfg.CONF.reset()


@pytest.mark.usefixtures('global_conf')
def test_an_unknown_bus(host):
    """And no error contains its password."""
    host.change(at.OWN_CONF, 'DEFAULT', transport_url='nonesuch://a:secret@b')
    own = host.machine.own
    with pytest.raises(machine.Unanswered) as caught:
        agent.ask(own)
    assert 'secret' not in str(caught.value)


@pytest.mark.usefixtures('global_conf')
def test_an_absent_agent(host, monkeypatch):
    host.change(at.OWN_CONF, 'DEFAULT', transport_url='fake:/')
    monkeypatch.setattr(agent, '_ANSWER_S', 0.01)
    with pytest.raises(machine.Unanswered, match='no answer within 0.01 s'):
        agent.ask(host.machine.own)


@pytest.mark.parametrize(('answer', 'expected'), [
    (subprocess.TimeoutExpired('python', 60), 'timed out after 60'),
    (OSError('no more processes'), 'no more processes'),
    (subprocess.CompletedProcess([], 1, '', 'Traceback:\nKeyError: n\n'),
     'KeyError: n'),
    (subprocess.CompletedProcess([], -9, '', ''), 'status -9'),
    (subprocess.CompletedProcess([], 0, 'hello', ''), "printed 'hello'"),
])
def test_a_nova_that_does_not_answer(monkeypatch, answer, expected):
    monkeypatch.setattr(importing.subprocess, 'run', answering(answer))
    with pytest.raises(machine.Unanswered, match=expected):
        importing.ask()


def test_a_nova_that_hangs_is_asked_once(tmp_path, monkeypatch):
    asked = []

    def run(*_arguments, **_options):
        asked.append(1)
        raise subprocess.TimeoutExpired('python', 60)
    monkeypatch.setattr(importing.subprocess, 'run', run)
    machine_now = app.this_machine((), (), (), root=str(tmp_path))
    for check in importing.check_version, importing.check_driver:
        assert next(check(machine_now)).code == findings.Code.FAILURE
    assert len(asked) == 1


@pytest.mark.parametrize(('answer', 'expected'), [
    (FileNotFoundError(), 'neither virtqemud nor libvirtd'),
    (subprocess.TimeoutExpired('virtqemud', 10), 'timed out after 10'),
    (subprocess.CalledProcessError(1, 'virtqemud'), 'exit status 1'),
])
def test_a_libvirt_that_does_not_answer(monkeypatch, answer, expected):
    monkeypatch.setattr(host_checks.subprocess, 'run', answering(answer))
    with pytest.raises(machine.Unanswered, match=expected):
        host_checks.ask_libvirt()


def answering(answer):
    def run(*_arguments, **_options):
        if isinstance(answer, Exception):
            raise answer
        return answer
    return run


def test_the_program(host, monkeypatch, capsys):
    given = []
    machine_now = host.machine

    def this_machine(*arguments):
        given.append(arguments)
        return machine_now
    monkeypatch.setattr(app, 'this_machine', this_machine)
    assert app.main(['upgrade', 'check']) == 0
    assert '| Check: sched_ext ' in capsys.readouterr().out
    host.beat(31)
    assert app.main(['--role', 'compute', '--nova-config', 'n',
                     '--config-file', 'o', '--placement-config', 'p',
                     'upgrade', 'check',
                     '--json']) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one['check'] for one in found['checks']] == [
        check.name for check in catalogue.CHECKS]
    assert given[-1] == (['compute'], ['n'], ['o'], ['p'])
    host.remove(at.HOOK)
    assert app.main(['upgrade', 'check']) == 2


def test_an_unknown_role(capsys):
    with pytest.raises(SystemExit) as caught:
        app.main(['--role', 'storage', 'upgrade', 'check'])
    assert caught.value.code
    assert 'storage' in capsys.readouterr().err


@project.needs_checkout
def test_the_releases_of_nova_are_the_tested_ones():
    script = (project.TOP / 'tools/lib/install.sh').read_text()
    tested = re.search(r'^NOVA_VERSIONS=\((.*)\)$', script, re.M)[1].split()
    assert [int(one.partition('.')[0]) for one in tested] == list(
        importing.RELEASES)


@project.needs_checkout
def test_the_guide_has_each_check():
    """In the same order, with its roles."""
    guide = (project.TOP / 'doc/source/admin/status.rst').read_text()
    table = guide.partition('\nAll checks\n')[2]
    rows = re.findall(r'^   \* - (.+)\n     - (.+)$', table, re.M)
    assert rows[0] == ('Check', 'On')
    assert rows[1:] == [(check.name, ', '.join(check.roles))
                        for check in catalogue.CHECKS]
