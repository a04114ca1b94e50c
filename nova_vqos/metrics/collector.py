# SPDX-License-Identifier: Apache-2.0
"""What a scrape collects: it asks the agent once."""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import contextlib
import logging
import time
import typing as ty

from nova_vqos import compute_state
from nova_vqos import version
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import server_report
from nova_vqos.metrics import families
from nova_vqos.metrics import samples
from nova_vqos.profile import validity

LOG = logging.getLogger(__name__)

# Prometheus itself waits for ten, by default.
ANSWER_TIMEOUT_S = 4.0


class Snapshot(ty.NamedTuple):
    """An agent and its servers at one moment."""

    report: host_report.LoopReport
    servers: Sequence[server_report.Server]


class SingleFlight:
    """Asks one question at a time, however many callers want the answer.

    An agent that is held up gets no queue of questions, and never more than
    one thread waits for it.
    """

    def __init__(self, question: Callable[[], Snapshot],
                 timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """
        :param question: may block, or raise
        :param timeout_s: longest wait for the answer
        """
        self._question = question
        self._timeout_s = timeout_s
        self._executor = futures.ThreadPoolExecutor(
            1, thread_name_prefix='metrics-snapshot')
        self._asked: futures.Future[Snapshot] | None = None
        self._problem = ''

    def ask(self) -> Snapshot | None:
        """Called by one thread at a time.

        :returns: None: there was no answer in time
        """
        if self._asked is None:
            self._asked = self._executor.submit(self._question)
        try:
            answer = self._asked.result(self._timeout_s)
        except futures.TimeoutError:
            # NOTE: of the wait, or of the question itself.
            if self._asked.done():
                self._asked = None
            self._complain('its loop is held up')
            return None
        except Exception as error:
            self._asked = None
            self._complain(repr(error))
            return None
        self._asked = None
        self._complain('')
        return answer

    def close(self) -> None:
        """Ask nothing any more; does not wait."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _complain(self, problem: str) -> None:
        if problem and problem != self._problem:
            LOG.warning('The agent did not answer, nova_vqos_agent_up is 0 '
                        'and other metrics are left out: %s', problem)
        elif self._problem and not problem:
            LOG.info('The agent answers, all metrics are exported again')
        self._problem = problem


class AgentCollector:
    """Turns one snapshot of the agent for each scrape into samples."""

    def __init__(self, snapshot: Callable[[], Snapshot | None], host: str,
                 verification_path: str, compute_state_path: str) -> None:
        """Prepare; nothing is read yet.

        :param snapshot: None: the agent did not answer
        :param host: name of this host
        :param verification_path: see :mod:`nova_vqos.profile.validity`
        :param compute_state_path: see :mod:`nova_vqos.compute_state`
        """
        self._snapshot = snapshot
        self._host = host
        self._verification_path = verification_path
        self._compute_state_path = compute_state_path
        self._deliveries = samples.Deliveries()

    def samples(self) -> Iterator[families.Group]:
        """All samples: a group of the host, then one of each server.

        Called by one thread at a time.
        """
        snapshot = self._snapshot()
        found: list[families.Sample] = [
            (families.AGENT_INFO, (self._host, version.version()), 1),
            (families.AGENT_UP, (), snapshot is not None)]
        if snapshot is not None:
            found += self._host_samples(snapshot.report)
        yield families.Group({}, found)
        if snapshot is not None:
            yield from samples.server_samples(
                snapshot.servers, self._deliveries,
                snapshot.report.quantum_classes)

    def _host_samples(self, report: host_report.LoopReport
                      ) -> Iterator[families.Sample]:
        state = None
        with contextlib.suppress(ValueError):
            state = compute_state.load(self._compute_state_path)
        yield from samples.host_samples(
            report, () if state is None else state.alarms)
        if report.profile is not None:
            yield from samples.drift_samples(validity.load(
                self._verification_path, report.profile.id))
        with contextlib.suppress(ValueError):
            yield from samples.stats_samples(state, time.time())
