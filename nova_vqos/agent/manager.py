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

"""What the agent answers over RPC. Arguments are not trusted."""

from collections.abc import Callable
import datetime
import functools
import math
import os
import time
import typing as ty
import uuid

import oslo_messaging

from nova_vqos import compute_state
from nova_vqos import policy as policies
from nova_vqos import profile as profiles
from nova_vqos import pushed
from nova_vqos import version
from nova_vqos.agent import hand_over as hand_overs
from nova_vqos.agent import pushing as pushings
from nova_vqos.agent import reconciler
from nova_vqos.agent import rpcapi
from nova_vqos.agent import snapshot
from nova_vqos.agent import state
from nova_vqos.billing import account as accounts

_Answer = ty.TypeVar('_Answer')

# How long a migration may take to begin once its server's limit is gone.
_LIFT_S = 30.0
_LIFT_WAIT_S = 2.5
_LIFT_LOOK_S = 0.05


def _checked(method: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """Turn wrong arguments into InvalidArgument, which the caller gets.

    Without it a missing or unknown argument were a TypeError with a traceback
    in the agent's log.
    """
    names = method.__code__.co_varnames[2:method.__code__.co_argcount]

    @functools.wraps(method)
    def wrapper(self: 'AgentManager', _context: object,
                **arguments: object) -> _Answer:
        if set(arguments) != set(names):
            raise rpcapi.InvalidArgument(
                f'{method.__name__} takes {", ".join(names) or "nothing"}, '
                f'and was given {", ".join(sorted(arguments)) or "nothing"}')
        try:
            return method(self, _context, **arguments)
        except TimeoutError as error:
            raise rpcapi.AgentError(
                'the agent waits for the hypervisor, try again') from error
    # NOTE: oslo.messaging's own wrapper has neither name nor docstring.
    return functools.wraps(method)(
        oslo_messaging.expected_exceptions(rpcapi.AgentError)(wrapper))


class AgentManager:
    """The RPC endpoint of a host's agent, version 1.2."""

    target = oslo_messaging.Target(version=rpcapi.VERSION)

    def __init__(self, loop: reconciler.Reconciler, host: str,
                 hand_over: hand_overs.HandOver | None = None,
                 pushing: pushings.Pushing | None = None,
                 compute_state_path: str = '') -> None:
        """Answer for a loop.

        :param host: name of this host
        :param hand_over: hears what other hosts say; None: nobody is billed
        :param pushing: takes what is pushed; None: nothing can be
        :param compute_state_path: see :mod:`nova_vqos.compute_state`
        """
        self._loop = loop
        self._hand_over = hand_over
        self._compute_state_path = compute_state_path
        self._host = host
        self._pushing = pushing

    @_checked
    def get_host(self, _context: object) -> dict[str, ty.Any]:
        """How the agent and its host are.

        :returns: host, version, pid; at, started_at (of the agent; ISO 8601,
            UTC); connected, cgroup_version, profile_id, alarms; profile (None,
            or id, reference, measured_at, age_s); problem (what is wrong with
            the profile, '' if nothing); units (None without a profile, or
            capacity_cu, of all pCPUs in it; reserved_cu, allocation_ratio;
            used_cu, entitlements of all servers; slowest_cu and fastest_cu of
            one pCPU); proof (None, or kernel, measured_at and by quantum class
            enforced, True, False or None: not measured, reason, slice_us,
            mean_run_us); domains (all that run), servers and wrong (UUIDs of
            those with units, and of those whose cap is not as wanted); ticks,
            last_tick_ms, writes, pins, restored, policy_errors, errors
            (counted since the agent started); bills (rounds of billing),
            dd_billing (what of it works here), capacity (None, or where the
            CPU time of the host goes, see the guide to billing);
            quantum_classes (that work here), quantum (None, or pools, sources
            and counts, see the guide to quantum classes); pushed_generation
            (see get_pushed); stats, stats_at, terms, stats_problem (what the
            compute service told the scheduler, see
            :func:`nova_vqos.compute_state.told`)
        """
        return {'host': self._host, 'version': version.version(),
                'pid': os.getpid(), **self._loop.host_report(),
                **compute_state.told(self._compute_state_path)}

    @_checked
    def list_servers(self, _context: object) -> dict[str, ty.Any]:
        """What the agent knows of all servers that run here.

        Nothing is read for it: counters and rates are as of the last time
        that they were, see ``[vqos_agent] sample_interval_s``.

        :returns: host; at (ISO 8601, UTC); servers, sorted by server_uuid:
            name (the hypervisor's), project_id, flavor and flavor_id ('' where
            it is nobody's of Nova's), origin (found, booted, migrated,
            restored or another word of the hypervisor's for how it came to run
            here), arriving (whether its guest has yet to begin to run here:
            another host tells of it as well); policy (None without units),
            entitled_cu (None without); policy_source (by field: flavor as
            booted, or pushed), booted (by field that can be pushed, as the
            flavor had it), pushed (None, or what was last pushed of its
            flavor, and pushed_at), push_error (why it does not follow it);
            quantum_class and dd_billing in force;
            right (whether its cap is as wanted, None without units); problem;
            coefficient (of the slowest pCPU that it may run on, None without a
            profile); vcpu_s and throttled_s (CPU time of its vCPUs since its
            emulator started, and for how long they were held back, together;
            None where not yet known); rates (None, or of about the last minute
            over_s; delivered_cu, None without a profile; throttled, the part
            of the time for which each vCPU was held back on average); bill
            (None, or what it used and owes, see the guide to billing);
            quantum (None, or its class, the kind, slice and mean run of each
            vCPU and where it is kept, see the guide to quantum classes);
            last_recap (None, or when its cap was last set: at, ISO 8601, UTC;
            reason: its origin, for the first here; else flavor, profile,
            pcpus, vcpus, lifted, debt, tampered, released or other; wrong_ms,
            for how long another one was in force before, None where
            unknown). What is not understood of one server is None
        """
        return {'host': self._host, 'at': state.utc(),
                'servers': self._loop.servers_report()}

    @_checked
    def get_server(self, _context: object,
                   server_uuid: object) -> dict[str, ty.Any]:
        """What the agent knows of a server.

        :returns: what list_servers has of it, and policy_error; wanted,
            in_force (by vCPU); right_at_first_sight, wrong_ms (for how long
            it ran here before its cap was right); writes, tamperings
        :raises UnknownServer: when it does not run here
        """
        checked = _uuid(server_uuid)
        report = self._loop.server_report(checked)
        if report is None:
            raise rpcapi.UnknownServer(
                f'server {checked} does not run on {self._host}')
        return report

    @_checked
    def get_profile(self, _context: object,
                    document: object) -> dict[str, ty.Any]:
        """What this host was calibrated to be.

        :param document: whether all of the profile is wanted
        :returns: host; alarms (what is wrong with the profile); profile
            (None, or id, reference, measured_at, age_s; measured_on: the
            host that was measured; is_reference; cpu_classes: pcpus, and
            alone and busy, each with coefficient and its interval's low and
            high); document (None, or its text: 4 MiB at the most)
        :raises InvalidArgument: when document is neither True nor False
        """
        if not isinstance(document, bool):
            raise rpcapi.InvalidArgument('document must be True or False')
        profile, alarms = self._loop.profile_in_use()
        return {
            'host': self._host, 'alarms': list(alarms),
            'profile': snapshot.of_calibration(
                profile, datetime.datetime.now(datetime.UTC)),
            'document': (profiles.dumps(profile)
                         if document and profile is not None else None)}

    @_checked
    def apply_policy(self, _context: object, server_uuid: object,
                     policy: object) -> None:
        """Look at a server now.

        A wake-up: the policy is read from the domain itself, since a message
        may be late, lost, or replayed by a queue.

        :param policy: of the server, as ServerPolicy.to_dict(), or None
        :raises InvalidArgument: when it is no policy
        """
        checked = _uuid(server_uuid)
        if policy is not None:
            try:
                policies.ServerPolicy.from_dict(policy)
            except policies.PolicyError as error:
                raise rpcapi.InvalidArgument(str(error)) from error
        self._loop.wake(checked)

    @_checked
    def lift_limits(self, _context: object,
                    server_uuid: object) -> dict[str, ty.Any]:
        """Take the limit on a server's I/O away, since it is to migrate.

        :returns: lifted: whether there is none any more
        """
        checked = _uuid(server_uuid)
        self._loop.lift(checked, _LIFT_S)
        end_s = time.monotonic() + _LIFT_WAIT_S
        while not self._loop.is_lifted(checked):
            if time.monotonic() > end_s:
                return {'lifted': False}
            time.sleep(_LIFT_LOOK_S)
        return {'lifted': True}

    @_checked
    def claim_ledger(self, _context: object, server_uuid: object,
                     host: object, claimed_at: object) -> None:
        """Hand the account of a server over that runs on another host now.

        Not before it has ended here. A claim that was replayed by a queue,
        or whose server runs here, has no effect.

        :raises InvalidArgument: when an argument is not what it has to be
        """
        checked = _uuid(server_uuid)
        try:
            claimant = accounts.check_host(host)
        except accounts.StatementInvalid as error:
            raise rpcapi.InvalidArgument(str(error)) from error
        if isinstance(claimed_at, bool) or not isinstance(
                claimed_at, int | float) or not math.isfinite(claimed_at):
            raise rpcapi.InvalidArgument('claimed_at must be a time')
        if self._hand_over is not None:
            self._hand_over.take_claim(checked, claimant, claimed_at)

    @_checked
    def hand_over(self, _context: object, statement: object) -> None:
        """Take the account of a server that came here from another host.

        :param statement: see :class:`nova_vqos.billing.account.Statement`
        :raises InvalidArgument: when it is none
        """
        try:
            checked = accounts.Statement.from_dict(statement)
        except accounts.StatementInvalid as error:
            raise rpcapi.InvalidArgument(str(error)) from error
        if self._hand_over is not None:
            self._hand_over.take_statement(checked)

    @_checked
    def push_policies(self, _context: object, generation: object,
                      flavors: object) -> dict[str, ty.Any]:
        """Have running servers follow flavors as they are now.

        Their quantum class and billing, never units or cap. Of each flavor
        what has the largest generation holds, in whatever order pushes come,
        until another is pushed, and also after a restart of the agent.

        :param generation: of this push: microseconds since 1970, or one more
            than the largest there is
        :param flavors: by id of the flavor: name, vcpus, units (or None),
            quantum_class, dd_billing; 1500 at most
        :returns: host; generation (the largest here); state: applied (some
            of it was new), same (it was known), older (newer ones hold);
            stored, problem (whether, and why not, it outlives the agent);
            servers (how many have another policy now), and what get_pushed
            has of servers
        :raises InvalidArgument: when it is no push, or its generation lies
            more than a day ahead of this host's clock
        """
        try:
            return {'host': self._host,
                    **self._taker().push(generation, flavors)}
        except pushed.PushInvalid as error:
            raise rpcapi.InvalidArgument(str(error)) from error

    @_checked
    def get_pushed(self, _context: object) -> dict[str, ty.Any]:
        """What was pushed, and how servers follow it.

        :returns: host; generation (the largest; 0: nothing was pushed),
            pushed_at (ISO 8601, UTC, or ''); flavors (as push_policies takes
            them, each with its generation); problem (of keeping them);
            following (how many servers do), other_units (how many of these
            were booted with other units), refused (how many cannot follow),
            unmatched (how many have a flavor that was made anew),
            not_following (of the latter two: server_uuid, flavor, reason; a
            hundred at most)
        """
        return {'host': self._host, **self._taker().report()}

    @_checked
    def compare_pushed(self, _context: object,
                       digest: object) -> dict[str, ty.Any]:
        """Tell another agent what was pushed, if it holds anything else.

        :param digest: of what it holds
        :returns: host; flavors (as get_pushed has them, None: they are the
            same)
        :raises InvalidArgument: when it is no digest
        """
        try:
            return {'host': self._host,
                    'flavors': self._taker().differing(digest)}
        except pushed.PushInvalid as error:
            raise rpcapi.InvalidArgument(str(error)) from error

    def _taker(self) -> pushings.Pushing:
        if self._pushing is None:
            raise rpcapi.AgentError('this agent takes no pushes')
        return self._pushing

    @_checked
    def forget(self, _context: object,
               server_uuid: object) -> dict[str, ty.Any]:
        """Drop what is remembered of a server; its cap stays as it is.

        One that still runs here is found again at the next tick.

        :returns: forgotten: whether it was known
        """
        return {'forgotten': self._loop.forget(_uuid(server_uuid))}


def _uuid(value: object) -> str:
    """A server's UUID as libvirt writes it.

    :raises InvalidArgument: when it is none
    """
    try:
        if not isinstance(value, str) or len(value) != 36:
            raise ValueError
        return str(uuid.UUID(value))
    except ValueError as error:
        raise rpcapi.InvalidArgument(
            f'server_uuid is {repr(value)[:80]}, it must be a UUID'
        ) from error
