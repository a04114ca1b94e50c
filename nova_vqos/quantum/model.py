# SPDX-License-Identifier: Apache-2.0
"""vCPUs, sockets, pools and plans of quantum scheduling.

A *quantum* is how long a vCPU may run before another of the same pCPU does;
Linux calls it the slice of a thread. vCPUs that do best with the same quantum
share a pool of pCPUs, since a long slice only holds among equals (thesis
3.3). Pure.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import enum
from fractions import Fraction
import typing as ty

from nova_vqos.quantum import classes

#: Identifies a vCPU: its server, and its number in that server.
Key: ty.TypeAlias = tuple[str, int]
#: A slice in microseconds; None: the kernel's own.
Quantum: ty.TypeAlias = int | None
#: Of a pCPU: what a vCPU wants of which nothing is known.
TENTHS: ty.Final = 10


class PlanError(ValueError):
    """No plan can be made from this input."""


class Kind(enum.Enum):
    """The main work of a vCPU (thesis 3.3.1.2; its names in parentheses).

    DEFAULT is ours: the vCPU runs with the kernel's own slice, or has not
    been recognised yet.
    """

    #: Requests and responses (IOInt).
    IO = 'io'
    #: Spin locks between the vCPUs of a server (ConSpin).
    SPIN = 'spin'
    #: A working set that fits into the last-level cache (LLCF).
    CACHE = 'cache'
    #: A working set that fits into the caches below it (LoLCF).
    NEUTRAL = 'neutral'
    #: A working set that overflows the last-level cache, and so evicts that
    #: of others (LLCO).
    POLLUTER = 'polluter'
    DEFAULT = 'default'


#: The quantum class of each kind. NEUTRAL and POLLUTER run equally well with
#: any quantum (thesis, figure 3.2 e and f).
QUANTUM_CLASS: ty.Final[Mapping[Kind, str]] = {
    Kind.IO: classes.IO,
    Kind.SPIN: classes.SPIN,
    Kind.CACHE: classes.CACHE,
    Kind.NEUTRAL: classes.NEUTRAL,
    Kind.POLLUTER: classes.NEUTRAL,
    Kind.DEFAULT: classes.DEFAULT,
}

#: Kinds that any quantum suits: they fill up the pools of the others.
AGNOSTIC: ty.Final = frozenset({Kind.NEUTRAL, Kind.POLLUTER})


@dataclasses.dataclass(frozen=True, slots=True)
class Vcpu:
    """A vCPU to be placed.

    :ivar server: the name of its server
    :ivar number: of the vCPU in its server
    :ivar kind: its main work
    :ivar pollutes: whether it pollutes the last-level cache although it is IO
        or SPIN (thesis 3.3.3: IOInt+, ConSpin+, LLCO cursor over 50) or has
        the kernel's own slice; has no meaning for other kinds
    :ivar share: the guaranteed part of one pCPU's time, 0 to 1
    :ivar tenths: of a pCPU's time that it was seen to want at most
    :ivar cap: likewise, that its cap leaves it, 0 to 1
    """

    server: str
    number: int
    kind: Kind
    pollutes: bool = False
    share: Fraction | int = 0
    tenths: int = TENTHS
    cap: Fraction | int = 1

    @property
    def key(self) -> Key:
        """Identifies it among all vCPUs of the host."""
        return (self.server, self.number)

    @property
    def is_polluter(self) -> bool:
        """Whether the first level of clustering treats it as a polluter."""
        return self.kind is Kind.POLLUTER or (
            self.pollutes
            and self.kind in (Kind.IO, Kind.SPIN, Kind.DEFAULT))


@dataclasses.dataclass(frozen=True, slots=True)
class Socket:
    """pCPUs that share a last-level cache and that servers may use.

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
    :ivar slice_us: of all threads of these vCPUs; None: the kernel's own
    :ivar vcpus: on these pCPUs
    """

    socket: int
    pcpus: frozenset[int]
    slice_us: Quantum
    vcpus: tuple[Vcpu, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Where each vCPU of a host runs, and with which slice.

    :ivar pools: each vCPU and each pCPU is in exactly one
    :ivar separates: whether vCPUs must be confined to their pool; False: only
        slices are set, no affinity
    :ivar slices_us: the input slice of each quantum class, as sorted pairs
    """

    pools: tuple[Pool, ...]
    separates: bool = True
    slices_us: tuple[tuple[str, int], ...] = ()


def check(vcpus: Sequence[Vcpu], sockets: Sequence[Socket]) -> None:
    """Refuse input that no plan can be made from.

    :raises PlanError: when there is no pCPU; when a socket, a pCPU or a vCPU
        is given more than once; when a share is no fraction from 0 to 1
    """
    _check_sockets(sockets)
    seen = set()
    for vcpu in vcpus:
        if vcpu.key in seen:
            raise PlanError(f'vCPU {vcpu.number} of server {vcpu.server} is '
                            'given more than once')
        seen.add(vcpu.key)
        if (not isinstance(vcpu.share, (int, Fraction))
                or not 0 <= vcpu.share.numerator <= vcpu.share.denominator):
            raise PlanError(
                f'the share of vCPU {vcpu.number} of server {vcpu.server} is '
                f'{vcpu.share}, it must be a fraction from 0 to 1')


def _check_sockets(sockets: Sequence[Socket]) -> None:
    numbers: set[int] = set()
    pcpus: set[int] = set()
    for socket in sockets:
        if socket.number in numbers:
            raise PlanError(
                f'socket {socket.number} is given more than once')
        numbers.add(socket.number)
        for core in socket.cores:
            for pcpu in core:
                if pcpu in pcpus:
                    raise PlanError(f'pCPU {pcpu} is given more than once')
                pcpus.add(pcpu)
    if not pcpus:
        raise PlanError('a plan needs at least one pCPU')
