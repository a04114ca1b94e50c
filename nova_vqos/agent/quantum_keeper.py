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
"""Gives the threads of servers their slices, and keeps servers apart.

One round at a time, on a worker: it may block on the hypervisor. The loop
gives it what it knows of the servers, and takes reports back.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import logging
import time
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos.agent import quantum_report as reports
from nova_vqos.agent import quantum_subject
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import schedstat
from nova_vqos.quantum import model
from nova_vqos.quantum import occupancy as occupancies
from nova_vqos.quantum import pooling
from nova_vqos.quantum import proof as proofs
from nova_vqos.quantum import watch as watches

LOG = logging.getLogger(__name__)

# What each vCPU of a server of a class is taken for.
_KINDS = {
    'io': model.Kind.IO,
    'spin': model.Kind.SPIN,
    'cache': model.Kind.CACHE,
    'neutral': model.Kind.NEUTRAL,
    'default': model.Kind.DEFAULT,
}
# The source that polluters are told by.
_CACHE_SOURCE = 'cache'


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """See the options of the agent.

    :ivar slices_us: see :func:`nova_vqos.quantum.classes.slices_us`
    :ivar pool_interval_s: None: no affinity is ever touched
    """

    slices_us: Mapping[str, int]
    proof_path: str
    interval_s: float = 5.0
    pool_interval_s: float | None = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """What a round found and did.

    :ivar proof: what its kernel was seen to do; None: nobody looked
    :ivar classes: that it was seen to enforce
    :ivar occupancy: what the pools hold
    :ivar servers: by UUID, a report in primitives
    :ivar host: a report in primitives
    :ivar alarms: what an operator should look at
    """

    proof: proofs.Proof | None
    classes: tuple[str, ...]
    occupancy: occupancies.Occupancy
    servers: Mapping[str, dict[str, ty.Any]]
    host: dict[str, ty.Any]
    alarms: tuple[str, ...]


class QuantumKeeper:
    """Keeps the slices and pools of a host's servers.

    :ivar next_at_s: when the next round is due at the latest, on the
        monotonic clock
    :ivar options: as they were given
    """

    def __init__(self, hypervisor: base.Hypervisor, watch: watches.Watch,
                 options: Options, *,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is read yet.

        :param watch: recognises what servers of class auto do
        :param clock: monotonic, in seconds
        """
        self.options = options
        self.next_at_s = float('-inf')
        self._hypervisor = hypervisor
        self._watch = watch
        self._clock = clock
        self._slices_in_use_us: Mapping[str, int] = {}
        self._plan = pooling.NOTHING
        self._runs: Mapping[str, Mapping[int, schedstat.ThreadRun]] = {}
        self._placed_at_s: dict[str, float] = {}
        self._confined: set[str] = set()
        self._problems: dict[str, str] = {}
        self._host_problems: list[str] = []
        self._past_problems: list[str] = []
        self._sources: dict[str, str] = {}
        self._written = self._placed = 0

    def round(self, subjects: Sequence[quantum_subject.Subject]) -> Round:
        """Look at all servers, and give them what they lack.

        :raises nova_vqos.hypervisor.base.Unavailable: when the hypervisor
            cannot be reached
        """
        now_s = self._clock()
        self.next_at_s = now_s + self.options.interval_s
        self._past_problems, self._host_problems = self._host_problems, []
        self._forget_all_but(subjects)
        proof = proofs.load(self.options.proof_path)
        enforced = proofs.enforced_classes(proof, self.options.slices_us)
        self._slices_in_use_us = {
            name: slice_us for name, slice_us
            in self.options.slices_us.items() if name in enforced}
        vcpus = self._find_vcpus(subjects)
        subjects = [subject for subject in subjects if subject.uuid in vcpus]
        self._recognise(subjects, vcpus, now_s)
        sorts = {subject.uuid: self._kinds(subject, vcpus[subject.uuid])
                 for subject in subjects}
        self._plan = self._make_plan(subjects, sorts)
        for subject in subjects:
            self._keep(subject, sorts[subject.uuid], now_s)
        runs = self._hypervisor.vcpu_runs(sorts)
        means_us = {
            uuid: reports.mean_runs_us(self._runs.get(uuid, {}), found)
            for uuid, found in runs.items()}
        self._runs = runs
        occupancy = self._occupancy(sorts)
        return Round(
            proof=proof, classes=(*enforced, quantum_subject.AUTO),
            occupancy=occupancy,
            servers={subject.uuid: reports.of_server(
                subject, sorts[subject.uuid],
                self._slices_us(subject, sorts[subject.uuid]),
                means_us.get(subject.uuid, {}), runs.get(subject.uuid, {}),
                self._plan, self._problems.get(subject.uuid, ''))
                for subject in subjects},
            host=self._host_report(occupancy), alarms=self._alarms())

    def close(self) -> None:
        """Release what is open. Slices and affinity stay as they are."""
        self._watch.close()

    def _forget_all_but(
            self, subjects: Sequence[quantum_subject.Subject]) -> None:
        left = {subject.uuid for subject in subjects}
        for known in (self._placed_at_s, self._problems):
            for uuid in known.keys() - left:
                del known[uuid]
        self._confined &= left

    def _find_vcpus(self, subjects: Sequence[quantum_subject.Subject]
                    ) -> dict[str, Mapping[int, int]]:
        """The thread of each vCPU by its number, by UUID of the server."""
        found: dict[str, Mapping[int, int]] = {}
        for subject in subjects:
            try:
                found[subject.uuid] = self._hypervisor.threads(
                    subject.uuid).vcpus
            except base.Unavailable:
                raise
            except base.DomainGone as error:
                LOG.debug('Server %s is gone: %s', subject.uuid, error)
            except base.HypervisorError as error:
                self._complain(subject, str(error))
        return found

    def _recognise(self, subjects: Sequence[quantum_subject.Subject],
                   vcpus: Mapping[str, Mapping[int, int]],
                   now_s: float) -> None:
        threads = {subject.uuid: vcpus[subject.uuid] for subject in subjects
                   if subject.quantum_class == quantum_subject.AUTO}
        self._watch.look(threads, now_s)
        if threads:
            self._tell_sources()

    def _tell_sources(self) -> None:
        """Log once what cannot be recognised here, and why."""
        status = dict(self._watch.status())
        for name, lacking in status.items():
            if lacking and lacking != self._sources.get(name):
                LOG.warning('What source %s shows of servers of class auto is '
                            'not known: %s', name, lacking)
            elif self._sources.get(name) and not lacking:
                LOG.info('Source %s of what servers do is there', name)
        self._sources = status

    def _kinds(self, subject: quantum_subject.Subject,
               vcpus: Mapping[int, int]) -> dict[int, model.Kind]:
        """What each vCPU of a server is taken for."""
        numbers = sorted(vcpus)
        if subject.quantum_class == quantum_subject.AUTO:
            return {number: self._watch.kind(subject.uuid, number)
                    or model.Kind.DEFAULT for number in numbers}
        return dict.fromkeys(numbers, _KINDS[subject.quantum_class])

    def _make_plan(self, subjects: Sequence[quantum_subject.Subject],
                   sorts: Mapping[str, Mapping[int, model.Kind]]
                   ) -> pooling.HostPlan:
        servers = [
            pooling.Server(
                subject.uuid, sorts[subject.uuid], subject.share,
                subject.pcpus,
                frozenset(number for number in sorts[subject.uuid]
                          if self._watch.pollutes(subject.uuid, number)))
            for subject in subjects if subject.pcpus is not None]
        if self.options.pool_interval_s is None or not servers:
            return pooling.NOTHING
        try:
            sockets = self._hypervisor.topology()
        except base.Unavailable:
            raise
        except base.HypervisorError as error:
            # Slices do not depend on it.
            self._complain_of_host(f'no server is kept apart: {error}')
            return pooling.NOTHING
        return pooling.plan_host(servers, sockets, self._slices_in_use_us,
                                 self._plan)

    def _keep(self, subject: quantum_subject.Subject,
              kinds: Mapping[int, model.Kind], now_s: float) -> None:
        """Have one server's slices and affinity as they should be."""
        try:
            slices_us = self._slices_us(subject, kinds)
            self._written += self._hypervisor.set_slices(
                subject.uuid, slices_us, _longest(slices_us.values()))
            self._place(subject, now_s)
        except base.Unavailable:
            raise
        except base.SlicesUnsupported as error:
            # It is the same for all of them: said once, by the host.
            self._complain_of_host(f'no server gets slices: {error}')
        except (base.DomainGone, base.DomainBusy) as error:
            LOG.debug('Server %s is looked at again: %s', subject.uuid, error)
        except base.HypervisorError as error:
            self._complain(subject, str(error))
        else:
            self._complain(subject, '')

    def _slices_us(self, subject: quantum_subject.Subject,
                   kinds: Mapping[int, model.Kind]) -> dict[int, int | None]:
        """By the plan; of whoever is in none, by its class."""
        placement = self._plan.placements.get(subject.uuid)
        if placement is not None:
            return dict(placement.slices_us)
        return {number: self._slices_in_use_us.get(model.QUANTUM_CLASS[kind])
                for number, kind in kinds.items()}

    def _place(self, subject: quantum_subject.Subject, now_s: float) -> None:
        """Have its vCPUs run where the plan wants them.

        One that needs to be kept from nothing is touched only where a pin of
        ours may still keep it. What is in force is read again each time:
        vCPUs are plugged in, and pins are changed by others.
        """
        placement = self._plan.placements.get(subject.uuid)
        if placement is None or subject.pcpus is None:
            return
        if placement.pcpus is None and not (
                subject.pinned or subject.uuid in self._confined):
            return
        kept = placement.pcpus or {}
        wanted = {number: kept.get(number, subject.pcpus)
                  for number in placement.slices_us}
        interval_s = self.options.pool_interval_s or 0.0
        if now_s < self._placed_at_s.get(
                subject.uuid, float('-inf')) + interval_s:
            return
        moved = self._hypervisor.place(subject.uuid, wanted)
        self._placed_at_s[subject.uuid] = now_s
        if placement.pcpus is None:
            self._confined.discard(subject.uuid)
        else:
            self._confined.add(subject.uuid)
        if moved:
            self._placed += 1
            LOG.info('Server %s (%s) is kept on pCPUs %s', subject.uuid,
                     subject.name, profiles.format_pcpus(
                         frozenset().union(*wanted.values())))

    def _complain(self, subject: quantum_subject.Subject,
                  problem: str) -> None:
        before = self._problems.get(subject.uuid, '')
        self._problems[subject.uuid] = problem
        if problem and problem != before:
            LOG.warning('Server %s (%s) does not get its slices: %s',
                        subject.uuid, subject.name, problem)

    def _complain_of_host(self, problem: str) -> None:
        """Log once what is wrong with all servers."""
        if problem in self._host_problems:
            return
        self._host_problems.append(problem)
        if problem not in self._past_problems:
            LOG.warning('On this host %s', problem)

    def _alarms(self) -> tuple[str, ...]:
        failing = sum(map(bool, self._problems.values()))
        return (*self._host_problems, *(
            [f'{failing} servers do not get their slices'] if failing
            else []))

    def _occupancy(self, sorts: Mapping[str, Mapping[int, model.Kind]]
                   ) -> occupancies.Occupancy:
        pools = reports.pools(self._plan, self._slices_in_use_us)
        if self._watch.status().get(_CACHE_SOURCE, 'it is not there'):
            # Nobody recognised is not the same as nobody there.
            return occupancies.Occupancy(pools)
        return occupancies.Occupancy(pools, sum(
            kind is model.Kind.POLLUTER or self._watch.pollutes(uuid, number)
            for uuid, kinds in sorts.items()
            for number, kind in kinds.items()))

    def _host_report(self, occupancy: occupancies.Occupancy
                     ) -> dict[str, ty.Any]:
        return {
            **occupancy.to_state(),
            'left_alone': len(self._plan.left_alone),
            'sources': dict(self._watch.status()),
            'slices_written': self._written,
            'servers_placed': self._placed,
        }


def _longest(slices_us: ty.Collection[int | None]) -> int | None:
    """The longest of some slices; None, the kernel's default, is short.

    Emulator and I/O threads get it, since the shortest slice in a group
    counts for all of it.
    """
    return max((slice_us for slice_us in slices_us if slice_us is not None),
               default=None)
