# SPDX-License-Identifier: Apache-2.0
"""What a host on the bus can do to the accounts of servers that it has not.

Its messages arrive at the endpoint of an agent, as any others.
"""

import contextlib
import dataclasses
import pathlib
import tempfile

import hypothesis
from hypothesis import strategies as st
import oslo_messaging
import pytest

from nova_vqos.agent import manager
from nova_vqos.billing import account
from nova_vqos.tests.fixtures import billing_host

UUID = billing_host.UUID
GUESSED = '0123456789abcdef' * 2
CEILING_CU_US = 60 * 300 * 10**6
CHARGED = {'billing': 'charge', 'limit_share': 1.0}
# A bit more than it is entitled to, by I/O.
BUSY = {'vcpu_ns': 9 * 10**8, 'emulator_ns': 6 * 10**8}


def send(receiver, method, **arguments):
    """A message arrives; the sender does not learn whether it is refused."""
    endpoint = manager.AgentManager(None, receiver.name,
                                    receiver.biller.transfer)
    with contextlib.suppress(oslo_messaging.ExpectedException):
        getattr(endpoint, method)({}, **arguments)


def forge(host, nonce=GUESSED, **change):
    """A statement arrives, as of this version and as of those before 1.6."""
    statement = {**account.Statement(
        UUID, 5, account.nothing(), 0, 0).to_dict(), **change}
    send(host, 'hand_over', statement=statement)
    send(host, 'hand_over', statement=statement, nonce=nonce, is_copy=False)


def claim(host, claimant='evil', uuid=UUID, **options):
    send(host, 'claim_ledger', server_uuid=uuid, host=claimant,
         claimed_at=billing_host.NOW_S + host.now_s, **options)


class TestAttacks:
    """Each was seen to work on agents before 1.6."""

    @pytest.fixture
    def paying(self, host):
        """A host whose server owes something."""
        host.begin(**CHARGED)
        host.use(times=20, **BUSY)
        assert host.account().debt_cu_us > 10**8
        return host

    def restart(self, host):
        host.run(run='two', **CHARGED)
        return host.round()[UUID].report

    def test_a_debt_that_nobody_has(self, host):
        host.begin(**CHARGED)
        host.use(times=20, vcpu_ns=10**8)
        forge(host, sequence=10, debt_cu_us=account.MOST)
        billed = host.use(times=20, vcpu_ns=10**8)
        assert billed.limit_share == 1.0
        assert billed.report.written_off_cu_s == 0

    def test_a_debt_that_is_forgiven(self, paying):
        before = paying.account().debt_cu_us
        forge(paying, sequence=10, debt_cu_us=account.MOST)
        forge(paying, sequence=11)
        paying.use(length_s=0.0)
        assert paying.account().debt_cu_us == before

    def test_totals_at_their_end(self, paying):
        before = paying.used_cu_s()
        forge(paying, sequence=account.MOST, total_cu_us=dict.fromkeys(
            account.nothing(), account.MOST))
        paying.use(emulator_ns=10**9)
        assert paying.used_cu_s() == before + 100

    @pytest.mark.parametrize('claimant', ['evil', 'no-such-host'])
    def test_the_account_of_a_server_that_is_stopped(self, paying, claimant):
        before = paying.account()
        paying.end()
        claim(paying, claimant)
        paying.use_time()
        report = self.restart(paying)
        assert report.debt_cu_s == before.debt_cu_us / 1e6
        assert report.used_cu_s['emulator'] == (
            before.total_cu_us['emulator'] / 1e6)

    def test_a_claim_that_waits_for_its_stop(self, paying):
        claim(paying)
        before = paying.use(times=10, **BUSY).report
        paying.end()
        paying.use_time()
        assert self.restart(paying).debt_cu_s == before.debt_cu_s

    def test_a_claim_after_that_of_its_new_host(self, paying):
        claim(paying, 'there')
        claim(paying, 'evil')
        paying.use_time()
        paying.leave()
        paying.use_time()
        assert 'there' in [answer[0] for answer in paying.sent.statements]

    def test_a_claim_before_that_of_its_new_host(self, paying, tmp_path):
        debt_cu_us = paying.account().debt_cu_us
        paying.leave()
        claim(paying)
        paying.use_time()
        there = billing_host.Host(tmp_path, 'there')
        there.begin(origin='migrated', **CHARGED)
        asked, = there.sent.claims
        claim(paying, 'there', nonce=asked.nonce,
              most_debt_cu_us=asked.most_debt_cu_us)
        paying.use_time()
        there.receive(paying.sent.statements[-1])
        there.round()
        assert there.account().debt_cu_us == debt_cu_us


class TestRefusals:
    @pytest.fixture
    def open(self, host):
        """A host that claims an account, so that all know its nonce."""
        host.begin(origin='migrated', **CHARGED)
        return host

    def forge(self, host, **change):
        forge(host, host.sent.claims[0].nonce, **{
            'sequence': int(billing_host.NOW_S), **change})
        host.use()

    def test_one_that_was_asked_for(self, open):
        used = {**account.nothing(), 'emulator': 10**9}
        self.forge(open, total_cu_us=used, debt_cu_us=10**9)
        assert open.account().debt_cu_us > 0
        assert open.account().total_cu_us == used
        assert open.biller.alarms == ()

    def test_one_of_a_server_that_was_far_larger(self, open):
        """Or that was on larger hosts for long: a year of 10 000 CU."""
        used = {**account.nothing(), 'vcpu': 365 * 86_400 * 10**10}
        self.forge(open, total_cu_us=used)
        assert open.account().total_cu_us == used
        assert open.biller.alarms == ()

    def test_one_that_the_agent_before_asked_for(self, host, caplog):
        """Its answer waited in a queue of the bus."""
        host.begin(origin='migrated')
        forge(host)
        host.use()
        assert host.biller.transfer.refused == 1
        assert host.biller.alarms == ()
        assert host.account().inherited.server_uuid == ''
        assert caplog.records == []

    def test_one_that_was_not(self, host, caplog):
        host.begin(origin='migrated')
        host.use(times=400)
        for _ in range(5):
            forge(host)
            host.use()
        assert host.biller.transfer.refused == 5
        alarm, = host.biller.alarms
        assert UUID in alarm
        assert 'not asked for' in alarm
        assert [record.levelname for record in caplog.records] == ['WARNING']
        assert host.account().inherited.server_uuid == ''

    def test_one_that_comes_too_late(self, open):
        open.use(times=340)
        self.forge(open)
        assert open.biller.transfer.refused == 1
        assert open.account().inherited.server_uuid == ''

    def test_one_that_comes_in_time(self, open):
        open.use(times=300)
        self.forge(open)
        assert open.biller.transfer.refused == 0
        assert open.account().inherited.server_uuid == UUID

    @pytest.mark.parametrize('change', [
        {'debt_cu_us': CEILING_CU_US + 1}, {'written_off_cu_us': 10**13},
        {'sequence': int(billing_host.NOW_S) + 10**6},
        {'total_cu_us': dict.fromkeys(account.nothing(), 2**60)}])
    def test_one_that_cannot_be_true(self, open, change, caplog):
        self.forge(open, **{'total_cu_us': {
            **account.nothing(), 'emulator': 10**12}, **change})
        assert open.account().inherited.server_uuid == ''
        assert open.biller.transfer.refused == 1
        alarm, = open.biller.alarms
        _text, _colon, reason = alarm.partition(': ')
        assert reason in caplog.text

    def test_the_claim_stays_open_for_the_true_one(self, open):
        self.forge(open, debt_cu_us=account.MOST)
        used = {**account.nothing(), 'emulator': 10**9}
        self.forge(open, total_cu_us=used)
        assert open.account().total_cu_us == used


_AMOUNT = st.one_of(st.integers(0, 10**10), st.integers(0, account.MOST))
_STATEMENT = st.fixed_dictionaries({
    'sequence': st.one_of(st.integers(0, account.MOST), st.integers(
        int(billing_host.NOW_S), int(billing_host.NOW_S) + 90_000)),
    'total_cu_us': st.fixed_dictionaries(
        dict.fromkeys(account.nothing(), _AMOUNT)),
    'debt_cu_us': _AMOUNT, 'written_off_cu_us': _AMOUNT})
_EVIL = st.one_of(
    st.tuples(st.just('claim'),
              st.sampled_from(['evil', 'no-such-host', 'a', 'b'])),
    st.tuples(st.just('forge'), _STATEMENT))
_HONEST = st.one_of(
    st.tuples(st.just('use'), st.integers(0, 4)),
    st.tuples(st.just('move'), st.sampled_from(['booted', 'migrated'])),
    st.tuples(st.just('reboot')), st.tuples(st.just('restart')))


class Hosts:
    """Two honest hosts, of which one has a server, and an evil one.

    :ivar seen: nonces that all members of the bus have seen
    """

    def __init__(self, directory, names=('a', 'b')):
        self.all = [billing_host.Host(pathlib.Path(directory), name)
                    for name in names]
        self.here = self.all[0]
        self.seen = []
        self.stays = 0
        self.here.begin(**CHARGED)
        self.here.use(times=5, **BUSY)
        self.settle()

    def do(self, action, *arguments):
        getattr(self, action)(*arguments)

    def use(self, times):
        self.pass_time(2.0)
        for _ in range(times):
            self.here.use(**BUSY)
        self.settle()

    def reboot(self):
        self.here.leave()
        self.settle()
        self.start(self.here, 'booted')

    def move(self, origin):
        source, self.here = self.here, next(
            host for host in self.all if host is not self.here)
        source.leave()
        self.settle()
        self.start(self.here, origin)

    def restart(self):
        """The agent starts anew."""
        self.here.ledger.close()
        self.here.start()
        self.settle()

    def start(self, host, origin):
        self.stays += 1
        host.run(run=f'run {self.stays}', origin=origin, **CHARGED)
        self.settle()

    def pass_time(self, length_s):
        now_s = length_s + max(host.now_s for host in self.all)
        for host in self.all:
            host.now_s = now_s
            for uuid, reading in host.hypervisor.used.items():
                host.hypervisor.used[uuid] = dataclasses.replace(
                    reading, read_at_s=now_s)

    def settle(self, rounds=3):
        """Let what the honest hosts say to each other arrive."""
        for _ in range(rounds):
            self.pass_time(2.0)
            for host in self.all:
                self.round(host)
            self.deliver()

    def round(self, host):
        host.round()

    def arrives(self):
        """Whether the next message does."""
        return True

    def deliver(self):
        for sender in self.all:
            for asked in sender.sent.claims:
                self.seen.append(asked.nonce)
                for host in self.all:
                    if (host is not sender and self.arrives()
                            and asked.source in ('', host.name)):
                        host.receive_claim(
                            sender.name, nonce=asked.nonce,
                            most_debt_cu_us=asked.most_debt_cu_us)
            sender.sent.claims.clear()
        for sender in self.all:
            for answer in sender.sent.statements:
                for host in self.all:
                    if host.name == answer.host and self.arrives():
                        host.receive(answer)
            sender.sent.statements.clear()

    def claim(self, claimant):
        for host in self.all:
            claim(host, claimant)

    def forge(self, statement, nonce=GUESSED):
        for host in self.all:
            forge(host, nonce, **statement)

    def forge_by_seen(self, statement):
        for nonce in self.seen[-3:]:
            self.forge(statement, nonce)

    def outcome(self):
        """What the server is billed, owes, and is left."""
        book = self.here.biller._books.running[UUID]
        return (book.account.total_cu_us, book.account.debt_cu_us,
                book.account.written_off_cu_us, book.control.limit_share)


class TestWhateverTheySend:
    @hypothesis.settings(deadline=None, max_examples=30)
    @hypothesis.given(st.lists(st.tuples(st.lists(_EVIL, max_size=2), _HONEST),
                               min_size=2, max_size=6))
    def test_nothing_changes_for_servers_of_others(self, steps):
        """They have not seen the nonces; but a server may be anywhere."""
        with (tempfile.TemporaryDirectory() as one,
              tempfile.TemporaryDirectory() as other):
            attacked, left_alone = Hosts(one), Hosts(other)
            for evil, honest in steps:
                for action in (*evil, honest):
                    attacked.do(*action)
                left_alone.do(*honest)
                assert attacked.outcome() == left_alone.outcome()

    @hypothesis.settings(deadline=None, max_examples=30)
    @hypothesis.given(st.lists(st.one_of(
        _HONEST, st.tuples(st.just('forge_by_seen'), _STATEMENT)),
        min_size=5, max_size=12))
    def test_who_saw_the_nonces_is_bounded(self, actions):
        with tempfile.TemporaryDirectory() as directory:
            hosts = Hosts(directory)
            used = hosts.outcome()[0]
            for action in actions:
                hosts.do(*action)
                if action[0] == 'forge_by_seen':
                    hosts.settle()
                now, debt_cu_us, _written_off, limit_share = hosts.outcome()
                assert all(now[name] >= used[name] for name in now)
                # NOW_S is 379 days after the first of 2026.
                assert sum(now.values()) < 380 * 86_400 * 100_000 * 10**6
                assert debt_cu_us <= CEILING_CU_US
                assert limit_share >= 0.1
                used = now
            assert hosts.here.biller.errors == 0


class Killed(BaseException):
    """The agent was killed."""


class Fuse:
    """Kills agents: at the nth of what others, or the disk, may see."""

    def __init__(self):
        self.kill_at = set()
        self.count = 0

    def burn(self):
        self.count += 1
        if self.count in self.kill_at:
            raise Killed

    def guard(self, kept, name):
        """Have a method be something that others may see."""
        done = getattr(kept, name)

        def guarded(*arguments, **options):
            self.burn()
            result = done(*arguments, **options)
            self.burn()
            return result
        setattr(kept, name, guarded)


class MortalHosts(Hosts):
    """Hosts whose agents are killed at any time, on a bus that loses things.

    :ivar lost: messages that are lost, by their number
    """

    def __init__(self, directory):
        self.fuse = Fuse()
        self.lost = set()
        self.sent = 0
        super().__init__(directory, ('a', 'b', 'c'))
        self.used_cu_us = self.here.account().total_cu_us['emulator']
        for host in self.all:
            self.guard(host)

    def work(self):
        self.pass_time(2.0)
        self.here.use(emulator_ns=10**9)
        self.used_cu_us += 100 * 10**6

    def guard(self, host):
        self.fuse.guard(host.ledger, 'store')
        self.fuse.guard(host.sent, 'claim')
        self.fuse.guard(host.sent, 'hand_over')

    def move(self, number, origin, kill_at, lost, thief):
        """:param thief: whether one claims the account, too"""
        self.fuse.kill_at, self.fuse.count = kill_at, 0
        self.lost, self.sent = lost, 0
        if thief:
            self.claim('evil')
        if self.all[number] is not self.here:
            self.here.leave()
            self.all[number].sources = {UUID: self.here.name}
            self.here = self.all[number]
            self.start(self.here, origin)
        for after_s in 3, 5, 10, 20, 40, 80, 150:
            self.pass_time(after_s)
            self.settle()
        self.fuse.kill_at = set()
        self.work()

    def settle(self, rounds=1):
        super().settle(rounds)

    def round(self, host):
        try:
            host.round()
        except Killed:
            sent = host.sent
            host.ledger.close()
            host.start()
            host.sent.claims += sent.claims
            host.sent.statements += sent.statements
            self.guard(host)

    def arrives(self):
        self.sent += 1
        return self.sent not in self.lost


# The second claim may come before the first is answered, and mend a fault.
@pytest.mark.parametrize('lost', [set(), {3}], ids=['all', 'one claim'])
@pytest.mark.parametrize('kill_at', range(1, 17))
def test_each_step_may_be_the_last_of_an_agent(tmp_path, kill_at, lost):
    """There, and back again."""
    hosts = MortalHosts(tmp_path)
    hosts.move(1, 'migrated', {kill_at}, lost, thief=False)
    # Each effect that is killed at comes before the move is over.
    assert hosts.fuse.count > 16
    for number in 0, 2:
        hosts.move(number, 'migrated', set(), set(), thief=False)
        assert hosts.here.account().total_cu_us['emulator'] == (
            hosts.used_cu_us)


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(st.lists(st.tuples(
    st.integers(0, 2), st.sampled_from(['booted', 'migrated']),
    st.sets(st.integers(1, 20), max_size=3),
    st.sets(st.integers(1, 4), max_size=2),
    st.booleans()), min_size=3, max_size=5))
def test_no_end_of_an_agent_loses_or_doubles_an_account(moves):
    """Nor does a thief, nor a message that is lost."""
    with tempfile.TemporaryDirectory() as directory:
        hosts = MortalHosts(directory)
        for move in moves:
            hosts.move(*move)
            assert hosts.here.account().total_cu_us['emulator'] == (
                hosts.used_cu_us)
