# SPDX-License-Identifier: Apache-2.0
"""Servers whose units the agents correct by what they count of them.

Two hosts of their own, whose QEMUs count instructions. The slow one works at
half the speed for any work; its profiles say otherwise.
"""

import os
import threading
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
# The machine's own speed may differ by half from one minute to the next. So
# what the agent says of a server is compared with what was counted of it from
# when the agent began, and its CPU time with its cap.
PACE = 0.05
# The agent's windows.
_WINDOW_S = 5
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


class Reading(ty.NamedTuple):
    """What the only guest of a host did until now."""

    at_ns: int
    instructions: int
    cpu_ns: int


class Watch(threading.Thread):
    """Reads the only guest of a host each second, until it is stopped."""

    def __init__(self, guest, host):
        super().__init__(daemon=True)
        self._guest, self._host = guest, host
        self._stopped = threading.Event()
        self.readings = []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_error):
        self._stopped.set()
        self.join()

    def run(self):
        while not self._stopped.is_set():
            self.readings.append(Reading(
                time.monotonic_ns(), counted(self._host),
                self._guest.cpu_time_ns(self._host)))
            self._stopped.wait(1)

    def paces(self):
        """:returns: instructions in a CPU second, the least and the most"""
        found = [(last.instructions - first.instructions)
                 / (last.cpu_ns - first.cpu_ns) * 1e9
                 for first, last in zip(self.readings,
                                        self.readings[_WINDOW_S:],
                                        strict=False)]
        return min(found), max(found)

    def assert_saw(self, per_cpu_s):
        least, most = self.paces()
        assert least * (1 - PACE) < per_cpu_s < most * (1 + PACE)


def correction(cloud, guest, host):
    """:returns: None: the agent has only just seen the server"""
    return cloud.client.get_server(host, guest)['correction']


def wait_measured(cloud, guest, host):
    def measured():
        found = correction(cloud, guest, host)
        return found if found and found['windows'] >= _WINDOWS else None
    return process.wait_until(
        measured, LEARN_LIMIT_S, f'{guest.name} to be measured on {host.name}')


def wait_corrected(cloud, guest, host, limit_s=LEARN_LIMIT_S, wanted=None):
    def corrected():
        found = correction(cloud, guest, host)
        return found if found and found['since'] and wanted in (
            None, found['factor']) else None
    return process.wait_until(
        corrected, limit_s, f'{guest.name} to be corrected on {host.name}')


def share_of(cap):
    quota_us, period_us = cap
    return quota_us / period_us


def factor(on_fast, on_slow):
    """:returns: what follows from what was counted on both hosts"""
    return (on_fast['instructions_per_cpu_s']
            / on_slow['instructions_per_cpu_s'] / 1.5)


@pytest.mark.measured
def test_after_a_move_it_does_what_it_did_before(cloud):
    guest = guests.Guest(cloud.slow, specs=guests.server(40, vqos_work='auto'),
                         cap=guests.CAP, shares=guests.SHARES, rom=_ROM,
                         kind='qemu')
    with Watch(guest, cloud.slow) as watch:
        wait_measured(cloud, guest, cloud.slow)
        assert guest.cap() == guests.CAP
        share = guest.delivered_share(MEASURED_S)
        before = correction(cloud, guest, cloud.slow)
    assert (before['factor'], before['hosts']) == (1.0, 1)
    assert share == pytest.approx(0.4, rel=SHARE)
    watch.assert_saw(before['instructions_per_cpu_s'])

    guest.migrate(cloud.fast)
    guest.host = cloud.fast
    # libvirt's hook knows the mean alone.
    guest.wait_cap(CAP_BY_MEAN)
    with Watch(guest, cloud.fast) as watch:
        found = wait_corrected(cloud, guest, cloud.fast)
    watch.assert_saw(found['instructions_per_cpu_s'])
    # The clock of slow is halved: about 2 / 1.5.
    assert found['factor'] == pytest.approx(factor(found, before), rel=PACE)
    assert found['low'] < found['factor'] < found['high']
    assert found['hosts'] == 2
    cap_share = share_of(guest.cap())
    assert cap_share == pytest.approx(0.4 / 1.5 / found['factor'], rel=0.01)
    assert guest.delivered_share(MEASURED_S) == pytest.approx(cap_share,
                                                              rel=SHARE)

    # Back at once, by what slow and fast know of each other.
    guest.migrate(cloud.slow)
    guest.host = cloud.slow
    guest.wait_cap(guests.CAP)
    before = wait_measured(cloud, guest, cloud.slow)
    # One: the machine's own speed has changed, so that what is known of fast
    # was dropped.
    assert before['hosts'] == 2
    guest.migrate(cloud.fast)
    guest.host = cloud.fast
    again = wait_corrected(
        cloud, guest, cloud.fast, 20,
        # Slow may have measured another speed this time: that comes next.
        pytest.approx(factor(found, before), rel=PACE))
    assert again['windows'] < _WINDOWS
    assert share_of(guest.cap()) == pytest.approx(
        0.4 / 1.5 / again['factor'], rel=0.01)
