# SPDX-License-Identifier: Apache-2.0
"""For how long a real guest runs with a wrong cap, seen from the machine."""

import contextlib
import dataclasses
import os
import re
import threading
import time

from nova_vqos.tests.gate import machine
from nova_vqos_lab import cgroups

#: What a vCPU may have run before it counts as running: the grain of the clock
#: that charges its group.
NOTHING_NS = 1_000_000

_INTERVAL_S = 0.001
_VCPU = re.compile('vcpu[0-9]+')


@dataclasses.dataclass
class _Span:
    """A time for which a vCPU had one cap.

    :ivar began_s: when that was seen first; while it has not run at all, when
        it was seen last: on the target of a migration it is there before
    :ivar ran_ns: what the vCPU had run on the host when that was last seen
    """

    cap: tuple[int, int]
    began_s: float
    ended_s: float
    ran_ns: int


class CapWatch:
    """Watches the caps of all vCPUs that a guest has, or gets, on a host."""

    def __init__(self, guest, host=None):
        self._name = guest.name
        self._host = host or guest.host
        self._spans = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._still = machine.Standstill()
        self._began_s = 0.0

    def __enter__(self):
        self._began_s = time.monotonic()
        self._still.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_exception):
        self._stop.set()
        self._thread.join()
        self._still.__exit__()

    def lost_ms(self):
        """For how long the machine stood still, and corrected no cap."""
        return 1000 * self._still.lost_s(self._began_s, time.monotonic())

    def wrong_ms(self, cap, since_s=0.0):
        """For how long any vCPU had another cap, after it began to run.

        :param cap: quota and period of each vCPU
        :param since_s: on the monotonic clock; what was before does not count
        """
        return self._wrong_ms(cap, since_s, lambda _began_s, _ended_s: 0.0)

    def late_ms(self, cap, since_s=0.0):
        """Likewise, but for the time that the machine stood still."""
        return self._wrong_ms(cap, since_s, self._still.lost_s)

    def _wrong_ms(self, cap, since_s, lost_s):
        assert any(span.ran_ns > NOTHING_NS for spans in self._spans.values()
                   for span in spans), f'{self._name} was not seen to run'

        def wrong_s(span):
            began_s = max(span.began_s, since_s)
            return (span.ended_s - began_s) - lost_s(began_s, span.ended_s)

        found_ms = max(sum(
            wrong_s(span) for span in spans
            if span.cap != cap and span.ended_s > since_s
            and span.ran_ns > NOTHING_NS) * 1000
            for spans in self._spans.values())
        print(f'{self._name} on {self._host.name}: {found_ms:.1f} ms with '
              f'another cap than {cap}')
        return found_ms

    def caps(self):
        """:returns: the caps that each vCPU had after it began to run, by its
            group
        """
        return {group: [span.cap for span in spans
                        if span.ran_ns > NOTHING_NS]
                for group, spans in sorted(self._spans.items())}

    def _watch(self):
        # Also beside guests that take all of the machine. Kernels that give
        # real time by group refuse it to most groups.
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK,
                                  os.sched_param(1))
        while not self._stop.wait(_INTERVAL_S):
            group = self._host.vcpu_cgroup(self._name)
            if group is None:
                continue
            domain = os.path.dirname(group)
            try:
                self._look(domain)
            except OSError:
                # The guest, or a vCPU, has just gone.
                continue

    def _look(self, domain):
        hierarchy = self._host.hierarchy
        for name in os.listdir(hierarchy.directory('cpu', domain)):
            if not _VCPU.fullmatch(name):
                continue
            group = f'{domain}/{name}'
            # The time first: what it has run so far, it ran under a cap no
            # newer than the one that is read then.
            ran_ns = cgroups.cpu_time_ns(hierarchy, group)
            cap = cgroups.read_cap(hierarchy, group)
            self._record(group, cap, ran_ns, time.monotonic())

    def _record(self, group, cap, ran_ns, now_s):
        # Another run of the guest has other groups.
        spans = self._spans.setdefault(group, [])
        if spans:
            if spans[-1].ran_ns <= NOTHING_NS:
                spans[-1].began_s = spans[-1].ended_s
            spans[-1].ended_s = now_s
        if spans and spans[-1].cap == cap:
            spans[-1].ran_ns = ran_ns
        else:
            spans.append(_Span(cap, now_s, now_s, ran_ns))
