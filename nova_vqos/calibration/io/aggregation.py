# SPDX-License-Identifier: Apache-2.0
"""The size of a container of packets, for a budget of delay.

A driver may collect packets and hand over a container of them at once: when it
is full, or when a timer ends that its first packet started. A container costs
less CPU time than its packets one by one, and they wait for it. Linux's
drivers call it coalescing, with a number of frames and a number of
microseconds.

The delay of a packet is the sum of three parts:

* it waits until its container is full, or its timer ends: :class:`Filling`,
  exact for packets that arrive at random (a Poisson process);
* the container waits for those before it: all streams of containers share one
  server, a queue of the kind MAP/PH/1 that :func:`mean_wait_s` solves as a
  quasi-birth-death process;
* it is moved: :class:`Transfer`. Its time is an input, as measured on a host.

Sources: M. Bourguiba et al., Improving Virtual Machines Networking Performance
for Cloud Computing (the model); G. Latouche and V. Ramaswami, A logarithmic
reduction algorithm for quasi-birth-death processes, 1993 (G); M. F. Neuts,
Matrix-geometric solutions in stochastic models, 1981 (R, and the stationary
distribution).

NOTE: the model's equation (9) has a wrong sign: R is A0 (-A1 - A0 G)^-1. And
it prints no service rate, without which no size follows from a budget.
"""

from collections.abc import Sequence
import functools
import math
import typing as ty

import numpy as np
import numpy.typing as npt

_Matrix: ty.TypeAlias = npt.NDArray[np.float64]

#: Of one stream, in the queue that is solved. The wait of steadier streams is
#: extrapolated.
MOST_STAGES = 20
#: Of all streams and the service together.
MOST_PHASES = 144
#: Of a container: more than the rings of virtio hold.
MOST_PACKETS = 4096

_ACCURACY = 1e-12
_MOST_DOUBLINGS = 64
# Between sizes that are tried before the last ones are searched.
_STEP = 1.05


class Arrivals(ty.NamedTuple):
    """A Markovian arrival process (MAP) of containers.

    :ivar hidden: D0, of shape (phases, phases), per second: changes of phase
        without an arrival, and the negative sums of all rates on the diagonal
    :ivar arriving: D1, of the same shape: those with one
    """

    hidden: _Matrix
    arriving: _Matrix


class Service(ty.NamedTuple):
    """A service time of phase type (PH).

    :ivar start: of shape (phases,): probability to begin in each
    :ivar hidden: S, of shape (phases, phases), per second
    """

    start: _Matrix
    hidden: _Matrix


class Transfer(ty.NamedTuple):
    """The time in which a container is moved, its mean.

    :ivar container_s: whatever it holds
    :ivar packet_s: and for each packet
    :ivar stages: of its Erlang distribution: 1 is an exponential one, as in
        the model; the more, the steadier
    """

    container_s: float
    packet_s: float = 0.0
    stages: int = 1


class Delay(ty.NamedTuple):
    """The mean delay of a packet.

    :ivar fill_s: until its container is closed
    :ivar wait_s: of that, for those before it
    :ivar transfer_s: of that
    """

    fill_s: float
    wait_s: float
    transfer_s: float

    @property
    def total_s(self) -> float:
        return sum(self)


class Filling:
    """How a container is filled by packets that arrive at random.

    :ivar packets: mean number of them in a container
    :ivar wait_s: mean time that a packet waits until it is closed
    :ivar regularity: squared mean of the times between containers over their
        variance; of an Erlang distribution, the number of its stages
    """

    def __init__(self, size: int, packets_per_s: float,
                 timer_s: float = math.inf) -> None:
        """
        N(t) packets come within t after the first one, a Poisson number; q(n)
        is P(N(timer) > n). From 0 to the timer's end, the integral of
        P(N(t) = n) is q(n) / rate, and that of t P(N(t) = n) is
        (n + 1) q(n + 1) / rate^2.

        :param size: packets that close a container
        :param timer_s: that closes it, from its first packet on
        """
        more = _more_than(np.arange(size), packets_per_s * timer_s)
        ranks = np.arange(1, size)
        self.packets = 1 + float(more[:-1].sum())
        self.wait_s = float(
            (ranks * more[:-1]).sum() / packets_per_s / self.packets)
        # The first packet comes at random; then the timer runs.
        open_s = float(more[:-1].sum()) / packets_per_s
        variance = (1 + 2 * float((ranks * more[1:]).sum())
                    ) / packets_per_s ** 2 - open_s ** 2
        self.regularity = (self.packets / packets_per_s) ** 2 / variance


def delay(size: int, streams: Sequence[float], transfer: Transfer,
          timer_s: float = math.inf) -> Delay:
    """The mean delay of a packet in containers of a size.

    :param size: packets that close a container, of each stream
    :param streams: packets per second of each; they share one server
    :returns: an endless wait where the server cannot move them all
    :raises ValueError: when an input is not what it may be
    """
    check(streams, transfer, timer_s)
    if not 1 <= size <= MOST_PACKETS:
        raise ValueError(f'size is {size}, it must be a whole number from 1 '
                         f'to {MOST_PACKETS}')
    filled = [Filling(size, rate, timer_s) for rate in streams]
    containers_per_s = [rate / one.packets for rate, one in zip(
        streams, filled, strict=True)]
    packets_per_s, all_per_s = sum(streams), sum(containers_per_s)
    transfer_s = (transfer.container_s
                  + transfer.packet_s * packets_per_s / all_per_s)
    wait_s = _wait_s([one.regularity for one in filled], containers_per_s,
                     erlang_service(transfer.stages, transfer_s))
    return Delay(
        sum(one.wait_s * rate for one, rate in zip(
            filled, streams, strict=True)) / packets_per_s,
        wait_s, transfer_s)


def largest_size(budget_s: float, streams: Sequence[float],
                 transfer: Transfer, most: int = MOST_PACKETS) -> int | None:
    """The largest container whose mean delay is within a budget.

    The larger it is, the less CPU time each packet takes. Sizes that differ
    by less than 5 % are searched only below the largest one that is found
    among the others.

    :param most: packets that it may hold
    :returns: None: there is none, also where small ones would overload the
        server
    :raises ValueError: when an input is not what it may be
    """
    if not (math.isfinite(budget_s) and budget_s > 0):
        raise ValueError(f'budget_s is {budget_s}, it must be more than 0')
    if not 1 <= most <= MOST_PACKETS:
        raise ValueError(f'most is {most}, it must be a whole number from 1 '
                         f'to {MOST_PACKETS}')

    @functools.cache
    def fits(size: int) -> bool:
        check(streams, transfer, math.inf)
        # By far the cheaper part, and the only one of sizes that are too
        # large.
        if (size - 1) * len(streams) / sum(streams) / 2 > budget_s:
            return False
        return delay(size, streams, transfer).total_s <= budget_s

    sizes = _steps(most)
    at = next((index for index in reversed(range(len(sizes)))
               if fits(sizes[index])), None)
    if at is None:
        return None
    fitting, too_large = sizes[at], [*sizes, most + 1][at + 1]
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        if fits(middle):
            fitting = middle
        else:
            too_large = middle
    return fitting


def erlang_arrivals(stages: int, per_s: float) -> Arrivals:
    """Of containers whose distance is Erlang's."""
    rate = stages * per_s
    hidden = rate * (np.eye(stages, k=1) - np.eye(stages))
    arriving = np.zeros((stages, stages))
    arriving[-1, 0] = rate
    return Arrivals(hidden, arriving)


def erlang_service(stages: int, mean_s: float) -> Service:
    """:param mean_s: of all stages together"""
    return Service(np.eye(stages)[0], stages / mean_s * (
        np.eye(stages, k=1) - np.eye(stages)))


def superpose(processes: Sequence[Arrivals]) -> Arrivals:
    """Independent ones together: the Kronecker sums of their matrices."""
    def add(left: _Matrix, right: _Matrix) -> _Matrix:
        return (np.kron(left, np.eye(len(right)))
                + np.kron(np.eye(len(left)), right))
    return functools.reduce(lambda one, other: Arrivals(
        add(one.hidden, other.hidden), add(one.arriving, other.arriving)),
        processes)


def mean_wait_s(arrivals: Arrivals, service: Service) -> float:
    """The mean time that a container waits until it is served.

    The states are (containers, phase of the arrivals, phase of the service).
    By Little's law it is the mean number of waiting containers over their
    rate.

    :returns: infinity where more arrive than can be served
    """
    (hidden, arriving), (start, serving) = arrivals, service
    one, busy = np.eye(len(hidden)), np.eye(len(serving))
    per_s = _stationary(hidden + arriving, one.sum(axis=1)) @ arriving.sum(
        axis=1)
    if per_s * -start @ np.linalg.solve(
            serving, busy.sum(axis=1)) >= 1 - _ACCURACY:
        return math.inf
    done = -serving.sum(axis=1, keepdims=True)
    up = np.kron(arriving, busy)
    same = np.kron(hidden, busy) + np.kron(one, serving)
    down = np.kron(one, done * start)
    ratio = _rate_matrix(up, same, down)
    levels = np.linalg.inv(np.eye(len(ratio)) - ratio)
    # An idle server has the phase that the next service begins in.
    empty = _stationary(np.kron(hidden, busy) + ratio @ down,
                        levels.sum(axis=1))
    waiting = empty @ ratio @ ratio @ levels @ levels.sum(axis=1)
    return float(waiting / per_s)


def _rate_matrix(up: _Matrix, same: _Matrix, down: _Matrix) -> _Matrix:
    """R: up + R same + R^2 down = 0, by a logarithmic reduction.

    Each doubling squares the distance that G sees: of the levels 2, 4, 8 ...
    below.
    """
    eye = np.eye(len(same))
    rise, fall = np.linalg.solve(-same, up), np.linalg.solve(-same, down)
    first_passage, reach = fall.copy(), rise.copy()
    for _ in range(_MOST_DOUBLINGS):
        stay = eye - rise @ fall - fall @ rise
        rise, fall = (np.linalg.solve(stay, one @ one)
                      for one in (rise, fall))
        first_passage += reach @ fall
        reach = reach @ rise
        if np.abs(1 - first_passage.sum(axis=1)).max() < _ACCURACY:
            break
    return np.linalg.solve((-same - up @ first_passage).T, up.T).T


def _stationary(generator: _Matrix, weights: _Matrix) -> _Matrix:
    """x with x generator = 0 and x weights = 1.

    :param generator: of shape (states, states)
    :param weights: of shape (states,)
    """
    system = generator.T.copy()
    # One equation follows from the others.
    system[-1] = weights
    return np.linalg.solve(system, np.eye(len(system))[-1])


def _more_than(numbers: npt.NDArray[np.int64], mean: float) -> _Matrix:
    """Probabilities that a Poisson number is larger.

    :param numbers: from 0 on, without a gap
    """
    if math.isinf(mean):
        return np.ones(len(numbers))
    logs = numbers * math.log(mean) - mean - np.array(
        [math.lgamma(number + 1) for number in numbers])
    return np.clip(1 - np.cumsum(np.exp(logs)), 0, 1)


def _wait_s(regularities: Sequence[float], containers_per_s: Sequence[float],
            service: Service) -> float:
    """The mean wait of containers of several streams.

    Erlang's distributions of as many stages would have too many phases. The
    wait is almost a line over the variability of the streams together, which
    is the mean of theirs by rate: two processes with fewer stages show it.
    """
    def at(most: int) -> tuple[float, float]:
        """:returns: variability, and wait"""
        stages = [max(1, min(most, math.floor(one + 1e-6)))
                  for one in regularities]
        return variability(stages), mean_wait_s(superpose(
            [erlang_arrivals(*one) for one in zip(
                stages, containers_per_s, strict=True)]), service)

    def variability(stages: Sequence[float]) -> float:
        return float(np.average([1 / one for one in stages],
                                weights=containers_per_s))

    most = _most_stages(len(regularities), len(service.hidden))
    (fine, wait_s), true = at(most), variability(regularities)
    if fine <= true * (1 + 1e-6) or most == 1 or math.isinf(wait_s):
        return wait_s
    coarse, more_wait_s = at(max(1, most // 2))
    if coarse <= fine:
        return wait_s
    return max(0.0, wait_s - (more_wait_s - wait_s)
               * (fine - true) / (coarse - fine))


def _most_stages(streams: int, service_stages: int) -> int:
    """Of each stream, so that all have at most MOST_PHASES together."""
    most = MOST_STAGES
    while most > 1 and most ** streams * service_stages > MOST_PHASES:
        most -= 1
    return most


def _steps(most: int) -> list[int]:
    count = math.ceil(math.log(most) / math.log(_STEP)) + 1
    return sorted({min(most, math.ceil(_STEP ** step))
                   for step in range(count)})


def check(streams: Sequence[float], transfer: Transfer,
          timer_s: float) -> None:
    """
    :raises ValueError: when an input is not what it may be
    """
    # NOTE: each stream has two phases at least, or it is a Poisson process.
    most = int(math.log2(MOST_PHASES))
    if not 1 <= len(streams) <= most:
        raise ValueError(f'there are {len(streams)} streams, it must be 1 to '
                         f'{most}')
    for rate in streams:
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f'a stream has {rate} packets/s, it must be more '
                             'than 0')
    for name, value in transfer._asdict().items():
        least = 0 if name == 'packet_s' else 1e-12
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f'{name} is {value}, it must be more than 0')
    if transfer.stages > MOST_STAGES:
        raise ValueError(f'stages is {transfer.stages}, it must be 1 to '
                         f'{MOST_STAGES}')
    if not timer_s > 0:
        raise ValueError(f'timer_s is {timer_s}, it must be more than 0')
