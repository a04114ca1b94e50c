# SPDX-License-Identifier: Apache-2.0
"""What the trial of a worker of vhost is taken for."""

import pytest

from nova_vqos.calibration.probe import vhost


@pytest.mark.parametrize('share, held_us, limited', [
    (0.2, 400_000, True), (0.23, 1, True),
    # It used up its limit, and was not held: a kernel of 6.18 and later.
    (0.99, 0, False), (0.5, 0, False), (0.99, 400_000, False),
    # Others were at work, or it had nothing to do.
    (0.2, 0, None), (0.0, 0, None)])
def test_a_worker_is_held_or_is_not(share, held_us, limited):
    found = vhost.judge(share, held_us)
    assert found.limited is limited
    assert bool(found.reason) is (limited is not True)
    assert (found.share is None) is (limited is None)


HELD, FREE, IDLE = (0.2, 400_000), (0.99, 0), (0.1, 0)


@pytest.mark.parametrize('windows, limited', [
    ((HELD, HELD, HELD), True), ((FREE, FREE, FREE), False),
    # Others were at work for a while.
    ((HELD, IDLE, HELD), True), ((IDLE, FREE, FREE), False),
    ((IDLE, FREE, IDLE), None), ((IDLE, IDLE, HELD), None),
    # The machine stood still for a while, or took the pCPU away.
    ((HELD, FREE, HELD), None), ((FREE, FREE, HELD), None)])
def test_one_window_decides_nothing(windows, limited):
    found = vhost.judge_all(windows)
    assert found.limited is limited
    assert bool(found.reason) is (limited is not True)


def test_a_host_without_vhost_is_not_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(vhost, 'DEVICE', str(tmp_path / 'vhost-net'))
    assert vhost.measure().limited is None
