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

"""CPU time of domains, of either cgroup version, from a tree of a test's."""

import errno
import os

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.hypervisor import account_reader
from nova_vqos.hypervisor import accounting
from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import counters
from nova_vqos.hypervisor import thread_list
from nova_vqos.tests.unit import fake_host
from nova_vqos.tests.unit import fake_hypervisor as fakes

UUID = fakes.UUID
MS_NS = 1_000_000


@pytest.fixture(params=[
    (1, 'machine/qemu-1-a.libvirt-qemu', False),
    (1, 'machine.slice/machine-qemu.scope/libvirt', True),
    (2, 'machine/qemu-1-a.libvirt-qemu', False),
    (2, 'machine.slice/machine-qemu.scope/libvirt', False),
], ids=['v1', 'v1-apart-systemd', 'v2', 'v2-systemd'])
def host(request, tmp_path):
    version, path, apart = request.param
    return fake_host.FakeHost(tmp_path, version, path, apart=apart)


@pytest.fixture
def reader(host):
    made = account_reader.AccountReader(str(host.root))
    yield made
    made.close()


def read(reader, number=1, pid=fake_host.PID):
    """What a domain used, by name and in ms."""
    _run, found = reader.read(UUID, number, lambda: pid)
    return {name.removesuffix('_ns'): value / MS_NS
            for name, value in found._asdict().items()
            if value and name.endswith('_ns')}


class TestParts:
    def test_each_kind_of_thread_is_told_from_the_others(self, host, reader):
        host.time('', 1000, 5)
        host.time('emulator', 300)
        host.time('iothread1', 40, 9)
        host.time('iothread2', 2)
        host.time('vcpu0', 600, 30)
        host.time('vcpu1', 58, 4)
        host.threads(43, 44, 45)
        host.thread(43, 'vhost-42', 90)
        host.thread(44, 'live_migration', 100)
        host.thread(45, 'worker', 77)
        assert read(reader) == {
            'vcpu': 658, 'emulator': 110, 'iothread': 42, 'vhost': 90,
            'migration': 100, 'throttled': 39}

    def test_who_takes_packets_in_is_counted_when_it_begins_to_run(
            self, host, reader):
        host.time('', 10)
        host.threads(43, 44)
        host.thread(43, 'vhost-42', 90)
        host.thread(44, 'live_migration', 100)
        host.write(f'proc/{fake_host.PID}/schedstat', '1 2 30\n')
        # Of a thread, 7 as the fake host has it.
        assert reader.read(UUID, 1, lambda: fake_host.PID)[1].wakes == 37
        host.threads(44)
        host.write(f'proc/{fake_host.PID}/schedstat', '1 2 35\n')
        assert reader.read(UUID, 1, lambda: fake_host.PID)[1].wakes == 42

    def test_they_are_read_again_from_open_files(self, host, reader,
                                                 monkeypatch):
        host.time('', 10)
        host.time('vcpu0', 10)
        host.threads(43)
        host.thread(43, 'vhost-42', 0)
        read(reader)
        opened = []
        open_ = os.open
        monkeypatch.setattr(os, 'open', lambda path, *rest: (
            opened.append(path) or open_(path, *rest)))
        host.time('', 40)
        host.time('emulator', 25)
        host.time('vcpu0', 15, 5)
        host.thread(43, 'vhost-42', 20)
        assert read(reader, pid=None) == {
            'vcpu': 15, 'emulator': 5, 'vhost': 20, 'throttled': 5}
        assert [os.path.basename(path) for path in opened] == [
            'tasks' if host.version == 1 else 'cgroup.threads']

    def test_a_vcpu_that_is_unplugged_keeps_its_time(self, host, reader):
        host.time('', 100)
        host.time('vcpu0', 60, 6)
        host.time('vcpu1', 40, 4)
        assert read(reader) == {'vcpu': 100, 'throttled': 10}
        # The domain's own counter keeps what its children had.
        host.remove('vcpu1')
        host.time('', 110)
        host.time('vcpu0', 70, 7)
        assert read(reader) == {'vcpu': 110, 'throttled': 11}
        # Plugged in again, it begins anew.
        host.time('vcpu1', 5, 1)
        host.time('', 115)
        assert read(reader) == {'vcpu': 115, 'throttled': 12}

    def test_an_agent_that_starts_anew_knows_of_an_unplugged_vcpu(
            self, host, reader):
        host.time('', 100)
        host.time('vcpu0', 60)
        assert read(reader) == {'vcpu': 100}

    def test_an_io_thread_that_goes_keeps_its_time(self, host, reader):
        host.time('', 100)
        host.time('iothread1', 30)
        assert read(reader) == {'vcpu': 70, 'iothread': 30}
        host.remove('iothread1')
        assert read(reader) == {'vcpu': 70, 'iothread': 30}
        host.time('iothread1', 3)
        host.time('', 105)
        assert read(reader) == {'vcpu': 72, 'iothread': 33}

    def test_what_is_nothing_of_libvirts_is_no_part(self, host, reader):
        host.time('', 100)
        host.time('vcpu0', 60)
        host.time('vcpux', 7, 7)
        host.time('other', 40, 7)
        assert read(reader) == {'vcpu': 100}

    def test_a_child_that_is_half_made_is_read_when_it_is_whole(
            self, host, reader):
        host.time('', 100)
        (host.domain / 'iothread1').mkdir()
        (host.domain / 'vcpu0').mkdir()
        assert read(reader) == {'vcpu': 100}
        host.time('iothread1', 30)
        host.time('vcpu0', 70, 3)
        assert read(reader)['throttled'] == 3
        assert read(reader)['iothread'] == 30

    def test_a_kernel_without_limits_throttles_nobody(self, host, reader):
        host.time('', 100)
        host.time('vcpu0', 60)
        stat = host.tuned / 'vcpu0/cpu.stat'
        if host.version == 1:
            stat.unlink()
        else:
            stat.write_text('usage_usec 60000\n')
        assert read(reader) == {'vcpu': 100}

    @settings(deadline=None)
    @given(values=st.lists(st.tuples(*[st.integers(0, 10**6)] * 4),
                           min_size=2, max_size=5))
    def test_whatever_is_read_no_counter_falls(self, tmp_path_factory, values):
        # Also of a kernel that counts its parts at other times than the sum.
        host = fake_host.FakeHost(tmp_path_factory.mktemp('host'), 2,
                                  'machine/a')
        reader = account_reader.AccountReader(str(host.root))
        host.threads(43)
        before = None
        for total, emulator, iothread, vhost in values:
            host.time('', total)
            host.time('emulator', emulator)
            host.time('iothread1', iothread)
            host.thread(43, 'vhost-42', vhost)
            _run, now = reader.read(UUID, 1, lambda: fake_host.PID)
            assert min(now) >= 0
            assert before is None or all(map(int.__ge__, now, before))
            before = now
        reader.close()


class TestVcpus:
    def read(self, reader, number=1):
        _run, found = reader.read_vcpus(UUID, number, lambda: fake_host.PID)
        return found.vcpu_ns / MS_NS, found.throttled_ns / MS_NS, found.vcpus

    def test_they_can_be_read_alone(self, host, reader):
        host.time('', 100, 1)
        host.time('emulator', 30)
        host.time('iothread1', 10)
        host.time('vcpu0', 40, 5)
        host.time('vcpu1', 20, 2)
        assert self.read(reader) == (60, 8, 2)

    def test_whoever_bills_reads_the_same(self, host, reader):
        host.time('', 100)
        host.time('vcpu0', 70, 5)
        host.time('vcpu1', 30, 3)
        assert self.read(reader) == (100, 8, 2)
        host.remove('vcpu1')
        host.time('', 110)
        host.time('vcpu0', 80, 6)
        assert read(reader) == {'vcpu': 110, 'throttled': 9}
        assert self.read(reader) == (110, 9, 1)

    def test_it_costs_few_files(self, host, reader, monkeypatch):
        host.time('vcpu0', 1)
        host.threads(43)
        host.thread(43, 'vhost-42', 0)
        self.read(reader)
        opened, read_files = [], []
        open_, pread = os.open, os.pread
        monkeypatch.setattr(os, 'open', lambda path, *rest: (
            opened.append(path) or open_(path, *rest)))
        monkeypatch.setattr(os, 'pread', lambda handle, *rest: (
            read_files.append(handle) or pread(handle, *rest)))
        self.read(reader)
        # Of the domain its time and what held it back, of its emulator, of
        # its vCPU: of version 2 two of these are the same file, opened twice.
        assert (opened, len(read_files)) == ([], 4)

    def test_none_of_them_falls(self, host, reader):
        host.time('', 100)
        host.time('vcpu0', 100, 9)
        assert self.read(reader) == (100, 9, 1)
        host.time('', 90)
        host.time('vcpu0', 90, 9)
        assert self.read(reader) == (100, 9, 1)

    def test_what_cannot_be_read_is_an_error(self, host, reader):
        host.time('vcpu0', 1)
        self.read(reader)
        assert reader.knows(UUID, 1)
        (host.domain / 'emulator/cpu.stat').write_text('x')
        (host.domain / 'emulator/cpuacct.usage').write_text('x')
        with pytest.raises(cgroup.CgroupError):
            self.read(reader)
        assert not reader.knows(UUID, 1)

    def test_files_are_of_one_run(self, host, reader):
        self.read(reader)
        assert not reader.knows(UUID, 2)
        assert not reader.knows(fakes.OTHER_UUID, 1)


class TestThreads:
    @pytest.mark.parametrize('name, kind', [
        ('vhost-42', 'vhost'), ('vhost-x', None), ('vhost', None),
        ('live_migration', 'migration'), ('bg_snapshot', 'migration'),
        ('return path', 'migration'), ('multifdsend_3', 'migration'),
        ('multifdrecv_15', 'migration'), ('multifd-tls-han', 'migration'),
        ('postcopy/listen', 'migration'), ('fault-default', 'migration'),
        ('COLO incoming', 'migration'), ('get_dirtyrate', 'migration'),
        ('compress', 'migration'), ('decompress', 'migration'),
        ('mig/src/main', 'migration'), ('mig/dst/recv_0', 'migration'),
        ('worker', None), ('call_rcu', None), ('vnc_worker', None),
        ('IO mon_iothread', None), ('CPU 0/KVM', None), ('migrate', None)])
    def test_names(self, host, reader, name, kind):
        host.time('', 100)
        host.time('emulator', 100)
        host.threads(43)
        host.thread(43, name, 30)
        assert read(reader) == ({'emulator': 100} if kind is None
                                else {'emulator': 70, kind: 30})

    def test_what_one_used_that_ended_does_not_come_back(self, host, reader):
        host.time('', 100)
        host.time('emulator', 100)
        host.threads(43)
        host.thread(43, 'live_migration', 60)
        assert read(reader) == {'emulator': 40, 'migration': 60}
        host.threads()
        assert read(reader) == {'emulator': 40, 'migration': 60}
        # The next migration's, of which the number may be the same.
        host.time('emulator', 130)
        host.time('', 130)
        host.threads(43)
        host.thread(43, 'live_migration', 10)
        assert read(reader) == {'emulator': 60, 'migration': 70}

    def test_one_that_vanishes_before_it_is_looked_at_is_none(
            self, host, reader):
        host.time('', 100)
        host.time('emulator', 100)
        host.threads(43, 44)
        # A name that can still be read, and nothing else.
        host.write('proc/44/comm', 'vhost-42\n')
        assert read(reader) == {'emulator': 100}
        # Slow to appear, it is seen next time.
        host.thread(44, 'vhost-42', 30)
        assert read(reader) == {'emulator': 100, 'vhost': 30}
        host.time('emulator', 140)
        host.time('', 140)
        assert read(reader) == {'emulator': 110, 'vhost': 30}

    def test_one_that_vanishes_before_it_is_read_keeps_its_time(
            self, host, reader, monkeypatch):
        host.time('', 100)
        host.time('emulator', 100)
        host.threads(43)
        host.thread(43, 'vhost-42', 60)
        assert read(reader) == {'emulator': 40, 'vhost': 60}
        pread = os.pread

        def gone(handle, *rest):
            path = os.readlink(f'/proc/self/fd/{handle}')
            if path.endswith('schedstat'):
                raise OSError(errno.ESRCH, 'gone')
            return pread(handle, *rest)
        monkeypatch.setattr(os, 'pread', gone)
        assert read(reader) == {'emulator': 40, 'vhost': 60}

    def test_one_that_has_no_name_yet_is_looked_at_once_more(
            self, host, reader):
        host.time('', 100)
        host.time('emulator', 100)
        host.threads(43)
        host.thread(43, 'qemu-system-x86', 30)
        assert read(reader) == {'emulator': 100}
        host.thread(43, 'vhost-42', 40)
        host.time('emulator', 150)
        host.time('', 150)
        assert read(reader) == {'emulator': 110, 'vhost': 40}

    def test_names_are_read_no_more_than_twice(self, host, reader):
        host.threads(43, 44)
        host.thread(43, 'worker', 30)
        host.thread(44, 'qemu-system-x86', 30)
        for _ in range(2):
            read(reader)
        for number in (43, 44):
            host.thread(number, 'vhost-42', 30)
        assert 'vhost' not in read(reader)

    def test_threads_that_cannot_be_seen_are_the_emulators(self, host, reader):
        host.time('', 100)
        host.time('emulator', 100)
        host.threads(0, 0)
        assert read(reader) == {'emulator': 100}

    def test_a_thread_whose_time_is_no_number_is_an_error(self, host, reader):
        host.threads(43)
        host.thread(43, 'vhost-42', 1)
        host.write('proc/43/schedstat', 'x y z\n')
        with pytest.raises(cgroup.CgroupError):
            read(reader)

    def test_an_endless_list_is_cut_at_a_line(self, host, reader, monkeypatch):
        monkeypatch.setattr(thread_list, '_MOST_BYTES', 6)
        monkeypatch.setattr(thread_list, '_CHUNK_BYTES', 4)
        host.time('', 100)
        host.time('emulator', 100)
        # '42\n43\n44' is what is read of it.
        host.threads(43, 441)
        host.thread(43, 'vhost-42', 30)
        host.thread(44, 'vhost-42', 30)
        assert read(reader) == {'emulator': 70, 'vhost': 30}


class TestRun:
    def run_of(self, reader, number=1):
        return reader.read(UUID, number, lambda: fake_host.PID)[0]

    def test_it_names_boot_process_and_start(self, host, reader):
        assert self.run_of(reader) == 'boot-1/42/1234'

    def test_another_run_begins_anew(self, host, reader):
        host.time('', 500)
        host.time('vcpu0', 500)
        read(reader)
        host.start('5678')
        host.time('', 20)
        host.time('vcpu0', 20)
        assert self.run_of(reader) == 'boot-1/42/1234'
        assert self.run_of(reader, 2) == 'boot-1/42/5678'
        assert read(reader, 2) == {'vcpu': 20}

    @pytest.mark.parametrize('stat', ['', '42 (a) S 1 2', 'x'])
    def test_without_a_start_time_there_is_no_account(self, host, reader,
                                                      stat):
        host.write('proc/42/stat', stat)
        with pytest.raises(cgroup.CgroupError):
            read(reader)


class TestErrors:
    @pytest.mark.parametrize('text', ['', 'x\n', 'usage_usec\n',
                                      'usage_usec x\n'])
    @pytest.mark.parametrize('child', ['', 'emulator', 'iothread1'])
    def test_what_is_no_number_is_an_error(self, host, reader, text, child):
        host.time('iothread1', 1)
        read(reader)
        name = 'cpuacct.usage' if host.version == 1 else 'cpu.stat'
        (host.domain / child / name).write_text(text)
        with pytest.raises(cgroup.CgroupError):
            read(reader)
        # It is found again as soon as it is well.
        host.time(child, 1)
        assert read(reader)

    def test_a_cgroup_that_is_gone_is_an_error(self, host, reader):
        host.time('', 5)
        read(reader)
        for child in 'emulator', '':
            host.remove(child)
        with pytest.raises(cgroup.CgroupError):
            read(reader)
        with pytest.raises(cgroup.CgroupError):
            read(reader)

    def test_a_process_that_is_gone_is_an_error(self, host, reader):
        with pytest.raises(cgroup.CgroupError):
            read(reader, pid=99)


class TestFiles:
    def open_files(self):
        return set(os.listdir('/proc/self/fd'))

    def test_all_are_closed(self, host):
        before = self.open_files()
        reader = account_reader.AccountReader(str(host.root))
        host.time('vcpu0', 1)
        host.time('iothread1', 1)
        host.threads(43)
        host.thread(43, 'vhost-42', 1)
        read(reader)
        assert len(self.open_files()) > len(before) + 4
        reader.keep({UUID})
        assert len(self.open_files()) > len(before) + 4
        reader.keep({fakes.OTHER_UUID})
        assert self.open_files() == before
        (host.domain / 'emulator/cpu.stat').write_text('x')
        (host.domain / 'emulator/cpuacct.usage').write_text('x')
        with pytest.raises(cgroup.CgroupError):
            read(reader)
        assert self.open_files() == before

    def test_a_thousand_vcpus_are_read_with_few_of_them(self, host):
        for number in range(1000):
            host.time(f'vcpu{number}', 1, 2)
        host.time('', 1000)
        budget = counters.Budget(50)
        reader = account_reader.AccountReader(str(host.root), budget)
        before = len(self.open_files())
        assert read(reader) == {'vcpu': 1000, 'throttled': 2000}
        assert len(self.open_files()) <= before + 51
        host.time('vcpu999', 2, 5)
        host.time('vcpu0', 2, 5)
        assert read(reader) == {'vcpu': 1000, 'throttled': 2006}
        reader.close()
        assert budget.files == 50

    def test_what_went_leaves_its_place_to_others(self, host):
        budget = counters.Budget(4)
        reader = account_reader.AccountReader(str(host.root), budget)
        for number in range(20):
            host.time(f'vcpu{number}', 1, 1)
            read(reader)
            host.remove(f'vcpu{number}')
            # NOTE: the kernel would tell by the file as well, if another one
            # came meanwhile; a file that is removed here can still be read.
            read(reader)
        assert read(reader) == {'throttled': 20}
        assert budget.files == 1
        reader.close()


class TestTally:
    @settings(deadline=None)
    @given(readings=st.lists(st.dictionaries(
        st.sampled_from('abc'), st.integers(0, 10**15)), max_size=20))
    def test_it_counts_all_growth_once(self, readings):
        tally = counters.Tally()
        expected = 0
        last = {}
        for reading in readings:
            for key, value in reading.items():
                before = last.get(key, 0)
                expected += value - before if value >= before else value
            last = reading
            assert tally.update(reading) == expected == tally.total


def test_fields_are_found_by_their_whole_name():
    content = b'user_usec 1\nusage_usec 22\nx 3\n'
    assert accounting.field(content, b'usage_usec') == 22
    assert accounting.field(content, b'usec', 5) == 5
    with pytest.raises(ValueError, match='no usec'):
        accounting.field(content, b'usec')
