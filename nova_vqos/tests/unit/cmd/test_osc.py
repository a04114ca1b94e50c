# SPDX-License-Identifier: Apache-2.0
"""The commands as a part of openstackclient."""

import importlib.metadata
import os
import sys
import types

from openstackclient import shell
from osc_lib import clientmanager
from oslo_config import cfg
from oslo_messaging import conffixture
import pytest
import requests_mock as requests_mock_lib

from nova_vqos.cmd import osc
from nova_vqos.tests.fixtures import manage

# What openstackclient asks Keystone for is not needed where hosts are given.
NOVA = 'http://nova.example'
NO_AUTH = ('--os-auth-type', 'none', '--os-endpoint', NOVA)


@pytest.fixture
def agents(tmp_path):
    """The hosts a and b."""
    with manage.Agents(tmp_path) as world:
        world.add('a')
        world.add('b')
        yield world


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'nova-vqos.conf'
    path.write_text('[DEFAULT]\ntransport_url = fake://\n')
    return str(path)


def run(capsys, *arguments, auth=NO_AUTH):
    """:returns: what `openstack` did with arguments"""
    capsys.readouterr()
    # It keeps clients as long as its process lives.
    clientmanager.ClientManager.__dict__[osc.API_NAME]._handle = None
    options = conffixture.ConfFixture(cfg.CONF)
    options.setUp()
    try:
        with manage.logging_of_one_program():
            status = shell.OpenStackShell().run([*auth, *arguments])
    finally:
        options.cleanUp()
        cfg.CONF.clear()
    said = capsys.readouterr()
    return manage.Ran(status, said.out, said.err)


def test_it_has_all_commands_of_the_other_program():
    def commands(group, prefix):
        return {point.name.removeprefix(prefix): point.value
                for point in importlib.metadata.entry_points(group=group)}
    assert commands('openstack.vqos.v1', 'vqos_') == commands(
        'nova_vqos.manage', '')


def test_hosts_are_listed(agents, config, capsys):
    ran = run(capsys, '--vqos-config-file', config, 'vqos', 'host', 'list',
              '--host', 'a', '--host', 'b', '-f', 'json')
    assert ran.status == 0, ran.err
    assert [(row['host'], row['agent']) for row in ran.json] == [
        ('a', 'alive'), ('b', 'alive')]


def test_a_silent_host_is_told_by_the_status(agents, config, capsys):
    ran = run(capsys, '--vqos-config-file', config, '--vqos-timeout', '0.2',
              'vqos', 'host', 'list', '--host', 'a', '--host', 'gone',
              '-f', 'json')
    assert ran.status == 1
    assert [row['agent'] for row in ran.json] == ['alive', 'no answer']
    assert '0.2 s' in ran.err


def test_what_is_no_fault_is_told_too(agents, config, capsys):
    """openstackclient shows of the log what is a warning, and no more."""
    report = ('--vqos-config-file', config, 'vqos', 'calibration', 'report',
              '--host', 'a', '--host', 'b', '-f', 'json')
    ran = run(capsys, *report)
    assert (ran.status, len(ran.json)) == (0, 2)
    assert '2 hosts have 1 profiles' in ran.err
    ran = run(capsys, '--quiet', *report)
    assert (ran.status, ran.err) == (0, '')


def test_without_a_bus_it_says_what_to_give(tmp_path, capsys):
    ran = run(capsys, '--vqos-config-file', str(tmp_path / 'none'), 'vqos',
              'host', 'list', '--host', 'a')
    assert ran.status == 1
    assert 'message bus' in ran.err
    assert '--vqos-config-file' in ran.err
    assert 'Traceback' not in ran.err


def test_nova_is_asked_by_the_session_of_openstackclient(
        agents, config, capsys, requests_mock):
    requests_mock.get(f'{NOVA}/', json={'version': {
        'id': 'v2.1', 'status': 'CURRENT', 'version': '2.100',
        'min_version': '2.1', 'links': [{'rel': 'self', 'href': NOVA}]}})
    requests_mock.get(f'{NOVA}/os-services',
                      json=manage.services('a', 'b'))
    ran = run(capsys, '--vqos-config-file', config, 'vqos', 'host', 'list',
              '-f', 'json')
    assert ran.status == 0, ran.err
    assert [row['host'] for row in ran.json] == ['a', 'b']


def test_a_key_is_made_without_credentials(tmp_path, capsys, monkeypatch):
    for name in list(os.environ):
        if name.startswith('OS_'):
            monkeypatch.delenv(name)
    # No user's own clouds.yaml.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('OS_CLIENT_CONFIG_FILE', str(tmp_path / 'none'))
    path = tmp_path / 'key'
    ran = run(capsys, 'vqos', 'key', 'create', str(path), '-f', 'json',
              auth=())
    assert ran.status == 0, ran.err
    assert ran.json['private_key'] == str(path)
    assert path.exists()


@pytest.mark.parametrize('command', [
    'audit', 'calibration report', 'calibration show', 'flavor check web',
    'flavor sync', 'host forget a', 'host list', 'migration check web',
    'policy push', 'policy show --server web', 'policy status', 'server list',
    'server show web', 'server top'])
def test_a_nova_that_refuses_is_named(config, capsys, requests_mock, command):
    requests_mock.get(requests_mock_lib.ANY, status_code=503)
    ran = run(capsys, '--vqos-config-file', config, 'vqos', *command.split())
    assert ran.status == 1
    assert ran.err.startswith('Nova')


@pytest.mark.parametrize('given', ['0', '-1', 'soon', 'nan'])
def test_a_timeout_that_is_none(given, config, capsys):
    with pytest.raises(SystemExit) as ended:
        run(capsys, f'--vqos-timeout={given}', 'vqos', 'host', 'list')
    assert ended.value.code == 2


def test_other_commands_of_openstackclient_pay_little():
    """No library is imported for them."""
    imported = {one.__name__ for one in vars(osc).values()
                if isinstance(one, types.ModuleType)}
    assert imported <= sys.stdlib_module_names
