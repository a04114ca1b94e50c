# SPDX-License-Identifier: Apache-2.0
import lzma

import pytest

from nova_vqos.calibration import guest
from nova_vqos.calibration.guest import modules as guest_modules


def module(name, *depends):
    """What a module's section .modinfo looks like, with code around it."""
    return (b'\x7fELF code\0license=GPL\0depends=%b\0name=%b\0more'
            % (','.join(depends).encode(), name.encode()))


@pytest.fixture
def directory(tmp_path):
    """Modules of a kernel, one of them compressed, one built in."""
    for path, content in {
            'kernel/drivers/net/virtio_net.ko':
                module('virtio_net', 'net-failover', 'virtio'),
            'kernel/net/net_failover.ko.xz':
                lzma.compress(module('net_failover', 'failover')),
            'kernel/net/failover.ko': module('failover'),
            'kernel/drivers/other.ko': module('other', 'nowhere'),
            'modules.builtin': b'kernel/drivers/virtio/virtio.ko\n'}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    return tmp_path


def test_each_comes_after_what_it_depends_on(directory):
    found = guest_modules.ordered(str(directory), ['virtio-net'])
    assert list(found) == ['failover', 'net_failover', 'virtio_net']
    assert found['net_failover'] == module('net_failover', 'failover')


def test_missing_modules_are_named(directory):
    with pytest.raises(guest_modules.ModuleMissing, match='module nowhere'):
        guest_modules.ordered(str(directory), ['other'])


def test_a_copy_is_as_good(directory, tmp_path):
    target = tmp_path / 'target'
    guest_modules.copy(str(directory), str(target), ['virtio_net'])
    assert guest_modules.ordered(str(target), ['virtio_net']) == \
        guest_modules.ordered(str(directory), ['virtio_net'])
    with pytest.raises(guest_modules.ModuleMissing):
        guest_modules.ordered(str(target), ['other'])


def test_the_newest_kernel_that_has_the_modules_is_found(directory, tmp_path):
    root, cache = tmp_path / 'root', tmp_path / 'cache'
    for top, version in ((root, '6.1.0-9'), (cache / 'kernel', '6.1.0-8'),
                         (cache / 'kernel', '6.1.0-7')):
        (top / 'boot').mkdir(parents=True, exist_ok=True)
        (top / 'boot' / f'vmlinuz-{version}').touch()
    guest_modules.copy(
        str(directory), str(cache / 'kernel/lib/modules/6.1.0-7'),
        ['virtio_net'])
    kernel, modules = guest.find_kernel_with_modules(
        ['virtio_net'], root=str(root), cache_dir=str(cache))
    assert kernel == str(cache / 'kernel/boot/vmlinuz-6.1.0-7')
    assert list(modules)[-1] == 'virtio_net'
