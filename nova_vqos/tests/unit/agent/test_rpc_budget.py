# SPDX-License-Identifier: Apache-2.0
"""What comes from the bus is worked on in bounds, and in order."""

import contextlib
import inspect
import logging
import threading
import types

import pytest

from nova_vqos.agent import manager
from nova_vqos.agent import rpc_budget
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits


class Message:
    """A message of oslo.messaging, as far as a server uses it."""

    def __init__(self, method, *, version='1.0', is_gone=False, **arguments):
        self.message = {'method': method, 'args': arguments,
                        'version': version}
        self.is_gone = is_gone
        self.acknowledged = 0
        self.replies = []

    def acknowledge(self):
        self.acknowledged += 1

    def reply(self, reply=None, failure=None):
        if self.is_gone:
            raise OSError('nobody waits for it')
        self.replies.append(reply)


class TestBudget:
    @pytest.fixture
    def now(self):
        return types.SimpleNamespace(s=100.0)

    @pytest.fixture
    def budget(self, now):
        return rpc_budget.Budget(lambda: now.s)

    def admitted(self, budget, times, method='apply_policy', server=''):
        return sum(budget.admit(method, server) for _ in range(times))

    def test_some_at_once_then_ten_a_second(self, budget, now):
        assert self.admitted(budget, 100, server=fakes.UUID) == 20
        now.s += 1.0
        assert self.admitted(budget, 100, server=fakes.UUID) == 10

    def test_other_servers_and_methods_have_their_own(self, budget):
        self.admitted(budget, 100, server=fakes.UUID)
        assert budget.admit('apply_policy', fakes.OTHER_UUID)
        assert budget.admit('lift_limits', fakes.UUID)

    def test_made_up_servers_have_a_bound_together(self, budget, now):
        assert sum(budget.admit('claim_ledger', f'server-{number}')
                   for number in range(5000)) == 1000
        now.s += 1.0
        assert sum(budget.admit('claim_ledger', f'server-{number}')
                   for number in range(5000)) == pytest.approx(200, abs=1)

    def test_what_is_kept_has_a_bound(self, budget, now):
        for number in range(30_000):
            now.s += 1.0
            budget.admit('claim_ledger', f'server-{number}')
        assert len(budget._servers) == 10_000


class World:
    """Queues, and work that a test lets go on."""

    def __init__(self):
        self.queues = rpc_budget.Queues({'get_host', 'get_server'},
                                        {'apply_policy'})
        self.go_on = threading.Event()
        self.began = []
        self.ended = []

    def work(self, incoming):
        message, = incoming
        self.began.append(message.message['method'])
        number = len(self.began)
        if message.message['method'] in ('get_host', 'get_server'):
            self.go_on.wait(waits.LIMIT_S)
        message.acknowledge()
        with contextlib.suppress(OSError):
            message.reply(number)
        self.ended.append(message.message['method'])

    def submit(self, *messages):
        for message in messages:
            self.queues.submit(self.work, [message])
        return messages

    def hold(self, *messages):
        """Submit messages; work on each of them does not end before a test
        says so.
        """
        began = len(self.began)
        self.submit(*messages)
        waits.wait_until(lambda: len(self.began) == began + len(messages))

    def let_go(self, ended):
        self.go_on.set()
        waits.wait_until(lambda: len(self.ended) >= ended)


@pytest.fixture
def world():
    made = World()
    yield made
    made.go_on.set()
    made.queues.shutdown()


class TestQueues:
    def test_no_method_waits_for_another(self, world):
        world.hold(Message('get_host'))
        world.hold(Message('get_server', server_uuid='1'))
        world.submit(Message('apply_policy'))
        waits.wait_until(lambda: world.ended == ['apply_policy'])

    def test_one_method_has_one_thread(self, world):
        world.hold(Message('get_server', server_uuid='1'))
        world.submit(Message('get_server', server_uuid='2'))
        world.hold(Message('get_host'))
        assert world.began == ['get_server', 'get_host']
        world.let_go(ended=3)

    def test_questions_that_are_alike_are_worked_on_once(self, world):
        world.hold(Message('get_host'))
        alike = world.submit(*[Message('get_host') for _ in range(50)])
        other = world.submit(Message('get_host', version='9.0'))
        world.let_go(ended=3)
        assert len(world.began) == 3
        assert {tuple(message.replies) for message in alike} == {
            tuple(alike[0].replies)}
        assert all(len(message.replies) == message.acknowledged == 1
                   for message in (*alike, *other))
        assert other[0].replies != alike[0].replies

    def test_who_asks_later_is_not_answered_by_an_older_look(self, world):
        first = Message('get_host')
        world.hold(first)
        later, = world.submit(Message('get_host'))
        world.let_go(ended=2)
        assert first.replies != later.replies

    def test_one_that_is_gone_costs_no_other_the_answer(self, world):
        world.hold(Message('get_host'))
        _gone, there = world.submit(Message('get_host', is_gone=True),
                                    Message('get_host'))
        world.let_go(ended=2)
        assert len(there.replies) == 1

    @pytest.mark.causes_faults
    def test_a_fault_ends_no_queue(self, world):
        def fail(_incoming):
            raise KeyError
        world.queues.submit(fail, [Message('get_host')])
        world.go_on.set()
        waits.wait_until(
            lambda: world.submit(Message('get_host')) and world.ended)

    def test_too_many_are_dropped_in_few_lines(self, world, caplog):
        world.hold(Message('get_host'))
        many = world.submit(*[Message('get_host') for _ in range(1000)])
        # The bus is to forget them.
        assert sum(message.acknowledged for message in many) == 800
        assert len(caplog.records) == 10
        # That is not of another method's affair.
        world.hold(Message('get_server', server_uuid='1'))
        world.let_go(ended=3)
        assert sum(len(message.replies) for message in many) == 200

    def test_orders_beyond_the_budget_are_dropped(self, world):
        world.submit(*[Message('apply_policy', server_uuid=fakes.UUID)
                       for _ in range(1000)])
        world.submit(Message('apply_policy', server_uuid=fakes.OTHER_UUID))
        waits.wait_until(lambda: len(world.ended) >= 21)
        assert len(world.began) < 200

    @pytest.mark.parametrize('content', [
        None, [], {}, {'method': None}, {'method': ['x'], 'args': 7},
        {'method': 'get_host', 'args': {'x': {}}},
        {'method': 'none', 'args': {'server_uuid': 7, 'statement': []}},
        {'method': 'get_host', 'args': {}, 'version': ['1.0']}])
    def test_whatever_else_comes_is_worked_on(self, world, content):
        """What it is not, oslo.messaging says."""
        message = Message('x')
        message.message = content
        done = []
        world.queues.submit(done.append, [message])
        waits.wait_until(lambda: done)


def test_each_method_is_a_question_or_an_order():
    methods = {name for name, method in vars(manager.AgentManager).items()
               if inspect.isfunction(method) and not name.startswith('_')}
    assert methods == manager.QUESTIONS | manager.ORDERS
    assert not manager.QUESTIONS & manager.ORDERS


def test_few_lines_that_others_write(caplog):
    log = logging.getLogger('test_few_lines')
    log.addFilter(rpc_budget.FewLines())
    for _ in range(100):
        log.error('of this test')
    assert len(caplog.records) == 10
