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

"""Watches the servers of a host, and tells what kind of work they do.

Between the sources, which see something of it, and the recognition, which
tells kinds from it. Not for two threads at once.
"""

from collections.abc import Callable, Collection, Mapping
import logging

from nova_vqos.hypervisor import base as hypervisors
from nova_vqos.quantum import activity
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition
from nova_vqos.quantum import trace
from nova_vqos.quantum.sources import base

LOG = logging.getLogger(__name__)

ReadActivities = Callable[[Collection[str]], Mapping[str, activity.Activity]]


class Watch:
    """Looks at servers, and remembers what it saw."""

    def __init__(self, sources: Mapping[str, base.Source],
                 limits: recognition.Limits, activities: ReadActivities, *,
                 recorder: trace.Recorder | None = None,
                 period_s: float = 0.0) -> None:
        """
        :param sources: by name; closed with this
        :param activities: what the hypervisor counted of servers:
            :meth:`nova_vqos.hypervisor.base.Hypervisor.activity`
        :param recorder: writes down each look; closed with this
        :param period_s: a look sooner than this after the last is none: it
            asks each QEMU, which costs that and libvirt's daemon a
            millisecond or two, and sees little
        """
        self._sources = sources
        self._activities = activities
        self._recorder = recorder
        self._period_s = period_s
        self._recognizer = recognition.Recognizer(limits)
        self._looked_at_s: float | None = None
        self._failures: dict[str, str] = {}

    def look(self, servers: Mapping[str, Mapping[int, int]], now_s: float
             ) -> None:
        """Look at servers; whoever is not among them is forgotten.

        May block for seconds where a QEMU hangs. Never raises for what it
        looks at.

        :param servers: by UUID, the thread id of each vCPU by its number
        :param now_s: on the monotonic clock
        """
        last_s = self._looked_at_s
        if last_s is not None and 0 <= now_s - last_s < self._period_s:
            return
        self._looked_at_s = now_s
        look = base.Look(now_s, servers, self._read_activities(servers))
        threads = {(uuid, number): thread
                   for uuid, vcpus in servers.items()
                   for number, thread in vcpus.items()}
        samples = dict.fromkeys(threads, recognition.Sample())
        for name, source in self._sources.items():
            for key, seen in self._read(name, source, look).items():
                if key in samples:
                    samples[key] = _merged(samples[key], seen)
        self._recognizer.keep(threads)
        for key, thread in threads.items():
            self._recognizer.take(key, samples[key], thread)
        if self._recorder is not None:
            self._recorder.record(now_s, threads, samples)

    def kind(self, uuid: str, vcpu: int) -> model.Kind | None:
        """What a vCPU does; None: not known yet, or cannot be told."""
        return self._recognizer.kind((uuid, vcpu))

    def pollutes(self, uuid: str, vcpu: int) -> bool:
        """Whether a vCPU takes the last-level cache from others."""
        return self._recognizer.pollutes((uuid, vcpu))

    def status(self) -> Mapping[str, str]:
        """What each source lacks, by its name; '': nothing."""
        return {name: self._failures.get(name) or source.available()
                for name, source in self._sources.items()}

    def close(self) -> None:
        """Close all sources, and the trace."""
        for source in self._sources.values():
            source.close()
        if self._recorder is not None:
            self._recorder.close()

    def _read_activities(self, uuids: Collection[str]
                         ) -> Mapping[str, activity.Activity]:
        try:
            return self._activities(uuids) if uuids else {}
        except hypervisors.HypervisorError as error:
            LOG.warning('What servers do is not known this time: %s', error)
            return {}

    def _read(self, name: str, source: base.Source, look: base.Look
              ) -> Mapping[base.Key, recognition.Sample]:
        try:
            found = source.read(look)
        except Exception as error:
            # Of a plugin: the other sources go on.
            if name not in self._failures:
                LOG.exception('The source %s failed', name)
            self._failures[name] = f'it failed: {error!r}'
            return {}
        self._failures.pop(name, None)
        return found


def _merged(first: recognition.Sample, second: recognition.Sample
            ) -> recognition.Sample:
    """What either knows; of what both know, what the first does."""
    return recognition.Sample(
        _either(first.io_requests, second.io_requests),
        _either(first.spin_events, second.spin_events),
        _either(first.references, second.references),
        _either(first.misses, second.misses))


def _either(first: float | None, second: float | None) -> float | None:
    return second if first is None else first
