# SPDX-License-Identifier: Apache-2.0
"""What the vCPUs of all servers use, read by a worker again and again.

With it comes the clock that they ran at, where the CPU shows it.
"""

from collections.abc import Mapping
import functools
import logging
import typing as ty

from nova_vqos.agent import clock_alarm
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.agent import usage_history
from nova_vqos.agent import worker
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

# Readings in a row that have to fail before it is logged: a server that stops
# is met in between once.
_MISSED = 3
# The last reading of clocks is of no use afterwards.
_STALE_S = 90.0
# How long a report is followed by readings at the short interval, and the
# interval afterwards: the use of the last minute is known all the same.
_ASKED_FOR_S = 300.0
_IDLE_INTERVAL_S = 60.0
# How long a new agent reads at the short interval: then it knows a minute.
_NEW_S = 90.0


class _Reading(ty.NamedTuple):
    """What a worker read of all servers."""

    times: Mapping[str, usage.VcpuTime]
    clocks: base.Clocks


class SampleState:
    """
    :ivar history: what the vCPUs of a server used lately
    :ivar clock: CPU time so far in which its cycles were counted
    :ivar missed: readings in a row that failed
    """

    def __init__(self, _server: servers.Server) -> None:
        self.history = usage_history.History()
        self.clock = usage.NO_CLOCK_TIME
        self.missed = 0

    def record(self, server: servers.Server, reading: usage.VcpuTime | None,
               clock: usage.ClockTime = usage.NO_CLOCK_TIME) -> None:
        """Add a reading.

        :param reading: None: it failed
        :param clock: since the last one
        """
        if clock.ran_ns:
            self.clock = usage.total_clock((self.clock, clock))
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
        self.history.add(reading._replace(clock=self.clock)
                         if self.clock.ran_ns else reading)


class Sampler(controller.Controller):
    """Reads the CPU time of all servers, with or without a connection."""

    def __init__(self, hypervisor: base.UsageDriver, known: servers.Servers,
                 job: worker.PeriodicJob, interval_s: float) -> None:
        """
        :param job: does the reading
        :param interval_s: from one reading to the next, while reports are made
        """
        self._hypervisor = hypervisor
        self._servers = known
        self._job = job
        self._interval_s = interval_s
        self._states = known.states(SampleState)
        self._clocks = base.NO_CLOCKS
        self._clocks_until_s = float('-inf')
        self._read_at_s = self._asked_at_s = float('-inf')
        self._alarm = clock_alarm.ClockAlarm()

    def ask(self, now_s: float) -> None:
        """Read at the short interval for a while: a report is made."""
        self._asked_at_s = now_s
        self.due_at_s = min(self.due_at_s, self._read_at_s + self._interval_s)

    def clocks(self, now_s: float) -> base.Clocks:
        """The last reading of clocks; none where it is old.

        :param now_s: on the monotonic clock
        """
        return (self._clocks if now_s < self._clocks_until_s
                else base.NO_CLOCKS)

    def history(self, server: servers.Server) -> usage_history.History:
        """What the vCPUs of a server used lately; for reading."""
        return self._states[server].history

    def tick(self, now_s: float, terms: controller.HostTerms) -> None:
        """Read all servers, if it is time to."""
        if self._job.busy or now_s < self.due_at_s or not self._servers:
            return
        if self._read_at_s == float('-inf'):
            self._asked_at_s = now_s + _NEW_S - _ASKED_FOR_S
        interval_s = (
            self._interval_s if now_s < self._asked_at_s + _ASKED_FOR_S
            else max(self._interval_s, _IDLE_INTERVAL_S))
        # Readings that were missed are not made up for.
        late_s = now_s - self.due_at_s
        self._read_at_s = now_s - (
            late_s if late_s < self._interval_s / 2 else 0.0)
        self.due_at_s = self._read_at_s + interval_s
        known = tuple(self._servers.values())
        self._job.begin(
            functools.partial(
                _read, self._hypervisor,
                {server.uuid: server.run_id for server in known}),
            functools.partial(self._record, known, terms.profile, now_s))

    def status(self) -> controller.Status:
        """What cannot be read."""
        missed = sum(state.missed >= _MISSED
                     for state in self._states.values())
        alarms = (f'what the vCPUs of {missed} servers use cannot be read'
                  if missed else '', self._alarm.text)
        return controller.Status(
            alarms=tuple(filter(None, alarms)),
            errors=self._job.errors, busy=self._job.busy)

    def close(self) -> None:
        """Nothing is open."""

    def _record(self, known: tuple[servers.Server, ...],
                profile: model.Profile | None, now_s: float,
                found: _Reading) -> None:
        self._clocks = found.clocks
        self._clocks_until_s = now_s + _STALE_S
        self._servers.isolation.each(
            'recording the history of server',
            filter(self._servers.runs, known),
            lambda server: self._states[server].record(
                server, found.times.get(server.uuid),
                found.clocks.counted.get(server.uuid, usage.NO_CLOCK_TIME)))
        clocks = self._servers.isolation.each(
            'reading the clock of server', self._servers.values(),
            lambda server: self._clock_of(server, profile, now_s))
        self._alarm.update(filter(None, clocks.values()))

    def _clock_of(self, server: servers.Server,
                  profile: model.Profile | None, now_s: float
                  ) -> tuple[usage.ClockTime, float] | None:
        """What a server with a cap ran lately, see ClockAlarm.update()."""
        if (profile is None or server.policy is None
                or server.policy.cap != 'hard'):
            return None
        ran = self._states[server].history.clock(now_s, full=True)
        if not ran.ran_ns or not (mhz := server.calibrated_mhz(profile)):
            return None
        return ran, mhz


def _read(hypervisor: base.UsageDriver,
          run_ids: Mapping[str, int]) -> _Reading:
    return _Reading(hypervisor.vcpu_times(run_ids),
                    hypervisor.clocks(run_ids))
