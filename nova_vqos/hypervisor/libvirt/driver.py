# SPDX-License-Identifier: Apache-2.0
"""The driver of a host of QEMU domains under libvirt."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
import contextlib
import functools
import logging
import os

from nova_vqos import units
from nova_vqos.billing import throttle
from nova_vqos.billing import usage
from nova_vqos.conf import default_path
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import activity as libvirt_activity
from nova_vqos.hypervisor.libvirt import bulk
from nova_vqos.hypervisor.libvirt import domain as libvirt_domain
from nova_vqos.hypervisor.libvirt import events
from nova_vqos.hypervisor.libvirt import session
from nova_vqos.hypervisor.libvirt import statistics
from nova_vqos.hypervisor.libvirt import writer
from nova_vqos.hypervisor.libvirt.helper import client
from nova_vqos.hypervisor.linux import bridges
from nova_vqos.hypervisor.linux import caps
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import domain_clocks
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import frequency
from nova_vqos.hypervisor.linux import guest_work
from nova_vqos.hypervisor.linux import memory
from nova_vqos.hypervisor.linux import partition
from nova_vqos.hypervisor.linux import threads
from nova_vqos.hypervisor.linux import topology
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

LOG = logging.getLogger(__name__)

# What the second connection is for.
_ASKS_QEMUS = 'that asks QEMUs'


class LibvirtHypervisor(base.Hypervisor):
    """Domains of a local libvirt daemon."""

    def __init__(self, uri: str = 'qemu:///system', *, root: str = '/',
                 run_path: str = '/run/libvirt/qemu',
                 guaranteed_pcpus: frozenset[int] = frozenset(),
                 partition_path: str = '',
                 instructions_path: str = default_path.INSTRUCTIONS,
                 helper_path: str = '') -> None:
        """Prepare; nothing is connected yet.

        :param uri: libvirt's name of the daemon
        :param root: where /proc and /sys are looked for, for tests
        :param run_path: where libvirt leaves the process id of each domain
        :param guaranteed_pcpus: of the cpuset partition in which time is
            reserved for domains; empty: it is reserved on all
        :param partition_path: of the file with what was measured there
        :param instructions_path: directory of the files in which emulators
            count instructions
        :param helper_path: of the socket of nova-vqos-helper, which writes;
            empty: this process writes
        """
        self._root = root
        self._guaranteed_pcpus = guaranteed_pcpus
        self._partition = partition.Partition(
            guaranteed_pcpus, partition_path,
            root) if guaranteed_pcpus else None
        self._session = session.Session(uri, run_path,
                                        read_only=bool(helper_path))
        self._qemu_session = session.Session(uri, run_path, read_only=True)
        self._events = events.Events()
        self._domains = domain_files.Cache(
            root, self._find_emulator,
            on_written=lambda uuid: self._events.on_written(uuid))
        self._writer: writer.Writer = (
            client.HelperClient(helper_path) if helper_path
            else writer.SessionWriter(self._session, self._domains.version,
                                      root))
        self._qemus = bulk.QemuReader(self._qemu_session)
        self._statistics = statistics.StatisticsReader(
            self._session, root, self._domains, self._qemus)
        self._work = guest_work.WorkReader(self._domains, root,
                                           instructions_path)
        self._clocks = domain_clocks.ClockReader(self._domains, root)
        self._bridges = bridges.BridgeReader(root)
        self._topology = topology.Topology(root)
        self._activity = libvirt_activity.ActivityReader(self.vcpu_runs,
                                                         self._qemus)
        self._uuids: dict[int, str] = {}

    @property
    def cgroup_version(self) -> int:
        return self._domains.version

    def connect(self, on_event: Callable[[base.Event], None]) -> None:
        self._disconnect()
        self._events = events.Events(on_event)
        try:
            self._session.open(self._events.callbacks, self._events.on_closed)
            self._qemu_session.open({}, functools.partial(
                self._events.on_closed, purpose=_ASKS_QEMUS))
            self._writer.check()
        except base.Unavailable:
            self._disconnect()
            raise

    def close(self) -> None:
        self._disconnect()
        self._work.close()
        self._clocks.close()
        self._domains.close()

    def _disconnect(self) -> None:
        self._session.close()
        self._qemu_session.close()
        self._uuids = {}
        # The domains go on, and so do their counters.
        self._domains.touch('')

    def running(self) -> Mapping[str, int]:
        # Its event may have come before there was anything to lose.
        if not self._qemu_session.is_alive():
            raise base.Unavailable(f'the connection {_ASKS_QEMUS} is lost')
        # NOTE: the cheapest of libvirt's bulk calls, for its daemon too: a
        # third of getAllDomainStats with the least it can be asked for.
        numbers = self._session.call(self._session.connected().listDomainsID)
        uuids = {}
        for number in numbers:
            uuid = self._uuids.get(number)
            if uuid is None:
                try:
                    uuid = self._session.call(
                        self._session.connected().lookupByID,
                        number).UUIDString()
                except base.DomainGone:
                    continue
            uuids[number] = uuid
        run_ids = {uuid: number for number, uuid in uuids.items()}
        if uuids != self._uuids:
            self._uuids = uuids
            self._domains.retain(run_ids)
            self._qemus.retain(run_ids)
            self._statistics.retain(run_ids)
        return run_ids

    def describe(self, uuid: str) -> base.Domain:
        return libvirt_domain.describe(self._session, self._root, uuid)

    def read(self, uuid: str) -> base.InForce:
        return self._domains.use(uuid, caps.Caps, caps.Caps.read)

    def read_anew(self, uuids: Collection[str]) -> Mapping[str, base.InForce]:
        return self._domains.use_each(uuids, caps.Caps, caps.Caps.read_anew)

    def write(self, uuid: str, changes: Sequence[base.Change]) -> None:
        try:
            self._writer.write(uuid, changes)
        finally:
            # Part of it may have been written, and the kernel may report
            # the write later than the next read.
            self._domains.touch(uuid)

    def is_busy(self, uuid: str) -> bool:
        try:
            self._session.check_writable(self._session.lookup(uuid))
        except base.DomainBusy:
            return True
        return False

    def persist(self, uuid: str, cap: units.CpuCap | None,
                shares: int) -> bool:
        return self._writer.persist(uuid, cap, shares)

    def limit_disks(self, uuid: str,
                    limit: throttle.DiskLimit | None) -> bool:
        return self._writer.limit_disks(uuid, limit)

    def pin(self, uuid: str, pcpus: Set[int]) -> None:
        self._writer.pin(uuid, pcpus)

    def usages(self, uuids: Collection[str], idle: Mapping[str, base.Idle]
               ) -> Mapping[str, usage.Usage]:
        return self._statistics.read(uuids, idle)

    def bridge_traffic(self) -> Mapping[str, usage.BridgeTraffic]:
        return self._bridges.read()

    def vcpu_times(self, run_ids: Mapping[str, int]
                   ) -> Mapping[str, usage.VcpuTime]:
        return self._statistics.read_vcpus(run_ids)

    def emulator_memory(self, uuids: Collection[str]) -> Mapping[str, int]:
        return memory.read(self._domains, uuids)

    def guest_work(self, run_ids: Mapping[str, int]
                   ) -> Mapping[str, usage.GuestWork]:
        return self._work.read(run_ids)

    def guest_work_problems(self) -> Mapping[str, str]:
        return self._work.problems()

    def clocks(self, run_ids: Mapping[str, int]) -> base.Clocks:
        return self._clocks.read(run_ids)

    def activity(self, uuids: Collection[str]
                 ) -> Mapping[str, recognition.Activity]:
        return self._activity.read(uuids)

    def host_usage(self) -> usage.HostUsage:
        return self._statistics.read_host()

    def set_slices(self, uuid: str, vcpus: Mapping[int, int | None],
                   others: int | None) -> int:
        return threads.set_slices(self._domains, uuid, vcpus, others)

    def reserved(self, uuid: str) -> base.Reserved:
        return threads.reserved(self._domains, uuid)

    def reserve(self, uuid: str, vcpu: units.CpuCap, io: units.CpuCap, *,
                reclaims: bool = False, anew: bool = True) -> base.Reserved:
        pcpus = self._reserving_pcpus()
        confined = threads.confined(self._domains, uuid, pcpus)
        if confined:
            # What the kernel reserves stays as it is until the next call.
            with contextlib.suppress(base.DomainBusy):
                self._writer.restore_pins(uuid, confined, pcpus)
        return threads.reserve(self._domains, uuid, vcpu, io,
                               reclaims=reclaims, anew=anew)

    def bandwidth(self) -> base.Bandwidth:
        if self._partition is not None:
            return base.Bandwidth(
                self._partition.total_pcpus(), is_total=True,
                number=len(self._partition.pcpus))
        number = len(self._reserving_pcpus())
        return base.Bandwidth(deadline.free_bandwidth(number),
                              is_total=False, number=number)

    def counts_clock(self) -> bool:
        return frequency.is_counted()

    def vcpu_threads(self, uuid: str) -> Mapping[int, int]:
        return threads.read_vcpus(self._domains, uuid)

    def vcpu_runs(self, uuids: Collection[str]
                  ) -> Mapping[str, Mapping[int, base.ThreadRun]]:
        return threads.read_runs(self._domains, uuids)

    def vcpu_sleeps(self, uuids: Collection[str]
                    ) -> Mapping[str, Mapping[int, int]]:
        return threads.read_sleeps(self._domains, uuids)

    def io_runs(self, uuids: Collection[str]
                ) -> Mapping[str, Mapping[int, base.ThreadRun]]:
        return threads.read_io_runs(self._domains, uuids)

    def topology(self) -> tuple[model.Socket, ...]:
        return self._topology.read()

    def place(self, uuid: str,
              pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
        return self._writer.place(uuid, pcpus_by_vcpu)

    def _reserving_pcpus(self) -> Set[int]:
        """Those that a thread may run on for which time is reserved."""
        return self._guaranteed_pcpus or os.sched_getaffinity(0)

    def _find_emulator(self, uuid: str) -> domain_files.Emulator:
        domain = self._session.lookup(uuid)
        run_id = domain.ID()
        if run_id < 0:
            # It has just ended: its cgroup goes before the event comes.
            raise base.DomainGone(f'domain {uuid} does not run')
        return domain_files.Emulator(
            run_id, self._session.read_pid(self._session.call(domain.name)))
