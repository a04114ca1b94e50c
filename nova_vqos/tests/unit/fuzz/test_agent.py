# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to an agent: it goes on, and all is right again after it.

Servers come, change and go, in any order; others write and claim; libvirt, the
profile and the disk fail. Real are the loop, all controllers, the ledger and
the store of pushes.
"""

import dataclasses
import pathlib
import shutil
import sqlite3
import tempfile
import time

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st
import pytest

from nova_vqos import policy
from nova_vqos import policy_push
from nova_vqos.agent.billing import transfer
from nova_vqos.agent.overrides import store as stores
from nova_vqos.billing import account
from nova_vqos.billing import ledger
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.billing import test_meter

# Of one pass: it is one of the unit tests.
EXAMPLES, STEPS = 4, 30
LONG_EXAMPLES, LONG_STEPS = 50, 80
# Until all is right again.
QUIET_S = 150
SERVERS = [f'{number}1111111-2222-4333-8444-555555555555'
           for number in range(6)]
CALLS = ('running', 'describe', 'read', 'write', 'persist', 'limit_disks',
         'pin', 'usages', 'activity', 'host_usage', 'set_slices', 'reserved',
         'reserve', 'bandwidth', 'place', 'vcpu_threads', 'topology')
NONCE = '0' * 32

servers = st.sampled_from(SERVERS)
errors = st.sampled_from([
    base.HypervisorError('of this test'), base.DomainBusy('of this test'),
    base.DomainGone('of this test'), base.Unavailable('of this test')])
# No call says that it raises these.
oddities = st.sampled_from([KeyError('of this test'),
                            OverflowError('of this test')])
amounts = st.sampled_from([0, 10**9, 10**15, account.MOST])


@st.composite
def specs(draw):
    """Extra specs of a flavor, most of them valid."""
    return fakes.make_specs(
        draw(st.sampled_from(['10', '40', '60', '120', '0', '-1', 'x'])),
        **draw(st.fixed_dictionaries({}, optional={
            'dd_billing': st.sampled_from(['charge', 'account', 'off']),
            'quantum_class': st.sampled_from(['io', 'cache', 'auto']),
            'work': st.just('auto'), 'cap': st.sampled_from(['hard', 'floor']),
            'burst_cu': st.just('30'),
            'guarantee': st.just('preferred'),
            'project_ceiling_cu': st.just('100'),
            'nonsense': st.sampled_from(['1', '\ud800', 'x' * 300])})))


class FaultyHypervisor(fakes.FakeHypervisor):
    """A host whose calls can fail.

    :ivar failing: by the name of a call, what it raises
    """

    def __init__(self):
        super().__init__()
        self.failing = {}

    def __getattribute__(self, name):
        if name in CALLS and name in self.failing:
            raise_it = self.failing[name]

            def fail(*_arguments, **_options):
                raise raise_it
            return fail
        return super().__getattribute__(name)


class Agent(stateful.RuleBasedStateMachine):
    """An agent, and its host."""

    def __init__(self):
        super().__init__()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix='vqos-fuzz-'))
        self.patch = pytest.MonkeyPatch()
        self.is_full = False
        write = ledger.Ledger._store

        def write_unless_full(*arguments):
            if self.is_full:
                raise sqlite3.OperationalError('database or disk is full')
            write(*arguments)
        self.patch.setattr(ledger.Ledger, '_store', write_unless_full)
        self.totals = {}
        self.world = self.make_world()
        self.world.start()

    def make_world(self):
        store = stores.OverrideStore(str(self.directory / 'pushed.json'))
        store.load()
        self.store = store
        return billing.World(self.directory, store,
                             hypervisor=FaultyHypervisor(),
                             guarantees_speed=True)

    def teardown(self):
        try:
            self.all_is_right_again()
        finally:
            self.world.biller.close()
            self.patch.undo()
            shutil.rmtree(self.directory)

    @property
    def host(self):
        return self.world.host

    def run_on(self, seconds):
        """Servers use some CPU time, time passes, the agent works."""
        for uuid in self.host.runs:
            reading = self.host.used[uuid]
            self.host.used[uuid] = dataclasses.replace(
                reading, read_at_s=self.world.now_s + seconds,
                vcpu_ns=reading.vcpu_ns + round(seconds * 5 * 10**8),
                emulator_ns=reading.emulator_ns + round(seconds * 2 * 10**8))
        self.world.now_s += seconds
        self.world.settle()

    def change(self, uuid, **changes):
        if uuid in self.host.runs:
            self.host.describe_as(uuid, **changes)
            self.host.event(base.EventKind.CHANGED, uuid, detail='metadata')

    # Servers.

    @stateful.rule(uuid=servers, found=specs(), vcpus=st.sampled_from(
        [1, 2, 4]), run_id=st.integers(1, 10**6), wakes=st.booleans(),
        origin=st.sampled_from(['', 'booted', 'migrated', 'restored']))
    def a_server_starts(self, uuid, found, vcpus, run_id, wakes, origin):
        self.host.boot(uuid, specs=found, vcpus=vcpus, run_id=run_id)
        self.host.used[uuid] = test_meter.reading(self.world.now_s,
                                                  run=str(run_id))
        if wakes:
            self.world.loop.wake(uuid)
        if origin:
            self.host.event(base.EventKind.STARTED, uuid, origin)
            self.host.event(base.EventKind.RESUMED, uuid,
                            at_s=self.world.now_s)
        self.world.settle()

    @stateful.rule(uuid=servers, is_reported=st.booleans())
    def a_server_ends(self, uuid, is_reported):
        if self.host.runs.pop(uuid, None) and is_reported:
            self.host.event(base.EventKind.STOPPED, uuid)

    @stateful.rule(uuid=servers, found=specs())
    def its_flavor_changes(self, uuid, found):
        self.change(uuid, extra_specs=found)

    @stateful.rule(uuid=servers, changes=st.sampled_from([
        {'vcpus': None}, {'pcpus': frozenset()}, {'pcpus': frozenset({0})},
        {'pcpus': frozenset({99})}, {'extra_specs': None},
        {'name': 'a\nb\x1b[31m'}, {'flavor_name': '\ud800'},
        {'flavor_id': ''}]))
    def its_description_is_odd(self, uuid, changes):
        self.change(uuid, **changes)

    @stateful.rule(uuid=servers, number=st.integers(0, 7))
    def a_vcpu_is_plugged_in(self, uuid, number):
        if uuid in self.host.runs:
            self.host.plug_vcpu(number, uuid)

    @stateful.rule(uuid=servers, counters=st.sampled_from([
        {'vcpu_ns': 0}, {'emulator_ns': 10**12}, {'emulator_ns': 2**63 - 1},
        {'vcpu_ns': 2**80}, {'run': 'other'}]))
    def its_counters_are_odd(self, uuid, counters):
        if uuid in self.host.runs:
            self.host.used[uuid] = dataclasses.replace(
                self.host.used[uuid], **counters)

    # Others.

    @stateful.rule(uuid=servers, quota_us=st.sampled_from(
        [None, 1000, 10**6]))
    def another_writer_changes_its_cap(self, uuid, quota_us):
        if uuid in self.host.runs:
            self.host.set_vcpus(quota_us, uuid=uuid)

    @stateful.rule(uuid=servers, host=st.sampled_from(['there', 'host']),
                   nonce=st.sampled_from(['', NONCE]), debt=amounts,
                   age_s=st.sampled_from([0, 0, 10**6, -10**9]))
    def another_host_claims_its_account(self, uuid, host, nonce, debt, age_s):
        self.world.biller.transfer.receive_claim(
            transfer.Claim(uuid, host, nonce, debt), time.time() - age_s)

    @stateful.rule(sequence=st.sampled_from([1, 10**9, account.MOST]),
                   used=amounts, debt=amounts, saved=st.sampled_from(
                       [0, -10**12, 10**9]), knows=st.booleans(),
                   is_copy=st.booleans())
    def another_host_answers_a_claim(self, sequence, used, debt, saved, knows,
                                     is_copy):
        for claim in self.world.outbox.claims[-1:]:
            self.world.biller.transfer.receive_statement(account.Statement(
                claim.server_uuid, sequence, {
                    **account.nothing(), 'vcpu': used}, debt, 0, saved),
                claim.nonce if knows else NONCE, is_copy=is_copy)

    @stateful.rule(uuid=servers)
    def nova_lets_it_migrate(self, uuid):
        self.world.ask(lambda: self.world.loop.lift(uuid, 10.0))

    @stateful.rule(generation=st.integers(1, 2**50), full=st.booleans(),
                   quantum_class=st.sampled_from(['io', 'default', 'cache']),
                   dd_billing=st.sampled_from(['off', 'charge', 'account']))
    def an_operator_pushes(self, generation, full, quantum_class, dd_billing):
        self.store.merge([policy_push.from_dict({
            'generation': generation, 'full': full, 'signature': '',
            'flavors': {'f1': {
                'name': 'small', 'vcpus': 2, 'units': 60,
                'quantum_class': quantum_class, 'dd_billing': dd_billing,
                'guarantee': 'off'}}})])
        self.world.ask(self.world.loop.follow_pushed)

    # Faults.

    @stateful.rule()
    def the_connection_is_lost(self):
        self.host.up = False
        self.host.event(base.EventKind.CONNECTION_LOST, detail='of this test')

    @stateful.rule()
    def the_daemon_is_back(self):
        self.host.up = True

    @stateful.rule(call=st.sampled_from(CALLS), error=errors)
    def a_call_fails(self, call, error):
        self.host.failing[call] = error

    # Without a list of servers there is nothing to be done.
    @stateful.rule(call=st.sampled_from(CALLS[1:]), error=oddities)
    def a_call_fails_as_none_says(self, call, error):
        self.host.failing[call] = error

    @stateful.rule(uuid=servers, error=errors | oddities)
    def writes_fail(self, uuid, error):
        self.host.refuse[uuid] = error

    @stateful.rule(uuid=servers)
    def writes_change_nothing(self, uuid):
        self.host.deaf.add(uuid)

    @stateful.rule()
    def calls_succeed_again(self):
        self.host.failing.clear()
        self.host.refuse.clear()
        self.host.deaf.clear()

    @stateful.rule(content=st.sampled_from([
        None, '', '{', 'x: [', '"' * 1000, '\0', '[[[' * 5000]))
    def the_profile_is_damaged(self, content):
        if content is None:
            self.world.profile_path.unlink(missing_ok=True)
        else:
            self.world.profile_path.write_text(content)

    @stateful.rule(coefficient=st.sampled_from([0.5, 1.0, 2.0]),
                   pcpus=st.sampled_from([(0,), (0, 1), (0, 1, 2, 3)]))
    def the_host_is_calibrated_anew(self, coefficient, pcpus):
        document.store(fakes.make_profile(coefficient, pcpus),
                       str(self.world.profile_path))

    @stateful.rule()
    def the_disk_is_full(self):
        self.is_full = True

    @stateful.rule()
    def the_disk_has_room(self):
        self.is_full = False

    @stateful.rule()
    def the_agent_starts_again(self):
        before = self.world
        before.loop._close(before.loop._billing)
        if self.is_full:
            # What was not stored is lost.
            self.totals.clear()
        self.world = self.make_world()
        self.world.now_s = before.now_s
        self.world.host.__dict__.update({
            name: value for name, value in vars(before.host).items()
            if name not in ('clock', 'on_event')})
        self.world.start()

    @stateful.rule(seconds=st.sampled_from([0.1, 1.0, 1.0, 1.0, 10.0, 1e5]))
    def time_passes(self, seconds):
        self.run_on(seconds)

    # What holds.

    @stateful.invariant()
    def totals_never_fall(self):
        for uuid, book in self.world.biller._books.running.items():
            for name, used in book.account.own_cu_us.items():
                assert used >= self.totals.get((uuid, name), 0)
                self.totals[uuid, name] = used

    @stateful.rule()
    def all_is_right_again(self):
        """After a while without faults each cap is as its flavor says."""
        self.calls_succeed_again()
        self.host.up, self.is_full = True, False
        document.store(fakes.make_profile(),
                       str(self.world.profile_path))
        for uuid in self.host.runs:
            self.change(uuid, vcpus=2, pcpus=None)
        for _ in range(QUIET_S):
            self.run_on(1.0)
        assert self.world.loop._servers.keys() == self.host.runs.keys()
        for server in self.world.loop._servers.values():
            self.check_cap(server)

    def check_cap(self, server):
        found, state = server.policy, self.world.loop._caps.state(server)
        if found is None or found.units is None or found.cap == 'floor' or (
                found.burst_cu is not None):
            return
        share = found.units / 100 / max(
            found.vcpus, len(self.host.tunes[server.uuid].vcpus))
        if share > 1 or server.guarantee != policy.CHOICES[
                policy.GUARANTEE_KEY][0]:
            return
        limits = self.host.tunes[server.uuid].vcpus.values()
        if state.desired is None or not state.is_enforceable:
            assert server.problem
            return
        most = share * (1 + 0.02) + 0.0005
        # One that pays, or whose project is at its ceiling, may have less.
        least = 0 if (found.dd_billing == 'charge'
                      or found.project_ceiling_cu is not None
                      ) else share * (1 - 0.02) - 0.0005
        assert all(least <= limit.quota_us / limit.period_us <= most
                   for limit in limits), (found, limits, server.problem)


def test_whatever_happens(pytestconfig):
    minutes = pytestconfig.getoption('--fuzz-minutes')
    settings = hypothesis.settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None,
        database=None, print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck))
    stateful.run_state_machine_as_test(Agent, settings=settings)
    end_s = time.monotonic() + 60 * minutes
    while time.monotonic() < end_s:
        stateful.run_state_machine_as_test(Agent, settings=hypothesis.settings(
            settings, max_examples=LONG_EXAMPLES,
            stateful_step_count=LONG_STEPS, derandomize=False))
