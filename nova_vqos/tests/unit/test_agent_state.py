# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What the agent leaves on its host: lock, signs of life, systemd."""

import json
import os
import socket
import stat
import threading

import pytest

from nova_vqos import host_report
from nova_vqos.agent import state
from nova_vqos.quantum import occupancy


class TestHostLock:
    def test_a_second_one_is_refused_and_told_who_holds_it(self, tmp_path):
        path = str(tmp_path / 'run' / 'agent.lock')
        held = state.HostLock(path)
        with pytest.raises(state.AlreadyRunning, match=str(os.getpid())):
            state.HostLock(path)
        held.release()
        state.HostLock(path).release()

    def test_a_file_left_behind_locks_nothing(self, tmp_path):
        path = tmp_path / 'agent.lock'
        path.write_text('4711\n')
        state.HostLock(str(path)).release()
        assert path.read_text() == f'{os.getpid()}\n'

    def test_a_link_is_not_followed(self, tmp_path):
        target = tmp_path / 'target'
        target.write_text('precious')
        (tmp_path / 'agent.lock').symlink_to(target)
        with pytest.raises(OSError):
            state.HostLock(str(tmp_path / 'agent.lock'))
        assert target.read_text() == 'precious'


class TestHeartbeat:
    def test_readers_never_see_a_part(self, tmp_path):
        path = tmp_path / 'agent.json'
        heartbeat = state.Heartbeat(str(path), 'host')
        done = threading.Event()

        def beat():
            while not done.is_set():
                heartbeat.write(profile_id='x' * 1000, connected=True,
                                alarms=())

        heartbeat.write(profile_id=None, connected=False, alarms=('why',))
        first = json.loads(path.read_text())
        assert first == {
            'version': 1, 'pid': os.getpid(), 'host': 'host',
            'profile_id': None, 'seen_at': first['seen_at'],
            'classes': ['default'], 'dd_billing': ['off'],
            'quantum': {'pools': {}},
            'hypervisor_connected': False, 'alarms': ['why']}
        thread = threading.Thread(target=beat)
        thread.start()
        try:
            for _ in range(200):
                assert json.loads(path.read_text())['host'] == 'host'
        finally:
            done.set()
            thread.join()
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert os.listdir(tmp_path) == ['agent.json']

    def test_what_the_host_offers_is_read_by_nova_compute(self, tmp_path):
        path = str(tmp_path / 'agent.json')
        pools = occupancy.Occupancy(
            {'cache': occupancy.PoolSize(2, 3)}, polluters=0)
        state.Heartbeat(path, 'host').write(
            profile_id=None, connected=True, alarms=(),
            dd_billing=('off', 'account'),
            classes=('default', 'cache', 'auto'), quantum=pools)
        found = host_report.read_agent_state(path)
        assert found.quantum_classes == ('default', 'cache', 'auto')
        assert found.dd_billing == ('off', 'account')
        assert found.quantum == pools

    def test_nothing_is_left_where_it_fails(self, tmp_path):
        (tmp_path / 'agent.json').mkdir()
        heartbeat = state.Heartbeat(str(tmp_path / 'agent.json'), 'host')
        with pytest.raises(OSError):
            heartbeat.write(profile_id=None, connected=False, alarms=())
        assert os.listdir(tmp_path) == ['agent.json']


class TestServiceManager:
    @pytest.fixture
    def systemd(self, tmp_path):
        """The socket that systemd listens on."""
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(str(tmp_path / 'notify'))
        receiver.setblocking(False)
        with receiver:
            yield receiver

    def manager(self, tmp_path, **others):
        return state.ServiceManager(
            {'NOTIFY_SOCKET': str(tmp_path / 'notify'), **others})

    def test_it_says_that_it_is_ready_and_stops(self, tmp_path, systemd):
        manager = self.manager(tmp_path)
        manager.ready()
        assert systemd.recv(100) == b'READY=1'
        manager.stopping()
        assert systemd.recv(100) == b'STOPPING=1'

    def test_it_says_that_it_is_alive_three_times_a_timeout(
            self, tmp_path, systemd):
        manager = self.manager(tmp_path, WATCHDOG_USEC='90000000')
        for second in range(90):
            manager.alive(float(second))
        for _ in range(3):
            assert systemd.recv(100) == b'WATCHDOG=1'
        with pytest.raises(BlockingIOError):
            systemd.recv(100)

    def test_without_a_watchdog_it_says_nothing(self, tmp_path, systemd):
        self.manager(tmp_path).alive(1.0)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)

    def test_a_systemd_that_is_gone_is_no_error(self, tmp_path):
        self.manager(tmp_path).ready()
