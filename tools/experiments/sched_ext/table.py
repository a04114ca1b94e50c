# SPDX-License-Identifier: Apache-2.0
"""Prints what in_guest.py found: a line for each figure, side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import typing as ty

_BY = ('quota', 'guarantee', 'sched_ext')

Found = Mapping[str, ty.Any]
Rows = Iterator[tuple[str, str]]


def show(found: Sequence[Found]) -> None:
    for one in found:
        if 'kernel' in one:
            print(f'Linux {one["kernel"]}, {one["pcpus"]} pCPUs, tick of '
                  f'{one["tick_us"]} us')
        if 'failed' in one:
            print(one.get('case', ''), one.get('by', ''), one['failed'])
    rows: dict[str, dict[str, str]] = {}
    for case, lines in _CASES.items():
        for by in _BY:
            measured = [one for one in found if one.get('case') == case
                        and one['by'] == by and 'failed' not in one]
            if measured:
                for name, text in lines(measured):
                    rows.setdefault(name, {})[by] = text
    width = max(map(len, rows), default=0)
    print(f'{"":{width}}', *(f'{by:>18}' for by in _BY))
    for name, texts in rows.items():
        print(f'{name:{width}}', *(f'{texts.get(by, "-"):>18}'
                                   for by in _BY))
    for one in found:
        for line in one.get('log', ()):
            print(line)


def _exactness(found: Sequence[Found]) -> Rows:
    for one in found:
        yield (f'cap of {one["cu"]} CU: got, most in a second',
               'refused' if 'refused' in one
               else f'{one["got_cu"]:.2f}  {one["most_cu"]:.2f}')


def _writes(found: Sequence[Found]) -> Rows:
    for one in found:
        yield (f'cap of {one["cu"]} CU, written 5 times a second, period of '
               f'{one["period_us"] // 1000} ms: got', f'{one["got_cu"]:.2f}')


def _turns(found: Sequence[Found]) -> Rows:
    for slice_us in sorted({one['slice_us'] for one in found}):
        same = [one for one in found if one['slice_us'] == slice_us]
        name = f'side by side on one pCPU, slice of {slice_us / 1000:g} ms: '
        yield f'{name}mean run, ms', '  '.join(
            f'{one["run_ms"]:.1f}' for one in same)
        yield f'{name}got of {same[0]["cu"]:g} CU', '  '.join(
            f'{one["got_cu"]:.1f}' for one in same)


def _wakes(found: Sequence[Found], beside: str = '') -> Rows:
    (one,) = found
    name = f'short slice wakes beside a long one{beside}: '
    yield f'{name}late by, ms: median, p99, most', '  '.join(
        f'{one[key]:.1f}' for key in ('p50_ms', 'p99_ms', 'max_ms'))
    yield f'{name}long one: mean run, ms; CU', (
        f'{one["long_run_ms"]:.1f}  {one["long_cu"]:.1f}')


def _preempting(found: Sequence[Found]) -> Rows:
    yield from _wakes(found, ', 2 preemptions/s')


def _speeds(found: Sequence[Found]) -> Rows:
    got_cu = [one['got_cu'] for one in found]
    yield (f'floating over pCPUs of 100 and 200 CU: got of '
           f'{found[0]["cu"]:g} CU, least and most',
           f'{min(got_cu):.2f}  {max(got_cu):.2f}')
    parts = [one['on_fast'] for one in found]
    yield ('floating over pCPUs of 100 and 200 CU: part on the fast ones',
           f'{min(parts):.2f}  {max(parts):.2f}')


def _others(found: Sequence[Found]) -> Rows:
    (one,) = found
    yield ('beside 8 spinning processes of the host: got of '
           f'{one["cu"]} CU, least in a second',
           f'{one["got_cu"]:.2f}  {one["least_cu"]:.2f}')
    if one['by'] == 'sched_ext':
        yield 'beside 8 spinning processes: the scheduler then', one['state']


def _packets(found: Sequence[Found]) -> Rows:
    (one,) = found
    yield (f'{one["cu"]} CU, packets paid for: got, paid',
           f'{one["got_cu"]:.2f}  {one["paid_cu"]:.2f}')
    yield (f'{one["cu"]} CU, packets paid for: sum, least and most in a '
           'second', f'{one["least_sum_cu"]:.2f}  {one["most_sum_cu"]:.2f}')


def _gone(found: Sequence[Found], name: str) -> Rows:
    (one,) = found
    yield f'{name}: {one["state"]} after, ms', f'{one["gone_ms"]:.0f}'
    yield (f'{name}: got of {one["cu"]:g} CU until then, after',
           f'{one["until_cu"]:.2f}  {one["after_cu"]:.2f}')
    yield (f'{name}: most above the cap until then, after, ms',
           f'{one["above_until_ms"]:.1f}  {one["above_after_ms"]:.1f}')


def _killed(found: Sequence[Found]) -> Rows:
    yield from _gone(found, 'loader killed')


def _stalled(found: Sequence[Found]) -> Rows:
    yield from _gone(found, 'scheduler stalls')


_CASES: dict[str, Callable[[Sequence[Found]], Rows]] = {
    'exactness': _exactness, 'writes': _writes, 'turns': _turns,
    'wakes': _wakes, 'preempting': _preempting, 'speeds': _speeds,
    'others': _others, 'packets': _packets, 'killed': _killed,
    'stalled': _stalled}
