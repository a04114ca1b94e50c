# SPDX-License-Identifier: Apache-2.0
"""What a server is, and which policy holds for it.

What a controller decides by is not here: each has a state of its own for each
server, see :class:`ServerStates`.
"""

from collections.abc import Callable, Mapping, Set
import logging
import statistics
import time
import typing as ty

from nova_vqos import files
from nova_vqos import policy as policies
from nova_vqos import policy_override
from nova_vqos import work
from nova_vqos.agent import controller
from nova_vqos.agent import isolation
from nova_vqos.hypervisor import base
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

NO_CLASS = policies.CHOICES[policies.QUANTUM_CLASS_KEY][0]
NO_BILLING = policies.CHOICES[policies.DD_BILLING_KEY][0]
NO_GUARANTEE = policies.CHOICES[policies.GUARANTEE_KEY][0]
#: In so many ticks the quotas of all servers are read, whatever happens. With
#: ticks of a second, late ones too, a wrong quota is right within ten seconds.
TURNS = 9

_State = ty.TypeVar('_State')


class Server:
    """One run of a domain on this host.

    All attributes are written by the methods alone.

    :ivar run_id: see :meth:`nova_vqos.hypervisor.base.CapDriver.running`
    :ivar origin: how it came to run here: found, booted, migrated, restored
    :ivar runs_since_s: when its guest began to run here, on the monotonic
        clock; None where unknown
    :ivar domain: its description; None: not read yet
    :ivar revision: grows whenever description or policy may have changed
    :ivar policy: the last good one; None: no speed is promised
    :ivar dd_billing: in effect, also without units
    :ivar quantum_class: likewise
    :ivar policy_error: why its flavor cannot be honoured; '': it can
    :ivar applied: the override in effect; None: its flavor as booted
    :ivar pushed: the last override of its flavor; None: there was no push
    :ivar push_error: why that override is not in effect; '': it is
    :ivar unmatched: why the override of a flavor with the same name or id is
        not meant for it; '': there is none
    :ivar reserved: what is reserved for its threads, as last seen; None: not
        yet known
    :ivar is_guaranteed: whether its policy asks for a reservation, or it
        still has one
    :ivar problem: what an operator should know; '': nothing
    """

    def __init__(self, uuid: str, run_id: int, origin: str = 'found') -> None:
        self.uuid = uuid
        self.run_id = run_id
        self.origin = origin
        self.runs_since_s: float | None = None
        self.domain: base.Domain | None = None
        self.revision = 0
        self.policy: policies.ServerPolicy | None = None
        self.dd_billing = NO_BILLING
        self.quantum_class = NO_CLASS
        self.policy_error = ''
        self.applied: policy_override.Override | None = None
        self.pushed: policy_override.Override | None = None
        self.push_error = ''
        self.unmatched = ''
        self.reserved: base.Reserved | None = None
        self.correction = 1.0
        self.is_guaranteed = False
        self.problem = ''
        self._understood = False

    # What follows from it.

    @property
    def name(self) -> str:
        """The hypervisor's; '' until it was described."""
        return self.domain.name if self.domain is not None else ''

    @property
    def is_arriving(self) -> bool:
        """Whether its guest has yet to begin to run here, as far as known.

        An incoming migration can take hours.
        """
        if self.runs_since_s is not None or self.domain is None:
            return False
        if self.domain.incoming is None:
            return self.origin == 'migrated'
        return self.domain.incoming

    def is_charged(self, terms: controller.HostTerms) -> bool:
        """Whether it pays for its I/O out of its entitlement.

        One that may use more than that has nothing to pay with.
        """
        return (terms.charges and self.policy is not None
                and self.policy.units is not None
                and self.policy.dd_billing == 'charge'
                and self.policy.cap == 'hard')

    @property
    def has_vhost(self) -> bool:
        """Whether a worker of vhost moves its packets."""
        return self.domain is not None and any(
            interface.backend == 'vhost'
            for interface in self.domain.interfaces.values())

    @property
    def may_be_accounted(self) -> bool:
        """Whether it may have an account by default.

        It has units, and its flavor as booted does not say ``off``. A push
        has ``off`` for a flavor that says nothing, too.
        """
        specs = None if self.domain is None else self.domain.extra_specs
        return (self.policy is not None and specs is not None
                and policies.DD_BILLING_KEY not in specs)

    @property
    def guarantee(self) -> str:
        """That of its policy; one without units has none."""
        return NO_GUARANTEE if self.policy is None else self.policy.guarantee

    @property
    def asks_guarantee(self) -> bool:
        """Whether its units are to be reserved for it, if the host can."""
        return self.guarantee != NO_GUARANTEE

    @property
    def has_reservation(self) -> bool:
        """Whether it has units, and any time is reserved for it."""
        return (self.policy is not None and self.reserved is not None
                and bool(self.reserved.pcpus))

    @property
    def has_reserved_vcpus(self) -> bool:
        """Whether time is reserved for all vCPUs of its flavor.

        No quota binds a thread that has a reservation.
        """
        return (self.policy is not None and self.reserved is not None
                and len(self.reserved.vcpus) >= self.policy.vcpus)

    @property
    def keeps_reservation(self) -> bool:
        """Whether it has one that its policy does not ask for any more."""
        return self.has_reservation and not self.asks_guarantee

    @property
    def policy_errors(self) -> Set[str]:
        """What of its flavor, as booted or pushed, cannot be honoured."""
        return {self.policy_error, self.push_error} - {''}

    @property
    def has_other_units(self) -> bool:
        """Whether its flavor had other units when it was pushed.

        It keeps those that it was booted with: another number is a resize.
        """
        return self.applied is not None and self.applied.units != (
            None if self.policy is None else self.policy.units)

    def booted(self) -> dict[str, str]:
        """What can be pushed, as the flavor had it at boot."""
        specs = {} if self.domain is None else self.domain.extra_specs or {}
        return {name: specs.get(key, policies.CHOICES[key][0])
                for name, key in policy_override.FOLLOWED.items()}

    def policy_sources(self) -> dict[str, str]:
        """Where each field of the policy comes from: flavor or pushed."""
        source = 'flavor' if self.applied is None else 'pushed'
        return {**dict.fromkeys(('units', 'cap', 'work', 'project_ceiling_cu',
                                 'burst_cu', 'burst_seconds'), 'flavor'),
                **dict.fromkeys(policy_override.FOLLOWED, source)}

    def coefficient(self, profile: model.Profile) -> float:
        """That of the slowest pCPU that it may run on, by its kind of work.

        Of all pCPUs where it may run on one that was not measured, and by the
        mean of all kinds where its own was not. As corrected for the server's
        own work. It was described.
        """
        mix = None if self.policy is None else self.policy.mix
        try:
            return profile.slowest(self._pcpus(profile), mix) * self.correction
        except (files.FileError, work.KindMissing):
            return self.host_coefficient(profile) * self.correction

    def host_coefficient(self, profile: model.Profile) -> float:
        """The same by the mean of all kinds of work."""
        try:
            return profile.slowest(self._pcpus(profile))
        except files.FileError:
            return profile.slowest(profile.pcpus)

    def calibrated_mhz(self, profile: model.Profile) -> float | None:
        """The clock of its pCPUs in the calibration; None: not known."""
        return profile.clock_mhz(self._pcpus(profile))

    def mean_mhz(self, pcpus_mhz: Mapping[int, float]) -> float | None:
        """The mean clock of the pCPUs that it may run on.

        :param pcpus_mhz: of those whose clock is known
        :returns: None: of none of them
        """
        domain = self.domain
        found = [mhz for pcpu, mhz in pcpus_mhz.items()
                 if domain is None or domain.pcpus is None
                 or pcpu in domain.pcpus]
        return statistics.fmean(found) if found else None

    def spans_core_types(self, profile: model.Profile) -> bool:
        """Whether it may run on several core types, and was not pinned so.

        What another writer pinned is left as it is. It was described.
        """
        if self.domain is None or self.domain.pinned_by_others:
            return False
        pcpus = self._pcpus(profile)
        # At each tick, for each server: no sums here.
        return sum(not cpu_class.pcpus.isdisjoint(pcpus)
                   for cpu_class in profile.cpu_classes) > 1

    def eligible_pcpus(self, profile: model.Profile
                       ) -> frozenset[int] | None:
        """All pCPUs that the agent may choose from for its vCPUs.

        They are of one core type: on unlike pCPUs it is kept in one already.

        :returns: None where another writer pinned it, or it is in none yet
        """
        domain = self.domain
        if domain is None or domain.pinned_by_others:
            return None
        allowed = (profile.pcpus if domain.cpuset is None
                   else profile.pcpus & domain.cpuset)
        now = allowed if domain.pcpus is None else domain.pcpus
        found = [cpu_class.pcpus for cpu_class in profile.cpu_classes
                 if not cpu_class.pcpus.isdisjoint(now)]
        return allowed & found[0] if len(found) == 1 else None

    def _pcpus(self, profile: model.Profile) -> Set[int]:
        domain = self.domain
        return (profile.pcpus if domain is None or domain.pcpus is None
                else domain.pcpus)

    # What changes it.

    def record_event(self, event: base.Event) -> None:
        """Record how and when it came to run here."""
        if event.kind is base.EventKind.STARTED:
            self.origin = event.detail
        # Whichever comes first: libvirt may send RESUMED before STARTED. In
        # a migration STARTED is but the QEMU, whose guest is not here yet.
        if self.runs_since_s is None and (
                event.kind is base.EventKind.RESUMED
                or (event.kind is base.EventKind.STARTED
                    and event.detail != 'migrated')):
            self.runs_since_s = event.seen_at_s

    def describe(self, domain: base.Domain,
                 overrides: policy_override.Overrides =
                 policy_override.NOTHING) -> None:
        """Replace its description, and work out its policy again."""
        self.domain = domain
        # Whatever made it worth a description may have made threads.
        self.revision += 1
        if self.origin == 'found' and self.is_arriving:
            self.origin = 'migrated'
        self._update_policy(domain, overrides)

    def follow(self, overrides: policy_override.Overrides) -> bool:
        """Work out its policy again, from what was pushed.

        Without a description it follows once it has one.

        :returns: whether it has another policy now
        """
        if self.domain is None:
            return False
        before, followed = self.policy, self._followed()
        self._update_policy(self.domain, overrides)
        if (before, followed) == (self.policy, self._followed()):
            return False
        self.revision += 1
        LOG.info('Server %s (%s) follows its flavor %s as it was pushed: '
                 'quantum class %s, billing %s, guarantee %s; before %s, %s, '
                 '%s', self.uuid, self.name, self.domain.flavor_name,
                 *self._followed(), *followed)
        return True

    def record_reserved(self, reserved: base.Reserved) -> None:
        """Record what is reserved for its threads."""
        self.reserved = reserved
        self._update_guaranteed()

    def record_correction(self, correction: float) -> None:
        """Record by how much its own work is faster than its coefficient."""
        self.correction = correction
        self.revision += 1

    def set_problem(self, problem: str) -> bool:
        """Log a problem once; an empty text ends it.

        :returns: whether it is a new problem
        """
        new = bool(problem) and problem != self.problem
        if new:
            LOG.warning('Server %s (%s): %s', self.uuid, self.name, problem)
        elif self.problem and not problem:
            LOG.info('Server %s (%s): problem cleared', self.uuid, self.name)
        self.problem = problem
        return new

    def _followed(self) -> tuple[str, ...]:
        """What holds of the fields that a push changes."""
        return tuple(getattr(self, field)
                     for field in policy_override.FOLLOWED)

    def _update_policy(self, domain: base.Domain,
                       overrides: policy_override.Overrides) -> None:
        """A policy that contradicts itself leaves the last good one."""
        try:
            policy = self._effective_policy(domain, overrides)
        except _KeepPolicy:
            return
        except policies.PolicyError as error:
            if str(error) != self.policy_error:
                self.policy_error = str(error)
                LOG.error(
                    'The flavor of server %s (%s) cannot be honoured: %s. %s',
                    self.uuid, domain.name, error, 'Its last good policy stays'
                    if self.policy is not None else 'Its cap is left as it is')
            return
        self.policy_error = ''
        self.dd_billing = NO_BILLING if policy is None else policy.dd_billing
        self.quantum_class = (NO_CLASS if policy is None
                              else policy.quantum_class)
        if policy is not None and policy.units is None:
            policy = None
        if self.policy is not None and policy is None:
            LOG.warning('Server %s (%s), which had %d CU, has no units any '
                        'more: its cap is left as it is', self.uuid,
                        self.name, self.policy.units)
        self.policy = policy
        self._update_guaranteed()

    def _update_guaranteed(self) -> None:
        """Once: the loop asks it of servers in each tick."""
        self.is_guaranteed = self.asks_guarantee or self.has_reservation

    def _effective_policy(self, domain: base.Domain,
                          overrides: policy_override.Overrides
                          ) -> policies.ServerPolicy | None:
        """
        :raises _KeepPolicy: when the push contradicts what it booted with
        :raises nova_vqos.policy.PolicyError: when its flavor as booted cannot
            be honoured
        """
        specs = domain.extra_specs
        if specs is None:
            # Not a server of Nova, or not any more.
            self.applied = self.pushed = None
            self.push_error = self.unmatched = ''
            return None
        self.pushed, self.unmatched = policy_override.match(
            overrides, domain.flavor_id, domain.flavor_name, domain.vcpus)
        try:
            policy = policy_override.effective(
                specs, domain.vcpus, self.pushed)
        except policies.PolicyError as error:
            if self.pushed is None:
                raise
            self._refuse_push(domain, str(error))
            if self._understood:
                raise _KeepPolicy from error
            policy = policy_override.effective(specs, domain.vcpus, None)
            self.applied = None
        else:
            self.push_error = ''
            self.applied = self.pushed
        self._understood = True
        return policy

    def _refuse_push(self, domain: base.Domain, error: str) -> None:
        if error != self.push_error:
            LOG.error('Server %s cannot follow the push of its flavor %s, and '
                      'keeps its policy: %s', domain.uuid, domain.flavor_name,
                      error)
        self.push_error = error


class _KeepPolicy(Exception):
    """A server cannot follow a push, and has a good policy already."""


class ServerStates(dict[Server, _State]):
    """What one controller knows of each server, until the server has gone.

    A server that is looked up for the first time gets a state.
    """

    def __init__(self, make: Callable[[Server], _State]) -> None:
        """
        :param make: the state of a server that is new to the controller
        """
        super().__init__()
        self._make = make

    def __missing__(self, server: Server) -> _State:
        state = self[server] = self._make(server)
        return state

    def drop(self, server: Server) -> None:
        """Forget a server, which has gone."""
        self.pop(server, None)


class Servers(dict[str, Server]):
    """The servers that run on this host, by UUID.

    They come and go by :meth:`add` and :meth:`remove` alone.

    A server is marked while something may have changed that its cap depends
    on: the loop looks at those between two ticks. One that is not settled has
    something left to be done, perhaps later: the loop looks at those in each
    tick. All others take turns: in each tick the caps of some are read.

    :ivar isolation: through which all that is done for several of them goes
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        :param clock: monotonic, in seconds
        """
        super().__init__()
        self.isolation = isolation.Isolation(clock)
        self._marked: set[Server] = set()
        self._unsettled: set[Server] = set()
        self._turns: tuple[set[Server], ...] = tuple(
            set() for _ in range(TURNS))
        self._turn = 0
        self._states: list[ServerStates[ty.Any]] = []

    def states(self, make: Callable[[Server], _State]
               ) -> ServerStates[_State]:
        """Make a table of a controller's states."""
        states = ServerStates(make)
        self._states.append(states)
        return states

    def add(self, server: Server) -> Server:
        """Add a server, which replaces an earlier run of it."""
        self.remove(server.uuid)
        self[server.uuid] = server
        self._marked.add(server)
        self._unsettled.add(server)
        min(self._turns, key=len).add(server)
        return server

    def remove(self, uuid: str) -> None:
        """Forget a server, and all states of it."""
        server = self.pop(uuid, None)
        if server is not None:
            self._marked.discard(server)
            self._unsettled.discard(server)
            for turn in self._turns:
                turn.discard(server)
            self.isolation.forget(uuid)
            for states in self._states:
                states.drop(server)

    def runs(self, server: Server) -> bool:
        """Whether this run of it has not ended."""
        return self.get(server.uuid) is server

    def mark(self, server: Server) -> None:
        """Have a server looked at soon."""
        self._marked.add(server)

    def unmark(self, server: Server) -> bool:
        """Note that it is looked at.

        :returns: whether it was marked
        """
        if server not in self._marked:
            return False
        self._marked.discard(server)
        return True

    def marked(self) -> tuple[Server, ...]:
        """Those that are to be looked at."""
        return tuple(self._marked)

    def settle(self, server: Server, *, is_settled: bool) -> None:
        """Note whether something is left to be done for a server."""
        if is_settled:
            self._unsettled.discard(server)
        else:
            self._unsettled.add(server)

    def due(self) -> frozenset[Server]:
        """Those to look at in a tick, besides those whose turn it is."""
        return frozenset(self._marked | self._unsettled)

    def next_turn(self) -> frozenset[Server]:
        """Those whose turn it is, in this tick."""
        self._turn = (self._turn + 1) % TURNS
        return frozenset(self._turns[self._turn])
