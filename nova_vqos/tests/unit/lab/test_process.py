# SPDX-License-Identifier: Apache-2.0
"""Bounded waits."""

import itertools
import types

import pytest

from nova_vqos_lab import process


@pytest.mark.parametrize('patience, most_s', [(1, 60), (5, 300)])
def test_an_emulated_machine_is_given_longer(monkeypatch, patience, most_s):
    seconds = itertools.count()
    monkeypatch.setattr(process, 'time', types.SimpleNamespace(
        monotonic=lambda: next(seconds), sleep=lambda _s: None))
    monkeypatch.setattr(process, '_PATIENCE', patience)
    with pytest.raises(process.LabError, match=f'not within {most_s} s'):
        process.wait_until(lambda: False, 60, 'nothing')
    assert next(seconds) == most_s + 2
