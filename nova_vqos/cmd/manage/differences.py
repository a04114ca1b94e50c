# SPDX-License-Identifier: Apache-2.0
"""Nova, Placement and the agents compared: where they differ. Pure.

A server that moves has claims and guests on two hosts, and both are right:
such servers are not judged.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import datetime
import itertools
import math
import typing as ty

from nova_vqos import policy
from nova_vqos import room

#: Kinds of differences.
CLAIM_DIFFERS = 'claim-differs'
CLAIM_ELSEWHERE = 'claim-elsewhere'
CLAIM_LEAKED = 'claim-leaked'
CLAIM_STUCK = 'claim-stuck'
RUNS_TWICE = 'runs-twice'
RUNS_ELSEWHERE = 'runs-elsewhere'
RUNS_UNKNOWN = 'runs-unknown'
RUNS_NOWHERE = 'runs-nowhere'
RUNS_OTHERWISE = 'runs-otherwise'
HOST_OVERSOLD = 'host-oversold'
HOST_OVERLOADED = 'host-overloaded'

# Of Nova's API: what a server has while it is between two hosts or flavors,
# and while its cell does not answer.
_MOVING = ('BUILD', 'MIGRATING', 'RESIZE', 'REVERT_RESIZE', 'VERIFY_RESIZE')
_UNKNOWN = 'UNKNOWN'
_RUNNING = ('ACTIVE', 'PAUSED')
#: Nova closes a migration some time after its server is at rest again.
STUCK_AFTER = datetime.timedelta(minutes=10)
# NOTE: as nova-manage placement audit: it sees no other consumer.
_NOVA_CLASSES = frozenset((
    'VCPU', 'MEMORY_MB', 'DISK_GB', 'VGPU', 'PCPU', 'MEM_ENCRYPTION_CONTEXT',
    'NET_BW_EGR_KILOBIT_PER_SEC', 'NET_BW_IGR_KILOBIT_PER_SEC'))

_BEFORE_AUDIT = ('Nova deletes all such claims of the host, also those of '
                 'servers that are moving to it: make sure that none is')


class Server(ty.NamedTuple):
    """A server as Nova has it.

    :ivar host: '': it is on none
    :ivar task_state: '': nothing is done with it
    :ivar units_cu: of its flavor; 0: it has none; None: the flavor cannot be
        read
    :ivar updated_at: None: unknown
    """

    uuid: str
    host: str
    status: str
    task_state: str
    units_cu: int | None
    updated_at: datetime.datetime | None = None


class Migration(ty.NamedTuple):
    """A migration or resize that Nova has not closed.

    :ivar updated_at: None: unknown
    """

    uuid: str
    server_uuid: str
    updated_at: datetime.datetime | None = None


class Guest(ty.NamedTuple):
    """A server as an agent sees it run.

    :ivar name: the hypervisor's
    :ivar units_cu: None: unknown, or none
    :ivar is_arriving: whether it has yet to begin to run here
    """

    server_uuid: str
    host: str
    name: str
    units_cu: int | None
    is_arriving: bool = False


class Inventory(ty.NamedTuple):
    """CPU units of a host in Placement."""

    total_cu: int
    reserved_cu: int
    allocation_ratio: float

    @property
    def sellable_cu(self) -> int:
        # NOTE: a host without a valid profile is closed by reserving all of
        # it, which leaves what is sold as right as before.
        reserved_cu = (self.reserved_cu if self.reserved_cu < self.total_cu
                       else 0)
        return math.floor(room.sold_cu(
            self.total_cu, reserved_cu, self.allocation_ratio))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """A host with units, or whose agent reports guests.

    :ivar provider: UUID of its resource provider; '': it has none
    :ivar is_down: whether its compute service is down
    :ivar inventory: of CPU units; None: it has none
    :ivar held: resources by class, by consumer
    :ivar answers: whether its agent answered, and sees the hypervisor
    :ivar running_cu: of all guests, as the agent counts them
    :ivar capacity_cu: that the agent knows it may sell; None: unknown
    """

    name: str
    provider: str = ''
    is_down: bool = False
    inventory: Inventory | None = None
    held: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict)
    answers: bool = False
    running_cu: int = 0
    capacity_cu: int | None = None

    def held_cu(self, consumer: str) -> int:
        return self.held.get(consumer, {}).get(policy.RESOURCE_CLASS, 0)

    @property
    def sold_cu(self) -> int:
        """CU that Placement has given away."""
        return sum(map(self.held_cu, self.held))

    @property
    def sellable_cu(self) -> int | None:
        """CU that Placement may give away; None: it has no units."""
        return None if self.inventory is None else self.inventory.sellable_cu


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """The answers of Nova, Placement and agents at about one time.

    :ivar servers: by UUID, all of Nova's that have units or hold some
    :ivar hosts: by name, those that are judged
    :ivar stuck_after: how long a server is at rest until its open migration
        is taken for a forgotten one
    """

    servers: Mapping[str, Server]
    hosts: Mapping[str, Host]
    migrations: tuple[Migration, ...] = ()
    guests: tuple[Guest, ...] = ()
    now: datetime.datetime
    stuck_after: datetime.timedelta = STUCK_AFTER


class Difference(ty.NamedTuple):
    """What is not as it should be, and what an operator can do.

    :ivar server_uuid: of a server, or of another consumer; '': of none
    :ivar command: to paste; '': there is none
    :ivar is_certain: whether a repair of the claim is safe
    """

    kind: str
    server_uuid: str
    host: str
    found_cu: int
    expected_cu: int
    advice: str
    command: str = ''
    is_certain: bool = False


def is_moving(server: Server) -> bool:
    """Whether a server is between two hosts or flavors, or about to be."""
    return bool(server.task_state) or server.status in _MOVING


def compare(view: View) -> list[Difference]:
    """:returns: all differences, by host"""
    return _Comparison(view).all()


def unjudged(view: View) -> dict[str, str]:
    """:returns: why a server is not judged, by UUID"""
    return _Comparison(view).unjudged


class _Comparison:
    """One comparison.

    :ivar unjudged: why a server is not judged, by UUID
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._of_server: dict[str, list[Migration]] = {}
        for migration in view.migrations:
            self._of_server.setdefault(migration.server_uuid, []).append(
                migration)
        self._guests: dict[str, list[Guest]] = {}
        for guest in view.guests:
            if not guest.is_arriving:
                self._guests.setdefault(guest.server_uuid, []).append(guest)
        self.unjudged = {uuid: reason for uuid, reason in (
            (uuid, self._why_not(server))
            for uuid, server in view.servers.items()) if reason}

    def all(self) -> list[Difference]:
        claims = [*self._wrong_claims(), *self._strange_claims()]
        closed = {one.host for one in claims}
        return sorted([*claims, *self._wrong_guests(), *self._lost_guests(),
                       *self._full_hosts(closed)],
                      key=lambda one: (one.host, one.kind, one.server_uuid))

    def _why_not(self, server: Server) -> str:
        if server.status == _UNKNOWN:
            return 'its cell does not answer'
        if is_moving(server):
            return f'{server.task_state or server.status.lower()}'
        if any(not self._is_stuck(server, one)
               for one in self._of_server.get(server.uuid, ())):
            return 'its migration is not closed yet'
        if server.units_cu is None:
            return 'its flavor cannot be honoured'
        return ''

    def _is_stuck(self, server: Server, migration: Migration) -> bool:
        """Whether a migration has been forgotten rather than being done."""
        times = (server.updated_at, migration.updated_at)
        return all(
            at is not None and self._view.now - at > self._view.stuck_after
            for at in times)

    def _judged(self) -> Iterable[Server]:
        return (server for uuid, server in self._view.servers.items()
                if uuid not in self.unjudged)

    def _wrong_claims(self) -> Iterable[Difference]:
        """What servers hold of the hosts that they are on."""
        for server in self._judged():
            host = self._view.hosts.get(server.host)
            if host is None or server.units_cu is None or (
                    host.held_cu(server.uuid) == server.units_cu):
                continue
            found_cu = host.held_cu(server.uuid)
            holds = server.uuid in host.held
            if holds:
                advice = ('Placement counts its flavor wrong, as after a '
                          'resize that failed: set the claim right')
                command = f'nova-vqos-manage audit --host {host.name} --repair'
            elif not host.provider:
                advice = 'its host has no resource provider: start ' \
                    'nova-compute there'
                command = ''
            else:
                advice = ('it holds nothing of its host: have Nova claim all '
                          'that its flavor asks for')
                command = ('nova-manage placement heal_allocations '
                           f'--instance {server.uuid} --verbose')
                if any(server.uuid in one.held
                       for one in self._view.hosts.values()):
                    # NOTE: without it Nova finds some claim and is content.
                    command += ' --force'
            yield Difference(
                CLAIM_DIFFERS, server.uuid, host.name, found_cu,
                server.units_cu, advice, command,
                is_certain=holds and self._is_certain(server))

    def _is_certain(self, server: Server) -> bool:
        """Whether the agents don't contradict Nova about a server."""
        return server.uuid not in self._of_server and all(
            guest.host == server.host
            and guest.units_cu in (None, server.units_cu)
            for guest in self._guests.get(server.uuid, ()))

    def _strange_claims(self) -> Iterable[Difference]:
        """What is held of a host for no server that is there."""
        migrations = {one.uuid: one for one in self._view.migrations}
        for host in self._view.hosts.values():
            for consumer in host.held:
                held_cu = host.held_cu(consumer)
                server = self._view.servers.get(consumer)
                if not held_cu or consumer in self.unjudged or (
                        server is not None and server.host == host.name):
                    continue
                if server is not None:
                    yield self._elsewhere(host, server, held_cu)
                elif consumer in migrations:
                    found = self._stuck(host, migrations[consumer], held_cu)
                    if found is not None:
                        yield found
                else:
                    yield self._leaked(host, consumer, held_cu)

    def _leaked(self, host: Host, consumer: str, held_cu: int) -> Difference:
        advice = 'neither a server nor an open migration holds it. '
        if self._has_needed(host) or not _NOVA_CLASSES.intersection(
                host.held[consumer]):
            advice += 'Delete all that it holds'
            command = _delete_all(consumer)
        else:
            advice += _BEFORE_AUDIT
            command = _audit(host)
        return Difference(CLAIM_LEAKED, consumer, host.name, held_cu, 0,
                          advice, command)

    def _elsewhere(self, host: Host, server: Server,
                   held_cu: int) -> Difference:
        advice = f'Nova has it on {server.host or "no host"}'
        command = ''
        if self._runs_on(server.uuid, host):
            advice += (', but it runs here: end that first, see '
                       f'{RUNS_ELSEWHERE} and {RUNS_TWICE}')
        elif self._has_needed(host):
            advice += ('. Wait until no server moves to this host, and mend '
                       f'{RUNS_ELSEWHERE} and {RUNS_TWICE} first')
        else:
            advice += '. '
            if host.is_down:
                advice += ('If it was evacuated, nova-compute of this host '
                           'gives it up when it starts. If it never will: ')
            advice += _BEFORE_AUDIT
            command = _audit(host)
        return Difference(CLAIM_ELSEWHERE, server.uuid, host.name, held_cu, 0,
                          advice, command)

    def _runs_on(self, uuid: str, host: Host) -> bool:
        return any(guest.host == host.name
                   for guest in self._guests.get(uuid, ()))

    def _has_needed(self, host: Host) -> bool:
        """Whether nova-manage placement audit would delete what is needed.

        NOTE: it deletes what servers hold that Nova has on other hosts, also
        where they are about to arrive, or run in fact.
        """
        return any(
            (server := self._view.servers.get(consumer)) is not None
            and server.host != host.name
            and (consumer in self.unjudged or self._runs_on(consumer, host))
            for consumer in host.held)

    def _stuck(self, host: Host, migration: Migration,
               held_cu: int) -> Difference | None:
        server = self._view.servers.get(migration.server_uuid)
        if server is None or migration.server_uuid in self.unjudged:
            return None
        return Difference(
            CLAIM_STUCK, migration.uuid, host.name, held_cu, 0,
            f'the migration of server {server.uuid} holds it. The server is '
            'at rest, but Nova has not closed the migration, as after a '
            'nova-compute that was killed. nova-manage placement audit keeps '
            'it: delete the claim', _delete_all(migration.uuid))

    def _wrong_guests(self) -> Iterable[Difference]:
        """What runs where Nova does not have it, or with other units."""
        for uuid, guests in self._guests.items():
            server = self._view.servers.get(uuid)
            if uuid in self.unjudged:
                continue
            for guest in guests:
                cu = guest.units_cu or 0
                if server is None:
                    if guest.units_cu is not None:
                        yield Difference(
                            RUNS_UNKNOWN, uuid, guest.host, cu, 0,
                            'Nova has no such server. nova-compute ends such '
                            'guests by itself, see [DEFAULT] '
                            'running_deleted_instance_action; or end it on '
                            'its host', _destroy(guest))
                elif guest.host != server.host:
                    yield self._misplaced(server, guest, len(guests) > 1)
                elif guest.units_cu not in (None, server.units_cu):
                    yield Difference(
                        RUNS_OTHERWISE, uuid, guest.host, cu,
                        server.units_cu or 0,
                        'it runs with the units of another flavor: have Nova '
                        'define its guest anew, which restarts it',
                        f'openstack server reboot --hard {uuid}')

    def _misplaced(self, server: Server, guest: Guest,
                   is_twice: bool) -> Difference:
        where = server.host or 'no host'
        host = self._view.hosts.get(guest.host)
        if is_twice:
            advice = ('two guests of one server may write to the same disks. '
                      f'Nova has it on {where}: end this one at once')
        else:
            advice = (f'Nova has it on {where}. Do not reboot it there, that '
                      'starts a second guest. Save its disks if they are '
                      'local, end this guest, then reboot it (--hard)')
        if host is not None and host.is_down:
            advice += ('. If it was evacuated, nova-compute of this host ends '
                       'it when it starts')
        return Difference(
            RUNS_TWICE if is_twice else RUNS_ELSEWHERE, server.uuid,
            guest.host, guest.units_cu or 0, 0, advice, _destroy(guest))

    def _lost_guests(self) -> Iterable[Difference]:
        """What Nova believes to run, and no agent sees."""
        for server in self._judged():
            host = self._view.hosts.get(server.host)
            if (host is not None and host.answers and server.units_cu
                    and server.status in _RUNNING
                    and server.uuid not in self._guests):
                yield Difference(
                    RUNS_NOWHERE, server.uuid, host.name, 0, server.units_cu,
                    'no agent that was asked sees it run. If all were asked '
                    'and have answered, have Nova start it',
                    f'openstack server reboot --hard {server.uuid}')

    def _full_hosts(self, closed: Iterable[str]) -> Iterable[Difference]:
        """Hosts of which more is sold, or runs, than there is.

        :param closed: names of those whose claims are wrong
        """
        for host in self._view.hosts.values():
            sellable_cu = host.sellable_cu
            if sellable_cu is not None and host.sold_cu > sellable_cu:
                yield self._full(HOST_OVERSOLD, host, host.sold_cu,
                                 sellable_cu, host.name in closed)
            if host.capacity_cu is not None and (
                    host.running_cu > host.capacity_cu):
                yield self._full(HOST_OVERLOADED, host, host.running_cu,
                                 host.capacity_cu, host.name in closed)

    def _full(self, kind: str, host: Host, found_cu: int, expected_cu: int,
              has_wrong_claims: bool) -> Difference:
        what = ('Placement has sold more than the host has'
                if kind == HOST_OVERSOLD else
                'its guests have more units than the host sells')
        if has_wrong_claims:
            return Difference(kind, '', host.name, found_cu, expected_cu,
                              f'{what}. Mend its claims first, then look '
                              'again')
        leaver = self._leaver(host, found_cu - expected_cu)
        return Difference(
            kind, '', host.name, found_cu, expected_cu,
            f'{what}: migrate servers away (nova-vqos-manage migration check '
            'SERVER shows where to)', leaver and (
                f'openstack server migrate --live-migration {leaver}'))

    def _leaver(self, host: Host, excess_cu: int) -> str:
        """The smallest server whose leaving is enough, else the largest."""
        sizes = sorted((server.units_cu, server.uuid)
                       for server in self._judged()
                       if server.host == host.name and server.units_cu
                       and server.status in _RUNNING)
        enough = itertools.dropwhile(lambda one: one[0] < excess_cu, sizes)
        return next(enough, sizes[-1] if sizes else (0, ''))[1]


def _audit(host: Host) -> str:
    return ('nova-manage placement audit --verbose --delete '
            f'--resource_provider {host.provider}')


def _delete_all(consumer: str) -> str:
    return f'openstack resource provider allocation delete {consumer}'


def _destroy(guest: Guest) -> str:
    return f'virsh destroy {guest.name or guest.server_uuid}'
