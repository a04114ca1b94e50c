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

"""nova-vqos-status: each thing that can be wrong, made wrong."""

import re

import pytest

from nova_vqos.quantum import proof
from nova_vqos.status import catalogue
from nova_vqos.status import worlds
from nova_vqos.tests import make_profiles
from nova_vqos.tests.unit import status_world as at

FILTERS = 'filter_scheduler'


@pytest.fixture
def machine(tmp_path):
    return at.Machine(tmp_path)


@pytest.mark.parametrize('check', catalogue.CHECKS, ids=lambda one: one.name)
def test_nothing_is_wrong(machine, check):
    result = catalogue.run(check, machine.world)
    assert result.code == at.Code.SUCCESS, result.details
    # What was looked at, and not only that nothing was found.
    assert re.fullmatch(r'[^ ].* .*\.', result.details)


def unlike(machine):
    machine.calibrate(make_profiles.make_class({0}, 1.0, width=0.01),
                      make_profiles.make_class({1}, 0.5, width=0.01))


def change(name, section, **options):
    return lambda machine: machine.change(name, section, **options)


def write(name, content, **mode):
    return lambda machine: machine.write(name, content, **mode)


def remove(name):
    return lambda machine: machine.remove(name)


def mode(name, bits):
    return lambda machine: (machine.root / name).chmod(bits)


def answer(name, value):
    return lambda machine: setattr(machine, name, value)


def both(*breaks):
    def break_all(machine):
        for one in breaks:
            one(machine)
    return break_all


WRONG = [
    ('Role', both(answer('asked', []), write(at.NOVA_CONF, ''),
                  remove(at.OWN_CONF), remove(at.PROFILE), remove(at.HOOK)),
     2, 'say so with --role'),

    ('Configuration', remove(at.NOVA_CONF), 2, 'there is no nova.conf'),
    ('Configuration', remove(at.OWN_CONF), 2, 'there is no nova-vqos.conf'),
    ('Configuration', write(at.NOVA_CONF, 'garbage'), 2, 'cannot be read'),
    ('Configuration', write(at.OWN_CONF, b'\xff\xfe[DEFAULT]'), 2,
     'cannot be read'),
    ('Configuration', change(at.OWN_CONF, 'vqos', period_us='often'), 2,
     '[vqos] period_us of'),
    ('Configuration', change(at.OWN_CONF, 'vqos', perod_us='50000'), 2,
     '[vqos] perod_us of .* is no option'),
    ('Configuration', change(at.NOVA_CONF, 'vqos_agents', topic='t'), 2,
     'has a group [vqos_agents]'),

    ('Nova', answer('nova', worlds.Unanswered('no module named nova')), 2,
     'no module named nova'),
    ('Nova', answer('nova', {'version': '32.0.1'}), 1, 'Nova 32.0.1'),
    ('Filter and weighers, import', answer('nova', {'scheduler': 'Oops'}), 2,
     'Oops'),
    ('Extra specs', answer('nova', {'validators': 'LookupError: none'}), 2,
     'takes flavors that no host can serve: LookupError'),
    ('Compute driver, import', answer('nova', {'driver': 'ImportError: x'}),
     2, 'link nova/virt/vqos'),
    ('Compute driver, import', answer('nova', worlds.Unanswered('x')), 2,
     'Nova cannot be asked'),

    ('Compute driver', change(at.NOVA_CONF, 'DEFAULT', compute_driver=None), 2,
     'is not set'),
    ('Compute driver', change(at.NOVA_CONF, 'DEFAULT',
                              compute_driver='libvirt.LibvirtDriver'), 2,
     'set it to vqos.VqosLibvirtDriver'),
    ('Compute driver', change(at.NOVA_CONF, 'libvirt', virt_type='lxc'), 2,
     'virt_type of .* is lxc'),

    ('Filter', change(at.NOVA_CONF, FILTERS, enabled_filters='ComputeFilter'),
     2, 'has no VqosFilter'),
    ('Filter', change(at.NOVA_CONF, FILTERS, available_filters=None), 2,
     'add available_filters = nova_vqos'),
    ('Weighers', change(at.NOVA_CONF, FILTERS, weight_classes=None), 1,
     'has no nova_vqos.scheduler.weigher.all_weighers'),

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
     'set it to 50000 in /etc/nova-vqos/hook.conf'),
    ('Same options', write(at.HOOK_CONF, '[hook]\nprofile = /p\n'), 2,
     'profile of [hook] is /p'),
    ('Same options', write(at.HOOK_CONF, '[hook]\nperiod_us = 1s\n'), 2,
     'the hook is not told what to do'),
    ('Same options', write(at.HOOK_CONF, '[hook]\nquantum_slices = x\n'), 2,
     'the hook is not told what to do'),

    ('Profile', remove(at.PROFILE), 2, 'nova-vqos-calibrate cpu'),
    ('Profile', write(at.PROFILE, 'schema: 2'), 2, 'cannot be used'),
    ('Profile', mode(at.PROFILE, 0o666), 2, 'mode 0666'),
    ('Profile', lambda machine: machine.calibrate(
        make_profiles.make_class({0, 1}, 1.0, width=0.2)), 2,
     'is 20.0% wide, more than 5.0%'),
    ('Profile', write('proc/cpuinfo', 'model name : B\n'), 2,
     "cpu_model was 'A' and is 'B'"),
    ('Profile', change(at.NOVA_CONF, 'compute', cpu_shared_set='0-3'), 2,
     'pCPUs 2-3 of [compute] cpu_shared_set'),
    ('Profile', change(at.NOVA_CONF, 'compute', cpu_shared_set='0-3,^2'), 1,
     'cannot be told whether'),

    ('Hook', remove(at.HOOK), 2, 'nova-vqos-libvirt-hook --install'),
    ('Hook', write(at.HOOK, '#!/bin/sh\n', mode=0o755), 2, 'is not ours'),
    ('Hook', mode(at.HOOK, 0o644), 2, 'not executable'),
    ('Hook', mode(at.HOOK, 0o777), 2, 'chmod 755'),
    ('Hook', lambda machine: machine.write(
        at.HOOK, (machine.root / at.HOOK).read_text() + '# old\n',
        mode=0o755), 1,
     'another version'),
    ('Hook', lambda machine: machine.run(7, '/usr/sbin/libvirtd'), 1,
     'restart libvirtd'),

    ('Agent', remove(at.STATE), 2, 'never ran on this boot'),
    ('Agent', write(at.STATE, '{"seen_at": 3'), 2, 'is no sign of life'),
    ('Agent', write(at.STATE, '[]'), 2, 'is no sign of life'),
    ('Agent', write(at.STATE, '{"seen_at": "2026-11-22T12:00:00"}'), 2,
     'is no sign of life'),
    ('Agent', lambda machine: machine.live(301), 2, 'agent_max_age_s, 300 s'),
    ('Agent', lambda machine: machine.live(31), 1, 'should be each 10 s'),
    ('Agent', lambda machine: machine.live(-61), 1, 'ahead of the clock'),
    ('Agent', lambda machine: machine.live(hypervisor_connected=False), 2,
     'not connected to libvirt'),
    ('Agent', lambda machine: machine.live(alarms=['the ledger is full']), 1,
     'the ledger is full'),

    ("Agent's unit", remove(at.UNIT), 1, 'is not installed'),
    ("Agent's unit", lambda machine: machine.install_unit(
        lambda text: text.replace('\nUMask=0077\n', '\n')), 1,
     'it has other UMask'),
    ("Agent's unit", lambda machine: machine.install_unit(
        lambda text: text.replace('ExecStartPre', '#')), 1,
     'does not run nova-vqos-probe'),
    ("Agent's unit", remove('usr/bin/nova-vqos-agent'), 2,
     'names /usr/bin/nova-vqos-agent, which cannot be run'),
    ("Agent's unit", write(at.UNIT, 'no section'), 2, 'is no unit'),
    ("Agent's unit", write(at.UNIT, '[Unit]\nA=b\n'), 2, 'is no unit'),

    ('Message bus', change(at.NOVA_CONF, 'vqos_agent', topic='x'), 2,
     '[vqos_agent] topic is x'),
    ('Message bus', change(at.OWN_CONF, 'DEFAULT', transport_url=None), 1,
     'is not set'),
    ('Message bus', change(at.OWN_CONF, 'DEFAULT',
                           transport_url='rabbit://a:secret@other/'), 1,
     'names another message bus'),
    ("Agent's answer", answer('answer', worlds.Unanswered('late')), 1,
     'late'),
    ("Agent's answer", answer('answer', {'version': '0.0.1'}), 1,
     'version 0.0.1'),
    ("Agent's answer", lambda machine: machine.answer.update(wrong=['u']), 1,
     'the caps of 1 servers'),

    ('Quantum classes', remove(at.PROOF), 1, 'nothing of this boot'),
    ('Quantum classes', lambda machine: machine.prove('last-boot'), 1,
     'nothing of this boot'),
    ('Quantum classes', lambda machine: machine.prove(
        io=proof.Outcome(1000, None, None, 'not measured: busy')), 1,
     'at a quieter time'),
    ('Quantum classes', lambda machine: machine.prove(
        io=proof.Outcome(1000, 3000, False, 'threads ran for 3 ms')), 1,
     'class io is not offered: threads ran for 3 ms'),
    ('Quantum classes', lambda machine: machine.prove(
        io=proof.Outcome(2000, 2000, True)), 1, 'of 1000 us was not tried'),

    ('Permissions', mode(at.OWN_CONF, 0o644), 2, 'the password of'),
    ('Permissions', mode(at.STATE, 0o666), 2, 'chmod go-w /run/nova-vqos'),
    ('Permissions', mode(at.HOOK_CONF, 0o664), 2, 'chmod go-w /etc/nova-vqos'),
    ('Permissions', mode('etc/nova-vqos', 0o777), 2, 'chmod go-w /etc'),
    ('Permissions', mode(at.PROFILE, 0o600), 2, 'chmod o+r'),
    ('Permissions', mode(at.LEDGER, 0o640), 2, 'chmod go= /var/lib'),

    ('libvirt', answer('libvirt', 'libvirtd (libvirt) 7.10.0'), 2,
     'libvirt 7.10.0, which'),
    ('libvirt', answer('libvirt', worlds.Unanswered('none')), 2, 'none'),
    ('libvirt', answer('libvirt', 'new'), 1, "'new'"),
    ('Linux', answer('kernel', '5.14.0-rc1'), 2, 'update it to 5.15'),

    ('cgroups', write('sys/fs/cgroup/cgroup.controllers', 'cpu io\n'), 2,
     'no cgroup controller cpuset'),
    ('cgroups', write('sys/fs/cgroup/machine.slice/cgroup.controllers',
                      'cpuset io\n'), 2,
     'no cgroup controller cpu in /sys/fs/cgroup/machine.slice'),
    ('sched_ext', both(write(f'{at.SCX}/state', 'enabled\n'),
                       write(f'{at.SCX}/root/ops', 'lavd\n')), 2, '(lavd, '),
    ('sched_ext', both(write(f'{at.SCX}/state', 'enabled\n'),
                       write(f'{at.SCX}/switch_all', '0\n')), 1,
     'the tasks that ask for it'),
    ('Frequency', write(f'{at.CPU}/cpufreq/policy1/scaling_governor',
                        'schedutil\n'), 1, 'governor is schedutil'),
    ('Halt polling', write(at.HALT_POLL, '200000\n'), 1, 'is 200000'),
    ('Interrupt time', write(at.BOOT_CONFIG, 'CONFIG_HZ=250\n'), 1,
     'has no CONFIG_IRQ_TIME_ACCOUNTING'),
]


@pytest.mark.parametrize(('name', 'break_it', 'code', 'said'), WRONG)
def test_what_is_wrong_is_said(machine, name, break_it, code, said):
    break_it(machine)
    result = machine.check(name)
    assert result.code == code, result.details
    pattern = '.*'.join(map(re.escape, said.split('.*')))
    assert re.search(pattern, result.details, re.IGNORECASE), result.details
    # A sentence of what is wrong, and one of what to do.
    assert len(re.findall(r'\. [A-Z/]|\. nova', result.details)) >= 1
    assert 'secret' not in result.details
    assert 'could not be made' not in result.details


def test_each_check_was_made_wrong():
    """But that of Python, which could not run this."""
    assert {check.name for check in catalogue.CHECKS} == {
        name for name, *_rest in WRONG} | {'Python'}
