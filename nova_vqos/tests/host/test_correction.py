# SPDX-License-Identifier: Apache-2.0
"""Servers whose units the agents correct by what they count of them.

Two hosts of their own, whose QEMUs count instructions. The slow one works at
half the speed for any work; its profiles say otherwise.
"""

import os
import time

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
from nova_vqos_lab import slowcpu

# The mean of fast is 1.5: to that any server is right whose work is that.
FAST = {'integer': 1.0, 'hash': 2.25}
SLOW = dict.fromkeys(FAST, 1.0)
CAP_BY_MEAN = (13_333, 50_000)
# It settles for ten seconds, three windows of five are measured, and a cap
# is written; more on a machine that does much else.
LEARN_LIMIT_S = 150
MEASURED_S = 10
# With less it would be reset again and again, which is no steady work.
_MEMORY_MIB = 96
# How much the machine's own speed differs within a minute.
PACE = 0.15


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


def work_per_s(host):
    """:returns: instructions of the only guest, for each second of time"""
    began_s, before = time.monotonic(), counted(host)
    # Not a wait for anything: the length of the measurement.
    time.sleep(MEASURED_S)
    return (counted(host) - before) / (time.monotonic() - began_s)


def correction(cloud, guest, host):
    return cloud.client.get_server(host, guest)['correction']


def wait_measured(cloud, guest, host, windows=3):
    """:param windows: in a row that have to be of the same work"""
    return process.wait_until(
        lambda: found if (found := correction(cloud, guest, host))[
            'windows'] >= windows else None,
        LEARN_LIMIT_S, f'{guest.name} to be measured on {host.name}')


def wait_corrected(cloud, guest, host, limit_s=LEARN_LIMIT_S):
    return process.wait_until(
        lambda: found if (found := correction(cloud, guest, host))[
            'since'] else None,
        limit_s, f'{guest.name} to be corrected on {host.name}')


@pytest.mark.quiet
def test_after_a_move_it_does_what_it_did_before(cloud):
    guest = guests.Guest(cloud.slow, specs=guests.server(40, vqos_work='auto'),
                         cap=guests.CAP, shares=guests.SHARES,
                         memory_mib=_MEMORY_MIB)
    # It boots first, which is other work.
    before = wait_measured(cloud, guest, cloud.slow, windows=8)
    assert (before['factor'], before['hosts']) == (1.0, 1)
    assert guest.cap() == guests.CAP
    work_before = work_per_s(cloud.slow)

    guest.migrate(cloud.fast)
    # libvirt's hook knows the mean alone.
    guest.wait_cap(CAP_BY_MEAN, cloud.fast)
    found = wait_corrected(cloud, guest, cloud.fast)
    ratio = (correction(cloud, guest, cloud.fast)['instructions_per_cpu_s']
             / before['instructions_per_cpu_s'])
    # The clock of slow is halved.
    assert ratio == pytest.approx(2.0, rel=PACE)
    assert found['factor'] == pytest.approx(ratio / 1.5, rel=PACE / 2)
    assert found['low'] < found['factor'] < found['high']
    assert found['hosts'] == 2
    quota_us, period_us = guest.cap(cloud.fast)
    assert quota_us / period_us == pytest.approx(
        0.4 / 1.5 / found['factor'], rel=0.01)
    assert work_per_s(cloud.fast) == pytest.approx(work_before, rel=PACE)

    # Back at once, by what slow and fast know of each other.
    guest.host = cloud.fast
    guest.migrate(cloud.slow)
    guest.wait_cap(guests.CAP, cloud.slow)
    wait_measured(cloud, guest, cloud.slow)
    guest.host = cloud.slow
    corrected = (quota_us, period_us)
    guest.migrate(cloud.fast)
    again = wait_corrected(cloud, guest, cloud.fast, 10)
    assert again['windows'] < 3
    quota_us, period_us = guest.cap(cloud.fast)
    assert quota_us / period_us == pytest.approx(
        corrected[0] / corrected[1], rel=PACE / 2)
