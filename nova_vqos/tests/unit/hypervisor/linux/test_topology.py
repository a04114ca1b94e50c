# SPDX-License-Identifier: Apache-2.0
"""What pCPUs share, from a fake /sys."""

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import topology
from nova_vqos.quantum import model

CPUS = 'sys/devices/system/cpu'


class Host:
    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{text}\n')

    def add(self, pcpu, *, package=0, siblings=None, cache=None):
        directory = f'{CPUS}/cpu{pcpu}'
        self.write(f'{directory}/topology/physical_package_id', package)
        self.write(f'{directory}/topology/thread_siblings_list',
                   pcpu if siblings is None else siblings)
        if cache is not None:
            self.write(f'{directory}/cache/index3/shared_cpu_list', cache)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def two_packages(host):
    """Two packages of two cores of two threads, as Linux numbers them."""
    host.write(f'{CPUS}/online', '0-7')
    host.write(f'{CPUS}/isolated', '')
    for pcpu in range(8):
        package = pcpu // 2 % 2
        host.add(pcpu, package=package, siblings=f'{pcpu % 4},{pcpu % 4 + 4}',
                 cache='0-1,4-5' if package == 0 else '2-3,6-7')
    return host


def read(host):
    return topology.Topology(str(host.root)).read()


def test_siblings_are_together(two_packages):
    assert read(two_packages) == (
        model.Socket(0, ((0, 4), (1, 5))), model.Socket(1, ((2, 6), (3, 7))))


@pytest.mark.parametrize('path, text', [
    (f'{CPUS}/online', '0-4,6-7'),
    (f'{CPUS}/isolated', '5'),
    ('sys/fs/cgroup/cpuset.cpus.isolated', '5')])
def test_one_that_servers_may_not_use(two_packages, path, text):
    two_packages.write(path, text)
    assert read(two_packages)[0] == model.Socket(0, ((0, 4), (1,)))


def test_all_of_a_socket_are_isolated(two_packages):
    two_packages.write(f'{CPUS}/isolated', '0-1,4-5')
    assert read(two_packages) == (model.Socket(0, ((2, 6), (3, 7))),)


def test_a_package_with_several_last_level_caches(host):
    host.write(f'{CPUS}/online', '0-3')
    for pcpu in range(4):
        host.add(pcpu, cache='0-1' if pcpu < 2 else '2-3')
    assert read(host) == (model.Socket(0, ((0,), (1,))),
                          model.Socket(1, ((2,), (3,))))


def test_a_cache_that_spans_nodes(host):
    host.write(f'{CPUS}/online', '0-3')
    for pcpu in range(4):
        host.add(pcpu, cache='0-3')
    host.write('sys/devices/system/node/node0/cpulist', '0,2')
    host.write('sys/devices/system/node/node1/cpulist', '1,3')
    host.write('sys/devices/system/node/node2/cpulist', '')
    host.write('sys/devices/system/node/possible', '0-2')
    assert read(host) == (model.Socket(0, ((0,), (2,))),
                          model.Socket(1, ((1,), (3,))))


def test_a_machine_with_few_files(host):
    host.write(f'{CPUS}/online', '0-1')
    assert read(host) == (model.Socket(0, ((0,), (1,))),)


@pytest.mark.parametrize('text', [None, '', 'all', '0-'])
def test_a_machine_with_invalid_files(host, text):
    if text is not None:
        host.write(f'{CPUS}/online', text)
    with pytest.raises(base.HypervisorError, match='pCPUs'):
        read(host)


def test_it_is_read_again_when_pcpus_come_or_go(two_packages):
    reader = topology.Topology(str(two_packages.root))
    first = reader.read()
    assert reader.read() is first
    two_packages.write(f'{CPUS}/online', '0-3')
    assert [socket.cores for socket in reader.read()] == [
        ((0,), (1,)), ((2,), (3,))]
