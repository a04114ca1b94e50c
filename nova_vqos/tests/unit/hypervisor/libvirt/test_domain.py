# SPDX-License-Identifier: Apache-2.0
"""Which kind of interface or disk it is, from XML and the host's devices."""

import pytest

from nova_vqos import domain_xml
from nova_vqos.billing import usage
from nova_vqos.hypervisor.libvirt import domain


def interface(kind, *, backend='', model='virtio', port='', source=''):
    driver = f'<driver name="{backend}"/>' if backend else ''
    virtualport = f'<virtualport type="{port}"/>' if port else ''
    return (f'<interface type="{kind}"><mac address="52:54:00:00:00:01"/>'
            f'<source {source}/>{virtualport}<target dev="tap0"/>'
            f'<model type="{model}"/>{driver}<alias name="net0"/>'
            '</interface>')


def read(device, virt_type='kvm'):
    return domain_xml.read(
        f'<domain type="{virt_type}"><vcpu>1</vcpu><devices>{device}'
        '</devices></domain>')


@pytest.fixture
def root(tmp_path):
    """A host that has vhost-net."""
    (tmp_path / 'sys/class/misc/vhost-net').mkdir(parents=True)
    return tmp_path


def kind_of(root, device, virt_type='kvm', forward=''):
    kinds = domain.interface_kinds(read(device, virt_type), str(root),
                                    lambda _network: forward)
    assert set(kinds) <= {'tap0'}
    return kinds.get('tap0')


def plug(root, master, *, bridge=False, name='tap0'):
    """Let the kernel have an interface below a master."""
    net = root / 'sys/class/net'
    (net / name).mkdir(parents=True)
    (net / master).mkdir()
    if bridge:
        (net / master / 'bridge').mkdir()
    (net / name / 'master').symlink_to(f'../{master}')


def forward(root, flag):
    conf = root / 'proc/sys/net/ipv4/conf/tap0'
    conf.mkdir(parents=True)
    (conf / 'forwarding').write_text(f'{flag}\n')


class TestMode:
    @pytest.mark.parametrize('kind, port, mode', [
        ('bridge', '', 'bridge'), ('direct', '', ''), ('user', '', ''),
        ('server', '', '')])
    def test_the_xml_says_it(self, root, kind, port, mode):
        assert kind_of(root, interface(kind, port=port)).mode == mode

    @pytest.mark.parametrize('mode, wanted', [
        ('nat', 'nat'), ('route', 'routed'), ('open', 'routed'),
        ('', 'bridge'), ('unknown', ''), ('private', '')])
    def test_libvirts_network_says_it(self, root, mode, wanted):
        device = interface('network', source='network="n" bridge="virbr0"')
        asked = []
        kinds = domain.interface_kinds(
            read(device), str(root),
            lambda network: asked.append(network) or mode)
        assert kinds['tap0'].mode == wanted
        assert asked == ['n']

    @pytest.mark.parametrize('master, bridge, mode', [
        ('qbr1', True, 'bridge'), ('ovs-system', False, 'openvswitch'),
        ('bond0', False, '')])
    def test_a_port_of_another_program(self, root, master, bridge, mode):
        plug(root, master, bridge=bridge)
        assert kind_of(root, interface('ethernet')).mode == mode

    @pytest.mark.parametrize('flag', [0, 1])
    def test_open_vswitch_in_user_space(self, root, flag):
        """The kernel moves no packets of it."""
        forward(root, flag)
        device = interface('bridge', port='openvswitch')
        assert kind_of(root, device).mode == ''

    def test_open_vswitch_in_the_kernel(self, root):
        plug(root, 'ovs-system')
        device = interface('bridge', port='openvswitch')
        assert kind_of(root, device).mode == 'openvswitch'

    @pytest.mark.parametrize('flag, mode', [(1, 'routed'), (0, '')])
    def test_a_link_of_its_own_is_routed(self, root, flag, mode):
        forward(root, flag)
        assert kind_of(root, interface('ethernet')).mode == mode

    def test_a_missing_link_is_unknown(self, root):
        assert kind_of(root, interface('ethernet')).mode == ''

    @pytest.mark.parametrize('kind', ['vhostuser', 'hostdev', 'vdpa'])
    def test_packets_that_pass_by_the_kernel_have_no_kind(self, root, kind):
        assert kind_of(root, interface(kind)) is None

    def test_an_interface_without_a_name_has_no_kind(self, root):
        found = read('<interface type="user"><model type="e1000"/>'
                     '</interface>')
        assert domain.interface_kinds(found, str(root), str) == {}


class TestBackend:
    def backend_of(self, root, device, virt_type='kvm'):
        return kind_of(root, device, virt_type).backend

    def test_it_is_vhost_where_that_is_there(self, root):
        assert self.backend_of(root, interface('bridge')) == 'vhost'
        (root / 'sys/class/misc/vhost-net').rmdir()
        assert self.backend_of(root, interface('bridge')) == 'qemu'

    def test_it_is_what_the_xml_says(self, root):
        assert self.backend_of(
            root, interface('bridge', backend='qemu')) == 'qemu'
        (root / 'sys/class/misc/vhost-net').rmdir()
        assert self.backend_of(
            root, interface('bridge', backend='vhost')) == 'vhost'

    def test_emulation_has_no_vhost_whatever_the_xml_says(self, root):
        assert self.backend_of(
            root, interface('bridge', backend='vhost'), 'qemu') == 'qemu'

    @pytest.mark.parametrize('model, backend', [
        ('e1000', 'qemu'), ('', 'qemu'), ('virtio-non-transitional', 'vhost')])
    def test_only_virtio_has_vhost(self, root, model, backend):
        assert self.backend_of(
            root, interface('bridge', model=model)) == backend


@pytest.mark.parametrize('text, mode', [
    ("<network><name>a</name><forward mode='nat'/></network>", 'nat'),
    ("<network><forward dev='eth0' mode='route'>\n <interface dev='eth0'/>",
     'route'),
    ("<network><name>a</name><bridge name='b'/></network>", '')])
def test_how_a_network_forwards(text, mode):
    assert domain.forward_mode(text) == mode


@pytest.mark.parametrize('kind, driver, wanted', [
    ('file', '<driver name="qemu" type="raw"/>', ('file', True)),
    ('file', '<driver name="qemu" cache="none"/>', ('file', False)),
    ('file', '<driver name="qemu" cache="directsync"/>', ('file', False)),
    ('file', '<driver name="qemu" cache="writethrough"/>', ('file', True)),
    ('block', '', ('block', True)),
    ('block', '<driver cache="none"/>', ('block', False)),
    ('network', '<driver cache="writeback"/>', ('network', False)),
    ('nvme', '', None), ('vhostuser', '', None), ('volume', '', None)])
def test_disks(kind, driver, wanted):
    found = read(f'<disk type="{kind}" device="disk">{driver}<source/>'
                 '<backingStore type="block"><driver cache="none"/>'
                 '</backingStore><target dev="vda" bus="virtio"/></disk>')
    assert domain.disk_kinds(found) == (
        {} if wanted is None else {'vda': usage.DiskKind(*wanted)})


def test_each_device_has_its_own_parts(root):
    plug(root, 'ovs-system', name='tap1')
    found = read(
        '<disk type="file"><target dev="vda"/></disk>'
        '<disk type="block"><driver cache="none"/><target dev="vdb"/></disk>'
        + interface('bridge', backend='qemu')
        + interface('bridge', port='openvswitch').replace('tap0', 'tap1')
        + '<filesystem type="mount"><target dir="x"/></filesystem>')
    assert domain.interface_kinds(found, str(root), str) == {
        'tap0': usage.InterfaceKind('bridge', 'qemu'),
        'tap1': usage.InterfaceKind('openvswitch', 'vhost')}
    assert domain.disk_kinds(found) == {
        'vda': usage.DiskKind('file', True),
        'vdb': usage.DiskKind('block', False)}
