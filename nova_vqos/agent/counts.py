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


"""What the agent has done since it started, in numbers."""

import dataclasses


@dataclasses.dataclass(slots=True)
class Counts:
    """Counted by the loop alone.

    :ivar ticks: looks at all servers
    :ivar writes: of caps
    :ivar pins: servers that were pinned to one class of pCPUs
    :ivar restored: writes that undid what somebody else had changed
    :ivar policy_errors: flavors that cannot be honoured
    :ivar errors: what else went wrong, but for billing
    """

    ticks: int = 0
    writes: int = 0
    pins: int = 0
    restored: int = 0
    policy_errors: int = 0
    errors: int = 0
