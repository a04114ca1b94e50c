# SPDX-License-Identifier: Apache-2.0
"""Watch and measure servers: inside by their console, outside by cgroups."""

import dataclasses
import threading
import time

from nova_vqos.calibration import guest
from nova_vqos_lab import cgroups
from nova_vqos_lab import client
from nova_vqos_lab import host as hosts
from nova_vqos_lab import process

_FIRST_ROUND_LIMIT_S = 120
_ROUNDS_LIMIT_S = 180
_CRASHES = ('Kernel panic', 'kernel BUG', 'invalid opcode', 'Oops:')
_LEAST_S = 5
_WATCH_INTERVAL_S = 0.001


@dataclasses.dataclass(frozen=True)
class Speed:
    """What a guest did, in events per second of wall time.

    :ivar steady: over all rounds, without what is between them
    :ivar first: of the first complete round on this host
    :ivar first_at_s: when that was done, in seconds after the guest's first
        output on this host
    :ivar rounds: how many rounds
    :ivar clock_error: how wrong the guest's clock ran, against the machine's
    :ivar cpu_share: CPU time of its vCPU per wall time, by its cgroup
    :ivar began_s: when the first round began, by the monotonic clock, within
        a second
    :ivar ended_s: when the last one ended
    """

    steady: float
    first: float
    first_at_s: float
    rounds: int
    clock_error: float
    cpu_share: float
    began_s: float
    ended_s: float


def measure(server: client.Server, host: hosts.Host, kind: str = 'sysbench',
            *, rounds: int = 8, only_new: bool = False) -> Speed:
    """Measure a server on the host that it is on.

    All rounds on this host count: from the first second on.

    :param host: the one that it is on
    :param kind: of work
    :param rounds: how many, at least
    :param only_new: whether those do not count that began before now
    :raises process.LabError: when the guest does not do them, or crashed
    """
    seen_at: dict[float, float] = {}
    group = host.vcpu_cgroup(server.domain)
    if group is None:
        raise process.LabError(f'{server.name} is not on {host.name}')
    # Time and CPU time, whenever rounds were looked for and found: the boot
    # before them may have to wait for something.
    used: list[tuple[float, int]] = []
    skipped = (1 + len(guest.rounds(server.console().splitlines(), kind))
               if only_new else 0)

    def enough() -> list[guest.Round] | None:
        text = server.console()
        crash = next((one for one in _CRASHES if one in text), None)
        if crash:
            raise process.LabError(
                f'the guest of {server.name} crashed ({crash}): '
                f'{text[text.index(crash):][:300]}')
        found = guest.rounds(text.splitlines(), kind)[skipped:]
        now = time.monotonic()
        if found:
            used.append((now, cgroups.cpu_time_ns(host.hierarchy, group)))
        for one in found:
            seen_at.setdefault(one.uptime_s, now)
        long_enough = used and now - used[0][0] >= _LEAST_S
        return found if long_enough and len(found) >= rounds else None

    found = process.wait_until(
        enough, _FIRST_ROUND_LIMIT_S + _ROUNDS_LIMIT_S,
        f'{rounds} rounds of {kind} of {server.name}', interval_s=0.2)
    (began, used_before_ns), (ended, used_ns) = used[0], used[-1]
    cpu_share = (used_ns - used_before_ns) / 1e9 / (ended - began)
    uptimes = sorted(seen_at)
    # Rounds that were already there when first looked had no time of theirs.
    timed = [one for one in uptimes if seen_at[one] > seen_at[uptimes[0]]]
    clock_error = 0.0
    if len(timed) > 2:
        inside = timed[-1] - timed[0]
        outside = seen_at[timed[-1]] - seen_at[timed[0]]
        clock_error = inside / outside - 1
    first, last = found[0], found[-1]
    return Speed(
        steady=(sum(one.events for one in found)
                / sum(one.elapsed_s for one in found)),
        first=first.events / first.elapsed_s, first_at_s=first.elapsed_s,
        rounds=len(found), clock_error=clock_error, cpu_share=cpu_share,
        # Some rounds may have been done before anybody looked.
        began_s=ended - (last.uptime_s - first.uptime_s + first.elapsed_s),
        ended_s=ended)


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
