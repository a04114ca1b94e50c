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
        self.packets = {}
        self.reader = bridges.BridgeReader(str(path))

    def add(self, name, *, bridge=None, tap=False, ports=None):
        directory = self.interfaces / name
        directory.mkdir(parents=True)
        self.packets[name] = (0, 0)
        if tap:
            (directory / 'tun_flags').write_text('0x1002')
        if ports is not None:
            (directory / 'brif').mkdir()
        if bridge is not None:
            (self.interfaces / bridge / 'brif' / name).mkdir()

    def read(self, **packets):
        """:param packets: received and sent, by interface"""
        self.packets.update(packets)
        (self.path / 'proc/net/dev').write_text(HEADER + ''.join(
            f'{name:>6}: 9 {received} 0 0 0 0 0 0 9 {sent} 0 0 0 0 0 0\n'
            for name, (received, sent) in self.packets.items()))
        return self.reader.read()


def test_two_bridges(host):
    for bridge, tap in (('br0', 'tap0'), ('br1', 'tap1')):
        host.add(bridge, ports=())
        host.add(tap, bridge=bridge, tap=True)
    host.add('tap2', bridge='br0', tap=True)
    host.add('eth0', bridge='br0')
    host.add('lo')
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


def test_no_bridge(host, caplog):
    """Nothing is read of interfaces, of which such a host may have many."""
    host.add('tap0', tap=True)
    assert host.reader.read() == {}
    assert not caplog.records


def test_the_first_bridge_comes_later(host):
    host.add('tap0', tap=True)
    assert host.read() == {}
    host.add('br0', ports=())
    host.add('tap1', bridge='br0', tap=True)
    assert host.read()['tap1'].ports == {'tap1'}


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
