# SPDX-License-Identifier: Apache-2.0
"""Commands that use profiles."""

import json

import pytest

from nova_vqos.cmd.calibrate import app
from nova_vqos.profile import document
from nova_vqos.tests.functional import host_files


@pytest.fixture
def path(tmp_path):
    made = str(tmp_path / 'profile.yaml')
    document.store(host_files.make_profile('compute1', {'0-1': 1.25}), made)
    return made


def test_show(path, capsys):
    assert app.main(['show', path, '-f', 'json']) == 0
    out, err = capsys.readouterr()
    combined = {row['state']: row for row in json.loads(out)
                if row['benchmark'] == 'combined'}
    assert combined.keys() == {'alone', 'busy'}
    assert combined['busy']['pcpus'] == '0-1'
    assert combined['busy']['coefficient'] == 1.25
    assert combined['busy']['cu_per_pcpu'] == 125
    # Of both pCPUs.
    assert '250 CU' in ' '.join(err.split())


@pytest.mark.parametrize('part', ['--io', '--quantum'])
def test_a_part_that_was_not_measured(path, capsys, part):
    assert app.main(['show', path, part]) == 1
    assert path in capsys.readouterr().err
