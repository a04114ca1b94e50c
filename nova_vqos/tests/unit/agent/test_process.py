# SPDX-License-Identifier: Apache-2.0
"""What the agent leaves on its host: lock, heartbeat, systemd."""

import os
import socket

import pytest

from nova_vqos.agent import process


class TestHostLock:
    def test_a_second_one_is_refused_with_the_first_pid(self, tmp_path):
        path = str(tmp_path / 'run' / 'agent.lock')
        held = process.HostLock(path)
        with pytest.raises(process.AlreadyRunning, match=str(os.getpid())):
            process.HostLock(path)
        held.release()
        process.HostLock(path).release()

    def test_a_file_left_behind_locks_nothing(self, tmp_path):
        path = tmp_path / 'agent.lock'
        path.write_text('4711\n')
        process.HostLock(str(path)).release()
        assert path.read_text() == f'{os.getpid()}\n'

    def test_nobody_else_can_hold_it(self, tmp_path):
        """Whoever can open a file can lock it, for ever."""
        path = tmp_path / 'agent.lock'
        path.touch(mode=0o644)
        process.HostLock(str(path)).release()
        assert path.stat().st_mode & 0o777 == 0o600

    def test_a_link_is_not_followed(self, tmp_path):
        target = tmp_path / 'target'
        target.write_text('precious')
        (tmp_path / 'agent.lock').symlink_to(target)
        with pytest.raises(OSError):
            process.HostLock(str(tmp_path / 'agent.lock'))
        assert target.read_text() == 'precious'


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
        return process.ServiceManager(
            {'NOTIFY_SOCKET': str(tmp_path / 'notify'), **others})

    def test_it_says_that_it_is_ready_and_stops(self, tmp_path, systemd):
        manager = self.manager(tmp_path)
        manager.ready()
        assert systemd.recv(100) == b'READY=1'
        manager.stopping()
        assert systemd.recv(100) == b'STOPPING=1'

    def test_it_is_alive_three_times_a_timeout(self, tmp_path, systemd):
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
