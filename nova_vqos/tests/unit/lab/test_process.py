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


def test_while_the_machine_stands_still_no_limit_comes_nearer(monkeypatch):
    """Once in ten looks it does, for longer than the wait may last."""
    now_s, looks = [0.0], itertools.count(1)

    def sleep(seconds):
        now_s[0] += seconds + (100 if next(looks) % 10 == 0 else 0)
    monkeypatch.setattr(process, 'time', types.SimpleNamespace(
        monotonic=lambda: now_s[0], sleep=sleep))
    with pytest.raises(process.LabError):
        process.wait_until(lambda: False, 60, 'nothing', interval_s=1)
    assert next(looks) == 62
