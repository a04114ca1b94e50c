# SPDX-License-Identifier: Apache-2.0
"""The unit of nova-vqos-vendordata, run by a systemd, under all its limits.

There is no Keystone here: that it cannot be asked is an answer as well.
"""

import os
import pathlib

import pytest

from nova_vqos.tests.fixtures import vendordata
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import hardened_agent
from nova_vqos.tests.host import systemd
from nova_vqos.tests.host import unit_files
from nova_vqos_lab import process

UNIT = unit_files.VENDORDATA
PORT = 8797

_GROUP = 'vqos-vendordata'
_LOG = 'run/vendordata.log'
# An answer's status; its reason where there is none.
_ASK = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(
    'http://127.0.0.1:%d/', b'{}', {'X-Auth-Token': sys.argv[1]})
try:
    print(urllib.request.urlopen(request, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print(error)
""" % PORT


class Unit:
    """The unit on a host."""

    def __init__(self, host):
        self._host = host
        started = host.popen(systemd.argv(_GROUP, UNIT.name),
                             log='systemd-vendordata')
        self._manager = systemd.Manager(host, started)

    def stop(self):
        self._manager.stop(UNIT.name)

    def show(self, name):
        return self._manager.control('show', '-P', name, UNIT.name)

    def ask(self, token=''):
        return self._manager.enter('python3', '-c', _ASK, token
                                   ).stdout.strip()

    def uid(self, name):
        return int(self._host.run(['id', '-u', name]).stdout)

    def status(self):
        lines = self._host.run(
            ['cat', f'/proc/{self.show("MainPID")}/status']
        ).stdout.splitlines()
        return {name: value.strip() for name, _, value in
                (line.partition(':') for line in lines)}


@pytest.fixture(scope='module')
def unit(open_checkout, lab, bus):
    systemd.need()
    host = lab.fast
    hardened_agent.give_user(host)
    path = pathlib.Path(host.path('etc/nova-vqos/vendordata.conf'))
    path.write_text(f'[DEFAULT]\ntransport_url = {bus}\n'
                    + vendordata.CREDENTIALS)
    # As the guide has it.
    host.run(['chown', 'root:nova-vqos-vendordata',
              '/etc/nova-vqos/vendordata.conf'])
    path.chmod(0o640)
    hardened_agent.write_unit(host, UNIT, [
        f'StandardOutput=append:/{_LOG}', 'StandardError=inherit'])
    made = Unit(host)
    try:
        process.wait_until(lambda: made.ask() == '401', guests.LIMIT_S,
                           'the service to answer')
        yield made
    finally:
        try:
            made.stop()
        finally:
            print(pathlib.Path(host.path(_LOG)).read_text())
            os.unlink(path)


def test_it_answers(unit):
    """And has asked Keystone, by the network."""
    assert unit.ask('a-token') == '503'
    assert unit.show('ActiveState') == 'active'
    assert unit.show('NRestarts') == '0'


def test_it_is_not_the_agent(unit):
    """Whom nova-vqos-helper obeys."""
    uid = int(unit.status()['Uid'].split()[0])
    assert uid == unit.uid('nova-vqos-vendordata')
    assert uid != unit.uid('nova-vqos')


def test_it_has_no_rights(unit):
    status = unit.status()
    assert status['Uid'].split()[0] != '0'
    for name in ('CapBnd', 'CapEff', 'CapPrm', 'CapInh', 'CapAmb'):
        assert int(status[name], 16) == 0, name
    assert status['NoNewPrivs'] == '1'
    # 2: by a filter.
    assert status['Seccomp'] == '2'
