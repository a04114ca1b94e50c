# SPDX-License-Identifier: Apache-2.0
"""Accounts and their statements: arithmetic and hand-overs."""

import dataclasses
from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import units
from nova_vqos.billing import account as accounts
from nova_vqos.billing import charge
from nova_vqos.billing import meter
from nova_vqos.tests.unit.billing import test_meter

UUID = '11111111-2222-4333-8444-555555555555'
NOW_S = 1_800_000_000.5
# 2026-01-01: no account is older.
FIRST_S = 1_767_225_600
YEAR_S = 365 * 86_400
AMOUNTS = st.fixed_dictionaries(
    {name: st.integers(0, 10**9) for name in meter.COMPONENTS})


def used(**amounts):
    return {**dict.fromkeys(meter.COMPONENTS, 0), **amounts}


def shared_out(data, whole):
    """An amount, in any parts among the components."""
    cuts = sorted(data.draw(st.lists(
        st.integers(0, whole), min_size=len(meter.COMPONENTS) - 1,
        max_size=len(meter.COMPONENTS) - 1)))
    return {name: end - begin for name, begin, end in zip(
        meter.COMPONENTS, [0, *cuts], [*cuts, whole], strict=True)}


def account(debt=0, **amounts):
    made = accounts.Account(UUID, own_cu_us=used(**amounts), debt_cu_us=debt)
    return made


class Host:
    """Where a server may be: what an agent does with its account."""

    def __init__(self, name):
        self.name = name
        self.account = accounts.Account(UUID)

    def adopt(self):
        self.account = self.account.adopted()

    def bill(self, amount):
        self.account = self.account.billed(
            used(emulator=amount), test_meter.reading())

    def hand_over(self, host, now_s=NOW_S):
        self.account = self.account.handed_over(host.name, now_s)
        return self.account.statement()


class TestUnits:
    def test_a_second_of_the_reference_is_a_hundred_cu_seconds(self):
        assert accounts.to_cu_us(10**9, 1.0) == 100 * 10**6

    def test_a_faster_host_does_more_in_a_second(self):
        assert accounts.to_cu_us(Fraction(10**9), 2.5) == 250 * 10**6

    @hypothesis.given(st.fractions(0, 10**15), st.floats(0.01, 100.0))
    def test_amounts_are_rounded_to_the_nearest(self, used_ns, coefficient):
        exact = used_ns * units.pcpu_cu(coefficient) / 1000
        found = accounts.to_cu_us(used_ns, coefficient)
        assert abs(found - exact) <= Fraction(1, 2)

    @hypothesis.given(st.lists(st.integers(0, 10**12), max_size=50))
    def test_rounding_loses_half_a_microsecond_each_time_at_most(self, parts):
        whole = accounts.to_cu_us(sum(parts), 0.3)
        cut = sum(accounts.to_cu_us(part, 0.3) for part in parts)
        assert abs(whole - cut) <= (len(parts) + 1) / 2


class TestHandOver:
    def test_debt_and_amounts_follow_a_server(self):
        here, there = Host('here'), Host('there')
        here.bill(5)
        there.bill(2)
        there.account = there.account.with_statement(here.hand_over(there))
        assert there.account.total_cu_us == used(emulator=7)

    def test_a_statement_that_comes_again_changes_nothing(self):
        here, there = Host('here'), Host('there')
        here.account = account(debt=9, emulator=5)
        stated = here.hand_over(there)
        once = there.account.with_statement(stated)
        assert once.debt_cu_us == 9
        assert once.with_statement(stated) == once
        assert here.hand_over(there, NOW_S + 99) == stated

    @hypothesis.given(AMOUNTS, AMOUNTS, AMOUNTS, st.integers(0, 99),
                      st.integers(0, 99), st.integers(0, 99))
    def test_unread_bills_add_up(self, before, now, stated, owed, owes, came):
        first = accounts.Account(UUID, own_cu_us=before, debt_cu_us=owed)
        later = accounts.Account(UUID, own_cu_us=now, debt_cu_us=owes)
        later = later.with_statement(
            accounts.Statement(UUID, 7, stated, came, 0))
        both = first.followed_by(later)
        assert both.total_cu_us == {
            name: before[name] + now[name] + stated[name] for name in before}
        assert both.debt_cu_us == owed + owes + came
        assert both.sequence == 7

    def test_debt_that_was_paid_meanwhile_is_not_owed_again(self):
        there = accounts.Account(UUID).with_statement(accounts.Statement(
            UUID, 1, used(), debt_cu_us=10, written_off_cu_us=1))
        assert there.debt_cu_us == 10
        # It paid 8, and then a later statement comes.
        there = dataclasses.replace(there, debt_cu_us=2)
        there = there.with_statement(accounts.Statement(
            UUID, 2, used(), debt_cu_us=13, written_off_cu_us=1))
        assert there.debt_cu_us == 5
        assert there.written_off_cu_us == 1

    @hypothesis.settings(deadline=None)
    @hypothesis.given(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000)),
                 min_size=1, max_size=12),
        st.data())
    def test_no_path_through_hosts_loses_or_counts_twice(self, path, data):
        """Whatever of old statements comes again on the way."""
        hosts = [Host('a'), Host('b'), Host('c')]
        here = hosts[0]
        made = []
        total = 0
        now_s = NOW_S
        for number, amount in path:
            here.bill(amount)
            total += amount
            there = hosts[number]
            if there is here:
                continue
            # The clock may stand still or go back.
            now_s += data.draw(st.integers(-5, 5))
            statement = here.hand_over(there, now_s)
            made.append(statement)
            there.adopt()
            for old in data.draw(st.lists(st.sampled_from(made), max_size=3)):
                there.account = there.account.with_statement(old)
            there.account = there.account.with_statement(statement)
            here = there
        assert here.account.total_cu_us['emulator'] == total

    def test_two_unrelated_accounts_are_distinguished_by_time(self):
        """A host that was dead when the server left, and comes back."""
        here, there = Host('here'), Host('there')
        here.bill(5)
        here.hand_over(Host('elsewhere'), NOW_S - 1000)
        here.adopt()
        there.bill(3)
        here.account = here.account.with_statement(there.hand_over(here))
        assert here.account.total_cu_us == used(emulator=3)

    def test_a_statement_belongs_to_its_receiver(self):
        here = Host('here')
        here.bill(5)
        here.hand_over(Host('there'))
        before = here.account
        here.hand_over(Host('elsewhere'), NOW_S + 99)
        assert here.account == before

    def test_an_account_without_a_statement_stays(self):
        here = Host('here')
        here.bill(5)
        before = here.account
        here.adopt()
        assert here.account == before

    def test_a_server_that_returns_has_its_copy_until_then(self):
        here, there = Host('here'), Host('there')
        here.account = account(debt=9, emulator=5)
        there.account = there.account.with_statement(here.hand_over(there))
        there.bill(2)
        here.adopt()
        here.bill(4)
        assert here.account.total_cu_us == used(emulator=9)
        assert here.account.debt_cu_us == 9
        assert here.account.awaits_statement
        here.account = here.account.with_statement(there.hand_over(here))
        assert here.account.total_cu_us == used(emulator=11)
        assert here.account.debt_cu_us == 9

    def test_a_later_statement_than_a_copy_is_awaited(self):
        there = accounts.Account(UUID).awaiting()
        assert there.awaits_statement
        there = there.with_statement(
            accounts.Statement(UUID, 5, used(disk=3), 0, 0), is_copy=True)
        assert there.awaits_statement
        there = there.with_statement(
            accounts.Statement(UUID, 6, used(disk=4), 0, 0))
        assert not there.awaits_statement
        assert there.total_cu_us == used(disk=4)

    def test_what_may_not_exist_is_not_awaited_for_ever(self):
        new = accounts.Account(UUID)
        assert new.awaiting().unanswered() == new
        here = Host('here')
        here.hand_over(Host('there'))
        here.adopt()
        assert here.account.awaiting().unanswered().awaits_statement

    def test_debt_beyond_the_units_of_the_other_host_is_written_off(self):
        here = account(debt=9, emulator=20)
        for most, debt in (8, 8), (9, 9), (10, 9), (0, 0):
            stated = here.statement(most)
            assert (stated.debt_cu_us, stated.written_off_cu_us) == (
                debt, 9 - debt)
        assert here.debt_cu_us == 9


class TestObjection:
    """What a statement cannot say."""

    MOST_DEBT_CU_US = 60 * 300 * 10**6
    # The largest server since 2026, in CU microseconds.
    LIFE = (int(NOW_S) - FIRST_S) * 100_000 * 10**6

    def objection(self, before=None, most_saved_cu_us=10**12, **change):
        stated = dataclasses.replace(accounts.Statement(
            UUID, int(NOW_S), used(emulator=10**12), 10**9, 10**9), **change)
        return (before or accounts.Account(UUID)).objection(
            stated, self.MOST_DEBT_CU_US, NOW_S, most_saved_cu_us)

    @pytest.mark.parametrize('change', [
        {}, {'saved_cu_us': 10**12}, {'saved_cu_us': -10**12},
        {'sequence': 1}, {'sequence': int(NOW_S) + 86_400},
        {'debt_cu_us': 60 * 300 * 10**6}, {'written_off_cu_us': 999 * 10**9},
        {'total_cu_us': used(disk=LIFE)}])
    def test_what_may_be(self, change):
        assert self.objection(**change) == ''

    @pytest.mark.parametrize('change, reason', [
        ({'sequence': int(NOW_S) + 86_402}, 'ahead'),
        ({'sequence': accounts.MOST}, 'ahead'),
        ({'debt_cu_us': 60 * 300 * 10**6 + 1}, 'ceiling'),
        ({'debt_cu_us': accounts.MOST}, 'ceiling'),
        ({'saved_cu_us': 10**12 + 1}, 'savings'),
        ({'saved_cu_us': 1, 'most_saved_cu_us': 0}, 'savings'),
        ({'written_off_cu_us': 1001 * 10**9}, 'more debt than use'),
        ({'written_off_cu_us': accounts.MOST}, 'more debt than use'),
        ({'total_cu_us': used(disk=LIFE + 1)}, 'since 2026'),
        ({'total_cu_us': used(disk=LIFE, vcpu=1)}, 'since 2026'),
        ({'total_cu_us': used(disk=accounts.MOST)}, 'since 2026')])
    def test_what_cannot(self, change, reason):
        assert reason in self.objection(**change)

    def test_use_never_falls(self):
        before = accounts.Account(UUID).with_statement(accounts.Statement(
            UUID, 7, used(emulator=10**12, disk=5), 0, 0))
        assert self.objection(before, total_cu_us=used(
            emulator=10**12, disk=5)) == ''
        assert 'less use' in self.objection(before, total_cu_us=used(
            emulator=10**12, disk=4))
        # An old one is of no effect.
        assert self.objection(before, sequence=7) == ''

    def test_a_clock_that_is_wrong(self):
        stated = accounts.Statement(UUID, 1, used(disk=1), 0, 0)
        assert accounts.Account(UUID).objection(
            stated, self.MOST_DEBT_CU_US, 0.0)

    @hypothesis.given(
        st.lists(st.tuples(st.integers(1, 600), st.integers(0, 10**6),
                           st.integers(0, 10**6), st.integers(0, 10**6)),
                 max_size=20))
    def test_none_to_what_an_agent_counts(self, intervals):
        """:param intervals: seconds, and amounts for the components of use"""
        here = accounts.Account(UUID)
        control = charge.Charge()
        for length_s, *amounts in intervals:
            vcpu, threads, kernel = (amount / 1e3 for amount in amounts)
            written_off = control.step(
                charge.Terms(entitlement_cu=60.0),
                charge.Interval(length_s, vcpu, threads, kernel))
            here = here.billed(used(
                vcpu=accounts.cu_us(vcpu), emulator=accounts.cu_us(threads),
                disk=accounts.cu_us(kernel)), test_meter.reading())
            here = dataclasses.replace(
                here, debt_cu_us=accounts.cu_us(control.debt_cu_s),
                written_off_cu_us=here.written_off_cu_us
                + accounts.cu_us(written_off))
        here = here.handed_over('there', NOW_S)
        assert accounts.Account(UUID).objection(
            here.statement(self.MOST_DEBT_CU_US), self.MOST_DEBT_CU_US,
            NOW_S) == ''

    @hypothesis.given(st.data())
    def test_none_to_the_size_of_the_host_that_it_came_from(self, data):
        """Up to 100 000 CU, as long as the ledger can store it."""
        server_cu = data.draw(st.integers(1, 100_000))
        age_s = data.draw(st.integers(1, min(
            100 * YEAR_S, accounts.MOST_STATED_CU_US // (server_cu * 10**6))))
        used_cu_us = shared_out(data, age_s * server_cu * 10**6)
        stated = accounts.Statement(UUID, 1, used_cu_us, 0, 0)
        assert accounts.Account(UUID).objection(
            stated, self.MOST_DEBT_CU_US, FIRST_S + age_s) == ''

    @hypothesis.given(st.data())
    def test_one_to_more_than_the_largest_server_has_used(self, data):
        age_s = data.draw(st.integers(1, 2 * YEAR_S))
        most_cu_us = age_s * 100_000 * 10**6
        stated = accounts.Statement(UUID, 1, shared_out(
            data, data.draw(st.integers(
                most_cu_us + 1, most_cu_us + 7 * accounts.MOST))), 0, 0)
        assert accounts.Account(UUID).objection(
            stated, self.MOST_DEBT_CU_US, FIRST_S + age_s)

    @hypothesis.given(AMOUNTS.flatmap(lambda amounts: st.sampled_from(
        meter.COMPONENTS).flatmap(lambda name: st.integers(
            0, accounts.MOST).map(lambda most: {**amounts, name: most}))),
        st.integers(1, 300 * YEAR_S))
    def test_what_is_accepted_can_be_counted_on(self, used_cu_us, age_s):
        """Totals at their end would stand still for ever."""
        stated = accounts.Statement(UUID, 1, used_cu_us, 0, 0)
        if accounts.Account(UUID).objection(
                stated, self.MOST_DEBT_CU_US, FIRST_S + age_s) == '':
            room_cu_us = 9 * YEAR_S * 1000 * 10**6
            assert max(used_cu_us.values()) + room_cu_us <= accounts.MOST


class TestStatement:
    @hypothesis.given(AMOUNTS, st.integers(0, accounts.MOST))
    def test_it_survives_a_message(self, amounts, sequence):
        stated = accounts.Statement(UUID, sequence, amounts, 1, 2)
        assert accounts.Statement.from_dict(stated.to_dict()) == stated

    @pytest.mark.parametrize('change', [
        {'sequence': -1}, {'sequence': 1.5}, {'sequence': True},
        {'sequence': 2**70}, {'debt_cu_us': '1'}, {'server_uuid': 'x'},
        {'server_uuid': 17}, {'total_cu_us': {}}, {'total_cu_us': [1]},
        {'total_cu_us': {**used(), 'more': 1}},
        {'total_cu_us': used(disk=-1)}, {'more': 1},
    ])
    def test_garbage_is_refused(self, change):
        stated = accounts.Statement(UUID, 1, used(), 1, 2).to_dict()
        with pytest.raises(accounts.StatementInvalid):
            accounts.Statement.from_dict({**stated, **change})

    @pytest.mark.parametrize('data', [None, [], 'x', {}, 5])
    def test_a_foreign_mapping_is_refused(self, data):
        with pytest.raises(accounts.StatementInvalid):
            accounts.Statement.from_dict(data)

    @pytest.mark.parametrize('name', [None, '', '../x', 'x' * 300, 'a b', 5])
    def test_an_invalid_host_is_refused(self, name):
        with pytest.raises(accounts.StatementInvalid):
            accounts.check_host(name)


class TestSavings:
    def saved(self, host, amount):
        host.account = dataclasses.replace(
            host.account, saved_cu_us=host.account.saved_cu_us + amount)

    def test_they_follow_a_server_that_comes_and_goes(self):
        here, there = Host('here'), Host('there')
        self.saved(here, 100)
        expected = 100
        for number in range(4):
            source, target = (here, there) if number % 2 == 0 else (there,
                                                                    here)
            statement = source.hand_over(target, NOW_S + number)
            target.adopt()
            # What it saves before the statement is there.
            self.saved(target, 7)
            target.account = target.account.with_statement(statement)
            # It comes again.
            target.account = target.account.with_statement(statement)
            self.saved(target, -40)
            expected += 7 - 40
            assert target.account.saved_cu_us == expected

    def test_those_of_a_ledger_that_was_read_late(self):
        stored = dataclasses.replace(accounts.Account(UUID), saved_cu_us=100)
        later = dataclasses.replace(accounts.Account(UUID), saved_cu_us=-30,
                                    baseline=test_meter.reading())
        assert stored.followed_by(later).saved_cu_us == 70

    def test_no_more_than_the_next_host_allows(self):
        saved = dataclasses.replace(accounts.Account(UUID), saved_cu_us=100)
        assert saved.statement(most_saved_cu_us=60).saved_cu_us == 60
        assert saved.statement(most_saved_cu_us=0).saved_cu_us == 0
        overspent = dataclasses.replace(saved, saved_cu_us=-100)
        assert overspent.statement(most_saved_cu_us=60).saved_cu_us == -100

    def test_an_agent_that_does_not_know_them(self):
        """It asks for none, and refuses a field that it does not know."""
        saved = dataclasses.replace(accounts.Account(UUID), saved_cu_us=100)
        known = {'server_uuid', 'sequence', 'total_cu_us', 'debt_cu_us',
                 'written_off_cu_us'}
        sent = saved.statement(most_saved_cu_us=0)
        assert set(sent.to_dict()) == known
        # And its own statement has none.
        assert accounts.Statement.from_dict(sent.to_dict()) == sent
        more = saved.statement()
        assert set(more.to_dict()) == known | {'saved_cu_us'}
        assert accounts.Statement.from_dict(more.to_dict()) == more

    @pytest.mark.parametrize('value', [
        None, '1', 1.0, True, accounts.MOST + 1, -accounts.MOST - 1])
    def test_what_is_no_balance(self, value):
        sent = accounts.Account(UUID).statement().to_dict()
        with pytest.raises(accounts.StatementInvalid, match='saved_cu_us'):
            accounts.Statement.from_dict({**sent, 'saved_cu_us': value})
