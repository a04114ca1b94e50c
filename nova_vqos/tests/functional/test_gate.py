# SPDX-License-Identifier: Apache-2.0
"""A level as tools/test.sh runs it: what fails, and what is repeated."""

import pytest

from nova_vqos.tests.gate import junit
from nova_vqos.tests.gate import running

# Each of these counts how often it ran, in a file beside it.
_HEAD = """
import pathlib
import pytest

def nth(name):
    path = pathlib.Path(__file__).with_name(name)
    number = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(number))
    return number
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a file of tests as a level."""
    # Most of what a start of pytest takes.
    monkeypatch.setenv('PYTEST_DISABLE_PLUGIN_AUTOLOAD', '1')

    def start(text, wanted=''):
        path = tmp_path / 'test_it.py'
        path.write_text(_HEAD + text)
        made = running.Run('it', [str(path)], wanted, [],
                           (), tmp_path, wait=lambda: None)
        made.run()
        written = junit.Report.read(tmp_path / 'it.xml')
        assert written.summary() == made.report.summary()
        return made, {one.element.get('name'): one for one in written.cases}
    return start


def count(tmp_path, name):
    return int((tmp_path / name).read_text())


def test_a_measurement_that_passes_when_repeated_is_flaky(run, tmp_path):
    made, cases = run("""
@pytest.mark.measured
@pytest.mark.parametrize('fails', [0, 1, 2, 3])
def test_late(fails):
    assert nth(f'count{fails}') > fails, 'too late'

def test_other():
    assert True
""")
    assert not made.passed
    assert [cases[f'test_late[{fails}]'].outcome for fails in range(4)] == [
        *[junit.PASSED] * 3, junit.FAILED]
    assert [count(tmp_path, f'count{fails}') for fails in range(4)] == [
        1, 2, 3, 3]
    summary = made.report.summary()
    assert (summary['tests'], len(summary['flaky'])) == (5, 2)
    flaky = cases['test_late[2]'].element.findall('flakyFailure')
    assert len(flaky) == 2
    # Evidence of each try that was lost.
    for one in flaky:
        assert 'too late' in one.text
        assert 'stood_still_s' in one.text


def test_what_measures_nothing_is_not_repeated(run, tmp_path):
    made, cases = run("""
def test_wrong():
    assert nth('count') > 1
""")
    assert not made.passed
    assert count(tmp_path, 'count') == 1
    assert cases['test_wrong'].outcome == junit.FAILED


def test_what_fails_while_the_machine_stands_still_is_repeated(run, tmp_path):
    # A process that is stopped sees what it would of such a machine.
    made, cases = run("""
import os
import signal
import subprocess

def test_late():
    if nth('count') == 1:
        subprocess.Popen(['sh', '-c', 'sleep 6; kill -CONT "$0"',
                          str(os.getpid())])
        os.kill(os.getpid(), signal.SIGSTOP)
        assert False, 'too late'
""")
    assert made.passed
    assert count(tmp_path, 'count') == 2
    (flaky,) = cases['test_late'].element.findall('flakyFailure')
    assert 'stood_still_s' in flaky.text


def test_a_fixture_that_fails_is_one_failure(run, tmp_path):
    made, _cases = run(f"""
@pytest.fixture(scope='module')
def calibrated():
    assert nth('count') > 1

@pytest.mark.measured
@pytest.mark.parametrize('number', range({running.MOST_FLAKY + 2}))
def test_all_need_it(calibrated, number):
    pass
""")
    assert made.passed
    assert count(tmp_path, 'count') == 2
    assert len(made.report.flaky) == running.MOST_FLAKY + 2


def test_many_failures_are_no_noise(run, tmp_path):
    made, _cases = run(f"""
@pytest.mark.measured
@pytest.mark.parametrize('number', range({running.MOST_FLAKY + 1}))
def test_late(number):
    assert nth(f'count{{number}}') > 1
""")
    assert not made.passed
    assert count(tmp_path, 'count0') == 1


def test_costs_are_in_the_report(run):
    made, cases = run("""
import time

def wait_until():
    time.sleep(0.1)

def _wait_for_it():
    time.sleep(0.1)

def test_it():
    wait_until()
    _wait_for_it()
    time.sleep(0.2)
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
""")
    assert made.passed
    assert cases['test_it'].cost('waited_s') == 0.2
    assert cases['test_it'].cost('cpu_s') > 0


def test_skipped_and_undecided_are_no_passes(run):
    made, _cases = run("""
def test_skipped():
    pytest.skip('why')

def test_undecided(request):
    request.node.user_properties.append(('undecided', '5 % off, +-9 %'))
    pytest.xfail('undecided')
""")
    assert made.passed
    summary = made.report.summary()
    assert [len(summary[name]) for name in ('skipped', 'undecided')] == [1, 1]


def test_a_module_that_is_skipped_is_skipped(run):
    made, _cases = run("pytest.skip('why', allow_module_level=True)")
    summary = made.report.summary()
    assert [len(summary[name]) for name in ('skipped', 'undecided')] == [1, 0]


@pytest.mark.parametrize('text', [
    '', 'raise SystemExit(3)', 'import nonesuch', """
def test_it():
    import os
    os._exit(0)
"""])
def test_what_does_not_run_does_not_pass(run, text):
    made, _cases = run(text)
    assert not made.passed


@pytest.mark.parametrize('again, outcome', [
    ("pytest.skip('why')", junit.FAILED),
    ("pytest.xfail('why')", junit.UNDECIDED)])
def test_a_repeat_that_is_skipped_is_no_pass(run, again, outcome):
    made, cases = run(f"""
@pytest.mark.measured
def test_late():
    if nth('count') > 1:
        {again}
    assert False
""")
    assert cases['test_late'].outcome == outcome
    assert made.passed is (outcome != junit.FAILED)


def test_one_that_fails_to_end_as_well_is_one_test(run):
    made, cases = run("""
@pytest.fixture
def ends():
    yield
    assert nth('ended') > 1, 'did not end'

@pytest.mark.measured
def test_late(ends):
    assert nth('count') > 1, 'too late'
""")
    assert made.passed
    assert len(made.report.cases) == 1
    (flaky,) = made.report.flaky
    assert {one.get('message').split(': ')[-1].split(chr(10))[0] for one in
            flaky.element.findall('flakyFailure')} >= {'too late'}
    assert len(flaky.element.findall('flakyFailure')) == 2
