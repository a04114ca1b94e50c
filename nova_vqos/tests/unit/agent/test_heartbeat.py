# SPDX-License-Identifier: Apache-2.0
"""The heartbeat file: when it is written, and what its readers find."""

import json
import os
import stat
import threading

import pytest

from nova_vqos import agent_state
from nova_vqos.agent import heartbeat
from nova_vqos.quantum import occupancy

PATH = 'agent.json'


@pytest.fixture
def beats(tmp_path):
    return heartbeat.Heartbeat(str(tmp_path / PATH), 'host')


def test_readers_never_see_a_part(beats, tmp_path):
    path, done = tmp_path / PATH, threading.Event()
    beats.beat(0.0, agent_state.AgentState(alarms=('why',)))
    first = json.loads(path.read_text())
    assert first == {
        'version': 1, 'pid': os.getpid(), 'host': 'host', 'profile_id': None,
        'seen_at': first['seen_at'], 'classes': ['default'],
        'dd_billing': ['off'], 'quantum': {'pools': {}},
        'guarantee_pcpus': None, 'guarantee_total_pcpus': None,
        'keeps_ceilings': False, 'reserve_cu': None,
        'hypervisor_connected': False, 'alarms': ['why']}

    def beat():
        while not done.is_set():
            beats.beat(beats.next_at_s,
                       agent_state.AgentState(profile_id='x' * 1000))
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        for _ in range(200):
            assert json.loads(path.read_text())['host'] == 'host'
    finally:
        done.set()
        thread.join()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == [PATH]


def test_a_change_is_written_at_once(beats, tmp_path):
    path, status = tmp_path / PATH, agent_state.AgentState(connected=True)
    beats.beat(0.0, status)
    path.unlink()
    beats.beat(9.0, agent_state.AgentState(connected=True, alarms=('new',)))
    assert not path.exists()
    beats.beat(9.0, agent_state.AgentState(connected=False))
    assert path.exists()


def test_what_the_host_offers_is_read_by_nova_compute(beats, tmp_path):
    pools = occupancy.Occupancy(
        {'cache': occupancy.PoolSize(2, 3)}, polluters=0)
    beats.beat(0.0, agent_state.AgentState(
        connected=True, dd_billing=('off', 'account'),
        quantum_classes=('default', 'cache', 'auto'), occupancy=pools,
        guarantee_pcpus=1.5, guarantee_total_pcpus=1.75, reserve_cu=40))
    found = agent_state.read(str(tmp_path / PATH))
    assert found.seen_at is not None
    assert found.quantum_classes == ('default', 'cache', 'auto')
    assert found.dd_billing == ('off', 'account')
    assert found.occupancy == pools
    assert found.guarantee_pcpus == 1.5
    assert found.guarantee_total_pcpus == 1.75
    assert found.reserve_cu == 40


@pytest.mark.parametrize('value', [
    'null', '-1', '1.5', 'true', '"40"', '2147483648', '1e400', '[40]'])
def test_a_reserve_that_is_none(beats, tmp_path, value):
    beats.beat(0.0, agent_state.AgentState(reserve_cu=40))
    text = (tmp_path / PATH).read_text()
    (tmp_path / PATH).write_text(
        text.replace('"reserve_cu": 40', f'"reserve_cu": {value}'))
    found = agent_state.read(str(tmp_path / PATH))
    assert found.seen_at is not None
    assert found.reserve_cu is None


def test_a_failure_is_logged_once_and_leaves_nothing(beats, tmp_path, caplog):
    (tmp_path / PATH).mkdir()
    for now_s in (0.0, 10.0):
        beats.beat(now_s, agent_state.AgentState())
    assert os.listdir(tmp_path) == [PATH]
    assert len(caplog.records) == 1
