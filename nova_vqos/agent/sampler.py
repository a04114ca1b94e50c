# SPDX-License-Identifier: Apache-2.0
"""What the vCPUs of all servers use, read by a worker again and again."""

from collections.abc import Mapping
import functools
import logging

from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.agent import usage_history
from nova_vqos.agent import worker
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# Readings in a row that have to fail before it is logged: a server that stops
# is met in between once.
_MISSED = 3


class SampleState:
    """
    :ivar history: what the vCPUs of a server used lately
    :ivar missed: readings in a row that failed
    """

    def __init__(self, _server: servers.Server) -> None:
        self.history = usage_history.History()
        self.missed = 0

    def record(self, server: servers.Server,
               reading: usage.VcpuTime | None) -> None:
        """Add a reading.

        :param reading: None: it failed
        """
        if reading is None:
            self.missed += 1
            if self.missed == _MISSED:
                LOG.warning('Server %s (%s): what its vCPUs use cannot be '
                            'read', server.uuid, server.name)
            return
        if self.missed >= _MISSED:
            LOG.info('Server %s (%s): what its vCPUs use can be read again',
                     server.uuid, server.name)
        self.missed = 0
        self.history.add(reading)


class Sampler(controller.Controller):
    """Reads the CPU time of all servers, with or without a connection."""

    def __init__(self, hypervisor: base.UsageDriver, known: servers.Servers,
                 job: worker.PeriodicJob, interval_s: float) -> None:
        """
        :param job: does the reading
        :param interval_s: from one reading to the next
        """
        self._hypervisor = hypervisor
        self._servers = known
        self._job = job
        self._interval_s = interval_s
        self._states = known.states(SampleState)

    def history(self, server: servers.Server) -> usage_history.History:
        """What the vCPUs of a server used lately; for reading."""
        return self._states[server].history

    def tick(self, now_s: float, _terms: controller.HostTerms) -> None:
        """Read all servers, if it is time to."""
        if self._job.busy or now_s < self.due_at_s or not self._servers:
            return
        # Readings that were missed are not made up for.
        late_s = now_s - self.due_at_s
        self.due_at_s = now_s + self._interval_s - (
            late_s if late_s < self._interval_s / 2 else 0.0)
        known = tuple(self._servers.values())
        self._job.begin(
            functools.partial(
                self._hypervisor.vcpu_times,
                {server.uuid: server.run_id for server in known}),
            functools.partial(self._record, known))

    def status(self) -> controller.Status:
        """What cannot be read."""
        missed = sum(state.missed >= _MISSED
                     for state in self._states.values())
        return controller.Status(
            alarms=(f'what the vCPUs of {missed} servers use cannot be read',
                    ) if missed else (),
            errors=self._job.errors, busy=self._job.busy)

    def close(self) -> None:
        """Nothing is open."""

    def _record(self, known: tuple[servers.Server, ...],
                readings: Mapping[str, usage.VcpuTime]) -> None:
        for server in known:
            if self._servers.get(server.uuid) is server:
                self._states[server].record(server,
                                            readings.get(server.uuid))
