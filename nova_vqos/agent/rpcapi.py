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

"""How other processes talk to a host's agent.

The caller brings its own transport, so that this module needs nothing but
oslo.messaging: nova-compute uses its bus, a command line tool its own.
"""

from collections.abc import Mapping
import logging
from typing import Any

import oslo_messaging

LOG = logging.getLogger(__name__)

# NOTE: both sides name the exchange, since the default of [DEFAULT]
# control_exchange differs between Nova ('nova') and everybody else
# ('openstack').
EXCHANGE = 'nova_vqos'
TOPIC = 'vqos-agent'
VERSION = '1.2'
# What is asked of an agent that may be older than the one who asks.
_LEAST_VERSION = '1.0'


class AgentError(Exception):
    """What the agent answers instead of a result."""


class InvalidArgument(AgentError):
    """An argument of a call is not what it has to be."""


class UnknownServer(AgentError):
    """The server does not run on this host."""


class AgentAPI:
    """Client side of the agent's RPC, version 1.2.

    The context is always empty: the agent needs none, and a context of Nova
    would carry the user's token to it.
    """

    def __init__(self, transport: Any, *, exchange: str = EXCHANGE,
                 topic: str = TOPIC) -> None:
        """Prepare a client; nothing is sent or connected yet.

        :param transport: an RPC transport of oslo.messaging
        :param exchange: as the agent's [vqos_agent] exchange
        :param topic: as the agent's [vqos_agent] topic
        """
        target = oslo_messaging.Target(
            exchange=exchange, topic=topic, version=_LEAST_VERSION)
        # retry=0: None, the default, would wait for a dead bus for ever.
        self._client = oslo_messaging.get_rpc_client(
            transport, target, retry=0,
            serializer=oslo_messaging.NoOpSerializer())

    def wake(self, host: str, server_uuid: str,
             policy: Mapping[str, Any] | None) -> bool:
        """Tell the agent of a host to look at a server now.

        A hint: the agent reads the policy from the domain itself, and finds
        it at its next tick if the hint is lost. So this never raises.

        :param host: CONF.host of the agent
        :param server_uuid: UUID of the server
        :param policy: ServerPolicy.to_dict() of the server, or None
        :returns: whether the message was handed to the bus
        """
        arguments = {
            'server_uuid': str(server_uuid),
            'policy': None if policy is None else dict(policy),
        }
        try:
            self._client.prepare(server=host).cast(
                {}, 'apply_policy', **arguments)
        except Exception as exc:
            # A boot must go on whatever the bus or its driver raises.
            LOG.warning('The vqos agent of host %s was not told of server '
                        '%s, it finds it by itself: %s', host, server_uuid,
                        exc)
            return False
        return True

    def get_host(self, host: str, timeout: float = 10) -> dict[str, Any]:
        """Ask the agent of a host how it is.

        :param host: CONF.host of the agent
        :param timeout: seconds to wait for the answer
        :returns: see AgentManager.get_host
        :raises oslo_messaging.MessagingTimeout: when the agent is down
        """
        return self._call(host, timeout, 'get_host')

    def get_server(self, host: str, server_uuid: str,
                   timeout: float = 10) -> dict[str, Any]:
        """Ask the agent of a host about one server.

        :param host: CONF.host of the agent
        :param server_uuid: UUID of the server
        :param timeout: seconds to wait for the answer
        :returns: see AgentManager.get_server
        :raises UnknownServer: when it does not run there
        :raises oslo_messaging.MessagingTimeout: when the agent is down
        """
        return self._call(host, timeout, 'get_server', server_uuid=server_uuid)

    def list_servers(self, host: str, timeout: float = 10) -> dict[str, Any]:
        """Ask the agent of a host about all servers that run there.

        :param host: CONF.host of the agent
        :param timeout: seconds to wait for the answer
        :returns: see AgentManager.list_servers
        :raises oslo_messaging.RemoteError: of an agent older than 1.2
        :raises oslo_messaging.MessagingTimeout: when the agent is down
        """
        return self._call(host, timeout, 'list_servers', version='1.2')

    def lift_limits(self, host: str, server_uuid: str,
                    timeout: float = 3) -> bool:
        """Have the limits on a server's I/O taken away before it migrates.

        They would slow the migration, and libvirt lets nobody write once it
        has begun. They come back by themselves. Never raises, and never waits
        for longer than told.

        :param host: CONF.host of the agent
        :param server_uuid: UUID of the server
        :param timeout: seconds to wait for the answer
        :returns: whether there is none any more
        """
        try:
            client = self._client.prepare(server=host, timeout=timeout,
                                          version='1.1')
            answer = client.call({}, 'lift_limits',
                                 server_uuid=str(server_uuid))
            return bool(answer['lifted'])
        except Exception as exc:
            # A migration must go on whatever the bus or its driver raises.
            LOG.warning('The vqos agent of host %s did not lift the limit on '
                        'the I/O of server %s: %s', host, server_uuid, exc)
            return False

    def claim_ledger(self, server_uuid: str, host: str,
                     claimed_at: float) -> None:
        """Ask all agents for the account of a server that runs here now.

        :param host: CONF.host of the one who asks
        :param claimed_at: UTC, in seconds since 1970
        :raises oslo_messaging.MessagingException: when the bus is down
        """
        self._client.prepare(fanout=True, version='1.1').cast(
            {}, 'claim_ledger', server_uuid=server_uuid, host=host,
            claimed_at=claimed_at)

    def hand_over(self, host: str, statement: Mapping[str, Any]) -> None:
        """Tell the agent of the host that a server went to.

        :param host: CONF.host of the agent
        :param statement: Statement.to_dict() of the server's account
        :raises oslo_messaging.MessagingException: when the bus is down
        """
        self._client.prepare(server=host, version='1.1').cast(
            {}, 'hand_over', statement=dict(statement))

    def push_policies(self, host: str, generation: int,
                      flavors: Mapping[str, Mapping[str, Any]],
                      timeout: float = 10) -> dict[str, Any]:
        """Have the servers of a host follow flavors as they are now.

        :param host: CONF.host of the agent
        :param generation: of this push, see AgentManager.push_policies
        :param flavors: by id, see AgentManager.push_policies
        :param timeout: seconds to wait for the answer
        :returns: see AgentManager.push_policies
        :raises InvalidArgument: when it is no push
        :raises oslo_messaging.MessagingTimeout: when the agent is down
        """
        return self._call(
            host, timeout, 'push_policies', version='1.2',
            generation=generation,
            flavors={flavor_id: dict(fields)
                     for flavor_id, fields in flavors.items()})

    def get_pushed(self, host: str, timeout: float = 10) -> dict[str, Any]:
        """Ask the agent of a host what was pushed to it.

        :param host: CONF.host of the agent
        :param timeout: seconds to wait for the answer
        :returns: see AgentManager.get_pushed
        :raises oslo_messaging.MessagingTimeout: when the agent is down
        """
        return self._call(host, timeout, 'get_pushed', version='1.2')

    def compare_pushed(self, digest: str,
                       timeout: float = 10) -> dict[str, Any]:
        """Ask any agent, whichever the bus gives it to, what was pushed.

        :param digest: of what is known already
        :param timeout: seconds to wait for the answer
        :returns: see AgentManager.compare_pushed
        :raises oslo_messaging.MessagingTimeout: when nobody answers
        """
        return self._call(None, timeout, 'compare_pushed', version='1.2',
                          digest=digest)

    def forget(self, host: str, server_uuid: str,
               timeout: float = 10) -> dict[str, Any]:
        """Make the agent of a host drop what it remembers of a server.

        :param host: CONF.host of the agent
        :param server_uuid: UUID of the server
        :param timeout: seconds to wait for the answer
        :returns: see AgentManager.forget
        :raises oslo_messaging.MessagingTimeout: when the agent is down
        """
        return self._call(host, timeout, 'forget', server_uuid=server_uuid)

    def _call(self, host: str | None, timeout: float, method: str, *,
              version: str = _LEAST_VERSION,
              **arguments: Any) -> dict[str, Any]:
        client = self._client.prepare(server=host, timeout=timeout,
                                      version=version)
        answer: dict[str, Any] = client.call({}, method, **arguments)
        return answer
