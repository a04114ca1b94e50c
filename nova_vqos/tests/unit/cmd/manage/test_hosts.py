# SPDX-License-Identifier: Apache-2.0
"""What operators are shown of a host."""

import pytest

from nova_vqos import primitives
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.manage import hosts
from nova_vqos.tests.fixtures import metrics


@pytest.mark.parametrize('room_cu, text', [(37.5, '37.50'), (None, '-')])
def test_the_room_for_bursts(room_cu, text):
    host = primitives.parse(host_report.Host, {
        'host': 'a', 'version': '1',
        **metrics.make_host(burst_room_cu=room_cu)})
    shown = dict(hosts.fields(host))['burst_room_cu']
    assert (shown.machine_readable(), str(shown).strip()) == (room_cu, text)
