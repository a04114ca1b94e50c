# SPDX-License-Identifier: Apache-2.0
"""Anti-entropy: an agent that missed a push gets it from another agent.

In an interval, each agent compares its pushes with those of one other agent of
its cell, which the bus chooses. That costs one request and one reply, which is
short where both have the same pushes.
"""

from collections.abc import Callable
import logging
import random
import threading

from nova_vqos import policy_override
from nova_vqos.agent import retry
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.overrides import receiver

LOG = logging.getLogger(__name__)

# The bus may deliver a request to its sender.
_MAX_REQUESTS = 4
_TIMEOUT_S = 5.0
# The first request is sooner; at random, since all agents of a cell may have
# been started at once.
_FIRST_S = 10.0
# Where no other agent replied, as when all of a cell are being started: twice
# as long each time, since there may be none.
_AGAIN_S = 30.0
_STOP_TIMEOUT_S = 1.0
# Nova's limit of a host's name.
_MOST_NAME = 255

_Difference = pushes.PushesDifference | pushes.OverridesDifference


class Gossip:
    """Compares the pushes of this agent with those of others."""

    def __init__(self, merger: receiver.Receiver, host: str,
                 interval_s: float, *,
                 uniform: Callable[[float, float], float] = random.uniform
                 ) -> None:
        """Prepare; nothing is sent yet.

        :param merger: receives the pushes of other agents
        :param host: name of this host
        :param interval_s: from one request to the next, on average
        """
        self._refused: set[str] = set()
        self._receiver = merger
        self._host = host
        self._interval_s = interval_s
        self._uniform = uniform
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def use_bus(self, api: rpcapi.AgentAPI) -> None:
        """Start."""
        thread = threading.Thread(
            target=self._work, args=(api,), name='gossip', daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """Stop; a request that was sent is not waited for."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _work(self, api: rpcapi.AgentAPI) -> None:
        wait_s = self._uniform(0.0, min(_FIRST_S, self._interval_s))
        backoff = retry.Backoff(_AGAIN_S, self._interval_s)
        while not self._stopping.wait(wait_s):
            interval_s = self._interval_s
            if self.compare(api):
                backoff.reset()
            else:
                interval_s = backoff.fail(0.0)
            wait_s = interval_s * self._uniform(0.5, 1.5)

    def compare(self, api: rpcapi.AgentAPI) -> bool:
        """Compare pushes with any other agent; never raises.

        :returns: whether another agent replied
        """
        found_old = False
        try:
            for _ in range(_MAX_REQUESTS):
                if self._stopping.is_set():
                    break
                answer = self._ask(api, as_old=found_old)
                if answer is None:
                    # The bus asks agents in turns: the next one may be this
                    # agent, and the one after that is too old again.
                    found_old = True
                elif answer.host != self._host:
                    self._merge(answer)
                    return True
        except Exception as error:
            # Any error of the bus, or the reply of another version.
            LOG.debug('No other agent compared its pushes: %s', error)
        return False

    def _ask(self, api: rpcapi.AgentAPI, *,
             as_old: bool) -> _Difference | None:
        """
        :param as_old: whether to ask what agents before 1.6 answer as well
        :returns: None: the agent that was asked is one of these
        """
        if as_old:
            return api.call(None, rpcapi.COMPARE_PUSHED, timeout=_TIMEOUT_S,
                            digest=self._receiver.overrides_digest())
        try:
            return api.call(None, rpcapi.COMPARE_PUSHES, timeout=_TIMEOUT_S,
                            digest=self._receiver.digest())
        except Exception as error:
            # Agents before 1.6 keep no signatures.
            if (not rpcapi.is_too_old(error)
                    or self._receiver.requires_signature):
                raise
            return None

    def _merge(self, answer: _Difference) -> None:
        newer, refused = False, ''
        try:
            if isinstance(answer, pushes.PushesDifference):
                if answer.pushes is not None:
                    newer, refused = self._receiver.merge(answer.pushes)
            elif answer.flavors is not None:
                newer, refused = self._receiver.merge_overrides(answer.flavors)
        except policy_override.PushInvalid as error:
            refused = str(error)
        host = answer.host[:_MOST_NAME]
        # Once for a host: its generations differ from time to time.
        if refused and host not in self._refused:
            LOG.warning('Pushes of host %s are refused: %s', host, refused)
            self._refused.add(host)
        if newer:
            LOG.info('Caught up on missed policy pushes from host %s', host)
