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

"""Reading cgroups, of either version, from a tree that a test made."""

import shutil
import threading

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import inotify

UUID = '11111111-2222-4333-8444-555555555555'
LIMIT_S = 20


class Tree:
    """A host's /proc and /sys/fs/cgroup, with one domain, process 42."""

    def __init__(self, root, version, path):
        self.root = root
        self.version = version
        mount = root / 'sys/fs/cgroup'
        controllers = 'cpu,cpuacct' if version == 1 else ''
        self.domain = (mount / 'cpu' if version == 1 else mount) / path
        (self.domain / 'emulator').mkdir(parents=True)
        if version == 2:
            (mount / 'cgroup.controllers').write_text('cpu cpuset\n')
        (root / 'proc/42').mkdir(parents=True)
        (root / 'proc/42/cgroup').write_text(
            f'4:memory:/\n2:{controllers}:/{path}/emulator\n'
            if version == 1 else f'0::/{path}/emulator\n')
        shares = self.domain
        if shares.name == 'libvirt':
            shares = shares.parent
        (shares / ('cpu.shares' if version == 1 else 'cpu.weight')
         ).write_text('614\n')
        self.limit('', None, 100_000)

    def limit(self, where, quota_us, period_us):
        directory = self.domain / where
        directory.mkdir(exist_ok=True)
        if self.version == 1:
            quota = -1 if quota_us is None else quota_us
            (directory / 'cpu.cfs_quota_us').write_text(f'{quota}\n')
            (directory / 'cpu.cfs_period_us').write_text(f'{period_us}\n')
        else:
            quota = 'max' if quota_us is None else quota_us
            (directory / 'cpu.max').write_text(f'{quota} {period_us}\n')


@pytest.fixture(params=[
    (1, 'machine/qemu-1-a.libvirt-qemu'),
    (1, 'machine.slice/machine-qemu.scope/libvirt'),
    (2, 'machine/qemu-1-a.libvirt-qemu'),
    (2, 'machine.slice/machine-qemu.scope/libvirt'),
], ids=['v1', 'v1-systemd', 'v2', 'v2-systemd'])
def tree(request, tmp_path):
    return Tree(tmp_path, *request.param)


class TestReader:
    def test_it_reads_what_is_in_force(self, tree):
        tree.limit('vcpu0', 15_000, 50_000)
        tree.limit('vcpu10', None, 100_000)
        reader = cgroup.CgroupReader(str(tree.root))
        assert reader.version() == tree.version
        assert reader.read(UUID, 42) == base.InForce(
            vcpus={0: base.Limit(15_000, 50_000),
                   10: base.Limit(None, 100_000)},
            shares=614, domain=base.Limit(None, 100_000))

    def test_libvirts_largest_quota_is_no_limit(self, tree):
        tree.limit('vcpu0', cgroup.UNLIMITED_QUOTA_US, 100_000)
        reader = cgroup.CgroupReader(str(tree.root))
        assert reader.read(UUID, 42).vcpus[0].quota_us is None

    def test_unwatched_it_reads_each_time(self, tree):
        tree.limit('vcpu0', 15_000, 50_000)
        reader = cgroup.CgroupReader(str(tree.root))
        before = reader.read(UUID, 42)
        assert reader.read(UUID, None) is before
        tree.limit('vcpu0', 30_000, 50_000)
        assert reader.read(UUID, None).vcpus[0].quota_us == 30_000
        tree.limit('', 90_000, 100_000)
        assert reader.read(UUID, None).domain == base.Limit(90_000, 100_000)

    def test_a_vcpu_that_comes_or_goes_is_seen(self, tree):
        tree.limit('vcpu0', 15_000, 50_000)
        reader = cgroup.CgroupReader(str(tree.root))
        assert set(reader.read(UUID, 42).vcpus) == {0}
        tree.limit('vcpu1', None, 100_000)
        assert set(reader.read(UUID, None).vcpus) == {0, 1}
        shutil.rmtree(tree.domain / 'vcpu0')
        assert set(reader.read(UUID, None).vcpus) == {1}

    def test_watched_it_tells_of_each_write(self, tree):
        tree.limit('vcpu0', 15_000, 50_000)
        written = threading.Event()
        told = []

        def on_written(uuid):
            told.append(uuid)
            written.set()
        reader = cgroup.CgroupReader(str(tree.root), on_written)
        before = reader.read(UUID, 42)
        for quota_us in (20_000, 25_000):
            written.clear()
            tree.limit('vcpu0', quota_us, 50_000)
            assert written.wait(LIMIT_S)
            assert reader.read(UUID, None).vcpus[0].quota_us == quota_us
        assert set(told) == {UUID}
        assert reader.read(UUID, None) is not before

    def test_watched_it_looks_anyway_once_in_a_while(self, tree, monkeypatch):
        # A kernel that does not tell.
        monkeypatch.setattr(inotify.Watcher, '_run', lambda _self: None)
        tree.limit('vcpu0', 15_000, 50_000)
        reader = cgroup.CgroupReader(str(tree.root), lambda _uuid: None)
        reader.read(UUID, 42)
        tree.limit('vcpu0', 30_000, 50_000)
        seen = [reader.read(UUID, None).vcpus[0].quota_us for _ in range(11)]
        assert seen[-1] == 30_000
        # What the caller knows to have written is read at once.
        tree.limit('vcpu0', 31_000, 50_000)
        reader.touch(UUID)
        assert reader.read(UUID, None).vcpus[0].quota_us == 31_000

    @pytest.mark.parametrize('content', [
        '', '2:cpu:/\n', '9:memory:/machine/x/emulator\n'])
    def test_an_emulator_outside_of_any_domain_is_an_error(
            self, tmp_path, content):
        (tmp_path / 'proc/42').mkdir(parents=True)
        (tmp_path / 'proc/42/cgroup').write_text(content)
        with pytest.raises(cgroup.CgroupError):
            cgroup.CgroupReader(str(tmp_path)).read(UUID, 42)

    def test_a_cgroup_that_went_is_looked_for_again(self, tree):
        tree.limit('vcpu0', 15_000, 50_000)
        reader = cgroup.CgroupReader(str(tree.root))
        reader.read(UUID, 42)
        assert reader.knows(UUID)
        reader.forget(UUID)
        shutil.rmtree(tree.domain)
        with pytest.raises(cgroup.CgroupError):
            reader.read(UUID, 42)
        assert not reader.knows(UUID)
        with pytest.raises(cgroup.CgroupError):
            reader.read(UUID, None)

    def test_text_that_is_no_number_is_an_error(self, tree):
        tree.limit('vcpu0', 'x', 50_000)
        with pytest.raises(cgroup.CgroupError):
            cgroup.CgroupReader(str(tree.root)).read(UUID, 42)
