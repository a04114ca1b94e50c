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

"""The words of quantum scheduling: vCPUs, sockets, pools and plans.

A *quantum* is how long a vCPU may run before another of the same pCPU does;
Linux calls it the slice of a thread. vCPUs that do best with the same quantum
share a pool of pCPUs, since a long slice only holds among equals (thesis
3.3). Pure: standard library only.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import enum
from fractions import Fraction
import typing as ty

from nova_vqos.quantum import classes

#: What tells a vCPU from all others: its server, and its number there.
Key: ty.TypeAlias = tuple[str, int]
#: A slice in microseconds; None: the kernel's own.
Quantum: ty.TypeAlias = int | None


class PlanError(ValueError):
    """Input that no plan can be made of."""


class NoPcpus(PlanError):
    """There is no pCPU to place vCPUs on."""

    def __init__(self) -> None:
        super().__init__('no pCPU is given: a plan needs at least one')


class PcpuTwice(PlanError):
    """A pCPU, or a socket, is given more than once.

    :ivar what: 'pCPU' or 'socket'
    :ivar number: of it
    """

    def __init__(self, what: str, number: int) -> None:
        self.what = what
        self.number = number
        super().__init__(f'{what} {number} is given more than once')


class VcpuTwice(PlanError):
    """A vCPU is given more than once.

    :ivar server: its server
    :ivar number: of the vCPU
    """

    def __init__(self, server: str, number: int) -> None:
        self.server = server
        self.number = number
        super().__init__(
            f'vCPU {number} of server {server} is given more than once')


class ShareInvalid(PlanError):
    """A vCPU was promised a part of a pCPU's time that is none.

    :ivar server: its server
    :ivar number: of the vCPU
    :ivar share: what was given
    """

    def __init__(self, server: str, number: int,
                 share: Fraction | float) -> None:
        self.server = server
        self.number = number
        self.share = share
        super().__init__(
            f'the share of vCPU {number} of server {server} is {share}, it '
            'must be a fraction from 0 to 1')


class Kind(enum.Enum):
    """What a vCPU does most (thesis 3.3.1.2; its names in parentheses).

    DEFAULT is ours: a vCPU that is to keep the kernel's own slice, or of
    which it is not known yet what it does.
    """

    #: Requests and responses (IOInt).
    IO = 'io'
    #: Spin locks between the vCPUs of a server (ConSpin).
    SPIN = 'spin'
    #: A working set that fits the last-level cache, and needs it (LLCF).
    CACHE = 'cache'
    #: A working set that fits the caches below it (LoLCF).
    NEUTRAL = 'neutral'
    #: One that does not fit, and takes the last-level cache from others
    #: (LLCO).
    POLLUTER = 'polluter'
    DEFAULT = 'default'


#: The quantum class that serves each kind. No quantum is better than another
#: for NEUTRAL and POLLUTER (thesis, figure 3.2 e and f).
QUANTUM_CLASS: ty.Final[Mapping[Kind, str]] = {
    Kind.IO: classes.IO,
    Kind.SPIN: classes.SPIN,
    Kind.CACHE: classes.CACHE,
    Kind.NEUTRAL: classes.NEUTRAL,
    Kind.POLLUTER: classes.NEUTRAL,
    Kind.DEFAULT: classes.DEFAULT,
}

#: Kinds for which any quantum does: they fill up the pools of the others.
AGNOSTIC: ty.Final = frozenset({Kind.NEUTRAL, Kind.POLLUTER})


@dataclasses.dataclass(frozen=True, slots=True)
class Vcpu:
    """A vCPU, and what is known of it.

    :ivar server: what its server is known by
    :ivar number: of the vCPU in its server
    :ivar kind: what it does most
    :ivar pollutes: whether it spoils the last-level cache although it is IO
        or SPIN (thesis 3.3.3: IOInt+, ConSpin+, LLCO cursor over 50); has no
        meaning for other kinds
    :ivar share: the part of one pCPU's time that it was promised, 0 to 1
    """

    server: str
    number: int
    kind: Kind
    pollutes: bool = False
    share: Fraction | int = 0

    @property
    def key(self) -> Key:
        """What tells it from all others."""
        return (self.server, self.number)

    @property
    def is_polluter(self) -> bool:
        """Whether it belongs to the polluters of the first level."""
        return self.kind is Kind.POLLUTER or (
            self.pollutes and self.kind in (Kind.IO, Kind.SPIN))


@dataclasses.dataclass(frozen=True, slots=True)
class Socket:
    """pCPUs that share a last-level cache, as far as servers may use them.

    :ivar number: of the socket
    :ivar cores: pCPU numbers, those of one core (SMT siblings) together:
        ((0, 4), (1, 5)); without offline, isolated and dedicated ones
    """

    number: int
    cores: tuple[tuple[int, ...], ...]

    @property
    def pcpus(self) -> frozenset[int]:
        """The numbers of its pCPUs."""
        return frozenset(pcpu for core in self.cores for pcpu in core)


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """pCPUs of one socket that serve one quantum, and the vCPUs on them.

    :ivar socket: its number
    :ivar pcpus: numbers of the pCPUs
    :ivar slice_us: the slice of all threads of these vCPUs; None: the
        kernel's own
    :ivar vcpus: who runs there
    """

    socket: int
    pcpus: frozenset[int]
    slice_us: Quantum
    vcpus: tuple[Vcpu, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Where each vCPU of a host runs, and with which slice.

    :ivar pools: each vCPU and each pCPU is in exactly one
    :ivar separates: whether vCPUs have to be kept within their pool; False:
        no affinity is touched, only slices are set
    :ivar slices_us: the slice of each quantum class that it was made for, as
        sorted pairs
    """

    pools: tuple[Pool, ...]
    separates: bool = True
    slices_us: tuple[tuple[str, int], ...] = ()


def check(vcpus: Sequence[Vcpu], sockets: Sequence[Socket]) -> None:
    """Refuse what no plan can be made of.

    :raises NoPcpus: when there is none
    :raises PcpuTwice: when a socket or a pCPU is given more than once
    :raises VcpuTwice: when a vCPU is given more than once
    :raises ShareInvalid: when a share is no fraction from 0 to 1
    """
    _check_sockets(sockets)
    seen = set()
    for vcpu in vcpus:
        if vcpu.key in seen:
            raise VcpuTwice(vcpu.server, vcpu.number)
        seen.add(vcpu.key)
        if (not isinstance(vcpu.share, (int, Fraction))
                or not 0 <= vcpu.share.numerator <= vcpu.share.denominator):
            raise ShareInvalid(vcpu.server, vcpu.number, vcpu.share)


def _check_sockets(sockets: Sequence[Socket]) -> None:
    numbers: set[int] = set()
    pcpus: set[int] = set()
    for socket in sockets:
        if socket.number in numbers:
            raise PcpuTwice('socket', socket.number)
        numbers.add(socket.number)
        for core in socket.cores:
            for pcpu in core:
                if pcpu in pcpus:
                    raise PcpuTwice('pCPU', pcpu)
                pcpus.add(pcpu)
    if not pcpus:
        raise NoPcpus()
