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

"""The agent and the caps of real guests on one host."""

import signal

from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos_lab import process

# 40 CU on a pCPU of 100 CU.
CAP = (20_000, 50_000)
SHARES = 410
LIMIT_S = guests.LIMIT_S


def test_a_guest_starts_with_the_cap_in_its_xml(lab, guest_on):
    guest = guest_on(lab.fast, specs=guests.server(40), cap=CAP,
                     shares=SHARES)
    assert guest.cap() == CAP
    assert guest.libvirt_cap() == CAP
    assert guest.shares() == SHARES


def test_the_agent_corrects_a_guest_that_starts_without(lab, guest_on,
                                                        agent_of, client):
    agent_of(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40))
    guest.wait_cap(CAP)
    process.wait_until(lambda: guest.shares() == SHARES, LIMIT_S, 'shares')
    assert guest.libvirt_cap() == CAP
    report = client.get_server(lab.fast, guest)
    assert report['right_at_first_sight'] is False
    assert report['wrong_ms'] > 0


def test_the_agent_corrects_guests_that_were_there_before(lab, guest_on,
                                                          agent_of):
    capped = guest_on(lab.fast, specs=guests.server(40), cap=(5_000, 10_000))
    several = guest_on(lab.fast, specs=guests.server(40), vcpus=2)
    foreign = guest_on(lab.fast, cap=(5_000, 10_000))
    agent_of(lab.fast)
    capped.wait_cap(CAP)
    several.wait_cap((10_000, 50_000))
    assert several.cap(vcpu=1) == (10_000, 50_000)
    assert foreign.cap() == (5_000, 10_000)


def test_a_floor_is_a_weight_without_a_cap(lab, guest_on, agent_of):
    guest = guest_on(lab.fast, specs=guests.server(40, vqos_cap='floor'),
                     cap=CAP)
    agent_of(lab.fast)
    process.wait_until(lambda: guest.cap()[0] == -1, LIMIT_S, 'no quota')
    process.wait_until(lambda: guest.shares() == SHARES, LIMIT_S, 'shares')


def test_a_cap_that_was_tampered_with_is_restored(lab, guest_on, agent_of,
                                                  client):
    agent = agent_of(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40), cap=CAP,
                     shares=SHARES)
    wait_right(client, lab.fast, guest)

    lab.fast.run(['virsh', 'schedinfo', guest.name, '--live',
                  'vcpu_quota=10000'])
    guest.wait_cap(CAP)
    tampering = wait_tampering(client, guest, '10000')
    assert 'libvirt' in tampering['channel'], tampering

    guest.meddle(45_000)
    tampering = wait_tampering(client, guest, '45000')
    assert 'cgroup' in tampering['channel'], tampering
    guest.wait_cap(CAP)

    report = client.get_host(lab.fast)
    assert report['restored'] >= 2, report
    assert report['wrong'] == []
    assert f'Somebody else changed the cap of server {guest.uuid}' in \
        agent.log()


def wait_right(client, host, guest):
    process.wait_until(
        lambda: guest.uuid in client.get_host(host)['servers']
        and client.get_server(host, guest)['right'], LIMIT_S,
        f'the agent to find {guest.name} right')


def wait_tampering(client, guest, found):
    """Wait until one was seen and mended.

    :param found: part of what it left in the cgroup
    """
    def seen():
        return next((one for one in client.get_server(
            guest.host, guest)['tamperings'] if found in one['found']
            and one['restored_at'] is not None), None)
    return process.wait_until(seen, LIMIT_S, f'a tampering of {found}')


def test_nothing_is_written_without_a_change(lab, guest_on, agent_of,
                                             client):
    agent_of(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40))
    guest.wait_cap(CAP)
    wait_right(client, lab.fast, guest)
    with guests.Writes(guest) as writes:
        ticks = client.get_host(lab.fast)['ticks']
        process.wait_until(
            lambda: client.get_host(lab.fast)['ticks'] >= ticks + 20,
            LIMIT_S, '20 ticks')
        assert writes.take() == 0
        # Were a write not seen, the line above would say nothing. This one
        # changes nothing, so that the agent must leave it at that.
        with open(quota_file(guest), 'w', encoding='ascii') as file:
            file.write(str(CAP[0]))
        assert writes.take() == 1
        ticks = client.get_host(lab.fast)['ticks']
        process.wait_until(
            lambda: client.get_host(lab.fast)['ticks'] >= ticks + 4,
            LIMIT_S, '4 ticks')
        assert writes.take() == 0


def quota_file(guest):
    hierarchy = guest.host.hierarchy
    name = 'cpu.cfs_quota_us' if hierarchy.version == 1 else 'cpu.max'
    return hierarchy.directory('cpu', f'{guest.group()}/{name}')


def test_caps_outlive_an_agent_that_is_killed(lab, guest_on, agent_of):
    agent = agent_of(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40))
    guest.wait_cap(CAP)
    agent.process.signal(signal.SIGKILL)
    assert agent.process.wait(10)
    assert guest.cap() == CAP
    guest.meddle(45_000)
    late = guest_on(lab.fast, specs=guests.server(80))

    # Its lock went with it.
    agent_of(lab.fast)
    guest.wait_cap(CAP)
    late.wait_cap((40_000, 50_000))


def test_an_agent_that_is_stopped_leaves_the_caps(lab, guest_on, agent_of):
    agent = agent_of(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40))
    guest.wait_cap(CAP)
    agent.process.signal(signal.SIGTERM)
    assert agent.process.wait(20)
    assert guest.cap() == CAP


def test_a_libvirtd_that_is_restarted_is_found_again(lab, guest_on,
                                                     agent_of):
    agent = agent_of(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40))
    guest.wait_cap(CAP)
    lab.fast.stop_libvirtd()
    try:
        agent.wait_connected(False)
        # Nothing is written from memory: nobody can tell what libvirt knows.
        guest.meddle(45_000)
    finally:
        lab.fast.start_libvirtd()
    agent.wait_connected(True)
    guest.wait_cap(CAP)
    assert guest.libvirt_cap() == CAP


def test_a_second_agent_refuses_to_start(lab, guest_on, agent_of):
    agent = agent_of(lab.fast)
    second = lab.fast.run(agent.argv, check=False)
    assert second.returncode == 1
    assert 'another nova-vqos-agent runs on this host' in second.stderr
    assert agent.process.alive()
    guest = guest_on(lab.fast, specs=guests.server(40))
    guest.wait_cap(CAP)


def test_caps_follow_a_new_profile(lab, guest_on, agent_of):
    agent_of(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40))
    guest.wait_cap(CAP)
    agents.store_profile(lab.fast, 0.8)
    guest.wait_cap((25_000, 50_000))


def test_what_is_delivered_is_the_cap(lab, guest_on):
    guest = guest_on(lab.fast, specs=guests.server(40), cap=CAP)
    # Where neighbours want the CPU too, it may get less: any window that
    # they leave alone will do. More it may never get.
    shares = []
    while len(shares) < 4 and (not shares or shares[-1] < 0.392):
        shares.append(guest.delivered_share(5))
    assert shares[-1] >= 0.392, shares
    assert max(shares) <= 0.408, shares
