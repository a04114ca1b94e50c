# SPDX-License-Identifier: Apache-2.0
"""The RPC endpoint of the agent. Arguments are not trusted."""

from collections.abc import Callable
import dataclasses
import datetime
import functools
import os
import re
import typing as ty
import uuid

import oslo_messaging

from nova_vqos import compute_state
from nova_vqos import policy as policies
from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import primitives
from nova_vqos import push_signature
from nova_vqos import speeds as records
from nova_vqos import utc
from nova_vqos import version
from nova_vqos.agent import loop as loops
from nova_vqos.agent import replies
from nova_vqos.agent import rpcapi
from nova_vqos.agent.billing import transfer
from nova_vqos.agent.messages import calibration
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import moves
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.messages import server_report
from nova_vqos.agent.overrides import receiver
from nova_vqos.billing import account
from nova_vqos.profile import document as documents

#: Methods that change nothing.
QUESTIONS: set[str] = set()
#: All others.
ORDERS: set[str] = set()

#: How long a migration may take to begin once its server's limit is gone. Any
#: member of the bus may ask for it.
LIFT_S = 10.0
# The loop answers at once, or hangs.
_LIFT_TIMEOUT_S = 2.5
# What methods raise where an argument is not what it has to be.
_INVALID = (account.StatementInvalid, policies.PolicyError,
            policy_override.PushInvalid, primitives.MessageInvalid)
# In the year 5138, in seconds since 1970.
_LATEST_S = 1e11
_NONCE = re.compile('[0-9a-f]{32}')


def _checked(method: Callable[..., object]) -> Callable[..., ty.Any]:
    """Check the names of arguments, and send the answer as primitives.

    The caller gets InvalidArgument; without it a missing or unknown argument
    were a TypeError with a traceback in the agent's log.
    """
    names = method.__code__.co_varnames[2:method.__code__.co_argcount]
    needed = names[:len(names) - len(method.__defaults__ or ())]

    @functools.wraps(method)
    def wrapper(self: 'AgentManager', _context: object,
                **arguments: object) -> ty.Any:
        if not set(needed) <= set(arguments) <= set(names):
            raise rpcapi.InvalidArgument(
                f'{method.__name__} takes {", ".join(names) or "nothing"}, '
                f'and got {", ".join(sorted(arguments)) or "nothing"}')
        try:
            return primitives.to_primitives(
                method(self, _context, **arguments))
        except policy_push.TooManyFlavors as error:
            raise rpcapi.TooManyFlavors(str(error)) from error
        except push_signature.SignatureInvalid as error:
            raise rpcapi.SignatureInvalid(str(error)) from error
        except _INVALID as error:
            raise rpcapi.InvalidArgument(str(error)) from error
        except TimeoutError as error:
            raise rpcapi.AgentError(
                'the agent waits for the hypervisor, try again') from error
    # NOTE: oslo.messaging's own wrapper has neither name nor docstring.
    found: Callable[..., ty.Any] = functools.wraps(method)(
        oslo_messaging.expected_exceptions(rpcapi.AgentError)(wrapper))
    return found


def _question(method: Callable[..., object]) -> Callable[..., ty.Any]:
    QUESTIONS.add(method.__name__)
    return _checked(method)


def _order(method: Callable[..., object]) -> Callable[..., ty.Any]:
    ORDERS.add(method.__name__)
    return _checked(method)


class AgentManager:
    """The RPC endpoint of a host's agent, version 1.7."""

    target = oslo_messaging.Target(version=rpcapi.VERSION)

    def __init__(self, loop: loops.Loop, host: str,
                 account_transfer: transfer.AccountTransfer | None = None,
                 push_receiver: receiver.Receiver | None = None,
                 compute_state_path: str = '') -> None:
        """Answer for a loop.

        :param host: name of this host
        :param account_transfer: receives claims and statements; None:
            billing is off
        :param push_receiver: receives pushes; None: pushes are refused
        :param compute_state_path: see :mod:`nova_vqos.compute_state`
        """
        self._loop = loop
        self._transfer = account_transfer
        self._compute_state_path = compute_state_path
        self._host = host
        self._push_receiver = push_receiver

    @_question
    def get_host(self, _context: object) -> host_report.Host:
        """The state of the agent and of its host."""
        report, stats = _brief(self._loop.host_report()), self._stats()
        return primitives.extended(
            host_report.Host, dataclasses.replace(
                report, alarms=(*report.alarms, *stats.pop('alarms', ()))),
            host=self._host, version=version.version(), pid=os.getpid(),
            **stats)

    def _stats(self) -> dict[str, ty.Any]:
        """What the compute service reported, as fields of the host.

        Its alarms are to be added to the agent's own.
        """
        path = self._compute_state_path
        try:
            found = compute_state.load(path)
        except ValueError as error:
            return {'stats_problem': str(error)}
        if found is None:
            return {'stats_problem': f'the compute service has left no {path}'}
        return {'stats': found.stats, 'stats_at': found.at,
                'terms': found.terms, 'alarms': found.alarms}

    @_question
    def list_servers(self, _context: object) -> server_report.Servers:
        """All servers that run here.

        Nothing is read for it: counters and rates are as of the last time
        that they were, see ``[vqos_agent] sample_interval_s``.
        """
        return server_report.Servers(self._host, utc.text(),
                                     tuple(self._loop.servers_report()))

    @_question
    def get_server(self, _context: object,
                   server_uuid: object) -> server_report.ServerDetail:
        """One server.

        :raises UnknownServer: when it does not run here
        """
        checked = _uuid(server_uuid)
        report = self._loop.server_report(checked)
        if report is None:
            raise rpcapi.UnknownServer(
                f'server {checked} {rpcapi.NOT_HERE} {self._host}')
        return report

    @_question
    def get_profile(self, _context: object,
                    document: object) -> calibration.Calibration:
        """The calibration of this host.

        :param document: whether to send the text of the profile
        :raises InvalidArgument: when document is neither True nor False
        """
        if not isinstance(document, bool):
            raise rpcapi.InvalidArgument('document must be True or False')
        profile, alarms = self._loop.profile_in_use()
        return calibration.Calibration(
            self._host, alarms, replies.of_calibration(
                profile, datetime.datetime.now(datetime.UTC)),
            primitives.Lines(documents.dumps(profile))
            if document and profile is not None else None)

    @_order
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
            policies.ServerPolicy.from_dict(policy)
        self._loop.wake(checked)

    @_question
    def check_server(self, _context: object,
                     server_uuid: object) -> moves.Refusal:
        """Why this host cannot take a server that is to move here cold.

        The compute service decides when Nova claims the move here, and leaves
        its decision with its report.

        :raises InvalidArgument: when the argument is no UUID
        :raises AgentError: when there is no decision
        """
        checked = _uuid(server_uuid)
        reason = self._recent_report().moves.get(checked)
        if reason is None:
            raise rpcapi.AgentError(
                f'the compute service of {self._host} expects no server '
                f'{checked}')
        return moves.Refusal(reason)

    def _recent_report(self) -> compute_state.ComputeState:
        """What the compute service reported.

        :raises AgentError: when it cannot be used
        """
        path = self._compute_state_path
        try:
            found = compute_state.load(path)
            if found is None:
                raise ValueError(f'the compute service has left no {path}')
            age = datetime.datetime.now(datetime.UTC) - utc.parse(found.at)
            if age.total_seconds() > compute_state.MAX_AGE_S:
                raise ValueError(f'{path} is of {found.at}')
        except ValueError as error:
            raise rpcapi.AgentError(str(error)) from error
        return found

    @_order
    def lift_limits(self, _context: object,
                    server_uuid: object) -> moves.Lifted:
        """Lift the limit on a server's I/O, since it is to migrate.

        Four times at once, then each 15 minutes. It returns after 10 seconds,
        or with the end of a migration that has begun by then. Asked again
        meanwhile, this answers whether it is lifted by now.
        """
        return self._loop.lift(_uuid(server_uuid), LIFT_S, _LIFT_TIMEOUT_S)

    @_order
    def claim_ledger(self, _context: object, server_uuid: object,
                     host: object, claimed_at: object, nonce: object = None,
                     most_debt_cu_us: object = account.MOST,
                     most_saved_cu_us: object = 0) -> None:
        """Hand the account of a server over that runs on another host now.

        Not before it has ended here. A claim that was replayed by a queue,
        or whose server runs here, has no effect.

        :param nonce: goes back with the answer; missing: to an agent of a
            version before 1.6
        :param most_debt_cu_us: above which that host writes debt off
        :param most_saved_cu_us: that the server may save there; missing: it
            does not burst there
        :raises InvalidArgument: when an argument is not what it has to be
        """
        checked = _uuid(server_uuid)
        claimant = account.check_host(host)
        # NOTE: math.isfinite() raises at an integer of hundreds of digits.
        if (isinstance(claimed_at, bool)
                or not isinstance(claimed_at, int | float)
                or not 0 <= claimed_at <= _LATEST_S):
            raise rpcapi.InvalidArgument('claimed_at must be a time')
        claim = transfer.Claim(
            checked, claimant, '' if nonce is None else _nonce(nonce),
            account.check_amount(most_debt_cu_us, 'most_debt_cu_us'),
            account.check_amount(most_saved_cu_us, 'most_saved_cu_us'))
        if self._transfer is not None:
            self._transfer.receive_claim(claim, claimed_at)

    @_order
    def hand_over(self, _context: object, statement: object, nonce: object,
                  is_copy: object) -> None:
        """Receive the account of a server that came here from another host.

        :param statement: see :class:`nova_vqos.billing.account.Statement`
        :param nonce: of this agent's claim: any other is refused
        :param is_copy: whether the sender had handed it over before
        :raises InvalidArgument: when an argument is not what it has to be
        """
        checked = account.Statement.from_dict(statement)
        nonce = _nonce(nonce)
        if not isinstance(is_copy, bool):
            raise rpcapi.InvalidArgument('is_copy must be True or False')
        if self._transfer is not None:
            self._transfer.receive_statement(checked, nonce, is_copy=is_copy)

    @_order
    def claim_speeds(self, _context: object, server_uuid: object,
                     host: object, nonce: object) -> None:
        """Send what was measured of a server that runs on another host now.

        Without an effect where this agent measured nothing of it.

        :param nonce: goes back with the answer
        :raises InvalidArgument: when an argument is not what it has to be
        """
        checked, claimant = _uuid(server_uuid), account.check_host(host)
        nonce = _nonce(nonce)
        # A fanout reaches the one that asks, too.
        if claimant != self._host:
            self._loop.answer_speeds(checked, claimant, nonce)

    @_order
    def hand_over_speeds(self, _context: object, server_uuid: object,
                         nonce: object, speeds: object) -> None:
        """Receive what other hosts measured of a server that came here.

        :param nonce: of this agent's question: any other is dropped
        :param speeds: see :class:`nova_vqos.speeds.Speeds`
        :raises InvalidArgument: when an argument is not what it has to be
        """
        self._loop.receive_speeds(_uuid(server_uuid), _nonce(nonce),
                                  records.parse(speeds))

    @_order
    def push_flavors(self, _context: object,
                     push: object) -> pushes.PushResult:
        """Have running servers follow flavors as they are now.

        Their quantum class, billing and guarantee, never units or cap. Of each
        flavor the push with the largest generation holds, in whatever order
        pushes come, until another is pushed, and also after a restart of the
        agent. Flavors that a full push lacks have no older push any more.

        :param push: a mapping: generation (microseconds since 1970, or one
            more than the largest there is), full (True or False), flavors (by
            id: name, vcpus, units (or None), quantum_class, dd_billing,
            guarantee) and signature (Ed25519 over all of that, in base64, or
            empty)
        :raises InvalidArgument: when it is no push, or its generation lies
            more than 5 minutes ahead of this host's clock
        :raises TooManyFlavors: when this host would have more than 1500
        :raises SignatureInvalid: when it has no signature of a key of
            ``[vqos_agent] push_public_keys``, and that has any
        """
        return self._receiver().push(push)

    @_order
    def push_policies(self, _context: object, generation: object,
                      flavors: object) -> pushes.PushResult:
        """The same for callers before 1.6: a partial push.

        :param generation: of the push
        :param flavors: likewise
        :raises InvalidArgument: as push_flavors
        :raises TooManyFlavors: likewise
        :raises SignatureInvalid: when pushes must be signed here
        """
        return self._receiver().push_partial(generation, flavors)

    @_question
    def get_pushed(self, _context: object) -> pushes.Pushed:
        """The pushes that this host holds, and how servers follow them."""
        return self._receiver().report()

    @_question
    def get_pushed_digest(self, _context: object) -> pushes.PushedDigest:
        """The same with a digest in place of the flavors."""
        return self._receiver().short_report()

    @_question
    def compare_pushes(self, _context: object,
                       digest: object) -> pushes.PushesDifference:
        """The pushes that this host holds, if they differ.

        :param digest: of the pushes that the caller holds
        :raises InvalidArgument: when it is no digest
        """
        return self._receiver().compare(digest)

    @_question
    def compare_pushed(self, _context: object,
                       digest: object) -> pushes.OverridesDifference:
        """The same for callers before 1.6: what holds for each flavor.

        :param digest: of what the caller holds
        :raises InvalidArgument: when it is no digest
        """
        return self._receiver().compare_overrides(digest)

    def _receiver(self) -> receiver.Receiver:
        if self._push_receiver is None:
            raise rpcapi.AgentError('this agent takes no pushes')
        return self._push_receiver


def _nonce(value: object) -> str:
    """
    :raises InvalidArgument: when it is none
    """
    if not isinstance(value, str) or not _NONCE.fullmatch(value):
        raise rpcapi.InvalidArgument(
            f'nonce is {repr(value)[:80]}, it must be 32 hexadecimal digits')
    return value


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


def _brief(report: host_report.LoopReport) -> host_report.LoopReport:
    """Without figures of each pCPU: commands ask all hosts at once."""
    capacity = report.capacity
    if capacity is None or capacity.packets is None:
        return report
    return dataclasses.replace(report, capacity=dataclasses.replace(
        capacity, packets=dataclasses.replace(capacity.packets, softirqs=())))
