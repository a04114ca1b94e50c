# SPDX-License-Identifier: Apache-2.0
"""CPU time, of either cgroup version, from a tree that a test made."""

import errno
import os
import shutil

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import accounting
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fakes

UUID = fakes.UUID
MS_NS = 1_000_000
# With a number of its own, as another guest of the machine may take time.
ROOT_STAT = 'usage_usec 990000\nuser_usec 500000\nsystem_usec 400000\n'


def read(cache):
    """What the domain used, by name and in ms."""
    _run, found = cache.use(UUID, accounting.Account, accounting.Account.read)
    return {name.removesuffix('_ns'): value / MS_NS
            for name, value in found._asdict().items()
            if value and name.endswith('_ns')}


class TestParts:
    def test_each_kind_of_thread_is_counted_apart(self, host, cache):
        host.times({
            '': (1000, 5), 'emulator': 300, 'iothread1': (40, 9),
            'iothread2': 2, 'vcpu0': (600, 30), 'vcpu1': (58, 4)})
        host.run_threads({
            43: ('vhost-42', 90), 44: ('live_migration', 100),
            45: ('worker', 77)})
        assert read(cache) == {
            'vcpu': 658, 'emulator': 110, 'iothread': 42, 'vhost': 90,
            'migration': 100, 'throttled': 39}

    def test_files_stay_open_between_reads(self, host, cache, monkeypatch):
        host.times({'': 10, 'vcpu0': 10})
        host.run_threads({43: ('vhost-42', 0)})
        read(cache)
        opened = []
        open_ = os.open
        monkeypatch.setattr(os, 'open', lambda path, *rest: (
            opened.append(path) or open_(path, *rest)))
        host.times({'': 40, 'emulator': 25, 'vcpu0': (15, 5)})
        host.thread(43, 'vhost-42', 20)
        assert read(cache) == {
            'vcpu': 15, 'emulator': 5, 'vhost': 20, 'throttled': 5}
        assert [os.path.basename(path) for path in opened] == [
            'tasks' if host.version == 1 else 'cgroup.threads']

    def test_a_vcpu_that_is_unplugged_keeps_its_time(self, host, cache):
        host.times({'': 100, 'vcpu0': (60, 6), 'vcpu1': (40, 4)})
        assert read(cache) == {'vcpu': 100, 'throttled': 10}
        # The domain's own counter keeps what its children had.
        host.remove('vcpu1')
        host.times({'': 110, 'vcpu0': (70, 7)})
        assert read(cache) == {'vcpu': 110, 'throttled': 11}
        # Plugged in again, it begins anew.
        host.times({'vcpu1': (5, 1), '': 115})
        assert read(cache) == {'vcpu': 115, 'throttled': 12}

    def test_a_new_agent_knows_of_an_unplugged_vcpu(self, host, cache):
        host.times({'': 100, 'vcpu0': 60})
        assert read(cache) == {'vcpu': 100}

    def test_an_io_thread_that_goes_keeps_its_time(self, host, cache):
        host.times({'': 100, 'iothread1': 30})
        assert read(cache) == {'vcpu': 70, 'iothread': 30}
        host.remove('iothread1')
        assert read(cache) == {'vcpu': 70, 'iothread': 30}
        host.times({'iothread1': 3, '': 105})
        assert read(cache) == {'vcpu': 72, 'iothread': 33}

    def test_cgroups_that_are_not_libvirts_are_no_part(self, host, cache):
        host.times({'': 100, 'vcpu0': 60, 'vcpux': (7, 7), 'other': (40, 7)})
        assert read(cache) == {'vcpu': 100}

    def test_a_child_is_read_once_it_is_whole(self, host, cache):
        host.time('', 100)
        (host.domain / 'iothread1').mkdir()
        (host.domain / 'vcpu0').mkdir()
        assert read(cache) == {'vcpu': 100}
        host.times({'iothread1': 30, 'vcpu0': (70, 3)})
        assert read(cache)['throttled'] == 3
        assert read(cache)['iothread'] == 30

    def test_a_kernel_without_limits_throttles_no_server(self, host, cache):
        host.times({'': 100, 'vcpu0': 60})
        stat = host.tuned / 'vcpu0/cpu.stat'
        if host.version == 1:
            stat.unlink()
        else:
            stat.write_text('usage_usec 60000\n')
        assert read(cache) == {'vcpu': 100}

    @settings(deadline=None)
    @given(values=st.lists(st.tuples(*[st.integers(0, 10**6)] * 4),
                           min_size=2, max_size=5))
    def test_whatever_is_read_no_counter_falls(self, tmp_path_factory, values):
        # Also of a kernel that counts its parts at other times than the sum.
        host = fake_host.FakeHost(tmp_path_factory.mktemp('host'), 2,
                                  'machine/a')
        cache = host.cache()
        host.threads(43)
        before = None
        for total, emulator, iothread, vhost in values:
            host.time('', total)
            host.time('emulator', emulator)
            host.time('iothread1', iothread)
            host.thread(43, 'vhost-42', vhost)
            _run, now = cache.use(UUID, accounting.Account,
                                  accounting.Account.read)
            assert min(now) >= 0
            assert before is None or all(map(int.__ge__, now, before))
            before = now
        cache.close()


class TestVcpus:
    def read(self, cache):
        found = cache.use(UUID, accounting.Account,
                          accounting.Account.read_vcpus)
        return found.vcpu_ns / MS_NS, found.throttled_ns / MS_NS, found.vcpus

    def test_they_can_be_read_alone(self, host, cache):
        host.times({
            '': (100, 1), 'emulator': 30, 'iothread1': 10, 'vcpu0': (40, 5),
            'vcpu1': (20, 2)})
        assert self.read(cache) == (60, 8, 2)

    def test_the_biller_reads_the_same(self, host, cache):
        host.times({'': 100, 'vcpu0': (70, 5), 'vcpu1': (30, 3)})
        assert self.read(cache) == (100, 8, 2)
        host.remove('vcpu1')
        host.times({'': 110, 'vcpu0': (80, 6)})
        assert read(cache) == {'vcpu': 110, 'throttled': 9}
        assert self.read(cache) == (110, 9, 1)

    def test_it_costs_few_files(self, host, cache, monkeypatch):
        host.time('vcpu0', 1)
        host.run_threads({43: ('vhost-42', 0)})
        self.read(cache)
        opened, read_files = [], []
        open_, pread = os.open, os.pread
        monkeypatch.setattr(os, 'open', lambda path, *rest: (
            opened.append(path) or open_(path, *rest)))
        monkeypatch.setattr(os, 'pread', lambda handle, *rest: (
            read_files.append(handle) or pread(handle, *rest)))
        self.read(cache)
        # Of the domain its time and what held it back, of its emulator, of
        # its vCPU: of version 2 two of these are the same file, opened twice.
        assert (opened, len(read_files)) == ([], 4)

    def test_none_of_them_falls(self, host, cache):
        host.times({'': 100, 'vcpu0': (100, 9)})
        assert self.read(cache) == (100, 9, 1)
        host.times({'': 90, 'vcpu0': (90, 9)})
        assert self.read(cache) == (100, 9, 1)

    def test_what_cannot_be_read_is_an_error(self, host, cache):
        host.time('vcpu0', 1)
        self.read(cache)
        (host.domain / 'emulator/cpu.stat').write_text('x')
        (host.domain / 'emulator/cpuacct.usage').write_text('x')
        with pytest.raises(cgroup.CgroupError):
            self.read(cache)


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
    def test_names(self, host, cache, name, kind):
        host.times({'': 100, 'emulator': 100})
        host.threads(43)
        host.thread(43, name, 30)
        assert read(cache) == ({'emulator': 100} if kind is None
                                else {'emulator': 70, kind: 30})

    def test_what_one_used_that_ended_does_not_come_back(self, host, cache):
        host.times({'': 100, 'emulator': 100})
        host.run_threads({43: ('live_migration', 60)})
        assert read(cache) == {'emulator': 40, 'migration': 60}
        host.threads()
        assert read(cache) == {'emulator': 40, 'migration': 60}
        # The next migration's, of which the number may be the same.
        host.times({'emulator': 130, '': 130})
        host.run_threads({43: ('live_migration', 10)})
        assert read(cache) == {'emulator': 60, 'migration': 70}

    def test_a_thread_that_vanishes_unseen_is_not_counted(self, host, cache):
        host.times({'': 100, 'emulator': 100})
        host.threads(43, 44)
        # A name that can still be read, and nothing else.
        host.write('proc/44/comm', 'vhost-42\n')
        assert read(cache) == {'emulator': 100}
        # Slow to appear, it is seen next time.
        host.thread(44, 'vhost-42', 30)
        assert read(cache) == {'emulator': 100, 'vhost': 30}
        host.times({'emulator': 140, '': 140})
        assert read(cache) == {'emulator': 110, 'vhost': 30}

    def test_a_vanished_thread_keeps_its_time(self, host, cache, monkeypatch):
        host.times({'': 100, 'emulator': 100})
        host.run_threads({43: ('vhost-42', 60)})
        assert read(cache) == {'emulator': 40, 'vhost': 60}
        pread = os.pread

        def gone(handle, *rest):
            path = os.readlink(f'/proc/self/fd/{handle}')
            if path.endswith('schedstat'):
                raise OSError(errno.ESRCH, 'gone')
            return pread(handle, *rest)
        monkeypatch.setattr(os, 'pread', gone)
        assert read(cache) == {'emulator': 40, 'vhost': 60}

    def test_a_thread_without_a_name_is_looked_at_again(self, host, cache):
        host.times({'': 100, 'emulator': 100})
        host.run_threads({43: ('qemu-system-x86', 30)})
        assert read(cache) == {'emulator': 100}
        host.thread(43, 'vhost-42', 40)
        host.times({'emulator': 150, '': 150})
        assert read(cache) == {'emulator': 110, 'vhost': 40}

    def test_names_are_read_no_more_than_twice(self, host, cache):
        host.run_threads({43: ('worker', 30), 44: ('qemu-system-x86', 30)})
        for _ in range(2):
            read(cache)
        for number in (43, 44):
            host.thread(number, 'vhost-42', 30)
        assert 'vhost' not in read(cache)

    def test_threads_that_cannot_be_seen_are_the_emulators(self, host, cache):
        host.times({'': 100, 'emulator': 100})
        host.threads(0, 0)
        assert read(cache) == {'emulator': 100}

    def test_a_thread_whose_time_is_no_number_is_an_error(self, host, cache):
        host.run_threads({43: ('vhost-42', 1)})
        host.write('proc/43/schedstat', 'x y z\n')
        with pytest.raises(cgroup.CgroupError):
            read(cache)

    def test_an_endless_list_is_cut_at_a_line(self, host, cache, monkeypatch):
        monkeypatch.setattr(procfs, '_MOST_BYTES', 6)
        monkeypatch.setattr(procfs, '_CHUNK_BYTES', 4)
        host.times({'': 100, 'emulator': 100})
        # The reader gets '42\n43\n44'.
        host.threads(43, 441)
        host.thread(43, 'vhost-42', 30)
        host.thread(44, 'vhost-42', 30)
        assert read(cache) == {'emulator': 70, 'vhost': 30}


class TestRun:
    def run_of(self, cache, run_id=None):
        return cache.use(UUID, accounting.Account, accounting.Account.read,
                         run_id)[0]

    def test_it_names_boot_process_and_start(self, host, cache):
        assert self.run_of(cache) == 'boot-1/42/1234'

    def test_another_run_begins_anew(self, host, cache):
        host.times({'': 500, 'vcpu0': 500})
        read(cache)
        host.start('5678')
        host.times({'': 20, 'vcpu0': 20})
        assert self.run_of(cache) == 'boot-1/42/1234'
        host.emulators[UUID] = domain_files.Emulator(2, fake_host.PID)
        assert self.run_of(cache, 2) == 'boot-1/42/5678'
        assert read(cache) == {'vcpu': 20}

    @pytest.mark.parametrize('stat', ['', '42 (a) S 1 2', 'x'])
    def test_without_a_start_time_there_is_no_account(self, host, cache, stat):
        host.write('proc/42/stat', stat)
        with pytest.raises(cgroup.CgroupError):
            read(cache)


class TestErrors:
    @pytest.mark.parametrize('text', ['', 'x\n', 'usage_usec\n',
                                      'usage_usec x\n'])
    @pytest.mark.parametrize('child', ['', 'emulator', 'iothread1'])
    def test_garbage_in_a_counter_is_an_error(self, host, cache, text, child):
        host.time('iothread1', 1)
        read(cache)
        name = 'cpuacct.usage' if host.version == 1 else 'cpu.stat'
        (host.domain / child / name).write_text(text)
        with pytest.raises(cgroup.CgroupError):
            read(cache)
        # It is found again as soon as it is well.
        host.time(child, 1)
        assert read(cache)

    def test_a_cgroup_that_is_gone_is_an_error(self, host, cache):
        host.time('', 5)
        read(cache)
        for child in 'emulator', '':
            host.remove(child)
        with pytest.raises(cgroup.CgroupError):
            read(cache)
        with pytest.raises(cgroup.CgroupError):
            read(cache)

    def test_a_process_that_is_gone_is_an_error(self, host, cache):
        host.emulators[UUID] = domain_files.Emulator(1, 99)
        with pytest.raises(cgroup.CgroupError):
            read(cache)


class TestFiles:
    def open_files(self):
        return set(os.listdir('/proc/self/fd'))

    def test_all_are_closed(self, host):
        before = self.open_files()
        cache = host.cache()
        host.times({'vcpu0': 1, 'iothread1': 1})
        host.run_threads({43: ('vhost-42', 1)})
        read(cache)
        opened = self.open_files()
        assert len(opened) > len(before) + 4
        cache.retain({UUID: 1})
        assert self.open_files() == opened
        cache.retain({UUID: 2})
        assert self.open_files() == before
        (host.domain / 'emulator/cpu.stat').write_text('x')
        (host.domain / 'emulator/cpuacct.usage').write_text('x')
        with pytest.raises(cgroup.CgroupError):
            read(cache)
        # The domain's directory is open for other readers.
        assert len(self.open_files()) == len(before) + 1
        cache.close()
        assert self.open_files() == before

    def test_a_thousand_vcpus_are_read_with_few_of_them(self, host):
        for number in range(1000):
            host.time(f'vcpu{number}', 1, 2)
        host.time('', 1000)
        budget = domain_files.Budget(50)
        cache = host.cache(budget=budget)
        before = len(self.open_files())
        assert read(cache) == {'vcpu': 1000, 'throttled': 2000}
        assert len(self.open_files()) <= before + 50
        host.times({'vcpu999': (2, 5), 'vcpu0': (2, 5)})
        assert read(cache) == {'vcpu': 1000, 'throttled': 2006}
        cache.close()
        assert budget.files == 50

    def test_without_a_budget_children_are_seen_all_the_same(self, host):
        cache = host.cache(budget=domain_files.Budget(0))
        before = self.open_files()
        host.time('vcpu0', 1, 2)
        assert read(cache) == {'throttled': 2}
        host.time('vcpu1', 1, 5)
        assert read(cache) == {'throttled': 7}
        assert self.open_files() == before

    def test_what_went_leaves_its_place_to_others(self, host):
        budget = domain_files.Budget(5)
        cache = host.cache(budget=budget)
        for number in range(20):
            host.time(f'vcpu{number}', 1, 1)
            read(cache)
            host.remove(f'vcpu{number}')
            # NOTE: the kernel would report by the file as well, if another one
            # came meanwhile; a file that is removed here can still be read.
            read(cache)
        assert read(cache) == {'throttled': 20}
        assert budget.files == 1
        cache.close()


class TestTally:
    @settings(deadline=None)
    @given(readings=st.lists(st.dictionaries(
        st.sampled_from('abc'), st.integers(0, 10**15)), max_size=20))
    def test_it_counts_all_growth_once(self, readings):
        tally = procfs.Tally()
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
    assert cgroup.field(content, b'usage_usec') == 22
    assert cgroup.field(content, b'usec', 5) == 5
    with pytest.raises(ValueError, match='no usec'):
        cgroup.field(content, b'usec')


class TestHost:
    @pytest.fixture
    def host(self, host):
        host.time_of(host.mount, 900)
        if host.version == 2:
            (host.mount / 'cpu.stat').write_text(ROOT_STAT)
        for name, used_ms in (('machine', 300), ('machine.slice', 50),
                              ('system.slice', 200), ('user.slice', 100)):
            host.time_of(host.mount / name, used_ms)
        return host

    @pytest.fixture
    def account(self, host):
        return accounting.HostAccount(str(host.root))

    def read(self, account, tops=()):
        found = account.read(tops)
        return tuple(value / MS_NS for value in (
            found.total_ns, found.domains_ns, found.own_ns))

    def test_the_usage_of_domains_is_apart_from_the_rest(self, account):
        assert self.read(account) == (900, 350, 300)

    def test_domains_may_be_elsewhere(self, host, account):
        host.time_of(host.mount / 'servers.slice', 40)
        assert self.read(account) == (900, 350, 340)
        assert self.read(accounting.HostAccount(str(host.root)),
                         ['servers.slice']) == (900, 390, 300)

    def test_what_a_cgroup_used_that_went_is_kept(self, host, account):
        self.read(account)
        shutil.rmtree(host.mount / 'user.slice')
        host.time_of(host.mount / 'system.slice', 210)
        assert self.read(account) == (900, 350, 310)
        host.time_of(host.mount / 'user.slice', 5)
        assert self.read(account) == (900, 350, 315)

    def test_a_cgroup_that_is_just_going_is_left_out(self, host, account):
        (host.mount / 'going.slice').mkdir()
        assert self.read(account) == (900, 350, 300)

    @pytest.mark.parametrize('text', ['', 'x', 'usage_usec 5\n', None])
    def test_a_host_that_does_not_count_is_an_error(self, host, account, text):
        name = 'cpuacct.usage' if host.version == 1 else 'cpu.stat'
        if text is None:
            (host.mount / name).unlink()
        else:
            (host.mount / name).write_text(text)
        with pytest.raises(base.HypervisorError):
            self.read(account)

    def test_a_host_without_cgroups_is_an_error(self, tmp_path):
        with pytest.raises(base.HypervisorError):
            accounting.HostAccount(str(tmp_path / 'none')).read([])
