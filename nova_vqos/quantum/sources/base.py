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

"""Where it is seen what vCPUs do: the contract of the sources.

A source knows one thing or two of the four in a
:class:`~nova_vqos.quantum.recognition.Sample`. Sources are found by name in
the stevedore namespace ``nova_vqos.quantum_sources``, and made without
arguments; of two that know the same the first counts. One that cannot work on
this host says so, and says nothing else.
"""

import abc
from collections.abc import Mapping
import dataclasses

from nova_vqos.quantum import activity
from nova_vqos.quantum import recognition

#: What a source that learns from servers says before there was one.
NOT_LOOKED = 'no server was looked at yet'

#: A server's UUID and the number of one of its vCPUs.
Key = tuple[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """One look at all servers that are to be recognised.

    :ivar now_s: on the monotonic clock
    :ivar servers: by UUID, the thread id of each vCPU by its number
    :ivar activities: by UUID, what the hypervisor counted of them; those of
        which it does not know now are left out
    """

    now_s: float
    servers: Mapping[str, Mapping[int, int]]
    activities: Mapping[str, activity.Activity]


class Source(abc.ABC):
    """Sees one kind of work."""

    @abc.abstractmethod
    def available(self) -> str:
        """Whether it sees anything, as of the last look.

        :returns: '' if so; else what is missing, in words for an operator
        """

    @abc.abstractmethod
    def read(self, look: Look) -> Mapping[Key, recognition.Sample]:
        """What vCPUs did since the last look, in bulk.

        Forgets whoever is not looked at any more. Never raises for one
        server or thread that goes meanwhile.

        :returns: those of which it is known; with what it sees, and None for
            all else
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything; again is harmless. Never raises."""
