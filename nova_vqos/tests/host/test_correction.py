# SPDX-License-Identifier: Apache-2.0
"""Servers whose units the agents correct by what they count of them.

Two hosts of their own, whose QEMUs count instructions. The slow one works at
half the speed for any work; its profiles say otherwise.
"""

import os
import time
import typing as ty

import pytest

from nova_vqos.hypervisor.linux import instructions
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import conftest
from nova_vqos.tests.host import guests
from nova_vqos_lab import counting
from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns
from nova_vqos_lab import process
from nova_vqos_lab import rom
from nova_vqos_lab import slowcpu

# The mean of fast is 1.5: to that any server is right whose work is that.
FAST = {'integer': 1.0, 'hash': 2.25}
SLOW = dict.fromkeys(FAST, 1.0)
CAP_BY_MEAN = (13_333, 50_000)
# It settles for ten seconds, three windows of five are measured, and a cap
# is written; more on a machine that does much else.
LEARN_LIMIT_S = 150
# In a row that have to be of the same work.
_WINDOWS = 3
MEASURED_S = 10
# Firmware that spins: the same work from its first instruction on.
_ROM = '/var/lib/libvirt/spin.rom'
# How much the machine's own speed may differ from one minute to the next: 21 %
# were seen. So what a server did is compared with what the agent counted of it
# at about that time, and its CPU time with its cap.
PACE = 0.3
# How exactly a cap is kept.
SHARE = 0.03


class _Hosts(conftest.Lab):
    """They count, and are in a network of their own."""

    def __init__(self, pcpus):
        number = 4
        prefix = f'{conftest.PREFIX}{number}'
        root = f'{conftest.ROOT}/correction'
        self.network = netns.Network(prefix)
        self.fast = hosts.Host('fast', pcpus[0], counts=True, root=root,
                               prefix=prefix)
        self.slow = hosts.Host('slow', pcpus[1], slow=True, counts=True,
                               root=root, prefix=prefix)

    def remove(self):
        for host in self.hosts:
            host.remove()
        self.network.remove()


@pytest.fixture(scope='module')
def cloud(lab):
    before = os.environ.get(slowcpu.VARIABLE)
    os.environ[slowcpu.VARIABLE] = slowcpu.CLOCK
    made = _Hosts((lab.fast.pcpus, lab.slow.pcpus))
    try:
        made.remove()
        made.start()
        for host, kinds in (made.fast, FAST), (made.slow, SLOW):
            agents.install_hook(host)
            with open(host.path(_ROM.lstrip('/')), 'wb') as file:
                file.write(rom.first(rom.SPIN))
            document.store(make_profiles.make_profile(
                host.name, make_profiles.make_class(host.pcpus, kinds),
                fingerprint=fingerprint.of_host(), measured_in='guest',
                reference=make_profiles.make_kinds(kinds)[1]),
                agents.profile_path(host))
        bus = agents.start_bus(made.fast)
        with agents.Client(bus, made.network.controller) as made.client:
            running = [agents.Agent(host, bus) for host in made.hosts]
            try:
                for agent in running:
                    agent.wait_ready()
                    made.client.wait_reachable(agent.host)
                yield made
            finally:
                for agent in running:
                    agent.stop()
                    agent.print_log()
    finally:
        made.remove()
        if before is None:
            del os.environ[slowcpu.VARIABLE]
        else:
            os.environ[slowcpu.VARIABLE] = before


def counted(host):
    """:returns: the instructions of the only guest of a host"""
    directory = host.path(counting.DIRECTORY.lstrip('/'))
    (name,) = os.listdir(directory)
    with open(os.path.join(directory, name), 'rb') as file:
        file.seek(instructions.HEADER.size)
        return sum(count for (count,) in instructions.VCPU.iter_unpack(
            file.read()))


class Work(ty.NamedTuple):
    """What the only guest of a host did for a while.

    :ivar share: CPU time, in pCPUs
    :ivar per_cpu_s: instructions in a second of that
    """

    share: float
    per_cpu_s: float


def measure(guest, host):
    began_ns = time.monotonic_ns()
    before, cpu_before_ns = counted(host), guest.cpu_time_ns(host)
    # Not a wait for anything: the length of the measurement.
    time.sleep(MEASURED_S)
    cpu_ns = guest.cpu_time_ns(host) - cpu_before_ns
    return Work(cpu_ns / (time.monotonic_ns() - began_ns),
                (counted(host) - before) / cpu_ns * 1e9)


def correction(cloud, guest, host):
    """:returns: None: the agent has only just seen the server"""
    return cloud.client.get_server(host, guest)['correction']


def wait_measured(cloud, guest, host):
    def measured():
        found = correction(cloud, guest, host)
        return found if found and found['windows'] >= _WINDOWS else None
    return process.wait_until(
        measured, LEARN_LIMIT_S, f'{guest.name} to be measured on {host.name}')


def wait_corrected(cloud, guest, host, limit_s=LEARN_LIMIT_S):
    def corrected():
        found = correction(cloud, guest, host)
        return found if found and found['since'] else None
    return process.wait_until(
        corrected, limit_s, f'{guest.name} to be corrected on {host.name}')


def share_of(cap):
    quota_us, period_us = cap
    return quota_us / period_us


def factor(on_fast, on_slow):
    """:returns: what follows from what was counted on both hosts"""
    return (on_fast['instructions_per_cpu_s']
            / on_slow['instructions_per_cpu_s'] / 1.5)


@pytest.mark.quiet
def test_after_a_move_it_does_what_it_did_before(cloud):
    guest = guests.Guest(cloud.slow, specs=guests.server(40, vqos_work='auto'),
                         cap=guests.CAP, shares=guests.SHARES, rom=_ROM,
                         kind='qemu')
    wait_measured(cloud, guest, cloud.slow)
    assert guest.cap() == guests.CAP
    did = measure(guest, cloud.slow)
    before = correction(cloud, guest, cloud.slow)
    assert (before['factor'], before['hosts']) == (1.0, 1)
    assert did.share == pytest.approx(0.4, rel=SHARE)
    assert before['instructions_per_cpu_s'] == pytest.approx(
        did.per_cpu_s, rel=PACE)

    guest.migrate(cloud.fast)
    # libvirt's hook knows the mean alone.
    guest.wait_cap(CAP_BY_MEAN, cloud.fast)
    wait_corrected(cloud, guest, cloud.fast)
    does = measure(guest, cloud.fast)
    found = correction(cloud, guest, cloud.fast)
    assert found['instructions_per_cpu_s'] == pytest.approx(
        does.per_cpu_s, rel=PACE)
    # The clock of slow is halved: about 2 / 1.5.
    assert found['factor'] == pytest.approx(factor(found, before),
                                            rel=PACE / 2)
    assert found['low'] < found['factor'] < found['high']
    assert found['hosts'] == 2
    cap_share = share_of(guest.cap(cloud.fast))
    assert cap_share == pytest.approx(0.4 / 1.5 / found['factor'], rel=0.01)
    assert does.share == pytest.approx(cap_share, rel=SHARE)

    # Back at once, by what slow and fast know of each other.
    guest.host = cloud.fast
    guest.migrate(cloud.slow)
    guest.wait_cap(guests.CAP, cloud.slow)
    before = wait_measured(cloud, guest, cloud.slow)
    guest.host = cloud.slow
    guest.migrate(cloud.fast)
    again = wait_corrected(cloud, guest, cloud.fast, 10)
    assert again['windows'] < _WINDOWS
    assert again['factor'] == pytest.approx(factor(found, before),
                                            rel=PACE / 2)
    assert share_of(guest.cap(cloud.fast)) == pytest.approx(
        0.4 / 1.5 / again['factor'], rel=0.01)
