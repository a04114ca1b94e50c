# SPDX-License-Identifier: Apache-2.0
"""What servers without units take, as nova-compute counted it last."""

import os

import pytest

from nova_vqos import compute_state
from nova_vqos.agent import compute_watch
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'vqos.json')


def count(path, stock_cu, work_cu=0):
    compute_state.Writer(path).write({}, {}, (1, stock_cu), work_cu=work_cu)


def test_the_last_count_holds(path):
    watch = compute_watch.ComputeWatch(path)
    watch.poll()
    assert watch.stock_cu == 0
    for stock_cu, expected in (70, 70), (120, 120), (None, 0), (30, 30):
        count(path, stock_cu)
        watch.poll()
        assert watch.stock_cu == expected
    # It cannot be read, and is gone.
    with open(path, 'w', encoding='utf-8') as file:
        file.write('{')
    watch.poll()
    os.unlink(path)
    watch.poll()
    assert watch.stock_cu == 30


def test_where_servers_came_from(path):
    watch = compute_watch.ComputeWatch(path)
    assert watch.sources == {}
    compute_state.Writer(path).write({}, {}, sources={fakes.UUID: 'other'})
    watch.poll()
    assert watch.sources == {fakes.UUID: 'other'}


def test_the_agent_does_not_sell_it(tmp_path, path):
    """Nor does it overlook that its servers were sold more."""
    world = agent.World(tmp_path, reserved_cu=lambda _cu: 10,
                        compute_state_path=path)
    world.run()
    assert world.host_report()['units']['reserved_cu'] == 10
    count(path, 100)
    world.tick()
    found = world.host_report()
    assert (found['units']['reserved_cu'], found['units']['stock_cu']) == (
        110, 100)
    assert found['alarms'] == []
    # What servers take beyond their units.
    count(path, 100, 20)
    world.tick()
    found = world.host_report()
    assert (found['units']['reserved_cu'], found['units']['work_cu']) == (
        130, 20)
    # Of 200 CU, and the server has 60.
    count(path, 130, 10)
    world.tick()
    (alarm,) = world.host_report()['alarms']
    assert '60 CU' in alarm
    assert '50 CU' in alarm
    assert fakes.make_profile().pcpus == {0, 1}
