# SPDX-License-Identifier: Apache-2.0
"""What hangs, and what is asked often, costs no more than it may."""

import threading

import pytest

from nova_vqos.agent.messages import server_report
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits
from nova_vqos.vendordata import answers
from nova_vqos.vendordata import figures
from nova_vqos.vendordata import lookup

# For what hangs.
SHORT_WAIT_S = 0.2
FOUND = lookup.Found('p', figures.of(server_report.ServerDetail(
    server_uuid=fakes.UUID, entitled_cu=60)))


class Source:
    """Looks up.

    :ivar asked: UUIDs, in order
    :ivar hangs: those that are looked up until :meth:`release`
    :ivar released: those of them that were
    """

    def __init__(self):
        self.asked = []
        self.hangs = set()
        self.released = []
        self.found = FOUND
        self._released = threading.Event()

    def release(self):
        self._released.set()

    def __call__(self, server_uuid):
        self.asked.append(server_uuid)
        if server_uuid in self.hangs:
            self._released.wait(waits.LIMIT_S)
            self.released.append(server_uuid)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def source():
    made = Source()
    yield made
    made.release()


@pytest.fixture
def asked(source, clock):
    return answers.Answers(source, keep_s=10.0, most_lookups=2, clock=clock)


def raise_no_thread(_thread):
    raise RuntimeError("can't start new thread")


def wait_until_idle():
    waits.wait_until(lambda: not any(
        one.name == 'lookup' for one in threading.enumerate()))


class TestAnswers:
    def test_the_same_again_for_a_while(self, asked, source, clock):
        for _ in range(5):
            assert asked.get('one', 'p', waits.LIMIT_S) == FOUND.figures
        clock.now_s += 9.9
        asked.get('one', 'p', waits.LIMIT_S)
        assert source.asked == ['one']
        clock.now_s += 0.1
        asked.get('one', 'p', waits.LIMIT_S)
        assert source.asked == ['one', 'one']

    def test_failures_are_kept_as_well(self, asked, source):
        source.found = lookup.Found('p', figures.missing(
            figures.Problem.NOT_RUNNING))
        for _ in range(3):
            assert asked.get(
                'one', 'p', waits.LIMIT_S).problem == 'not_running'
        assert len(source.asked) == 1

    def test_but_not_that_there_were_too_many(self, asked, source):
        source.found = lookup.Found('p', figures.missing(
            figures.Problem.BUSY))
        assert asked.get('one', 'p', waits.LIMIT_S).problem == 'busy'
        source.found = FOUND
        assert asked.get('one', 'p', waits.LIMIT_S) == FOUND.figures

    def test_a_system_without_threads(self, asked, source, monkeypatch):
        """It costs no place, and is not remembered."""
        with monkeypatch.context() as system:
            system.setattr(threading.Thread, 'start', raise_no_thread)
            for _ in range(3):
                assert asked.get('one', 'p', waits.LIMIT_S).problem == 'busy'
        assert asked.get('one', 'p', waits.LIMIT_S) == FOUND.figures
        source.hangs = {'two'}
        asked.get('two', 'p', SHORT_WAIT_S)
        assert asked.get('three', 'p', waits.LIMIT_S) == FOUND.figures

    def test_another_project_has_no_such_server(self, asked, source, caplog):
        assert asked.get('one', 'another', waits.LIMIT_S) is None
        assert 'another' in caplog.text
        assert asked.get('one', 'p', waits.LIMIT_S) is not None
        # Neither when it was kept.
        assert asked.get('one', 'another', waits.LIMIT_S) is None
        assert source.asked == ['one']

    @pytest.mark.parametrize('found', [
        lookup.Found('p', figures.missing(figures.Problem.HOST_SILENT)),
        lookup.Found('', FOUND.figures), None])
    def test_nor_where_little_is_known(self, asked, source, found):
        source.found = found
        assert asked.get('one', 'another', waits.LIMIT_S) is None

    def test_while_nova_is_silent_nobody_reads_figures(self, asked, source):
        source.found = lookup.Found('', figures.missing(
            figures.Problem.NOVA_SILENT))
        assert asked.get(
            'one', 'another', waits.LIMIT_S).problem == 'nova_silent'

    def test_one_that_hangs_is_answered_for(self, asked, source):
        source.hangs = {'one'}
        assert asked.get('one', 'p', SHORT_WAIT_S).problem == 'host_silent'
        assert source.released == []
        # And others are looked up.
        assert asked.get('two', 'p', waits.LIMIT_S) == FOUND.figures

    def test_one_that_hangs_is_not_looked_up_again(self, asked, source,
                                                   clock):
        source.hangs = {'one'}
        for _ in range(3):
            asked.get('one', 'p', SHORT_WAIT_S)
            clock.now_s += 100
        assert source.asked == ['one']
        source.release()
        wait_until_idle()
        assert asked.get('one', 'p', waits.LIMIT_S) == FOUND.figures

    def test_no_more_than_so_many_at_once(self, asked, source):
        source.hangs = {'one', 'two'}
        for server in ('one', 'two', 'three'):
            found = asked.get(server, 'p', SHORT_WAIT_S)
        assert found.problem == 'busy'
        assert source.asked == ['one', 'two']
        source.release()
        wait_until_idle()
        assert asked.get('three', 'p', waits.LIMIT_S) == FOUND.figures

    def test_an_unexpected_error_is_an_answer(self, asked, source, caplog):
        source.found = RuntimeError('x')
        assert asked.get('one', 'p', waits.LIMIT_S).problem == 'host_silent'
        assert 'RuntimeError' in caplog.text
        source.found = FOUND
        assert asked.get('two', 'p', waits.LIMIT_S) == FOUND.figures

    def test_many_that_ask_for_one_server_are_one_lookup(self, source):
        asked = answers.Answers(source, keep_s=10.0, most_lookups=1)
        source.hangs = {'one'}
        found = []
        threads = [threading.Thread(
            target=lambda: found.append(asked.get('one', 'p', waits.LIMIT_S)))
            for _ in range(8)]
        for thread in threads:
            thread.start()
        source.release()
        for thread in threads:
            thread.join(waits.LIMIT_S)
        assert found == [FOUND.figures] * 8
        assert source.asked == ['one']

    def test_old_answers_are_forgotten(self, asked, clock):
        for number in range(50):
            asked.get(f'server-{number}', 'p', waits.LIMIT_S)
            clock.now_s += 11
        assert len(asked._entries) == 1
