# SPDX-License-Identifier: Apache-2.0
"""What a tenant can try to get more CPU than it pays for: against the agent.

The table of doc/source/admin/charging.rst has the figures. Each test states
what bounds a trick, or that nothing does.
"""

import dataclasses

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.billing import test_meter

UUID = fakes.UUID
# All of its 60 CU, and a third as much for I/O, in each second.
BUSY = {'vcpu_ns': 6 * 10**8, 'emulator_ns': 2 * 10**8}
NO_LIMIT = None
# Of each vCPU, as a part of a pCPU.
CAP = agent.RIGHT.quota_us / agent.RIGHT.period_us


class TestMigrations:
    """A limit ends for a migration, which a project's manager may begin."""

    @staticmethod
    def migrate(world, length_s):
        """Begin a migration that ends after a while, and fails.

        :returns: for how many seconds there was no limit
        """
        world.ask(lambda: world.loop.lift(UUID, 30.0))
        world.settle()
        world.host.refuse[UUID] = base.DomainBusy('it migrates')
        lifted_s = 0
        for _ in range(length_s):
            world.busy(1)
            lifted_s += world.domain().quota_us is NO_LIMIT
            assert all(limit.quota_us / limit.period_us <= CAP
                       for limit in world.limits())
        world.host.refuse.clear()
        world.busy(2)
        return lifted_s

    def test_aborted_ones_lift_it_four_times(self, world):
        world.run()
        world.host.written.clear()
        lifted_s = [self.migrate(world, 20) for _ in range(10)]
        assert lifted_s == [20] * 4 + [0] * 6
        # Each write fills the pool of the quota: half a period on average.
        assert len(world.host.written) <= 2 * 4 + 8

    def test_long_ones_lift_it_for_their_whole_length(self, world):
        """Nothing bounds that but Nova's time limit of migrations."""
        world.run()
        assert [self.migrate(world, 800) for _ in range(5)] == [800] * 5
        bill = world.report()['bill']
        assert bill['debt_cu_s'] > 0.95 * 300 * 60
        # It used 80 of 60 CU for 4000 seconds.
        assert bill['written_off_cu_s'] + bill['debt_cu_s'] == pytest.approx(
            20 * 4000, rel=0.05)


class TestSuspended:
    """A run's last interval is not billed, nor its first, once restored."""

    def test_what_a_cycle_leaves_unbilled(self, world):
        cycle_s, cycles = 10, 20
        world.run()
        for number in range(2, cycles + 2):
            world.use(cycle_s, **BUSY)
            world.host.stop()
            world.tick()
            world.boot(run_id=number)
            world.host.used[UUID] = test_meter.reading(
                world.now_s, run=str(number))
            for kind, detail in ((base.EventKind.STARTED, 'restored'),
                                 (base.EventKind.RESUMED, 'unpaused')):
                world.host.event(kind, detail=detail)
        world.tick(4)
        used_cu_s = cycles * cycle_s * 20
        unbilled_s = (used_cu_s - world.used_cu_s()) / 20 / cycles
        # Two intervals at most: here one of them begins in time.
        assert 2 <= unbilled_s <= 4


class TestPortsPluggedAnew:
    """See test_gaming: here by way of the events of libvirt."""

    DEVICES = {'tap0': test_meter.BRIDGE}

    def plug(self, world, count):
        """The port is there, and has received so many packets."""
        world.host.describe_as(UUID, interfaces=self.DEVICES)
        self.show(world, {'tap0': test_meter.packets(rx=count)})

    def unplug(self, world):
        world.host.describe_as(UUID, interfaces={})
        self.show(world, {})

    @staticmethod
    def show(world, interfaces):
        # libvirt reports a device that comes or goes at once.
        world.host.event(base.EventKind.CHANGED, detail='device net0')
        world.settle()
        world.host.used[UUID] = dataclasses.replace(
            world.host.used[UUID], interfaces=interfaces)
        world.use(2, vcpu_ns=10**8)

    def test_all_of_its_packets_are_billed(self, tmp_path, monkeypatch):
        world = billing.World(tmp_path)
        monkeypatch.setattr(world.loop._billing, '_costs',
                            lambda _profile: test_meter.COSTS)
        world.boot(dd_billing='account', interfaces=self.DEVICES)
        world.start()
        world.tick(4)
        for number in range(10):
            self.plug(world, 10**6 + number)
            self.unplug(world)
        # 3 us for a packet.
        assert world.used_cu_s('net_rx') == pytest.approx(10 * 300, abs=0.1)
