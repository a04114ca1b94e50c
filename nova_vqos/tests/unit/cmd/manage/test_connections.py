# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage with a configuration that cannot be used, or no bus."""

import os

import oslo_messaging
import pytest

from nova_vqos.cmd.manage import connections
from nova_vqos.tests.fixtures import manage

SECRET = 'hush'


@pytest.fixture
def config(tmp_path):
    """Writes a configuration file."""
    def write(text):
        path = tmp_path / 'nova-vqos.conf'
        path.write_text(text)
        return path
    return write


def list_host(config):
    return manage.run('host', 'list', '--host', 'a', config=config)


def assert_one_line(ran, text):
    assert ran.status == 1
    assert ran.out == ''
    assert ran.err.count('\n') == 1, ran.err
    assert text in ran.err
    assert SECRET not in ran.err


def test_no_file(tmp_path):
    path = tmp_path / 'none'
    ran = list_host(path)
    assert_one_line(ran, f'there is no file {path}: ')
    assert '--config-file' in ran.err


def test_the_file_of_the_environment(tmp_path, monkeypatch):
    """Unless one is given."""
    path, other = tmp_path / 'none', tmp_path / 'other'
    monkeypatch.setenv('NOVA_VQOS_CONFIG_FILE', str(path))
    assert_one_line(list_host(None), f'there is no file {path}')
    assert_one_line(list_host(other), f'there is no file {other}')


def test_a_directory(tmp_path):
    assert_one_line(list_host(tmp_path), f'there is no file {tmp_path}')


def test_an_unreadable_file(config, monkeypatch):
    path = config('')
    # Root may read whatever it wants.
    monkeypatch.setattr(connections.os, 'access', lambda _path, _mode: False)
    assert_one_line(list_host(path), f'{path} cannot be read: run as a user')


@pytest.mark.parametrize(('text', 'error'), [
    (f'[DEFAULT]\ntransport_url {SECRET}\n',
     'is no configuration file, see line 2'),
    (f'[DEFAULT]\ntransport_url rabbit://u:{SECRET}@h/\n',
     'has no transport_url'),
    ('', 'has no transport_url'),
    ('[DEFAULT\n', 'is no configuration file, see line 1'),
    ('\0\xff', 'is no configuration file, see line 1'),
    *((f'[DEFAULT]\ntransport_url = fake://\n[vqos_manage]\n'
       f'timeout_s = {value}\n', 'timeout_s') for value in ('soon', '0')),
    (f'[DEFAULT]\ntransport_url = nonesuch://u:{SECRET}@h/\n',
     'the transport URL of cell default'),
    (f'[DEFAULT]\ntransport_url = rabbit://u:{SECRET}@h:port/\n',
     'the transport URL of cell default'),
    (f'[DEFAULT]\ntransport_url = {SECRET}\n',
     'the transport URL of cell default'),
    (f'[DEFAULT]\ntransport_url = fake://\n[vqos_manage]\ncells = {SECRET}\n',
     'cells, line 1: not NAME=URL'),
    ('[DEFAULT]\ntransport_url = fake://\n[vqos_manage]\n'
     f'cells = north=nonesuch://u:{SECRET}@h/\n',
     'the transport URL of cell north'),
    ('[DEFAULT]\ntransport_url = fake://\n[vqos_manage]\n'
     f'cells = north=fake://{SECRET}\ncells = north=fake://\n',
     "cells, line 2: there are two cells 'north'"),
    ('[DEFAULT]\ntransport_url = fake://\n[vqos_manage]\n'
     'cells = default=fake://\n', "line 1: there are two cells 'default'"),
])
def test_a_file_that_is_none(config, text, error):
    assert_one_line(list_host(config(text)), error)


class Nova:
    """Has one flavor, which needs no trait that is not there."""

    compute = property(lambda self: self)

    def get(self, path, microversion):
        flavors = [] if 'marker=' in path else [{
            'id': 'f1', 'name': 'stock', 'vcpus': 1, 'ram': 256,
            'extra_specs': {}}]
        return manage.answer({'flavors': flavors})


def test_without_a_bus_flavors_are_synced(config):
    """Nova and Placement alone are asked."""
    ran = manage.run(
        'flavor', 'sync', '-f', 'json', cloud=Nova(),
        config=config('[vqos]\nservers_without_units = allow\n'))
    assert (ran.status, ran.err) == (0, '')
    assert [(row['flavor'], row['result'], row['set'])
            for row in ran.json] == [('stock', 'unchanged', {})]


@pytest.mark.parametrize(('text', 'error'), [
    (None, 'there is no file'),
    ('[vqos]\nservers_without_units = no\n', 'servers_without_units'),
])
def test_flavors_are_synced_by_options_that_can_be_read(
        config, tmp_path, text, error):
    path = tmp_path / 'none' if text is None else config(text)
    assert_one_line(manage.run('flavor', 'sync', cloud=Nova(), config=path),
                    error)


def test_a_host_is_found_in_its_cell(tmp_path, config):
    """The cell is unknown: all are asked."""
    with manage.Agents(tmp_path) as agents:
        agents.add('a')
        ran = manage.run(
            'host', 'list', '-f', 'json', '--host', 'a', '--timeout', '3',
            config=config('[DEFAULT]\ntransport_url = fake://\n'
                          '[vqos_manage]\ncells = north=fake://\n'))
    assert (ran.status, ran.err) == (0, '')
    assert [row['cell'] for row in ran.json] in (['default'], ['north'])


@pytest.mark.parametrize(('variables', 'text'), [
    ({}, 'auth_url'),
    ({'OS_CLOUD': 'nonesuch'}, 'nonesuch was not found'),
    ({'OS_AUTH_TYPE': 'nonesuch'}, 'nonesuch could not be found'),
    ({'OS_AUTH_URL': 'nonsense', 'OS_USERNAME': 'x', 'OS_PASSWORD': SECRET},
     ''),
])
def test_no_credentials(config, tmp_path, monkeypatch, variables, text):
    for name in list(os.environ):
        if name.startswith('OS_'):
            monkeypatch.delenv(name)
    # No user's own clouds.yaml.
    clouds = tmp_path / 'clouds.yaml'
    clouds.write_text('clouds: {other: {}}\n')
    monkeypatch.setenv('OS_CLIENT_CONFIG_FILE', str(clouds))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ran = manage.run(
        'host', 'list', config=config('[DEFAULT]\ntransport_url = fake://\n'))
    assert_one_line(ran, 'Nova cannot be asked: ')
    assert text in ran.err


def dead_bus(text):
    def send(*_arguments, retry=None, **_others):
        # None would try for ever.
        assert retry == 0
        raise oslo_messaging.MessageDeliveryFailure(text)
    return send


def test_a_bus_that_is_down(config, monkeypatch):
    monkeypatch.setattr(oslo_messaging.transport.RPCTransport, '_send',
                        dead_bus('Unable\nto connect'))
    assert_one_line(list_host(config('[DEFAULT]\ntransport_url = fake://\n')),
                    'the bus of cell default cannot be used: Unable to '
                    'connect')
