# SPDX-License-Identifier: Apache-2.0
"""Who else changes the cap of a server, and how."""

import collections
import dataclasses
import time

from nova_vqos import cputune
from nova_vqos import utc
from nova_vqos.agent.messages import enforcement
from nova_vqos.hypervisor import base

_REMEMBERED = 10
# What an operator should look at must not come and go with each restoration.
_ALARM_S = 60.0


class TamperWatch:
    """Remembers the changes of other writers to one server.

    :ivar open: the change that has yet to be restored; None: there is none
    :ivar past: the last of those that were
    :ivar count: changes that were seen; of several between two readings one is
    :ivar problem: other writers are, or were lately, too fast to be restored
        each time; '': they are not
    """

    def __init__(self) -> None:
        self.open: enforcement.Tampering | None = None
        self.past: collections.deque[enforcement.Tampering] = (
            collections.deque(maxlen=_REMEMBERED))
        self.count = 0
        self.problem = ''
        self._problem_until_s = float('-inf')
        self._found: base.InForce | None = None
        self._last_event: base.Event | None = None

    def observe(self, event: base.Event, want: cputune.CpuTune | None) -> None:
        """Remember a TUNED event, unless it is the echo of what we write.

        :param want: what we write, if anything
        """
        if not _is_own(event, want):
            self._last_event = event

    def begin(self, found: base.InForce, expected: base.InForce | None,
              right_ago_s: float) -> None:
        """Another tuning than the right one is in force, and not by us.

        :param expected: what was in force before
        :param right_ago_s: when that was last seen
        """
        self._found = found
        self.count += 1
        self.open = enforcement.Tampering(
            seen_at=utc.text(), found=str(found), expected=str(expected),
            channel='', last_right_at=utc.text(time.time() - right_ago_s))

    def continue_with(self, found: base.InForce) -> None:
        """Another change was made before the last was restored."""
        self._found = found
        self.count += 1

    def exceed(self, problem: str, now_s: float) -> None:
        """Record that a change is not restored, since there are too many.

        :param problem: what an operator should know
        """
        if not self.problem:
            # With the values of one change: they may differ in each.
            self.problem = f'{problem}, last seen {self._last_channel()}'
        self._problem_until_s = now_s + _ALARM_S

    def expire_problem(self, now_s: float) -> bool:
        """End the problem when it has been over for a while.

        :returns: whether it ended now
        """
        if now_s < self._problem_until_s:
            return False
        self.problem = ''
        return True

    def end(self) -> enforcement.Tampering | None:
        """Record that the right tuning is in force again.

        :returns: what had been changed; None: nothing
        """
        if self.open is None:
            return None
        ended = dataclasses.replace(
            self.open, restored_at=utc.text(), channel=self._channel())
        self.past.append(ended)
        self.open = None
        return ended

    def _last_channel(self) -> str:
        return self.past[-1].channel if self.past else 'in an unknown way'

    def _channel(self) -> str:
        """How the last foreign change was made, as far as known."""
        event, self._last_event = self._last_event, None
        if event is not None and self._found is not None and (
                _has_values(self._found, event)):
            values = ', '.join(
                f'{parameter.value} {"unlimited" if value is None else value}'
                for parameter, value in event.values.items())
            return f'through libvirt: {values}'
        return 'in the cgroup itself, without an event of libvirt'


def _is_own(event: base.Event, want: cputune.CpuTune | None) -> bool:
    """Whether a TUNED event is only the echo of what we write ourselves."""
    if want is None:
        return False
    cap, domain = want.cap, want.domain
    ours: dict[base.Parameter, int | None] = {
        base.Parameter.DOMAIN_QUOTA_US: (None if domain is None
                                         else domain.quota_us),
        base.Parameter.SHARES: want.shares,
        base.Parameter.QUOTA_US: None if cap is None else cap.quota_us,
    }
    if cap is not None:
        ours[base.Parameter.PERIOD_US] = cap.period_us
    if domain is not None:
        ours[base.Parameter.DOMAIN_PERIOD_US] = domain.period_us
    return all(parameter in ours and ours[parameter] == value
               for parameter, value in event.values.items())


def _has_values(in_force: base.InForce, event: base.Event) -> bool:
    """Whether one of the values of an event is in effect."""
    limits = in_force.vcpus.values()
    found: dict[base.Parameter, set[int | None]] = {
        base.Parameter.DOMAIN_QUOTA_US: {in_force.domain.quota_us},
        base.Parameter.DOMAIN_PERIOD_US: {in_force.domain.period_us},
        base.Parameter.SHARES: {in_force.shares},
        base.Parameter.QUOTA_US: {limit.quota_us for limit in limits},
        base.Parameter.PERIOD_US: {limit.period_us for limit in limits},
    }
    return any(value in found[parameter]
               for parameter, value in event.values.items())
