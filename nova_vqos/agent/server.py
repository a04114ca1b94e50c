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

"""What the agent remembers of one server, in memory only."""

from collections.abc import Set
import logging
import typing as ty

from nova_vqos import policy as policies
from nova_vqos import profile as profiles
from nova_vqos import pushed
from nova_vqos import tuning
from nova_vqos.agent import allowance as allowances
from nova_vqos.agent import decision
from nova_vqos.agent import following
from nova_vqos.agent import recap
from nova_vqos.agent import samples
from nova_vqos.agent import tampering
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

_NO_CLASS = policies.CHOICES[policies.QUANTUM_CLASS_KEY][0]

# Fields of recap.Grounds whose changes are rare.
_TOLD_REASONS = ('flavor', 'profile', 'pcpus', 'vcpus')

_LONGEST_BACKOFF_S = 30.0
_FIRST_BACKOFF_S = 0.5

# How often a server that comes is looked at: what tells of its end may be
# lost.
_ARRIVAL_INTERVAL_S = 60.0

#: Readings in a row that have to fail before it is told.
SAMPLES_MISSED = 3


class Server:
    """A domain of this host, and what became of its cap.

    :ivar run_id: see :meth:`nova_vqos.hypervisor.base.Hypervisor.running`
    :ivar origin: how it came to run here: found, booted, migrated, restored
    :ivar runs_since_s: when its guest began to run here, on the monotonic
        clock; None where unknown
    :ivar policy: the last good one; None: nothing to be enforced
    :ivar following: what of it was pushed
    :ivar dd_billing: that holds, also where there are no units
    :ivar quantum_class: likewise
    :ivar billed_since_s: when billing was switched on in this run, on the
        monotonic clock; None: it was on, or is off, from the first look on
    :ivar limit_share: of the entitlement, that it is left while it pays for
        its I/O; None: not yet known
    :ivar honoured: whether this host can give it what it is promised, as far
        as known
    :ivar lifted_until_s: no limit on its I/O until then, for a migration;
        None: there is
    :ivar bill: the last word of the one who bills it
    :ivar billed_at_s: when it was last billed, on the monotonic clock; None:
        not yet
    :ivar unread: why nobody bills it, though it is to be billed
    :ivar untold: fields of it that could not be told to others
    :ivar history: what its vCPUs used lately
    :ivar samples_missed: how often that could not be read, one after another
    :ivar pinned_to: pCPUs that it was pinned to since it was last described
    :ivar quantum: what was last told of its slices; None: nothing
    :ivar quantum_due: whether its slices are to be looked at soon
    :ivar choose_at_s: when a class is looked for again, on the monotonic clock
    :ivar grounds: what the wanted tuning follows from
    :ivar entitled: what was last wanted, were there no limit on its I/O
    :ivar enforced: the tuning that was last seen in force as wanted
    :ivar right: whether the tuning in force is the wanted one
    :ivar right_at_first_sight: whether the cap was, leaving the weight aside
    :ivar wrong_ms: for how long the guest ran here before its cap was right;
        None where unknown
    """

    def __init__(self, uuid: str, run_id: int, origin: str = 'found') -> None:
        self.uuid = uuid
        self.run_id = run_id
        self.origin = origin
        self.runs_since_s: float | None = None
        self.domain: base.Domain | None = None
        self.policy: policies.ServerPolicy | None = None
        self.following = following.Following()
        self.dd_billing = policies.CHOICES[policies.DD_BILLING_KEY][0]
        self.quantum_class = _NO_CLASS
        self.billed_since_s: float | None = None
        self.limit_share: float | None = None
        self.honoured = True
        self.lifted_until_s: float | None = None
        self.bill: dict[str, ty.Any] | None = None
        self.billed_at_s: float | None = None
        self.unread = ''
        self.untold: set[str] = set()
        self.history = samples.History()
        self.samples_missed = 0
        self.policy_error = ''
        self.problem = ''
        self.want: tuning.Tune | None = None
        self.grounds: recap.Grounds | None = None
        self.entitled: tuning.Tune | None = None
        self.enforced: tuning.Tune | None = None
        self.in_force: base.InForce | None = None
        self.right = False
        self.right_at_first_sight: bool | None = None
        self.wrong_ms: float | None = None
        self.last_right_s = 0.0
        self.tampering = tampering.TamperWatch()
        self.recaps = recap.RecapWatch()
        self.allowance = allowances.WriteAllowance()
        self.pin_allowance = allowances.WriteAllowance()
        self.pinned_to: frozenset[int] | None = None
        self.floats = ''
        self.quantum: dict[str, ty.Any] | None = None
        self.quantum_due = True
        self.choose_at_s = float('-inf')
        self.writes = 0
        # The state of the loop's work on it.
        self.undescribed = True
        self.describe_at_s = float('-inf')
        self.reconsider = True
        self.working = False
        self.failures = 0
        self.retry_at_s = float('-inf')

    @property
    def name(self) -> str:
        return self.domain.name if self.domain is not None else ''

    @property
    def is_arriving(self) -> bool:
        """Whether its guest has yet to begin to run here, as far as known.

        Its QEMU takes it in for as long as that takes: hours, it may be.
        """
        if self.runs_since_s is not None or self.domain is None:
            return False
        if self.domain.incoming is None:
            return self.origin == 'migrated'
        return self.domain.incoming

    def is_charged(self, terms: decision.HostTerms) -> bool:
        """Whether it pays for its I/O out of its entitlement.

        One that may use more than that has nothing to pay with.
        """
        return (terms.charges and self.policy is not None
                and self.policy.units is not None
                and self.policy.dd_billing == 'charge'
                and self.policy.cap == 'hard')

    @property
    def policy_errors(self) -> Set[str]:
        """What of its flavor, as booted or pushed, cannot be honoured."""
        return {self.policy_error, self.following.error} - {''}

    @property
    def had_class(self) -> bool:
        """Whether its threads may still have the slices of a class.

        What is pushed can take the class of a server away while it runs.
        """
        return (self.quantum is not None or self.following.booted(
            self.domain)['quantum_class'] != _NO_CLASS)

    @property
    def has_other_units(self) -> bool:
        """Whether its flavor had others when it was pushed.

        It keeps those that it was booted with: another number is a resize.
        """
        applied = self.following.applied
        return applied is not None and applied.units != (
            None if self.policy is None else self.policy.units)

    def take_description(self, domain: base.Domain, now_s: float,
                         overrides: pushed.Overrides = pushed.NOTHING
                         ) -> None:
        """Learn what its policy follows from.

        :param now_s: on the monotonic clock
        :param overrides: what was pushed
        """
        pinned_to, self.pinned_to = self.pinned_to, None
        if pinned_to is not None and domain.pcpus != pinned_to:
            LOG.warning(
                'Server %s (%s) was pinned to pCPUs %s, and may run on %s',
                self.uuid, domain.name, profiles.format_pcpus(pinned_to),
                'all' if domain.pcpus is None
                else profiles.format_pcpus(domain.pcpus))
        known, self.domain = self.domain is not None, domain
        # Whatever made it worth a description may have made threads.
        self.quantum_due = True
        self.describe_at_s = now_s + _ARRIVAL_INTERVAL_S
        if self.origin == 'found' and self.is_arriving:
            self.origin = 'migrated'
        self._take_policy(domain, overrides, now_s, known=known)

    def follow(self, overrides: pushed.Overrides, now_s: float) -> bool:
        """Have its policy follow what was pushed, as of now.

        One that was never described does so once it is.

        :param now_s: on the monotonic clock
        :returns: whether it has another policy now
        """
        if self.domain is None:
            return False
        before = self.policy, self.quantum_class, self.dd_billing
        self._take_policy(self.domain, overrides, now_s, known=True)
        if before == (self.policy, self.quantum_class, self.dd_billing):
            return False
        LOG.info('Server %s (%s) follows its flavor %s as it was pushed: '
                 'quantum class %s, billing %s; before %s, %s', self.uuid,
                 self.name, self.domain.flavor_name, self.quantum_class,
                 self.dd_billing, *before[1:])
        self.reconsider = self.quantum_due = True
        self.stop_backing_off()
        return True

    def _take_policy(self, domain: base.Domain, overrides: pushed.Overrides,
                     now_s: float, *, known: bool) -> None:
        """Have a policy hold from now on.

        One that cannot be understood leaves the last good one.

        :param known: whether it had one before
        """
        was_off = known and self.dd_billing == 'off'
        try:
            policy = self.following.policy_of(domain, overrides)
        except following.KeepLast:
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
        self.dd_billing = policies.CHOICES[policies.DD_BILLING_KEY][0]
        self.quantum_class = _NO_CLASS
        if policy is not None:
            self.dd_billing = policy.dd_billing
            self.quantum_class = policy.quantum_class
        if was_off and self.dd_billing != 'off':
            self.billed_since_s = now_s
        if self.dd_billing != 'charge':
            self.limit_share = None
        if self.dd_billing == 'off':
            self.bill = None
        if policy is not None and policy.units is None:
            policy = None
        if self.policy is not None and policy is None:
            LOG.warning('Server %s (%s), which had %d CU, has no units any '
                        'more: its cap is left as it is, %s', self.uuid,
                        self.name, self.policy.units, self.in_force)
        self.policy = policy

    def note_floating(self, reason: str) -> None:
        """Log once that it is kept in no class of pCPUs.

        :param reason: empty: it is in one, or is going to be
        """
        if reason and not self.floats:
            LOG.warning('Server %s (%s) stays on unlike pCPUs, capped by the '
                        'slowest: %s', self.uuid, self.name, reason)
        self.floats = reason

    def note_unread(self, reason: str) -> None:
        """Log once that nobody knows what it uses.

        :param reason: empty: it is known
        """
        if reason and not self.unread:
            LOG.warning('Server %s (%s): %s', self.uuid, self.name, reason)
        elif self.unread and not reason:
            LOG.info('Server %s (%s) is billed again', self.uuid, self.name)
        self.unread = reason

    def take_sample(self, reading: usage.VcpuTime | None) -> None:
        """Learn what its vCPUs used.

        :param reading: None: it could not be read
        """
        if reading is None:
            self.samples_missed += 1
            # One that stops is met in between once.
            if self.samples_missed == SAMPLES_MISSED:
                LOG.warning('Server %s (%s): what its vCPUs use cannot be '
                            'read', self.uuid, self.name)
            return
        if self.samples_missed >= SAMPLES_MISSED:
            LOG.info('Server %s (%s): what its vCPUs use can be read again',
                     self.uuid, self.name)
        self.samples_missed = 0
        self.history.add(reading)

    def complain(self, problem: str) -> bool:
        """Log a problem once; an empty text ends it.

        :returns: whether it is a new problem
        """
        new = bool(problem) and problem != self.problem
        if new:
            LOG.warning('Server %s (%s): %s', self.uuid, self.name, problem)
        elif self.problem and not problem:
            LOG.info('Server %s (%s) is well again', self.uuid, self.name)
        self.problem = problem
        return new

    def back_off(self, now_s: float) -> None:
        """Leave it alone for a while, twice as long each time."""
        delay_s = min(_LONGEST_BACKOFF_S,
                      _FIRST_BACKOFF_S * 2 ** min(self.failures, 10))
        self.failures += 1
        self.retry_at_s = now_s + delay_s

    def stop_backing_off(self) -> None:
        """Something happened: the next try may well succeed."""
        self.failures = 0
        self.retry_at_s = float('-inf')

    def has_vcpus_of(self, in_force: base.InForce) -> bool:
        """Whether it had the same vCPUs when it was last looked at."""
        return (self.in_force is not None
                and self.in_force.vcpus.keys() == in_force.vcpus.keys())

    def note_wrong(self, in_force: base.InForce,
                   changes: tuple[base.Change, ...], now_s: float) -> None:
        """The wanted tuning is not in force.

        :param changes: what has to be written
        """
        # What was right is not in force any more, whatever is wanted by now:
        # a new limit may have been worked out meanwhile.
        if (self.right and self.enforced is not None
                and decision.changes(self.enforced, in_force)
                and self.has_vcpus_of(in_force)):
            self.tampering.begin(in_force, self.in_force,
                                 now_s - self.last_right_s)
        if self.right_at_first_sight is None:
            # A wrong weight alone delays, but gives no other speed; and no
            # guest starts with a limit on its I/O.
            added = () if self.want is None or self.want.domain is None else (
                base.Parameter.DOMAIN_QUOTA_US,
                base.Parameter.DOMAIN_PERIOD_US)
            self.right_at_first_sight = all(
                change.parameter in (base.Parameter.SHARES, *added)
                for change in changes)
        self.right = False
        self.in_force = in_force
        tampered = self.tampering.open is not None
        self.recaps.note_wrong(
            self.grounds, self.last_right_s if tampered else now_s,
            self.writes, tampered=tampered)

    def note_right(self, in_force: base.InForce, now_s: float) -> None:
        """The wanted tuning is in force."""
        first = self.enforced is None
        self.right = True
        self.in_force = in_force
        self.enforced = self.want
        self.last_right_s = now_s
        self.stop_backing_off()
        self.complain('')
        last = self.recaps.last
        self.recaps.note_right(self.grounds, now_s, self.writes)
        if self.recaps.last is not last:
            self._tell_of(self.recaps.last)
        if first:
            self._adopt(now_s)
            self.recaps.note_first(self.origin, self.wrong_ms, self.writes)
        changed = self.tampering.end()
        if changed is not None:
            LOG.warning(
                'Somebody else changed the cap of server %s (%s): found %s '
                'where %s was, last seen in force at %s; now %s. Changed %s',
                self.uuid, self.name, changed.found, changed.expected,
                changed.last_right_at, in_force, changed.channel)

    def _adopt(self, now_s: float) -> None:
        if self.right_at_first_sight is not False:
            self.right_at_first_sight = True
            self.wrong_ms = 0.0
            LOG.info('Server %s (%s, %s) has the right cap for %s: %s',
                     self.uuid, self.name, self.origin, self._promise,
                     self.in_force)
            return
        window = 'an unknown time'
        if self.runs_since_s is not None:
            self.wrong_ms = (now_s - self.runs_since_s) * 1000
            window = f'{self.wrong_ms:.0f} ms'
        LOG.warning('Server %s (%s, %s) ran for %s before its cap was '
                    'corrected for %s: %s', self.uuid, self.name, self.origin,
                    window, self._promise, self.in_force)

    def _tell_of(self, last: recap.Recap | None) -> None:
        """Log a cap that follows from something else than the one before.

        Not what its I/O leaves it, which changes all the time; and who else
        changed it is told where that is known.
        """
        if last is not None and last.reason in _TOLD_REASONS:
            LOG.info('Server %s (%s) has another cap for %s, since its %s '
                     'changed: %s, after %.0f ms', self.uuid, self.name,
                     self._promise, last.reason, self.in_force, last.wrong_ms)

    @property
    def _promise(self) -> str:
        policy = self.policy
        return 'no units' if policy is None else (
            f'{policy.units} CU ({policy.cap}), class {policy.quantum_class}, '
            f'billing {policy.dd_billing}')
