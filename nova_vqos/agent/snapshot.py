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

"""What others are told of servers and of the host, in primitives.

The words of the RPC, of metrics and of reports: all are made here, from what
the loop knows at that moment. Nothing is read for it.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import datetime
import logging
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos import units
from nova_vqos.agent import decision
from nova_vqos.agent import server as servers
from nova_vqos.quantum import proof as proofs

LOG = logging.getLogger(__name__)


class Moment(ty.NamedTuple):
    """What a server's figures depend on besides the server.

    :ivar now_s: on the monotonic clock
    """

    terms: decision.HostTerms
    now_s: float


_Field = Callable[[servers.Server, Moment], ty.Any]


def of_servers(known: Iterable[servers.Server],
               moment: Moment) -> list[dict[str, ty.Any]]:
    """What is told of all servers of a host, sorted by UUID.

    See :meth:`nova_vqos.agent.manager.AgentManager.list_servers`.
    """
    return [of_server(server, moment)
            for server in sorted(known, key=lambda server: server.uuid)]


def of_server(server: servers.Server,
              moment: Moment) -> dict[str, ty.Any]:
    """What is told of a server.

    What cannot be told is None, whatever the reason: one server that is not
    understood must not cost the answer.
    """
    return _read_all(_FIELDS, server, moment)


def in_detail(server: servers.Server, moment: Moment) -> dict[str, ty.Any]:
    """The same, and what is of interest for one server only.

    See :meth:`nova_vqos.agent.manager.AgentManager.get_server`.
    """
    return _read_all(_FIELDS | _DETAILS, server, moment)


def of_units(profile: profiles.Profile | None, terms: decision.HostTerms,
             known: Iterable[servers.Server]) -> dict[str, ty.Any] | None:
    """Where the CPU units of the host are; None: it has none."""
    if profile is None:
        return None
    return {
        'capacity_cu': units.capacity_cu(
            map(profile.coefficient, profile.pcpus)),
        'reserved_cu': terms.reserved_cu,
        'allocation_ratio': terms.allocation_ratio,
        'used_cu': sum(server.policy.units or 0 for server in known
                       if server.policy is not None),
        'slowest_cu': _pcpu_cu(profile.slowest(profile.pcpus)),
        'fastest_cu': _pcpu_cu(profile.fastest(profile.pcpus)),
    }


def of_profile(profile: profiles.Profile | None,
               now: datetime.datetime) -> dict[str, ty.Any] | None:
    """Which profile is in use; None: there is none.

    :param now: UTC
    """
    if profile is None:
        return None
    return {'id': profile.id, 'reference': profile.reference.name,
            'measured_at': profile.created_at,
            'age_s': _age_s(profile.created_at, now)}


def of_calibration(profile: profiles.Profile | None,
                   now: datetime.datetime) -> dict[str, ty.Any] | None:
    """The profile in use with its figures; None: there is none.

    See :meth:`nova_vqos.agent.manager.AgentManager.get_profile`.

    :param now: UTC
    """
    told = of_profile(profile, now)
    if told is None or profile is None:
        return None
    return {
        **told, 'measured_on': profile.host,
        'is_reference': profile.is_reference,
        'cpu_classes': [{
            'pcpus': profiles.format_pcpus(one.pcpus),
            **{name: {'coefficient': found.coefficient,
                      'low': found.interval_low, 'high': found.interval_high}
               for name, found in (('alone', one.alone), ('busy', one.busy))},
        } for one in profile.cpu_classes]}


def of_proof(proof: proofs.Proof | None) -> dict[str, ty.Any] | None:
    """Which slices the kernel was seen to enforce; None: nobody looked."""
    if proof is None:
        return None
    return {
        'kernel': proof.kernel, 'measured_at': proof.measured_at,
        'classes': {name: dataclasses.asdict(outcome)
                    for name, outcome in proof.outcomes.items()}}


def _read_all(fields: Mapping[str, _Field], server: servers.Server,
              moment: Moment) -> dict[str, ty.Any]:
    found = {}
    for name, read in fields.items():
        try:
            found[name] = read(server, moment)
        except Exception:
            found[name] = None
            # Once: it is asked for again and again.
            if name not in server.untold:
                server.untold.add(name)
                LOG.exception('Field %s of server %s cannot be told', name,
                              server.uuid)
    return found


def _coefficient(server: servers.Server, moment: Moment) -> float | None:
    profile = moment.terms.profile
    if server.domain is None or profile is None:
        return None
    return decision.coefficient(server.domain, profile)


def _policy(server: servers.Server, _moment: Moment
            ) -> dict[str, ty.Any] | None:
    return None if server.policy is None else server.policy.to_dict()


def _vcpu_s(server: servers.Server, _moment: Moment) -> float | None:
    last = server.history.last
    return None if last is None else last.vcpu_ns / 1e9


def _throttled_s(server: servers.Server, _moment: Moment) -> float | None:
    last = server.history.last
    return None if last is None else last.throttled_ns / 1e9


def _rates(server: servers.Server, moment: Moment
           ) -> dict[str, ty.Any] | None:
    rates = server.history.rates(_coefficient(server, moment), moment.now_s)
    return None if rates is None else rates._asdict()


def _last_recap(server: servers.Server, _moment: Moment
                ) -> dict[str, ty.Any] | None:
    last = server.recaps.last
    return None if last is None else last._asdict()


def _wanted(server: servers.Server, _moment: Moment
            ) -> dict[str, ty.Any] | None:
    want = server.want
    if want is None:
        return None
    return {'quota_us': None if want.cap is None else want.cap.quota_us,
            'period_us': None if want.cap is None else want.cap.period_us,
            'shares': want.shares,
            'domain': None if want.domain is None else want.domain._asdict()}


def _in_force(server: servers.Server, _moment: Moment
              ) -> dict[str, ty.Any] | None:
    in_force = server.in_force
    if in_force is None:
        return None
    return {'vcpus': {str(number): dataclasses.asdict(limit)
                      for number, limit in in_force.vcpus.items()},
            'shares': in_force.shares,
            'domain': dataclasses.asdict(in_force.domain)}


def _pcpu_cu(coefficient: float) -> float:
    return float(units.pcpu_cu(coefficient))


def _age_s(created_at: str, now: datetime.datetime) -> float | None:
    """How long ago a profile was made; None: it does not say when."""
    try:
        created = datetime.datetime.fromisoformat(created_at)
    except ValueError:
        return None
    if created.tzinfo is None:
        created = created.replace(tzinfo=datetime.UTC)
    return max(0.0, (now - created).total_seconds())


#: Of each server, in the order in which they are told.
_FIELDS: Mapping[str, _Field] = {
    'server_uuid': lambda server, _: server.uuid,
    'name': lambda server, _: server.name,
    'project_id': lambda server, _: (
        '' if server.domain is None else server.domain.project_id),
    'origin': lambda server, _: server.origin,
    'arriving': lambda server, _: server.is_arriving,
    'flavor': lambda server, _: (
        '' if server.domain is None else server.domain.flavor_name),
    'flavor_id': lambda server, _: (
        '' if server.domain is None else server.domain.flavor_id),
    'policy': _policy,
    'policy_source': lambda server, _: server.following.sources(),
    'booted': lambda server, _: server.following.booted(server.domain),
    'pushed': lambda server, _: server.following.told(),
    'push_error': lambda server, _: server.following.problem,
    'entitled_cu': lambda server, _: (
        None if server.policy is None else server.policy.units),
    'quantum_class': lambda server, _: server.quantum_class,
    'dd_billing': lambda server, _: server.dd_billing,
    'right': lambda server, _: (
        None if server.policy is None else server.right),
    'problem': lambda server, _: server.problem or server.unread,
    'coefficient': _coefficient,
    'vcpu_s': _vcpu_s,
    'throttled_s': _throttled_s,
    'rates': _rates,
    'bill': lambda server, _: server.bill,
    'quantum': lambda server, _: server.quantum,
    'last_recap': _last_recap,
}

#: Of one that is asked for.
_DETAILS: Mapping[str, _Field] = {
    'policy_error': lambda server, _: server.policy_error,
    'wanted': _wanted,
    'in_force': _in_force,
    'right_at_first_sight': lambda server, _: server.right_at_first_sight,
    'wrong_ms': lambda server, _: server.wrong_ms,
    'writes': lambda server, _: server.writes,
    'tamperings': lambda server, _: [
        dataclasses.asdict(changed) for changed in server.tampering.past],
}
