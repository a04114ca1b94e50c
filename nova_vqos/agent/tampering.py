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

"""Who else changes the cap of a server, and how."""

import collections
import dataclasses

from nova_vqos import tuning
from nova_vqos.agent import state
from nova_vqos.hypervisor import base

_REMEMBERED = 10


@dataclasses.dataclass(slots=True)
class Tampering:
    """A cap that somebody else changed.

    :ivar found: the tuning that was found
    :ivar expected: the tuning that was in force before
    :ivar last_right_at: when it was last seen in force, ISO 8601, UTC
    :ivar channel: the way in which it was changed, as far as known
    :ivar restored_at: None: not yet
    """

    seen_at: str
    found: str
    expected: str
    last_right_at: str
    channel: str
    restored_at: str | None = None


class TamperWatch:
    """Remembers what somebody else changed of one server.

    :ivar open: the change that has yet to be restored; None: there is none
    :ivar past: the last of those that were
    """

    def __init__(self) -> None:
        self.open: Tampering | None = None
        self.past: collections.deque[Tampering] = collections.deque(
            maxlen=_REMEMBERED)
        self._found: base.InForce | None = None
        self._last_event: base.Event | None = None

    def take_event(self, event: base.Event, want: tuning.Tune | None) -> None:
        """Take a TUNED event, which may be the echo of what we write.

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
        self.open = Tampering(
            seen_at=state.utc(), found=str(found), expected=str(expected),
            channel='', last_right_at=state.utc(right_ago_s))

    def end(self) -> Tampering | None:
        """The right tuning is in force again.

        :returns: what had been changed; None: nothing
        """
        ended, self.open = self.open, None
        if ended is not None:
            ended.restored_at = state.utc()
            ended.channel = self._channel()
            self.past.append(ended)
        return ended

    def _channel(self) -> str:
        """How the last change of somebody else was made, as far as known."""
        event, self._last_event = self._last_event, None
        if event is not None and self._found is not None and (
                _has_values(self._found, event)):
            values = ', '.join(
                f'{parameter.value} {_text(value)}'
                for parameter, value in event.values.items())
            return f'through libvirt: {values}'
        return 'in the cgroup itself, libvirt told of nothing'


def _is_own(event: base.Event, want: tuning.Tune | None) -> bool:
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
    """Whether one of the values that an event tells of is in force."""
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


def _text(value: int | None) -> str:
    return 'unlimited' if value is None else str(value)
