# SPDX-License-Identifier: Apache-2.0
"""What the agent's user can do with libvirt, and with the host."""

import errno
import json
import os
import pathlib
import sys

import libvirt
import pytest

from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import hardened_agent
from nova_vqos.tests.host import libvirt_attempts
from nova_vqos_lab import process

USER = 'nova-vqos'
POLKITD = '/usr/lib/polkit-1/polkitd'
RULES = '/etc/polkit-1/rules.d'
_LIMIT_S = 30
_DENIED = libvirt.VIR_ERR_OPERATION_DENIED
_CONF = 'etc/libvirt/libvirtd.conf'
_NETWORK = """
<network><name>vqos-network</name><bridge name='vqos-none'/>
<forward mode='bridge'/></network>"""


def attempt(host, guest, *groups):
    """Try groups of things as the agent's user.

    :returns: number of the error by name, 0: none
    """
    done = host.run([
        'setpriv', f'--reuid={USER}', f'--regid={USER}', '--clear-groups',
        '--no-new-privs', sys.executable, libvirt_attempts.__file__,
        guest.uuid, *groups])
    return json.loads(done.stdout)


@pytest.fixture(scope='module')
def fast(open_checkout, lab):
    """The host fast, with the agent's user."""
    hardened_agent.give_user(lab.fast)
    return lab.fast


@pytest.fixture(scope='module')
def guest(fast):
    """A server, and a network of libvirt's own."""
    made = guests.Guest(fast, specs=guests.server(40), cap=guests.CAP,
                        shares=guests.SHARES)
    try:
        made.wait_cap(guests.CAP)
        guests.connect(fast).networkDefineXML(_NETWORK)
        yield made
        # NOTE: libvirtd was started anew.
        guests.connect(fast).networkLookupByName('vqos-network').undefine()
    finally:
        guests.destroy_all(fast)


def is_running(guest):
    # NOTE: polkit cannot see this process, which is in no host.
    return guest.host.run(
        ['virsh', 'domstate', guest.name]).stdout.strip() == 'running'


def test_it_reads_what_the_agent_reads(fast, guest):
    found = attempt(fast, guest, 'reads')
    assert set(found.values()) == {0}, found


def test_libvirt_refuses_all_that_changes_anything(fast, guest):
    found = attempt(fast, guest, 'changes')
    assert {name: error for name, error in found.items()
            if error != _DENIED} == {}
    assert guest.cap() == guests.CAP
    assert is_running(guest)


def test_the_host_refuses_what_is_of_root(fast, guest):
    found = attempt(fast, guest, 'files')
    assert found == {'shadow': errno.EACCES, 'cron': errno.EACCES,
                     'emulator': errno.EACCES,
                     # To connect to the socket that writes.
                     'sockets': libvirt.VIR_ERR_SYSTEM_ERROR}


class Polkit:
    """libvirt's access control by polkit, on a host.

    :ivar rules: directory of them, on the machine
    """

    def __init__(self, host):
        self._host = host
        self._started = []
        self._before = pathlib.Path(host.path(_CONF)).read_text()

    def start(self):
        host = self._host
        host.run(['mkdir', '-p', '/run/dbus', RULES])
        self._started = [
            host.popen(['dbus-daemon', '--system', '--nofork', '--nopidfile'])]
        process.wait_until(
            lambda: os.path.exists(host.path('run/dbus/system_bus_socket')),
            _LIMIT_S, 'the system bus')
        self._started.append(host.popen([POLKITD, '--no-debug']))
        # Everything is left to the access control.
        pathlib.Path(host.path(_CONF)).write_text(
            self._before.replace('"0700"', '"0777"')
            + 'access_drivers = [ "polkit" ]\n')
        self._restart_libvirtd()

    def stop(self):
        pathlib.Path(self._host.path(_CONF)).write_text(self._before)
        for one in reversed(self._started):
            one.stop()
        self._restart_libvirtd()

    def write(self, text):
        """Make a rule the only one of ours."""
        self._host.run(['sh', '-c', f'cat >{RULES}/50-nova-vqos.rules'],
                       text_input=text)

    def _restart_libvirtd(self):
        self._host.stop_libvirtd()
        self._host.start_libvirtd()


@pytest.fixture(scope='module')
def polkit(fast, guest):
    requirement.need('' if os.path.exists(POLKITD)
                     else 'the package polkitd is missing')
    made = Polkit(fast)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def rules():
    """Our rules, as they are installed."""
    return project.sample('etc/polkit/50-nova-vqos.rules').read_text()


def wait_attempt(fast, guest, wanted, *groups):
    """Wait until polkit has read its rules again, and attempts end so.

    :param wanted: whether a result is the one
    """
    found = {}

    def tried():
        found.clear()
        found.update(attempt(fast, guest, *groups))
        return wanted(found)
    try:
        process.wait_until(tried, _LIMIT_S, 'other results')
    except process.LabError:
        pytest.fail(f'still {found}')
    return found


def all_done(found):
    return set(found.values()) == {0}


def only(rules, *allowed):
    """The rules with other permissions."""
    head, _, rest = rules.partition('[\n')
    tail = rest.partition(']')[2]
    return head + '[' + ', '.join(f'"{one}"' for one in allowed) + ']' + tail


def permissions(rules):
    """:returns: those that the rules grant"""
    return json.loads('[' + rules.partition('[\n')[2].partition(']')[0]
                      .rstrip().rstrip(',') + ']')


def test_the_rules_are_wide_enough(fast, guest, polkit, rules):
    polkit.write(rules)
    wait_attempt(fast, guest, all_done, 'reads')


def test_the_rules_are_narrow(fast, guest, polkit, rules):
    """Even by the socket that writes, if it could be opened."""
    polkit.write(only(rules, *permissions(rules),
                      'org.libvirt.unix.manage'))
    found = wait_attempt(
        fast, guest, lambda found: found.get('set a cap', 0) != 0, 'manage',
        'changes')
    assert 0 not in found.values(), found
    assert guest.cap() == guests.CAP
    assert is_running(guest)


def test_none_of_the_rules_is_idle(fast, guest, polkit, rules):
    granted = permissions(rules)
    # libvirt asks for this one where auth_unix_ro = "polkit".
    granted.remove('org.libvirt.unix.monitor')
    for dropped in granted:
        polkit.write(only(rules, *granted))
        wait_attempt(fast, guest, all_done, 'reads')
        polkit.write(only(rules, *(set(granted) - {dropped})))
        wait_attempt(fast, guest, lambda found: not all_done(found), 'reads')


def test_why_the_agent_may_not_write(fast, guest, polkit, rules):
    """libvirt has one permission for a cap and for QEMU's monitor."""
    polkit.write(only(rules, *permissions(rules),
                      'org.libvirt.api.domain.write'))
    found = wait_attempt(
        fast, guest, lambda found: found.get('set a cap') == 0, 'manage',
        'changes')
    assert found['monitor command'] == 0
    assert found['define a domain'] == libvirt.VIR_ERR_ACCESS_DENIED
