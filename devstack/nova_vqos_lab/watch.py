# SPDX-License-Identifier: Apache-2.0
"""Watch and measure servers: inside by their console, outside by cgroups."""

from collections.abc import Mapping
import dataclasses
import statistics
import threading
import time

from nova_vqos.calibration import guest
from nova_vqos_lab import cgroups
from nova_vqos_lab import client
from nova_vqos_lab import host as hosts
from nova_vqos_lab import process

_FIRST_ROUND_LIMIT_S = 120
_ROUNDS_LIMIT_S = 180
# The guests that are watched never end by themselves.
_CRASHES = ('Kernel panic', 'kernel BUG', 'invalid opcode', 'Oops:',
            'reboot: Power down')
_LEAST_S = 5
_WATCH_INTERVAL_S = 0.001


@dataclasses.dataclass(frozen=True)
class Speed:
    """What a guest did, in events per second of wall time.

    :ivar steady: over all rounds, without what is between them
    :ivar unsteady: by how much most rounds were faster than that, 0.1 is 10 %:
        in some of them the machine stood still
    :ivar rounds: how many rounds
    :ivar clock_error: how wrong the guest's clock ran, against the machine's
    :ivar clock_s: for how long the two were compared; 0: for too short
    :ivar late_s: by how much the first or the last of the rounds that were
        compared may have been seen too late
    :ivar began_s: when the first round began, by the monotonic clock, within
        a second
    :ivar ended_s: when the last one ended
    """

    steady: float
    unsteady: float
    rounds: int
    clock_error: float
    clock_s: float
    late_s: float
    began_s: float
    ended_s: float


def measure(servers: Mapping[client.Server, tuple[hosts.Host, str]], *,
            rounds: int = 8, only_new: bool = False
            ) -> dict[client.Server, Speed]:
    """Measure servers, all at the same time.

    All rounds on this host count: from the first second on.

    :param servers: with the host that each is on, and the kind of its work
    :param rounds: how many of each, at least
    :param only_new: whether those do not count that began before now
    :raises process.LabError: when a guest does not do them, or crashed
    """
    watched = [_Watched(server, host, kind, only_new=only_new)
               for server, (host, kind) in servers.items()]

    def enough() -> bool:
        # Each of them, since each notes when its rounds came.
        looks = [one.look(rounds) for one in watched]
        return all(looks)

    process.wait_until(
        enough, _FIRST_ROUND_LIMIT_S + _ROUNDS_LIMIT_S,
        f'{rounds} rounds of ' + ' and '.join(
            f'{kind} of {server.name}'
            for server, (_, kind) in servers.items()), interval_s=0.2)
    return {one.server: one.speed() for one in watched}


class _Watched:
    """A server whose rounds are looked for again and again."""

    def __init__(self, server: client.Server, host: hosts.Host, kind: str, *,
                 only_new: bool) -> None:
        if host.vcpu_cgroup(server.domain) is None:
            raise process.LabError(f'{server.name} is not on {host.name}')
        self.server = server
        self._kind = kind
        self._skipped = (
            1 + len(guest.rounds(server.console().splitlines(), kind))
            if only_new else 0)
        self._found: list[guest.Round] = []
        # When each was first seen, by its uptime.
        self._seen_at: dict[float, float] = {}
        # How long before that the last look was.
        self._late_s: dict[float, float] = {}
        self._looked_at_s = time.monotonic()

    def look(self, rounds: int) -> bool:
        """:returns: whether so many have been found, in a time long enough"""
        text = self.server.console()
        crash = next((one for one in _CRASHES if one in text), None)
        if crash:
            raise process.LabError(
                f'the guest of {self.server.name} crashed ({crash}): '
                f'{text[text.index(crash):][:300]}')
        self._found = guest.rounds(text.splitlines(),
                                   self._kind)[self._skipped:]
        now = time.monotonic()
        for one in self._found:
            self._seen_at.setdefault(one.uptime_s, now)
            self._late_s.setdefault(one.uptime_s, now - self._looked_at_s)
        self._looked_at_s = now
        return (len(self._found) >= rounds
                and now - min(self._seen_at.values()) >= _LEAST_S)

    def speed(self) -> Speed:
        """:returns: by all rounds that were found"""
        first, last = self._found[0], self._found[-1]
        ended_s = self._seen_at[last.uptime_s]
        clock_error, clock_s, late_s = self._clock_error()
        steady = (sum(one.events for one in self._found)
                  / sum(one.elapsed_s for one in self._found))
        usual = statistics.median(one.events / one.elapsed_s
                                  for one in self._found)
        return Speed(
            steady=steady, unsteady=max(0.0, usual / steady - 1),
            rounds=len(self._found), clock_error=clock_error, clock_s=clock_s,
            late_s=late_s,
            # Some rounds may have been done before anybody looked.
            began_s=ended_s - (last.uptime_s - first.uptime_s
                               + first.elapsed_s),
            ended_s=ended_s)

    def _clock_error(self) -> tuple[float, float, float]:
        """:returns: as Speed has them: clock_error, clock_s, late_s"""
        uptimes = sorted(self._seen_at)
        # Rounds that were already there when first looked had no time of
        # theirs.
        timed = [one for one in uptimes
                 if self._seen_at[one] > self._seen_at[uptimes[0]]]
        if len(timed) <= 2:
            return 0.0, 0.0, 0.0
        inside_s = timed[-1] - timed[0]
        outside_s = self._seen_at[timed[-1]] - self._seen_at[timed[0]]
        # On a busy machine one look may find all of them.
        if not outside_s:
            return 0.0, 0.0, 0.0
        return inside_s / outside_s - 1, outside_s, max(
            self._late_s[one] for one in (timed[0], timed[-1]))


class CapWatch:
    """Watches the cap of a guest that is about to come to a host.

    A thread reads the cgroup of the first vCPU from the moment that there is
    one, together with the CPU time that the vCPU has used by then.

    :ivar seen: (quota, period, CPU time in ns), one for each change of cap
    """

    def __init__(self, host: hosts.Host, domain: str) -> None:
        self._host = host
        self._domain = domain
        self.seen: list[tuple[int, int, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> 'CapWatch':
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def caps(self) -> list[tuple[int, int]]:
        """:returns: the caps seen, without the time before libvirt wrote
            the first one."""
        return [(quota, period) for quota, period, _ in self.seen
                if quota != -1]

    @property
    def used_before_ns(self) -> int | None:
        """CPU time that the vCPU had used when its first cap was seen."""
        return next((used for quota, _, used in self.seen if quota != -1),
                    None)

    def _watch(self) -> None:
        hierarchy = self._host.hierarchy
        while not self._stop.wait(_WATCH_INTERVAL_S):
            group = self._host.vcpu_cgroup(self._domain)
            if group is None:
                continue
            try:
                cap = cgroups.read_cap(hierarchy, group)
                used_ns = cgroups.cpu_time_ns(hierarchy, group)
            except OSError:
                continue
            if not self.seen or self.seen[-1][:2] != cap:
                self.seen.append((*cap, used_ns))
