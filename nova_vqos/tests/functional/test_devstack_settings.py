# SPDX-License-Identifier: Apache-2.0
"""What local.conf sets, and what is told where that is wrong."""

import os
import re

from oslo_config import cfg
import pytest

from nova_vqos.conf import agent
from nova_vqos.conf import default_path
from nova_vqos.conf import vqos
from nova_vqos.hooks import rewrite
from nova_vqos.tests.functional import devstack_machine

machine = devstack_machine.machine
untouched = devstack_machine.untouched
pytestmark = devstack_machine.MARKS


def test_calibration_is_as_asked_for(machine):
    host = machine(devstack_machine.SUBNODE, NOVA_VQOS_REFERENCE='gold',
                   LIBVIRT_TYPE='qemu', NOVA_VQOS_IN_GUEST='yes',
                   **devstack_machine.NO_AGENT,
                   POST_CONFIG='NOVA_CPU_CONF compute cpu_shared_set 2-3')
    host.record()
    host.devstack('stack')
    record = host.record()
    assert record[0] == 'install_package sysbench busybox-static cpio'
    calibrate = (f'nova-vqos-calibrate cpu --output {host.profile} '
                 '--reference gold --in-guest --virt-type qemu --pcpus ')
    assert f'{calibrate}2-3' in record
    host.devstack('stack', NOVA_VQOS_RECALIBRATE='True', NOVA_VQOS_PCPUS='4')
    assert f'{calibrate}4' in host.record()


def test_without_calibration(machine):
    host = machine(devstack_machine.SUBNODE, NOVA_VQOS_CALIBRATE='False')
    host.devstack('stack')
    assert not any('calibrate' in line for line in host.record())
    assert host.agent_pid() is not None
    assert not host.profile.exists()


def test_agent_disabled_by_the_user(machine):
    host = machine(**devstack_machine.NO_AGENT)
    host.devstack('stack')
    assert host.agent_pid() is None
    assert not any('run_process' in line for line in host.record())
    assert host.hook.exists()


def test_changed_settings_take_effect_at_the_next_stack(machine):
    host = machine(**devstack_machine.NO_AGENT)
    host.devstack('stack')
    host.devstack('stack', NOVA_VQOS_RESERVED_CU=7,
                  NOVA_VQOS_SERVERS_WITHOUT_UNITS='refuse',
                  NOVA_VQOS_HOOK_ON_ERROR='refuse')
    options = host.options(host.nova_cpu_conf)
    assert options.vqos.reserved_cu == 7
    assert options.vqos.servers_without_units == 'refuse'
    assert host.options(host.nova_conf).vqos.servers_without_units == 'refuse'
    assert rewrite.load_settings(
        str(host.conf_dir / 'hook.conf')).on_error == 'refuse'


@pytest.mark.parametrize(('settings', 'says'), [
    ({'LIBVIRT_TYPE': 'lxc'}, 'LIBVIRT_TYPE is'),
    ({'VIRT_DRIVER': 'fake'}, 'VIRT_DRIVER is'),
    ({'NOVA_VQOS_PERIOD_US': '50 ms'}, 'NOVA_VQOS_PERIOD_US is'),
    ({'NOVA_VQOS_PERIOD_US': '1000001'}, 'NOVA_VQOS_PERIOD_US is'),
    ({'NOVA_VQOS_PERIOD_US': '999'}, 'NOVA_VQOS_PERIOD_US is'),
    ({'NOVA_VQOS_RESERVED_CU': '-1'}, 'NOVA_VQOS_RESERVED_CU is'),
    ({'NOVA_VQOS_SERVERS_WITHOUT_UNITS': 'some'},
     'NOVA_VQOS_SERVERS_WITHOUT_UNITS is'),
    ({'NOVA_VQOS_HOOK_ON_ERROR': 'panic'}, 'NOVA_VQOS_HOOK_ON_ERROR is'),
    ({'NOVA_VQOS_AGAINST': '/nowhere'}, 'NOVA_VQOS_AGAINST is'),
    ({'NOVA_VQOS_AGAINST': '/etc/hosts', 'NOVA_VQOS_REFERENCE': 'a'},
     'NOVA_VQOS_REFERENCE and NOVA_VQOS_AGAINST'),
    ({'ENABLED_SERVICES': devstack_machine.SUBNODE},
     'NOVA_VQOS_AGAINST is not set'),
])
def test_wrong_settings_stop_before_anything_else(untouched, settings, says):
    before = untouched.tree()
    assert f' {says}' in untouched.devstack('stack', fails=True, **settings)
    assert untouched.tree() == before
    assert untouched.record() == []


@pytest.mark.parametrize(('settings', 'says'), [
    ({'COMPUTE_DRIVER': 'zvm.ZVMDriver'}, "compute_driver in .* is 'zvm"),
    ({'CALIBRATION_FAILS': 1}, 'NOVA_VQOS_CALIBRATE=False'),
    ({'NOVA_VQOS_PYTHON': '/bin/false', 'NOVA_FILTERS': ''},
     'NOVA_VQOS_PYTHON'),
    ({'POST_CONFIG': 'NOVA_CONF filter_scheduler enabled_filters A'},
     'enabled_filters in .* has no VqosFilter'),
    ({'POST_CONFIG': 'NOVA_CPU_CONF DEFAULT compute_driver fake.FakeDriver'},
     "compute_driver in .* is 'fake"),
    ({'NOVA_VQOS_PROVIDER': 'another', 'NOVA_VQOS_TIMEOUT': 1},
     'of another after NOVA_VQOS_TIMEOUT'),
    ({'REPORTED_RESERVED': 200, 'NOVA_VQOS_TIMEOUT': 1},
     'Placement has no CUSTOM_VQOS_CPU_UNIT'),
])
def test_what_goes_wrong_later_is_told(machine, settings, says):
    host = machine(**devstack_machine.NO_AGENT)
    assert re.search(rf'\[ERROR\] .*{says}',
                     host.devstack('stack', fails=True, **settings))


def test_the_agent_that_does_not_start_is_told(machine):
    host = machine()
    (host.root / 'run/nova-vqos').write_text('in its place')
    assert 'journalctl -u devstack@vqos-agent' in host.devstack(
        'stack', fails=True, NOVA_VQOS_TIMEOUT=1)


def test_agent_and_hook_get_what_local_conf_gives_nova_compute(machine):
    host = machine(POST_CONFIG='\n'.join(
        f'{file} {option}' for option in (
            'DEFAULT host compute7', 'vqos period_us 100000',
            'vqos quantum_slices cache:60000',
            'vqos cache_max_period_us 300000',
            'vqos_agent topic elsewhere')
        for file in ('NOVA_CONF', 'NOVA_CPU_CONF')))
    host.devstack('stack')
    options = host.options(host.agent_conf)
    assert options.host == 'compute7'
    assert options.vqos.period_us == 100000
    assert options.vqos.quantum_slices == {'cache': '60000'}
    assert options.vqos.cache_max_period_us == 300000
    assert options.vqos_agent.topic == 'elsewhere'
    devstack_machine.check_agent(host)
    devstack_machine.check_hook(host)


def test_defaults_are_those_of_an_installed_nova_vqos():
    text = (devstack_machine.PLUGIN / 'settings').read_text()
    defaults = dict(re.findall(r'^(NOVA_VQOS_\w+)=\$\{\1:-(.*)\}$', text,
                               re.MULTILINE))
    assert defaults['NOVA_VQOS_CONF_DIR'] == os.path.dirname(
        default_path.PROFILE)
    conf = cfg.ConfigOpts()
    vqos.register_opts(conf)
    agent.register_opts(conf)
    conf([], default_config_files=[])
    assert defaults['NOVA_VQOS_RUN_DIR'] == os.path.dirname(
        conf.vqos.agent_state_path)
    assert defaults['NOVA_VQOS_LIBVIRT_URI'] == conf.vqos_agent.libvirt_uri
    assert defaults['NOVA_VQOS_PERIOD_US'] == str(conf.vqos.period_us)
    assert defaults['NOVA_VQOS_RESERVED_CU'] == str(conf.vqos.reserved_cu)


def test_the_guide_names_each_setting_and_no_other():
    settings = (devstack_machine.PLUGIN / 'settings').read_text()
    names = set(re.findall(r'^ *(NOVA_VQOS_\w+)=', settings, re.MULTILINE))
    guide = devstack_machine.GUIDE.read_text()
    assert set(re.findall(r'\bNOVA_VQOS_\w+', guide)) == names
