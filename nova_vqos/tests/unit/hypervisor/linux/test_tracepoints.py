# SPDX-License-Identifier: Apache-2.0
"""Numbers of tracepoints, from made-up files of tracefs."""

import os

import pytest

from nova_vqos.hypervisor.linux import tracepoints

NAME = tracepoints.KVM_EXIT


@pytest.fixture
def tracing(tmp_path):
    """Directory of tracefs, with one tracepoint."""
    made = tmp_path / 'tracing'
    (made / 'events' / NAME).mkdir(parents=True)
    (made / 'events' / NAME / 'id').write_text('103\n')
    return made


@pytest.fixture
def record(tmp_path):
    return tmp_path / 'record'


def test_the_kernels_number(tracing, record):
    record.write_text('7\n')
    assert tracepoints.number(NAME, str(record), str(tracing)) == 103


def test_a_recorded_number(tracing, record, tmp_path):
    tracepoints.record(NAME, str(record), str(tracing))
    assert os.stat(record).st_mode & 0o777 == 0o644
    assert tracepoints.number(NAME, str(record), str(tmp_path)) == 103


def test_no_number(tracing, record, tmp_path):
    with pytest.raises(tracepoints.Unknown, match='kvm/kvm_exit now, .* '
                       'nova-vqos-probe has recorded none'):
        tracepoints.number(NAME, str(record), str(tmp_path))


@pytest.mark.requires('' if os.geteuid() else 'root reads all')
def test_what_only_root_may_read(tracing, record):
    os.chmod(tracing / 'events' / NAME / 'id', 0)
    with pytest.raises(tracepoints.Unknown, match='only root'):
        tracepoints.number(NAME, str(record), str(tracing))


@pytest.mark.parametrize('content', [
    '', '0\n', '-1\n', '1' * 10, '103 104\n', '103\n\n', 'x', '\xff'])
def test_what_is_no_number(tracing, record, tmp_path, content):
    for path in record, tracing / 'events' / NAME / 'id':
        path.write_text(content)
    for place in tracing, tmp_path:
        with pytest.raises(tracepoints.Unknown):
            tracepoints.number(NAME, str(record), str(place))


def test_no_record_is_kept_of_what_is_gone(tracing, record, tmp_path):
    tracepoints.record(NAME, str(record), str(tracing))
    tracepoints.record(NAME, str(record), str(tmp_path))
    assert not record.exists()
    tracepoints.record(NAME, str(record), str(tmp_path))
