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

"""What was measured of slices, as people read it."""

from collections.abc import Iterator, Mapping

from nova_vqos import quantum_profile

COLUMNS = ('kind', 'runnable', 'slice_ms', 'cost', 'deviation', 'mean_run_ms',
           'result', 'median', 'rounds', 'best')


def rows(shown: quantum_profile.QuantumProfile,
         ) -> Iterator[tuple[object, ...]]:
    """What was measured at each slice, with :data:`COLUMNS`."""
    for curve in shown.curves:
        for runnable in curve.runnables:
            for point in curve.of(runnable):
                yield _row(curve, point)


def _row(curve: quantum_profile.Curve,
         point: quantum_profile.Point) -> tuple[object, ...]:
    is_best = (point.slice_us is not None
               and point.slice_us == curve.best_us)
    return (curve.kind, point.runnable,
            'default' if point.slice_us is None
            else f'{point.slice_us / 1000:g}',
            round(curve.normalised(point), 3),
            '' if point.deviation is None else f'{point.deviation:.1%}',
            '' if point.mean_run_us is None
            else round(point.mean_run_us / 1000, 2),
            _result(curve.kind, point.value_ns),
            '' if point.median_ns is None
            else _result(curve.kind, point.median_ns),
            len(point.values_ns), 'best' if is_best else '')


def _result(kind: str, value_ns: float) -> str:
    """Time to answer, or what is done in a second of CPU time."""
    if kind == 'io':
        return f'{value_ns / 1e6:.2f} ms'
    per_second = 1e9 / value_ns
    for prefix, factor in (('M', 1e6), ('k', 1e3)):
        if per_second >= factor:
            return f'{per_second / factor:.3g} {prefix}/s'
    return f'{per_second:.3g} /s'


def option(shown: quantum_profile.QuantumProfile) -> str | None:
    """The line of an agent's configuration that this recommends.

    :returns: None: there is nothing to recommend
    """
    if not shown.slices_us:
        return None
    return 'quantum_slices = ' + ','.join(
        f'{name}:{slice_us}' for name, slice_us in shown.slices_us.items())


def verdict(curve: quantum_profile.Curve) -> str:
    """What follows from a curve, in words."""
    cost = quantum_profile.costs(curve.points)
    if curve.best_us is not None:
        return (f'{curve.verdict}, {_cost(curve.best_us, cost)}')
    if curve.verdict in (quantum_profile.BETTER, quantum_profile.AS_DEFAULT):
        # Least alone is not the rule; but there is nothing to be set.
        least_us = min(filter(None, cost), key=lambda one: cost[one])
        return (f'{curve.verdict}, {_cost(least_us, cost)}; '
                'its class has no slice of its own')
    return curve.verdict


def _cost(slice_us: int, cost: Mapping[int | None, float]) -> str:
    return (f'{slice_us / 1000:g} ms costs {cost[slice_us]:.2f} of the '
            'default')
