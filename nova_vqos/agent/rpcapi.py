# SPDX-License-Identifier: Apache-2.0
"""Client side of the agents' RPC.

The caller brings its own transport, so that this module needs nothing but
oslo.messaging: nova-compute uses its bus, a command line tool those of all
cells.
"""

import dataclasses
import logging
import time
import typing as ty

import oslo_messaging

from nova_vqos import plain_text
from nova_vqos import policy as policies
from nova_vqos import primitives
from nova_vqos import speeds as records
from nova_vqos.agent.messages import calibration
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import moves
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.messages import server_report
from nova_vqos.billing import account

LOG = logging.getLogger(__name__)

# NOTE: both sides name the exchange, since the default of [DEFAULT]
# control_exchange differs between Nova ('nova') and everybody else
# ('openstack').
EXCHANGE = 'nova_vqos'
TOPIC = 'vqos-agent'
VERSION = '1.7'

_TIMEOUT_S = 10.0
_LIFT_TIMEOUT_S = 3.0
_LIFT_LOOK_S = 0.2
#: A move waits for so long for an agent that may be gone.
CHECK_TIMEOUT_S = 3.0

_Reply = ty.TypeVar('_Reply')


class AgentError(Exception):
    """What the agent answers instead of a result."""


class InvalidArgument(AgentError):
    """An argument of a call is not what it has to be."""


class TooManyFlavors(AgentError):
    """With this push the agent would have more flavors than it keeps."""


class SignatureInvalid(AgentError):
    """A push is not signed by any of the keys that the agent trusts."""


#: In the text of UnknownServer, by which it is known on the other side.
NOT_HERE = 'does not run on'


class UnknownServer(AgentError):
    """The server does not run on this host."""


@dataclasses.dataclass(frozen=True, slots=True)
class Method(ty.Generic[_Reply]):
    """A method of agents that answers.

    :ivar since: the version that brought it
    """

    name: str
    reply: type[_Reply]
    since: str


CHECK_SERVER = Method('check_server', moves.Refusal, '1.4')
COMPARE_PUSHES = Method('compare_pushes', pushes.PushesDifference, '1.6')
COMPARE_PUSHED = Method('compare_pushed', pushes.OverridesDifference, '1.2')
GET_HOST = Method('get_host', host_report.Host, '1.0')
GET_PROFILE = Method('get_profile', calibration.Calibration, '1.2')
GET_PUSHED = Method('get_pushed', pushes.Pushed, '1.2')
GET_PUSHED_DIGEST = Method('get_pushed_digest', pushes.PushedDigest, '1.5')
GET_SERVER = Method('get_server', server_report.ServerDetail, '1.0')
LIFT_LIMITS = Method('lift_limits', moves.Lifted, '1.1')
LIST_SERVERS = Method('list_servers', server_report.Servers, '1.2')
PUSH_FLAVORS = Method('push_flavors', pushes.PushResult, '1.6')
PUSH_POLICIES = Method('push_policies', pushes.PushResult, '1.2')


def is_too_old(error: Exception) -> bool:
    """Whether an agent lacks the method that it was asked."""
    kind = getattr(error, 'exc_type', None) or type(error).__name__
    return kind.startswith(('UnsupportedVersion', 'NoSuchMethod'))


class AgentAPI:
    """The agents on one bus.

    The context is always empty: the agent needs none, and a context of Nova
    would carry the user's token to it.
    """

    def __init__(self, transport: ty.Any, *, exchange: str = EXCHANGE,
                 topic: str = TOPIC) -> None:
        """Prepare a client; nothing is sent or connected yet.

        :param transport: an RPC transport of oslo.messaging
        :param exchange: as the agent's [vqos_agent] exchange
        :param topic: as the agent's [vqos_agent] topic
        """
        # retry=0: None, the default, would wait for a dead bus for ever.
        self._client = oslo_messaging.get_rpc_client(
            transport, oslo_messaging.Target(
                exchange=exchange, topic=topic, version='1.0'), retry=0,
            serializer=oslo_messaging.NoOpSerializer())

    def wake(self, host: str, server_uuid: str,
             policy: policies.ServerPolicy | None) -> bool:
        """Have the agent of a host look at a server now.

        A hint: the agent reads the policy from the domain itself, and finds
        it at its next tick if the hint is lost. So this never raises.

        :param host: CONF.host of the agent
        :returns: whether the message was handed to the bus
        """
        try:
            self._client.prepare(server=host).cast(
                {}, 'apply_policy', server_uuid=str(server_uuid),
                policy=policy and policy.to_dict())
        except Exception as error:
            # A boot must go on whatever the bus or its driver raises.
            LOG.warning('The vqos agent of host %s got no message about '
                        'server %s, it finds the server by itself: %s', host,
                        server_uuid, error)
            return False
        return True

    def lift_limits(self, host: str, server_uuid: str,
                    timeout: float = _LIFT_TIMEOUT_S) -> bool:
        """Have the limits on a server's I/O lifted before it migrates.

        They would slow the migration, and libvirt refuses writes once it has
        begun. They come back by themselves. Never raises.

        :param host: CONF.host of the agent
        :param timeout: seconds to wait until they are lifted
        :returns: whether no limit is left
        """
        until_s = time.monotonic() + timeout
        try:
            while True:
                answer = self.call(
                    host, LIFT_LIMITS, server_uuid=str(server_uuid),
                    timeout=max(_LIFT_LOOK_S, until_s - time.monotonic()))
                if (answer.lifted or not answer.is_pending
                        or time.monotonic() + _LIFT_LOOK_S >= until_s):
                    return answer.lifted
                time.sleep(_LIFT_LOOK_S)
        except Exception as error:
            # A migration must go on whatever the bus or its driver raises.
            LOG.warning('The vqos agent of host %s did not lift the limit on '
                        'the I/O of server %s: %s', host, server_uuid,
                        plain_text.one_line(str(error)))
            return False

    def check_server(self, host: str, server_uuid: str) -> str:
        """Ask why a host cannot take a server whose move was claimed there.

        Never raises.

        :param host: CONF.host of the agent
        :returns: '' when it can, and when the agent does not know
        """
        try:
            return self.call(
                host, CHECK_SERVER, timeout=CHECK_TIMEOUT_S,
                at_least_once=True, server_uuid=str(server_uuid)).reason
        except Exception as error:
            # The scheduler found the host good, and the server runs there in
            # any case.
            LOG.warning('The vqos agent of host %s did not say whether the '
                        'host can take server %s, it moves there: %s', host,
                        server_uuid, plain_text.one_line(str(error)))
            return ''

    def claim_ledger(self, server_uuid: str, host: str, claimed_at: float,
                     nonce: str, most_debt_cu_us: int,
                     source: str = '', most_saved_cu_us: int = 0) -> None:
        """Ask for the account of a server that runs here now.

        :param host: CONF.host of the caller
        :param claimed_at: UTC, in seconds since 1970
        :param nonce: by which the answer is known
        :param most_debt_cu_us: above which debt is written off here
        :param source: CONF.host of the agent that is asked; '': all are
        :param most_saved_cu_us: that the server may save here; 0: it does not
            burst, and agents of version 1.6 answer as well
        :raises oslo_messaging.MessagingException: when the bus is down
        """
        savings = ({'most_saved_cu_us': most_saved_cu_us} if most_saved_cu_us
                   else {})
        self._client.prepare(
            fanout=not source or None, server=source or None,
            version='1.7' if savings else '1.6'
        ).cast(
            {}, 'claim_ledger', server_uuid=server_uuid, host=host,
            claimed_at=claimed_at, nonce=nonce,
            most_debt_cu_us=most_debt_cu_us, **savings)

    def hand_over(self, host: str, statement: account.Statement, nonce: str,
                  *, is_copy: bool) -> None:
        """Send a server's account to the host that it went to.

        :param host: CONF.host of the agent
        :param nonce: of its claim; '': the agent is of a version before 1.6
        :param is_copy: whether it was handed over to another host before
        :raises oslo_messaging.MessagingException: when the bus is down
        """
        answer = {'nonce': nonce, 'is_copy': is_copy} if nonce else {}
        self._client.prepare(server=host, version='1.6' if nonce else '1.1'
                             ).cast({}, 'hand_over',
                                    statement=statement.to_dict(), **answer)

    def claim_speeds(self, server_uuid: str, host: str, nonce: str) -> None:
        """Ask all agents what they measured of a server that runs here now.

        :param host: CONF.host of the caller
        :param nonce: by which the answer is known
        :raises oslo_messaging.MessagingException: when the bus is down
        """
        self._client.prepare(fanout=True, version='1.4').cast(
            {}, 'claim_speeds', server_uuid=server_uuid, host=host,
            nonce=nonce)

    def hand_over_speeds(self, host: str, server_uuid: str, nonce: str,
                         speeds: records.Speeds) -> None:
        """Send what was measured of a server to the host that asked.

        :param host: CONF.host of the agent
        :param nonce: of its question
        :raises oslo_messaging.MessagingException: when the bus is down
        """
        self._client.prepare(server=host, version='1.4').cast(
            {}, 'hand_over_speeds', server_uuid=server_uuid, nonce=nonce,
            speeds=primitives.to_primitives(speeds))

    def call(self, host: str | None, method: Method[_Reply], *,
             timeout: float = _TIMEOUT_S, version: str = '',
             at_least_once: bool = False, **arguments: ty.Any) -> _Reply:
        """Ask one agent.

        :param host: CONF.host of the agent; None: any, the bus picks it
        :param timeout: seconds to wait for the answer
        :param version: least version of the agent; '': that of the method
        :param at_least_once: whether to fail at once where the bus has no
            queue of this host
        :param arguments: see :class:`nova_vqos.agent.manager.AgentManager`
        :raises oslo_messaging.MessagingTimeout: when the agent is down
        :raises nova_vqos.primitives.MessageInvalid: when the answer is none
        """
        client = self._client.prepare(
            server=host, timeout=timeout, version=version or method.since,
            transport_options=oslo_messaging.TransportOptions(
                at_least_once=True) if at_least_once else None)
        return primitives.parse(
            method.reply, client.call({}, method.name, **arguments))

    def check_bus(self) -> None:
        """
        :raises Exception: of whatever kind when the bus cannot be used
        """
        # No agent listens on this topic: the bus drops the message.
        self._client.prepare(topic='vqos-manage').cast({}, 'none')
