# SPDX-License-Identifier: Apache-2.0
"""The sample configuration below etc/ says what the code says."""

import io
import os
import re

from oslo_config import cfg
from oslo_config import generator
import pytest
import yaml

from nova_vqos import units
from nova_vqos.conf import agent
from nova_vqos.conf import default_path
from nova_vqos.conf import opts
from nova_vqos.hooks import rewrite
from nova_vqos.quantum import classes
from nova_vqos.tests.fixtures import project

GENERATOR = 'etc/oslo-config-generator/nova-vqos.conf'
SAMPLE = 'etc/nova-vqos/nova-vqos.conf.sample'
ROLE = 'deploy/ansible/roles/nova_vqos'
# What setpriv takes to give the others away.
TO_GIVE_UP = {'SETUID', 'SETGID', 'SETPCAP'}
HOOK_SAMPLE = 'etc/nova-vqos/hook.conf'
RENEW = (f'{SAMPLE} is not what the options are; from the top of the tree, '
         f'run: oslo-config-generator --config-file {GENERATOR}')


@pytest.fixture(scope='module')
def generator_conf():
    """The generator as RENEW starts it; never those of the machine's."""
    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(['--config-file', str(project.TOP / GENERATOR)],
         default_config_dirs=[])
    return conf


def generate(conf):
    output = io.StringIO()
    generator.generate(conf, output)
    return output.getvalue()


@project.needs_checkout
def test_the_sample_is_current(generator_conf):
    current = generate(generator_conf)
    assert project.sample(SAMPLE).read_text() == current, RENEW


@project.needs_checkout
def test_the_sample_goes_where_it_is_kept(generator_conf):
    assert generator_conf.output_file == SAMPLE


@project.needs_checkout
def test_the_sample_is_of_our_options_alone(generator_conf):
    """Those of other libraries change with their versions."""
    assert generator_conf.namespace == ['nova_vqos']


@project.needs_checkout
def test_the_sample_is_the_same_on_any_machine(generator_conf, monkeypatch):
    (host,) = agent.HOST_OPTS
    monkeypatch.setattr(host, 'default', 'another-machine')
    assert 'another-machine' not in generate(generator_conf)


def examples_of(name):
    """A sample with each of its examples in force."""
    # An example has no blank behind the sign, words for the reader have one.
    return '\n'.join(
        line.removeprefix('#') if line[1:2].isalpha() else line
        for line in project.sample(name).read_text().splitlines())


def test_the_sample_is_a_configuration(tmp_path):
    """With each of its examples in force, nothing is another than before."""
    path = tmp_path / 'nova-vqos.conf'
    path.write_text(examples_of(SAMPLE))
    conf = cfg.ConfigOpts()
    defaults = cfg.ConfigOpts()
    for one in (conf, defaults):
        for group, options in opts.list_opts():
            one.register_opts(options, group=group)
    conf([], default_config_files=[str(path)], default_config_dirs=[])
    defaults([], default_config_files=[], default_config_dirs=[])
    assert conf.host == '<the host name>'
    for group in ('vqos', 'vqos_agent'):
        assert dict(conf[group]) == dict(defaults[group])


def test_the_hooks_sample_says_its_defaults(tmp_path):
    path = tmp_path / 'hook.conf'
    path.write_text(examples_of(HOOK_SAMPLE))
    said = rewrite.load_settings(str(path))
    defaults = rewrite.load_settings(str(tmp_path / 'none'))
    assert (said.error, said.on_error) == ('', defaults.on_error)
    assert said.profile_path == default_path.PROFILE
    assert said.period_us == units.DEFAULT_PERIOD_US
    assert said.cache_max_period_us == units.DEFAULT_CACHE_MAX_PERIOD_US
    assert classes.slices_us(classes.split(
        said.quantum_slices)) == classes.DEFAULT_SLICES_US


def test_the_hook_takes_its_sample():
    settings = rewrite.load_settings(str(project.sample(HOOK_SAMPLE)))
    assert settings.error == ''


@pytest.mark.parametrize(('name', 'section'), [
    ('nova-vqos-agent.service', '[Service]'),
    ('nova-vqos-partition.service', '[Service]'),
    ('nova-vqos-partition.timer', '[Timer]'),
    ('nova-vqos-vendordata.service', '[Service]'),
    ('nova-vqos-verify.service', '[Service]'),
    ('nova-vqos-verify.timer', '[Timer]'),
    ('vqosidle.slice', '[Slice]')])
def test_the_units_are_where_the_guide_says(name, section):
    assert section in project.sample(f'etc/systemd/{name}').read_text()


def test_what_the_kernel_enforces_is_where_the_agent_looks():
    unit = project.sample('etc/systemd/nova-vqos-probe.service').read_text()
    assert f'--record {default_path.PROBE_RESULT}\n' in unit
    assert (os.path.dirname(default_path.KVM_EXIT)
            == os.path.dirname(default_path.PROBE_RESULT))


def test_the_helper_listens_where_the_agent_looks():
    unit = project.sample('etc/systemd/nova-vqos-helper.socket').read_text()
    assert f'ListenSequentialPacket={default_path.HELPER}\n' in unit


def test_the_agents_user_is_the_one_that_all_name():
    unit = project.sample('etc/systemd/nova-vqos-agent.service').read_text()
    user = re.search(r'^User=(.+)$', unit, re.M).group(1)
    assert f'\nSocketUser={user}\n' in project.sample(
        'etc/systemd/nova-vqos-helper.socket').read_text()
    assert f'\nu {user} ' in project.sample(
        'etc/systemd/nova-vqos.sysusers').read_text()
    assert f'subject.user == "{user}"' in project.sample(
        'etc/polkit/50-nova-vqos.rules').read_text()


def test_no_two_units_share_a_directory():
    """The manager gives it to the user of the last one that starts."""
    agent_unit = project.sample('etc/systemd/nova-vqos-agent.service')
    found = [
        (kind, name) for path in agent_unit.parent.glob('*.service')
        for kind, name in re.findall(r'^(Runtime|State)Directory=(.+)$',
                                     path.read_text(), re.M)]
    assert len(found) == len(set(found)) == 5


def test_the_partition_is_measured_where_the_agent_looks():
    unit = project.sample(
        'etc/systemd/nova-vqos-partition.service').read_text()
    assert f'--record {default_path.PARTITION}\n' in unit


def test_the_verification_is_where_the_driver_looks():
    unit = project.sample('etc/systemd/nova-vqos-verify.service').read_text()
    assert f'--record {default_path.VERIFICATION}\n' in unit
    assert 'Slice=vqosidle.slice\n' in unit


@project.needs_checkout
@pytest.mark.parametrize('name', ['agent', 'helper', 'probe'])
def test_containers_have_the_rights_of_the_units(name):
    role = yaml.safe_load((project.TOP / ROLE / 'vars/main.yml').read_text())
    (container,) = [one for one in role['nova_vqos_containers']
                    if one['name'] == f'nova-vqos-{name}']
    unit = (project.TOP / f'etc/systemd/nova-vqos-{name}.service').read_text()
    bounding = set(re.search(r'^CapabilityBoundingSet=(.*)$', unit, re.M)[1]
                   .replace('CAP_', '').split())
    if name == 'agent':
        assert '--ambient-caps -all,+sys_nice' in container['command']
        assert bounding == {'SYS_NICE'}
        bounding |= TO_GIVE_UP
    assert set(container['capabilities']) == bounding
    assert ('PrivateNetwork=yes' in unit) == (container['network'] == 'none')
    start = re.search(r'^ExecStart=/usr/bin/(.*)$', unit, re.M)[1]
    assert start in container['command']


def test_vendordata_is_not_the_agent():
    """Whom nova-vqos-helper obeys; and each has its passwords to itself."""
    unit = project.sample(
        'etc/systemd/nova-vqos-vendordata.service').read_text()
    agent_unit = project.sample('etc/systemd/nova-vqos-agent.service')
    user, of_agent = (re.search(r'^User=(.+)$', text, re.M)[1]
                      for text in (unit, agent_unit.read_text()))
    assert user != of_agent
    assert f'\nu {user} ' in project.sample(
        'etc/systemd/nova-vqos.sysusers').read_text()
    assert f'--config-file {default_path.VENDORDATA_CONFIG}\n' in unit
    assert default_path.CONFIG not in unit
    assert f'-{default_path.HELPER} ' in unit
