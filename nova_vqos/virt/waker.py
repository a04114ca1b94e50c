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

"""How the driver tells the agent of this host that a server is there."""

import time

import nova.conf
from oslo_log import log as logging

from nova import rpc
from nova_vqos import policy as policies
from nova_vqos.agent import rpcapi

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# A bus that takes connections and never answers costs each server that is
# made 5 s, oslo.messaging's own timeout of a connection. The agent finds
# servers by itself, so that a bus in trouble is left alone for a while.
_SLOW_S = 1.0
_PAUSE_S = 60.0


class AgentWaker:
    """Makes the agent look at a server now rather than at its next tick."""

    def __init__(self):
        self._silent_until_s = 0.0

    def lift(self, instance):
        """Have the limits on a server's I/O gone before it migrates.

        Waits for that, for seconds at most; it never fails what follows.
        """
        try:
            policy = policies.parse(instance.flavor.extra_specs,
                                    instance.flavor.vcpus)
            # Who pays may have been pushed since: the flavor does not tell.
            if (policy is None or policy.units is None
                    or policy.cap != 'hard'
                    or time.monotonic() < self._silent_until_s):
                return
            rpcapi.AgentAPI(
                rpc.TRANSPORT, exchange=CONF.vqos_agent.exchange,
                topic=CONF.vqos_agent.topic,
            ).lift_limits(CONF.host, instance.uuid)
        except Exception:
            LOG.warning('The vqos agent was not told of a migration: the '
                        'limit on its I/O may slow it', instance=instance,
                        exc_info=True)

    def wake(self, instance):
        """Tell the agent of a server; it never fails what it follows."""
        try:
            policy = policies.parse(instance.flavor.extra_specs,
                                    instance.flavor.vcpus)
            began_s = time.monotonic()
            if policy is None or began_s < self._silent_until_s:
                return
            # NOTE: read now: Nova replaces it when a worker starts.
            sent = rpcapi.AgentAPI(
                rpc.TRANSPORT, exchange=CONF.vqos_agent.exchange,
                topic=CONF.vqos_agent.topic,
            ).wake(CONF.host, instance.uuid, policy.to_dict())
            now_s = time.monotonic()
            if not sent or now_s - began_s > _SLOW_S:
                self._silent_until_s = now_s + _PAUSE_S
                LOG.warning('The bus %s: for %d s the vqos agent is not told '
                            'of servers, and finds them by itself',
                            f'took {now_s - began_s:.1f} s' if sent
                            else 'could not be reached', _PAUSE_S,
                            instance=instance)
        except Exception:
            LOG.warning('The vqos agent was not told, it finds the server by '
                        'itself', instance=instance, exc_info=True)
