# SPDX-License-Identifier: Apache-2.0
import contextlib
import queue

import libvirt
import pytest

from nova_vqos.hypervisor.libvirt import driver


@pytest.fixture
def events():
    return queue.SimpleQueue()


@pytest.fixture
def hypervisor(events, tmp_path):
    """The driver that libvirt itself brings for tests, with one domain.

    In this process: no daemon, no host. The domain is one for all
    connections, and outlives them while garbage refers to one: a test that
    stops it starts it again.
    """
    connected = driver.LibvirtHypervisor(
        'test:///default', root=str(tmp_path), run_path=str(tmp_path / 'run'))
    connected.connect(events.put)
    yield connected
    connected.close()
    with contextlib.closing(libvirt.open('test:///default')) as connection:
        assert connection.lookupByName('test').isActive()


@pytest.fixture
def daemon(hypervisor):
    return hypervisor._session.connected()
