# SPDX-License-Identifier: Apache-2.0
"""Watch the servers of class ``auto`` and recognise their kinds of work.

Passes what the sources read to the recognition. Not thread-safe.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
import logging
import time
import typing as ty

from nova_vqos.agent import isolation
from nova_vqos.agent.quantum.sources import base as source_base
from nova_vqos.agent.quantum.sources import loading
from nova_vqos.hypervisor import base
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition
from nova_vqos.quantum import recognition_trace

LOG = logging.getLogger(__name__)

# A timer may be early: an observation counts from this part of the interval
# on. An earlier one, for a server that just started, shows too little of the
# other servers.
_EARLY = 0.8


class Progress(ty.NamedTuple):
    """How a server got on since the last observation.

    :ivar ran: pCPUs that its vCPUs ran on, in the mean
    :ivar wanted: likewise, that they ran on or wanted
    :ivar vcpus: how many of them that is known of
    """

    ran: float
    wanted: float
    vcpus: int


class Watcher:
    """Observes servers, and recognises the kind of each vCPU."""

    def __init__(self, sources: Mapping[str, source_base.Source],
                 limits: recognition.Limits,
                 read_activities: Callable[
                     [Collection[str]], Mapping[str, recognition.Activity]],
                 *, recorder: recognition_trace.Recorder | None = None,
                 min_interval_s: float = 0.0,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        :param sources: by name; closed with this
        :param read_activities:
            :meth:`nova_vqos.hypervisor.base.UsageDriver.activity`
        :param recorder: writes each observation; closed with this
        :param min_interval_s: an observation sooner after the last one is
            skipped: it costs each QEMU and libvirt's daemon a millisecond or
            two, and shows little
        :param clock: monotonic, in seconds
        """
        self._sources = sources
        self._read_activities = read_activities
        self._recorder = recorder
        self._min_interval_s = min_interval_s
        self._recognizer = recognition.Recognizer(limits)
        self._isolation = isolation.Isolation(clock)
        # By UUID.
        self._times: dict[str, _Times] = {}
        self._observed_at_s: float | None = None
        self._failures: dict[str, str] = {}

    def observe(self, servers: Mapping[str, Mapping[int, int]],
                now_s: float) -> Mapping[str, Progress] | None:
        """Observe servers; drops all that are not among them.

        May block for seconds where a QEMU hangs. Never raises for a server or
        a source.

        :param servers: by UUID, the thread id of each vCPU by its number
        :param now_s: on the monotonic clock
        :returns: how servers got on, by UUID, without those of which that is
            not known; None: it was skipped
        """
        last_s = self._observed_at_s
        if last_s is not None and 0 <= now_s - last_s < self._min_interval_s:
            return None
        self._observed_at_s = now_s
        observed = source_base.Observation(now_s, servers,
                                           self._activities(servers))
        threads = {(uuid, number): thread
                   for uuid, vcpus in servers.items()
                   for number, thread in vcpus.items()}
        samples = self._time_shares(observed, threads)
        for name, source in self._sources.items():
            for key, sample in self._read(name, source, observed).items():
                if key in samples:
                    samples[key] = _merged(samples[key], sample)
        self._recognizer.retain(threads)
        elapsed_s = 0.0 if last_s is None else (
            source_base.elapsed_s(last_s, now_s) or 0.0)
        self._isolation.each(
            'recognising the work of server', map(isolation.Named, servers),
            lambda server: self._recognise(server.uuid, servers[server.uuid],
                                           samples, elapsed_s))
        if self._recorder is not None:
            self._recorder.record(now_s, threads, samples)
        return _progress(servers, samples)

    def _recognise(self, uuid: str, vcpus: Mapping[int, int],
                   samples: Mapping[model.Key, recognition.Sample],
                   elapsed_s: float) -> None:
        for number, thread in vcpus.items():
            key = uuid, number
            self._recognizer.add(key, samples[key], thread, elapsed_s)

    def kind(self, uuid: str, vcpu: int) -> model.Kind | None:
        """The kind of a vCPU; None: not recognised."""
        return self._recognizer.kind((uuid, vcpu))

    def recognised_after_s(self, uuid: str, vcpu: int) -> float | None:
        """For how long the work of a vCPU was of its kind before that was
        recognised; None: it has none.
        """
        return self._recognizer.recognised_after_s((uuid, vcpu))

    def pollutes(self, uuid: str, vcpu: int) -> bool:
        """Whether a vCPU evicts the cache lines of others."""
        return self._recognizer.pollutes((uuid, vcpu))

    def is_sensitive(self, uuid: str, vcpu: int) -> bool:
        """Whether long slices of others would hurt a vCPU."""
        return self._recognizer.is_sensitive((uuid, vcpu))

    @property
    def alarms(self) -> tuple[str, ...]:
        """For which servers something failed, unexpectedly."""
        return self._isolation.alarms

    @property
    def errors(self) -> int:
        """How often it did."""
        return self._isolation.errors

    def status(self) -> Mapping[str, str]:
        """Why each source is unavailable, by its name; '': it is available."""
        return {name: self._failures.get(name) or source.available()
                for name, source in self._sources.items()}

    def close(self) -> None:
        """Close all sources, and the trace."""
        for source in self._sources.values():
            source.close()
        if self._recorder is not None:
            self._recorder.close()

    def _activities(self, uuids: Collection[str]
                    ) -> Mapping[str, recognition.Activity]:
        try:
            return self._read_activities(uuids) if uuids else {}
        except base.HypervisorError as error:
            LOG.warning('Activity of servers cannot be read, trying again at '
                        'the next observation: %s', error)
            return {}

    def _time_shares(self, observed: source_base.Observation,
                     keys: Collection[model.Key]
                     ) -> dict[model.Key, recognition.Sample]:
        """How much of the time each vCPU ran, and wanted to.

        Where that is unknown this time, it runs as much as before.
        """
        for uuid in self._times.keys() - observed.servers.keys():
            del self._times[uuid]
        shares = dict.fromkeys(keys, recognition.Sample())
        for key in keys:
            uuid, number = key
            found = observed.activities.get(uuid)
            times = self._times.get(uuid)
            if found is not None and (times is None or times.run != found.run):
                times = self._times[uuid] = _Times(found.run)
            if times is not None:
                shares[key] = times.update(
                    number, observed.servers[uuid][number], found,
                    observed.now_s)
        return shares

    def _read(self, name: str, source: source_base.Source,
              observed: source_base.Observation
              ) -> Mapping[model.Key, recognition.Sample]:
        try:
            found = source.read(observed)
        except Exception as error:
            # It may be an operator's own; the other sources go on.
            if name not in self._failures:
                LOG.exception('Recognition source %s failed', name)
            self._failures[name] = f'it failed: {error!r}'
            return {}
        self._failures.pop(name, None)
        return found


def make_watcher(options: ty.Any, hypervisor: base.UsageDriver) -> Watcher:
    """A watcher by the configuration.

    A trace that cannot be written is logged, and not fatal.

    :param options: the group ``vqos_agent``
    :raises nova_vqos.quantum.recognition.LimitInvalid: when a limit is
        invalid
    """
    limits = recognition.limits(options.quantum_limits)
    recorder = None
    if options.quantum_trace_path:
        try:
            recorder = recognition_trace.Recorder(options.quantum_trace_path)
        except OSError as error:
            LOG.error('Trace %s cannot be written, recording is off: %s',
                      options.quantum_trace_path, error)
    return Watcher(loading.load(options.quantum_sources), limits,
                   hypervisor.activity, recorder=recorder,
                   min_interval_s=_EARLY * options.quantum_interval_s)


class _Times:
    """How much of the time the vCPUs of a server ran, in one run of it."""

    def __init__(self, run: int) -> None:
        self.run = run
        self._rates = source_base.Rates()
        # With its thread: another one starts over.
        self._ran: dict[int, tuple[int, float | None]] = {}

    def update(self, vcpu: int, thread: int,
               found: recognition.Activity | None,
               now_s: float) -> recognition.Sample:
        """:param found: None: the counters are unknown this time"""
        ready = None
        before, last_ran = self._ran.get(vcpu, (thread, None))
        if before != thread:
            last_ran = None
        if found is not None:
            ran = self._share(('ran', vcpu), found.ran_ns.get(vcpu), now_s)
            last_ran = last_ran if ran is None else ran
            ready = self._share(('ready', vcpu), found.ready_ns.get(vcpu),
                                now_s)
        self._ran[vcpu] = thread, last_ran
        return recognition.Sample(ran=last_ran, ready=ready)

    def _share(self, key: tuple[str, int], time_ns: int | None,
               now_s: float) -> float | None:
        if time_ns is None:
            return None
        rate = self._rates.update(key, time_ns, now_s)
        return None if rate is None else rate / 1e9


def _progress(servers: Mapping[str, Mapping[int, int]],
              samples: Mapping[model.Key, recognition.Sample]
              ) -> dict[str, Progress]:
    found = {}
    for uuid, vcpus in servers.items():
        times = [(sample.ran, sample.ready) for number in vcpus
                 if (sample := samples[uuid, number]).ran is not None
                 and sample.ready is not None]
        if times:
            found[uuid] = Progress(
                sum(ran for ran, _ in times), sum(ready for _, ready in times),
                len(times))
    return found


def _merged(first: recognition.Sample, second: recognition.Sample
            ) -> recognition.Sample:
    """The rates of both; of a rate that both provide, the first."""
    return recognition.Sample(*(
        theirs if mine is None else mine for mine, theirs in zip(
            dataclasses.astuple(first), dataclasses.astuple(second),
            strict=True)))
