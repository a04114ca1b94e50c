# SPDX-License-Identifier: Apache-2.0
"""Bridges of a made-up host."""

import pytest

from nova_vqos.hypervisor.linux import bridges

HEADER = """Inter-|   Receive                            |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets
"""


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


class Host:
    def __init__(self, path):
        self.path = path
        self.interfaces = path / 'sys/class/net'
        (path / 'proc/net').mkdir(parents=True)
        self.packets = {'lo': (0, 0)}
        self.reader = bridges.BridgeReader(str(path))

    def add(self, name, *, bridge=None, tap=False, ports=None, flags='0x1002',
            master=None):
        directory = self.interfaces / name
        directory.mkdir(parents=True)
        self.packets[name] = (0, 0)
        if tap:
            (directory / 'tun_flags').write_text(f'{flags}\n')
        if ports is not None:
            (directory / 'brif').mkdir()
        if bridge is not None:
            (self.interfaces / bridge / 'brif' / name).mkdir()
        if bridge or master:
            (directory / 'master').symlink_to(f'../{bridge or master}')

    def read(self, **packets):
        """:param packets: received and sent, by interface"""
        self.packets.update(packets)
        (self.path / 'proc/net/dev').write_text(HEADER + ''.join(
            f'{name:>6}: 9 {received} 0 0 0 0 0 0 9 {sent} 0 0 0 0 0 0\n'
            for name, (received, sent) in self.packets.items()))
        return self.reader.read()

    def forward(self, forwarded, sent, *, transmits=True, ipv6=None):
        """Say what the host forwarded, and sent itself.

        :param transmits: whether the kernel counts these apart
        """
        more = (' OutTransmits', f' {forwarded + sent}') if transmits else (
            '', '')
        if not transmits:
            sent += forwarded
        (self.path / 'proc/net/snmp').write_text(
            f'Ip: Forwarding ForwDatagrams OutRequests{more[0]}\n'
            f'Ip: 1 {forwarded} {sent}{more[1]}\nIcmp: InMsgs\nIcmp: 7\n')
        if ipv6:
            (self.path / 'proc/net/snmp6').write_text(
                f'Ip6InReceives \t5\nIp6OutForwDatagrams \t{ipv6[0]}\n'
                f'Ip6OutRequests  \t{ipv6[1]}\n')


def test_two_bridges(host):
    for bridge, tap in (('br0', 'tap0'), ('br1', 'tap1')):
        host.add(bridge, ports=())
        host.add(tap, bridge=bridge, tap=True)
    host.add('tap2', bridge='br0', tap=True)
    host.add('eth0', bridge='br0')
    found = host.read(tap0=(10, 1), tap2=(20, 2), tap1=(7, 8), eth0=(4, 300),
                      br0=(5000, 60))
    assert set(found) == {'tap0', 'tap1', 'tap2'}
    assert found['tap0'] == found['tap2']
    one = found['tap0']
    assert one.ports == {'tap0', 'tap2', 'eth0'}
    assert (one.sent, one.received, one.left, one.arrived) == (
        30, 3, 5300, 64)
    assert (found['tap1'].sent, found['tap1'].received) == (7, 8)


def test_a_port_that_comes_later(host):
    host.add('br0', ports=())
    host.add('tap0', bridge='br0', tap=True)
    assert host.read()['tap0'].ports == {'tap0'}
    host.add('tap1', bridge='br0', tap=True)
    assert host.read()['tap0'].ports == {'tap0', 'tap1'}


@pytest.mark.parametrize('transmits', [True, False])
@pytest.mark.parametrize(('ipv6', 'forwarded', 'sent'), [
    (None, 500, 20), ((30, 4), 530, 24)])
def test_the_host_as_a_router(host, transmits, ipv6, forwarded, sent):
    host.add('tap0', tap=True)
    host.add('tap1', tap=True)
    host.add('eth0')
    # Their packets pass the bridge, and no router.
    host.add('br0', ports=())
    host.add('tap2', bridge='br0', tap=True)
    host.add('eth1', bridge='br0')
    # Not a server's.
    host.add('vpn0', tap=True, flags='0x1001')
    host.forward(500, 20, transmits=transmits, ipv6=ipv6)
    found = host.read(tap0=(10, 1), tap1=(20, 2), eth0=(4, 300), br0=(7, 60),
                      vpn0=(100, 1000), eth1=(9, 9), lo=(3, 3))
    assert set(found) == {'tap0', 'tap1', 'tap2'}
    assert found['tap0'] == found['tap1']
    one = found['tap0']
    assert one.ports == {'tap0', 'tap1', 'eth0', 'br0', 'vpn0'}
    assert (one.sent, one.received, one.left, one.arrived) == (
        30, 3, 300 + 60 + 1000, 4 + 7 + 100 + sent - 3)
    assert one.forwarded == forwarded
    assert found['tap2'].forwarded is None


@pytest.fixture
def switched(host):
    """It has a tap that is a port of something else."""
    host.add('tap0', tap=True, master='team0')
    return host


def test_open_vswitch(host):
    host.add('ovs-system')
    # Of the host itself: no port in the kernel's eyes.
    host.add('br-ex')
    for name in ('tap0', 'tap1'):
        host.add(name, tap=True, master='ovs-system')
    for name in ('eth0', 'vxlan_sys_4789'):
        host.add(name, master='ovs-system')
    host.add('eth1')
    found = host.read(tap0=(10, 1), tap1=(20, 2), eth0=(4, 300),
                      vxlan_sys_4789=(5, 30), eth1=(99, 99), **{
                          'br-ex': (7, 8)})
    assert set(found) == {'tap0', 'tap1'}
    assert found['tap0'] == found['tap1']
    one = found['tap0']
    assert one.ports == {'tap0', 'tap1', 'eth0', 'vxlan_sys_4789'}
    assert (one.sent, one.received, one.left, one.arrived) == (
        30, 3, 330, 9)
    assert one.forwarded is None


def test_no_bridge(switched, caplog):
    """Nothing is read of interfaces, of which such a host may have many."""
    assert switched.reader.read() == {}
    assert not caplog.records


def test_the_first_bridge_comes_later(switched):
    assert switched.read() == {}
    switched.add('br0', ports=())
    switched.add('tap1', bridge='br0', tap=True)
    assert set(switched.read()) == {'tap1'}


def test_bonding(host):
    """It has a file among the interfaces."""
    host.add('tap0', tap=True)
    (host.interfaces / 'bonding_masters').touch()
    host.forward(0, 0)
    assert host.read()['tap0'].ports == {'tap0'}


@pytest.mark.parametrize('content', ['', 'garbage', f'{HEADER}tap0: 1 2\n',
                                     f'{HEADER}tap0: a b c d e f g h i j\n'])
def test_what_cannot_be_read(host, content, caplog):
    host.add('br0', ports=())
    (host.path / 'proc/net/dev').write_text(content)
    for _ in range(3):
        assert host.reader.read() == {}
    assert len(caplog.records) == 1


def test_a_port_that_has_just_gone(host):
    host.add('br0', ports=())
    host.add('tap0', bridge='br0', tap=True)
    del host.packets['tap0']
    assert host.read() == {}


@pytest.mark.parametrize('content', ['', 'Ip: 1\n', 'Ip: a\nIp: 1\n',
                                     'Ip: ForwDatagrams\nIp: x\n'])
def test_what_was_forwarded_is_not_understood(host, content, caplog):
    host.add('tap0', tap=True)
    (host.path / 'proc/net/snmp').write_text(content)
    for _ in range(3):
        assert host.read() == {}
    assert len(caplog.records) == 1
