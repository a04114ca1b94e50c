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

"""Whether a host can take a server, by the stats of its compute node.

The one judgement of the scheduler's filter and of the operator's checks, so
that they cannot differ. What the stats say: see
:meth:`nova_vqos.host_report.HostReport.stats`. Imports nothing of Nova's.
"""

from collections.abc import Callable, Mapping
import datetime
from decimal import Decimal
from decimal import InvalidOperation
import typing as ty

from nova_vqos import policy as policies
from nova_vqos import units

_Stats: ty.TypeAlias = Mapping[str, str]
_Check: ty.TypeAlias = Callable[[_Stats, ty.Any], str]


class Classes:
    """The classes of a host's unlike pCPUs, as one request sees them."""

    def __init__(self, text: str, num_instances: int = 0) -> None:
        """
        :param text: of HostReport.stats()
        :param num_instances: that the host has by now
        :raises ValueError: when it is something else
        """
        # NOTE: made anew for each host of each request: no objects.
        self._classes: list[list[ty.Any]] = [
            [speed_cu, int(room_cu), least_cu] for speed_cu, room_cu, least_cu
            in [one.split(':') for one in text.split(' ')]]
        self._num_instances = num_instances

    def take_others(self, policy: policies.ServerPolicy,
                    num_instances: int) -> None:
        """Take the room of the request's servers that the host got since.

        :param policy: of each of them, with units
        :param num_instances: that the host has by now
        :raises decimal.InvalidOperation: when a number is none
        """
        while self._num_instances < num_instances:
            self._num_instances += 1
            taken = self._fitting(policy)
            if taken is not None:
                taken[1] -= policy.units

    def speed_cu(self, policy: policies.ServerPolicy) -> str:
        """The speed of the pCPUs that a server would get, '' if none fit.

        :param policy: of the server, with units
        :raises decimal.InvalidOperation: when a number is none
        """
        fitting = self._fitting(policy)
        return '' if fitting is None else str(fitting[0])

    def refusal(self, policy: policies.ServerPolicy) -> str:
        """Why a server is refused, '' if it is not.

        :param policy: of the server, with units
        :raises decimal.InvalidOperation: when a number is none
        """
        if self._fitting(policy) is not None:
            return ''
        has = ', '.join(
            f'{room_cu} CU left on pCPUs of {speed_cu} CU'
            for speed_cu, room_cu, _least_cu in self._classes)
        return f'no class of its pCPUs is fast enough and has room: {has}'

    def _fitting(self, policy: policies.ServerPolicy) -> list[ty.Any] | None:
        """The class that the driver would choose: they come slowest first."""
        cu, vcpus = policy.units, policy.vcpus
        for one in self._classes:
            speed_cu, room_cu, least_cu = one
            if (cu <= room_cu and cu <= Decimal(speed_cu) * vcpus
                    and cu >= Decimal(least_cu) * vcpus):
                return one
        return None


class Judge:
    """What a server asks of a host, made ready for many hosts.

    :ivar asked: it, in words
    """

    def __init__(self, policy: policies.ServerPolicy, *, agent_max_age_s: int,
                 in_one_class: bool = True,
                 classes_of: Callable[[str, ty.Any], Classes] | None = None
                 ) -> None:
        """
        :param agent_max_age_s: see [vqos] agent_max_age_s
        :param in_one_class: whether servers are kept in one class of pCPUs,
            not where Nova finds them pCPUs by their NUMA topology
        :param classes_of: the classes of a host, from its stat and whatever
            the caller names the host by; None: what the stat says
        """
        self.asked = describe(policy)
        self._policy = policy
        self._in_one_class = in_one_class
        self._classes_of = classes_of or _told_classes
        self._agent_max_age_s = agent_max_age_s
        # NOTE: a check is asked of each of ten thousand hosts, so that those
        # that could not refuse any are left out here.
        checks: list[_Check] = []
        if policy.units is not None:
            checks.append(self._too_slow)
            if agent_max_age_s:
                now = datetime.datetime.now(datetime.UTC)
                self._oldest_sign = now - datetime.timedelta(
                    seconds=agent_max_age_s)
                checks.append(self._agent_gone)
        if _is_wanted(policies.QUANTUM_CLASS_KEY, policy.quantum_class):
            checks.append(self._class_not_offered)
        if _is_wanted(policies.DD_BILLING_KEY, policy.dd_billing):
            checks.append(self._billing_not_offered)
        self._checks = tuple(checks)

    def refusal(self, stats: _Stats, host: ty.Any = None) -> str:
        """Why a host is refused, '' if it is not: the first reason.

        :param stats: of its compute node
        :param host: for ``classes_of``
        """
        for check in self._checks:
            reason = check(stats, host)
            if reason:
                return reason
        return ''

    def refusals(self, stats: _Stats, host: ty.Any = None) -> list[str]:
        """All that is against a host; nothing if it is not refused."""
        return [reason for check in self._checks
                if (reason := check(stats, host))]

    def speed_cu(self, stats: _Stats) -> str:
        """The speed of the pCPUs that count for a server.

        :param stats: of a host
        :returns: '' where that cannot be told
        """
        if (self._policy.units is not None and self._in_one_class
                and stats.get('vqos_classes')):
            try:
                return Classes(stats['vqos_classes']).speed_cu(self._policy)
            except (ValueError, InvalidOperation):
                return ''
        return stats.get('vqos_slowest_cu', '')

    def _too_slow(self, stats: _Stats, host: ty.Any) -> str:
        profile = stats.get('vqos_profile')
        if profile != 'valid':
            return (f'it takes no new servers with units: {profile}'
                    if profile else 'it has no CPU units')
        policy = self._policy
        cu = ty.cast(int, policy.units)
        try:
            if self._in_one_class and stats.get('vqos_classes'):
                return self._classes_of(
                    stats['vqos_classes'], host).refusal(policy)
            # NOTE: exact, so that a pCPU of 60 CU takes a vCPU of 60 CU.
            slowest_cu = Decimal(stats['vqos_slowest_cu'])
            least_cu = Decimal(stats['vqos_least_cu'])
            if cu > slowest_cu * policy.vcpus:
                return (f'its slowest pCPU has {slowest_cu} CU, less than '
                        'what each vCPU needs')
            if cu < least_cu * policy.vcpus:
                return f'it can give a vCPU no less than {least_cu} CU'
        except (KeyError, ValueError, InvalidOperation):
            return 'its stats do not say how fast it is'
        return ''

    def _agent_gone(self, stats: _Stats, _host: ty.Any) -> str:
        seen_at = stats.get('vqos_agent_seen_at')
        if not seen_at:
            return 'its agent was never seen'
        try:
            if datetime.datetime.fromisoformat(seen_at) >= self._oldest_sign:
                return ''
        except (TypeError, ValueError):
            return f'its agent was last seen at {seen_at!r}, which is no time'
        return (f'its agent was last seen at {seen_at}, longer than '
                f'{self._agent_max_age_s} s ago')

    def _class_not_offered(self, stats: _Stats, _host: ty.Any) -> str:
        return _not_offered(stats.get('vqos_quantum_classes', ''),
                            policies.QUANTUM_CLASS_KEY,
                            self._policy.quantum_class)

    def _billing_not_offered(self, stats: _Stats, _host: ty.Any) -> str:
        return _not_offered(stats.get('vqos_dd_billing', ''),
                            policies.DD_BILLING_KEY, self._policy.dd_billing)


def asks_for_nothing(policy: policies.ServerPolicy | None) -> bool:
    """Whether a server asks nothing of ours of a host."""
    return policy is None or policy == policies.ServerPolicy(policy.vcpus)


def sells_units(stats: _Stats) -> bool:
    """Whether a host is one that may be kept for servers with units."""
    return stats.get('vqos_sells_units') == 'True'


def describe(policy: policies.ServerPolicy) -> str:
    """What a server asks of a host, in words; '' when it is nothing."""
    asked = [f'{key} {value}' for key, value in (
        (policies.QUANTUM_CLASS_KEY, policy.quantum_class),
        (policies.DD_BILLING_KEY, policy.dd_billing))
        if _is_wanted(key, value)]
    if policy.units is not None:
        cu = units.cu_per_vcpu(policy.units, policy.vcpus)
        asked.insert(0, f'{policy.units} CU on {policy.vcpus} vCPUs, '
                     f'{units.format_cu(cu)} CU each')
    return ', '.join(asked)


def _is_wanted(key: str, value: str) -> bool:
    """Whether a value is one that a host may lack."""
    return value != policies.CHOICES[key][0]


def _told_classes(text: str, _host: ty.Any) -> Classes:
    return Classes(text)


def _not_offered(offered: str, key: str, wanted: str) -> str:
    if wanted in offered.split(','):
        return ''
    return f'it offers {key} {offered or "nothing"}'
