# SPDX-License-Identifier: Apache-2.0
"""What is wanted and was seen of one server's cap."""

import logging
import time
import typing as ty

from nova_vqos import cputune
from nova_vqos.agent import retry
from nova_vqos.agent import server as servers
from nova_vqos.agent.caps import desired
from nova_vqos.agent.caps import tampering
from nova_vqos.agent.messages import enforcement
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

#: Why a cap was set that was right before, besides Inputs.difference().
TAMPERED = 'tampered'
RELEASED = 'released'

# Inputs whose changes are rare enough for a line of the log each.
_LOGGED_REASONS = ('flavor', 'profile', 'pcpus', 'vcpus')

# NOTE: each write of a quota refills its pool, and so gives CPU time away
# (TRAPS, Linux 1): with a period of 50 ms and five writes a second about 7 %
# of the entitlement was measured. A cap that is left wrong can give away far
# more. So each change of another writer is restored, up to this rate.
_WRITES_AT_ONCE = 20
WRITES_PER_S = 5
# The log is not filled by it.
_LINES_AT_ONCE = 5
_LINE_INTERVAL_S = 10.0
# Of the end of a limit that has no basis.
_RELEASES_AT_ONCE = 5
_RELEASE_INTERVAL_S = 10.0
# How often a limit may be lifted for a migration. Whoever may use the bus may
# ask for it, and a tenant may start migrations and abort them.
_LIFTS_AT_ONCE = 4
_LIFT_INTERVAL_S = 900.0
# Between two looks at a server for which all is as it was: whatever changes
# what is wanted has it looked at sooner.
_LOOK_INTERVAL_S = 60.0
_RIGHT_LOOK_INTERVAL_S = 600.0
# Its cap, which is in force, does not wait for what only its next start needs.
_FIRST_PERSIST_RETRY_S = 1.0
_LONGEST_PERSIST_RETRY_S = 60.0


class LastChange(ty.NamedTuple):
    """The last time that a cap was set.

    :ivar at_s: when, in seconds since 1970
    :ivar reason: how the server came to run here, for its first cap; else a
        field of Inputs, TAMPERED, RELEASED or ``other``
    :ivar wrong_ms: for how long another one was in force before, at the
        most: who changed it may have done so after it was last looked at;
        None: unknown
    """

    at_s: float
    reason: str
    wrong_ms: float | None


class _Wrong(ty.NamedTuple):
    """Since when another cap than the wanted one is in force, and why.

    :ivar writes: how often the server had been written to
    """

    reason: str
    since_s: float
    writes: int


class CapState:
    """What the caps controller knows of one server.

    :ivar desired: what is wanted; None: nothing, or not yet known
    :ivar is_enforceable: whether what is wanted could be worked out
    :ivar in_force: what was last read; None: nothing yet
    :ivar right: whether that is what is wanted
    :ivar wants_changes: whether anything is to be written that is not yet
    :ivar right_at_first_sight: whether the first that was read was, leaving
        the weight aside; None: not yet known
    :ivar wrong_ms: for how long the guest ran here before its cap was right;
        None where unknown
    :ivar last_change: None: its cap was not set since the agent knows it
    :ivar writes: to it
    :ivar lifted_until_s: no limit on its I/O until then, for a migration;
        None: there is
    :ivar migrates: whether that migration was seen to go on: the limit waits
        for its end
    :ivar look_at_s: when it is looked at again, whatever happens
    :ivar persisted: what it starts with the next time; None: not yet known
    """

    def __init__(self, _server: servers.Server) -> None:
        self.desired: desired.Desired | None = None
        self.is_enforceable = True
        self.in_force: base.InForce | None = None
        self.right = self.wants_changes = False
        self.right_at_first_sight: bool | None = None
        self.wrong_ms: float | None = None
        self.last_change: LastChange | None = None
        self.writes = 0
        self.tampering = tampering.TamperWatch()
        self.write_tokens = retry.TokenBucket(
            _WRITES_AT_ONCE, 1 / WRITES_PER_S)
        self.release_tokens = retry.TokenBucket(
            _RELEASES_AT_ONCE, _RELEASE_INTERVAL_S)
        self.lift_tokens = retry.TokenBucket(_LIFTS_AT_ONCE, _LIFT_INTERVAL_S)
        self.lifted_until_s: float | None = None
        self.migrates = False
        self.look_at_s = float('-inf')
        self.persisted: cputune.CpuTune | None = None
        self._persist_backoff = retry.Backoff(
            _FIRST_PERSIST_RETRY_S, _LONGEST_PERSIST_RETRY_S)
        self._persist_error = ''
        self._enforced: desired.Desired | None = None
        self._last_right_at_s = 0.0
        self._wrong: _Wrong | None = None
        self._first_found: base.InForce | None = None
        self._line_tokens = retry.TokenBucket(
            _LINES_AT_ONCE, _LINE_INTERVAL_S)
        self._unlogged = 0

    def record_look(self, now_s: float, choose_at_s: float) -> None:
        """Record that it was looked at, and when that is due again.

        :param choose_at_s: when a core type is looked for again
        """
        self.look_at_s = now_s + (
            _RIGHT_LOOK_INTERVAL_S if self.right else _LOOK_INTERVAL_S)
        if choose_at_s > now_s:
            self.look_at_s = min(self.look_at_s, choose_at_s)

    def confirm_right(self, at_s: float) -> None:
        """Record until when what was right was in force unchanged, if any."""
        if self.right:
            self._last_right_at_s = max(self._last_right_at_s, at_s)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be done, as far as it was looked at."""
        return (not self.wants_changes and self.lifted_until_s is None
                and not self.tampering.problem
                and (not self.right or self.desired is None
                     or self.desired.entitled == self.persisted))

    def has_same_vcpus(self, in_force: base.InForce) -> bool:
        """Whether the vCPUs are those that were there at the last read."""
        return (self.in_force is not None
                and self.in_force.vcpus.keys() == in_force.vcpus.keys())

    def record_unknown(self, in_force: base.InForce,
                       changes: tuple[base.Change, ...]) -> None:
        """Record what is in force where nothing is known to be right.

        :param changes: what has to be written
        """
        self.in_force = in_force
        self.right, self.wants_changes = False, bool(changes)

    def record_wrong(self, in_force: base.InForce,
                     changes: tuple[base.Change, ...], now_s: float) -> None:
        """Record that what is wanted is not in force.

        :param changes: what has to be written
        """
        # What was right is not in force any more, whatever is wanted by now:
        # a new limit may have been worked out meanwhile.
        if (self.right and self._enforced is not None
                and desired.changes(self._enforced.tune, in_force)
                and self.has_same_vcpus(in_force)):
            self.tampering.begin(in_force, self.in_force,
                                 now_s - self._last_right_at_s)
        elif self.tampering.open and in_force != self.in_force:
            self.tampering.continue_with(in_force)
        if self.right_at_first_sight is None:
            # A wrong weight alone delays, but gives no other speed; and no
            # guest starts with a limit on its I/O.
            harmless = {base.Parameter.SHARES}
            if self.desired is not None and self.desired.tune.domain:
                harmless |= {base.Parameter.DOMAIN_QUOTA_US,
                             base.Parameter.DOMAIN_PERIOD_US}
            self.right_at_first_sight = all(
                change.parameter in harmless for change in changes)
            self._first_found = in_force
        self.right, self.wants_changes = False, True
        self.in_force = in_force
        if self._wrong is None:
            tampered = self.tampering.open is not None
            self._wrong = _Wrong(
                TAMPERED if tampered else self._difference(),
                self._last_right_at_s if tampered else now_s, self.writes)

    def record_right(self, server: servers.Server, in_force: base.InForce,
                     now_s: float) -> None:
        """Record, and log, that what is wanted is in force."""
        first = self._enforced is None
        self.right, self.wants_changes = True, False
        self.in_force = in_force
        self._enforced = self.desired
        self._last_right_at_s = now_s
        wrong, self._wrong = self._wrong, None
        if wrong is not None and self.writes > wrong.writes:
            self.last_change = LastChange(
                time.time(), wrong.reason, (now_s - wrong.since_s) * 1000)
            # Not what its I/O leaves it, which changes all the time; nor
            # what another writer did, see below.
            if wrong.reason in _LOGGED_REASONS:
                LOG.info('Server %s (%s) has another cap for %s, since its %s '
                         'changed: %s, after %.0f ms', server.uuid,
                         server.name, _promise(server), wrong.reason,
                         in_force, self.last_change.wrong_ms)
        if first:
            self._record_first(server, now_s)
        changed = self.tampering.open and self.tampering.end()
        if changed:
            self._log_tampering(server, changed, now_s)

    def record_released(self) -> None:
        """Record that the limit on its I/O was ended, and no more."""
        self.last_change = LastChange(time.time(), RELEASED, None)

    def to_persist(self, now_s: float) -> cputune.CpuTune | None:
        """What it is to start with the next time; None: nothing to be done.

        Without the limit on its I/O, which only an agent can end.
        """
        if (self.desired is None or self.desired.entitled == self.persisted
                or now_s < self._persist_backoff.next_at_s):
            return None
        return self.desired.entitled

    def record_persisted(self, server: servers.Server, tune: cputune.CpuTune,
                         changed: bool) -> None:
        """Record what it starts with the next time.

        :param changed: whether it would have started with anything else
        """
        self.persisted = tune
        self._persist_backoff.reset()
        self._persist_error = ''
        if changed:
            LOG.info('Server %s (%s) keeps %s, shares %d in a soft reboot: '
                     'its definition in libvirt was corrected', server.uuid,
                     server.name, 'no cap' if tune.cap is None else
                     f'a cap of {tune.cap.quota_us}/{tune.cap.period_us} us',
                     tune.shares)

    def record_not_persisted(self, server: servers.Server, error: Exception,
                             now_s: float) -> None:
        """Record that this failed; an error is logged once."""
        delay_s = self._persist_backoff.fail(now_s)
        if str(error) != self._persist_error:
            self._persist_error = str(error)
            LOG.log(logging.DEBUG if isinstance(error, base.DomainBusy)
                    else logging.WARNING,
                    'Server %s (%s) may have another cap after a soft reboot: '
                    'its definition in libvirt cannot be corrected, next try '
                    'in %.0f s: %s', server.uuid, server.name, delay_s, error)

    def _log_tampering(self, server: servers.Server,
                       changed: enforcement.Tampering, now_s: float) -> None:
        if not self._line_tokens.acquire(now_s):
            self._unlogged += 1
            return
        LOG.warning(
            'Cap of server %s (%s) was changed by another writer (%s): '
            'expected %s, found %s, restored %s, last correct at %s%s',
            server.uuid, server.name, changed.channel, changed.expected,
            changed.found, self.in_force, changed.last_right_at,
            f'; changes before it that were not logged: {self._unlogged}'
            if self._unlogged else '')
        self._unlogged = 0

    def _difference(self) -> str:
        if self.desired is None:
            return TAMPERED
        return self.desired.inputs.difference(
            None if self._enforced is None else self._enforced.inputs)

    def _record_first(self, server: servers.Server, now_s: float) -> None:
        if self.right_at_first_sight is not False:
            self.right_at_first_sight = True
            self.wrong_ms = 0.0
            LOG.info('Server %s (%s, %s) has the right cap for %s: %s',
                     server.uuid, server.name, server.origin,
                     _promise(server), self.in_force)
        else:
            window = 'an unknown time'
            if server.runs_since_s is not None:
                self.wrong_ms = (now_s - server.runs_since_s) * 1000
                window = f'{self.wrong_ms:.0f} ms'
            LOG.warning('Server %s (%s, %s) ran for %s before its cap was '
                        'corrected for %s: found %s, now %s', server.uuid,
                        server.name, server.origin, window, _promise(server),
                        self._first_found, self.in_force)
        if self.writes or server.origin != 'found':
            self.last_change = LastChange(time.time(), server.origin,
                                          self.wrong_ms)


def _promise(server: servers.Server) -> str:
    policy = server.policy
    return 'no units' if policy is None else (
        f'{policy.units} CU ({policy.cap}'
        f'{f", work {policy.work}" if policy.work else ""}), '
        f'class {policy.quantum_class}, billing {policy.dd_billing}')
