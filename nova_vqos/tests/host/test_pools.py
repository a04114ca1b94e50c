# SPDX-License-Identifier: Apache-2.0
"""Real servers on a host of two pCPUs: slices and pools by a real agent."""

import os
import time

import pytest

from nova_vqos.hypervisor.linux import procfs
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.quantum import probe_result
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import conftest
from nova_vqos.tests.host import guests
from nova_vqos_lab import host as hosts
from nova_vqos_lab import process

CACHE_SLICE_US = 90_000
LIMIT_S = guests.LIMIT_S


@pytest.fixture(scope='module')
def wide(lab):
    """A third host, of two pCPUs of this machine."""
    pcpus = frozenset(sorted(os.sched_getaffinity(0))[:2])
    made = hosts.Host('wide', pcpus, address='198.18.0.13',
                      root=conftest.ROOT, prefix=conftest.PREFIX)
    if len(made.pcpus) < 2:
        requirement.need('pools need two pCPUs')
    made.remove()
    try:
        made.start()
        agents.store_profile(made, 1.0)
        yield made
    finally:
        made.remove()


@pytest.fixture(scope='module')
def kept(wide, bus):
    """The agent of that host, which looks after slices every second."""
    agents.store_proof(wide)
    # Where there are counters of caches, what spins is recognised.
    agent = agents.Agent(wide, bus, quantum_interval_s=1, pool_interval_s=1,
                         quantum_sources='io')
    try:
        agent.wait_ready()
        yield agent
    finally:
        agent.stop()
        agent.print_log()


@pytest.fixture
def guest_of(wide):
    def start(quantum_class, specs=None, **options):
        return guests.Guest(wide, specs=guests.server(
            50, vqos_quantum_class=quantum_class, **(specs or {})), **options)
    yield start
    guests.destroy_all(wide)


def affinity(guest):
    """:returns: the pCPUs that each vCPU may run on, as the kernel has it."""
    return [os.sched_getaffinity(tid) for tid in vcpu_threads(guest)]


def slices_us(guest):
    """:returns: the slice of each vCPU, as the kernel has it."""
    return [sched_attr.slice_us(tid) for tid in vcpu_threads(guest)]


def vcpu_threads(guest):
    return [guest.thread(vcpu) for vcpu in range(guest.domain().vcpusFlags())]


def wait_apart(first, others):
    """Wait until guests share no pCPU with others."""
    def apart():
        theirs = set().union(*(
            pcpus for other in others for pcpus in affinity(other)))
        return theirs.isdisjoint(set().union(*affinity(first)))
    process.wait_until(apart, LIMIT_S, f'{first.name} to be kept apart')


def wait_pools(client, host, wanted):
    """The agent knows of them a moment after the kernel does."""
    def pools():
        found = client.get_host(host)['quantum']
        return found and found['pools']
    process.wait_until(lambda: pools() == wanted, LIMIT_S,
                       f'pools {wanted}, there are {pools()}')


# The first one: the agent of the others would be in its way.
def test_without_proof_nothing_is_promised(wide, bus, guest_of, client):
    path = wide.path('run/nova-vqos-probe/quantum.json')
    if os.path.exists(path):
        os.unlink(path)
    agent = agents.Agent(wide, bus, quantum_interval_s=1, pool_interval_s=1)
    try:
        agent.wait_ready()
        cache = guest_of('cache')
        process.wait_until(
            lambda: client.get_host(wide)['quantum'] is not None
            and client.get_server(wide, cache)['quantum'] is not None,
            LIMIT_S, 'a look at its slices')
        assert client.get_host(wide)['quantum_classes'] == [
            'default', 'neutral', 'spin', 'auto']
        assert slices_us(cache) != [CACHE_SLICE_US]
    finally:
        agent.stop()


def test_servers_get_the_slice_of_their_class(kept, guest_of, client):
    cache = guest_of('cache', vcpus=2)
    plain = guest_of('default')
    kernels = slices_us(plain)
    process.wait_until(
        lambda: slices_us(cache) == [CACHE_SLICE_US] * 2, LIMIT_S,
        'the slices of both vCPUs')
    assert slices_us(plain) == kernels
    # The agent knows of it a moment after the kernel does.
    report = process.wait_until(
        lambda: client.get_server(cache.host, cache)['quantum'], LIMIT_S,
        'the report of it')
    assert report['class'] == 'cache'
    assert {vcpu['slice_us'] for vcpu in report['vcpus'].values()} == {
        CACHE_SLICE_US}
    assert 'cache' in client.get_host(cache.host)['quantum_classes']
    sched_attr.set_slice(cache.thread(0), 5_000)
    process.wait_until(lambda: slices_us(cache) == [CACHE_SLICE_US] * 2,
                       LIMIT_S, 'the slice once more')


def test_unlike_classes_are_kept_apart(kept, guest_of, client):
    first, second = guest_of('cache'), guest_of('cache')
    plain = guest_of('default', vcpus=2)
    wait_apart(plain, [first, second])
    assert affinity(first) == affinity(second)
    wait_pools(client, plain.host, {'cache': [1, 2], 'default': [1, 2]})
    # Their caps are as promised there, too.
    plain.wait_cap((12_500, 50_000))
    first.wait_cap((100_000, 200_000))

    plain.domain().destroy()
    everywhere = [set(plain.host.pcpus)]
    process.wait_until(
        lambda: affinity(first) == affinity(second) == everywhere, LIMIT_S,
        'servers that are all alike to be kept from nothing')
    wait_pools(client, plain.host, {'cache': [len(plain.host.pcpus), 2]})


def shares(guests_of_host):
    """:returns: of the time that each wanted to run, what it ran, by UUID"""
    before = [procfs.read_run(guest.thread(0)) for guest in guests_of_host]
    # Not a wait for anything: the length of the measurement.
    time.sleep(4)
    found = {}
    for guest, was in zip(guests_of_host, before, strict=True):
        now = procfs.read_run(guest.thread(0))
        ran_ns = now.run_ns - was.run_ns
        found[guest.uuid] = ran_ns / (
            ran_ns + now.waited_ns - was.waited_ns)
    return found


# Beside other work it takes more than the minute of its docstring.
@pytest.mark.measured
@pytest.mark.timeout(300)
def test_a_pool_that_makes_a_server_slower_is_undone(kept, guest_of, client):
    """In its first minute a server counts as busy, also where it is idle."""
    mine = [guest_of('auto', {'vqos_cap': 'floor'}) for _ in range(2)]
    host = mine[0].host
    for _ in range(2):
        guest_of('cache').domain().suspend()
    process.wait_until(lambda: len(affinity(mine[0])[0]) == 1, LIMIT_S,
                       'a pool of one pCPU for both')
    in_pool = shares(mine)

    def out():
        return [guest for guest in mine
                if client.get_server(host, guest)['quantum']['left_alone']]
    # Twelve looks in the pool, six without, and six in it once more take a
    # second each.
    (one,) = process.wait_until(out, 2 * LIMIT_S, 'a pool that is undone')
    process.wait_until(lambda: affinity(one) == [set(host.pcpus)], LIMIT_S,
                       'all pCPUs for it')
    assert client.get_host(host)['quantum']['undone'] >= 1
    without = shares([one])[one.uuid]
    print(f'it ran for {in_pool[one.uuid]:.2f} of the time that it wanted to '
          f'in its pool, and for {without:.2f} without')
    assert without > in_pool[one.uuid]


def test_the_pins_of_a_pool_stay_behind_in_a_migration(lab, kept, guest_of):
    cache = guest_of('cache', vcpus=2)
    wait_apart(cache, [guest_of('default', vcpus=2)])
    assert '<vcpupin' in cache.domain().XMLDesc()
    agents.store_profile(lab.slow, 0.5)
    try:
        cache.migrate(lab.slow)
        assert '<vcpupin' not in cache.domain(lab.slow).XMLDesc()
        for vcpu in range(2):
            assert os.sched_getaffinity(
                cache.thread(vcpu, lab.slow)) == lab.slow.pcpus
    finally:
        guests.destroy_all(lab.slow)


def test_servers_that_are_all_alike_are_never_pinned(kept, guest_of, client):
    guests_of_one_class = [guest_of('cache')]
    host = guests_of_one_class[0].host

    def placed():
        return client.get_host(host)['quantum']['servers_placed']
    before = placed()
    guests_of_one_class.append(guest_of('cache'))
    process.wait_until(
        lambda: all(slices_us(guest) == [CACHE_SLICE_US]
                    for guest in guests_of_one_class), LIMIT_S, 'slices')
    assert placed() == before
    for guest in guests_of_one_class:
        assert '<vcpupin' not in guest.domain().XMLDesc()


def test_a_server_that_somebody_pinned_is_left_alone(kept, guest_of, client):
    cache = guest_of('cache', vcpus=2)
    wait_apart(cache, [guest_of('default', vcpus=2)])
    mine = sorted(cache.host.pcpus)
    pinned = guests.Guest(cache.host, specs=guests.server(
        20, vqos_quantum_class='cache'), pinned_to=mine[0])
    process.wait_until(lambda: slices_us(pinned) == [CACHE_SLICE_US],
                       LIMIT_S, 'its slice, which does not depend on pins')
    assert affinity(pinned) == [{mine[0]}]

    def left_alone():
        report = client.get_server(cache.host, pinned)['quantum']
        return report and report['left_alone']
    # The agent knows of it a moment after the kernel does.
    assert 'pinned' in process.wait_until(left_alone, LIMIT_S, 'the reason')


def test_one_that_never_sleeps_does_not_go_first(wide, kept, guest_of, client,
                                                 request):
    """Its work is longer than any slice of class io suits."""
    agents.store_proof(wide, agents.SLICES_US)
    request.addfinalizer(lambda: agents.store_proof(wide))
    busy = guest_of('io')

    def awake_us():
        seen = client.get_server(wide, busy)
        vcpus = seen and seen['quantum'] and seen['quantum']['vcpus']
        return vcpus and vcpus['0'].get('awake_us')
    process.wait_until(awake_us, LIMIT_S, 'how long it works at a time')
    assert awake_us() > max(probe_result.LONG_WORKS_US)
    process.wait_until(
        lambda: slices_us(busy) == [sched_attr.slice_us(0)], LIMIT_S,
        "the kernel's own slice")
    quantum = client.get_server(wide, busy)['quantum']
    assert quantum['vcpus']['0']['kind'] == 'io'
    assert quantum['vcpus']['0']['slice_us'] is None
