# SPDX-License-Identifier: Apache-2.0
"""The agent on a host of unlike pCPUs: each server in one class of them."""

import pytest

from nova_vqos import compute_state
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.functional import host_files

KIND = base.EventKind
FAST = frozenset({0, 1})
SLOW = frozenset({2, 3, 4, 5})
# What 60 CU on one vCPU are on pCPUs of 200 and of 80 CU.
ON_FAST = {base.Limit(15_000, 50_000)}
ON_SLOW = {base.Limit(37_500, 50_000)}


def calibrate(world, coefficients):
    document.store(host_files.make_profile('host', coefficients, fingerprint={
        'tick_us': '4000'}), str(world.profile_path))


@pytest.fixture
def world(tmp_path):
    made = agent.World(tmp_path)
    calibrate(made, {'0-1': 2.0, '2-5': 0.8})
    return made


def boot(world, units='60', uuid=fakes.UUID, run_id=1, **kwargs):
    world.host.boot(uuid, specs=fakes.make_specs(units), run_id=run_id,
                    **{'vcpus': 1, **kwargs})


def run(world, *arguments, **options):
    boot(world, *arguments, **options)
    world.start()


class TestOneThatFloats:
    @pytest.mark.parametrize('pcpus', [None, FAST | SLOW,
                                       FAST | SLOW | {64}])
    def test_it_is_pinned_once_and_capped_by_its_class(self, world, pcpus):
        run(world, pcpus=pcpus)
        world.tick(20)
        assert world.host.pinned == [(fakes.UUID, SLOW)]
        assert world.limits() == ON_SLOW
        assert len(world.host.written) == 1
        assert world.host_report()['pins'] == 1

    def test_one_that_is_too_fast_for_the_slow_class(self, world):
        run(world, '120')
        assert world.host.pinned == [(fakes.UUID, FAST)]
        assert world.limits() == {base.Limit(30_000, 50_000)}

    def test_hotplugged_vcpus_share_the_units(self, world):
        # 100 CU on one vCPU are too fast for the slow class, on two not.
        run(world, '100', online=2)
        assert world.host.pinned == [(fakes.UUID, SLOW)]

    def test_a_full_core_type_is_not_chosen(self, world):
        boot(world, '261', fakes.OTHER_UUID, run_id=2, pcpus=SLOW, vcpus=4)
        run(world)
        world.tick(3)
        assert world.host.pinned == [(fakes.UUID, FAST)]
        assert world.limits() == ON_FAST

    def test_many_at_once_do_not_get_the_same_room(self, world):
        """Those that are being pinned have their room already.

        All that is sold, as it was before there were classes.
        """
        uuids = [f'{number}1111111-2222-4333-8444-555555555555'
                 for number in range(9)]
        for number, uuid in enumerate(uuids):
            boot(world, '80', uuid, run_id=number + 1)
        world.start()
        assert [pcpus for _uuid, pcpus in world.host.pinned] == (
            [SLOW] * 4 + [FAST] * 5)

    def test_reserved_and_oversold_units(self, tmp_path):
        path = str(tmp_path / 'vqos.json')
        for reserved_cu, stock_cu, ratio, pinned in (
                (720, 0, 1.0, []), (720, 0, 16.0, []), (0, 0, 0.1, []),
                (0, 720, 1.0, []), (360, 360, 1.0, []),
                (360, 120, 1.0, [(fakes.UUID, SLOW)]),
                (0, 0, 0.2, [(fakes.UUID, SLOW)])):
            compute_state.Writer(path).write({}, {}, (1, stock_cu))
            made = agent.World(tmp_path,
                               reserved_cu=lambda _cu, at=reserved_cu: at,
                               allocation_ratio=ratio,
                               compute_state_path=path)
            calibrate(made, {'0-1': 2.0, '2-5': 0.8})
            run(made)
            assert made.host.pinned == pinned

    def test_only_what_it_may_use_already(self, world):
        """What of a class is not shared, the profile does not say."""
        run(world, '120', pcpus=frozenset({1, 2, 3}))
        assert world.host.pinned == [(fakes.UUID, frozenset({1}))]

    def test_part_of_a_class_has_no_more_than_its_own_room(self, world):
        run(world, '100', pcpus=frozenset({1, 2}), vcpus=2)
        # 50 CU for each vCPU, and 80 CU on the slow pCPU.
        assert world.host.pinned == [(fakes.UUID, frozenset({1}))]


class TestOneThatIsLeftThere:
    @pytest.mark.parametrize('pcpus, limits', [
        (FAST, ON_FAST), (SLOW, ON_SLOW), (frozenset({3}), ON_SLOW)])
    def test_in_one_class(self, world, pcpus, limits):
        run(world, pcpus=pcpus)
        world.tick(5)
        assert world.host.pinned == []
        assert world.limits() == limits

    def test_pinned_by_others(self, world):
        run(world, pcpus=frozenset({1, 2}), pinned_by_others=True)
        assert world.host.pinned == []
        assert world.limits() == ON_SLOW

    def test_on_equal_pcpus(self, world):
        calibrate(world, {'0-5': 0.8})
        run(world)
        assert world.host.pinned == []
        assert world.limits() == ON_SLOW

    @pytest.mark.parametrize('specs', [None, {}])
    def test_without_units(self, world, specs):
        world.run(specs=specs)
        assert world.host.pinned == []

    def test_its_cap_does_not_wait_for_room(self, world):
        boot(world, '321', fakes.OTHER_UUID, run_id=2, pcpus=SLOW)
        boot(world, '341', fakes.UUID.replace('1', '2'), run_id=3, pcpus=FAST)
        boot(world)
        world.settle()
        assert world.limits() == ON_SLOW

    def test_where_no_class_has_room(self, world, caplog):
        boot(world, '321', fakes.OTHER_UUID, run_id=2, pcpus=SLOW)
        boot(world, '341', fakes.UUID.replace('1', '2'), run_id=3, pcpus=FAST)
        run(world)
        world.tick(5)
        assert world.host.pinned == []
        # As before there were classes.
        assert world.limits() == ON_SLOW
        messages = [record.getMessage() for record in caplog.records
                    if 'stays on unlike pCPUs' in record.getMessage()]
        assert len(messages) == 1
        assert '59 CU left' in messages[0]

        # When there is room again, no log line is needed; it is not looked for
        # at each tick.
        world.host.stop(fakes.OTHER_UUID)
        world.tick(3)
        assert world.host.pinned == []
        world.tick(20)
        assert world.host.pinned == [(fakes.UUID, SLOW)]


class TestTrouble:
    def test_a_busy_one_has_its_cap_meanwhile(self, world):
        boot(world)
        world.host.refuse[fakes.UUID] = base.DomainBusy('a job runs on it')
        world.start()
        assert world.host.pinned == []
        world.host.refuse.clear()
        world.tick(3)
        assert world.host.pinned == [(fakes.UUID, SLOW)]
        assert world.limits() == ON_SLOW

    def test_a_pin_that_fails_says_why(self, world, monkeypatch, caplog):
        def refuse(_uuid, _pcpus):
            raise base.HypervisorError('no such pCPU')
        monkeypatch.setattr(world.host, 'pin', refuse)
        run(world)
        # By the slowest that it may run on.
        assert world.limits() == ON_SLOW
        world.tick(60)
        assert caplog.text.count('no such pCPU') == 1
        monkeypatch.undo()
        world.tick(11)
        assert world.host.pinned == [(fakes.UUID, SLOW)]

    @pytest.mark.parametrize('error', [None, base.DomainBusy('it migrates')])
    def test_later_pins_of_others_are_no_failure(self, world, caplog, error):
        boot(world)
        if error:
            world.host.refuse[fakes.UUID] = error
        world.start()
        world.host.describe_as(pcpus=FAST)
        world.host.event(KIND.CHANGED)
        world.tick(3)
        assert 'and may run on' not in caplog.text
        assert len(world.host.pinned) == (not error)

    def test_pins_that_change_nothing_come_to_an_end(self, world, caplog):
        boot(world)
        world.host.deaf.add(fakes.UUID)
        world.start()
        world.tick(60)
        assert 5 <= len(world.host.pinned) <= 12
        assert world.host_report()['pins'] == len(world.host.pinned)
        assert 'was pinned to pCPUs 2-5, and may run on all' in caplog.text

    def test_a_new_profile(self, world):
        calibrate(world, {'0-5': 0.8})
        run(world)
        assert world.host.pinned == []
        calibrate(world, {'0-1': 2.0, '2-5': 0.8})
        world.tick(2)
        assert world.host.pinned == [(fakes.UUID, SLOW)]

    def test_without_a_profile(self, tmp_path):
        made = agent.World(tmp_path, profile=False)
        run(made)
        assert made.host.pinned == []

    def test_one_that_migrates_in(self, world):
        world.start()
        boot(world, pcpus=None, quota_us=37_500, period_us=50_000, shares=614)
        world.host.event(KIND.STARTED, detail='migrated')
        world.host.event(KIND.RESUMED, detail='migrated')
        world.settle()
        assert world.host.pinned == [(fakes.UUID, SLOW)]
        assert world.report()['right_at_first_sight'] is True
