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

"""What a hypervisor counted of a server's work: the words for it.

Between those who read counters (a hypervisor's driver) and those who tell
what kind of work they are of (``nova_vqos.quantum.sources``). Pure.
"""

from collections.abc import Mapping
import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Activity:
    """Counters of a server at one moment.

    :ivar run: another with each start of the server: counters of two runs are
        never compared
    :ivar requests: packets in both directions and disk requests so far, by
        device; None: not known this time
    :ivar runs: how often each vCPU began to run so far, by its number;
        without those of which it is not known
    :ivar waits: how often each vCPU was seen to wait for another so far, by
        its number; empty where that is not counted
    """

    run: int
    requests: Mapping[str, int] | None
    runs: Mapping[int, int]
    waits: Mapping[int, int]
