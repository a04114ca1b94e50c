# SPDX-License-Identifier: Apache-2.0
"""Counters of instructions: files that a guest may have written, and events.
"""

import errno
import os

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.hypervisor.linux import instructions
from nova_vqos.hypervisor.linux import perf
from nova_vqos.tests.fixtures import counter_file

PID = 42
QEMU_UID = 64055
MS_NS = 1_000_000


@pytest.fixture
def directory(tmp_path):
    return tmp_path / 'instructions'


@pytest.fixture
def proc(tmp_path):
    """Where there is a QEMU of this process's user."""
    path = tmp_path / 'proc'
    (path / str(PID)).mkdir(parents=True)
    set_user(path, os.geteuid())
    return path


def set_user(proc, uid):
    (proc / str(PID) / 'status').write_text(
        f'Name:\tqemu\nUid:\t0\t{uid}\t0\t0\nGid:\t0\t0\t0\t0\n')


@pytest.fixture
def open_counter(directory, proc):
    opened = []

    def made():
        opened.append(instructions.EmulatorCounter(
            str(directory), PID, str(proc)))
        return opened[-1]
    yield made
    for counter in opened:
        counter.close()
        counter.close()


class TestEmulatorCounter:
    def test_all_vcpus_count(self, directory, open_counter):
        counter_file.write(directory, PID, 5, 2**63, 7)
        counter = open_counter()
        assert counter.read() == 2**63 + 12
        assert counter.covers({0: 50, 1: 51})

    def test_the_same_file_is_read_again(self, directory, open_counter):
        path = counter_file.write(directory, PID, 5)
        counter = open_counter()
        path.write_bytes(counter_file.content(9))
        assert counter.read() == 9

    @pytest.mark.parametrize('content', [
        b'', b'x', counter_file.content(), counter_file.content(5)[:-1],
        counter_file.content(5) + b'x', counter_file.content(5, vcpus=2),
        counter_file.content(5, 6, vcpus=1),
        counter_file.content(5, magic=b'VQOSINSM'),
        counter_file.content(5, version=2),
        counter_file.content(5, vcpus=2**32 - 1),
    ])
    def test_another_content_is_refused(self, directory, open_counter,
                                        content):
        counter_file.write(directory, PID, 5).write_bytes(content)
        with pytest.raises(instructions.CountError):
            open_counter()

    @hypothesis.settings(suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture])
    @hypothesis.given(st.binary(max_size=300))
    def test_any_bytes_are_a_number_or_refused(self, directory, open_counter,
                                               content):
        path = counter_file.write(directory, PID, 5)
        counter = open_counter()
        path.write_bytes(content)
        try:
            assert counter.read() >= 0
        except instructions.CountError:
            assert len(content) != len(counter_file.content(5))
        path.unlink()

    def test_a_file_that_is_cut_off_later(self, directory, open_counter):
        path = counter_file.write(directory, PID, 5)
        counter = open_counter()
        path.write_bytes(b'')
        with pytest.raises(instructions.CountError):
            counter.read()

    def test_none(self, open_counter):
        with pytest.raises(instructions.CountError):
            open_counter()

    @pytest.mark.parametrize('is_whole', [True, False])
    def test_a_link_is_not_followed(self, directory, open_counter, is_whole):
        path = counter_file.write(directory, PID, 5)
        target = path.rename(directory / 'other')
        path.symlink_to(target if is_whole else 'nowhere')
        with pytest.raises(instructions.CountError):
            open_counter()

    def test_a_pipe_does_not_block(self, directory, open_counter):
        directory.mkdir()
        os.mkfifo(directory / str(PID))
        with pytest.raises(instructions.CountError, match='regular'):
            open_counter()

    def test_a_directory(self, directory, open_counter):
        (directory / str(PID)).mkdir(parents=True)
        with pytest.raises(instructions.CountError):
            open_counter()

    @pytest.mark.parametrize('mode', [0o664, 0o646])
    def test_one_that_others_may_write(self, directory, open_counter, mode):
        counter_file.write(directory, PID, 5).chmod(mode)
        with pytest.raises(instructions.CountError, match='others'):
            open_counter()

    @pytest.mark.parametrize('owner, is_read', [
        (0, True), (QEMU_UID, True), (QEMU_UID + 1, False)])
    def test_the_owner_is_that_of_the_emulator(
            self, monkeypatch, directory, proc, open_counter, owner, is_read):
        counter_file.write(directory, PID, 5)
        set_user(proc, QEMU_UID)
        fstat = os.fstat

        def of_owner(handle):
            status = list(fstat(handle))
            status[4] = owner
            return os.stat_result(status)
        monkeypatch.setattr(os, 'fstat', of_owner)
        if is_read:
            assert open_counter().read() == 5
            return
        with pytest.raises(instructions.CountError, match='belongs to user'):
            open_counter()

    @pytest.mark.parametrize('status', [None, '', 'Name:\tqemu\n'])
    def test_an_emulator_that_has_ended(self, directory, proc, open_counter,
                                        status):
        counter_file.write(directory, PID, 5)
        path = proc / str(PID) / 'status'
        if status is None:
            path.unlink()
        else:
            path.write_text(status)
        with pytest.raises(instructions.CountError):
            open_counter()

    def test_nothing_stays_open(self, directory, open_counter):
        before = os.listdir('/proc/self/fd')
        counter_file.write(directory, PID, 5, version=9)
        for _ in range(3):
            with pytest.raises(instructions.CountError):
                open_counter()
        counter_file.write(directory, PID, 5)
        open_counter().close()
        assert os.listdir('/proc/self/fd') == before


class Events:
    """The kernel's events of threads.

    :ivar counts: of each thread
    :ivar errors: that opening one meets, by thread
    :ivar opened: threads with open events, and which events
    """

    def __init__(self, monkeypatch):
        self.counts = {}
        self.errors = {}
        self.opened = {}
        monkeypatch.setattr(perf, 'Group', self.open)

    def set(self, tid, enabled_ms, running_ms, count):
        self.counts[tid] = perf.Counts(enabled_ms * MS_NS, running_ms * MS_NS,
                                       (count,))

    def open(self, events, tid):
        if tid in self.errors:
            raise OSError(self.errors[tid], 'x')
        return _Group(self, tuple(events), tid)


class _Group:
    def __init__(self, kernel, events, tid):
        self._kernel, self._tid = kernel, tid
        kernel.opened[tid] = events

    def read(self):
        try:
            return self._kernel.counts[self._tid]
        except KeyError:
            raise OSError(errno.EIO, 'x') from None

    def close(self):
        self._kernel.opened.pop(self._tid, None)


@pytest.fixture
def kernel(monkeypatch):
    made = Events(monkeypatch)
    for tid in 50, 51:
        made.set(tid, 0, 0, 0)
    return made


def open_cpu():
    return instructions.CpuCounter({0: 50, 1: 51},
                                   instructions.GUEST_INSTRUCTIONS)


class TestCpuCounter:
    def test_only_the_guest_counts(self, kernel):
        counter = open_cpu()
        # include/uapi/linux/perf_event.h: type, config, exclude_host.
        assert set(kernel.opened.values()) == {((0, 1, 1 << 19, ''),)}
        counter.close()
        counter.close()
        assert not kernel.opened

    def test_all_vcpus_count(self, kernel):
        counter = open_cpu()
        kernel.set(50, 100, 100, 4000)
        kernel.set(51, 30, 30, 500)
        assert counter.read() == 4500
        kernel.set(50, 200, 200, 8000)
        assert counter.read() == 8500

    def test_counts_are_scaled_by_the_time_that_they_cover(self, kernel):
        counter = open_cpu()
        kernel.set(50, 100, 100, 4000)
        assert counter.read() == 4000
        # Only a quarter of the time was counted since.
        kernel.set(50, 300, 150, 5000)
        assert counter.read() == 4000 + 4 * 1000

    @hypothesis.settings(suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture])
    @hypothesis.given(st.lists(st.tuples(
        st.integers(0, 10**6), st.integers(1, 100), st.integers(0, 10**9)),
        max_size=8))
    def test_it_never_falls_and_counts_no_less_than_was_seen(
            self, kernel, steps):
        enabled_ms = running_ms = count = 0
        kernel.set(50, 0, 0, 0)
        counter = open_cpu()
        last = 0
        for ran_ms, percent, counted in steps:
            covered_ms = -(-ran_ms * percent // 100)
            enabled_ms += ran_ms
            running_ms += covered_ms
            count += counted if covered_ms else 0
            kernel.set(50, enabled_ms, running_ms, count)
            now = counter.read()
            assert now >= last
            assert now >= count * (1 - 1e-9)
            last = now

    def test_time_without_counters_of_the_cpu_is_a_loss(self, kernel):
        counter = open_cpu()
        kernel.set(50, 100, 0, 0)
        with pytest.raises(instructions.CountError, match='other events'):
            counter.read()

    def test_a_thread_that_ended_is_a_loss(self, kernel):
        counter = open_cpu()
        del kernel.counts[51]
        with pytest.raises(instructions.CountError):
            counter.read()

    def test_it_covers_the_threads_that_it_was_opened_for(self, kernel):
        counter = open_cpu()
        assert counter.covers({0: 50, 1: 51})
        assert not counter.covers({0: 50})
        assert not counter.covers({0: 50, 1: 52})
        assert not counter.covers({0: 50, 1: 51, 2: 52})

    @pytest.mark.parametrize('error, text', [
        (errno.EACCES, 'CAP_PERFMON'), (errno.EPERM, 'CAP_PERFMON'),
        (errno.ENOENT, 'this CPU'), (errno.EOPNOTSUPP, 'this CPU')])
    def test_what_cannot_be_opened_leaves_nothing_open(self, kernel, error,
                                                       text):
        kernel.errors[51] = error
        with pytest.raises(instructions.CountError, match=text):
            open_cpu()
        assert not kernel.opened
