# SPDX-License-Identifier: Apache-2.0
"""Limits, CPU time and threads of a domain share one cache."""

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import accounting
from nova_vqos.hypervisor.linux import caps
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import threads
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fakes

UUID = fakes.UUID
READERS = {
    'caps': (caps.Caps, caps.Caps.read),
    'time': (accounting.Account, accounting.Account.read),
    'threads': (threads.ThreadReader, threads.ThreadReader.read),
    'runs': (threads.ThreadReader, threads.ThreadReader.read_runs)}


@pytest.fixture
def host(host):
    for number in range(2):
        host.limit(f'vcpu{number}', 15_000, 50_000)
        host.time(f'vcpu{number}', 10)
        host.group(f'vcpu{number}', 50 + number)
        host.thread(50 + number, 'CPU/KVM', 3)
    host.time('iothread1', 30)
    host.group('iothread1', 70)
    host.time('', 100)
    return host


def read(cache, name, run_id=None):
    return cache.use(UUID, *READERS[name], run_id)


def iothread_ms(cache):
    return read(cache, 'time')[1].iothread_ns / 1e6


def test_the_domain_is_found_once_and_opened_once(host):
    budget = domain_files.Budget(100)
    cache = host.cache(budget=budget)
    for _ in range(2):
        for name in READERS:
            read(cache, name)
    assert host.asked == [UUID]
    # The directory; weight and limits of the domain and both vCPUs; CPU time
    # of the domain, the emulator and the I/O thread, throttling of the domain
    # and both vCPUs; runs of both.
    assert 100 - budget.files == 1 + (7 if host.version == 1 else 4) + 6 + 2
    cache.close()
    assert budget.files == 100


def test_a_reader_that_fails_costs_the_others_nothing(host, cache):
    read(cache, 'time')
    host.remove('iothread1')
    assert iothread_ms(cache) == 30
    host.limit('vcpu0', 'x', 50_000)
    with pytest.raises(cgroup.CgroupError):
        read(cache, 'caps')
    # A new reader would know nothing of the I/O thread.
    assert iothread_ms(cache) == 30
    host.limit('vcpu0', 15_000, 50_000)
    assert read(cache, 'caps').vcpus[0].quota_us == 15_000


def test_a_fault_in_reading_one_costs_no_other(host, cache, monkeypatch,
                                               caplog):
    host.emulators[fakes.OTHER_UUID] = host.emulators[UUID]

    class Odd(caps.Caps):
        def __init__(self, run, files):
            super().__init__(run, files)
            if run.uuid == UUID:
                raise KeyError('of this test')
    for _ in range(3):
        assert set(cache.use_each([UUID, fakes.OTHER_UUID], Odd,
                                  Odd.read)) == {fakes.OTHER_UUID}
    # Nobody has to read more than one.
    record, = [one for one in caplog.records if one.levelname == 'ERROR']
    assert record.exc_info[0] is KeyError
    assert UUID in record.getMessage()


@pytest.mark.parametrize('name', READERS)
def test_a_new_run_has_new_files(host, cache, name):
    for other in READERS:
        read(cache, other)
    host.remove('iothread1')
    host.emulators[UUID] = domain_files.Emulator(2, fake_host.PID)
    assert iothread_ms(cache) == 30
    read(cache, name, run_id=2)
    assert iothread_ms(cache) == 0
    assert host.asked == [UUID] * 2


def test_files_of_domains_that_ended_are_closed(host, cache):
    read(cache, 'time')
    cache.retain({UUID: 1, fakes.OTHER_UUID: 2})
    assert cache.tops() == {host.domain.relative_to(host.mount).parts[0]}
    cache.retain({UUID: 2})
    assert cache.tops() == frozenset()


def test_a_hypervisor_that_hangs_hinders_no_other_domain(host):
    seen = []

    def find(uuid):
        if uuid != UUID:
            seen.append(cache._lock.locked())
            raise base.DomainGone(uuid)
        return host.find(uuid)
    cache = host.cache(find=find)
    with pytest.raises(base.DomainGone):
        cache.use(fakes.OTHER_UUID, *READERS['caps'])
    assert seen == [False]
    read(cache, 'caps')
    cache.close()


def test_one_that_another_thread_opened_meanwhile_is_kept(host):
    def find(uuid):
        if not host.asked:
            found = host.find(uuid)
            assert iothread_ms(cache) == 30
            host.remove('iothread1')
            return found
        return host.find(uuid)
    cache = host.cache(find=find)
    assert iothread_ms(cache) == 30
    assert host.asked == [UUID] * 2
    cache.close()
