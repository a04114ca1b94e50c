# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Messages of other threads, and the jobs and connections that post them."""

import threading

import pytest

from nova_vqos.agent import connection as connections
from nova_vqos.agent import jobs as jobbing
from nova_vqos.agent import mailbox as mailboxes
from nova_vqos.agent import server as servers
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import fake_hypervisor as fakes


@pytest.fixture
def mailbox():
    return mailboxes.Mailbox()


class TestMailbox:
    def test_the_oldest_message_comes_first(self, mailbox):
        seen = []
        for number in range(3):
            mailbox.post(lambda number=number: seen.append(number))
        mailbox.take()
        assert seen == [0, 1, 2]

    def test_a_message_may_post_another(self, mailbox):
        seen = []
        mailbox.post(lambda: mailbox.post(lambda: seen.append('second')))
        mailbox.take()
        assert seen == ['second']

    def test_one_that_fails_leaves_the_rest_for_the_next_time(self, mailbox):
        seen = []
        mailbox.post(lambda: 1 // 0)
        mailbox.post(lambda: seen.append('the rest'))
        with pytest.raises(ZeroDivisionError):
            mailbox.take()
        assert seen == []
        mailbox.take()
        assert seen == ['the rest']

    def test_a_message_ends_the_wait(self, mailbox):
        threading.Timer(0.01, mailbox.post, [lambda: None]).start()
        waiting = threading.Thread(target=mailbox.wait, args=[30])
        waiting.start()
        waiting.join(10)
        assert not waiting.is_alive()

    def test_who_asks_gets_what_went_wrong(self, mailbox):
        asked = threading.Event()

        def answer():
            asked.wait(10)
            mailbox.take()

        def question():
            raise LookupError('nothing is known')

        owner = threading.Thread(target=answer)
        owner.start()
        post = mailbox.post

        def post_and_tell(message):
            post(message)
            asked.set()
        mailbox.post = post_and_tell
        with pytest.raises(LookupError, match='nothing is known'):
            mailbox.ask(question)
        owner.join(10)

    def test_an_owner_that_is_held_up(self, mailbox):
        with pytest.raises(TimeoutError):
            mailbox.ask(lambda: 7, timeout_s=0.01)


class TestJobs:
    @pytest.fixture
    def executor(self):
        return fakes.InlineExecutor()

    @pytest.fixture
    def server(self):
        return servers.Server(fakes.UUID, 1)

    @pytest.fixture
    def jobs(self, server, executor, mailbox):
        return jobbing.Jobs({server.uuid: server}, executor, mailbox.post)

    def test_what_a_job_returns_is_done_with_its_server(
            self, jobs, server, executor, mailbox):
        server.reconsider = False
        done, failed = [], []
        jobs.begin(server, lambda uuid: lambda one: done.append((uuid, one)),
                   lambda *arguments: failed.append(arguments))
        assert jobs.working
        executor.work()
        assert done == []
        mailbox.take()
        assert done == [(fakes.UUID, server)]
        assert failed == []
        assert not jobs.working
        assert server.reconsider

    def test_what_it_raises_is_told(self, jobs, server, executor, mailbox):
        failed = []
        jobs.begin(server, {}.__getitem__,
                   lambda *arguments: failed.append(arguments))
        executor.work()
        mailbox.take()
        ((error, whose),) = failed
        assert isinstance(error, KeyError)
        assert whose is server
        assert not jobs.working

    @pytest.mark.parametrize('run_id', [None, 2])
    def test_of_a_server_that_has_gone_or_began_anew_it_is_dropped(
            self, server, executor, mailbox, run_id):
        known = {server.uuid: server}
        jobs = jobbing.Jobs(known, executor, mailbox.post)
        done = []
        jobs.begin(server, lambda _uuid: done.append,
                   lambda *arguments: done.append(arguments))
        del known[server.uuid]
        if run_id is not None:
            known[server.uuid] = servers.Server(server.uuid, run_id)
        executor.work()
        mailbox.take()
        assert done == []
        assert not jobs.working


class TestConnection:
    def test_it_waits_longer_after_each_failure_up_to_a_limit(self, mailbox):
        host, executor = fakes.FakeHypervisor(), fakes.InlineExecutor()
        host.up = False
        now_s, came_up, waits = 0.0, [], []
        connection = connections.Connection(
            host, executor, mailbox.post, lambda: now_s,
            on_event=lambda event: None,
            on_up=lambda: came_up.append(now_s))
        for _ in range(8):
            failed_s = now_s
            while True:
                connection.make(now_s)
                connection.make(now_s)
                # Nobody else is at it meanwhile.
                assert len(executor.jobs) <= 1
                if executor.work():
                    break
                now_s += 0.25
            mailbox.take()
            waits.append(now_s - failed_s)
        assert waits == [0, 0.5, 1, 2, 4, 8, 10, 10]
        assert came_up == []
        host.up = True
        now_s += 10
        connection.make(now_s)
        executor.work()
        assert not connection.up
        mailbox.take()
        assert connection.up
        assert came_up == [now_s]

    def test_what_is_lost_is_told_once(self, mailbox, caplog):
        host, executor = fakes.FakeHypervisor(), fakes.InlineExecutor()
        connection = connections.Connection(
            host, executor, mailbox.post, lambda: 0.0,
            on_event=lambda event: None, on_up=lambda: None)
        connection.make(0.0)
        executor.work()
        mailbox.take()
        for _ in range(2):
            connection.lose(str(base.Unavailable('eof')))
        assert not connection.up
        assert caplog.text.count('lost: eof') == 1
