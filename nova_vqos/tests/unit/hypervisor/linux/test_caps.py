# SPDX-License-Identifier: Apache-2.0
"""Limits in force, of either cgroup version, from a tree of a test's."""

import shutil
import threading

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import caps
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import inotify
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits

UUID = fakes.UUID


@pytest.fixture
def host(host):
    host.limit('vcpu0', 15_000, 50_000)
    return host


def read(cache):
    return cache.use(UUID, caps.Caps, caps.Caps.read)


def read_anew(cache):
    return cache.use(UUID, caps.Caps, caps.Caps.read_anew)


def quota_us(cache):
    return read(cache).vcpus[0].quota_us


def test_the_effective_limits(host, cache):
    host.limit('vcpu10', None, 100_000)
    assert cache.version == host.version
    assert read(cache) == base.InForce(
        vcpus={0: base.Limit(15_000, 50_000), 10: base.Limit(None, 100_000)},
        shares=614, domain=base.Limit(None, 100_000))


def test_libvirts_largest_quota_is_no_limit(host, cache):
    host.limit('vcpu0', cgroup.UNLIMITED_QUOTA_US, 100_000)
    assert quota_us(cache) is None


def test_unwatched_it_is_read_each_time(host, cache):
    before = read(cache)
    assert read(cache) is before
    host.limit('vcpu0', 30_000, 50_000)
    assert quota_us(cache) == 30_000
    host.limit('', 90_000, 100_000)
    assert read(cache).domain == base.Limit(90_000, 100_000)
    assert host.asked == [UUID]


def test_a_vcpu_that_comes_or_goes_is_seen(host, cache):
    assert set(read(cache).vcpus) == {0}
    host.limit('vcpu1', None, 100_000)
    assert set(read(cache).vcpus) == {0, 1}
    shutil.rmtree(host.tuned / 'vcpu0')
    assert set(read(cache).vcpus) == {1}


def test_each_write_is_reported(host):
    written = threading.Event()
    reported = []

    def on_written(uuid):
        reported.append(uuid)
        written.set()
    cache = host.cache(on_written=on_written)
    before = read(cache)
    for wanted_us in (20_000, 25_000):
        written.clear()
        host.limit('vcpu0', wanted_us, 50_000)
        assert written.wait(waits.LIMIT_S)
        assert quota_us(cache) == wanted_us
    assert set(reported) == {UUID}
    assert read(cache) is not before
    cache.close()


def test_watched_it_is_read_when_asked_to(host, monkeypatch):
    # A kernel that reports nothing.
    monkeypatch.setattr(inotify.Watcher, '_run', lambda _self: None)
    cache = host.cache(on_written=lambda _uuid: None)
    read(cache)
    host.limit('vcpu0', 30_000, 50_000)
    assert {quota_us(cache) for _ in range(11)} == {15_000}
    assert read_anew(cache).vcpus[0].quota_us == quota_us(cache) == 30_000
    # What the caller itself has written is read at once.
    for uuid, wanted_us in ((UUID, 31_000), ('', 32_000)):
        host.limit('vcpu0', wanted_us, 50_000)
        cache.touch(uuid)
        assert quota_us(cache) == wanted_us
    cache.close()


def test_watched_all_of_it_is_read_seldom(host, monkeypatch):
    monkeypatch.setattr(inotify.Watcher, '_run', lambda _self: None)
    cache = host.cache(on_written=lambda _uuid: None)
    before = read(cache)
    host.limit('vcpu0', 30_000, 80_000)
    host.weigh(307)
    # After it is opened, so after the last reading of all.
    readings = [read_anew(cache) for _ in range(6)]
    assert {anew.vcpus[0].quota_us for anew in readings} == {30_000}
    assert [anew.shares for anew in readings] == [before.shares] * 5 + [307]
    assert readings[-1].vcpus[0] == base.Limit(30_000, 80_000)
    # A report of a write has all of it read.
    host.weigh(308)
    cache.touch(UUID)
    assert read(cache).shares == 308
    cache.close()


def test_a_vcpu_that_comes_is_read_whole(host, monkeypatch):
    monkeypatch.setattr(inotify.Watcher, '_run', lambda _self: None)
    cache = host.cache(on_written=lambda _uuid: None)
    read(cache)
    host.limit('vcpu1', 40_000, 80_000)
    assert read_anew(cache).vcpus == {
        0: base.Limit(15_000, 50_000), 1: base.Limit(40_000, 80_000)}
    cache.close()


def test_without_inotify_it_is_read_each_time(host, monkeypatch, caplog):
    def fail(*_arguments):
        raise OSError('no more watchers')
    monkeypatch.setattr(inotify.Watcher, '_checked', fail)
    cache = host.cache(on_written=lambda _uuid: None)
    read(cache)
    host.limit('vcpu0', 30_000, 50_000)
    assert quota_us(cache) == 30_000
    assert [record.levelname for record in caplog.records] == ['WARNING']
    cache.close()


@pytest.mark.parametrize('content', [
    '', '2:cpu:/\n', '0::/\n', '9:memory:/machine/x/emulator\n'])
def test_an_emulator_outside_of_any_domain_is_an_error(host, cache, content):
    host.write(f'proc/{fake_host.PID}/cgroup', content)
    with pytest.raises(cgroup.CgroupError):
        read(cache)


def test_a_cgroup_that_went(host, cache):
    read(cache)
    shutil.rmtree(host.tuned)
    for _ in range(2):
        with pytest.raises(cgroup.CgroupError):
            read(cache)


def test_text_that_is_no_number_is_an_error(host, cache):
    host.limit('vcpu0', 'x', 50_000)
    with pytest.raises(cgroup.CgroupError):
        read(cache)
