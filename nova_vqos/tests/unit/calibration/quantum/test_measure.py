# SPDX-License-Identifier: Apache-2.0
"""Measuring slices: what does not need a kernel that has them."""

import argparse
import contextlib
import os
import threading
import types

import pytest

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import bench
from nova_vqos.calibration.quantum import caches
from nova_vqos.calibration.quantum import loads
from nova_vqos.calibration.quantum import measure
from nova_vqos.calibration.quantum import pick
from nova_vqos.calibration.quantum import place
from nova_vqos.calibration.quantum import requests
from nova_vqos.calibration.quantum import rounds
from nova_vqos.calibration.run import Effort
from nova_vqos.cmd.calibrate import quantum as command
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.profile import quantum

MIB = 1024 ** 2
CELLS = rounds.cells(['io', 'cache'], [1000, 90_000])


class Machine:
    """Measures in no time, by a clock of its own.

    :ivar order: of the cells that were measured
    """

    def __init__(self, monkeypatch, *, share=1.0):
        self.order = []
        self.now_s = 0.0
        self.share = share
        monkeypatch.setattr(rounds, 'time', types.SimpleNamespace(
            monotonic=lambda: self.now_s))

    def measure(self, cell, window_s):
        self.order.append(cell)
        self.now_s += window_s + 0.2
        return bench.Sample(100.0, None, 4000.0, self.share)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_the_default_is_measured_with_each_number_of_vcpus():
    assert len(CELLS) == 2 * 2 * 3
    assert {cell[:2] for cell in CELLS if cell.slice_us is None} == {
        (kind, runnable) for kind in ('io', 'cache') for runnable in (2, 4)}


def test_each_round_has_everything_in_another_order(machine):
    taken = rounds.run(CELLS, machine.measure, Effort(5, 1000))
    assert all(len(samples) == 5 for samples in taken.values())
    found = [tuple(machine.order[start:start + len(CELLS)])
             for start in range(0, len(machine.order), len(CELLS))]
    assert all(set(one) == set(CELLS) for one in found)
    # Of 12! orders, five alike are no chance.
    assert len(set(found)) > 1


def test_by_default_it_ends_within_five_minutes(machine):
    todo = rounds.cells(quantum.CLASSES, [
        1000 * ms for ms in measure.SLICES_MS])
    taken = rounds.run(todo, machine.measure, measure.EFFORT)
    assert all(len(samples) >= rounds.LEAST_ROUNDS
               for samples in taken.values())
    assert machine.now_s < 285


def test_a_round_that_would_last_too_long_does_not_begin(machine):
    rounds.run(CELLS, machine.measure, Effort(1000, 100))
    assert 80 < machine.now_s <= 100


def test_too_little_time():
    with pytest.raises(CalibrationError, match=(
            r'--max-seconds 10 is too little for 3 rounds of 12 measurements: '
            'give 30')):
        rounds.check_time(CELLS, 10)
    rounds.check_time(CELLS, 31)


@pytest.mark.parametrize(('cells', 'max_s', 'window_s'), [
    # As long as it is worth.
    (CELLS, 1000, 1.0),
    # Turns of four vCPUs at 90 ms, one and a half of them.
    (CELLS, 1, 0.54),
    (rounds.cells(['io'], [1000]), 1, 0.3),
    (CELLS, 36, 0.7)])
def test_the_window(cells, max_s, window_s):
    assert rounds.window_s(cells, max_s) == pytest.approx(window_s)


def test_disturbed_ones_come_again_while_there_is_time(machine):
    busy = CELLS[3]

    def measure(cell, window_s):
        found = machine.measure(cell, window_s)
        return found._replace(share=0.5) if (
            cell == busy and machine.order.count(busy) < 5) else found

    # Three rounds, and no time for a fourth.
    taken = rounds.run(CELLS, measure, Effort(20, 3.5 * 12 * 1.2))
    assert len(taken.pop(busy)) == 7
    assert {len(samples) for samples in taken.values()} == {3}
    assert machine.now_s <= 3.5 * 12 * 1.2


def test_it_ends_where_all_is_disturbed(monkeypatch):
    machine = Machine(monkeypatch, share=0.2)
    taken = rounds.run(CELLS, machine.measure, Effort(1000, 60))
    assert all(len(samples) >= 3 for samples in taken.values())
    assert 50 < machine.now_s <= 60


def look(waited_ns=(), work=100.0, cpu_ns=5000.0, all_cpu_ns=9e8,
         passed_s=1.0, run_ns=8_000_000, runs=2):
    return bench._Window(list(waited_ns), loads.Done(work, cpu_ns), all_cpu_ns,
                         passed_s, run_ns, runs)


def test_what_was_seen_of_requests():
    cell = bench.Cell('io', 2, None)
    assert bench._sample(cell, [look(range(1, 101))], 1) == bench.Sample(
        95, 50, 4000.0, pytest.approx(0.9))
    assert bench._sample(cell, [look()], 1) is None


def test_what_was_seen_of_work():
    """Of two vCPUs, in two parts: the one without any counts as well."""
    cell = bench.Cell('spin', 2, 1000)
    assert bench._sample(cell, [look(), look(work=0.0, runs=0)], 2) == (
        bench.Sample(100.0, None, 8000.0, pytest.approx(0.45)))
    assert bench._sample(cell, [look(work=0.0, runs=0)], 2) is None


def sample(value_ns, share=1.0, **changes):
    return bench.Sample(value_ns, None, 4000.0, share)._replace(**changes)


def test_disturbed_rounds_count_only_where_there_are_no_others():
    default, slow = bench.Cell('io', 2, None), bench.Cell('io', 2, 90_000)
    found = rounds.points('io', {
        default: [sample(100.0), sample(900.0, 0.5)],
        slow: [sample(200.0, 0.5, mean_run_us=None)],
        bench.Cell('cache', 2, None): [sample(7.0)]})
    assert [(point.slice_us, point.values_ns, point.mean_run_us,
             point.disturbed) for point in found] == [
        (None, (100.0,), 4000.0, 1), (90_000, (200.0,), None, 1)]


def test_a_cell_without_a_sample_leaves_its_number_of_vcpus_out():
    taken = {cell: [sample(100.0)] for cell in CELLS}
    taken[bench.Cell('io', 4, 90_000)] = []
    assert {point.runnable for point in rounds.points('io', taken)} == {2}
    assert {point.runnable for point in rounds.points('cache', taken)} == {
        2, 4}
    assert rounds.points('io', dict.fromkeys(CELLS, [])) == []


def test_progress_is_logged(machine, caplog):
    caplog.set_level('INFO')
    rounds.run(CELLS, machine.measure, Effort(3, 1000))
    # 43 s, all in all.
    assert len(caplog.records) == 4
    assert 'round 3, 12 of 12; io best at default: 1.00' in caplog.text


@pytest.mark.parametrize(('share', 'found'), [
    (0.5, 5), (0.95, 10), (0.01, 1), (1.0, 10)])
def test_percentiles(share, found):
    assert requests.percentile([*range(10, 0, -1)], share) == found


def test_requests_are_sent_whether_or_not_they_are_answered():
    client = requests.Client()
    seen = []
    ended = threading.Event()

    def answer():
        while not ended.wait(0.05):
            # All that have come, 50 ms later.
            while True:
                try:
                    message = client.server.recv(64)
                except BlockingIOError:
                    break
                seen.append(message)
                client.server.send(message)

    client.server.setblocking(False)
    server = threading.Thread(target=answer)
    server.start()
    try:
        found = client.ask(0.1, 0.5)
    finally:
        ended.set()
        server.join()
        client.close()
    # 200 a second, of 0.6 s; those of the first 0.1 s do not count.
    assert len(seen) > len(found) > 40
    assert all(waited_ns > 0 for waited_ns in found)
    assert requests.percentile(found, 0.95) > 20_000_000


def test_a_request_without_an_answer_has_waited_until_now(monkeypatch):
    monkeypatch.setattr(requests, '_PATIENCE_NS', 100_000_000)
    client = requests.Client()
    try:
        found = client.ask(0, 0.1)
    finally:
        client.close()
    assert found
    assert min(found) > 90_000_000


def test_a_slow_server_is_sent_all_requests_all_the_same(monkeypatch):
    monkeypatch.setattr(requests, '_PATIENCE_NS', 0)
    client = requests.Client(per_second=1000)
    client.server.setblocking(False)
    seen = 0
    try:
        found = client.ask(0, 0.1)
        with contextlib.suppress(BlockingIOError):
            while client.server.recv(64):
                seen += 1
    finally:
        client.close()
    assert seen == len(found) > 20


def make_caches(root, pcpu, *levels):
    for number, (level, kind, size) in enumerate(levels):
        directory = (root / f'sys/devices/system/cpu/cpu{pcpu}/cache'
                     / f'index{number}')
        directory.mkdir(parents=True)
        for name, content in (('level', level), ('type', kind),
                              ('size', size)):
            (directory / name).write_text(f'{content}\n')


@pytest.mark.parametrize(('levels', 'private', 'last'), [
    ([(1, 'Data', '48K'), (1, 'Instruction', '32K'), (2, 'Unified', '1024K'),
      (3, 'Unified', '32768K')], MIB, 32 * MIB),
    # As of a small CPU without a third level.
    ([(1, 'Data', '32K'), (2, 'Unified', '2M')], 32 * 1024, 2 * MIB)])
def test_sizes_of_caches(tmp_path, levels, private, last):
    make_caches(tmp_path, 3, *levels)
    assert caches.of_pcpu(3, str(tmp_path)) == caches.Caches(private, last)


@pytest.mark.parametrize('levels', [
    [], [(1, 'Data', '32K')], [(1, 'Data', '32K'), (2, 'Unified', 'large')],
    [(1, 'Data', '32K'), (2, 'Unified', '999999999G')]])
def test_unknown_caches(tmp_path, levels):
    make_caches(tmp_path, 0, *levels)
    with pytest.raises(CalibrationError, match='pCPU 0'):
        caches.of_pcpu(0, str(tmp_path))


def test_lists():
    found = caches.Caches(MIB, 36 * MIB)
    assert found.neutral_lines * loads.LINE_BYTES == MIB // 2
    assert found.half_lines * loads.LINE_BYTES == 16 * MIB
    assert found.beyond_lines * loads.LINE_BYTES == 128 * MIB
    assert caches.Caches(
        MIB, 32 * MIB).beyond_lines * loads.LINE_BYTES == 64 * MIB


@pytest.mark.parametrize(('held', 'found'), [
    (32 * MIB, 16 * MIB), (6 * MIB, 4 * MIB), (MIB, None)])
def test_what_the_last_level_really_holds(held, found):
    lines = caches.held_lines(
        caches.Caches(MIB, 32 * MIB),
        lambda lines: 20 if lines * loads.LINE_BYTES <= held else 100)
    assert lines == (found and found // loads.LINE_BYTES)


@pytest.mark.parametrize(('busy', 'siblings', 'first', 'second'), [
    ({0: 0.9, 1: 0.01, 2: 0.02}, {}, 1, 2),
    ({0: 0.9, 1: 0.01}, {}, 1, None),
    # The sibling comes last, however idle it is.
    ({0: 0.0, 1: 0.0, 2: 0.03}, {0: {0, 1}}, 0, 2),
    ({0: 0.0, 1: 0.0}, {0: {0, 1}}, 0, 1)])
def test_the_place(busy, siblings, first, second):
    assert place.place(
        busy, {pcpu: siblings.get(pcpu, {pcpu}) for pcpu in busy},
        beside_guests=False) == place.Place(first, second)


def test_no_pcpu_is_idle():
    busy, siblings = {0: 0.43, 1: 0.06}, {0: {0}, 1: {1}}
    with pytest.raises(CalibrationError, match=(
            'no pCPU of 0-1 is idle: 0 is 43% busy, 1 is 6% busy')):
        place.place(busy, siblings, beside_guests=False)
    assert place.place(busy, siblings, beside_guests=True) == place.Place(1, 0)


def test_a_kernel_without_slices(monkeypatch):
    monkeypatch.setattr(sched_attr, 'slice_us', lambda thread: None)
    with pytest.raises(CalibrationError,
                       match='has no slices to set: 6.12 is the first'):
        measure.calibrate(frozenset({0}), ['io'], [1000], measure.EFFORT,
                          beside_guests=False)


def test_what_cannot_be_measured_here():
    one = place.Place(0, None)
    kinds = ('io', 'spin', 'cache')
    found = measure.impossible(kinds, one, {0})
    assert 'a pCPU beside' in found['io']
    assert 'an idle pCPU each' in found['spin']
    assert found['neutral'] == 'not wanted'
    assert 'cache' not in found
    # Clients may be where others are at work.
    assert measure.impossible(kinds, one, {0, 1}).keys() == {
        'spin', 'neutral', 'polluter'}


@pytest.mark.parametrize(('mean_run_us', 'has'), [
    ((4000.0, 4100.0), False), ((4000.0, 60_000.0), True),
    ((None, 60_000.0), False), ((4000.0, None), False)])
def test_a_kernel_that_holds_no_slices(mean_run_us, has):
    points = [quantum.Point(slice_us, 2, (1.0,), (), run_us, 0)
              for slice_us, run_us in zip((None, 90_000), mean_run_us,
                                          strict=True)]
    assert pick.has_effect(points) is has


def test_memory(tmp_path):
    (tmp_path / 'proc').mkdir()
    (tmp_path / 'proc/meminfo').write_text(
        'MemTotal: 9 kB\nMemAvailable:    2048 kB\n')
    loads.check_memory(2 * MIB, str(tmp_path))
    with pytest.raises(CalibrationError,
                       match='3 MiB are needed .* 2 MiB are available'):
        loads.check_memory(3 * MIB, str(tmp_path))


def test_the_board():
    board = loads.Board()
    try:
        assert board.reserve(2) == range(2)
        assert board.reserve(30) == range(2, 32)
        # As a thread of the script does.
        os.pwrite(board.descriptor, b'\0\0\0\0\0\0\xf0?' * 3, 64)
        assert (board.thread(1), board.read(1)) == (1, (1.0, 1.0))
        assert board.read(0) == (0.0, 0.0)
        with pytest.raises(CalibrationError, match='32 vCPUs'):
            board.reserve(1)
    finally:
        board.close()


def test_cost_of_work():
    before, after = loads.Done(10, 1000), loads.Done(30, 5000)
    done = loads.between([before, before], [after, after])
    assert done == (40, 8000)
    assert done.cost_ns == 200
    assert loads.between(
        [before], [before._replace(cpu_ns=9000)]).cost_ns is None


@pytest.mark.parametrize(('text', 'slice_us'), [
    ('0.1', 100), ('1', 1000), ('2.5', 2500), ('100', 100_000)])
def test_slices(text, slice_us):
    assert command.slice_ms(text) == slice_us


@pytest.mark.parametrize('text', [
    '0', '-1', '0.09', '100.1', 'nan', 'inf', 'ten', ''])
def test_slices_that_no_kernel_takes(text):
    with pytest.raises(argparse.ArgumentTypeError,
                       match=r'a slice from 0.1 to 100 ms'):
        command.slice_ms(text)


@pytest.mark.parametrize('text', ['2', '1001', '-3', '3.5', ''])
def test_numbers_of_rounds(text):
    with pytest.raises(argparse.ArgumentTypeError, match='3 to 1000'):
        command.max_rounds(text)
    assert command.max_rounds('3') == 3
