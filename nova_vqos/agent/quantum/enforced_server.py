# SPDX-License-Identifier: Apache-2.0
"""What the enforcer is given of a server."""

import dataclasses
from fractions import Fraction

from nova_vqos import units


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A server whose slices are enforced.

    :ivar quantum_class: in effect
    :ivar share: the guaranteed part of a pCPU's time of each vCPU
    :ivar cap: of each vCPU; None: no limit
    :ivar pcpus: all that its vCPUs may run on; None: the agent may not change
        its affinity
    :ivar pinned: whether this agent, or an earlier one, pinned any vCPU
    :ivar is_guaranteed: whether it is to be in no pool: the kernel reserves
        nothing for a thread that may not run on all pCPUs
    """

    uuid: str
    name: str
    quantum_class: str
    share: Fraction
    cap: units.CpuCap | None
    pcpus: frozenset[int] | None
    pinned: bool = False
    is_guaranteed: bool = False
