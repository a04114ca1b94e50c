# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of a profile that memory bounds, for a short check.

They are no part of the coefficient, but servers may be promised their speed.
They take memory and its bandwidth from servers, which no idle priority
prevents. So they run where no other work is, and for seconds.
"""

from nova_vqos import cpuset
from nova_vqos.calibration import benchmark
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.run import Effort
from nova_vqos.profile import cpu

#: As many rounds as the profile has of what is only reported.
EFFORT = Effort(max_rounds=8, max_s=20)
#: Memory-bound scores scatter more than others.
TOLERANCE = 0.1

# A host that is busier than this has other work.
_MOST_BUSY = 0.05
_LOAD_CHECK_S = 1
# Of the memory that programs can have.
_MOST_MEMORY = 0.5


def members(reference: cpu.Reference) -> tuple[benchmark.Member, ...]:
    """Those of a reference that are installed, bound by memory and reported.

    One with a weight is part of the coefficient, and is verified with it.

    :raises CalibrationError: when this host has another version of one
    """
    installed = benchmark.names()
    found = []
    for known in reference.benchmarks:
        if known.weight or known.name not in installed:
            continue
        if benchmark.load(known.name, {}).memory_bound:
            found.append(benchmark.Member(
                known.name, benchmark.load_as(known, {}), known.weight))
    return tuple(found)


def check_room(pcpus: frozenset[int],
               measured: tuple[benchmark.Member, ...],
               sysroot: str = '/') -> None:
    """See that the pCPUs are idle, and that there is memory enough.

    :raises CalibrationError: when they are not, or there is not
    """
    load = host_cpus.load(pcpus, _LOAD_CHECK_S, sysroot)
    if load.guests_at_work or load.busy > _MOST_BUSY:
        raise CalibrationError(
            f'pCPUs {cpuset.format_pcpus(pcpus)} are {load.busy:.0%} busy, '
            f'guests use {load.guests_pcpus:.2f} of them: that would be '
            'disturbed')
    wanted = len(pcpus) * 2**20 * max(
        member.benchmark.memory_mib for member in measured)
    if wanted > _MOST_MEMORY * host_cpus.available_bytes(sysroot):
        raise CalibrationError(
            f'it takes {wanted / 2**30:.1f} GiB of memory, more than '
            f'{_MOST_MEMORY:.0%} of what is available')
