# SPDX-License-Identifier: Apache-2.0
"""Limits end where no bill can be computed."""

import dataclasses

from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes


class TestNoBiller:
    """A limit that no later bill could end."""

    @staticmethod
    def limited(directory, **options):
        world = billing.World(directory, floor_share=0.1, **options)
        world.run()
        world.use(90, vcpu_ns=6 * 10**8, emulator_ns=5 * 10**8)
        assert world.limits() != {agent.RIGHT}
        return world

    def test_use_that_cannot_be_read(self, tmp_path, caplog):
        world = self.limited(tmp_path)
        reading = world.host.used.pop(fakes.UUID)
        limit = world.domain()
        world.tick(50)
        assert world.domain() == limit
        assert world.report()['problem'] == ''
        world.tick(900)
        assert world.domain() == billing.WHOLE
        assert world.limits() == {agent.RIGHT}
        report = world.report()
        assert 'could not be read' in report['problem']
        assert report['right'] is True
        assert report['tamperings'] == []
        alarm, = world.host_report()['alarms']
        assert '1 servers are not billed' in alarm
        assert caplog.text.count('could not be read for 60 s') == 1
        # What it owed is not forgiven.
        world.host.used[fakes.UUID] = dataclasses.replace(
            reading, read_at_s=world.now_s)
        world.busy(20)
        report = world.report()
        assert report['problem'] == ''
        assert report['bill']['debt_cu_s'] > 0
        assert world.domain() != billing.WHOLE
        assert world.host_report()['alarms'] == []

    def test_a_round_that_hangs(self, tmp_path):
        world = self.limited(tmp_path)
        world.loop._billing._job.busy = True
        world.tick(70)
        assert world.domain() == billing.WHOLE
        assert 'could not be read' in world.report()['problem']

    def test_a_connection_that_is_lost_is_no_server_that_is(self, tmp_path):
        world = self.limited(tmp_path)
        limit = world.domain()
        reading = world.host.used.pop(fakes.UUID)
        world.host.up = False
        world.tick(300)
        world.host.up = True
        world.tick(12)
        assert world.host_report()['connected'] is True
        assert world.domain() == limit
        world.host.used[fakes.UUID] = reading
        assert world.report()['problem'] == ''

    def test_a_write_that_fails_is_repeated_with_pauses(self, tmp_path):
        world = self.limited(tmp_path)
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        world.change(extra_specs={})
        world.tick(20)
        world.host.refuse.clear()
        world.tick(60)
        assert world.domain().quota_us is None

    def test_a_write_without_effect_is_no_endless_one(self, tmp_path):
        world = self.limited(tmp_path)
        world.host.deaf.add(fakes.UUID)
        world.host.written.clear()
        world.change(extra_specs={})
        world.tick(100)
        assert 1 <= len(world.host.written) <= 16
