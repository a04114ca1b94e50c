# SPDX-License-Identifier: Apache-2.0
"""The linter of tests."""

import runpy
import textwrap

import pytest

from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout


@pytest.fixture(scope='module')
def tool():
    return runpy.run_path(str(project.TOP / 'tools/lint_tests.py'))


@pytest.fixture
def lint(tool):
    def run(text, name='test_a.py'):
        return [tuple(one) for one in tool['lint'](
            f'unit/{name}', textwrap.dedent(text))]
    return run


@pytest.mark.parametrize('text', [
    'pytest.skip("no x")', 'pytest.importorskip("x")',
    'def f(self):\n self.skipTest("x")', 'raise unittest.SkipTest("x")',
    '@pytest.mark.skip\ndef f(): pass',
    '@pytest.mark.skip("x")\ndef f(): pass',
    'pytestmark = [pytest.mark.skipif(x, reason="x")]',
    'raise unittest.SkipTest', 'pytest.xfail("x")',
    '@pytest.mark.xfail\ndef f(): pass',
    '@unittest.expectedFailure\ndef f(): pass',
    'from pytest import importorskip'])
def test_skips(lint, text):
    ((_line, rule),) = lint(text)
    assert rule == 'skip'
    assert lint(text, 'requirement.py') == []


def test_what_a_skip_raises_is_none(lint):
    assert lint('with pytest.raises(pytest.skip.Exception): f()') == []


@pytest.mark.parametrize('text', [
    'os.setns(1)', 'libc.setns(1, 2)', 'with daemons.network(name): pass',
    'Pool(1, initializer=daemons.join_network)',
    'with lab.controller_network(): pass'])
def test_network_namespaces(lint, text):
    assert lint(text) == [(1, 'setns')]
    # A program of its own.
    assert lint(f'{text}\nif __name__ == "__main__":\n main()') == []


def test_ports(lint):
    assert lint('''
        def free_port():
            with socket.socket() as one:
                one.bind(('', 0))
                return one.getsockname()[1]

        port = free_port()
        other = helpers.free_ports(3)
    ''') == [(5, 'port'), (7, 'port'), (8, 'port')]


@pytest.mark.parametrize('text', [
    '''
    before = time.monotonic()
    assert before < time.monotonic()
    ''', '''
    def test():
        began_ns = time.monotonic_ns()
        assert (time.monotonic_ns() - began_ns) / 1e9 <= until_s() - 1 < abs(
            time.process_time() - began_ns) == time.time() - began_ns
    ''', '''
    a, b = time.time(), 1
    c = a
    assert x and c == datetime.datetime.now(datetime.UTC)
    ''', '''
    seen = []
    def count():
        seen.append(time.monotonic())
    count()
    assert seen[1] - seen[0] <= after.read_at_s - before.read_at_s
    '''])
def test_two_readings(lint, text):
    assert [rule for _line, rule in lint(text)] == ['two-readings']


@pytest.mark.parametrize('text', [
    'assert time.monotonic() - began_s < 30',
    '''
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        assert time.monotonic() < end_s
    ''', '''
    before = time.monotonic()
    assert before < time.monotonic() + SLACK_S
    ''', '''
    before = time.monotonic()
    assert before <= found.read_at_s <= time.monotonic()
    ''', '''
    before = time.time()
    assert work(before) == pytest.approx(time.time() - before)
    ''', '''
    took_s = after.read_at_s - before.read_at_s
    assert least / took_s < used / took_s
    ''', '''
    def f():
        now = time.time()
    def g(now):
        assert now < time.time()
    ''', 'assert not a.done and time.sleep(1) == b.done'])
def test_no_two_readings(lint, text):
    assert lint(text) == []


def test_the_program(tool, tmp_path, capsys):
    good, bad = tmp_path / 'good.py', tmp_path / 'bad.py'
    good.write_text('pass\n')
    bad.write_text('\npytest.skip("x")\n')
    assert tool['main']([str(good)]) == 0
    assert tool['main']([str(good), str(bad)]) == 1
    assert capsys.readouterr().out == (
        f'{bad}:2: skip: {tool["ADVICE"]["skip"]}\n')
