# SPDX-License-Identifier: Apache-2.0
"""Guarantees in a cpuset partition: a newer kernel, emulated.

Partitions need cgroups of version 2, and the machine's own are left as they
are: a machine of its own is booted, and all is done there in one boot
(partition_guest); each test here looks at one part of what was seen.
"""

import pytest

from nova_vqos.tests.host import newer_machine

TIMEOUT_S = 420

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 60), pytest.mark.rotation]


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
    return newer_machine.observe(
        'nova_vqos.tests.host.partition_guest',
        tmp_path_factory.mktemp('machine'), timeout_s=TIMEOUT_S, pcpus=3,
        # By instructions QEMU 7.2 runs one pCPU after the other, and once left
        # one alone for 264 s while a thread of another one spun.
        options=())


def test_without_the_partition_nothing_is_guaranteed(seen):
    assert seen['none']['guarantee'] is None
    assert any('nova-vqos-partition.service' in alarm
               for alarm in seen['none']['alarms'])


def test_the_partition_is_made_once(seen):
    made, again = seen['made'], seen['again']
    assert (made['status'], again['status']) == (0, 0)
    assert (made['made_now'], again['made_now']) == (True, False)
    assert made['pcpus'] == '1-2'
    # The kernel keeps some per cent for all other threads.
    assert 1.7 < made['total_pcpus'] < 2
    assert made['reserved_pcpus'] == 0
    assert again['total_pcpus'] == pytest.approx(made['total_pcpus'],
                                                 abs=0.01)
    assert seen['groups'] == []


def test_all_others_keep_the_pcpus_outside(seen):
    assert seen['others_pcpus'] == [0]


def test_a_server_is_guaranteed_its_speed_in_it(seen):
    assert seen['server']['guarantee']['problem'] == ''
    assert seen['reserved'] == [[15_000, 50_000]] * 2
    # By weights alone it would be a hundredth.
    assert 0.2 < seen['share'] < 0.31


def test_the_agent_knows_what_can_be_reserved(seen):
    host, total = seen['host'], seen['made']['total_pcpus']
    # 3 % are not sold.
    assert host['total_pcpus'] == pytest.approx(total * 0.97, abs=0.01)
    assert host['reserved_pcpus'] == pytest.approx(
        seen['server']['guarantee']['reserved_pcpus'], abs=0.001)


def test_what_is_reserved_is_part_of_the_measurement(seen):
    found = seen['beside']
    # On a busy machine I/O is given some of the vCPUs' time, three quarters of
    # which they keep, and of QEMU's threads for it there may be one alone.
    most = seen['host']['reserved_pcpus'] + 0.001
    assert 0.75 * 2 * 0.3 < found['reserved_pcpus'] < most
    assert found['total_pcpus'] == pytest.approx(
        seen['made']['total_pcpus'], abs=0.01)


def test_it_is_repaired(seen):
    assert 'member' in seen['problem']
    assert seen['repaired']['made_now']
    assert seen['repaired']['total_pcpus'] == pytest.approx(
        seen['made']['total_pcpus'], abs=0.01)


def test_a_pin_is_refused_by_the_kernel(seen):
    assert isinstance(seen['pin'], str)
    assert seen['kept'] == [[15_000, 50_000]] * 2


def test_all_comes_back_when_the_server_ends(seen):
    assert seen['after']['reserved_pcpus'] == 0
    assert seen['after']['total_pcpus'] == pytest.approx(
        seen['made']['total_pcpus'], abs=0.01)


def test_what_the_kernel_lost_is_found_again(seen):
    lost, rebuilt = seen['lost'], seen['rebuilt']
    assert not lost['made_now']
    assert lost['total_pcpus'] == pytest.approx(
        seen['made']['total_pcpus'] - 0.2, abs=0.01)
    assert rebuilt['made_now']
    assert rebuilt['total_pcpus'] == pytest.approx(
        seen['made']['total_pcpus'], abs=0.01)


def test_it_is_released(seen):
    assert seen['release']['status'] == 0
    assert (seen['state'], seen['record']) == ('member', False)
    assert seen['pcpus_after'] == [0, 1, 2]
