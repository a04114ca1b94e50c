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

"""The metrics of an agent, as a part of its service."""

from collections.abc import Callable

from oslo_config import cfg
import prometheus_client

from nova_vqos.metrics import collector
from nova_vqos.metrics import endpoint


class Exporter:
    """Tells Prometheus of an agent, until stopped."""

    def __init__(self, conf: cfg.ConfigOpts,
                 question: Callable[[], collector.Snapshot]) -> None:
        """Prepare; nothing is asked or opened yet.

        :param question: how the agent is asked; may take its time, or raise
        """
        self._asking = collector.SingleFlight(question)
        # One of its own: what other libraries count is no concern of ours.
        registry = prometheus_client.CollectorRegistry()
        registry.register(collector.AgentCollector(
            self._asking.ask, conf.host, conf.vqos.verification_path))
        prometheus_client.ProcessCollector(registry=registry)
        self._endpoint = endpoint.Endpoint(
            endpoint.Application(endpoint.Page(registry)),
            conf.vqos_agent.metrics_address, conf.vqos_agent.metrics_port)

    def start(self) -> None:
        """Listen as soon as that can be."""
        self._endpoint.start()

    def stop(self) -> None:
        """Answer no more."""
        self._endpoint.stop()
        self._asking.close()
