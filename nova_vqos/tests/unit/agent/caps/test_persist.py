# SPDX-License-Identifier: Apache-2.0
"""What a server starts with the next time is what it has now."""

import pytest

from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes

KIND = base.EventKind
RIGHT = (fakes.UUID, units.CpuCap(15_000, 50_000), 614)


def run_right(world, **options):
    world.run(quota_us=15_000, period_us=50_000, shares=614, **options)


def test_one_that_is_found_or_came_in(world):
    run_right(world)
    world.tick(50)
    # Once, and nothing was written to what runs.
    assert world.host.persisted == [RIGHT]
    assert world.host.written == []


def test_after_its_cap_was_corrected(world):
    world.run()
    assert world.host.written
    world.tick()
    assert world.host.persisted == [RIGHT]


def test_after_a_calibration(world):
    run_right(world)
    world.tick()
    document.store(fakes.make_profile(0.8), str(world.profile_path))
    world.tick(3)
    assert world.host.persisted == [
        RIGHT, (fakes.UUID, units.CpuCap(18_750, 50_000), 614)]


def test_a_floor(world):
    world.run(specs=fakes.make_specs(cap='floor'), shares=614)
    world.tick()
    assert world.host.persisted == [(fakes.UUID, None, 614)]


@pytest.mark.parametrize('version', [1, 2])
def test_one_that_pays_for_its_io_starts_with_all_its_units(tmp_path,
                                                            version):
    # No agent may be there to end a limit.
    world = billing.World(tmp_path, hypervisor=fakes.FakeHypervisor(version))
    world.run()
    world.busy(60)
    assert world.domain().quota_us < 29_000
    ((_uuid, cap, _shares),) = world.host.persisted
    assert cap == RIGHT[1]


def test_another_run_of_it(world):
    run_right(world)
    world.tick()
    world.host.boot(specs=fakes.make_specs(), quota_us=15_000,
                    period_us=50_000, shares=614, run_id=2)
    world.tick(2)
    assert world.host.persisted == [RIGHT] * 2


def test_another_definition(world):
    run_right(world)
    world.tick()
    world.host.event(KIND.CHANGED, detail=base.DEFINED)
    world.tick(2)
    assert world.host.persisted == [RIGHT] * 2


def test_one_that_arrives_has_no_definition_yet(world):
    run_right(world, incoming=True)
    world.tick(5)
    assert world.host.persisted == []
    world.host.describe_as(incoming=False)
    world.host.event(KIND.RESUMED, detail='migrated', at_s=world.now_s)
    world.tick(2)
    assert world.host.persisted == [RIGHT]


@pytest.mark.parametrize('specs', [None, {}, fakes.make_specs('300')])
def test_what_is_not_ours_or_cannot_be_given_is_left_alone(world, specs):
    world.run(specs=specs, quota_us=7000)
    world.tick(3)
    assert world.host.persisted == []


class TestTrouble:
    @pytest.mark.parametrize('error, logged', [
        (base.HypervisorError('refused'), 1), (ValueError('unexpected'), 1),
        (base.DomainBusy('it migrates'), 0)])
    def test_it_is_tried_again_with_pauses(self, world, caplog, error,
                                           logged):
        attempts_s = []

        class Refusing(fakes.FakeHypervisor):
            def persist(self, uuid, cap, shares):
                attempts_s.append(world.now_s)
                raise error
        world.host.__class__ = Refusing
        run_right(world)
        world.tick(70)
        gaps_s = [after - before for before, after in zip(
            attempts_s, attempts_s[1:], strict=False)]
        assert gaps_s == [1, 2, 4, 8, 16, 32]
        # Its cap is right all the same, and no trouble of this one.
        assert world.reported('right', 'problem') == (True, '')
        assert len([record for record in caplog.records
                    if record.levelname == 'WARNING']) == logged
        world.host.__class__ = fakes.FakeHypervisor
        world.tick(60)
        assert world.host.persisted == [RIGHT]

    def test_its_cap_is_restored_meanwhile(self, world):
        world.host.refuse_persisting[fakes.UUID] = base.HypervisorError('no')
        run_right(world)
        world.tick(10)
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.limits() == {base.Limit(15_000, 50_000)}

    def test_a_connection_that_is_lost(self, world):
        world.host.refuse_persisting[fakes.UUID] = base.Unavailable('down')
        run_right(world)
        world.tick()
        world.host.refuse_persisting.clear()
        world.tick(5)
        assert world.host.persisted == [RIGHT]
