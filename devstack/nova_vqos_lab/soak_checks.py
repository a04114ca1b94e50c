# SPDX-License-Identifier: Apache-2.0
"""What must hold on the lab's cloud, whatever was done to it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
import contextlib
import dataclasses
import itertools
import json
import os
import time
import typing as ty

import libvirt

from nova_vqos import policy
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import host as hosts
from nova_vqos_lab import process
from nova_vqos_lab import services

# Kinds of violations: a cap is not that of the server's units on its host; a
# guest runs that should not, or the other way round; Placement has other
# claims than servers have units; a ledger has fallen; something is left, or
# leaks, or libvirt or Nova had no chance to remove it; a server is in error.
CAP, GUEST, CLAIM, LEDGER, LEFT, INTERRUPTED, ERROR = (
    'cap', 'guest', 'claim', 'ledger', 'left', 'interrupted', 'error')
LEDGER_PATH = '/var/lib/nova-vqos/ledger.sqlite'
# Columns of it with amounts that may fall.
_NOT_CHARGED = ('debt_cu_us', 'written_off_cu_us', 'saved_cu_us',
                'inherited_saved_cu_us')
_INTERVAL_S = 0.25
#: Of servers that nothing is being done to.
SETTLED = frozenset({
    'ACTIVE', 'ERROR', 'PAUSED', 'RESCUE', 'SHELVED', 'SHELVED_OFFLOADED',
    'SHUTOFF', 'SUSPENDED', 'VERIFY_RESIZE'})
# Of servers whose claim a host has, whether they run or not.
_WITH_CLAIM = SETTLED - {'SHELVED_OFFLOADED', 'ERROR'}
#: Of servers that run.
WITH_GUEST = frozenset({'ACTIVE', 'PAUSED', 'RESCUE'})
# What a program may have more of, at the end, than before the first server:
# connections of pools, and the threads of executors, which begin without any.
_SPARE = {'descriptors': 40, 'threads': 100}


class Violation(ty.NamedTuple):
    """Something that does not hold.

    :ivar kind: CAP, CLAIM, ...
    """

    kind: str
    text: str


@dataclasses.dataclass(frozen=True)
class Server:
    """A server as Nova shows it.

    :ivar cu: its units, by the flavor that it has now
    :ivar is_charged: whether its cap may be below its units
    :ivar host: None: it is on none
    :ivar has_run: whether Nova has ever had it running
    """

    uuid: str
    name: str
    status: str
    task: str | None
    cu: int
    vcpus: int
    is_charged: bool
    host: str | None
    has_run: bool

    @property
    def is_settled(self) -> bool:
        """Whether nothing is being done to it."""
        return self.task is None and self.status in SETTLED

    def __str__(self) -> str:
        where = f' on {self.host}' if self.host else ''
        task = f' ({self.task})' if self.task else ''
        return (f'{self.name} of {self.cu} CU and {self.vcpus} vCPUs, '
                f'{self.status}{task}{where}')


def servers(cloud: client.Cloud) -> dict[str, Server]:
    """:returns: all servers, by UUID.

    :raises client.CloudError: when Nova does not answer
    """
    found = {}
    # What was pushed holds for servers that were booted before, too.
    charging = {one['name'] for one in _list(cloud, 'flavors')
                if _is_charging(one)}
    for shown in _list(cloud, 'servers'):
        flavor = shown['flavor']
        specs = flavor['extra_specs']
        found[shown['id']] = Server(
            uuid=shown['id'], name=shown['name'], status=shown['status'],
            task=shown['OS-EXT-STS:task_state'],
            cu=int(specs.get(policy.UNITS_KEY, 0)),
            vcpus=flavor['vcpus'],
            is_charged=(_is_charging(flavor)
                        or flavor['original_name'] in charging),
            host=shown['OS-EXT-SRV-ATTR:host'],
            has_run=shown['OS-SRV-USG:launched_at'] is not None)
    return found


def _list(cloud: client.Cloud, what: str) -> list[dict[str, ty.Any]]:
    answer = cloud.compute('GET', f'/{what}/detail')
    if answer.status != 200:
        raise client.CloudError(f'{what}: {answer.status} {answer.message}')
    return answer.body[what]


def _is_charging(flavor: Mapping[str, ty.Any]) -> bool:
    return flavor['extra_specs'].get(policy.DD_BILLING_KEY) == 'charge'


class Checks:
    """What must hold after each step, and in the end."""

    def __init__(self, lab: clouds.Lab, cloud: client.Cloud,
                 interrupted: Set[str] = frozenset()) -> None:
        """:param interrupted: see World.interrupted; it may grow"""
        self._lab = lab
        self._cloud = cloud
        self._interrupted = interrupted
        self._charged_cu_us: dict[str, int] = {}
        # An earlier run may have been interrupted.
        self._left_before = set(self._left_on_hosts())
        self._held_at_first = self._held()

    def after_step(self) -> list[Violation]:
        """Compare Nova, Placement, libvirt, the kernel and the ledgers."""
        known = servers(self._cloud)
        running = {name: guests(host) for name, host
                   in self._lab.hosts.items()}
        return _violations({
            GUEST: self._wrong_guests(known, running),
            CAP: self._wrong_caps(known, running),
            CLAIM: self._wrong_claims(known), LEDGER: self._wrong_ledgers()})

    def at_the_end(self) -> list[Violation]:
        """Look for what is left although there are no servers any more."""
        left = set(self._left_on_hosts()) - self._left_before
        return _violations({
            LEFT: itertools.chain(sorted(left - self._interrupted),
                                  self._leaked(), self._left_queues()),
            INTERRUPTED: sorted(left & self._interrupted)})

    def _wrong_guests(self, known: Mapping[str, Server],
                      guests: Mapping[str, Mapping[str, str]]
                      ) -> Iterator[str]:
        for name, running in guests.items():
            for uuid, domain in running.items():
                server = known.get(uuid)
                if server is None:
                    yield f'{domain} runs on {name}, and is no server'
                elif server.host != name:
                    yield f'{server} runs on {name}'
        for server in known.values():
            runs = any(server.uuid in running for running in guests.values())
            # One that was stopped may be resized, too.
            if (runs != (server.status in WITH_GUEST)
                    and server.status != 'VERIFY_RESIZE'):
                yield f'{server} ' + ('runs' if runs else 'does not run')

    def _wrong_caps(self, known: Mapping[str, Server],
                    guests: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        for name, running in guests.items():
            for uuid, domain in running.items():
                server = known.get(uuid)
                if server is not None and server.host == name:
                    yield from self._wrong_cap(server, domain)

    def _wrong_cap(self, server: Server, domain: str) -> Iterator[str]:
        host = self._lab.hosts[server.host or '']
        wanted_us, in_us = self._lab.profiles.cap(host.name, server.cu,
                                                  server.vcpus)
        for vcpu in range(server.vcpus):
            found = host.vcpu_cap(domain, vcpu)
            if found is None:
                yield f'{server}: its vCPU {vcpu} has no cgroup'
                continue
            quota_us, period_us = found
            # A debt may lower the quota, or lengthen the period.
            if (quota_us, period_us) == (wanted_us, in_us) or (
                    server.is_charged
                    and 0 < quota_us * in_us <= wanted_us * period_us):
                continue
            yield (f'{server}: its vCPU {vcpu} has a cap of {quota_us} in '
                   f'{period_us} us, right is {wanted_us} in {in_us} us')

    def _wrong_claims(self, known: Mapping[str, Server]) -> Iterator[str]:
        moving = self._unconfirmed()
        for name in self._lab.hosts:
            claimed = self._claimed_cu(name)
            for server in known.values():
                has = claimed.pop(server.uuid, 0)
                wanted = server.cu if (server.host == name and server.status
                                       in _WITH_CLAIM) else 0
                if has != wanted and server.status != 'ERROR':
                    yield (f'{server} has claimed {has} CU of {name}, right '
                           f'is {wanted}')
            for consumer, cu in claimed.items():
                if consumer not in moving:
                    yield (f'{consumer} has claimed {cu} CU of {name}, and '
                           'is neither a server nor a move')

    def _claimed_cu(self, name: str) -> dict[str, int]:
        found = self._cloud.placement(
            f'/resource_providers/{self._cloud.provider(name)}/allocations')
        return {consumer: one['resources'][policy.RESOURCE_CLASS]
                for consumer, one in found['allocations'].items()
                if policy.RESOURCE_CLASS in one['resources']}

    def _unconfirmed(self) -> set[str]:
        """:returns: the moves whose server may go back"""
        answer = self._cloud.compute('GET', '/os-migrations?status=finished')
        return {one['uuid'] for one in (answer.body or {}).get(
            'migrations', ())}

    def _wrong_ledgers(self) -> Iterator[str]:
        charged: dict[str, int] = {}
        for host in self._lab.hosts.values():
            for uuid, cu_us in _charged(host).items():
                charged[uuid] = max(cu_us, charged.get(uuid, 0))
        for uuid, before in self._charged_cu_us.items():
            if charged.get(uuid, 0) < before:
                yield (f'the ledgers have {charged.get(uuid, 0)} CU us of '
                       f'{uuid}, they had {before}')
        self._charged_cu_us.update(charged)

    def _left_on_hosts(self) -> Iterator[str]:
        for host in self._lab.hosts.values():
            yield from groups(host)
            yield from disks(host)

    def _leaked(self) -> Iterator[str]:
        now = self._held()
        for program, before in self._held_at_first.items():
            for what, count in before.items():
                has = now.get(program, {}).get(what, 0)
                if has > count + _SPARE[what]:
                    yield (f'{program} has {has} {what}, it had {count} '
                           'before the first server')

    def _held(self) -> dict[str, dict[str, int]]:
        """:returns: descriptors and threads of each program on the hosts"""
        return {
            name: {'descriptors': len(os.listdir(f'/proc/{pid}/fd')),
                   'threads': len(os.listdir(f'/proc/{pid}/task'))}
            for name, pid in self._lab.running_on_hosts() if pid}

    @staticmethod
    def _left_queues() -> Iterator[str]:
        for name, messages in services.queued().items():
            if messages:
                yield f'the queue {name} has {messages} messages'


def wait_right(check: Callable[[], list[Violation]], limit_s: float
               ) -> list[Violation]:
    """Check until all is right, or the time is over.

    :returns: what is still wrong then
    """
    end_s = time.monotonic() + limit_s
    while (wrong := check()) and time.monotonic() < end_s:
        time.sleep(_INTERVAL_S)
    return wrong


def _violations(found: Mapping[str, Iterable[str]]) -> list[Violation]:
    return [Violation(kind, text) for kind, texts in found.items()
            for text in texts]


def guests(host: hosts.Host) -> dict[str, str]:
    """:returns: names of the guests that run, by UUID

    :raises process.LabError: when libvirt does not answer
    """
    try:
        with contextlib.closing(libvirt.openReadOnly(host.libvirt_uri)) as one:
            return {domain.UUIDString(): domain.name() for domain in
                    one.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
                    }
    except libvirt.libvirtError as exc:
        raise process.LabError(f'libvirt of {host.name}: {exc}') from exc


def groups(host: hosts.Host) -> list[str]:
    """:returns: directories of the cgroups of guests, in each hierarchy"""
    return [directory for mount in host.hierarchy.roots()
            for directory, _, _ in os.walk(
                os.path.join(mount.directory, host.cgroup))
            if 'instance-' in os.path.basename(directory)]


def disks(host: hosts.Host) -> list[str]:
    """:returns: directories of Nova with the disk of a server"""
    instances = host.path('nova/instances')
    return [os.path.join(instances, entry)
            for entry in sorted(os.listdir(instances))
            if os.path.exists(os.path.join(instances, entry, 'disk'))]


def _charged(host: hosts.Host) -> dict[str, int]:
    """:returns: what the ledger of a host has of each server, in CU us"""
    done = host.run(['sqlite3', '-json', '-readonly', LEDGER_PATH,
                     'SELECT * FROM servers'], check=False)
    if done.returncode:
        # No server was billed here yet.
        return {}
    rows: list[dict[str, ty.Any]] = json.loads(done.stdout or '[]')
    return {row['server_uuid']: sum(
        value for key, value in row.items()
        if key.endswith('_cu_us') and key not in _NOT_CHARGED)
        for row in rows}
