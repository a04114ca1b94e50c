# SPDX-License-Identifier: Apache-2.0
"""The numbers of a profile in rows and words, as people read them."""

from collections.abc import Iterator

from nova_vqos import cpuset
from nova_vqos import units
from nova_vqos.calibration.cpu import combine
from nova_vqos.profile import cpu
from nova_vqos.profile import io
from nova_vqos.profile import model
from nova_vqos.profile import quantum

CPU_COLUMNS = ('pcpus', 'state', 'benchmark', 'weight', 'coefficient', 'low',
               'high', 'interval', 'rounds', 'cu_per_pcpu', 'off_by')
IO_COLUMNS = ('kind', 'direction', 'bytes', 'cost_ns', 'low', 'high',
              'backend_ns', 'unaccounted_ns', 'samples')
QUANTUM_COLUMNS = ('kind', 'runnable', 'slice_ms', 'cost', 'deviation',
                   'mean_run_ms', 'result', 'median', 'rounds', 'best')
#: In the place of a benchmark's name.
COMBINED = 'combined'

_Row = tuple[object, ...]


def capacity_cu(shown: model.Profile) -> int:
    """The units that all pCPUs of a profile have together."""
    return units.capacity_cu(shown.coefficient(pcpu) for pcpu in shown.pcpus)


def cpu_rows(shown: model.Profile) -> Iterator[_Row]:
    """Each class of pCPUs in each state, with :data:`CPU_COLUMNS`.

    :returns: for each the coefficient, then that by each benchmark
    """
    for cpu_class in shown.cpu_classes:
        for state, measured in (('alone', cpu_class.alone),
                                ('busy', cpu_class.busy)):
            pcpus = cpuset.format_pcpus(cpu_class.pcpus)
            bound = combine.error_bound(measured, shown.reference)
            yield (pcpus, state, COMBINED, '', *_coefficient(
                measured, sum(len(s.samples) for s in measured.scores)),
                '' if bound is None
                else f'\N{PLUS-MINUS SIGN}{bound:.1%}')
            for score in measured.scores:
                error = combine.error(score, measured, shown.reference)
                known = shown.reference.benchmark(score.benchmark)
                yield (pcpus, state, known.name, f'{known.weight:g}',
                       *_coefficient(score, len(score.samples)),
                       '' if error is None else f'{error:+.1%}')


def _coefficient(found: cpu.Measurement | cpu.Score,
                 rounds: int) -> _Row:
    return (round(found.coefficient, 5), round(found.interval_low, 5),
            round(found.interval_high, 5), f'{found.interval_width:.2%}',
            rounds, round(
                found.coefficient * units.CU_PER_REFERENCE_PCPU, 2))


def io_rows(shown: io.IoProfile) -> Iterator[_Row]:
    """Each kind of request at each size, with :data:`IO_COLUMNS`."""
    for interface in shown.interfaces:
        yield from _requests(interface.mode, 'rx', interface.rx)
        yield from _requests(interface.mode, 'tx', interface.tx)
    for disk in shown.disks:
        kind = f'{disk.source}, {"buffered" if disk.buffered else "direct"}'
        yield from _requests(kind, 'read', disk.read)
        yield from _requests(kind, 'write', disk.write)


def _requests(kind: str, direction: str, found: io.Measured
              ) -> Iterator[_Row]:
    """:returns: rows; the last two numbers are of all sizes together"""
    unaccounted = found.unaccounted
    half = (unaccounted.high - unaccounted.low) / 2
    for size, cost in found.by_size.items():
        yield (kind, direction, size,
               *map(round, (cost.value, cost.low, cost.high)),
               round(found.backends[size]),
               f'{unaccounted.value:+.0f} \N{PLUS-MINUS SIGN}{half:.0f}',
               found.samples)


def quantum_rows(shown: quantum.QuantumProfile) -> Iterator[_Row]:
    """Each kind of work at each slice, with :data:`QUANTUM_COLUMNS`."""
    for curve in shown.curves:
        for runnable in curve.runnables:
            for point in curve.points_of(runnable):
                is_best = (point.slice_us is not None
                           and point.slice_us == curve.best_us)
                yield (
                    curve.kind, point.runnable,
                    'default' if point.slice_us is None
                    else f'{point.slice_us / 1000:g}',
                    round(curve.normalised(point), 3),
                    '' if point.deviation is None
                    else f'{point.deviation:.1%}',
                    '' if point.mean_run_us is None
                    else round(point.mean_run_us / 1000, 2),
                    _result(curve.kind, point.value_ns),
                    '' if point.median_ns is None
                    else _result(curve.kind, point.median_ns),
                    len(point.values_ns), 'best' if is_best else '')


def _result(kind: str, value_ns: float) -> str:
    """The time to answer, or the work of a second of CPU time."""
    if kind == 'io':
        return f'{value_ns / 1e6:.2f} ms'
    per_second = 1e9 / value_ns
    for prefix, factor in (('M', 1e6), ('k', 1e3)):
        if per_second >= factor:
            return f'{per_second / factor:.3g} {prefix}/s'
    return f'{per_second:.3g} /s'


def quantum_option(shown: quantum.QuantumProfile) -> str | None:
    """The line of an agent's configuration that this recommends.

    :returns: None: there is nothing to recommend
    """
    if not shown.slices_us:
        return None
    return 'quantum_slices = ' + ','.join(
        f'{name}:{slice_us}' for name, slice_us in shown.slices_us.items())


def quantum_verdict(curve: quantum.Curve) -> str:
    """The verdict on a curve, in words."""
    cost = quantum.relative_costs(curve.points)
    slice_us, more = curve.best_us, ''
    if slice_us is None:
        if curve.verdict not in (quantum.BETTER, quantum.AS_DEFAULT):
            return curve.verdict
        # Least alone is not the rule; but there is nothing to be set.
        slice_us = min(filter(None, cost), key=lambda one: cost[one])
        more = '; its class has no slice of its own'
    return (f'{curve.verdict}, {slice_us / 1000:g} ms costs '
            f'{cost[slice_us]:.2f} of the default{more}')
