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

"""Parts of a host's profile, for tests and benchmarks."""

from nova_vqos import io_profile
from nova_vqos import profile
from nova_vqos import quantum_profile
from nova_vqos.calibration.quantum import pick

NOW = '2026-11-21T08:00:00+00:00'


def make_benchmark(name='integer', *, weight=1.0, score=1000.0,
                   half_width=0.0, **changes):
    """A benchmark of a reference."""
    return profile.Benchmark(
        name, 'some work', f'{name} 1.0', 'events per CPU second', 'abc',
        weight, score, half_width)._replace(**changes)


def make_reference(name='gold', *benchmarks):
    """A reference, by one benchmark unless they are given."""
    return profile.Reference(name, NOW, benchmarks or (make_benchmark(),))


def make_score(coefficient, *, width=0.0, benchmark='integer',
               samples=(1000.0,)):
    """A coefficient by one benchmark.

    :param width: of its interval, relative to it
    """
    half = coefficient * width / 2
    return profile.Score(benchmark, coefficient, coefficient - half,
                         coefficient + half, 0, samples)


def make_measurement(coefficient, *, width=0.0, samples=(1000.0,)):
    """A coefficient, by one benchmark: that of make_reference."""
    score = make_score(coefficient, width=width, samples=samples)
    return profile.Measurement(*score[1:4], (score,))


def make_class(pcpus, coefficient, **kwargs):
    """Equal pCPUs, as fast alone as all busy; see make_measurement."""
    measured = make_measurement(coefficient, **kwargs)
    return profile.CpuClass(frozenset(pcpus), measured, measured)


def make_profile(host, *cpu_classes, fingerprint, **others):
    """A profile as a calibration writes it."""
    return profile.Profile(**{
        'created_at': NOW, 'host': host, 'reference': make_reference(),
        'measured_in': 'host', 'fingerprint': fingerprint,
        'cpu_classes': cpu_classes, **others})


def make_measured(request_ns=2000.0, byte_ns=0.125, **changes):
    """What requests of one kind and direction cost."""
    sizes = (64, 9000)
    values = {
        'request': io_profile.Part(request_ns, request_ns - 5,
                                   request_ns + 5),
        'byte': io_profile.Part(byte_ns, byte_ns - 0.1, byte_ns + 0.1),
        'means': {size: request_ns + size * byte_ns for size in sizes},
        'backends': dict.fromkeys(sizes, 1500.0),
        'unaccounted': io_profile.Part(3.0, -10.0, 16.0),
        'samples': 80, 'outliers': 3}
    return io_profile.Measured(**values | changes)


def make_io(**changes):
    """What I/O costs a host's kernel."""
    nothing = make_measured(0.0, 0.0)
    values = {
        'created_at': NOW,
        'interfaces': (
            io_profile.Interface('bridge', make_measured(), nothing),
            io_profile.Interface('nat', make_measured(2500.0), nothing)),
        'disks': (io_profile.Disk('file', False, make_measured(5000.0, 0.0),
                                  make_measured(6000.0, 0.0)),),
        'unmeasured': {'block': 'no spare device'},
        'provenance': {'kernel': '6.1'}}
    return io_profile.IoProfile(**values | changes)


def make_point(slice_us, cost_ns, *, runnable=2, spread=0.01, **changes):
    """What a kind of work cost at a slice, in three rounds."""
    return quantum_profile.Point(**{
        'slice_us': slice_us, 'runnable': runnable,
        'values_ns': (cost_ns * (1 - spread), cost_ns, cost_ns * (1 + spread)),
        'medians_ns': (), 'mean_run_us': float(slice_us or 3000),
        'disturbed': 0} | changes)


def make_curve(kind, costs_ns, **changes):
    """A kind of work beside one and three others alike.

    :param costs_ns: by slice, None: the kernel's default
    """
    return pick.curve(kind, [
        make_point(slice_us, cost_ns, runnable=runnable, **changes)
        for runnable in (2, 4) for slice_us, cost_ns in costs_ns.items()])


def make_quantum(**changes):
    """Which slices are best on a host, as in the research."""
    costs_ns = {None: 100.0, 1000: 100.0, 30_000: 100.0, 90_000: 100.0}
    return quantum_profile.QuantumProfile(**{
        'created_at': NOW, 'curves': (
            make_curve('io', {None: 4e6, 1000: 1e6, 30_000: 3e7,
                              90_000: 9e7}, medians_ns=(1e6, 2e6, 3e6)),
            make_curve('cache', costs_ns | {90_000: 40.0}),
            make_curve('neutral', costs_ns)),
        'unmeasured': {'spin': 'both sides of a lock need an idle pCPU each',
                       'polluter': 'not wanted'},
        'provenance': {'pcpus': '3', 'kernel': '6.18'}} | changes)
