# SPDX-License-Identifier: Apache-2.0
"""Whatever fails for one server, the others have what they would have."""

import dataclasses
import functools
import inspect
import itertools
import pkgutil
import types

import pytest

from nova_vqos import policy
from nova_vqos import primitives
from nova_vqos.agent import isolation
from nova_vqos.billing import ledger
from nova_vqos.tests.unit.agent.burst import test_controller

A, B, C = test_controller.A, test_controller.B, test_controller.C

pytestmark = pytest.mark.causes_faults


class TestIsolation:
    @pytest.fixture
    def now(self):
        return types.SimpleNamespace(s=100.0)

    @pytest.fixture
    def isolated(self, now):
        return isolation.Isolation(lambda: now.s)

    def each(self, isolated, **broken):
        """:returns: for whom it was tried, and what came of it"""
        tried = []

        def work(subject):
            tried.append(subject.uuid)
            if subject.uuid in broken:
                raise broken[subject.uuid]
            return subject.uuid.upper()
        return tried, isolated.each('billing server', [
            isolation.Named('a', 'one'), isolation.Named('b')], work,
            passes=(KeyError,))

    def test_all_goes_well(self, isolated):
        assert self.each(isolated) == (['a', 'b'], {'a': 'A', 'b': 'B'})
        assert isolated.alarms == ()

    def test_a_fault_is_named_and_costs_no_other(self, isolated, caplog):
        assert self.each(isolated, a=Broken('why')) == (
            ['a', 'b'], {'b': 'B'})
        assert isolated.errors == 1
        alarm, = isolated.alarms
        assert all(part in alarm for part in (
            'billing server a', 'one', 'Broken', 'why'))
        record, = caplog.records
        assert record.exc_info[1].args == ('why',)

    def test_it_is_left_alone_ever_longer(self, isolated, now, caplog):
        tries = []
        for _ in range(300):
            if 'a' in self.each(isolated, a=Broken())[0]:
                tries.append(now.s)
            now.s += 1.0
        waits = [later - earlier
                 for earlier, later in itertools.pairwise(tries)]
        assert waits[:6] == [1, 2, 4, 8, 16, 32]
        assert set(waits[6:]) == {60}
        assert isolated.errors == len(tries)
        # Nobody has to read more than one.
        assert len(caplog.records) == 1

    def test_it_goes_well_again(self, isolated, now):
        self.each(isolated, a=Broken())
        now.s += 1.0
        assert self.each(isolated) == (['a', 'b'], {'a': 'A', 'b': 'B'})
        assert isolated.alarms == ()
        # The next fault is the first one.
        self.each(isolated, a=Broken())
        now.s += 1.0
        assert self.each(isolated)[0] == ['a', 'b']

    def test_what_is_no_servers_own_ends_all(self, isolated):
        with pytest.raises(KeyError):
            self.each(isolated, a=KeyError())
        assert isolated.errors == 0

    def test_one_that_has_gone_is_forgotten(self, isolated, now):
        self.each(isolated, a=Broken(), b=Broken())
        isolated.forget('a')
        assert len(isolated.alarms) == 1
        # What is not tried any more, too.
        now.s += 1000.0
        assert isolated.alarms == ()

    def test_alarms_are_few(self, isolated):
        def fail(_subject):
            raise Broken
        isolated.each('billing server', map(isolation.Named, map(
            str, range(1000))), fail)
        assert len(isolated.alarms) == 11
        assert '990' in isolated.alarms[-1]


class Broken(Exception):
    """A fault in the work for server A."""


def is_about_a(value):
    return A in (value, getattr(value, 'uuid', None),
                 getattr(value, 'server_uuid', None))


OWNERS = {name: pkgutil.resolve_name(f'nova_vqos.{name}') for name in (
    'agent.informer:Informer', 'agent.sampler:Sampler',
    'agent.sampler:SampleState', 'agent.server:Server',
    'agent.billing.biller', 'agent.billing.biller:Biller',
    'agent.billing.books:Book', 'agent.billing.books:Books',
    'agent.billing.controller:BillingController',
    'agent.billing.controller:BillState', 'agent.billing.controller:Limits',
    'agent.billing.disk_limits:DiskLimitController',
    'agent.billing.notifications:UsageNotifications',
    'agent.billing.transfer:AccountTransfer',
    'agent.burst.controller', 'agent.burst.controller:BurstController',
    'agent.caps.controller:CapsController', 'agent.caps.desired',
    'agent.caps.pinning:Pinning', 'agent.caps.state:CapState',
    'agent.caps.unit_shares:UnitShares',
    'agent.ceiling.controller', 'agent.ceiling.controller:CeilingController',
    'agent.correction.controller',
    'agent.correction.controller:CorrectionController',
    'agent.correction.controller:CorrectionState',
    'agent.guarantee.controller:GuaranteeController',
    'agent.overrides.controller:OverridesController',
    'agent.quantum.controller:QuantumController',
    'billing.account', 'billing.account:Account', 'billing.ledger',
    'billing.meter')}


def functions(owner):
    """:returns: {name: what a module or a class defines}"""
    found = {name: member.__func__ if isinstance(member, staticmethod)
             else member for name, member in vars(owner).items()}
    return {name: member for name, member in found.items()
            if inspect.isfunction(member) and not name.startswith('__')
            and (inspect.isclass(owner)
                 or member.__module__ == owner.__name__)}


def replace(monkeypatch, owner, name, on_a):
    """Have something called first, where a function is called about A."""
    work = functions(owner)[name]
    is_static = isinstance(vars(owner)[name], staticmethod)

    def wrapped(*arguments, **options):
        if any(map(is_about_a, (*arguments, *options.values()))):
            on_a()
        return work(*arguments, **options)
    monkeypatch.setattr(owner, name,
                        staticmethod(wrapped) if is_static else wrapped)


#: Of all three servers, by story: what excludes each other is in two.
STORIES = {
    'pays': {'burst_cu': None, policy.DD_BILLING_KEY: 'charge',
             policy.WORK_KEY: 'auto', policy.PROJECT_CEILING_KEY: '50'},
    'bursts': {'burst_cu': '40', 'seconds': '50',
               policy.DD_BILLING_KEY: 'account'},
    'is guaranteed': {'burst_cu': None, policy.GUARANTEE_KEY: 'preferred',
                      policy.DD_BILLING_KEY: 'charge'}}


def tell(directory, story):
    """Half a minute of three servers.

    :returns: what B and C have in the end
    """
    directory.mkdir()
    world = test_controller.World(directory, guarantees_speed=True)
    world.host.free_pcpus = 2.0
    for uuid, project in (A, 'a'), (B, 'b'), (C, 'b'):
        world.serve(uuid, wants_cu=100, **STORIES[story])
        world.host.describe_as(uuid, project_id=project)
    world.start()
    for second in range(30):
        for uuid in A, B, C:
            # It saves first.
            world.wants_cu[uuid] = 5 if second < 15 else 100
            reading = world.host.used[uuid]
            world.host.used[uuid] = dataclasses.replace(
                reading, emulator_ns=reading.emulator_ns + 10**8)
        world.run_on()
    reports = {report['server_uuid']: report
               for report in map(primitives.to_primitives, world.ask(
                   world.loop.servers_report))}
    for uuid in B, C:
        # By the real clock.
        del reports[uuid]['last_recap']
        if reports[uuid]['guarantee'] is not None:
            del reports[uuid]['guarantee']['since']
    kept = ledger.Ledger(str(world.path))
    found = {uuid: (world.host.tunes[uuid], world.host.tunes[uuid].vcpus,
                    reports[uuid], kept.get(uuid)) for uuid in (B, C)}
    kept.close()
    return found




@pytest.fixture(scope='module', params=STORIES)
def well(request, tmp_path_factory):
    """A run without a fault.

    :returns: its story, what B and C have, and {owner: names of what was
        called about A}
    """
    reached = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for key, owner in OWNERS.items():
            for name in functions(owner):
                replace(monkeypatch, owner, name, functools.partial(
                    reached.setdefault(key, set()).add, name))
        expected = tell(tmp_path_factory.mktemp('isolation') / 'well',
                        request.param)
    return request.param, expected, reached


def test_most_is_reached(well):
    story, expected, reached = well
    assert sum(map(len, reached.values())) > 80
    for _tune, vcpus, report, account_of in expected.values():
        assert (story == 'bursts') == (vcpus[0].quota_us > 15_000)
        assert (story == 'is guaranteed') == (report['guarantee'] is not None)
        assert report['right']
        assert report['problem'] == ''
        assert account_of.own_cu_us['emulator'] > 0


@pytest.mark.parametrize('owner', OWNERS)
def test_a_fault_of_one_costs_no_other(owner, well, tmp_path):
    story, expected, reached = well
    differ = []
    for name in sorted(reached[owner]):
        def fail(name=name):
            raise Broken(name)
        with pytest.MonkeyPatch.context() as monkeypatch:
            replace(monkeypatch, OWNERS[owner], name, fail)
            if tell(tmp_path / name, story) != expected:
                differ.append(name)
    assert differ == []
