# SPDX-License-Identifier: Apache-2.0
"""The messages of the driver to the agents of its host and of others."""

import time

import nova.conf
from oslo_log import log as logging

from nova import rpc
from nova_vqos import policy as policies
from nova_vqos.agent import rpcapi

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# A bus that accepts connections and never answers costs each server that is
# made 5 s, oslo.messaging's own timeout of a connection. The agent finds
# servers by itself, so that a bus in trouble is left alone for a while.
_SLOW_S = 1.0
_PAUSE_S = 60.0


class AgentClient:
    """Sends to agents; a failure never reaches the caller."""

    def __init__(self):
        self._silent_until_s = 0.0

    def lift_limits(self, instance):
        """Have the agent lift the limits on a server that will migrate.

        Waits for that, for seconds at most.
        """
        try:
            policy = _policy_of(instance)
            # A push may have changed who pays: the flavor does not show it.
            if (policy is not None and policy.units is not None
                    and policy.cap == 'hard' and not self._is_silent()):
                _api().lift_limits(CONF.host, instance.uuid)
        except Exception:
            LOG.warning('The vqos agent cannot be asked to lift the limits of '
                        'a server: they may slow its migration',
                        instance=instance, exc_info=True)

    def refusal(self, host, uuid):
        """Ask the agent of another host why that cannot take a server.

        Waits for the answer, for seconds at most.

        :param uuid: of a server whose move was claimed there
        :returns: '' when it can, and when it is not known
        """
        return '' if self._is_silent() else _api().check_server(host, uuid)

    def wake(self, instance):
        """Have the agent inspect a server now, not at its next tick."""
        try:
            policy = _policy_of(instance)
            if policy is None or self._is_silent():
                return
            began_s = time.monotonic()
            sent = _api().wake(CONF.host, instance.uuid, policy)
            now_s = time.monotonic()
            if not sent or now_s - began_s > _SLOW_S:
                self._silent_until_s = now_s + _PAUSE_S
                LOG.warning('The message bus %s: no messages are sent to the '
                            'vqos agent for %d s, it finds servers by itself',
                            f'needed {now_s - began_s:.1f} s' if sent
                            else 'cannot be reached', _PAUSE_S,
                            instance=instance)
        except Exception:
            LOG.warning('The vqos agent cannot be informed of a server, it '
                        'finds it by itself', instance=instance, exc_info=True)

    def _is_silent(self):
        return time.monotonic() < self._silent_until_s


def _policy_of(instance):
    return policies.parse(instance.flavor.extra_specs, instance.flavor.vcpus)


def _api():
    # NOTE: made anew: Nova replaces the transport when a worker starts.
    return rpcapi.AgentAPI(rpc.TRANSPORT, exchange=CONF.vqos_agent.exchange,
                           topic=CONF.vqos_agent.topic)
