# SPDX-License-Identifier: Apache-2.0
"""Visits of a server to two hosts, and what they are divided into.

A stay is from when a server comes to a host until it leaves. What is between
two moves is two visits, so that they follow each other as A, B B, A A, ..., B
B, A. A visit is blocks of ten periods, one after the other.
"""

from collections.abc import Sequence
import typing as ty

import numpy as np

from nova_vqos_lab import meter

BLOCK_PERIODS = 10
VISIT_BLOCKS = 13
#: After a server comes to a host, before its first block there.
SETTLED_NS = 2 * 10**9
#: How far CPU time may be from the cap, in each window of that length.
CPU_TOLERANCE = 0.003
JUDGED_WINDOW_S = 10

T = ty.TypeVar('T')


def counts(cycles: int) -> list[int]:
    """:returns: of visits in each stay"""
    return [1, *[2] * (2 * cycles - 1), 1]


def in_cycles(visits: Sequence[T]) -> list[tuple[T, T, T, T]]:
    """:returns: those that are whole, in the order A B B A"""
    return [(visits[at], visits[at + 1], visits[at + 2], visits[at + 3])
            for at in range(0, len(visits) - 3, 4)]


def block_ns(period_us: int) -> int:
    """:returns: the length of a block"""
    return BLOCK_PERIODS * period_us * 1000


def block_edges_ns(began_ns: int, period_us: int) -> meter.Integers:
    """:returns: where the blocks of a visit begin and end"""
    return began_ns + np.arange(VISIT_BLOCKS + 1) * block_ns(period_us)


def cpu_errors(server: meter.Series, share: float,
               length_s: int) -> tuple[float, ...]:
    """:param server: from its first moment on the host on
    :param share: of a pCPU, by its cap
    :returns: CPU time in each window of that length over the cap, less 1
    """
    edges_ns = server.edges_ns(length_s * 10**9)
    return listed(server.cpu_between_ns(edges_ns)
                  / (share * length_s * 10**9) - 1)


def still(server: meter.Series, length_s: int) -> tuple[float, ...]:
    """:returns: of each window of that length, the share in which the machine
        stood still
    """
    edges_ns = server.edges_ns(length_s * 10**9)
    return listed(server.still_between_ns(edges_ns) / (length_s * 10**9))


def is_cpu_time_exact(errors: Sequence[float], share: float,
                      quota_s: float) -> bool:
    """:param errors: of windows of JUDGED_WINDOW_S
    :returns: whether CPU time is the cap in each, but for one quota more in
        the first: a cap is a bucket that is full at first
    """
    first, *others = errors
    one_quota = quota_s / (JUDGED_WINDOW_S * share)
    return (all(abs(error) <= CPU_TOLERANCE for error in others)
            and -CPU_TOLERANCE <= first <= CPU_TOLERANCE + one_quota)


def listed(numbers: meter.Floats) -> tuple[float, ...]:
    """:returns: the same, as dataclasses and JSON have them"""
    return tuple(numbers.tolist())
