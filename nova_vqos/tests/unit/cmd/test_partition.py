# SPDX-License-Identifier: Apache-2.0
import pytest

from nova_vqos.cmd import partition
from nova_vqos.hypervisor.linux import partition as partitions


@pytest.fixture
def config(tmp_path):
    def write(text=''):
        path = tmp_path / 'nova-vqos.conf'
        path.write_text(f'[vqos]\n{text}\n')
        return ['--config-file', str(path),
                '--record', str(tmp_path / 'record')]
    return write


@pytest.fixture
def refused(monkeypatch):
    """A host on which no partition can be made."""
    def make(_self, rebuild=False):
        raise partitions.PartitionError('no cgroups')
    monkeypatch.setattr(partitions.Partition, 'make', make)


def test_a_host_without_a_partition_is_left_as_it_is(config, refused):
    """The unit may be enabled on each host."""
    assert partition.main(config()) == 0


@pytest.mark.parametrize('pcpus', ['all', '3-1', '0-9999'])
def test_a_wrong_set_is_refused(config, capsys, pcpus):
    assert partition.main(config(f'guaranteed_pcpus = {pcpus}')) == 1
    assert 'guaranteed_pcpus' in capsys.readouterr().err


def test_a_refusal_is_an_error_of_one_line(config, refused, capsys, tmp_path):
    assert partition.main(config('guaranteed_pcpus = 1-3')) == 1
    assert capsys.readouterr().err.count('\n') == 1
    assert not (tmp_path / 'record').exists()
