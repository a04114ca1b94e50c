# SPDX-License-Identifier: Apache-2.0
"""What the probe makes of what it sees."""

import contextlib
import json
import os
import types

import pytest

from nova_vqos.calibration import benchmark
from nova_vqos.calibration.probe import probe
from nova_vqos.calibration.probe import spinners
from nova_vqos.calibration.probe import vhost
from nova_vqos.calibration.probe import waker
from nova_vqos.cmd import probe as command
from nova_vqos.conf import default_path
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import tracepoints
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result

SLICES_US = classes.DEFAULT_SLICES_US
TICK_US = 4000
LONG_US = 90_000


class Pair:
    """Two threads on a pCPU of a test's.

    :ivar runs_us: how long one runs at a time, by slice
    :ivar others: share of the pCPU that others take
    :ivar cuts: into how many pieces others cut each other turn
    :ivar back: share of the runs after which it is the same one's turn
    :ivar stall_us: for how long the machine stood still during one turn of
        the longest slice
    """

    def __init__(self, runs_us, others=0.0, cuts=1, back=0.0, stall_us=0.0):
        self.runs_us = runs_us
        self.others = others
        self.cuts = cuts
        self.back = back
        self.stall_us = stall_us

    def measure(self, slice_us, window_s):
        wall_us = window_s * 1e6
        run_us = wall_us * (1 - self.others)
        length_us = self.runs_us[slice_us]
        pair_us = [length_us, *[length_us / self.cuts] * self.cuts]
        stall_us = self.stall_us if slice_us == LONG_US else 0
        lengths_us = pair_us * max(1, round(
            (run_us - stall_us) / sum(pair_us)))
        lengths_us[0] += stall_us
        return spinners.Turns(
            wall_us, run_us, round(len(lengths_us) / (1 - self.back)),
            tuple(sorted(lengths_us)))


KERNEL = {None: 3950.0, LONG_US: 75_000.0}


class Waker:
    """A thread that wakes beside them.

    :ivar waits_us: how long it waits, by slice
    :ivar others: share of the pCPU that others take
    :ivar limit_us: with more work at a time a slice makes it wait for longer
    :ivar longer: by this factor
    :ivar starve: slices with which it never runs
    :ivar works_us: with which it was tried, by slice
    """

    def __init__(self, waits_us, others=0.0, limit_us=10_000, starve=()):
        self.waits_us = waits_us
        self.others = others
        self.limit_us = limit_us
        self.longer = 100
        self.starve = starve
        self.works_us = {}

    def kernels_slice_us(self):
        return KERNELS_SLICE_US

    def measure(self, slice_us, work_us, window_s):
        self.works_us.setdefault(slice_us, set()).add(work_us)
        if slice_us in self.starve:
            raise spinners.Starved('a thread that was to wake did not run')
        return waker.Waits(
            window_s * 1e6, window_s * 1e6 * (1 - self.others),
            self.waits_us[slice_us] * (
                self.longer if slice_us and work_us > self.limit_us else 1))


KERNELS_SLICE_US = 3000
#: Those are tried unless one is given.
WAITS_US = {None: 1500.0, 600: 900.0, 1000: 200.0, 2000: 800.0}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host of four pCPUs; the test says how busy they are."""
    for path, text in {
            'proc/sys/kernel/random/boot_id': 'boot-1\n',
            'sys/kernel/debug/sched/preempt': 'none full (lazy)\n',
            'sys/kernel/debug/sched/features': 'LAG HRTICK\n',
            'sys/devices/system/cpu/online': '0-3\n'}.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    made = Host(tmp_path)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _pid: {0, 1, 2, 3})
    # Of this module alone: threads that earlier tests left sleep, too.
    monkeypatch.setattr(probe.host_cpus, 'time', types.SimpleNamespace(
        sleep=made.pass_time))
    monkeypatch.setattr(probe.fingerprint, 'tick_us', lambda: TICK_US)
    monkeypatch.setattr(probe.server_groups, 'Tree', made.make_tree)
    monkeypatch.setattr(probe.spinners, 'spinning', made.spin)
    monkeypatch.setattr(probe.waker, 'waking', made.wake)
    return made


class Host:
    def __init__(self, root):
        self.root = root
        self.busy = [0, 0, 0, 0]
        self.pairs = {pcpu: Pair(KERNEL) for pcpu in range(4)}
        self.wakers = {pcpu: Waker(WAITS_US) for pcpu in range(4)}
        self.tried = []
        self.refusal = None
        self._ticks = [[0, 0] for _ in self.busy]
        self._write()

    def pass_time(self, _seconds):
        for ticks, busy in zip(self._ticks, self.busy, strict=True):
            ticks[0] += busy
            ticks[1] += 100 - busy
        self._write()

    @contextlib.contextmanager
    def make_tree(self, name, root):
        assert (name, root) == (probe.NAME, str(self.root))
        if self.refusal is not None:
            raise self.refusal
        yield 'tree'

    @contextlib.contextmanager
    def spin(self, tree, pcpu, name):
        assert (tree, name) == ('tree', str(len(self.tried) % 2))
        self.tried.append(pcpu)
        yield self.pairs[pcpu]

    @contextlib.contextmanager
    def wake(self, tree, pcpu, name, busy):
        assert (tree, name) == ('tree', f'{(len(self.tried) - 1) % 2}-waker')
        assert busy is self.pairs[pcpu]
        yield self.wakers[pcpu]

    def measure(self):
        return probe.measure(SLICES_US, str(self.root))

    def _write(self):
        (self.root / 'proc/stat').write_text(''.join(
            f'cpu{pcpu} {busy} 0 0 {free} 0 0 0 0 0 0\n'
            for pcpu, (busy, free) in enumerate(self._ticks)))


def test_what_is_seen(host):
    proof = host.measure()
    assert proof.boot_id == 'boot-1'
    assert proof.tick_us == TICK_US
    assert {name: outcome.enforced
            for name, outcome in proof.outcomes.items()} == {
                'default': True, 'io': True, 'cache': True}
    assert proof.outcomes['io'].wait_us == 200.0
    assert proof.outcomes['io'].slice_us == 1000
    assert proof.outcomes['default'].wait_us == 1500.0
    assert proof.outcomes['cache'].slice_us == LONG_US
    assert proof.outcomes['cache'].mean_run_us == pytest.approx(75_000)
    assert (proof.preemption, proof.hrtick) == ('lazy', 'y')


def test_the_idlest_pcpu_is_tried(host):
    host.busy = [30, 4, 0, 2]
    host.measure()
    assert host.tried == [2]


def test_isolated_and_foreign_pcpus_are_not_tried(host, monkeypatch):
    (host.root / 'sys/devices/system/cpu/isolated').write_text('0\n')
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _pid: {0, 2, 3})
    host.measure()
    assert host.tried == [2]


def test_no_pcpu_is_idle(host):
    host.busy = [100, 30, 70, 20]
    outcomes = host.measure().outcomes
    assert host.tried == []
    assert set(outcomes) == {'default', 'io', 'cache'}
    for outcome in outcomes.values():
        assert outcome.enforced is None
        assert outcome.mean_run_us is None
        assert outcome.reason == ('not measured: no pCPU was idle: the least '
                                  'busy one, 3, was used to 20%')


def test_where_others_come_in_another_pcpu_is_tried(host):
    host.pairs[0] = Pair(KERNEL, others=0.2)
    outcomes = host.measure().outcomes
    assert host.tried == [0, 1]
    assert outcomes['cache'].enforced
    host.pairs[1] = host.pairs[0]
    assert outcomes_known(host.measure()) == {None}
    assert 'others took' in host.measure().outcomes['cache'].reason


def test_a_pcpu_that_is_busy_all_at_once(host):
    def starve(_slice_us, _window_s):
        raise spinners.Starved('one of two threads did not run')
    host.pairs[0].measure = starve
    assert host.measure().outcomes['cache'].enforced
    assert host.tried == [0, 1]
    host.pairs[1].measure = starve
    assert ('not measured: on pCPU 1 one of two'
            in host.measure().outcomes['default'].reason)


def outcomes_known(proof):
    return {outcome.enforced for outcome in proof.outcomes.values()}


def test_the_only_idle_one_is_tried_twice(host):
    host.busy = [100, 0, 100, 100]
    host.pairs[1] = Pair(KERNEL, others=0.2)
    assert outcomes_known(host.measure()) == {None}
    assert host.tried == [1, 1]


def test_turns_that_others_cut_do_not_hide_whole_ones(host):
    host.pairs[0] = Pair(KERNEL, cuts=3)
    outcomes = host.measure().outcomes
    assert outcomes['cache'].enforced
    assert host.tried == [0]


def test_without_a_whole_turn_nothing_is_known(host):
    host.pairs[0] = Pair({**KERNEL, LONG_US: 18_500.0}, back=0.6)
    assert host.measure().outcomes['cache'].enforced
    assert host.tried == [0, 1]
    host.pairs[1] = host.pairs[0]
    outcome = host.measure().outcomes['cache']
    assert outcome.enforced is None
    assert 'others cut 6' in outcome.reason


@pytest.mark.parametrize('run_us, enforced', [
    (90_000.0, True), (18_500.0, False)])
def test_a_turn_in_which_the_machine_stood_still(host, run_us, enforced):
    host.pairs[0] = Pair({**KERNEL, LONG_US: run_us}, cuts=4, back=0.2,
                         stall_us=70_000.0)
    host.pairs[1] = host.pairs[0]
    assert host.measure().outcomes['cache'].enforced is enforced
    assert host.tried == ([0] if enforced else [0, 1])


def test_where_the_machine_stood_still_another_pcpu_is_tried(host):
    host.pairs[0] = Pair({**KERNEL, LONG_US: 160_000.0})
    assert host.measure().outcomes['cache'].enforced
    assert host.tried == [0, 1]
    host.pairs[1] = host.pairs[0]
    outcome = host.measure().outcomes['cache']
    assert outcome.enforced is None
    assert 'stood still' in outcome.reason


def test_it_wakes_for_several_lengths_of_work(host):
    host.measure()
    works_us = host.wakers[0].works_us
    assert works_us[None] == works_us[1000] > works_us[600] == works_us[2000]
    assert len(works_us[600]) > 2
    assert max(works_us[600]) < min(works_us[1000] - works_us[600])


@pytest.mark.parametrize('limit_us, work_us', [
    (10_000, 2000), (1300, 1200), (500, 400), (100, None)])
def test_for_which_work(host, limit_us, work_us):
    for waker_ in host.wakers.values():
        waker_.limit_us = limit_us
    outcome = host.measure().outcomes['io']
    assert outcome.work_us == work_us
    assert outcome.enforced is (work_us is not None)


def test_a_thread_that_does_not_wake_hides_no_turns(host):
    for waker_ in host.wakers.values():
        waker_.starve = {1000}
    outcomes = host.measure().outcomes
    assert outcomes['cache'].enforced
    assert outcomes['io'].enforced is None
    assert 'did not run' in outcomes['io'].reason


def test_a_slice_that_is_given_is_the_only_one(host):
    host.wakers[0] = Waker({None: 1500.0, 300: 500.0})
    found = probe.measure({**SLICES_US, 'io': 300}, str(host.root))
    assert found.outcomes['io'] == probe_result.Outcome(
        300, None, enforced=True, wait_us=500.0, work_us=2000)


@pytest.mark.parametrize('others', [0.0, 0.2])
def test_one_that_waits_as_long_is_tried_again(host, others):
    host.wakers[0] = Waker(dict.fromkeys(WAITS_US, 1500.0), others)
    assert host.measure().outcomes['io'].enforced
    assert host.tried == [0, 1]
    host.wakers[1] = host.wakers[0]
    outcome = host.measure().outcomes['io']
    assert outcome.enforced is (None if others else False)
    assert outcome.reason
    assert outcome.wait_us == (None if others else 1500.0)


def test_what_was_enforced_once_is(host):
    """Though another one needs a second try, in which it is cut."""
    host.wakers[0] = Waker(WAITS_US, others=0.2)
    host.pairs[1] = Pair({**KERNEL, LONG_US: 9000.0})
    outcomes = host.measure().outcomes
    assert outcomes['io'].enforced
    assert outcomes['cache'].enforced
    # Its waits are of the second try, as those of the class.
    assert outcomes['default'].wait_us == 1500.0
    assert host.tried == [0, 1]


def test_a_kernel_that_does_not_carry_slices_up(host):
    host.pairs = dict.fromkeys(range(4), Pair({**KERNEL, LONG_US: 9000.0}))
    outcome = host.measure().outcomes['cache']
    assert outcome.enforced is False
    assert '9.0 ms at a time' in outcome.reason
    assert host.tried == [0, 1]


def test_a_kernel_without_slices(host):
    def refuse(_slice_us, _window_s):
        raise base.SlicesUnsupported('none before Linux 6.12')
    host.pairs[0].measure = refuse
    outcomes = host.measure().outcomes
    assert {name: outcome.enforced for name, outcome in outcomes.items()} == {
        'default': True, 'io': False, 'cache': False}
    assert outcomes['cache'].reason == 'none before Linux 6.12'


def test_a_group_that_cannot_be_made(host):
    host.refusal = benchmark.CalibrationError('Root is needed')
    with pytest.raises(benchmark.CalibrationError, match='Root'):
        host.measure()


class TestCommand:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / 'run/quantum.json'

    @pytest.fixture(autouse=True)
    def boot(self, monkeypatch):
        monkeypatch.setattr(probe_result, 'boot_id',
                            lambda _root='/': 'boot-1')

    @pytest.fixture
    def run(self, host, monkeypatch, tmp_path):
        config = tmp_path / 'nova-vqos.conf'
        config.write_text('[vqos]\nquantum_slices = cache:80000\n')
        host.pairs = dict.fromkeys(
            range(4), Pair({**KERNEL, 80_000: 75_000.0}))
        monkeypatch.setattr(command.signal, 'signal', lambda *_given: None)
        monkeypatch.setattr(vhost, 'DEVICE', str(tmp_path / 'vhost-net'))
        monkeypatch.setattr(tracepoints, 'TRACING', str(tmp_path / 'tracing'))
        measure = probe.measure
        monkeypatch.setattr(
            probe, 'measure',
            lambda slices_us: measure(slices_us, str(host.root)))
        return lambda *given: command.main(
            ['--config-file', str(config), *given])

    def test_a_table(self, run, capsys):
        assert run() == 0
        head, _default, io, cache, scheduling, workers = (
            capsys.readouterr().out.splitlines())
        assert head.split() == ['class', 'slice_us', 'mean_run_us', 'wait_us',
                                'work_us', 'enforced', 'reason']
        assert io.split() == ['io', '1000', '-', '200', '2000', 'yes', '-']
        assert cache.split()[:2] == ['cache', '80000']
        assert cache.split()[3:] == ['-', '-', 'yes', '-']
        assert scheduling.split()[-1] == 'on'
        assert 'lazy' in scheduling
        assert 'vhost: -, not measured' in workers

    @pytest.mark.parametrize('found', [
        probe_result.Vhost(0.99, limited=False, reason='it ran on'),
        probe_result.Vhost(0.2, limited=True)])
    def test_whether_limits_hold_vhost(self, run, path, monkeypatch, capsys,
                                       found):
        monkeypatch.setattr(vhost, 'measure', lambda: found)
        assert run('--record', str(path)) == 0
        assert ('vhost: yes' if found.limited else 'vhost: no, it ran on') in (
            capsys.readouterr().out)
        assert probe_result.load(str(path)).vhost == found

    def test_json(self, run, capsys):
        assert run('-f', 'json') == 0
        found = {row['class']: row
                 for row in json.loads(capsys.readouterr().out)}
        assert found['cache']['enforced'] is True
        assert found['default']['slice_us'] is None

    def test_a_record(self, run, path):
        assert run('--record', str(path)) == 0
        assert probe_result.enforced_classes(
            probe_result.load(str(path)), {**SLICES_US, 'cache': 80_000}) == (
                'default', 'neutral', 'spin', 'io', 'cache')

    def test_the_number_of_kvms_exits_is_beside_it(
            self, run, path, host, tmp_path):
        run('--record', str(path))
        recorded = path.with_name(os.path.basename(default_path.KVM_EXIT))
        assert not recorded.exists()
        number = tmp_path / 'tracing/events' / tracepoints.KVM_EXIT / 'id'
        number.parent.mkdir(parents=True)
        number.write_text('103\n')
        host.tried.clear()
        run('--record', str(path))
        assert recorded.read_text() == '103\n'

    def test_a_busy_host_keeps_its_record(self, run, path, host, capsys):
        host.busy = [100] * 4
        assert run('--record', str(path)) == command.NOT_MEASURED
        assert probe_result.load(str(path)).outcomes['cache'].enforced is None
        assert 'not measured' in capsys.readouterr().out
        host.busy = [0] * 4
        assert run('--record', str(path)) == 0
        host.busy = [100] * 4
        assert run('--record', str(path)) == 0
        assert probe_result.load(str(path)).outcomes['cache'].enforced

    def test_a_record_that_cannot_be_written(self, run, path, capsys, host):
        path.mkdir(parents=True)
        assert run('--record', str(path)) == 1
        assert 'is a directory' in capsys.readouterr().err
        assert host.tried == []

    @pytest.mark.parametrize('error', [
        benchmark.CalibrationError('no root'), base.SlicesDenied('no right'),
        PermissionError(13, 'nor that')])
    def test_refusals(self, run, monkeypatch, capsys, error):
        def refuse(_slices_us):
            raise error
        monkeypatch.setattr(probe, 'measure', refuse)
        assert run() == 1
        assert capsys.readouterr().err == f'nova-vqos-probe: {error}\n'

    def test_a_slice_the_kernel_refuses(self, run, tmp_path, capsys, host):
        (tmp_path / 'nova-vqos.conf').write_text(
            '[vqos]\nquantum_slices = cache:200000\n')
        assert run() == 1
        assert '200000' in capsys.readouterr().err
        assert host.tried == []

    def test_an_unknown_form(self, run, capsys):
        with pytest.raises(SystemExit):
            run('-f', 'xml')


def test_a_signal_ends_it_once(monkeypatch):
    handlers = {}
    monkeypatch.setattr(command.signal, 'signal', handlers.__setitem__)
    with pytest.raises(SystemExit) as caught:
        command._exit(command.signal.SIGTERM, None)
    assert caught.value.code == 143
    assert set(handlers.values()) == {command.signal.SIG_IGN}
