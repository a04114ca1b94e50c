# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction
import json
import os

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import partition as partitions

PCPUS = frozenset({4, 5, 6, 7})
MEASURED = partitions.Bandwidth(Fraction(3, 2), Fraction(9, 4))


class Host:
    """Its files of cgroup v2, which say what the kernel would."""

    def __init__(self, root):
        self.root = root
        self.cgroups = root / 'sys/fs/cgroup'
        self.domains = self.cgroups / 'machine'
        self.domains.mkdir(parents=True)
        self.record = root / 'partition.json'
        for name in ('cgroup.controllers', 'cgroup.subtree_control',
                     'machine/cpuset.cpus', 'machine/cpuset.cpus.partition'):
            (self.cgroups / name).write_text('')
        self.says(effective='4-7')

    def says(self, state=None, effective=None):
        for name, value in (('partition', state), ('effective', effective)):
            path = self.domains / f'cpuset.cpus.{name}'
            if value is not None:
                path.write_text(f'{value}\n')

    def read(self, name):
        return (self.cgroups / name).read_text()

    def partition(self, pcpus=PCPUS):
        return partitions.Partition(pcpus, str(self.record), str(self.root))


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_it_is_made_once(host):
    assert host.partition().make()
    assert host.read('cgroup.subtree_control') == '+cpuset'
    assert host.read('machine/cpuset.cpus') == '4-7'
    assert host.read('machine/cpuset.cpus.partition') == 'root'
    assert host.partition().problem() == ''
    assert not host.partition().make()


def test_it_is_made_anew_where_that_is_asked_for(host, monkeypatch):
    host.partition().make()
    written, write = [], cgroup.write

    def spy(path, value):
        written.append((os.path.basename(path), value))
        # As cgroupfs does it.
        os.truncate(path, 0)
        write(path, value)
    monkeypatch.setattr(cgroup, 'write', spy)
    assert host.partition().make(rebuild=True)
    assert [value for name, value in written
            if name == 'cpuset.cpus.partition'] == ['member', 'root']


def test_with_systemd_it_is_the_slice_of_machines(host):
    (host.root / 'run/systemd/system').mkdir(parents=True)
    assert host.partition().path == str(host.cgroups / 'machine.slice')


@pytest.mark.parametrize(('said', 'found'), [
    ({'state': 'member'}, 'member'), ({'state': 'isolated'}, 'isolated'),
    ({'state': 'root invalid (Cpu list in cpuset.cpus not exclusive)'},
     'not exclusive'),
    ({'state': 'root', 'effective': '4-6'}, '4-6'),
    ({'state': 'root', 'effective': ''}, 'cpuset')])
def test_what_is_no_partition_of_these_pcpus(host, said, found):
    host.says(**said)
    assert found in host.partition().problem()
    with pytest.raises(base.ReservationRefused, match='partition'):
        host.partition().total_pcpus()


def test_without_a_cgroup_of_domains_there_is_none(host):
    host.domains.rename(host.cgroups / 'other')
    assert host.partition().problem()


def test_what_the_kernel_does_not_accept_is_an_error(host):
    """The write succeeds all the same."""
    host.says(effective='4-5')
    with pytest.raises(partitions.PartitionError):
        host.partition().make()


def test_cgroups_of_version_1_have_none(host):
    (host.cgroups / 'cgroup.controllers').unlink()
    with pytest.raises(partitions.PartitionError):
        host.partition().make()
    assert host.read('machine/cpuset.cpus') == ''


def test_what_cannot_be_written_is_an_error(host):
    (host.domains / 'cpuset.cpus').unlink()
    with pytest.raises(partitions.PartitionError, match=r'cpuset\.cpus'):
        host.partition().make()


def test_it_is_released(host):
    partition = host.partition()
    partition.make()
    partition.store(MEASURED)
    host.says(state='')
    partition.release()
    assert host.read('machine/cpuset.cpus.partition').startswith('member')
    assert not host.record.exists()
    partition.release()


def test_a_host_without_one_has_none_to_release(host):
    (host.domains / 'cpuset.cpus.partition').unlink()
    host.partition().release()
    assert not (host.domains / 'cpuset.cpus.partition').exists()


class TestRecord:
    @pytest.fixture(autouse=True)
    def partition(self, host):
        made = host.partition()
        made.make()
        made.store(MEASURED)
        return made

    def test_the_agent_reads_the_total(self, partition):
        assert partition.total_pcpus() == Fraction(15, 4)

    @pytest.mark.parametrize('change', [
        {'total_pcpus': -1}, {'total_pcpus': 'many'}, {'total_pcpus': 1e9},
        {'schema': 2}, {'pcpus': '0-7'}, {'pcpus': 'all'},
        {'measured_at': '2020-01-01T00:00:00+00:00'},
        {'measured_at': '2220-01-01T00:00:00+00:00'},
        {'measured_at': 'now'}])
    def test_no_other_record_counts(self, host, partition, change):
        host.record.write_text(json.dumps({
            **json.loads(host.record.read_text()), **change}))
        with pytest.raises(base.ReservationRefused, match=partitions.UNIT):
            partition.total_pcpus()

    @pytest.mark.parametrize('content', ['', '{', '[]', '[' * 100_000])
    def test_a_broken_one_does_not_count(self, host, partition, content):
        host.record.write_text(content)
        with pytest.raises(base.ReservationRefused):
            partition.total_pcpus()

    def test_without_one_nothing_can_be_reserved(self, host, partition):
        host.record.unlink()
        with pytest.raises(base.ReservationRefused):
            partition.total_pcpus()

    def test_one_that_others_may_write_does_not_count(self, host, partition):
        host.record.chmod(0o666)
        with pytest.raises(base.ReservationRefused):
            partition.total_pcpus()
