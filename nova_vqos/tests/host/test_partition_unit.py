# SPDX-License-Identifier: Apache-2.0
"""The units of the partition, by a systemd that is PID 1.

On a newer kernel, emulated, for cgroups of version 2: all is done there in one
boot (partition_unit_guest); each test here looks at one part of what was seen.
"""

import pytest

from nova_vqos.tests.host import newer_machine
from nova_vqos.tests.host import partition_unit_guest
from nova_vqos.tests.host import systemd

TIMEOUT_S = 300

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 60), pytest.mark.rotation]


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
    systemd.need()
    return newer_machine.observe(
        'nova_vqos.tests.host.partition_unit_guest',
        tmp_path_factory.mktemp('machine'), timeout_s=TIMEOUT_S, pcpus=3,
        by_systemd=True, options=())


def test_the_service_makes_it_within_the_limits_of_its_unit(seen):
    assert seen['made'] == {'problem': '', 'result': 'success', 'runs': 1}
    assert 1.7 < seen['record'] < 2


@pytest.mark.parametrize('work', [
    'reload', 'reexec', 'weight', 'pcpus again', 'another scope'])
def test_systemd_keeps_it(seen, work):
    found = seen['kept'][work]
    assert found['problem'] == ''
    assert found['refused'] == ''
    assert found['reserved']


@pytest.mark.parametrize('work', partition_unit_guest.TAKES_AWAY)
def test_without_allowed_pcpus_systemd_takes_it_away(seen, work):
    found = seen['kept'][work]
    # Systemd 252 does at a reload; 257 does not.
    if work != 'reload without' or found['problem']:
        assert 'is no cpuset partition' in found['problem']
    # Those who have a reservation keep it.
    assert found['reserved']


def test_the_timer_repairs_it(seen):
    assert len(seen['taken']) == 2
    assert all("'member'" in problem for problem in seen['taken'])
    assert seen['repaired'] == ''
