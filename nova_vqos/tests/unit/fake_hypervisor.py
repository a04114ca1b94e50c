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

"""A host that exists in memory only, for the agent's loop."""

from concurrent import futures
import dataclasses

from nova_vqos import policy
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.quantum import model
from nova_vqos.tests import make_profiles

UUID = '11111111-2222-4333-8444-555555555555'
OTHER_UUID = '99999999-2222-4333-8444-555555555555'


def make_profile(coefficient=1.0, pcpus=(0, 1), tick_us=4000):
    """A profile of one class of pCPUs."""
    return make_profiles.make_profile(
        'host', make_profiles.make_class(pcpus, coefficient, width=0.02),
        fingerprint={'tick_us': str(tick_us)})


def make_specs(units='60', **others):
    """Extra specs of a flavor; others by name without the prefix vqos:."""
    return {policy.UNITS_KEY: units,
            **{f'vqos:{key}': value for key, value in others.items()}}


class InlineExecutor(futures.Executor):
    """Does a job when it is told to go on, in the caller's thread."""

    def __init__(self):
        self.held = False
        self.jobs = []
        self._threads = None

    def use_threads(self, number):
        """From now on jobs are done by threads, as in a service."""
        self._threads = futures.ThreadPoolExecutor(number)

    def submit(self, job, /, *args, **kwargs):
        if self._threads is not None:
            return self._threads.submit(job, *args, **kwargs)
        self.jobs.append(job)
        return None

    def work(self):
        """Do all jobs, unless they are held."""
        done = 0
        while self.jobs and not self.held:
            self.jobs.pop(0)()
            done += 1
        return done

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.jobs = []
        if self._threads is not None:
            self._threads.shutdown(wait, cancel_futures=cancel_futures)


class FakeHypervisor(base.Hypervisor):
    """Domains that keep what is written to them, as the kernel does.

    :ivar written: what was written, (uuid, changes), in order
    :ivar refuse: by UUID, the error that a write meets
    :ivar starting: UUIDs of domains that are being started
    :ivar deaf: UUIDs whose writes change nothing
    :ivar pinned: what was pinned, (uuid, pCPUs), in order
    :ivar used: by UUID, what a domain used; none: it cannot be read
    :ivar host_used: what the host used; None: it is not counted
    :ivar slices: by UUID, the slice of each vCPU by its number, and of all
        other threads as that of number -1
    :ivar refuse_slices: by UUID, the error that setting one meets
    :ivar pins: by UUID, the pCPUs of each vCPU by its number
    :ivar ran: by UUID, what each vCPU ran, by its number
    :ivar sockets: of the host
    :ivar vcpu_used: by UUID, what a domain's vCPUs used; None: that cannot be
        read; nothing where a test does not say
    :ivar sampled: what was asked of it, in order
    :ivar usage_reads: sets of UUIDs whose usage was read, in order
    """

    def __init__(self, cgroup_version=1):
        self._cgroup_version = cgroup_version
        self.up = True
        self.on_event = None
        self.runs = {}
        self.domains = {}
        self.tunes = {}
        self.written = []
        self.pinned = []
        self.refuse = {}
        self.deaf = set()
        self.starting = set()
        self.used = {}
        self.host_used = None
        self.usage_reads = []
        self.vcpu_used = {}
        self.sampled = []
        self.slices = {}
        self.refuse_slices = {}
        self.pins = {}
        self.ran = {}
        self.sockets = (model.Socket(0, ((0,), (1,))),)
        self.reads = 0
        self.described = []
        self.closed = 0

    def boot(self, uuid=UUID, *, specs=None, vcpus=2, online=None, run_id=1,
             quota_us=None, period_us=100_000, shares=1024, pcpus=None,
             pinned_by_others=False, interfaces=None, disks=None,
             incoming=None, cpuset=None, pinned=False, flavor=('small', 'f1')):
        """Let a domain run, with what is in force for it.

        :param flavor: its name and id
        """
        self.runs[uuid] = run_id
        self.domains[uuid] = base.Domain(
            uuid=uuid, name=f'instance-{run_id}', extra_specs=specs,
            vcpus=vcpus, pcpus=pcpus, pinned_by_others=pinned_by_others,
            interfaces=interfaces or {}, disks=disks or {},
            incoming=incoming, cpuset=cpuset, pinned=pinned,
            flavor_name=flavor[0], flavor_id=flavor[1])
        limit = base.Limit(quota_us, period_us)
        self.tunes[uuid] = base.InForce(
            vcpus=dict.fromkeys(range(online or vcpus), limit),
            shares=shares, domain=base.Limit(None, 100_000))

    def set_vcpus(self, quota_us, period_us=50_000, uuid=UUID):
        """Somebody else sets the limit of all vCPUs."""
        tune = self.tunes[uuid]
        self.tunes[uuid] = dataclasses.replace(tune, vcpus=dict.fromkeys(
            tune.vcpus, base.Limit(quota_us, period_us)))

    def event(self, kind, uuid=UUID, detail='', values=None, at_s=0.0):
        """Let an event happen."""
        self.on_event(base.Event(
            kind=kind, uuid=uuid, run_id=self.runs.get(uuid, -1),
            detail=detail, seen_at_s=at_s, values=values or {}))

    @property
    def cgroup_version(self):
        return self._cgroup_version

    def connect(self, on_event):
        if not self.up:
            raise base.Unavailable('the daemon is down')
        self.on_event = on_event

    def close(self):
        self.closed += 1

    def running(self):
        self._check_up()
        return dict(self.runs)

    def describe(self, uuid):
        self._check_up()
        self.described.append(uuid)
        if uuid not in self.runs:
            raise base.DomainGone(uuid)
        if uuid in self.starting:
            raise base.DomainBusy('it is being started')
        return self.domains[uuid]

    def read(self, uuid):
        self._check_up()
        self.reads += 1
        if uuid not in self.runs:
            raise base.DomainGone(uuid)
        return self.tunes[uuid]

    def write(self, uuid, changes):
        self._check_up()
        if uuid in self.refuse:
            raise self.refuse[uuid]
        self.written.append((uuid, tuple(changes)))
        if uuid not in self.deaf:
            for change in changes:
                self._apply(uuid, change)

    def pin(self, uuid, pcpus):
        self._check_up()
        if uuid in self.refuse:
            raise self.refuse[uuid]
        self.pinned.append((uuid, pcpus))
        if uuid not in self.deaf:
            self.domains[uuid] = dataclasses.replace(
                self.domains[uuid], pcpus=pcpus)

    def usages(self, uuids):
        self._check_up()
        self.usage_reads.append(set(uuids))
        return {uuid: self.used[uuid] for uuid in uuids
                if uuid in self.used and uuid in self.runs}

    def vcpu_times(self, run_ids):
        self.sampled.append(dict(run_ids))
        nothing = usage.VcpuTime('run', 0.0, 0, 0, 2)
        found = {uuid: self.vcpu_used.get(uuid, nothing) for uuid in run_ids
                 if uuid in self.runs}
        return {uuid: used for uuid, used in found.items()
                if used is not None}

    def host_usage(self):
        if self.host_used is None:
            raise base.HypervisorError('it is not counted')
        return self.host_used

    def set_slices(self, uuid, vcpus, others):
        self._check_up()
        self._check_runs(uuid)
        if uuid in self.refuse_slices:
            raise self.refuse_slices[uuid]
        known = self.slices.setdefault(uuid, {})
        wanted = {**vcpus, -1: others}
        changed = sum(known.get(number) != slice_us
                      for number, slice_us in wanted.items())
        known.update(wanted)
        return changed

    def place(self, uuid, pcpus_by_vcpu):
        self._check_up()
        self._check_runs(uuid)
        if uuid in self.refuse:
            raise self.refuse[uuid]
        known = self.pins.setdefault(uuid, {})
        changed = any(known.get(number) != pcpus
                      for number, pcpus in pcpus_by_vcpu.items())
        known.update(pcpus_by_vcpu)
        return changed

    def threads(self, uuid):
        self._check_up()
        self._check_runs(uuid)
        return base.Threads({number: 100 * self.runs[uuid] + number
                             for number in self.tunes[uuid].vcpus}, ())

    def vcpu_runs(self, uuids):
        self._check_up()
        return {uuid: dict(self.ran[uuid]) for uuid in uuids
                if uuid in self.ran and uuid in self.runs}

    def topology(self):
        return self.sockets

    def _check_runs(self, uuid):
        if uuid not in self.runs:
            raise base.DomainGone(uuid)

    def _apply(self, uuid, change):
        tune = self.tunes[uuid]
        if change.parameter is base.Parameter.SHARES:
            tune = dataclasses.replace(tune, shares=change.value)
        elif change.parameter is base.Parameter.DOMAIN_QUOTA_US:
            tune = dataclasses.replace(tune, domain=dataclasses.replace(
                tune.domain, quota_us=change.value))
        elif change.parameter is base.Parameter.DOMAIN_PERIOD_US:
            tune = dataclasses.replace(tune, domain=dataclasses.replace(
                tune.domain, period_us=change.value))
        else:
            field = {base.Parameter.QUOTA_US: 'quota_us',
                     base.Parameter.PERIOD_US: 'period_us'}[change.parameter]
            tune = dataclasses.replace(tune, vcpus={
                number: dataclasses.replace(limit, **{field: change.value})
                for number, limit in tune.vcpus.items()})
        self.tunes[uuid] = tune

    def _check_up(self):
        if not self.up:
            raise base.Unavailable('the daemon is down')
