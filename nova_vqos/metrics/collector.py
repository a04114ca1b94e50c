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

"""What Prometheus is told at a scrape, as it is then."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
import logging
import typing as ty

from prometheus_client import core
from prometheus_client import registry

from nova_vqos import verification
from nova_vqos import version
from nova_vqos.metrics import families
from nova_vqos.metrics import of_host
from nova_vqos.metrics import of_servers

LOG = logging.getLogger(__name__)

# Prometheus itself waits for ten, by default.
ANSWER_TIMEOUT_S = 4.0

_KINDS = {families.GAUGE: core.GaugeMetricFamily,
          families.COUNTER: core.CounterMetricFamily}


class Snapshot(ty.NamedTuple):
    """An agent and its servers at one moment.

    :ivar host: see :meth:`nova_vqos.agent.manager.AgentManager.get_host`
    :ivar servers: see
        :meth:`nova_vqos.agent.manager.AgentManager.list_servers`
    """

    host: Mapping[str, ty.Any]
    servers: Mapping[str, ty.Any]


class SingleFlight:
    """Asks one question at a time, however many want the answer.

    An agent that is held up is not made to keep a queue of them, and never
    more than one thread waits for it.
    """

    def __init__(self, question: Callable[[], Snapshot],
                 timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """
        :param question: may take its time
        :param timeout_s: that is waited for the answer
        """
        self._question = question
        self._timeout_s = timeout_s
        self._executor = futures.ThreadPoolExecutor(
            1, thread_name_prefix='metrics-snapshot')
        self._asked: futures.Future[Snapshot] | None = None
        self._problem = ''

    def ask(self) -> Snapshot | None:
        """Called by one thread at a time.

        :returns: None: there is no answer in time
        """
        if self._asked is None:
            self._asked = self._executor.submit(self._question)
        try:
            answer = self._asked.result(self._timeout_s)
        except futures.TimeoutError:
            # NOTE: of the wait, or of the question itself.
            if self._asked.done():
                self._asked = None
            self._complain('the loop is held up')
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
            LOG.warning('There are no metrics but nova_vqos_agent_up: %s',
                        problem)
        elif self._problem and not problem:
            LOG.info('There are metrics again')
        self._problem = problem


class AgentCollector(registry.Collector):
    """Turns one snapshot for each scrape into metrics."""

    def __init__(self, snapshot: Callable[[], Snapshot | None], host: str,
                 verification_path: str) -> None:
        """Prepare; nothing is read yet.

        :param snapshot: None: the agent did not answer
        :param host: name of this host
        :param verification_path: see :mod:`nova_vqos.verification`
        """
        self._snapshot = snapshot
        self._host = host
        self._verification_path = verification_path
        self._deliveries = of_servers.Deliveries()

    def collect(self) -> Iterator[core.Metric]:
        """All metrics that have a value; called by one thread at a time."""
        return in_families(self._samples())

    def describe(self) -> Iterable[core.Metric]:
        """Nothing: without it, registering would ask the agent."""
        return ()

    def _samples(self) -> Iterator[families.Sample]:
        yield families.Sample(families.AGENT_INFO,
                              (self._host, version.version()), 1.0)
        snapshot = self._snapshot()
        yield families.Sample(families.AGENT_UP, (),
                              float(snapshot is not None))
        if snapshot is None:
            return
        host = snapshot.host
        yield from of_host.samples(host)
        if host['profile'] is not None:
            yield from of_host.drift_samples(verification.load(
                self._verification_path, host['profile']['id']))
        yield from of_servers.samples(
            snapshot.servers['servers'], self._deliveries,
            host['quantum_classes'])


def in_families(samples: Iterable[families.Sample]
                ) -> Iterator[core.Metric]:
    """Samples as prometheus_client wants them: family by family, in the
    order of :data:`families.ALL`.
    """
    found: dict[families.Family, list[families.Sample]] = {}
    for sample in samples:
        found.setdefault(sample.family, []).append(sample)
    for family in families.ALL:
        if family not in found:
            continue
        metric = _KINDS[family.kind](family.name, family.help,
                                     labels=family.labels)
        for sample in found[family]:
            metric.add_metric(sample.labels, sample.value)
        yield metric
