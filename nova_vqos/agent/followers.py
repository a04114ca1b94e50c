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


"""The servers of a host that follow what is pushed; called by the loop."""

from collections.abc import Callable, Mapping
import typing as ty

from nova_vqos import pushed
from nova_vqos.agent import counts as counting
from nova_vqos.agent import server as servers

# An answer names so many servers, and counts the others.
_MOST_NAMED = 100


class Followers:
    """All servers of a loop, as far as they follow what was pushed."""

    def __init__(self, known: Mapping[str, servers.Server],
                 overrides: Callable[[], pushed.Overrides],
                 counts: counting.Counts, clock: Callable[[], float]) -> None:
        """
        :param known: the loop's servers by UUID
        :param overrides: gives what was pushed
        :param clock: monotonic, in seconds
        """
        self._known = known
        self._overrides = overrides
        self._counts = counts
        self._clock = clock

    def follow(self) -> dict[str, ty.Any]:
        """Have all servers follow what was pushed.

        :returns: servers (how many have another policy now), and what
            :meth:`report` tells
        """
        overrides, now_s = self._overrides(), self._clock()
        changed = 0
        for server in self._known.values():
            before = server.policy_errors
            changed += server.follow(overrides, now_s)
            self._counts.policy_errors += len(server.policy_errors - before)
        return {'servers': changed, **self.report()}

    def report(self) -> dict[str, ty.Any]:
        """How servers follow, in primitives.

        :returns: following (how many do); other_units (of these, those whose
            units are not those of the flavor as pushed); refused and
            unmatched (how many do not follow what was pushed of their flavor,
            or of one that might be taken for it), not_following (of the
            latter two: server_uuid, flavor, reason; a hundred at most)
        """
        known = self._known.values()
        refused = [server for server in known if server.following.error]
        unmatched = [server for server in known
                     if server.following.unmatched]
        return {
            'following': sum(server.following.applied is not None
                             for server in known),
            'other_units': sum(server.has_other_units for server in known),
            'refused': len(refused),
            'unmatched': len(unmatched),
            'not_following': [{
                'server_uuid': server.uuid,
                'flavor': ('' if server.domain is None
                           else server.domain.flavor_name),
                'reason': (server.following.error
                           or server.following.unmatched),
            } for server in (refused + unmatched)[:_MOST_NAMED]],
        }
