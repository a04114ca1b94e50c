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


"""When the agent leaves a sign of life, and what of its host is in it."""

import logging

from nova_vqos.agent import host as hosts
from nova_vqos.agent import state

LOG = logging.getLogger(__name__)


class SignsOfLife:
    """Left again and again, and at once when others have to know.

    :ivar next_at_s: when the next is due, on the loop's clock
    """

    def __init__(self, host: hosts.Host, heartbeat: state.Heartbeat,
                 interval_s: float) -> None:
        """
        :param heartbeat: the file in which they are left
        """
        self.next_at_s = float('-inf')
        self._host = host
        self._heartbeat = heartbeat
        self._interval_s = interval_s
        self._told: tuple[object, ...] = ()
        self._fails = False

    def leave(self, now_s: float) -> None:
        """Leave one, if it is time to, or what matters has changed."""
        host = self._host
        to_tell = (host.profile_id, host.connected, host.dd_billing,
                   host.quantum_classes, host.occupancy)
        if now_s < self.next_at_s and to_tell == self._told:
            return
        self.next_at_s = now_s + self._interval_s
        self._told = to_tell
        try:
            self._heartbeat.write(
                profile_id=host.profile_id, connected=host.connected,
                alarms=host.alarms, dd_billing=host.dd_billing,
                classes=host.quantum_classes,
                quantum=host.occupancy)
            self._fails = False
        except OSError as error:
            if not self._fails:
                LOG.error('No sign of life can be left: the scheduler will '
                          'refuse this host: %s', error)
            self._fails = True
