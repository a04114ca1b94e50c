# SPDX-License-Identifier: Apache-2.0
"""Messages of other threads, and the work and connections that post them."""

import threading

import pytest

from nova_vqos.agent import connection as connections
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits


@pytest.fixture
def mailbox():
    return worker.Mailbox()


class TestMailbox:
    def test_the_oldest_message_comes_first(self, mailbox):
        seen = []
        for number in range(3):
            mailbox.post(lambda number=number: seen.append(number))
        mailbox.handle()
        assert seen == [0, 1, 2]

    def test_a_message_may_post_another(self, mailbox):
        seen = []
        mailbox.post(lambda: mailbox.post(lambda: seen.append('second')))
        mailbox.handle()
        assert seen == ['second']

    @pytest.mark.causes_faults
    def test_one_that_fails_costs_no_other(self, mailbox):
        seen = []
        mailbox.post(lambda: 1 // 0)
        mailbox.post(lambda: seen.append('the rest'))
        assert mailbox.handle() == 1
        assert seen == ['the rest']
        assert mailbox.handle() == 0

    def test_a_message_ends_the_wait(self, mailbox):
        threading.Timer(0.01, mailbox.post, [lambda: None]).start()
        waiting = threading.Thread(
            target=mailbox.wait, args=[10 * waits.LIMIT_S], daemon=True)
        waiting.start()
        waiting.join(waits.LIMIT_S)
        assert not waiting.is_alive()

    def test_who_asks_gets_what_went_wrong(self, mailbox):
        asked = threading.Event()

        def answer():
            asked.wait(waits.LIMIT_S)
            mailbox.handle()

        def question():
            raise LookupError('nothing is known')

        owner = threading.Thread(target=answer)
        owner.start()
        post = mailbox.post

        def post_and_signal(message):
            post(message)
            asked.set()
        mailbox.post = post_and_signal
        with pytest.raises(LookupError, match='nothing is known'):
            mailbox.ask(question, waits.LIMIT_S)
        owner.join()

    def test_an_owner_that_is_held_up(self, mailbox):
        with pytest.raises(TimeoutError):
            mailbox.ask(lambda: 7, timeout_s=0.01)


class TestServerJobs:
    @pytest.fixture
    def executor(self):
        return fakes.InlineExecutor()

    @pytest.fixture
    def known(self):
        return servers.Servers()

    @pytest.fixture
    def server(self, known):
        return known.add(servers.Server(fakes.UUID, 1))

    @pytest.fixture
    def jobs(self, known, executor, mailbox):
        return worker.ServerJobs(
            worker.Worker(executor, mailbox.post), known, lambda: 0.0,
            lambda _reason: None)

    @pytest.mark.parametrize('work, outcome', [
        (lambda: 7, 7), ({}.popitem, KeyError)])
    def test_the_loop_gets_what_the_work_returns_or_raises(
            self, jobs, server, executor, mailbox, work, outcome):
        results, failures = [], []
        jobs.begin(server, work, results.append, failures.append)
        assert jobs.is_busy(server)
        executor.work()
        assert results == failures == []
        mailbox.handle()
        assert not jobs.is_busy(server)
        assert [*results, *map(type, failures)] == [outcome]

    @pytest.mark.parametrize('run_id', [None, 2])
    def test_of_a_server_that_has_gone_or_began_anew_it_is_dropped(
            self, jobs, known, server, executor, mailbox, run_id):
        done = []
        jobs.begin(server, lambda: 7, done.append, done.append)
        known.remove(server.uuid)
        if run_id is not None:
            known.add(servers.Server(server.uuid, run_id))
        executor.work()
        mailbox.handle()
        assert done == []
        assert not jobs.any_busy()

    @pytest.mark.causes_faults
    @pytest.mark.parametrize('error, problem, errors', [
        (base.DomainBusy('booting'), '', 0), (base.DomainGone('gone'), '', 0),
        (base.Unavailable('eof'), '', 0),
        (base.HypervisorError('refused'), 'refused', 1),
        (KeyError('x'), "unexpected: KeyError('x')", 1)])
    def test_after_a_failure_a_server_is_left_alone_for_a_while(
            self, jobs, server, error, problem, errors):
        jobs.fail(server, error)
        assert jobs.is_waiting(server, 0.4)
        assert not jobs.is_waiting(server, 0.5)
        assert (server.problem, jobs.errors) == (problem, errors)
        jobs.retry_now(server)
        assert not jobs.is_waiting(server, 0.0)


class TestPeriodicJob:
    def test_a_failure_is_logged_once_while_it_lasts(self, mailbox, caplog):
        executor, ended = fakes.InlineExecutor(), []
        job = worker.PeriodicJob(
            worker.Worker(executor, mailbox.post), 'Work',
            lambda: ended.append(job.runs))
        results = []
        for outcome in ('a', 'a', 'b', None, 'b'):
            def work(outcome=outcome):
                if outcome:
                    raise base.HypervisorError(outcome)
                return 7
            job.begin(work, results.append)
            assert job.busy
            executor.work()
            mailbox.handle()
            assert not job.busy
        assert [record.args[1].args for record in caplog.records] == [
            ('a',), ('b',), ('b',)]
        assert (results, ended, job.errors) == ([7], [1, 2, 3, 4, 5], 4)


class TestConnection:
    def test_it_waits_longer_after_each_failure_up_to_a_limit(self, mailbox):
        host, executor = fakes.FakeHypervisor(), fakes.InlineExecutor()
        host.up = False
        now_s, came_up, waits = 0.0, [], []
        connection = connections.Connection(
            host, worker.Worker(executor, mailbox.post), lambda: now_s,
            on_event=lambda event: None,
            on_up=lambda: came_up.append(now_s))
        for _ in range(8):
            failed_s = now_s
            while True:
                connection.connect(now_s)
                connection.connect(now_s)
                # No other job runs meanwhile.
                assert len(executor.jobs) <= 1
                if executor.work():
                    break
                now_s += 0.25
            mailbox.handle()
            waits.append(now_s - failed_s)
        assert waits == [0, 0.5, 1, 2, 4, 8, 10, 10]
        assert came_up == []
        host.up = True
        now_s += 10
        connection.connect(now_s)
        executor.work()
        assert not connection.up
        mailbox.handle()
        assert connection.up
        assert came_up == [now_s]

    def test_lost_events_are_logged_once(self, mailbox, caplog):
        host, executor = fakes.FakeHypervisor(), fakes.InlineExecutor()
        connection = connections.Connection(
            host, worker.Worker(executor, mailbox.post), lambda: 0.0,
            on_event=lambda event: None, on_up=lambda: None)
        connection.connect(0.0)
        executor.work()
        mailbox.handle()
        for _ in range(2):
            connection.lose('eof')
        assert not connection.up
        assert caplog.text.count('lost: eof') == 1
