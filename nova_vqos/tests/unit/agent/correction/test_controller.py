# SPDX-License-Identifier: Apache-2.0
"""The agent corrects servers by what it counts of them."""

import itertools
import json
import math

import pytest

from nova_vqos import learning
from nova_vqos import primitives
from nova_vqos import speeds as records
from nova_vqos.agent import outbox
from nova_vqos.agent.billing import biller
from nova_vqos.agent.correction import controller
from nova_vqos.agent.correction import store as stores
from nova_vqos.billing import ledger
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.functional import host_files

# Of 200 and of 100 CU: the mean of the kinds.
FAST = {'integer': 4.0, 'hash': 1.0}
SLOW = {'integer': 1.0, 'hash': 1.0}
# What a server of 40 CU has of a pCPU with the speed of the mean, on either.
ON_FAST, ON_SLOW = 0.2, 0.4


class Bus:
    """Carries what agents ask and answer, to all that it connects."""

    def __init__(self):
        self.loops = {}
        self.asked = []
        self.cut = False

    def sender(self, host):
        return _Sender(self, host)


class _Sender:
    """In the place of an Outbox, without its thread."""

    def __init__(self, bus, host):
        self._bus = bus
        self._host = host

    def claim_speeds(self, server_uuid, nonce):
        self._bus.asked.append((self._host, server_uuid, nonce))
        if not self._bus.cut:
            for host, loop in self._bus.loops.items():
                if host != self._host:
                    loop.answer_speeds(server_uuid, self._host, nonce)

    def hand_over_speeds(self, host, server_uuid, nonce, speeds):
        sent = json.loads(json.dumps(primitives.to_primitives(speeds)))
        self._bus.loops[host].receive_speeds(server_uuid, nonce,
                                             records.parse(sent))


class Host(agent.World):
    """A host whose servers are held back by their caps, and its agent."""

    def __init__(self, directory, name, kinds, bus, *, speed_store=None,
                 **options):
        self.name, self._bus = name, bus
        self.store_path = directory / 'speeds.json'
        store = stores.Store(str(self.store_path))
        store.load()
        super().__init__(directory, profile=False, speeds=store,
                         sender=bus.sender(name), **options)
        self.calibrate(kinds)
        bus.loops[name] = self.loop
        self.idle = set()

    def calibrate(self, kinds):
        document.store(host_files.make_profile(
            self.name, {'0-1': kinds}, fingerprint={'tick_us': '4000'}),
            str(self.profile_path))

    def boot(self, uuid=fakes.UUID, *, units='40', work='auto', **options):
        """A server as the driver starts it: at the mean's speed."""
        self.host.boot(uuid, **{
            'specs': fakes.make_specs(units, work=work), 'vcpus': 1,
            'quota_us': 50_000, 'period_us': 50_000, **options})

    def leave(self, uuid=fakes.UUID):
        del self.host.runs[uuid]
        self.host.vcpu_used.pop(uuid, None)
        self.tick()

    def tick(self, times=1):
        for _ in range(times):
            for uuid, run_id in self.host.runs.items():
                (limit,) = set(self.host.tunes[uuid].vcpus.values())
                share = (0.01 if uuid in self.idle
                         else (limit.quota_us or 10**6) / limit.period_us)
                last = self.host.vcpu_used.get(uuid) or usage.VcpuTime(
                    f'run-{run_id}', self.now_s, 0, 0, 1)
                self.host.vcpu_used[uuid] = last._replace(
                    read_at_s=self.now_s + 1.0,
                    vcpu_ns=last.vcpu_ns + round(share * 1e9),
                    throttled_ns=last.throttled_ns + (
                        0 if uuid in self.idle else round(0.3e9)))
            super().tick()

    def share(self, uuid=fakes.UUID):
        """What its vCPU may use of a pCPU."""
        (limit,) = self.limits(uuid)
        return limit.quota_us / limit.period_us

    def correction(self, uuid=fakes.UUID):
        return self.report(uuid)['correction']


@pytest.fixture
def bus():
    return Bus()


@pytest.fixture
def make(tmp_path, bus):
    def make(name, kinds, **options):
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        return Host(directory, name, kinds, bus, **options)
    return make


def move(source, destination, *, speeds=None, uuid=fakes.UUID, **options):
    """A live migration, and then a minute on the destination.

    :param speeds: instructions per CPU second on the destination
    """
    destination.now_s = max(source.now_s, destination.now_s)
    if speeds:
        destination.host.instructions_per_s = {'': speeds}
    destination.boot(uuid, run_id=7, **options)
    destination.host.event(base.EventKind.STARTED, uuid, 'migrated')
    destination.host.event(base.EventKind.RESUMED, uuid,
                           at_s=destination.now_s)
    destination.settle()
    destination.tick(3)
    source.settle()
    source.leave(uuid)


def arrive(slow, make, *, speeds=3e9, **options):
    """:returns: the host fast, which a server has just come to"""
    slow.tick(60)
    fast = make('fast', FAST, **options)
    fast.start()
    move(slow, fast, speeds=speeds)
    return fast


@pytest.fixture
def slow(make):
    found = make('slow', SLOW, correction_reserve_cu=0)
    found.boot()
    found.start()
    found.host.instructions_per_s = {'': 1e9}
    return found


def test_on_its_first_host_it_has_the_speed_of_the_mean(slow):
    slow.tick(120)
    assert slow.share() == ON_SLOW
    found = slow.correction()
    assert (found['factor'], found['since']) == (1.0, None)
    assert found['instructions_per_cpu_s'] == pytest.approx(1e9, rel=1e-3)
    assert found['windows'] == 12


@pytest.mark.parametrize(('ratio', 'share'), [
    # Its own work is faster there than the mean.
    (3.0, 0.4 / 3), (4.0, 0.1),
    # No more than the kind of work that the host is best at.
    (8.0, 0.1)])
def test_after_a_move_its_cap_follows_its_own_speed(
        slow, make, ratio, share):
    fast = arrive(slow, make, speeds=ratio * 1e9)
    assert fast.share() == ON_FAST
    # It settles for ten seconds, and three windows of five are measured.
    fast.tick(33)
    assert fast.share() == pytest.approx(share, rel=0.01)
    found = fast.correction()
    assert found['factor'] == pytest.approx(ON_FAST / share, rel=0.01)
    assert found['since'] is not None
    # All its figures are in its own units.
    report = fast.report()
    assert report['coefficient'] == pytest.approx(2 * found['factor'])
    assert report['last_recap']['reason'] == 'correction'


def test_without_a_reserve_it_gets_no_more_than_it_claimed(slow, make):
    fast = arrive(slow, make, speeds=1.5e9)
    fast.tick(60)
    assert fast.share() == ON_FAST
    found = fast.correction()
    assert found['factor'] == 1.0
    assert found['predicted'] == pytest.approx(0.75, rel=0.05)
    assert 'correction_reserve_cu' in found['problem']


def test_more_comes_from_the_reserve_as_far_as_it_goes(slow, make):
    """Two servers of 40 CU, each of which needs 13.3 CU more."""
    slow.boot(fakes.OTHER_UUID, run_id=2)
    fast = arrive(slow, make, speeds=1.5e9, correction_reserve_cu=20)
    fast.tick(40)
    move(slow, fast, uuid=fakes.OTHER_UUID, speeds=1.5e9)
    fast.tick(60)
    beyond_cu = [40 / fast.correction(uuid)['factor'] - 40
                 for uuid in (fakes.UUID, fakes.OTHER_UUID)]
    assert beyond_cu[0] == pytest.approx(13.3, abs=1.0)
    assert sum(beyond_cu) == pytest.approx(20.0, abs=0.5)
    assert fast.correction()['problem'] == ''
    assert '7 CU' in fast.correction(fakes.OTHER_UUID)['problem']
    # What one leaves the other may have.
    fast.leave()
    fast.tick(70)
    assert fast.share(fakes.OTHER_UUID) == pytest.approx(
        ON_FAST / 0.75, rel=0.03)


def test_one_whose_work_is_no_longer_corrected_frees_the_reserve(slow, make):
    slow.boot(fakes.OTHER_UUID, run_id=2)
    fast = arrive(slow, make, speeds=1.5e9, correction_reserve_cu=15)
    fast.tick(40)
    move(slow, fast, uuid=fakes.OTHER_UUID, speeds=1.5e9)
    fast.tick(60)
    assert fast.correction(fakes.OTHER_UUID)['factor'] > 0.95
    fast.change(extra_specs=fakes.make_specs('40'))
    fast.tick(70)
    assert fast.share() == ON_FAST
    assert fast.share(fakes.OTHER_UUID) == pytest.approx(
        ON_FAST / 0.75, rel=0.03)


def test_no_server_costs_a_look_at_each_other(make, monkeypatch):
    host = make('slow', SLOW)
    for number in range(40):
        host.boot(f'{number:08}-2222-4333-8444-555555555555', units='2',
                  run_id=number + 1)
    host.start()
    host.host.instructions_per_s = {'': 1e9}
    host.tick(30)
    looks = []
    beyond_cu = controller._beyond_cu

    def note(server):
        looks.append(server)
        return beyond_cu(server)
    monkeypatch.setattr(controller, '_beyond_cu', note)
    host.tick(5)
    # At a tick, and at a reading: of all together, and of itself.
    assert len(looks) <= 3 * 40


def test_back_on_a_host_it_has_its_speed_at_once(slow, make, bus):
    fast = make('fast', FAST)
    slow.tick(60)
    fast.start()
    move(slow, fast, speeds=3e9)
    fast.tick(33)
    corrected = fast.share()
    assert corrected < ON_FAST * 0.7
    move(fast, slow, speeds=1e9)
    slow.tick(30)
    move(slow, fast, speeds=3e9)
    assert fast.share() == corrected


def test_it_is_measured_without_an_answer_too(slow, make, bus):
    slow.tick(60)
    fast = make('fast', FAST)
    fast.start()
    bus.cut = True
    move(slow, fast, speeds=3e9)
    fast.tick(60)
    assert fast.share() == ON_FAST
    asked = [uuid for host, uuid, _ in bus.asked if host == 'fast']
    assert asked == [fakes.UUID] * 5


def test_answers_that_were_not_asked_for_are_dropped(slow):
    slow.tick(60)
    lie = records.Speeds(
        2e9, records.reference_of(make_profiles.make_kinds(SLOW)[1]), FAST,
        learning.History((learning.Observation(FAST, math.log(1e8), 1e-4),)))
    for nonce in ('0' * 32, ''):
        slow.loop.receive_speeds(fakes.UUID, nonce, lie)
        slow.settle()
    slow.tick(70)
    assert slow.correction()['hosts'] == 1
    assert slow.share() == ON_SLOW


def test_an_answer_without_all_kinds_is_dropped(slow, make, bus):
    """It would be stored, and raise at each look."""
    slow.tick(60)
    fast = make('fast', FAST)
    fast.start()
    fast.boot(fakes.OTHER_UUID)
    bus.cut = True
    move(slow, fast, speeds=3e9)
    nonce = next(nonce for host, uuid, nonce in bus.asked
                 if (host, uuid) == ('fast', fakes.UUID))
    fast.loop.receive_speeds(fakes.UUID, nonce, records.Speeds(
        2e9, records.reference_of(make_profiles.make_kinds(SLOW)[1]),
        {'integer': 1.0}, learning.History((
            learning.Observation(SLOW, math.log(1e9), 1e-4),))))
    fast.settle()
    fast.tick(60)
    assert fast.correction()['hosts'] == 1
    assert fast.report(fakes.OTHER_UUID)['correction']['windows'] > 5
    # The one that is asked for still counts.
    slow.loop.answer_speeds(fakes.UUID, 'fast', nonce)
    slow.settle()
    fast.settle()
    assert fast.correction()['hosts'] == 2


def test_other_work_is_measured_anew_at_the_speed_of_the_mean(slow, make):
    fast = arrive(slow, make)
    fast.tick(60)
    assert fast.share() < ON_FAST
    fast.host.instructions_per_s['other'] = 1e9
    fast.host.work_as('other')
    fast.tick(120)
    assert fast.share() == ON_FAST
    assert fast.correction()['phases'] == 1


def test_nothing_is_measured_while_it_migrates(slow):
    slow.tick(15)
    before = slow.correction()['windows']
    slow.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
    slow.tick(60)
    assert slow.correction()['windows'] == before
    del slow.host.refuse[fakes.UUID]
    slow.tick(60)
    assert slow.correction()['windows'] > before


def test_one_that_is_idle_is_not_measured(slow):
    slow.idle.add(fakes.UUID)
    slow.tick(120)
    found = slow.correction()
    assert (found['windows'], found['instructions_per_cpu_s']) == (0, None)


def test_the_reason_is_shown_where_it_cannot_be_counted(slow):
    slow.host.uncounted[fakes.UUID] = 'this CPU does not count'
    slow.tick(30)
    assert slow.correction()['problem'] == 'this CPU does not count'
    del slow.host.uncounted[fakes.UUID]
    slow.tick(30)
    assert slow.correction()['problem'] == ''


def test_a_new_agent_keeps_the_correction_without_a_write(slow, make, bus):
    fast = arrive(slow, make)
    fast.tick(60)
    corrected = fast.share()
    fast.loop.stop()
    fast.loop.run()
    asked = len(bus.asked)
    again = make('fast', FAST)
    again.host.runs, again.host.domains, again.host.tunes = (
        fast.host.runs, fast.host.domains, fast.host.tunes)
    again.host.instructions_per_s = {'': 3e9}
    again.host.vcpu_used = fast.host.vcpu_used
    again.now_s = fast.now_s
    again.start()
    again.tick(90)
    assert again.share() == corrected
    assert again.host.written == []
    assert not [host for host, *_ in bus.asked[asked:] if host == 'fast']
    assert again.correction()['factor'] == pytest.approx(
        fast.correction()['factor'], rel=0.01)


def test_a_correction_changes_with_twice_the_windows_or_after_a_minute(
        slow, make):
    fast = arrive(slow, make)
    windows = []
    for step in range(300):
        fast.host.instructions_per_s = {'': 3e9 * 1.002 ** step}
        writes = len(fast.host.written)
        fast.tick(1)
        if len(fast.host.written) > writes and fast.correction()['windows']:
            windows.append((step, fast.correction()['windows']))
    assert [found for _, found in windows[:3]] == [3, 6, 12]
    assert all(second - first >= 60 for (first, _), (second, _)
               in itertools.pairwise(windows[2:]))


def test_a_host_of_another_profile_is_judged_anew(slow, make):
    fast = arrive(slow, make)
    fast.tick(60)
    assert fast.share() < ON_FAST
    fast.calibrate({'integer': 3.0, 'hash': 3.0})
    fast.tick(120)
    assert fast.share() == pytest.approx(0.4 / 3, rel=0.01)


def test_its_bills_are_in_its_own_units(make, slow, tmp_path):
    billed = []

    class Biller(biller.Biller):
        def bill_all(self, to_bill, *_others, **_more):
            billed.extend(one.coefficient for one in to_bill)
            return {}

    slow.tick(60)
    fast = make('fast', FAST, make_biller=lambda host, clock: Biller(
        host, ledger.Ledger(str(tmp_path / 'ledger')), outbox.Outbox('fast'),
        biller.Options(), clock=clock))
    fast.start()
    move(slow, fast, speeds=3e9, specs=fakes.make_specs(
        '40', work='auto', dd_billing='account'))
    fast.tick(60)
    assert billed[0] == pytest.approx(2.0)
    assert billed[-1] == pytest.approx(3.0, rel=0.01)
