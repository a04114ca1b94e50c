# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-status: each problem that it finds."""

import dataclasses
import os
import re

import pytest

from nova_vqos import compute_state
from nova_vqos.cmd.status import agent_units
from nova_vqos.cmd.status import catalogue
from nova_vqos.cmd.status import machine
from nova_vqos.hooks import install
from nova_vqos.quantum import probe_result
from nova_vqos.tests.fixtures import machine as at
from nova_vqos.tests.fixtures import make_profiles

FILTERS = 'filter_scheduler'


@pytest.fixture
def host(tmp_path):
    return at.Host(tmp_path)


@pytest.mark.parametrize('check', catalogue.CHECKS, ids=lambda one: one.name)
def test_a_host_without_a_problem(host, check):
    result = catalogue.run(check, host.machine)
    assert result.code == at.Code.SUCCESS, result.details
    # It names the facts.
    assert re.fullmatch(r'[^ ].* .*\.', result.details)


def unlike(host):
    host.calibrate(make_profiles.make_class({0}, 1.0, width=0.01),
                      make_profiles.make_class({1}, 0.5, width=0.01))


def change(name, section, **options):
    return lambda host: host.change(name, section, **options)


def write(name, content, **mode):
    return lambda host: host.write(name, content, **mode)


def remove(name):
    return lambda host: host.remove(name)


def mode(name, bits):
    return lambda host: (host.root / name).chmod(bits)


def fifo(name):
    return lambda host: (host.remove(name), os.mkfifo(host.root / name))


def answer(name, value):
    return lambda host: setattr(host, name, value)


def agent_says(**fields):
    return lambda host: setattr(
        host, 'answer', dataclasses.replace(host.answer, **fields))


def counted(servers, cu):
    """By nova-compute: servers without units, what is reserved for them."""
    return lambda host: compute_state.Writer(
        host.write(at.COMPUTE_STATE, '')).write({}, {}, (servers, cu))


def both(*breaks):
    def break_all(host):
        for one in breaks:
            one(host)
    return break_all


def load_vhost(found):
    """The kernel has loaded vhost, and the probe found something of it."""
    return both(write('sys/class/misc/vhost-net/dev', '10:238\n'),
                lambda host: host.probe(vhost=found))


def schedule(now, then):
    """The kernel schedules otherwise than when it was probed."""
    return both(
        write('sys/kernel/debug/sched/preempt', f'none ({now[0]})\n'),
        write('sys/kernel/debug/sched/features', f'LAG {now[1]}\n'),
        lambda host: host.probe(scheduling=then))


def partition(pcpus, state='root'):
    """With a partition of servers."""
    return both(
        *(change(name, 'vqos', guaranteed_pcpus=pcpus)
          for name in (at.OWN_CONF, at.NOVA_CONF)),
        write('sys/fs/cgroup/machine/cpuset.cpus.partition', f'{state}\n'),
        write('sys/fs/cgroup/machine/cpuset.cpus.effective', f'{pcpus}\n'))


def guaranteeing(*breaks, **says):
    """On a host that guarantees speed."""
    return both(lambda host: host.guarantee(**says), *breaks)


WRONG = [
    ('Role', both(answer('roles', []), write(at.NOVA_CONF, ''),
                  remove(at.OWN_CONF), remove(at.PROFILE), remove(at.HOOK)),
     2, '--role'),

    ('Configuration', remove(at.NOVA_CONF), 2,
     'etc/nova/nova-compute.conf'),
    ('Configuration', remove(at.OWN_CONF), 2, 'there is no nova-vqos.conf'),
    ('Configuration', write(at.NOVA_CONF, 'garbage'), 2, 'cannot be read'),
    ('Configuration', write(at.OWN_CONF, b'\xff\xfe[DEFAULT]'), 2,
     'cannot be read'),
    ('Configuration', change(at.OWN_CONF, 'vqos', period_us='often'), 2,
     '[vqos] period_us of'),
    ('Configuration', change(at.OWN_CONF, 'vqos', perod_us='50000'), 2,
     '[vqos] perod_us of .* is no option'),
    ('Configuration', change(at.NOVA_CONF, 'vqos_agents', topic='t'), 2,
     'unknown group [vqos_agents]'),

    *(('Servers without units', found, 1, text) for found, text in [
        (counted(3, 250), '3, counted .* 250 CPU units are reserved'),
        (counted(1, None), 'once this host has a valid profile'),
        (both(counted(2, None), change(
            at.NOVA_CONF, 'vqos', servers_without_units='allow')),
         'nova-compute reserves nothing'),
        (write(at.COMPUTE_STATE, '{'), 'cannot be read')]),

    ('Nova', answer('nova', machine.Unanswered('no module named nova')), 2,
     'no module named nova'),
    ('Nova', answer('nova', {'version': '32.0.1'}), 1, 'Nova 32.0.1'),
    ('Filter and weighers, import', answer('nova', {'scheduler': 'Oops'}), 2,
     'Oops'),
    ("Nova's driver", answer('nova', {'contract': 'it has no _create_guest'}),
     2, '_create_guest'),
    ('Extra specs', answer('nova', {'validators': 'LookupError: none'}), 2,
     'LookupError: none'),
    ('Compute driver, import', answer('nova', {'driver': 'ImportError: x'}),
     2, 'ImportError: x.*link nova/virt/vqos'),
    ('Compute driver, import', answer('nova', machine.Unanswered('x')), 2,
     'does not answer'),

    ('Compute driver', change(at.NOVA_CONF, 'DEFAULT', compute_driver=None), 2,
     'not set'),
    ('Compute driver', change(at.NOVA_CONF, 'DEFAULT',
                              compute_driver='libvirt.LibvirtDriver'), 2,
     'libvirt.LibvirtDriver.*vqos.VqosLibvirtDriver'),
    ('Compute driver', change(at.NOVA_CONF, 'libvirt', virt_type='lxc'), 2,
     'virt_type of .* is lxc'),

    ('Filter', change(at.NOVA_CONF, FILTERS, enabled_filters='ComputeFilter'),
     2, 'enabled_filters of .* VqosFilter'),
    ('Filter', change(at.NOVA_CONF, FILTERS, available_filters=None), 2,
     'available_filters = nova_vqos'),
    ('Pre-filter', answer('nova', {'prefilter': 'no list'}), 1,
     'no list.*flavor sync'),
    ('Pre-filter', answer('nova', machine.Unanswered('x')), 1,
     'does not answer'),
    ('Weighers', change(at.NOVA_CONF, FILTERS, weight_classes=None), 1,
     'weight_classes of .* nova_vqos.scheduler.weigher.all_weighers'),

    ('Placement', write(at.PLACEMENT_CONF, ''), 1,
     '[placement] allocation_conflict_retry_count of .* is 10.*to 1'),
    ('Placement', change(at.PLACEMENT_CONF, 'placement',
                         allocation_conflict_retry_count='0'), 1,
     'is 0: .* no claim.*to 1'),
    ('Placement', change(at.PLACEMENT_CONF, 'placement',
                         allocation_conflict_retry_count='some'), 2,
     'allocation_conflict_retry_count of .* is invalid'),

    ('Same options', change(at.NOVA_CONF, 'vqos', period_us='20000'), 2,
     '[vqos] period_us is 20000 in .* and 50000 in'),
    ('Same options', change(at.OWN_CONF, 'DEFAULT', host='compute2'), 2,
     '[DEFAULT] host is compute1 in .* and compute2 in'),
    ('Same options', change(at.OWN_CONF, 'vqos', quantum_slices='io:2000'), 2,
     '[vqos] quantum_slices'),
    ('Same options', change(at.OWN_CONF, 'vqos', compute_state_path='/c'), 1,
     '[vqos] compute_state_path'),
    ('Same options', change(at.NOVA_CONF, 'vqos', reserved_cu='50'), 1,
     '[vqos] reserved_cu is 50'),
    ('Same options', both(unlike, change(
        at.NOVA_CONF, 'vqos', allocation_ratio='2.0')), 2,
     '[vqos] allocation_ratio is 2.0'),
    ('Same options', write(at.HOOK_CONF, '[hook]\nperiod_us = 20000\n'), 2,
     '50000 in /etc/nova-vqos/hook.conf'),
    ('Same options', write(at.HOOK_CONF, '[hook]\nprofile = /p\n'), 2,
     'profile of [hook] is /p'),
    ('Same options', write(at.HOOK_CONF, '[hook]\nperiod_us = 1s\n'), 2,
     "period_us is '1s'"),
    ('Same options', write(at.HOOK_CONF, '[hook]\nquantum_slices = x\n'), 2,
     'hook.conf: quantum_slices: '),

    ('Profile', remove(at.PROFILE), 2, 'profile.yaml does not exist'),
    ('Profile', write(at.PROFILE, 'schema: 2'), 2, 'profile is invalid'),
    ('Profile', mode(at.PROFILE, 0o666), 2, 'mode 0666'),
    ('Profile', lambda host: host.calibrate(
        make_profiles.make_class({0, 1}, 1.0, width=0.2)), 2,
     'is 20.0% wide, more than 5.0%'),
    ('Profile', write('proc/cpuinfo', 'model name : B\n'), 2,
     "cpu_model was 'A' and is 'B'"),
    ('Profile', change(at.NOVA_CONF, 'compute', cpu_shared_set='0-3'), 2,
     'pCPUs 2-3 of [compute] cpu_shared_set'),
    ('Profile', change(at.NOVA_CONF, 'compute', cpu_shared_set='0-3,^2'), 1,
     "'0-3,^2'"),

    ('Hook', remove(at.HOOK), 2, '90-nova-vqos does not exist'),
    ('Hook', write(at.HOOK, '#!/bin/sh\n', mode=0o755), 2, 'is not ours'),
    ('Hook', mode(at.HOOK, 0o644), 2, 'not executable'),
    ('Hook', mode(at.HOOK, 0o777), 2, 'chmod 755'),
    ('Hook', lambda host: host.write(
        at.HOOK, (host.root / at.HOOK).read_text() + '# old\n',
        mode=0o755), 1,
     'another version'),
    # Cut within a word that was quoted.
    ('Hook', lambda host: host.write(
        at.HOOK, (host.root / at.HOOK).read_text().replace(
            ' && exit 1', "' && exit 1"), mode=0o755), 1, 'another version'),
    ('Hook', answer('hook_fault', '/venv may be written by others'), 2,
     '/venv may be written by others'),
    ('Hook', lambda host: host.write(
        at.HOOK, install.script(trusted=[1000]), mode=0o755), 1,
     'user 1000 .*--trust'),
    ('Hook', lambda host: host.run(7, '/usr/sbin/libvirtd'), 1,
     'restart libvirtd'),

    ('Agent', remove(at.STATE), 2,
     '/run/nova-vqos/agent.json does not exist'),
    ('Agent', write(at.STATE, '{"seen_at": 3'), 2, 'JSONDecodeError'),
    ('Agent', fifo(at.STATE), 2, 'not a regular file'),
    ('Agent', write(at.STATE, '[]'), 2, 'TypeError'),
    ('Agent', write(at.STATE, '{"seen_at": "2026-11-22T12:00:00"}'), 2,
     'ValueError'),
    ('Agent', lambda host: host.beat(301), 2,
     '301 s .*agent_max_age_s, 300 s'),
    ('Agent', lambda host: host.beat(31), 1, '31 s .* each 10 s'),
    ('Agent', lambda host: host.beat(-61), 1, '61 s ahead'),
    ('Agent', lambda host: host.beat(hypervisor_connected=False), 2,
     'start libvirt'),
    ('Agent', lambda host: host.beat(alarms=['the ledger is full']), 1,
     'the ledger is full'),

    ("Agent's unit", remove(at.UNIT), 1, 'is not installed'),
    ("Agent's unit", lambda host: host.install_unit(
        lambda text: text.replace('\nUMask=0077\n', '\n')), 1,
     'differs .*: UMask'),
    *(("Agent's unit", remove(f'{at.UNITS}/{unit}'), 2,
       f'{unit} is not installed') for unit in agent_units.WANTED),
    ("Agent's unit", write(f'{at.UNITS}/{agent_units.SOCKET}', 'none'), 2,
     'is no unit'),
    ("Agent's unit", write(at.PASSWD, 'root:x:0:0::/:/bin/sh\n'), 2,
     'user nova-vqos does not exist'),
    ("Agent's unit", mode(at.OWN_CONF, 0o600), 2,
     'may not read /etc/nova-vqos/nova-vqos.conf'),
    ("Agent's unit", mode('etc/nova-vqos', 0o700), 2,
     'may not enter /etc/nova-vqos'),
    ("Agent's unit", remove('usr/bin/nova-vqos-helper'), 2,
     'ExecStart of .* names /usr/bin/nova-vqos-helper,'),
    # As releases before had it: another unit, and no more is wanted.
    ("Agent's unit", lambda host: (
        host.install_unit(lambda text: text.replace(
            'User=nova-vqos', 'User=root')),
        host.remove(f'{at.UNITS}/{agent_units.SOCKET}')), 1, 'User'),
    ("Agent's unit", remove('usr/bin/nova-vqos-agent'), 2,
     'ExecStart of .* names /usr/bin/nova-vqos-agent,'),
    ("Agent's unit", write(at.UNIT, 'no section'), 2, 'is no unit'),
    ("Agent's unit", write(at.UNIT, '[Unit]\nA=b\n'), 2, 'is no unit'),

    ('Message bus', change(at.NOVA_CONF, 'vqos_agent', topic='x'), 2,
     '[vqos_agent] topic is x'),
    ('Message bus', change(at.OWN_CONF, 'DEFAULT', transport_url=None), 1,
     'transport_url of .*nova-vqos.conf is not set'),
    ('Message bus', change(at.OWN_CONF, 'DEFAULT',
                           transport_url='rabbit://a:secret@other/'), 1,
     'another message bus'),
    ("Agent's answer", answer('answer', machine.Unanswered('late')), 1,
     'late'),
    ("Agent's answer", agent_says(version='0.0.1'), 1,
     'version 0.0.1'),
    ("Agent's answer", agent_says(wrong=('u',)), 1,
     '1 servers .*: u'),

    ('Quantum classes', remove(at.PROOF), 1, 'quantum.json has no result'),
    ('Quantum classes', lambda host: host.probe('last-boot'), 1,
     'quantum.json has no result'),
    ('Quantum classes', lambda host: host.probe(
        io=probe_result.Outcome(None, None, None, 'not measured: busy')), 1,
     'class io: not measured: busy'),
    ('Quantum classes', lambda host: host.probe(
        io=probe_result.judge_waits(300, {200: 1500.0}, {200: 1400.0})[1]), 1,
     'class io: a thread that woke waited for 1.40 ms'),
    ('Quantum classes', lambda host: host.probe(
        io=probe_result.Outcome(2000, 2100.0, True)), 1,
     'class io: no slice for it was tried'),
    ('Quantum classes', both(lambda host: host.probe(
        io=probe_result.Outcome(2000, None, True)), change(
            at.OWN_CONF, 'vqos', quantum_slices='io:300')), 1,
     'slice of 300 us'),
    ('Quantum classes', lambda host: host.probe(
        cache=probe_result.Outcome(80_000, 70_000.0, True)), 1,
     'slice of 90000 us'),

    ('vhost', load_vhost(None), 1, 'not measured'),
    ('vhost', load_vhost(probe_result.Vhost(
        None, limited=None, reason='not measured: busy')), 1,
     'hold workers of vhost: not measured: busy'),

    ('Permissions', mode(at.OWN_CONF, 0o644), 2, 'the password of'),
    ('Permissions', mode(at.STATE, 0o666), 2, 'chmod go-w /run/nova-vqos'),
    ('Permissions', mode(at.HOOK_CONF, 0o664), 2,
     'chmod go-w /etc/nova-vqos/hook.conf'),
    ('Permissions', mode('etc/nova-vqos', 0o777), 2,
     'chmod go-w /etc/nova-vqos.'),
    ('Permissions', mode(at.PROFILE, 0o600), 2, 'chmod o+r'),
    ('Permissions', mode(at.LEDGER, 0o640), 2, 'chmod go= /var/lib'),

    ('Preemption', schedule(('full', 'HRTICK'), ('lazy', 'y')), 1,
     'then preemption lazy, .* now preemption full'),
    ('Preemption', schedule(('full', 'HRTICK'), ('full', 'n')), 1,
     'HRTICK off; .* HRTICK on'),
    ('libvirt', answer('libvirt', 'libvirtd (libvirt) 7.10.0'), 2,
     'libvirt 7.10.0, .* 8.0'),
    ('libvirt', answer('libvirt', machine.Unanswered('none')), 2, 'none'),
    ('libvirt', answer('libvirt', 'new'), 1, "'new'"),
    ('Linux', answer('kernel', '5.14.0-rc1'), 2, 'Linux 5.14.0, .* 5.15'),

    ('cgroups', write('sys/fs/cgroup/cgroup.controllers', 'cpu io\n'), 2,
     'no cgroup controller cpuset'),
    ('cgroups', write('sys/fs/cgroup/machine.slice/cgroup.controllers',
                      'cpuset io\n'), 2,
     'no cgroup controller cpu in /sys/fs/cgroup/machine.slice'),
    ('sched_ext', both(write(f'{at.SCX}/state', 'enabled\n'),
                       write(f'{at.SCX}/root/ops', 'lavd\n')), 2, '(lavd, '),
    ('sched_ext', both(write(f'{at.SCX}/state', 'enabled\n'),
                       write(f'{at.SCX}/switch_all', '0\n')), 1,
     'QEMU'),
    ('Frequency', write(f'{at.CPU}/cpufreq/policy1/scaling_governor',
                        'schedutil\n'), 1, 'governor is schedutil'),
    ('Halt polling', write(at.HALT_POLL, '200000\n'), 1, 'is 200000'),
    ('Interrupt time', write(at.BOOT_CONFIG, 'CONFIG_HZ=250\n'), 1,
     'has no CONFIG_IRQ_TIME_ACCOUNTING'),

    *(('NAPI', write(f'{at.NET}/{name}', f'{value}\n'), code, text)
      for name, value, code, text in [
          ('dev_weight', 1, 2, 'dev_weight is 1: .*drops'),
          ('dev_weight', 4, 2, 'dev_weight is 4: .*drops'),
          ('dev_weight', 5, 1, 'dev_weight is 5: .*to 64'),
          ('dev_weight', 15, 1, 'dev_weight is 15: .*to 64'),
          ('netdev_budget', 63, 1, 'netdev_budget is 63, less than the 64'),
          ('netdev_budget_usecs', 999, 1, 'netdev_budget_usecs is 999')]),

    ('Guarantees', guaranteeing(write(at.RT_RUNTIME, '-1\n')), 2, 'is -1'),
    ('Guarantees', guaranteeing(write(at.RT_RUNTIME, '0\n')), 2, 'is 0'),
    ('Guarantees', guaranteeing(write(at.RT_RUNTIME, '?\n')), 2,
     'SCHED_DEADLINE'),
    ('Guarantees', guaranteeing(remove(at.RT_RUNTIME)), 2, 'SCHED_DEADLINE'),
    ('Guarantees', guaranteeing(write(at.RT_RUNTIME, '1000000\n'),
                                answer('kernel', '6.1.0-42')), 2,
     'as long as the period'),
    ('Guarantees', guaranteeing(change(at.NOVA_CONF, 'compute',
                                       cpu_shared_set='1')), 2,
     'is not 0-1'),
    ('Guarantees', guaranteeing(change(at.OWN_CONF, 'vqos',
                                       guaranteed_pcpus='1')), 2,
     "'1' in .*'' in "),
    ('Guarantees', guaranteeing(partition('1')), 2, 'is not 1'),
    ('Guarantees', guaranteeing(
        partition('1', state='member'),
        change(at.NOVA_CONF, 'compute', cpu_shared_set='1')), 2,
     "'member'.*nova-vqos-partition.service"),
    ('Guarantees', guaranteeing(change(at.NOVA_CONF, 'compute',
                                       cpu_shared_set='0-3,^2')), 1, '^2'),
    ('Guarantees', guaranteeing(change(at.NOVA_CONF, 'vqos',
                                       allocation_ratio='1.5')), 1, 'is 1.5'),
    ('Guarantees', guaranteeing(write(at.NO_TURBO, '0\n')), 2, 'no_turbo'),
    ('Guarantees', guaranteeing(remove(at.NO_TURBO)), 2, 'no_turbo'),
    ('Guarantees', guaranteeing(
        remove(at.NO_TURBO), change(at.OWN_CONF, 'vqos_agent',
                                    least_frequency_scale='0.7')), 1, '0.7'),
    ('Guarantees', guaranteeing(remove(at.STATE)), 2, 'agent.json'),
    ('Guarantees', guaranteeing(total_pcpus=None), 1, 'not measured yet'),
    ('Guarantees', guaranteeing(total_pcpus=0), 2, 'guarantees no speed'),
]


@pytest.mark.parametrize(('name', 'break_it', 'code', 'expected'), WRONG)
def test_each_problem_is_found(host, name, break_it, code, expected):
    break_it(host)
    result = host.check(name)
    assert result.code == code, result.details
    pattern = '.*'.join(map(re.escape, expected.split('.*')))
    assert re.search(pattern, result.details, re.IGNORECASE), result.details
    # A sentence with the problem, and one with the remedy.
    assert len(re.findall(r'\. [A-Z/]|\. nova', result.details)) >= 1
    assert 'secret' not in result.details
    assert catalogue.CRASHED not in result.details


@pytest.mark.parametrize('change_it', [
    lambda host: None,
    # This kernel keeps a part for all else.
    write(at.RT_RUNTIME, '1000000\n'),
    change(at.NOVA_CONF, 'compute', cpu_shared_set=None),
    both(partition('1'),
         change(at.NOVA_CONF, 'compute', cpu_shared_set='1')),
    write('proc/cpuinfo', 'flags : fpu\n')])
def test_a_host_that_guarantees_speed(host, change_it):
    host.guarantee()
    change_it(host)
    result = host.check('Guarantees')
    assert result.code == at.Code.SUCCESS, result.details
    assert '1.75 pCPUs' in result.details


def test_each_check_has_a_problem():
    """But that of Python: an old one cannot run this test."""
    assert {check.name for check in catalogue.CHECKS} == {
        name for name, *_rest in WRONG} | {'Python'}


def run(name, host):
    return catalogue.run(next(one for one in catalogue.CHECKS
                              if one.name == name), host.machine)


@pytest.mark.parametrize('found, text', [
    (probe_result.Vhost(0.2, limited=True), 'limits hold workers'),
    (probe_result.Vhost(0.99, limited=False, reason='it ran on'),
     'do not hold workers of vhost: it ran on')])
def test_whether_limits_hold_vhost(host, found, text):
    load_vhost(found)(host)
    result = run('vhost', host)
    assert result.code == at.Code.SUCCESS
    assert text in result.details


@pytest.mark.parametrize('weight', [16, 64, 1000])
def test_a_weight_that_is_enough(host, weight):
    host.write(f'{at.NET}/dev_weight', f'{weight}\n')
    host.write(f'{at.NET}/netdev_budget', '1000\n')
    assert run('NAPI', host).code == at.Code.SUCCESS


@pytest.mark.parametrize('then', [
    ('', ''), ('unknown', 'unknown'), ('lazy', 'unknown')])
def test_what_only_root_sees_is_no_change(host, then):
    """Neither does a probe of an earlier version say that it changed."""
    schedule(('lazy', 'HRTICK'), then)(host)
    found = run('Preemption', host)
    assert found.code == at.Code.SUCCESS
    assert 'lazy, HRTICK on' in found.details


def test_what_the_kernel_does_not_say_stays_unknown(host):
    for name in 'dev_weight', 'netdev_budget', 'netdev_budget_usecs':
        host.remove(f'{at.NET}/{name}')
    host.write('sys/class/net/eth1/threaded', '')
    host.remove('sys/class/net/eth0/threaded')
    found = run('NAPI', host)
    assert found.code == at.Code.SUCCESS
    for name in ('dev_weight', 'netdev_budget', 'netdev_budget_usecs',
                 'threaded', 'napi_defer_hard_irqs'):
        assert f'{name} is unknown' in found.details


def test_threads_that_receive_are_counted(host):
    assert '1 of 2 interfaces receive in threads' in run('NAPI', host).details


@pytest.mark.requires(
    'only root gives files away' if os.geteuid() else '')
@pytest.mark.parametrize(('name', 'code'), [
    (at.LEDGER, at.Code.SUCCESS), (at.STATE, at.Code.SUCCESS),
    (at.PROFILE, at.Code.WARNING)])
def test_the_agent_may_own_what_it_writes(host, name, code):
    os.chown(host.root / name, at.AGENT_UID, -1)
    assert run('Permissions', host).code == code
    os.chown(host.root / name, at.AGENT_UID + 1, -1)
    assert run('Permissions', host).code == at.Code.WARNING
